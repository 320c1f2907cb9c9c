"""The SQLite store beside huey and litequeue: pushes, reserve + ack, lateness.

    make bench ARGS=sqlite          or with sizes: make bench ARGS="sqlite --jobs 2000 --rounds 5"

All on WAL files in one temporary folder, each contender with the same `synchronous`, 100-byte bodies. Peers do what
they can: huey has no ack (a task taken is a task gone) and no bulk push, litequeue no delay and no bulk push. What
huey's worker does for each task is a dequeue and a result that is stored; it has a line of its own.
"""

import argparse
import asyncio
import json
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

from bench.report import interleave, median, number, peer_python, percentile, ratio, spread, table
from duetime.client import connect
from duetime.engine import Engine
from duetime.model.ids import IdMaker
from duetime.model.job import NewJob
from duetime.model.names import Queue
from duetime.stores.base import Store
from duetime.stores.open import open_store

BODY = b"x" * 100
QUEUE = Queue("bench", "jobs")
HOUR_MS = 3_600_000
PEER = Path(__file__).parent / "peers" / "sqlite_peer.py"

Task = Callable[[Engine, int], Awaitable[float]]


def new_jobs(count: int, delay_ms: int) -> list[NewJob]:
    make = IdMaker().make
    return [NewJob(make(), BODY, delay_ms=delay_ms) for _ in range(count)]


async def push_one_by_one(engine: Engine, jobs: int) -> float:
    made = new_jobs(jobs, HOUR_MS)
    started = time.perf_counter()
    for job in made:
        await engine.push(QUEUE, [job])
    return jobs / (time.perf_counter() - started)


async def push_concurrently(engine: Engine, jobs: int) -> float:
    made = iter(new_jobs(jobs, HOUR_MS))

    async def producer() -> None:
        for job in made:
            await engine.push(QUEUE, [job])

    started = time.perf_counter()
    await asyncio.gather(*(producer() for _ in range(64)))
    return jobs / (time.perf_counter() - started)


async def push_in_batches(engine: Engine, jobs: int) -> float:
    made = new_jobs(jobs * 10, HOUR_MS)
    started = time.perf_counter()
    for at in range(0, len(made), 500):
        await engine.push(QUEUE, made[at : at + 500])
    return len(made) / (time.perf_counter() - started)


async def reserve_and_ack(engine: Engine, jobs: int) -> float:
    made = new_jobs(jobs * 5, 0)
    for at in range(0, len(made), 500):
        await engine.push(QUEUE, made[at : at + 500])
    started = time.perf_counter()
    taken = 0
    while deliveries := await engine.reserve([QUEUE], limit=100):
        await engine.ack([delivery.lease for delivery in deliveries])
        taken += len(deliveries)
    assert taken == len(made)
    return taken / (time.perf_counter() - started)


def ours(task: Task, jobs: int, synchronous: str) -> Callable[[], float]:
    def run() -> float:
        with tempfile.TemporaryDirectory() as folder:

            async def measure() -> float:
                store = await open_store(_url(folder, synchronous))
                async with Engine(store) as engine:
                    result = await task(engine, jobs)
                await store.close()
                return result

            return asyncio.run(measure())

    return run


def sdk_pushes(jobs: int, synchronous: str) -> Callable[[], float]:
    def run() -> float:
        with tempfile.TemporaryDirectory() as folder, connect(_url(folder, synchronous)) as client:
            queue = client.queue("jobs")
            queue.later("1h", BODY)
            started = time.perf_counter()
            for _ in range(jobs):
                queue.later("1h", BODY)
            return jobs / (time.perf_counter() - started)

    return run


def sdk_pops(jobs: int, synchronous: str) -> Callable[[], float]:
    def run() -> float:
        with tempfile.TemporaryDirectory() as folder, connect(_url(folder, synchronous)) as client:
            queue = client.queue("jobs")
            queue.bulk([BODY] * jobs)
            started = time.perf_counter()
            for _ in range(jobs):
                queue.take().ack()
            return jobs / (time.perf_counter() - started)

    return run


def sdk_next_pops(jobs: int, synchronous: str) -> Callable[[], float]:
    def run() -> float:
        with tempfile.TemporaryDirectory() as folder, connect(_url(folder, synchronous)) as client:
            queue = client.queue("jobs")
            queue.bulk([BODY] * (jobs + 1))
            job = queue.pop()
            started = time.perf_counter()
            for _ in range(jobs):
                job = queue.pop(ack=job)
                assert job is not None
            return jobs / (time.perf_counter() - started)

    return run


