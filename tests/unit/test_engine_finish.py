"""finish and results at the engine's door, and waiting for results, in virtual time."""

import asyncio

import pytest

from duetime.engine import Engine
from duetime.model.errors import BodyTooLarge, InvalidId, InvalidRequest, InvalidTime, LeaseLost, StoreUnavailable
from duetime.model.job import MAX_RESULT, MAX_RESULT_MS, STEP_JOBS, Lease, NewJob
from duetime.stores.finishes import Finish, Finished, Join, KeptResult
from tests.faults.store_faults import FaultyStore
from tests.simulation.engine_room import LONG_MS, OTHER, QUEUE, Stopwatch, given_store, ids, job, push, settle, waiting
from tests.simulation.virtual_loop import virtual_time

LEASE = Lease(QUEUE, "a", 1, 1)

BAD = {
    "an id that is none": (Finish(Lease(QUEUE, "", 1, 1)), InvalidId),
    "a job that is none": (Finish(LEASE, [NewJob("b\n", b"")]), InvalidId),
    "a large body": (Finish(LEASE, [NewJob("b", b"x" * 101)]), BodyTooLarge),
    "an id twice": (Finish(LEASE, [job("b"), job("b")]), InvalidRequest),
    "a job that is put back": (Finish(LEASE, [job("b", born=1)]), InvalidRequest),
    "too many jobs": (Finish(LEASE, [job(str(n)) for n in range(STEP_JOBS)]), InvalidRequest),
    "a large result": (Finish(LEASE, result=b"x" * (MAX_RESULT + 1), result_ttl_ms=1), BodyTooLarge),
    "a result for ever": (Finish(LEASE, result=b"x", result_ttl_ms=MAX_RESULT_MS + 1), InvalidTime),
    "a join of nothing": (Finish(LEASE, join=Join("a", 0, [job("a~>z")], 1)), InvalidRequest),
    "a join that nothing follows from": (Finish(LEASE, join=Join("a", 1, [], 1)), InvalidRequest),
    "a join for ever": (Finish(LEASE, join=Join("a", 1, [job("a~>z")], MAX_RESULT_MS + 1)), InvalidTime),
    "a join without life": (Finish(LEASE, join=Join("a", 1, [job("a~>z")], 0)), InvalidTime),
    "a join of another place": (Finish(LEASE, join=Join("b", 1, [job("a~>z")], 1)), InvalidRequest),
    "a join that leads elsewhere": (Finish(LEASE, join=Join("a", 1, [job("z")], 1)), InvalidRequest),
    "a join with a bad name": (Finish(LEASE, join=Join("a~>\n", 1, [job("a~>z")], 1)), InvalidId),
    "an id twice with the join's": (Finish(LEASE, [job("a~>z")], join=Join("a", 1, [job("a~>z")], 1)), InvalidRequest),
    "a result for less than nothing": (Finish(LEASE, result=b"x", result_ttl_ms=-1), InvalidTime),
}


@pytest.mark.parametrize("what", BAD)
@virtual_time
async def test_a_finish_is_refused_for(what: str) -> None:
    bad, error = BAD[what]
    store = given_store()
    async with Engine(store, max_body=100) as engine:
        with pytest.raises(error):
            await engine.finish([Finish(LEASE), bad])
    assert not [call for call in store.calls if call.verb == "finish"]


async def leases(engine: Engine, *job_ids: str, queue: object = QUEUE) -> list[Lease]:
    await push(engine, *job_ids, queue=queue)  # type: ignore[arg-type]
    return [one.lease for one in await engine.reserve([queue], limit=len(job_ids))]  # type: ignore[list-item]


@virtual_time
async def test_finishes_of_several_queues_keep_their_order() -> None:
    async with Engine(given_store()) as engine:
        [a, b] = await leases(engine, "a", "b")
        [c] = await leases(engine, "c", queue=OTHER)
        lost = Lease(QUEUE, "x", 1, 1)
        await push(engine, "x")

        answers = await engine.finish([Finish(a, [job("a2")]), Finish(c), Finish(lost), Finish(b), Finish(b)])

        assert [type(answer) for answer in answers] == [Finished, Finished, LeaseLost, Finished, type(None)]
        assert sorted(ids(await engine.reserve([QUEUE], limit=9))) == ["a2", "x"]


@virtual_time
async def test_many_finishes_go_in_bounded_steps() -> None:
    store = given_store()
    async with Engine(store) as engine:
        held = await leases(engine, *[f"{n:03}" for n in range(200)])
        await engine.finish([Finish(lease, [job(f"{lease.id}/{n}") for n in range(4)]) for lease in held])
        calls = [call.args[1] for call in store.calls if call.verb == "finish"]
        assert [sum(1 + len(one.then) for one in finishes) for finishes in calls] == [500, 500]


