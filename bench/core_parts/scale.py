"""What happens with many: a burst in one instant, cancels out of a million, memory, growth, ten thousand queues."""

import asyncio
import random
import resource
import struct
import time

import redis

from bench.core_parts.setting import (
    DAY_MS,
    HOUR_MS,
    QUEUE,
    STEP,
    a_redis,
    cpu_seconds,
    meter,
    new_jobs,
    push_all,
    used_memory,
    with_engine,
)
from bench.report import number, percentile, ratio, table
from duetime.engine import Engine
from duetime.model.ids import IdMaker
from duetime.model.job import NewJob
from duetime.model.names import Queue


async def drain(engine: Engine, count: int, queue: Queue = QUEUE) -> int:
    """Four consumers take and ack until all are there."""
    left = count

    async def consumer() -> None:
        nonlocal left
        while left > 0:
            deliveries = await engine.reserve([queue], limit=100, wait_ms=1000)
            left -= len(deliveries)
            await engine.ack([delivery.lease for delivery in deliveries])

    await asyncio.gather(*(consumer() for _ in range(4)))
    return count - left


def burst(count: int) -> str:
    """All due in the same millisecond."""
    with a_redis(slowlog_log_slower_than=10_000) as server:
        client = meter(server)

        async def work(engine: Engine) -> tuple[int, float]:
            due_at = time.time_ns() // 1_000_000 + 3000 + count // 50
            make = IdMaker().make
            await push_all(engine, (NewJob(make(), b"x" * 100, due_at=due_at) for _ in range(count)))
            await asyncio.sleep(max(0, due_at / 1000 - time.time()))
            started = time.perf_counter()
            return await drain(engine, count), time.perf_counter() - started

        delivered, elapsed = with_engine(server.url, work)
        slow = [entry["duration"] / 1000 for entry in client.slowlog_get(128)]
    return (
        f"{count:,} jobs due in one millisecond: {delivered:,} delivered in {elapsed:.1f} s "
        f"({number(delivered / elapsed)} jobs/s); Redis commands over 10 ms: {len(slow)}, "
        f"slowest {max(slow, default=0):.1f} ms (goal: none over 50 ms)"
    )


def cancels(ready: int, count: int) -> str:
    """Cancel by id at random, one by one, out of many that are ready."""
    with a_redis() as server:

        async def work(engine: Engine) -> tuple[list[float], list[int]]:
            jobs = list(new_jobs(ready, delay_ms=0))
            await push_all(engine, iter(jobs))
            chosen = random.Random(7).sample(jobs, count)
            times: list[float] = []
            for job in chosen:
                started = time.perf_counter()
                [moved] = await engine.cancel(QUEUE, [job.id])
                times.append((time.perf_counter() - started) * 1000)
                assert moved is not None
            [counts] = await engine.store.counts([QUEUE])
            return times, [counts.ready, counts.delayed, counts.leased, counts.dead]

        times, counts = with_engine(server.url, work)
    exact = counts == [ready - count, 0, 0, 0]
    return (
        f"cancel {count:,} of {ready:,} ready: p50 {percentile(times, 50):.3f} ms, p99 {percentile(times, 99):.3f} ms, "
        f"counts exact: {exact} (goal: under 1 ms each)"
    )


