"""One queue's flood does not hold up the others of the same process.

What counts here is work and not time: how many consumers of the flood run in one turn of the event loop, that is while
anybody else waits for a turn. A job of another queue needs about a dozen turns from its push to its receipt.
"""

import asyncio

import pytest

from duetime.engine import Engine
from duetime.engine.batcher import HEAVY_CALLS, HEAVY_WAIT_S, REPLIES_PER_TURN
from duetime.engine.requests import AckRequest, PushRequest, ReserveRequest
from duetime.model.job import NewJob
from tests.faults.store_faults import FaultyStore
from tests.simulation.engine_room import LONG_MS, OTHER, QUEUE, given_store, ids, settle
from tests.simulation.virtual_loop import virtual_time

CONSUMERS = 400
CALLS = 5
"""Store calls of one queue that are answered at the same time: two reserves, two acks, one of the waiting room."""


class Flood:
    """How many consumers had something to do, in all and in the busiest turn of the event loop."""

    def __init__(self) -> None:
        self.steps = 0
        self.busiest = 0
        self._in_this_turn = 0

    def step(self) -> None:
        self.steps += 1
        if not self._in_this_turn:
            asyncio.get_running_loop().call_soon(self._end_turn)
        self._in_this_turn += 1

    def _end_turn(self) -> None:
        """All that was ready when the first consumer ran has run."""
        self.busiest = max(self.busiest, self._in_this_turn)
        self._in_this_turn = 0


async def fill(engine: Engine, jobs: int) -> None:
    for start in range(0, jobs, 100):
        await engine.push(QUEUE, [NewJob(f"j{start + at}", b"") for at in range(100)])


def slow_store() -> FaultyStore:
    store = given_store()
    store.slow(request=0.002)
    return store


@pytest.mark.parametrize("wait_ms", [0, 1000], ids=["look", "wait"])
@virtual_time
async def test_callers_that_shared_a_store_call_go_on_in_turns(wait_ms: int) -> None:
    async with Engine(slow_store()) as engine:
        await fill(engine, 5 * CONSUMERS)
        flood = Flood()

        async def consume() -> None:
            for _ in range(5):
                deliveries = await engine.reserve([QUEUE], wait_ms=wait_ms)
                flood.step()
                await engine.ack([delivery.lease for delivery in deliveries])
                flood.step()

        await asyncio.gather(*(consume() for _ in range(CONSUMERS)))
        assert flood.steps == 2 * 5 * CONSUMERS
        assert flood.busiest <= CALLS * REPLIES_PER_TURN


@virtual_time
async def test_consumers_that_were_parked_go_on_in_turns_first_come_first_served() -> None:
    async with Engine(slow_store()) as engine:
        flood = Flood()

        async def consume() -> list[str]:
            deliveries = await engine.reserve([QUEUE], wait_ms=LONG_MS)
            flood.step()
            return ids(deliveries)

        waiting = [asyncio.create_task(consume()) for _ in range(CONSUMERS)]
        await asyncio.sleep(1)
        names = [f"j{at:03}" for at in range(CONSUMERS)]
        await engine.push(QUEUE, [NewJob(name, b"") for name in names])
        assert await asyncio.gather(*waiting) == [[name] for name in names]
        assert flood.busiest <= 2 * REPLIES_PER_TURN


@virtual_time
async def test_answers_that_are_pending_when_the_engine_stops_are_delivered() -> None:
    store = slow_store()
    async with Engine(store) as engine:
        await fill(engine, CONSUMERS)
        tasks = [asyncio.create_task(engine.reserve([QUEUE], ttr_ms=LONG_MS)) for _ in range(CONSUMERS)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert not all(task.done() for task in tasks)
    await asyncio.sleep(0)
    found = [ids(task.result()) for task in tasks if task.done()]
    assert sum(map(len, found)) == CONSUMERS
    assert len(found) == CONSUMERS


@virtual_time
async def test_callers_that_are_answered_in_turns_share_their_next_calls() -> None:
    callers = 4 * REPLIES_PER_TURN
    store = slow_store()
    async with Engine(store) as engine:
        await fill(engine, 300)

        async def consume() -> None:
            [delivery] = await engine.reserve([QUEUE], ttr_ms=LONG_MS)
            await engine.ack([delivery.lease])
            await engine.push(QUEUE, [NewJob(f"again-{delivery.lease.id}", b"")])

        await asyncio.gather(*(consume() for _ in range(callers)))
        groups = (engine._batcher.lanes[ReserveRequest], engine._batcher.lanes[AckRequest])
        assert [(group.calls, group.requests) for group in groups] == [(1, callers)] * 2
        assert engine._batcher.lanes[PushRequest].calls == 3 + 1  # those that filled the queue, and one for all callers


# --- how many calls of a flood the store has at a time


async def flooded(engine: Engine, store: FaultyStore, gate: asyncio.Event) -> "list[asyncio.Task[object]]":
    """Big pushes, reserves and acks of one queue, as many as it can have under way, at a store that does not answer."""
    await fill(engine, 2000)
    deliveries = [delivery for _ in range(2) for delivery in await engine.reserve([QUEUE], limit=500)]
    store.slow(request=gate)
    calls = [engine.reserve([QUEUE], limit=500) for _ in range(3)]
    acks = [engine.ack([delivery.lease for delivery in deliveries[at : at + 500]]) for at in (0, 500)]
    pushes = [engine.push(QUEUE, [NewJob(f"n{start}-{at}", b"") for at in range(500)]) for start in range(3)]
    return [asyncio.create_task(call) for call in (*calls, *acks, *pushes)]


@virtual_time
async def test_a_call_for_one_job_waits_for_two_big_calls_at_most() -> None:
    store, gate = given_store(), asyncio.Event()
    async with Engine(store) as engine:
        tasks = await flooded(engine, store, gate)
        before = len(store.calls)
        await settle()
        quiet = asyncio.create_task(engine.push(OTHER, [NewJob("quiet", b"")]))
        await settle()
        order = [call.args[0] for call in store.calls[before:] if call.args]
        gate.set()
        await asyncio.gather(quiet, *tasks)
        assert order == [QUEUE] * HEAVY_CALLS + [OTHER]


@virtual_time
async def test_a_store_that_hangs_is_met_by_all_big_calls_soon() -> None:
    store, gate = given_store(), asyncio.Event()
    async with Engine(store) as engine:
        tasks = await flooded(engine, store, gate)
        before = len(store.calls)
        await asyncio.sleep(1.5 * HEAVY_WAIT_S)
        met = sum(call.args[:1] == (QUEUE,) for call in store.calls[before:])
        gate.set()
        await asyncio.gather(*tasks)
        assert met == 6  # two of each verb


@virtual_time
async def test_a_big_call_that_is_cancelled_while_it_waits_leaves_its_turn_to_the_next() -> None:
    store, gate = given_store(), asyncio.Event()
    async with Engine(store) as engine:
        tasks = await flooded(engine, store, gate)
        await settle()
        for task in tasks[::2]:
            task.cancel()
        gate.set()
        await asyncio.wait(tasks)
        assert not engine._batcher.heavy.locked()
        assert all(task.cancelled() or task.result() for task in tasks)
