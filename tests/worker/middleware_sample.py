"""Tasks with middleware, for workers of the tests: `duetime work tests.worker.middleware_sample:app`."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import duetime
from duetime.worker.current_job import CurrentJob
from duetime.worker.middleware import context, encrypted, rate_limit, unique_until_start, without_overlapping
from tests.worker.sample import app, note

__all__ = ["app"]

TENANT: ContextVar[str] = ContextVar("tenant", default="none")
app.use(context(TENANT))


async def trace(job: CurrentJob, call: Callable[[], Awaitable[Any]]) -> Any:
    note("before", id=job.id, tenant=TENANT.get())
    answer = await call()
    note("after", id=job.id, answer=answer)
    return answer


def alone_in(folder: str) -> None:
    """Notes whether another run is at work at the same time."""
    path = Path(folder, "busy")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        note("overlap")
        return
    time.sleep(0.005)
    path.unlink()
    note("ran", key="alone")


@app.task(middleware=[trace])
def traced(key: str) -> str:
    job = duetime.current_job()
    note("ran", key=key, id=job.id, tenant=TENANT.get())
    return key


@app.task(middleware=[trace])
async def traced_gently(key: str) -> str:
    await asyncio.sleep(0)
    job = duetime.current_job()
    note("ran", key=key, id=job.id, tenant=TENANT.get())
    return key


@app.task(tries=1, middleware=[rate_limit(5, per="1h")])
def limited() -> None:
    note("ran", key="limited")


@app.task(tries=1, middleware=[without_overlapping(after="20ms")])
def alone(folder: str) -> None:
    alone_in(folder)


@app.task(tries=1, middleware=[without_overlapping(after="20ms")])
async def alone_gently(folder: str) -> None:
    await asyncio.to_thread(alone_in, folder)


@app.task(tries=3, middleware=[without_overlapping(key=lambda job: "gate", after="20ms")])
def gate_alone(key: str, path: str) -> None:
    note("began", key=key)
    while not Path(path).exists():
        time.sleep(0.01)
    note("ran", key=key)


@app.task(middleware=[unique_until_start("1h")])
def synced(account: int) -> None:
    note("ran", key=account)


@app.task(middleware=[encrypted(b"Bq4Jf3Hs0q6o0m0yVJ6Wb1vJtqP3m1c0aKf0VvJbZ0E=")])
def paid(card: str) -> None:
    note("ran", key=card)