def lmstfy_bytes(client: redis.Redis, jobs: list[NewJob]) -> float:
    """lmstfy's layout: a string key with a TTL and a packed member of one sorted set."""
    client.flushall()
    before = used_memory(client)
    pipe = client.pipeline(transaction=False)
    namespace, queue = QUEUE.namespace.encode(), QUEUE.name.encode()
    for place, job in enumerate(jobs):
        name = job.id.encode()
        member = struct.pack(f"<H{len(namespace)}sH{len(queue)}sHH{len(name)}s", len(namespace), namespace,
                             len(queue), queue, 1, len(name), name)  # fmt: skip
        pipe.set(b"j/%b/%b/%b" % (namespace, queue, name), job.body, ex=86_400)
        pipe.zadd("timer_set", {member: 1_800_000_000 + job.delay_ms // 1000})
        if place % STEP == 0:
            pipe.execute()
    pipe.execute()
    return (used_memory(client) - before) / len(jobs)


def memory(count: int, sizes: tuple[int, ...]) -> str:
    rows: list[list[str]] = []
    with a_redis() as server:
        client = meter(server)
        for size in sizes:
            made = [
                NewJob(job.id, job.body, delay_ms=job.delay_ms, ttl_ms=DAY_MS, tries=1)
                for job in new_jobs(count, body=b"x" * size, delay_ms=HOUR_MS, spread_ms=HOUR_MS)
            ]
            theirs = lmstfy_bytes(client, made)
            client.flushall()
            before = used_memory(client)
            with_engine(server.url, lambda engine, made=made: push_all(engine, iter(made)))
            ours = (used_memory(client) - before) / count
            rows.append([f"{size} bytes", f"{ours:.0f}", f"{theirs:.0f}", ratio(ours, theirs)])
    head = f"bytes of Redis per delayed job at {count:,} jobs, 26-character id, ttl 86400 (goal: 0.80x at 100 bytes)"
    return head + "\n" + table(["body", "duetime", "lmstfy's layout", "ratio"], rows)


def growth(small: int, large: int, delivered: int) -> str:
    """Redis CPU per delivered job (push, reserve, ack) with few and with many jobs delayed behind it."""
    costs: list[float] = []
    for behind in (small, large):
        with a_redis() as server:
            client = meter(server)

            async def work(engine: Engine, behind: int = behind, client: redis.Redis = client) -> float:
                await push_all(engine, new_jobs(behind, delay_ms=DAY_MS, spread_ms=DAY_MS))
                before = cpu_seconds(client)
                await push_all(engine, new_jobs(delivered, delay_ms=0))
                await drain(engine, delivered)
                return (cpu_seconds(client) - before) / delivered * 1_000_000

            costs.append(with_engine(server.url, work))
    return (
        f"Redis CPU per delivered job: {costs[0]:.1f} us with {small:,} delayed behind it, {costs[1]:.1f} us with "
        f"{large:,}: {ratio(costs[1], costs[0])} (goal: 1.5x at most)"
    )


def many_queues(count: int, idle_s: float) -> str:
    """One job in each queue and a consumer parked on each: idle at first, then each job on time."""
    with a_redis() as server:
        client = meter(server)

        async def work(engine: Engine) -> tuple[float, float, list[float]]:
            queues = [Queue("bench", f"q{number:05}") for number in range(count)]
            due = time.time_ns() // 1_000_000 + int(idle_s * 1000) + 8000 + count // 4
            for at in range(0, count, 200):
                some = enumerate(queues[at : at + 200], at)
                await asyncio.gather(
                    *(engine.push(queue, [NewJob("job", b"", due_at=due + n * 10_000 // count)]) for n, queue in some)
                )
            late: list[float] = []

            async def consumer(queue: Queue) -> None:
                [delivery] = await engine.reserve([queue], wait_ms=300_000)
                late.append(time.time() * 1000 - delivery.due_at)
                await engine.ack([delivery.lease])

            consumers = [asyncio.create_task(consumer(queue)) for queue in queues]
            await asyncio.sleep(max(3.0, (due / 1000 - time.time()) - idle_s - 1))
            own, theirs = resource.getrusage(resource.RUSAGE_SELF), cpu_seconds(client)
            await asyncio.sleep(idle_s)
            then, theirs_then = resource.getrusage(resource.RUSAGE_SELF), cpu_seconds(client)
            await asyncio.gather(*consumers)
            spent = then.ru_utime + then.ru_stime - own.ru_utime - own.ru_stime
            return spent / idle_s, (theirs_then - theirs) / idle_s, late

        mine, theirs, late = with_engine(server.url, work)
    return (
        f"{count:,} queues with one delayed job each and a parked consumer, idle: {mine:.1%} of a core here, "
        f"{theirs:.1%} in Redis; then all delivered: {len(late) == count}, lateness p50 {percentile(late, 50):.1f} ms, "
        f"p99 {percentile(late, 99):.1f} ms, early {sum(one < 0 for one in late)}"
    )
