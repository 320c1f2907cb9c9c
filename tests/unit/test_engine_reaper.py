"""The reaper through the engine: leases that run out and jobs past their ttl, on time and in bounded rounds."""

import asyncio

import pytest

from duetime.engine import Engine
from duetime.engine.reaper import LONGEST_REST_S, STEP, Reaper
from duetime.model.errors import LeaseLost
from duetime.model.job import Event
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Reaped
from tests.simulation.engine_room import OTHER, QUEUE, Stopwatch, given_store, ids, job, push, waiting
from tests.simulation.virtual_loop import virtual_time

SOON_MS = 5.0


@pytest.mark.parametrize("ttr_ms", [0, 1, 50, 990, 1000, 1010, 10_000])
@virtual_time
async def test_a_lease_of_this_process_ends_on_time(ttr_ms: int) -> None:
    async with Engine(given_store()) as engine:
        await asyncio.sleep(0.123)
        await push(engine, "a")
        [first] = await engine.reserve([QUEUE], ttr_ms=ttr_ms)
        watch = Stopwatch()
        [second] = await engine.reserve([QUEUE], wait_ms=60_000)
        assert ttr_ms <= watch.ms <= ttr_ms + SOON_MS
        assert (second.lease.id, second.lease.attempt, second.used) == ("a", 2, 2)
        with pytest.raises(LeaseLost):
            await engine.release(first.lease)


@pytest.mark.parametrize("ttr_ms", [0, 50, 1500, 10_000])
@virtual_time
async def test_a_lease_of_another_process_ends_within_a_second(ttr_ms: int) -> None:
    """The process that gave it out is gone."""
    store = given_store()
    async with Engine(store) as engine:
        await push(engine, "a")
        await store.reserve(QUEUE, [Ask(1, ttr_ms)])
        watch = Stopwatch()
        assert ids(await engine.reserve([QUEUE], wait_ms=60_000)) == ["a"]
        assert ttr_ms <= watch.ms <= ttr_ms + LONGEST_REST_S * 1000 + SOON_MS


@virtual_time
async def test_an_extended_lease_is_left_alone_until_its_new_end() -> None:
    async with Engine(given_store()) as engine:
        await push(engine, "a")
        [first] = await engine.reserve([QUEUE], ttr_ms=200)
        watch = Stopwatch()
        await asyncio.sleep(0.15)
        await engine.extend(first.lease, 700)
        assert ids(await engine.reserve([QUEUE], wait_ms=60_000)) == ["a"]
        assert 850 <= watch.ms <= 850 + SOON_MS


@virtual_time
async def test_a_job_past_its_ttl_is_ended_within_a_second() -> None:
    store = given_store()
    async with Engine(store) as engine:
        await push(engine, "a", ttl="2s")
        await asyncio.sleep(3.001)
        assert await store.heads([QUEUE]) == [None], "nobody but the reaper has met it"
        assert (await store.counts([QUEUE]))[0].expired == 1


@virtual_time
async def test_a_round_is_bounded_and_the_next_follows_immediately() -> None:
    store = given_store()
    async with Engine(store) as engine:
        for start in range(0, 4 * STEP, 500):
            await push(engine, *(f"j{number:04}" for number in range(start, start + 500)))
        for _ in range(4):
            await engine.reserve([QUEUE], limit=500, ttr_ms=1000)
        store.calls.clear()
        await asyncio.sleep(1.005)
        [counted] = await store.counts([QUEUE])
        assert (counted.ready, counted.leased) == (4 * STEP, 0)
        assert store.requests("reap") == [STEP] * len(store.requests("reap"))
        assert 4 <= store.count("reap") <= 7


@virtual_time
async def test_others_get_their_turn_however_much_there_is_to_reap() -> None:
    """The memory store never makes anybody wait, so the reaper must do that itself."""
    store = given_store()
    rounds = 0
    turns = 0

    async def endless(limit: int, *, recorded: object) -> object:
        nonlocal rounds
        rounds += 1
        reaped = await store.inner.reap(limit)
        return type(reaped)(reaped.moved, reaped.now if rounds < 50 else None, reaped.now)

    store.reap = endless
    async with Engine(store):
        while rounds < 50:
            turns += 1
            await asyncio.sleep(0)
    assert turns >= 50


@virtual_time
async def test_an_idle_reaper_checks_about_once_a_second() -> None:
    store = given_store()
    async with Engine(store):
        await asyncio.sleep(60)
        assert 55 <= store.count("reap") <= 70


@virtual_time
async def test_many_short_leases_do_not_make_it_spin() -> None:
    store = given_store()
    async with Engine(store) as engine:
        for number in range(100):
            await push(engine, f"j{number}")
            [delivery] = await engine.reserve([QUEUE], ttr_ms=60_000 - number)
            await engine.ack([delivery.lease])
        assert store.count("reap") <= 2


@virtual_time
async def test_what_it_takes_back_wakes_those_who_wait_for_it_in_every_queue() -> None:
    store = given_store()
    async with Engine(store) as engine:
        for queue in (QUEUE, OTHER):
            await push(engine, queue.name, queue=queue)
            await engine.reserve([queue], ttr_ms=300)
        consumers = [await waiting(engine, queue) for queue in (QUEUE, OTHER)]
        watch = Stopwatch()
        assert [ids(await consumer) for consumer in consumers] == [[QUEUE.name], [OTHER.name]]
        assert watch.ms <= 300 + SOON_MS


@virtual_time
async def test_run_once_reports_what_moved_and_how_long_to_rest() -> None:
    store = given_store()
    happened: list[tuple[Queue, Event]] = []

    async def reap(limit: int) -> Reaped:
        reaped = await store.reap(limit)
        happened.extend((queue, one.event) for queue, several in reaped.moved.items() for one in several)
        return reaped

    reaper = Reaper(reap)
    assert await reaper.run_once() == LONGEST_REST_S
    await store.push(QUEUE, [Push([job("a")])])
    await store.reserve(QUEUE, [Ask(1, 250)])
    assert await reaper.run_once() == 0.25
    await asyncio.sleep(0.25)
    assert await reaper.run_once() == LONGEST_REST_S
    assert happened == [(QUEUE, Event.LEASE_EXPIRED)]
