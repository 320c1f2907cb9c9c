"""Group commit through the engine: how many store calls concurrent verbs cost, and that neighbours stay neighbours."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from duetime.engine import Engine
from duetime.model.errors import JobExists, StoreUnavailable
from duetime.model.job import STEP_BYTES, STEP_JOBS, IfExists, NewJob, State
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


@virtual_time
async def test_concurrent_pushes_share_the_next_call() -> None:
    store = given_store()
    async with Engine(store) as engine:
        calls = [lambda name=f"j{number:02}": engine.push(QUEUE, [job(name)]) for number in range(CROWD)]
        answers = await crowd(store, "push", calls)
        assert [len(request) for request in store.requests("push")] == [1, CROWD - 1]
        assert [moved.id for pushed in answers for moved in pushed.jobs] == [f"j{number:02}" for number in range(CROWD)]


@virtual_time
async def test_concurrent_acks_share_the_next_call() -> None:
    store = given_store()
    async with Engine(store) as engine:
        await push(engine, *(f"j{number:02}" for number in range(CROWD)))
        leases = [delivery.lease for delivery in await engine.reserve([QUEUE], limit=CROWD)]
        answers = await crowd(store, "ack", [lambda one=lease: engine.ack([one]) for lease in leases])
        assert [len(request) for request in store.requests("ack")] == [1, CROWD - 1]
        assert [moved.id for [moved] in answers] == [lease.id for lease in leases]


@virtual_time
async def test_concurrent_cancels_share_the_next_call() -> None:
    store = given_store()
    async with Engine(store) as engine:
        names = [f"j{number:02}" for number in range(CROWD)]
        await push(engine, *names[:-1])
        answers = await crowd(store, "cancel", [lambda one=name: engine.cancel(QUEUE, [one]) for name in names])
        assert [len(request) for request in store.requests("cancel")] == [1, CROWD - 1]
        assert [moved and moved.id for [moved] in answers] == [*names[:-1], None]


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
async def test_one_after_the_other_costs_a_call_each() -> None:
    store = given_store()
    async with Engine(store) as engine:
        for number in range(10):
            await push(engine, f"j{number}")
        assert store.count("push") == 10


@virtual_time
async def test_one_caller_s_bad_job_never_fails_its_neighbours() -> None:
    store = given_store()
    async with Engine(store) as engine:
        await push(engine, "taken")
        names = ["a", "taken", "b", "c"]
        calls = [lambda one=name: engine.push(QUEUE, [job(one)], if_exists=IfExists.ERROR) for name in names]
        answers = await crowd(store, "push", calls)
        assert isinstance(answers[1], JobExists)
        assert [answers[at].jobs[0].id for at in (0, 2, 3)] == ["a", "b", "c"]
        assert store.count("push") == 2


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


@virtual_time
async def test_an_outage_reaches_everybody_in_the_call_and_nobody_after_it() -> None:
    store = given_store()
    async with Engine(store) as engine:
        store.slow("push", request=0.01)
        tasks = [asyncio.create_task(engine.push(QUEUE, [job(name)])) for name in "abc"]
        await settle()
        store.down("push")
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(answer) for answer in answers] == [StoreUnavailable] * 3
        store.heal()
        await push(engine, "d")
        assert (await store.counts([QUEUE]))[0].ready == 1


# --- callers that go away


@virtual_time
async def test_a_cancelled_push_that_was_not_sent_is_not_done() -> None:
    store = given_store()
    async with Engine(store) as engine:
        store.slow("push", request=0.01)
        first, second, third = (asyncio.create_task(push(engine, name)) for name in "abc")
        await asyncio.sleep(0.005)
        late = asyncio.create_task(push(engine, "late"))
        await settle()
        late.cancel()
        await asyncio.gather(first, second, third)
        await asyncio.sleep(0.1)
        assert store.count("push") == 1
        assert (await store.counts([QUEUE]))[0].ready == 3


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
