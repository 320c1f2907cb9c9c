"""A waiting consumer that is cancelled keeps no lease, at whatever point it happens.

Each scenario is run again and again in virtual time and the consumer cancelled one callback later each time, until it
comes through. After each run every job is in somebody's hands or back at its place with no try used.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from duetime.engine import Engine
from duetime.engine.requests import ReserveRequest
from duetime.model.job import State
from tests.faults.store_faults import FaultyStore
from tests.simulation.engine_room import LONG_MS, OTHER, QUEUE, given_store, ids, push, settle, waiting
from tests.simulation.virtual_loop import VirtualLoop, run_virtual, virtual_time

MOST_STEPS = 400
JOBS = {QUEUE: ["a", "b", "c"], OTHER: ["d", "e", "f"]}

Scenario = Callable[[Engine], Awaitable[None]]


async def jobs_are_there_before(engine: Engine) -> None:
    """Nothing happens: the first look finds them."""


async def jobs_are_pushed(engine: Engine) -> None:
    await asyncio.sleep(0.01)
    await push(engine, *JOBS[QUEUE])


async def jobs_are_pushed_during_the_first_look(engine: Engine) -> None:
    await push(engine, *JOBS[OTHER], queue=OTHER)


async def jobs_fall_due(engine: Engine) -> None:
    await push(engine, *JOBS[QUEUE], delay="20ms")
    await asyncio.sleep(0.05)


async def jobs_come_into_both_queues(engine: Engine) -> None:
    await asyncio.sleep(0.01)
    await asyncio.gather(*(push(engine, *names, queue=queue) for queue, names in JOBS.items()))


SCENARIOS = [
    jobs_are_there_before,
    jobs_are_pushed,
    jobs_are_pushed_during_the_first_look,
    jobs_fall_due,
    jobs_come_into_both_queues,
]


async def run(scenario: Scenario, *, steps: int, limit: int, latency_s: float) -> bool:
    """Cancel after so many steps; answers whether that came too late."""
    store = given_store()
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    async with Engine(store) as engine:
        if scenario is jobs_are_there_before:
            await push(engine, *JOBS[OTHER], queue=OTHER)
        await settle()
        store.slow("reserve", "give_back", "push", request=latency_s, answer=latency_s)
        consumer = asyncio.create_task(engine.reserve([QUEUE, OTHER], limit=limit, wait_ms=LONG_MS))
        neighbour = asyncio.create_task(engine.reserve([QUEUE, OTHER], limit=1, wait_ms=100))
        loop.after_steps(steps, consumer.cancel)
        await scenario(engine)
        await asyncio.wait([consumer, neighbour])
        await asyncio.sleep(0.2)
        await check_leases(store, [] if consumer.cancelled() else consumer.result(), neighbour.result())
        assert (engine.parked, engine._waiters.lists) == (0, {})
        assert await store.check() == []
    return not consumer.cancelled()


async def check_leases(store: FaultyStore, *held: list) -> None:
    found = [one for queue, names in JOBS.items() for one in await store.get(queue, names) if one]
    leased = [one.id for one in found if one.state is State.LEASED]
    assert sorted(leased) == sorted(name for deliveries in held for name in ids(deliveries))
    assert {one.id: one.used for one in found} == {one.id: int(one.id in leased) for one in found}


@pytest.mark.parametrize("latency_s", [0.0, 0.004])
@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_no_lease_leaks_when(scenario: Scenario, limit: int, latency_s: float) -> None:
    for steps in range(1, MOST_STEPS):
        if run_virtual(run(scenario, steps=steps, limit=limit, latency_s=latency_s)):
            assert steps > 3
            return
    pytest.fail("the consumer never came through")


@virtual_time
async def test_a_returned_job_goes_to_the_next_consumer_immediately() -> None:
    store = given_store()
    async with Engine(store) as engine:
        consumer = await waiting(engine)
        store.slow("reserve", answer=0.05)
        await push(engine, "a")
        await settle()
        consumer.cancel()
        started = asyncio.get_running_loop().time()
        [delivery] = await engine.reserve([QUEUE], wait_ms=LONG_MS)
        assert (delivery.lease.attempt, delivery.used) == (2, 1)
        assert asyncio.get_running_loop().time() - started <= 0.25


@virtual_time
async def test_five_thousand_consumers_that_are_cancelled_leave_nothing() -> None:
    store = given_store()
    async with Engine(store) as engine:
        consumers = [asyncio.create_task(engine.reserve([QUEUE, OTHER], wait_ms=LONG_MS)) for _ in range(5000)]
        await settle()
        assert engine.parked == 5000
        await push(engine, "a", "b")
        for consumer in consumers:
            consumer.cancel()
        await asyncio.wait(consumers)
        await settle()
        assert engine._waiters.lists == {}
        assert engine._batcher.lanes[ReserveRequest]._inboxes == {}
        [counted] = await store.counts([QUEUE])
        assert counted.leased == sum(not consumer.cancelled() for consumer in consumers)
