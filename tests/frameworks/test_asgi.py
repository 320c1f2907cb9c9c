"""FastAPI and Starlette: handlers push, and the connection ends with the application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

import duetime
from duetime.frameworks.asgi import lifespan
from tests.plugins.ci import missing_service


@pytest.fixture
def jobs(tmp_path: Path) -> duetime.App:
    app = duetime.App(f"sqlite://{tmp_path / 'jobs.db'}?synchronous=OFF")

    @app.task(name="send")
    def send(to: str) -> None: ...

    return app


def waiting(jobs: duetime.App) -> int:
    with duetime.connect(jobs.url) as client:
        return client.queue("default").status().counts.ready


def open_clients(jobs: duetime.App) -> int:
    return len(jobs.client_pusher._by_loop)


def test_starlette(jobs: duetime.App) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def own(web: Any) -> AsyncIterator[dict[str, str]]:
        seen.append("begin")
        yield {"name": "shop"}
        await jobs.tasks["send"].delay_async("at the end")  # still open
        seen.append("end")

    async def order(request: Request) -> JSONResponse:
        pushed = await jobs.tasks["send"].delay_async("ann")
        return JSONResponse({"id": pushed.id, "name": request.state.name})

    web = Starlette(routes=[Route("/orders", order, methods=["POST"])], lifespan=lifespan(jobs, own))
    with TestClient(web) as client:
        answers = [client.post("/orders").json() for _ in range(3)]
        assert open_clients(jobs) == 1

    assert {answer["name"] for answer in answers} == {"shop"}
    assert len({answer["id"] for answer in answers}) == 3
    assert (seen, waiting(jobs), open_clients(jobs)) == (["begin", "end"], 4, 0)


def test_fastapi(jobs: duetime.App) -> None:
    try:
        from fastapi import FastAPI
    except ImportError:
        missing_service("FastAPI is not installed")

    web = FastAPI(lifespan=lifespan(jobs))

    @web.post("/orders")
    async def order(to: str) -> dict[str, str]:
        return {"id": (await jobs.tasks["send"].delay_async(to)).id}

    @web.post("/plain")
    def plain(to: str) -> dict[str, str]:
        return {"id": jobs.tasks["send"].delay(to).id}

    with TestClient(web) as client:
        ids = {client.post(path, params={"to": "ann"}).json()["id"] for path in ("/orders", "/plain")}

    assert len(ids) == 2
    assert (waiting(jobs), open_clients(jobs)) == (2, 0)
