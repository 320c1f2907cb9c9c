"""The words the tests of the native API are written in: one function per request that they make often."""

import asyncio
from typing import Any

import httpx

from duetime.engine import Engine
from duetime.model.clock import ManualClock
from duetime.model.names import Queue
from duetime.stores.base import Store

NOW = ManualClock().now_ms()
MAIL = "/v1/queues/shop/mail"
SUM = Queue("shop", "sum")

Json = dict[str, Any]


async def ok(reply: httpx.Response, status: int = 200) -> Json:
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    answer: Json = reply.json()
    return answer


async def push(http: httpx.AsyncClient, job_id: str, *, queue: str = MAIL, **fields: Any) -> Json:
    answer = await ok(await http.post(f"{queue}/jobs", json={"id": job_id, "body": "hello", **fields}), 201)
    moved: Json = answer["moved"]
    return moved


async def reserve(http: httpx.AsyncClient, limit: int = 1, *, queue: str = MAIL, **fields: Any) -> list[Json]:
    answer = await ok(await http.post(f"{queue}/reserve", json={"limit": limit, **fields}))
    deliveries: list[Json] = answer["deliveries"]
    return deliveries


async def lease(http: httpx.AsyncClient, job_id: str = "a", **fields: Any) -> Json:
    """A job in our hands; answers its lease."""
    await push(http, job_id, **fields)
    [delivery] = await reserve(http)
    held: Json = delivery["lease"]
    return held


async def post(http: httpx.AsyncClient, verb: str, message: Any) -> Json:
    return await ok(await http.post(f"{MAIL}/{verb}", json=message))


async def someone_waits(engine: Engine) -> None:
    """Return once a consumer is parked."""
    async with asyncio.timeout(60):
        while engine.parked == 0:  # noqa: ASYNC110 - the waiting room has no bell for tests
            await asyncio.sleep(0.001)


async def forgotten(store: Store, kept: Queue = SUM) -> None:
    """Return once no queue of an answer is left beside the one that was called."""
    async with asyncio.timeout(60):
        while [queue for queue in await store.queues() if queue != kept]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def problem(reply: httpx.Response, status: int, code: str) -> Json:
    """The reply is this problem, in the one shape that all have; answers it."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.headers["x-request-id"]
    told: Json = reply.json()
    assert told["code"] == code
    assert told["status"] == status
    assert told["title"]
    return told
