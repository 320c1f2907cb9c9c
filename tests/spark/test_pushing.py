"""A task's patience: a store that is away while the task begins or pushes is waited for."""

import asyncio
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from duetime.model.errors import StoreUnavailable
from duetime.model.job import Priority
from duetime.model.names import Queue
from duetime.spark.load import task_push
from duetime.spark.load.chunks import Portion
from duetime.spark.load.options import LoadOptions, read_options
from duetime.spark.load.task_push import ask_store, push_portions
from duetime.stores.bulk import JobColumns, LoadStep
from tests.plugins.redis_server import RedisServer

ROWS = 20


def portion() -> Portion:
    columns = JobColumns(
        pa.array([f"job-{number}" for number in range(ROWS)], pa.string()),
        pa.array([b"body"] * ROWS, pa.binary()),
        pa.array([4_000_000_000_000] * ROWS, pa.int64()),
        0,
        5,
        Priority.NORMAL,
    )
    return Portion(Queue("crm", "recall"), columns, [LoadStep(0, 10), LoadStep(10, ROWS)])


def options(url: str) -> LoadOptions:
    return read_options({"url": url, "queue": "recall", "namespace": "crm", "batch": "b1"})


class Slow:
    """The pauses of a task, which begin when they are asked for; `met` says that one did."""

    def __init__(self) -> None:
        self.met = asyncio.Event()

    def delay_ms(self, attempt: int) -> int:
        self.met.set()
        return 20


async def test_a_store_that_is_away_at_the_beginning_is_waited_for(
    start_redis: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    redis, slow = start_redis(), Slow()
    monkeypatch.setattr(task_push, "PAUSE", slow)
    monkeypatch.setattr(task_push, "TRIES", 1_000)
    redis.kill()
    task = asyncio.create_task(push_portions([portion()], options(redis.url), writers=1))
    await slow.met.wait()
    redis.start()

    tally = await task
    assert (tally.rows, tally.accepted, tally.kept) == (ROWS, ROWS, 0)


async def test_patience_ends(start_redis: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch) -> None:
    redis = start_redis()
    monkeypatch.setattr(task_push, "PAUSE", Slow())
    monkeypatch.setattr(task_push, "TRIES", 3)
    redis.kill()
    work: list[Any] = [push_portions([portion()], options(redis.url), writers=1), ask_store(options(redis.url))]
    for one in work:
        with pytest.raises(StoreUnavailable):
            await one