def bare_inserts(jobs: int, synchronous: str) -> Callable[[], float]:
    """The floor of a push: one INSERT into the same table with the same indexes, and one row that is counted up."""

    def run() -> float:
        with tempfile.TemporaryDirectory() as folder:
            with connect(_url(folder, synchronous)) as client:
                client.queue("jobs").later("1h", BODY)
            with closing(sqlite3.connect(f"{folder}/jobs.db", isolation_level=None)) as file:
                file.execute(f"PRAGMA synchronous = {synchronous}")
                made = new_jobs(jobs, HOUR_MS)
                started = time.perf_counter()
                for job in made:
                    now = time.time_ns() // 1_000_000
                    file.execute("BEGIN IMMEDIATE")
                    file.execute(
                        "INSERT INTO jobs VALUES (1, ?, ?, 0, 2, ?, 0, 0, 0, 5, 0, 0, '', '', NULL, ?)",
                        (job.id, now, now + HOUR_MS, BODY),
                    )
                    file.execute("UPDATE queues SET jobs = jobs + 1, last_born = ? WHERE id = 1", (now,))
                    file.execute("COMMIT")
                return jobs / (time.perf_counter() - started)

    return run


def _url(folder: str, synchronous: str) -> str:
    return f"sqlite://{folder}/jobs.db?synchronous={synchronous}"


def peer(name: str, task: str, jobs: int, synchronous: str) -> Callable[[], float]:
    return lambda: run_peer(name, task, jobs, synchronous)


def run_peer(name: str, task: str, jobs: int, synchronous: str):
    with tempfile.TemporaryDirectory() as folder:
        command = [str(peer_python()), str(PEER), name, task, str(jobs), synchronous, folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        return json.loads(done.stdout.splitlines()[-1])


def rates(jobs: int, rounds: int, synchronous: str) -> str:
    contenders = {
        "duetime, one by one": ours(push_one_by_one, jobs, synchronous),
        "duetime, blocking SDK, one by one": sdk_pushes(jobs, synchronous),
        "huey, one by one": peer("huey", "push", jobs, synchronous),
        "floor: bare INSERT with our indexes": bare_inserts(jobs, synchronous),
        "litequeue, one by one (no delay)": peer("litequeue", "push", jobs, synchronous),
        "duetime, 64 callers": ours(push_concurrently, jobs, synchronous),
        "duetime, batches of 500": ours(push_in_batches, jobs, synchronous),
        "duetime, reserve + ack by 100": ours(reserve_and_ack, jobs, synchronous),
        "duetime, blocking SDK, pop + ack": sdk_pops(jobs, synchronous),
        "duetime, blocking SDK, pop(ack=...)": sdk_next_pops(jobs, synchronous),
        "huey, dequeue": peer("huey", "take", jobs, synchronous),
        "huey, dequeue + result": peer("huey", "work", jobs, synchronous),
        "litequeue, pop + done": peer("litequeue", "take", jobs, synchronous),
    }
    results = interleave(contenders, rounds=rounds)
    push, take = median(results["huey, one by one"]), median(results["huey, dequeue"])
    rows: list[list[str]] = []
    for name, values in results.items():
        base = take if ("ack" in name or "dequeue" in name or "pop" in name) else push
        rows.append([name, number(median(values)), spread(values), ratio(median(values), base)])
    return table(["contender", "jobs/s", "spread", "to huey"], rows)


async def our_lateness(store: Store, jobs: int) -> list[float]:
    """Jobs spread over 3 s, lateness = receipt minus due_at, in ms, beside bare timers of the same loop."""
    async with Engine(store) as engine:
        start = time.time_ns() // 1_000_000 + 1000
        made = [NewJob(f"{n:06}", b"", due_at=start + 3000 * n // jobs) for n in range(jobs)]
        for at in range(0, jobs, 500):
            await engine.push(QUEUE, made[at : at + 500])
        late: list[float] = []
        while len(late) < jobs:
            deliveries = await engine.reserve([QUEUE], limit=100, wait_ms=10_000)
            received = time.time() * 1000
            late += [received - delivery.due_at for delivery in deliveries]
            await engine.ack([delivery.lease for delivery in deliveries])
    await store.close()
    return late


async def timer_lateness(jobs: int) -> list[float]:
    late: list[float] = []
    start = time.time() + 1

    async def wait(due: float) -> None:
        await asyncio.sleep(due - time.time())
        late.append((time.time() - due) * 1000)

    await asyncio.gather(*(wait(start + 3 * n / jobs) for n in range(jobs)))
    return late


def lateness(jobs: int) -> str:
    with tempfile.TemporaryDirectory() as folder:

        async def measure() -> list[float]:
            return await our_lateness(await open_store(f"sqlite://{folder}/jobs.db"), jobs)

        results = {
            "bare asyncio timers": asyncio.run(timer_lateness(jobs)),
            "duetime": asyncio.run(measure()),
            "huey (scheduler interval 1 s, its minimum)": run_peer("huey", "lateness", jobs, "FULL"),
        }
    rows = [[name, *(f"{percentile(values, p):.1f}" for p in (0, 50, 99, 100))] for name, values in results.items()]
    return table(["lateness in ms", "min", "p50", "p99", "max"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000, help="jobs of the one-by-one runs (batches: 10 times that)")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for synchronous in ("FULL", "NORMAL"):
        print(f"journal_mode=WAL synchronous={synchronous}, {options.jobs} jobs, medians of {options.rounds} rounds")
        print(rates(options.jobs, options.rounds, synchronous), end="\n\n", flush=True)
    print(f"{options.jobs // 4} jobs spread over 3 s, one consumer, synchronous=FULL")
    print(lateness(options.jobs // 4))
