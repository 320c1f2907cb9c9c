"""One line per request, whatever became of it."""

import logging
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from duetime.engine.registry_copy import RegistryCopy
from duetime.http.exchange import ClientGone
from duetime.protocols.access_log import POOL, AccessLog
from duetime.stores.memory.store import MemoryStore
from duetime.stores.registry import Registry

SCOPE: Scope = {
    "type": "http",
    "method": "GET",
    "path": "/x",
    "query_string": b"",
    "headers": [],
    "client": ("10.0.0.7", 5),
    "state": {"request_id": "01R"},
}


def make(*, on: bool) -> AccessLog:
    store = MemoryStore()

    def registry() -> Registry:
        return store.registry

    return AccessLog(RegistryCopy(registry), registry, default=on)


def application(status: int = 200, error: Exception | None = None) -> Any:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if error is not None:
            raise error
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return app


async def receive() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def send(message: Message) -> None:
    """To nobody."""


async def gone(message: Message) -> None:
    raise ClientGone


@pytest.mark.parametrize(
    ("status", "level"), [(201, "INFO"), (404, "INFO"), (401, "WARNING"), (429, "WARNING"), (503, "ERROR")]
)
async def test_levels(status: int, level: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await make(on=True).around(application(status))({**SCOPE}, receive, send)
    [record] = caplog.records
    assert (record.levelname, vars(record)["code"], vars(record)["req_id"], vars(record)["ip"]) == (
        level,
        status,
        "01R",
        "10.0.0.7",
    )


async def test_a_client_that_went_away(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(ClientGone):
        await make(on=True).around(application())({**SCOPE}, receive, gone)
    assert [vars(record)["code"] for record in caplog.records] == [499]


async def test_an_application_that_broke(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ZeroDivisionError):
        await make(on=True).around(application(error=ZeroDivisionError()))({**SCOPE}, receive, send)
    assert [vars(record)["code"] for record in caplog.records] == [500]


async def test_off_and_other_protocols_write_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await make(on=False).around(application())({**SCOPE}, receive, send)
    await make(on=True).around(application())({**SCOPE, "type": "lifespan"}, receive, send)
    make(on=False).command("add", ip="10.0.0.7", done=True, elapsed_s=0.1)
    assert caplog.records == []


async def test_commands_have_the_same_form(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = make(on=True)
    log.command("add", ip="10.0.0.7", done=True, elapsed_s=0.0015)
    log.command("get", ip="10.0.0.7", done=False, elapsed_s=0.1)
    lines = [vars(record) for record in caplog.records]
    assert [(line["method"], line["path"], line["code"], line["latency_ms"]) for line in lines] == [
        ("TCP", "/add", 200, 1.5),
        ("TCP", "/get", 400, 100.0),
    ]


@pytest.mark.parametrize(
    ("path", "logged"),
    [
        ("/token/ns/01SECRET", "/token/ns/***"),
        ("/token/ns/01SECRET/limit", "/token/ns/***/limit"),
        ("/token/ns/01SECRET/limits", "/token/***"),
        ("/tokens/ns/01SECRET", "/***"),
        ("//token/ns/01SECRET", "/***"),
        ("/api/token/ns/01SECRET/limit", "/api/***"),
        ("/01SECRET", "/***"),
        ("/metrics/", "/metrics/***"),
        ("/v1/nothing/01SECRET", "/v1/***"),
    ],
)
async def test_an_unknown_path_shows_no_token(path: str, logged: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    known = path.endswith(("01SECRET", "/limit")) and path.startswith("/token/")
    await make(on=True).around(application(200 if known else 404))({**SCOPE, "path": path}, receive, send)
    [line] = caplog.records
    assert line.__dict__["path"] == logged


async def test_a_known_path_of_a_queue_is_shown_even_if_there_is_no_job(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await make(on=True).around(application(404))({**SCOPE, "path": "/api/ns/q", POOL: "default"}, receive, send)
    [line] = caplog.records
    assert line.__dict__["path"] == "/api/ns/q"
