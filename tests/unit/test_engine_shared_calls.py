"""Group commit through the engine: how many store calls concurrent verbs cost, and that neighbours stay neighbours."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from duetime.engine import Engine
from duetime.engine.batcher import HEAVY_CALLS, HEAVY_WAIT_S, REPLIES_PER_TURN
from duetime.engine.requests import AckRequest, PushRequest, ReserveRequest
from duetime.model.job import STEP_BYTES, STEP_JOBS, NewJob, State
from tests.faults.store_faults import FaultyStore
from tests.simulation.engine_room import LONG_MS, OTHER, QUEUE, given_store, ids, job, push, settle
from tests.simulation.virtual_loop import VirtualLoop, run_virtual, virtual_time

CROWD = 64


async def crowd(store: FaultyStore, verb: str, calls: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """All calls at once, the first a bit earlier, on a store that takes a while; answers what each got."""
    store.slow(verb, request=0.01, answer=0.01)
    store.calls.clear()
    first = asyncio.ensure_future(calls[0]())
    await settle()
    answers = await asyncio.gather(first, *(call() for call in calls[1:]), return_exceptions=True)
    store.heal()
    return answers


NAMES = [f"j{number:02}" for number in range(CROWD)]


@pytest.mark.parametrize("verb", ["push", "ack", "cancel"])
@virtual_time
async def test_concurrent_calls_share_the_next_one(verb: str) -> None:
    store = given_store()
    async with Engine(store) as engine:
        if verb == "ack":
            await push(engine, *NAMES)
            leases = [delivery.lease for delivery in await engine.reserve([QUEUE], limit=CROWD)]
            calls = [lambda lease=lease: engine.ack([lease]) for lease in leases]
        elif verb == "cancel":
            await push(engine, *NAMES)
            calls = [lambda name=name: engine.cancel(QUEUE, [name]) for name in NAMES]
        else:
            calls = [lambda name=name: engine.push(QUEUE, [job(name)]) for name in NAMES]
        answers = await crowd(store, verb, calls)
        assert [len(request) for request in store.requests(verb)] == [1, CROWD - 1]
        moved = [one.jobs[0] if verb == "push" else one[0] for one in answers]
        assert [one.id for one in moved] == NAMES


@virtual_time
async def test_concurrent_reserves_share_the_next_call_and_one_ask() -> None:
    store = given_store()
    async with Engine(store) as engine:
        await push(engine, *(f"j{number:02}" for number in range(CROWD - 1)))
        answers = await crowd(store, "reserve", [lambda: engine.reserve([QUEUE])] * CROWD)
        asks = store.requests("reserve")
        assert [[ask.limit for ask in request] for request in asks] == [[1], [CROWD - 1]]
        assert [ids(one) for one in answers] == [[f"j{number:02}"] for number in range(CROWD - 1)] + [[]]


@virtual_time
async def test_each_consumer_gets_its_own_ttr() -> None:
    store = given_store()
    async with Engine(store) as engine:
        await push(engine, *"abcde")
        ttrs = [1000, 1000, 2000, 1000, 3000]
        now = (await store.ping()).now
        got = await asyncio.gather(*(engine.reserve([QUEUE], ttr_ms=ttr_ms) for ttr_ms in ttrs))
        assert [ids(one) for one in got] == [[letter] for letter in "abcde"]
        assert [one[0].lease_until - now for one in got] == ttrs
        assert [[ask.limit for ask in request] for request in store.requests("reserve")] == [[2, 1, 1, 1]]


@virtual_time
async def test_a_call_holds_at_most_five_hundred_jobs() -> None:
    store = given_store()
    async with Engine(store) as engine:
        calls = [
            lambda at=number: engine.push(QUEUE, [job(f"{at}-{each}") for each in range(100)]) for number in range(12)
        ]
        await crowd(store, "push", calls)
        sizes = [sum(len(push.jobs) for push in request) for request in store.requests("push")]
        assert sizes == [100, STEP_JOBS, STEP_JOBS, 100]


@virtual_time
async def test_a_call_holds_at_most_four_mebibytes() -> None:
    store = given_store()
    body = bytes(1_000_000)
    async with Engine(store) as engine:
        calls = [lambda at=number: engine.push(QUEUE, [NewJob(f"j{at}", body)]) for number in range(10)]
        await crowd(store, "push", calls)
        sizes = [sum(len(one.body) for push in request for one in push.jobs) for request in store.requests("push")]
        assert max(sizes) <= STEP_BYTES
        assert len(sizes) == 4


@virtual_time
async def test_large_asks_are_split_over_calls() -> None:
    store = given_store()
    async with Engine(store) as engine:
        await crowd(store, "reserve", [lambda: engine.reserve([QUEUE], limit=200)] * 6)
        limits = [sum(ask.limit for ask in request) for request in store.requests("reserve")]
        assert limits == [200, 400, 400, 200]


# --- callers that go away


@pytest.mark.parametrize("queues", [[QUEUE], [QUEUE, OTHER]], ids=["one queue", "two queues"])
@pytest.mark.parametrize("latency_s", [0.0, 0.01])
def test_a_reserve_that_is_cancelled_at_any_point_keeps_no_lease(queues: list, latency_s: float) -> None:
    """Cancelled after every number of steps there is: the caller has the jobs, or they are back with no try used."""

    async def main(steps: int) -> bool:
        store = given_store()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        async with Engine(store) as engine:
            for queue in queues:
                await push(engine, "a", "b", queue=queue)
            await settle()
            store.slow("reserve", "give_back", request=latency_s, answer=latency_s)
            consumer = asyncio.create_task(engine.reserve(queues, limit=3))
            neighbour = asyncio.create_task(engine.reserve(queues, limit=1))
            loop.after_steps(steps, consumer.cancel)
            await asyncio.wait([consumer, neighbour])
            await asyncio.sleep(0.1)

            held = [] if consumer.cancelled() else consumer.result()
            found = [one for queue in queues for one in await store.get(queue, ["a", "b"])]
            leased = [one for one in found if one.state is State.LEASED]
            assert len(leased) == len(held) + len(neighbour.result())
            assert all(one.used == (one in leased) for one in found)
        return consumer.cancelled()

    outcomes = [run_virtual(main(steps)) for steps in range(1, 40)]
    assert outcomes[0]
    assert not outcomes[-1]


# --- one queue's flood does not hold up the others of the same process


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
