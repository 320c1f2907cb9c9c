"""How late jobs are: receipt by a consumer in another process minus due_at, beside bare timers in the same run."""

import asyncio
import json
import subprocess
import sys
import tempfile
import time

import uvloop

from bench.core_parts.setting import QUEUE, a_redis, new_jobs, push_all, with_engine
from bench.report import percentile, table
from duetime.engine import Engine
from duetime.model.job import NewJob

WARM_UP_MS = 3000
BUCKETS_MS = (1, 2, 3, 5, 10, 25, 50, 100)


async def consume(engine: Engine, count: int) -> list[float]:
    late: list[float] = []
    while len(late) < count:
        deliveries = await engine.reserve([QUEUE], limit=100, wait_ms=30_000)
        received = time.time() * 1000
        late += [received - delivery.due_at for delivery in deliveries]
        await engine.ack([delivery.lease for delivery in deliveries])
    return late


async def bare_timers(count: int, over_s: float) -> list[float]:
    """What an idle event loop's own timers do on this machine."""
    late: list[float] = []
    start = time.time() + 1

    async def wait(due: float) -> None:
        await asyncio.sleep(due - time.time())
        late.append((time.time() - due) * 1000)

    await asyncio.gather(*(wait(start + over_s * number / count) for number in range(count)))
    return late


def measure(url: str, *, count: int, over_ms: int, behind: int) -> list[float]:
    """Push from here, consume in a process of its own."""

    async def prepare(engine: Engine) -> None:
        await push_all(engine, new_jobs(behind, delay_ms=24 * 3_600_000, spread_ms=3_600_000))
        start = time.time_ns() // 1_000_000 + WARM_UP_MS
        jobs = (NewJob(f"timed-{n:08}", b"x" * 100, due_at=start + over_ms * n // count) for n in range(count))
        await push_all(engine, jobs)

    consumer = subprocess.Popen(
        [sys.executable, "-m", "bench.core_parts.lateness", url, str(count)], stdout=subprocess.PIPE, text=True
    )
    try:
        with_engine(url, prepare)
        output, _ = consumer.communicate(timeout=300)
    finally:
        consumer.kill()
    return json.loads(output)


def report(*, count: int, over_ms: int, behind: int, behind_sqlite: int) -> str:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        results = {"bare timers of an idle loop": runner.run(bare_timers(count, over_ms / 1000))}
    with a_redis() as server:
        results["duetime on Redis"] = measure(server.url, count=count, over_ms=over_ms, behind=behind)
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite://{folder}/jobs.db"
        results["duetime on SQLite"] = measure(url, count=count, over_ms=over_ms, behind=behind_sqlite)
    base = percentile(results["bare timers of an idle loop"], 99)
    rows = [
        [name, *(f"{percentile(late, p):.1f}" for p in (0, 50, 99, 100)), f"{percentile(late, 99) - base:+.1f}"]
        for name, late in results.items()
    ]
    shares = [
        [name, *(f"{sum(one <= bucket for one in late) / len(late):.1%}" for bucket in BUCKETS_MS)]
        for name, late in results.items()
    ]
    early = sum(one < 0 for name, late in results.items() if "duetime" in name for one in late)
    return (
        f"{count:,} jobs over {over_ms // 1000} s with {behind:,} (SQLite {behind_sqlite:,}) delayed behind them; "
        f"early: {early}; goals: p99 above the timers' by 10 ms (Redis), 25 ms (SQLite) at most\n"
        + table(["lateness in ms", "min", "p50", "p99", "max", "p99 above timers"], rows)
        + "\n\n"
        + table(["share within", *(f"{bucket} ms" for bucket in BUCKETS_MS)], shares)
    )


if __name__ == "__main__":
    print(json.dumps(with_engine(sys.argv[1], lambda engine: consume(engine, int(sys.argv[2])))))
