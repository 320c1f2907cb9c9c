"""What the parts share: a Redis of their own, jobs to push, and reading Redis's own meters."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import redis
import uvloop

from duetime.engine import Engine
from duetime.model.ids import IdMaker
from duetime.model.job import NewJob
from duetime.model.names import Queue
from duetime.stores.open import open_store
from tests.plugins.redis_server import RedisServer

QUEUE = Queue("bench", "jobs")
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
STEP = 500

Answer = TypeVar("Answer")


@contextmanager
def a_redis(**config: str | int) -> Iterator[RedisServer]:
    """A Redis without persistence, in memory only: what is measured is the work, not the disk."""
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder), **config)
        server.start()
        try:
            yield server
        finally:
            server.kill()


def meter(server: RedisServer) -> redis.Redis:
    return redis.Redis.from_url(server.url, socket_timeout=120)


def cpu_seconds(client: redis.Redis) -> float:
    info = client.info("cpu")
    return info["used_cpu_user"] + info["used_cpu_sys"]


def used_memory(client: redis.Redis) -> int:
    return client.info("memory")["used_memory"]


def with_engine(url: str, work: Callable[[Engine], Awaitable[Answer]]) -> Answer:
    """Run on the event loop that the server uses."""

    async def run() -> Answer:
        store = await open_store(url)
        try:
            async with Engine(store) as engine:
                return await work(engine)
        finally:
            await store.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def new_jobs(count: int, *, body: bytes = b"x" * 100, delay_ms: int = HOUR_MS, spread_ms: int = 0) -> Iterator[NewJob]:
    """Jobs due after the delay, spread evenly over what follows it, in no particular order."""
    make = IdMaker().make
    for number in range(count):
        place = number * 7919 % count if spread_ms else 0
        yield NewJob(make(), body, delay_ms=delay_ms + spread_ms * place // max(count, 1), ttl_ms=0)


async def push_all(engine: Engine, jobs: Iterator[NewJob], queue: Queue = QUEUE) -> int:
    """In batches, a few of them under way at once."""
    pushed = 0

    async def producer() -> None:
        nonlocal pushed
        while chunk := [job for _, job in zip(range(STEP), jobs, strict=False)]:
            await engine.push(queue, chunk)
            pushed += len(chunk)

    await asyncio.gather(*(producer() for _ in range(4)))
    return pushed
