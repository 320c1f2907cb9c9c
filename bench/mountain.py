"""Under a mountain of delayed jobs: rates, lateness, a million jobs due in one second, thousands of parked consumers.

make bench ARGS=mountain                                full size: 10,000,000 delayed jobs, some 4 GB, ten minutes
make bench ARGS="mountain --behind 100000 --flood 20000 --consumers 1000 --queues 100"       the same, small

One Redis without persistence for all parts. Every part counts what it delivers by id: each job once, none early, none
missing. Load and what is measured run in different processes.
"""

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

from bench.core_parts.setting import DAY_MS, QUEUE, STEP, a_redis, cpu_seconds, meter, new_jobs, push_all, with_engine
from bench.report import number, percentile, ratio, table
from duetime.engine import Engine
from duetime.model.ids import IdMaker
from duetime.model.job import NewJob
from duetime.model.names import Queue

FLOODED, QUIET = Queue("bench", "flooded"), Queue("bench", "quiet")
BODY = b"x" * 100
WARM_UP_MS = 3000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


# --- rates in the queue with the mountain


async def push_one_by_one(engine: Engine, count: int) -> None:
    for job in new_jobs(count, delay_ms=DAY_MS):
        await engine.push(QUEUE, [job])


async def push_by_64(engine: Engine, count: int) -> None:
    jobs = new_jobs(count, delay_ms=DAY_MS)

    async def caller() -> None:
        for job in jobs:
            await engine.push(QUEUE, [job])

    await asyncio.gather(*(caller() for _ in range(64)))


async def push_by_500(engine: Engine, count: int) -> None:
    await push_all(engine, new_jobs(count, delay_ms=DAY_MS))


def taking(limit: int) -> Callable[[Engine, int], Awaitable[None]]:
    """Takes and acks what is ready; the jobs are there before the time begins."""

    async def take(engine: Engine, count: int) -> None:
        seen: set[str] = set()
        while len(seen) < count:
            deliveries = await engine.reserve([QUEUE], limit=limit)
            assert deliveries, "a job is missing"
            await engine.ack([delivery.lease for delivery in deliveries])
            seen |= {delivery.lease.id for delivery in deliveries}

    return take


WORK: dict[str, tuple[Callable[[Engine, int], Awaitable[None]], int, bool]] = {
    "push one by one": (push_one_by_one, 3000, False),
    "push, 64 callers": (push_by_64, 20_000, False),
    "push by 500": (push_by_500, 100_000, False),
    "reserve + ack, one by one": (taking(1), 3000, True),
    "reserve + ack by 100": (taking(100), 50_000, True),
}


async def rates(engine: Engine) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, (work, count, needs_ready) in WORK.items():
        if needs_ready:
            await push_all(engine, new_jobs(count, delay_ms=0))
        started = time.perf_counter()
        await work(engine, count)
        found[name] = count / (time.perf_counter() - started)
    return found


def mountain(behind: int, timed: int) -> str:
    with a_redis() as server:
        client = meter(server)
        before = with_engine(server.url, rates)
        client.flushall()
        started = time.perf_counter()
        with_engine(server.url, lambda engine: push_all(engine, new_jobs(behind, delay_ms=DAY_MS, spread_ms=DAY_MS)))
        pushed_s = time.perf_counter() - started
        memory = client.info("memory")["used_memory"] / max(behind, 1)
        under = with_engine(server.url, rates)
        late = timed_jobs(server.url, QUEUE, timed, over_ms=10_000)
        [counts] = with_engine(server.url, lambda engine: engine.store.counts([QUEUE]))
    still = behind + sum(count for _, count, needs_ready in WORK.values() if not needs_ready)
    rows = [[name, before[name], under[name], ratio(under[name], before[name])] for name in WORK]
    return "\n".join(
        [
            f"{behind:,} delayed jobs in the queue, pushed at {number(behind / pushed_s)}/s, {memory:.0f} bytes each",
            table(["jobs/s", "empty queue", "under the mountain", "ratio"], rows),
            f"{timed:,} jobs over 10 s in that queue: {told(late, timed)}",
            f"counts exact afterwards: {(counts.delayed, counts.ready, counts.leased) == (still, 0, 0)}",
        ]
    )


