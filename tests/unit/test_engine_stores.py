"""The engine on every store, in real time: what the virtual-time tests prove on one must hold on all.

Two engines, each on a store of its own that shares the data with the other, as two processes would have them. Tests
wait for what must come, with a deadline that only a failing test reaches.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from duetime.engine import Engine
from duetime.engine.requests import ReserveRequest
from duetime.model.job import Counts, Delivery, State
from duetime.stores.base import RulesChange, Store
from duetime.stores.open import open_store
from tests.plugins.until import until
from tests.simulation.engine_room import OTHER, QUEUE, ids, job, push

STORE_KINDS = ["memory", "sqlite", "redis", "postgres", "mysql"]
WAIT_MS = 30_000


@pytest.fixture
async def stores(store_url: str) -> AsyncIterator[tuple[Store, Store]]:
    """The same data, opened twice; a memory store is its own other."""
    first = await open_store(store_url)
    second = first if store_url == "memory:" else await open_store(store_url)
    try:
        yield first, second
        assert await first.check() == []
    finally:
        await first.close()
        await second.close()


@asynccontextmanager
async def two_engines(stores: tuple[Store, Store]) -> AsyncIterator[tuple[Engine, Engine]]:
    async with Engine(stores[0]) as first, Engine(stores[1]) as second:
        yield first, second


async def parked(engine: Engine, *queues: object, **options: object) -> "asyncio.Task[list[Delivery]]":
    """A consumer that has looked, found nothing and waits."""
    lane = engine._batcher.lanes[ReserveRequest]
    before = lane.calls
    task = asyncio.create_task(engine.reserve(queues or [QUEUE], wait_ms=WAIT_MS, **options))
    await until(lambda: lane.calls > before and not lane._inboxes)
    return task


async def counts(store: Store) -> Counts:
    [counted] = await store.counts([QUEUE])
    return counted


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
async def test_a_delayed_job_is_never_early(stores: tuple[Store, Store], elsewhere: bool) -> None:
    async with two_engines(stores) as (engine, another):
        consumer = await parked(engine)
        await push(another if elsewhere else engine, "a", delay="30ms")
        [delivery] = await consumer
        assert (await stores[0].ping()).now >= delivery.due_at
        assert delivery.lease_until - 60_000 >= delivery.due_at


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
async def test_everything_that_makes_a_job_ready_wakes_a_consumer(stores: tuple[Store, Store], elsewhere: bool) -> None:
    async with two_engines(stores) as (engine, another):
        doer = another if elsewhere else engine
        consumer = await parked(engine)
        await push(doer, "a", tries=0)
        lease = (await consumer)[0].lease
        for happens in ("release", "give_back", "kill", "reschedule", "resume", "lapse"):
            consumer = await parked(engine)
            match happens:
                case "release":
                    await doer.release(lease, delay_ms=5)
                case "give_back":
                    await doer.give_back([lease])
                case "kill":
                    await doer.kill(lease)
                    await doer.respawn(QUEUE)
                case "reschedule":
                    await doer.ack([lease])
                    await push(doer, "a", delay="1h")
                    await doer.reschedule(QUEUE, ["a"], delay_ms=5)
                case "resume":
                    await doer.store.configure(QUEUE, RulesChange(paused=True))
                    await doer.release(lease)
                    await doer.store.configure(QUEUE, RulesChange(paused=False))
                case _:
                    await doer.extend(lease, 5)
            [delivery] = await consumer
            assert delivery.lease.id == "a"
            assert delivery.lease != lease
            lease = delivery.lease


async def test_consumers_of_two_engines_share_jobs_one_each(stores: tuple[Store, Store]) -> None:
    async with two_engines(stores) as engines:
        consumers = [asyncio.create_task(engines[n % 2].reserve([QUEUE], wait_ms=WAIT_MS)) for n in range(100)]
        await asyncio.gather(*(push(engines[n // 50], f"j{n:02}") for n in range(100)))
        got = [ids(await consumer) for consumer in consumers]
        assert all(len(one) == 1 for one in got)
        assert sorted(one for [one] in got) == [f"j{n:02}" for n in range(100)]
        assert (await counts(stores[0])).leased == 100


async def test_everything_is_delivered_once_and_acked(stores: tuple[Store, Store]) -> None:
    """Producers and consumers at full speed on two engines, with delays, several jobs at a time and two queues."""
    total, seen = 400, Counter[str]()
    done = asyncio.Event()

    async def produce(engine: Engine, start: int) -> None:
        for number in range(start, start + total // 4, 5):
            jobs = [job(f"j{each}", delay=f"{each % 20}ms") for each in range(number, number + 5)]
            await engine.push([QUEUE, OTHER][number % 2], jobs)

    async def consume(engine: Engine, limit: int) -> None:
        while not done.is_set():
            deliveries = await engine.reserve([OTHER, QUEUE], limit=limit, wait_ms=50)
            await engine.ack([delivery.lease for delivery in deliveries])
            seen.update(ids(deliveries))
            if sum(seen.values()) >= total:
                done.set()

    async with two_engines(stores) as engines, asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(produce(engines[number % 2], number * total // 4))
            group.create_task(consume(engines[number % 2], 1 + 3 * number))
    assert seen == Counter({f"j{number}": 1 for number in range(total)})
    assert [one.total for one in await stores[0].counts([QUEUE, OTHER])] == [0, 0]


async def test_a_cancelled_consumer_keeps_no_lease(stores: tuple[Store, Store]) -> None:
    """Cancelled in the middle of everything, as often as it takes to meet every point."""
    async with two_engines(stores) as (engine, another):
        held = 0
        for number in range(60):
            consumer = asyncio.create_task(engine.reserve([QUEUE, OTHER], wait_ms=WAIT_MS))
            for _ in range(number // 3):
                await asyncio.sleep(0)
            await push(engine if number % 2 else another, f"j{number}")
            for _ in range(number % 7):
                await asyncio.sleep(0)
            consumer.cancel()
            await asyncio.wait([consumer])
            held += 0 if consumer.cancelled() else len(consumer.result())
    found = await counts(stores[0])
    assert (found.leased, found.ready) == (held, 60 - held)
    page = await stores[0].list_jobs(QUEUE, State.READY, limit=100)
    assert {one.used for one in page.jobs} <= {0}
