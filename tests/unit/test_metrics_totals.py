"""Counters of jobs on the page of metrics: for queues with a name of their own they are the totals of the store."""

from collections.abc import AsyncIterator

import pytest

from duetime.engine.pools import Pools
from duetime.metrics.meters import Meters
from duetime.metrics.scraper import Scraper
from duetime.model.job import NewJob, State
from duetime.model.names import Queue
from duetime.server.process import PoolRecorders
from duetime.server.supervision.siblings import Alone
from duetime.stores.base import Store
from duetime.stores.memory.store import MemoryStore
from tests.faults.store_faults import FaultyStore
from tests.plugins.serving import read_samples

A, B, C = (Queue("shop", name) for name in "abc")


class Process:
    """A server process on a store that outlives it."""

    def __init__(self, store: Store, max_queues: int = 1000) -> None:
        self.meters = Meters(max_queues)

        async def open_store(_: str) -> Store:
            return store

        self.pools = Pools({"default": "x:"}, open_store=open_store, watch=PoolRecorders(self.meters).watch)
        self.scraper = Scraper(self.pools, Alone(), self.meters)

    async def push(self, queue: Queue, *ids: str) -> None:
        await self.pools.engine("default").push(queue, [NewJob(job_id, b"x") for job_id in ids])

    async def counted(self, name: str) -> dict[str, float]:
        """A counter's values by queue."""
        samples = read_samples((await self.scraper.text()).decode())
        return {
            dict(labels)["queue"]: value
            for (metric, labels), value in samples.items()
            if metric == f"duetime_jobs_{name}_total"
        }


@pytest.fixture
async def store() -> AsyncIterator[FaultyStore]:
    faulty = FaultyStore(MemoryStore())
    yield faulty
    assert await faulty.check() == []


async def test_counters_go_on_where_an_earlier_process_ended(store: FaultyStore) -> None:
    async with (first := Process(store)).pools:
        await first.push(A, "1", "2")
    async with (second := Process(store)).pools:
        assert await second.counted("pushed") == {"a": 2}
        await second.push(A, "3")
        await second.push(B, "1")
        assert await second.counted("pushed") == {"a": 3, "b": 1}
        assert await second.counted("delivered") == {"a": 0, "b": 0}


async def test_counters_are_of_all_servers_of_a_store(store: FaultyStore) -> None:
    one, other = Process(store), Process(store)
    async with one.pools, other.pools:
        await one.push(A, "1")
        await other.push(A, "2")
        assert await one.counted("pushed") == await other.counted("pushed") == {"a": 2}


async def test_queues_without_a_name_of_their_own_are_counted_by_the_process(store: FaultyStore) -> None:
    async with (process := Process(store, max_queues=1)).pools:
        for queue in (A, B, C):
            await process.push(queue, "1", "2")
        assert await process.counted("pushed") == {"a": 2, "other": 4}
        await process.pools.engine("default").purge(B, list(State))
        assert await process.counted("pushed") == {"a": 2, "other": 4}


async def test_a_pool_that_does_not_answer_shows_no_counters(store: FaultyStore) -> None:
    async with (process := Process(store)).pools:
        await process.push(A, "1")
        store.down("totals")
        assert await process.counted("pushed") == {}
        assert await process.counted("kept") == {"a": 0}
        store.heal()
        assert await process.counted("pushed") == {"a": 1}
