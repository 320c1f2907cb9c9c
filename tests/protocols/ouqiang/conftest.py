"""ouqiang's protocol on a store in memory, behind a real server, spoken to as its clients do."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from duetime.engine import Engine
from duetime.model.clock import ManualClock
from duetime.protocols.ouqiang import OuqiangApp
from duetime.stores.open import open_store
from tests.protocols.v1.server import listen

NAMESPACE = "ouqiang"


class Caller:
    """Sends as the PHP client does: POST with a JSON body."""

    def __init__(self, http: httpx.AsyncClient, clock: ManualClock, engine: Engine) -> None:
        self.http = http
        self.clock = clock
        self.engine = engine

    async def call(self, path: str, **fields: Any) -> dict[str, Any]:
        reply = await self.http.post(path, json=fields)
        assert reply.status_code == 200
        assert reply.headers["content-type"] == "text/plain; charset=utf-8"
        answer = reply.json()
        assert set(answer) == {"code", "message", "data"}
        assert isinstance(answer["message"], str)
        return answer

    async def push(self, job_id: str = "1", topic: str = "order", **fields: Any) -> dict[str, Any]:
        job = {"topic": topic, "id": job_id, "delay": 10, "ttr": 20, "body": f"body of {job_id}"} | fields
        return await self.call("/push", **job)


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    clock = ManualClock()
    store = await open_store("memory:", clock=clock)
    async with Engine(store) as engine:
        app = OuqiangApp(lambda: engine, NAMESPACE, max_body=1_048_576)
        async with listen(app) as at, httpx.AsyncClient(base_url=at.url, timeout=30) as http:
            yield Caller(http, clock, engine)
    assert list(await store.check()) == []
    await store.close()
