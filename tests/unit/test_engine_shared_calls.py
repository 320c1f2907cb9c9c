"""Group commit through the engine: how many store calls concurrent verbs cost, and that neighbours stay neighbours."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from duetime.engine import Engine
from duetime.model.job import STEP_BYTES, STEP_JOBS, NewJob, State
from tests.faults.store_faults import FaultyStore
from tests.simulation.engine_room import OTHER, QUEUE, given_store, ids, job, push, settle
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
