"""How many jobs a second, beside the raw limit of the same Redis."""

import asyncio
import subprocess
import time
from pathlib import Path

from bench.core_parts.setting import QUEUE, STEP, a_redis, meter, new_jobs, push_all, with_engine
from bench.report import interleave, median, number, ratio, spread, table
from duetime.engine import Engine
from duetime.model.job import NewJob
from tests.plugins.redis_server import RedisServer


def raw_file(folder: Path, jobs: list[NewJob]) -> Path:
    """The same jobs as plain HSET + ZADD commands, ready for `redis-cli --pipe`."""
    path = folder / "raw.resp"
    with path.open("wb") as out:
        for job in jobs:
            for command in (
                (b"HSET", b"raw:jobs", job.id.encode(), job.body),
                (b"ZADD", b"raw:wait", b"%d" % (1_800_000_000_000 + job.delay_ms), job.id.encode()),
            ):
                out.write(
                    b"*%d\r\n" % len(command) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in command)
                )
    return path


def run_raw(server: RedisServer, path: Path, jobs: int) -> float:
    meter(server).flushall()
    with path.open("rb") as source:
        started = time.perf_counter()
        subprocess.run(
            ["redis-cli", "-p", str(server.port), "--pipe"], stdin=source, capture_output=True, check=True, timeout=300
        )
        return jobs / (time.perf_counter() - started)


async def one_by_one(engine: Engine, jobs: list[NewJob]) -> float:
    some = jobs[: max(len(jobs) // 20, 1)]
    started = time.perf_counter()
    for job in some:
        await engine.push(QUEUE, [job])
    return len(some) / (time.perf_counter() - started)


async def concurrently(engine: Engine, jobs: list[NewJob]) -> float:
    left = iter(jobs)

    async def producer() -> None:
        for job in left:
            await engine.push(QUEUE, [job])

    started = time.perf_counter()
    await asyncio.gather(*(producer() for _ in range(64)))
    return len(jobs) / (time.perf_counter() - started)


async def in_batches(engine: Engine, jobs: list[NewJob]) -> float:
    started = time.perf_counter()
    await push_all(engine, iter(jobs))
    return len(jobs) / (time.perf_counter() - started)


async def reserve_and_ack(engine: Engine, jobs: list[NewJob]) -> float:
    ready = [NewJob(job.id, job.body) for job in jobs]
    for at in range(0, len(ready), STEP):
        await engine.push(QUEUE, ready[at : at + STEP])
    taken = 0

    async def consumer() -> None:
        nonlocal taken
        while deliveries := await engine.reserve([QUEUE], limit=100):
            await engine.ack([delivery.lease for delivery in deliveries])
            taken += len(deliveries)

    started = time.perf_counter()
    await asyncio.gather(*(consumer() for _ in range(4)))
    assert taken == len(jobs)
    return taken / (time.perf_counter() - started)


def report(jobs: int, rounds: int) -> str:
    with a_redis() as server:
        client = meter(server)
        made = list(new_jobs(jobs, spread_ms=3_600_000))
        raw = raw_file(server.folder, made)

        def ours(work):
            def run() -> float:
                client.flushall()
                return with_engine(server.url, lambda engine: work(engine, made))

            return run

        results = interleave(
            {
                "raw: redis-cli --pipe, HSET + ZADD": lambda: run_raw(server, raw, jobs),
                "push, one by one": ours(one_by_one),
                "push, 64 concurrent tasks": ours(concurrently),
                "push, batches of 500, 4 callers": ours(in_batches),
                "reserve + ack by 100, 4 consumers": ours(reserve_and_ack),
            },
            rounds=rounds,
        )
    base = median(next(iter(results.values())))
    single = median(results["push, one by one"])
    rows = [
        [name, number(median(values)), spread(values), ratio(median(values), base), ratio(median(values), single)]
        for name, values in results.items()
    ]
    goals = "goals: batches of 500 at 0.60x raw, 64 tasks at 5x one by one, reserve + ack at 0.35x raw"
    head = f"{jobs:,} jobs of 100 bytes, no persistence, medians of {rounds} interleaved rounds; {goals}"
    return head + "\n" + table(["one local Redis", "jobs/s", "spread", "to raw", "to one by one"], rows)
