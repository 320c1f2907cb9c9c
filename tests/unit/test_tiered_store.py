"""The background work of a tiered store, and what is counted of its tiers."""

import asyncio
from collections.abc import Sequence

import pytest

from duetime.engine import Engine
from duetime.engine.pools import Pools
from duetime.metrics.meters import Names
from duetime.metrics.store_metrics import StoreLevels
from duetime.model.clock import SystemClock
from duetime.model.job import NewJob, State
from duetime.model.names import Queue
from duetime.stores.base import Page, Push, Store
from duetime.stores.forwarding import ForwardingStore, Later
from duetime.stores.memory.store import MemoryStore
from duetime.stores.open import open_store
from duetime.stores.tiered.store import TieredStore
from tests.plugins.until import until

QUEUE = Queue("shop", "mail")
HOUR_MS = 3_600_000


class _Cold(ForwardingStore):
    """Its next list of queues can be made to fail in a way that nobody foresaw."""

    breaks = False

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.listed: list[int] = []

    def queues(self, namespace: str | None = None) -> Later[Sequence[Queue]]:
        if self.breaks:
            self.breaks = False
            raise RuntimeError("a bug")
        return super().queues(namespace)

    def list_jobs(self, queue: Queue, state: State, *, cursor: str | None = None, limit: int = 100) -> Later[Page]:
        self.listed.append(limit)
        return super().list_jobs(queue, state, cursor=cursor, limit=limit)


@pytest.fixture
def hot() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def cold() -> _Cold:
    """Has a job that belongs to hot."""
    store = _Cold()
    await store.push(QUEUE, [Push([NewJob("far", b"", due_at=SystemClock().now_ms() + HOUR_MS // 2)])])
    return store


async def open_tiers(hot: Store, cold: Store, promote_per_s: int = 0) -> TieredStore:
    async def open_hot() -> Store:
        return hot

    async def open_cold() -> Store:
        return cold

    return await TieredStore.open("t", open_hot, open_cold, horizon_ms=HOUR_MS, promote_per_s=promote_per_s)


async def test_only_engines_promote(hot: MemoryStore, cold: _Cold) -> None:
    """Each executor of a Spark cluster opens the pool, and so does each command that inspects it."""
    before = asyncio.all_tasks()
    store = await open_tiers(hot, cold)
    assert asyncio.all_tasks() == before

    async def is_promoted() -> bool:
        return await hot.get(QUEUE, ["far"]) != [None]

    async with Engine(store):
        await until(is_promoted)
    assert asyncio.all_tasks() == before
    await store.close()


async def test_jobs_are_promoted_after_a_bug_broke_the_promoter(hot: MemoryStore, cold: _Cold) -> None:
    cold.breaks = True
    store = await open_tiers(hot, cold)

    async def is_promoted() -> bool:
        return await hot.get(QUEUE, ["far"]) != [None]

    async with Engine(store):
        await until(is_promoted, deadline_s=20)
    await store.close()


async def test_promotion_keeps_to_its_rate_except_for_overdue_jobs(hot: MemoryStore, cold: _Cold) -> None:
    soon = SystemClock().now_ms() + HOUR_MS // 2
    late = [NewJob(f"late {number}", b"") for number in range(150)]
    await cold.push(QUEUE, [Push([*late, *(NewJob(f"{number}", b"", due_at=soon) for number in range(99))])])
    store = await open_tiers(hot, cold, promote_per_s=50)
    loop = asyncio.get_running_loop()
    began = loop.time()

    assert await store.promoter.run_once() == 250

    assert loop.time() - began > 0.9, "the second 50 jobs that are not overdue wait for a second"
    assert set(cold.listed) == {50}, "small pages, so that the store has a load without peaks"
    await store.close()


async def test_a_promoter_ends_its_turn_in_time(hot: MemoryStore, cold: _Cold) -> None:
    """So that the next one leads alone."""
    soon = SystemClock().now_ms() + HOUR_MS // 2
    await cold.push(QUEUE, [Push([NewJob(f"{number}", b"", due_at=soon) for number in range(700)])])
    store = await open_tiers(hot, cold)

    assert await store.promoter.run_once(asyncio.get_running_loop().time()) == 500
    assert await store.promoter.run_once() == 201
    await store.close()


async def test_an_outage_that_a_restart_would_not_know_of_is_seen(hot: MemoryStore, cold: _Cold) -> None:
    """A command that inspects the pool has no promoter that could have seen it."""
    await cold.push(QUEUE, [Push([NewJob("late", b"", due_at=SystemClock().now_ms() - 60_000)])])
    store = await open_tiers(hot, cold)
    assert "promotion is late" in (await store.ping()).problems["promoter"].message
    await store.close()


async def test_the_metrics_say_how_many_jobs_of_a_queue_are_in_cold() -> None:
    pools = Pools({"default": "tiered:t?hot=memory:&cold=memory:&horizon=1h"}, open_store=open_store)
    async with pools:
        store = pools.engine("default").store
        await store.push(QUEUE, [Push([NewJob(f"{hours}", b"", delay_ms=hours * HOUR_MS) for hours in (0, 2, 3)])])
        levels = {one.description.name: one.series for one in (await StoreLevels(pools, Names()).read()).readings}
    assert levels["duetime_cold_jobs"] == {("default", *QUEUE): [2]}
    assert levels["duetime_jobs"]["default", *QUEUE, "delayed"] == [2]
