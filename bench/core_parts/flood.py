"""One queue's flood beside another queue: how long a job there takes from its push to its consumer meanwhile."""

import asyncio
import gc
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

from bench.core_parts.setting import a_redis, push_all
from bench.report import number, percentile, table
from duetime.engine import Engine
from duetime.journal.journal import Journal
from duetime.journal.options import JournalOptions
from duetime.journal.recorder import open_journal_recorder
from duetime.model.ids import IdMaker
from duetime.model.job import NewJob
from duetime.model.names import Queue
from duetime.stores.open import open_store

FLOODED = Queue("bench", "flooded")
QUIET = Queue("bench", "quiet")
EVERY_S = 0.01


Sample = tuple[float, float]
"""Milliseconds from push to receipt, and how long this process worked meanwhile."""


async def beside(engine: Engine, over: asyncio.Event) -> list[Sample]:
    """Single jobs in the quiet queue, one after the other, until it is over."""
    samples: list[Sample] = []
    make = IdMaker().make
    while not over.is_set():
        waiting = asyncio.create_task(engine.reserve([QUIET], wait_ms=60_000))
        await asyncio.sleep(EVERY_S)
        started, worked = time.perf_counter(), time.process_time()
        await engine.push(QUIET, [NewJob(make(), b"x" * 100)])
        [delivery] = await waiting
        samples.append(((time.perf_counter() - started) * 1000, (time.process_time() - worked) * 1000))
        await engine.ack([delivery.lease])
    return samples


async def no_flood(engine: Engine, seconds: float) -> list[Sample]:
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    return await beside(engine, over)


async def flood(engine: Engine, count: int, consumers: int, limit: int) -> tuple[list[Sample], float]:
    """All jobs fall due within one second; consumers take and ack them."""
    due_at = time.time_ns() // 1_000_000 + 2000 + count // 15
    make = IdMaker().make
    jobs = (NewJob(make(), b"x" * 100, due_at=due_at + 1000 * place // count) for place in range(count))
    await push_all(engine, jobs, FLOODED)
    await asyncio.sleep(max(0.0, due_at / 1000 - time.time()))
    over, left = asyncio.Event(), count

    async def consume() -> None:
        nonlocal left
        while left > 0:
            deliveries = await engine.reserve([FLOODED], limit=limit, wait_ms=1000)
            left -= len(deliveries)
            await engine.ack([delivery.lease for delivery in deliveries])

    async def consume_all() -> float:
        started = time.perf_counter()
        await asyncio.gather(*(consume() for _ in range(consumers)))
        over.set()
        return time.perf_counter() - started

    return await asyncio.gather(beside(engine, over), consume_all())


def measure(url: str, count: int, kinds: list[tuple[int, int]]) -> list[list[str]]:
    async def run() -> list[list[str]]:
        rows: list[list[str]] = []
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            store = await open_store(url)
            stack.push_async_callback(store.close)
            journal = await stack.enter_async_context(Journal(JournalOptions(folder)))
            recorders = await open_journal_recorder(store, journal, "default")
            engine = await stack.enter_async_context(Engine(store, recorders=recorders))
            gc.collect()
            gc.freeze()  # as the server does
            rows.append(["no flood", *numbers(await no_flood(engine, 2.0)), ""])
            for consumers, limit in kinds:
                samples, took = await flood(engine, count, consumers, limit)
                rate = f"{number(count / took)} jobs/s"
                rows.append([f"{consumers} consumers of {limit}", *numbers(samples), rate])
        return rows

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def numbers(samples: list[Sample]) -> list[str]:
    columns = list(map(list, zip(*samples, strict=True)))
    return [f"{percentile(one, 50):.1f} / {percentile(one, 99):.1f} / {max(one):.1f}" for one in columns]


def report(count: int) -> str:
    kinds = [(16, 100), (16, 500), (500, 1)]
    parts: list[str] = []
    head = ["", "push to receipt beside it, ms p50 / p99 / max", "work of this process meanwhile", "taken and acked"]
    with a_redis() as server:
        parts.append("Redis\n" + table(head, measure(server.url, count, kinds)))
    with tempfile.TemporaryDirectory() as folder:
        parts.append("SQLite\n" + table(head, measure(f"sqlite://{folder}/jobs.db", count, kinds)))
    return f"{count:,} jobs of one queue fall due within one second\n" + "\n".join(parts)
