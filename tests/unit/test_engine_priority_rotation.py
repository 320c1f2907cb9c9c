"""Shares between priorities: 5 : 3 : 2, one by one, in batches, and through the engine."""

import asyncio
from collections import Counter

import pytest

from duetime.engine import Engine
from duetime.engine.priority_rotation import PriorityRotation, spread
from duetime.model.errors import InvalidSettings, StoreUnavailable
from duetime.model.job import Priority
from duetime.model.priority_shares import read_shares
from duetime.stores.base import RulesChange
from tests.faults.store_faults import FaultyStore
from tests.simulation.engine_room import QUEUE, given_store, job
from tests.simulation.virtual_loop import virtual_time


def test_the_turns_of_a_round_are_spread_evenly() -> None:
    assert spread((5, 3, 2)) == (0, 1, 2, 0, 0, 1, 0, 2, 1, 0)
    assert spread((1, 1, 1)) == (0, 1, 2)
    assert spread((1, 0, 0)) == (0,)


@pytest.mark.parametrize("step", [1, 2, 3, 7, 10, 13, 499, 500])
def test_any_way_of_taking_turns_comes_to_the_same_shares(step: int) -> None:
    rotation = PriorityRotation()
    taken = [rotation.next_turns(step) for _ in range(10)]
    assert [sum(one) for one in taken] == [step] * 10
    assert [sum(counts) for counts in zip(*taken, strict=True)] == [5 * step, 3 * step, 2 * step]


def test_turns_that_brought_nothing_come_again() -> None:
    rotation = PriorityRotation()
    first = rotation.next_turns(7)
    rotation.return_turns(7)
    assert rotation.next_turns(7) == first


def test_a_part_that_brought_nothing_comes_again() -> None:
    rotation, straight = PriorityRotation(), PriorityRotation()
    rotation.next_turns(500)
    rotation.return_turns(497)
    straight.next_turns(3)
    assert rotation.next_turns(10) == straight.next_turns(10)
    assert rotation.next_turns(4) == straight.next_turns(4)


@pytest.mark.parametrize("text", ["5:3", "5:3:0", "a:b:c", "5:3:101", "shop=1:2", "1:1:1:1"])
def test_shares_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(InvalidSettings, match="priority_shares must be high:normal:low"):
        read_shares(text)


def test_a_namespace_can_have_shares_of_its_own() -> None:
    shares = read_shares("4:2:1, shop = 8:1:1")
    assert (shares.of("any"), shares.of("shop"), read_shares("").of("any")) == ((4, 2, 1), (8, 1, 1), (5, 3, 2))
    rotation = PriorityRotation(shares.of("shop"))
    assert rotation.next_turns(20) == (16, 2, 2)


# --- through the engine

PLENTY = 40


async def given_plenty(store: FaultyStore, engine: Engine) -> None:
    for priority in Priority:
        await engine.push(QUEUE, [job(f"{priority.name}{number:02}", priority=priority) for number in range(PLENTY)])


async def priorities_of(engine: Engine, *, limit: int, consumers: int, ttrs: int) -> list[Priority]:
    """What so many consumers get that ask at the same time, each for so many jobs."""
    asks = [engine.reserve([QUEUE], limit=limit, ttr_ms=60_000 + number % ttrs) for number in range(consumers)]
    return [delivery.priority for deliveries in await asyncio.gather(*asks) for delivery in deliveries]


@pytest.mark.parametrize("ttrs", [1, 2, 5], ids="{} ttrs".format)
@pytest.mark.parametrize(("limit", "consumers"), [(1, 1), (1, 5), (1, 10), (2, 5), (5, 2), (10, 1)])
@virtual_time
async def test_consumers_get_five_three_two(limit: int, consumers: int, ttrs: int) -> None:
    store = given_store()
    async with Engine(store) as engine:
        await given_plenty(store, engine)
        got: list[Priority] = []
        while len(got) < 50:
            got += await priorities_of(engine, limit=limit, consumers=consumers, ttrs=ttrs)
        assert Counter(got) == {Priority.HIGH: 25, Priority.NORMAL: 15, Priority.LOW: 10}


@virtual_time
async def test_concurrent_calls_use_different_turns() -> None:
    """A consumer that waits and one that does not are served by different calls, here always at the same time."""
    store = given_store()
    async with Engine(store) as engine:
        got: list[Priority] = []
        while len(got) < 30:
            await engine.store.configure(QUEUE, RulesChange(paused=True))
            waiter = asyncio.create_task(engine.reserve([QUEUE], wait_ms=10_000))
            await asyncio.sleep(0.001)
            await given_plenty(store, engine)
            store.slow("reserve", request=0.01, answer=0.01)
            await engine.store.configure(QUEUE, RulesChange(paused=False))
            both = await asyncio.gather(waiter, engine.reserve([QUEUE]))
            got += [delivery.priority for deliveries in both for delivery in deliveries]
            store.heal()
        assert Counter(got) == {Priority.HIGH: 15, Priority.NORMAL: 9, Priority.LOW: 6}


@virtual_time
async def test_an_engine_gives_each_namespace_its_shares() -> None:
    store = given_store()
    async with Engine(store, shares=read_shares(f"{QUEUE.namespace}=8:1:1")) as engine:
        await given_plenty(store, engine)
        got = await priorities_of(engine, limit=1, consumers=10, ttrs=1)
        assert Counter(got) == {Priority.HIGH: 8, Priority.NORMAL: 1, Priority.LOW: 1}


@virtual_time
async def test_a_failed_call_uses_no_turns() -> None:
    store = given_store()
    async with Engine(store) as engine:
        await given_plenty(store, engine)
        got: list[Priority] = []
        for _ in range(10):
            store.down("reserve")
            with pytest.raises(StoreUnavailable):
                await engine.reserve([QUEUE])
            store.heal()
            got += await priorities_of(engine, limit=1, consumers=1, ttrs=1)
        assert Counter(got) == {Priority.HIGH: 5, Priority.NORMAL: 3, Priority.LOW: 2}


@virtual_time
async def test_a_strict_queue_gives_the_highest_first() -> None:
    store = given_store()
    async with Engine(store) as engine:
        await engine.store.configure(QUEUE, RulesChange(strict=True))
        await given_plenty(store, engine)
        assert set(await priorities_of(engine, limit=PLENTY, consumers=1, ttrs=1)) == {Priority.HIGH}


@virtual_time
async def test_turns_of_a_priority_without_jobs_go_to_the_others() -> None:
    store = given_store()
    async with Engine(store) as engine:
        await engine.push(QUEUE, [job("a", priority=Priority.LOW), job("b", priority=Priority.LOW)])
        assert await priorities_of(engine, limit=1, consumers=2, ttrs=1) == [Priority.LOW] * 2
