"""PostgreSQL that ends our sessions under load: nothing is lost, nothing is done twice."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import psycopg
import pytest

from duetime.engine import Engine
from duetime.errors import StoreUnavailable
from duetime.job import Moved, NewJob
from duetime.names import Queue
from duetime.stores.postgres.store import PostgresStore

pytestmark = pytest.mark.store_kind("postgres")

QUEUE = Queue("shop", "mail")
JOBS = 60


async def push_all(engine: Engine, ids: list[str], before_each: Callable[[int], None] = lambda number: None) -> None:
    """Push each job until it is accepted, as a careful producer does."""
    for number, job_id in enumerate(ids):
        before_each(number)
        while True:
            try:
                await engine.push(QUEUE, [NewJob(job_id, b"body")])
                break
            except StoreUnavailable:
                await asyncio.sleep(0.01)


async def ack_all(engine: Engine, count: int) -> Counter[str]:
    """Take and finish jobs until so many different ones are gone; how often each was acked."""
    acked: Counter[str] = Counter()
    while len(acked) < count:
        try:
            deliveries = await engine.reserve([QUEUE], limit=20, ttr_ms=2_000, wait_ms=200)
            leases = [delivery.lease for delivery in deliveries]
            while leases:
                with suppress(StoreUnavailable):
                    answers = await engine.ack(leases)
                    # An ack whose commit was in doubt is repeated, and then finds the job gone.
                    acked.update(
                        lease.id
                        for lease, answer in zip(leases, answers, strict=True)
                        if answer is None or isinstance(answer, Moved)
                    )
                    break
        except StoreUnavailable:
            await asyncio.sleep(0.01)
    return acked


async def test_sessions_that_are_ended_under_load(postgres_url: str) -> None:
    store = await PostgresStore.open(f"{postgres_url}&application_name=loaded")
    ids = [f"job {number:04}" for number in range(JOBS)]
    ended = 0
    with psycopg.connect(postgres_url.partition("?")[0], autocommit=True) as connection:

        def end_sessions(number: int) -> None:
            nonlocal ended
            if number % 10 == 5:
                ended += connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'loaded'"
                ).rowcount

        async with Engine(store) as engine:
            consumer = asyncio.create_task(ack_all(engine, JOBS))
            await push_all(engine, ids, end_sessions)
            acked = await consumer
    assert ended > 0
    # A lease that was lost with its answer has run out, and its job was delivered again.
    assert sorted(acked) == ids
    [counts], [totals] = await store.counts([QUEUE]), await store.totals([QUEUE])
    assert (counts.delayed, counts.ready, counts.leased, counts.dead) == (0, 0, 0, 0)
    assert totals.running.accepted == totals.running.acked == JOBS
    assert list(await store.check()) == []
    await store.close()