@virtual_time
async def test_callers_share_a_call() -> None:
    store = given_store()
    async with Engine(store) as engine:
        held = await leases(engine, *[str(n) for n in range(50)])
        store.slow("finish", request=0.1)
        answers = await asyncio.gather(*(engine.finish([Finish(lease)]) for lease in held))
        assert all(isinstance(answer, Finished) for [answer] in answers)
        assert len([call for call in store.calls if call.verb == "finish"]) <= 2


@virtual_time
async def test_a_follow_up_job_reaches_a_waiting_consumer_immediately() -> None:
    async with Engine(given_store()) as engine:
        [a] = await leases(engine, "a")
        consumer = await waiting(engine)
        watch = Stopwatch()
        await engine.finish([Finish(a, [job("b")])])
        assert ids(await consumer) == ["b"]
        assert watch.ms < 5


# --- waiting for results


async def keep(engine: Engine, lease: Lease, result: bytes = b"x") -> None:
    [answer] = await engine.finish([Finish(lease, (), result, 60_000)])
    assert isinstance(answer, Finished)


def waiter(engine: Engine, *job_ids: str, wait_ms: int = LONG_MS) -> "asyncio.Task[list[KeptResult | None]]":
    return asyncio.create_task(engine.results(QUEUE, job_ids, wait_ms=wait_ms))


@virtual_time
async def test_an_existing_result_is_read_immediately() -> None:
    async with Engine(given_store()) as engine:
        [a] = await leases(engine, "a")
        await keep(engine, a)
        watch = Stopwatch()
        [found, missing] = await engine.results(QUEUE, ["a", "never"])
        assert (found and found.result, missing) == (b"x", None)
        assert watch.ms == 0
        [again] = await engine.results(QUEUE, ["a"], wait_ms=LONG_MS)
        assert again == found


@virtual_time
async def test_a_finish_of_this_process_ends_a_wait() -> None:
    store = given_store()
    async with Engine(store) as engine:
        [a, b] = await leases(engine, "a", "b")
        both, one = waiter(engine, "a", "b", "a"), waiter(engine, "b")
        await settle()
        watch = Stopwatch()
        await keep(engine, a)
        await settle()
        assert not both.done()
        assert not one.done()
        await keep(engine, b)
        assert [found and found.id for found in await both] == ["a", "b", "a"]
        assert [found and found.id for found in await one] == ["b"]
        assert watch.ms < 5


@virtual_time
async def test_a_finish_of_another_process_ends_a_wait() -> None:
    store = given_store()
    async with Engine(store) as engine, Engine(store) as other:
        [a] = await leases(other, "a")
        task = waiter(engine, "a")
        await settle()
        looks = len([call for call in store.calls if call.verb == "results"])
        watch = Stopwatch()
        await keep(other, a)
        assert [found and found.id for found in await task] == ["a"]
        assert watch.ms < 5
        assert len([call for call in store.calls if call.verb == "results"]) <= looks + 2


@virtual_time
async def test_a_lost_wake_costs_a_second() -> None:
    store = given_store()
    async with Engine(store) as engine, Engine(store.inner) as other:
        store.down("wakeups")
        [a] = await leases(other, "a")
        task = waiter(engine, "a")
        await settle()
        watch = Stopwatch()
        await keep(other, a)
        await task
        assert watch.ms <= 1001


@virtual_time
async def test_the_wait_ends_without_a_result() -> None:
    async with Engine(given_store()) as engine:
        watch = Stopwatch()
        assert await engine.results(QUEUE, ["a"], wait_ms=2500) == [None]
        assert watch.ms == 2500


@virtual_time
async def test_a_thousand_waiters_share_their_checks() -> None:
    store = given_store()
    async with Engine(store) as engine:
        tasks = [waiter(engine, str(number), wait_ms=3500) for number in range(1000)]
        await asyncio.gather(*tasks)
        assert len([call for call in store.calls if call.verb == "results"]) < 30


@virtual_time
async def test_a_wait_survives_an_outage_and_fails_if_it_lasts() -> None:
    store: FaultyStore = given_store()
    async with Engine(store) as engine, Engine(store.inner) as other:
        [a] = await leases(other, "a")
        task, hopeless = waiter(engine, "a"), waiter(engine, "b", wait_ms=3000)
        await settle()
        store.down()
        with pytest.raises(StoreUnavailable):
            await engine.results(QUEUE, ["a"], wait_ms=1000)
        with pytest.raises(StoreUnavailable):
            await hopeless
        await keep(other, a)
        store.heal()
        assert [found and found.id for found in await task] == ["a"]


@virtual_time
async def test_an_engine_that_stops_ends_the_waits() -> None:
    async with Engine(given_store()) as engine:
        task = waiter(engine, "a")
        await settle()
    with pytest.raises(StoreUnavailable):
        await task


@virtual_time
async def test_a_wait_that_is_cancelled_leaves_nothing_behind() -> None:
    async with Engine(given_store()) as engine:
        task = waiter(engine, "a", "a", "b")
        await settle()
        task.cancel()
        await asyncio.wait([task])
        assert engine._results._waiting == {}