# --- lateness, in a process of its own


def timed_jobs(url: str, queue: Queue, count: int, *, over_ms: int) -> list[float]:
    """Jobs spread over a time; the lateness of each, in the order of receipt. A missing one ends the benchmark."""
    with consumer("lateness", url, queue.name, count) as process:
        start = now_ms() + WARM_UP_MS
        jobs = (NewJob(f"timed-{n:08}", BODY, due_at=start + over_ms * n // count) for n in range(count))
        with_engine(url, lambda engine: push_all(engine, jobs, queue))
        output, _ = process.communicate(timeout=300)
    return json.loads(output)


class consumer:
    """Another process of this module: `python -m bench.mountain WHAT URL QUEUE COUNT`."""

    def __init__(self, what: str, url: str, queue: str, count: int) -> None:
        command = [sys.executable, "-m", "bench.mountain", what, url, queue, str(count)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> "subprocess.Popen[str]":
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


async def receive(engine: Engine, queue: Queue, count: int) -> list[float]:
    late: dict[str, float] = {}
    while len(late) < count:
        deliveries = await engine.reserve([queue], limit=100, wait_ms=60_000)
        received = time.time() * 1000
        for delivery in deliveries:
            assert delivery.lease.id not in late, "a job came twice"
            late[delivery.lease.id] = received - delivery.due_at
        await engine.ack([delivery.lease for delivery in deliveries])
    return list(late.values())


async def swallow(engine: Engine, queue: Queue, count: int) -> tuple[int, float, float]:
    """Sixteen consumers take and ack everything: how many, in what time, and the greatest lateness."""
    seen: set[str] = set()
    latest = 0.0
    started = 0.0

    async def consume() -> None:
        nonlocal latest, started
        while len(seen) < count:
            deliveries = await engine.reserve([queue], limit=100, wait_ms=1000)
            started = started or (time.perf_counter() if deliveries else 0.0)
            for delivery in deliveries:
                latest = max(latest, time.time() * 1000 - delivery.due_at)
                assert delivery.lease.id not in seen, "a job came twice"
                seen.add(delivery.lease.id)
            await engine.ack([delivery.lease for delivery in deliveries])

    await asyncio.gather(*(consume() for _ in range(16)))
    return len(seen), time.perf_counter() - started, latest


def told(late: list[float], count: int) -> str:
    numbers = " / ".join(f"{percentile(late, p):.1f}" for p in (50, 99, 100))
    early = sum(one < 0 for one in late)
    return f"lateness p50 / p99 / max {numbers} ms, early {early}, all once: {len(late) == count}"


# --- a million in one second


def stampede(count: int) -> str:
    """One queue's jobs all fall due within a second, while another queue's jobs fall due every 10 ms."""
    with a_redis() as server:
        url = server.url
        alone = timed_jobs(url, QUIET, 1000, over_ms=10_000)
        due_at = now_ms() + WARM_UP_MS + count // 30
        make = IdMaker().make
        jobs = (NewJob(make(), BODY, due_at=due_at + 1000 * place // count) for place in range(count))
        with_engine(url, lambda engine: push_all(engine, jobs, FLOODED))
        over_ms = 4000 + count // 15
        timed = over_ms // 10
        with consumer("swallow", url, FLOODED.name, count) as flood:
            with consumer("lateness", url, QUIET.name, timed) as quiet:
                start = due_at - 1000
                beside = (NewJob(f"beside-{n:08}", BODY, due_at=start + over_ms * n // timed) for n in range(timed))
                with_engine(url, lambda engine: push_all(engine, beside, QUIET))
                late = json.loads(quiet.communicate(timeout=600)[0])
            delivered, took, latest = json.loads(flood.communicate(timeout=600)[0])
    return "\n".join(
        [
            f"{count:,} jobs due within one second: {delivered:,} delivered once each in {took:.1f} s "
            f"({number(delivered / took)} jobs/s), the last one {latest / 1000:.1f} s late",
            f"another queue without the flood: {told(alone, 1000)}",
            f"another queue beside it (every 10 ms for {over_ms / 1000:.0f} s): {told(late, timed)} (goal: p99 20 ms)",
        ]
    )


# --- parked consumers


def parked(consumers: int, queues: int, idle_s: float = 10) -> str:
    """Many consumers parked on fewer queues: idle at first; then a job for each of them, over ten seconds."""
    with a_redis() as server:
        client = meter(server)

        async def work(engine: Engine) -> tuple[float, float, list[float], int]:
            names = [Queue("bench", f"parked{n:05}") for n in range(queues)]
            late: dict[str, float] = {}
            twice = 0

            async def consume(queue: Queue) -> None:
                nonlocal twice
                [delivery] = await engine.reserve([queue], wait_ms=600_000)
                twice += delivery.lease.id in late
                late[delivery.lease.id] = time.time() * 1000 - delivery.due_at
                await engine.ack([delivery.lease])

            tasks = [asyncio.create_task(consume(names[n % queues])) for n in range(consumers)]
            while engine.parked < consumers:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            await asyncio.sleep(2)
            own, theirs = used_s(), cpu_seconds(client)
            await asyncio.sleep(idle_s)
            mine_idle, theirs_idle = (used_s() - own) / idle_s, (cpu_seconds(client) - theirs) / idle_s
            start = now_ms() + WARM_UP_MS + consumers // 4
            for at in range(0, consumers, STEP):
                some = range(at, min(at + STEP, consumers))
                jobs = [NewJob(f"job-{n:06}", BODY, due_at=start + n * 10_000 // consumers) for n in some]
                pushes = [engine.push(names[n % queues], [job]) for n, job in zip(some, jobs, strict=True)]
                await asyncio.gather(*pushes)
            await asyncio.gather(*tasks)
            return mine_idle, theirs_idle, list(late.values()), twice

        mine, theirs, late, twice = with_engine(server.url, work)
    return (
        f"{consumers:,} consumers parked on {queues:,} queues, idle: {mine:.1%} of a core here, {theirs:.1%} in Redis\n"
        f"then one job for each over 10 s: {told(late, consumers)}, twice {twice}"
    )


def used_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="mountain, stampede, parked; default all")
    parser.add_argument("--behind", type=int, default=10_000_000, help="delayed jobs in the measured queue")
    parser.add_argument("--timed", type=int, default=10_000, help="jobs whose lateness is measured in that queue")
    parser.add_argument("--flood", type=int, default=1_000_000, help="jobs that fall due within one second")
    parser.add_argument("--consumers", type=int, default=10_000)
    parser.add_argument("--queues", type=int, default=1000, help="on which the consumers are parked")
    options = parser.parse_args()
    parts: dict[str, Callable[[], str]] = {
        "parked": lambda: parked(options.consumers, options.queues),
        "stampede": lambda: stampede(options.flood),
        "mountain": lambda: mountain(options.behind, options.timed),
    }
    if unknown := set(options.parts) - set(parts):
        parser.error(f"no part {', '.join(unknown)}; there are: {', '.join(parts)}")
    for name in options.parts or parts:
        print(f"## {name}\n{parts[name]()}", end="\n\n", flush=True)


if __name__ == "__main__":  # as a consumer
    _, what, url, name, count = sys.argv
    work = {"lateness": receive, "swallow": swallow}[what]
    print(json.dumps(with_engine(url, lambda engine: work(engine, Queue("bench", name), int(count)))))
