"""The engine's life: starting, stopping, breaking, and what becomes of those who use it meanwhile.

`run_virtual` fails each of these tests if a task is left behind or an error is never looked at.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import pytest

from duetime.engine import Engine
from duetime.model.errors import LeaseLost, StoreDamaged, StoreUnavailable
from duetime.model.job import Delivery, State
from tests.simulation.engine_room import LONG_MS, OTHER, QUEUE, Stopwatch, given_store, ids, push, settle, waiting
from tests.simulation.virtual_loop import VirtualLoop, virtual_time


@virtual_time
async def test_an_engine_leaves_no_task_behind() -> None:
    before = asyncio.all_tasks()
    store = given_store()
    async with Engine(store) as engine:
        await push(engine, "a", "b", delay="1s")
        assert ids(await engine.reserve([QUEUE, OTHER], wait_ms=5000)) == ["a"]
    assert asyncio.all_tasks() == before
    assert store.inner._listeners == set()


@virtual_time
async def test_leaving_waits_for_the_calls_under_way_and_for_those_behind_them() -> None:
    store = given_store()
    async with Engine(store) as engine:
        store.slow("push", request=1.0, answer=1.0)
        first = asyncio.create_task(push(engine, "a"))
        await settle()
        second = asyncio.create_task(push(engine, "b"))
        await settle()
        watch = Stopwatch()
    assert watch.ms == 3998
    await first
    await second
    assert (await store.counts([QUEUE]))[0].ready == 2


@virtual_time
async def test_a_stopping_engine_refuses_requests_so_that_it_can_end() -> None:
    """Producers that never stop would keep a batch busy for ever."""
    store = given_store()
    store.slow("push", request=0.01)
    refused: list[StoreUnavailable] = []

    async def produce(engine: Engine, name: str) -> None:
        for number in range(1_000_000):
            try:
                await push(engine, f"{name}{number}")
            except StoreUnavailable as error:
                refused.append(error)
                return

    async with Engine(store) as engine:
        producers = [asyncio.create_task(produce(engine, name)) for name in "abc"]
        await asyncio.sleep(0.105)
        watch = Stopwatch()
    assert watch.ms <= 20
    await asyncio.wait(producers)
    assert len(refused) == 3


@virtual_time
async def test_an_engine_that_does_not_run_refuses_every_time() -> None:
    engine = Engine(given_store())
    lease = (await given_leased(engine)).lease
    for _ in range(2):
        for call in (push(engine, "a"), engine.reserve([QUEUE]), engine.ack([lease]), engine.cancel(QUEUE, ["a"])):
            with pytest.raises(StoreUnavailable):
                await call
        with pytest.raises(StoreUnavailable):
            await engine.reserve([QUEUE], wait_ms=1000)
    async with engine:
        await push(engine, "b")
    with pytest.raises(StoreUnavailable, match="stopping"):
        await push(engine, "c")


async def given_leased(engine: Engine):
    """A delivery made by another engine on the same store."""
    async with Engine(engine.store) as another:
        await push(another, "leased", queue=OTHER)
        [delivery] = await another.reserve([OTHER])
        return delivery


@virtual_time
async def test_a_stopping_engine_ends_waiting_reserves() -> None:
    async with Engine(given_store()) as engine:
        consumer = await waiting(engine, QUEUE, OTHER)
        watch = Stopwatch()
    with pytest.raises(StoreUnavailable, match="stopping"):
        await consumer
    assert watch.ms == 0


@virtual_time
async def test_a_stopping_engine_ends_a_reserve_in_its_first_check() -> None:
    store = given_store()
    async with Engine(store) as engine:
        store.slow("reserve", answer=1.0)
        consumer = asyncio.create_task(engine.reserve([QUEUE], wait_ms=LONG_MS))
        await settle()
    with pytest.raises(StoreUnavailable, match="stopping"):
        await consumer


@pytest.mark.parametrize("steps", range(1, 20))
@virtual_time
async def test_a_job_that_arrives_when_the_engine_stops_is_the_consumer_s_or_given_back(steps: int) -> None:
    store = given_store()
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    stop = asyncio.Event()
    async with Engine(store) as engine:
        consumer = await waiting(engine)
        pushing = asyncio.create_task(push(engine, "a"))
        loop.after_steps(steps, stop.set)
        await stop.wait()
    [answer, _] = await asyncio.gather(consumer, pushing, return_exceptions=True)
    [found] = await store.get(QUEUE, ["a"])
    if isinstance(answer, StoreUnavailable):
        assert found is None or (found.state, found.used) == (State.READY, 0)
    else:
        assert (ids(answer), found.state) == (["a"], State.LEASED)


@virtual_time
async def test_timers_that_fire_after_the_end_do_nothing() -> None:
    async with Engine(given_store()) as engine:
        await push(engine, "a", delay="1s")
        consumer = await waiting(engine)
    with pytest.raises(StoreUnavailable):
        await consumer
    await asyncio.sleep(5)


# --- errors


class OwnError(Exception):
    pass


@virtual_time
async def test_the_caller_s_own_exception_passes_unchanged_after_the_calls_under_way() -> None:
    store = given_store()
    raised = OwnError("mine")
    pushing: list[asyncio.Task[None]] = []

    async def use() -> None:
        async with Engine(store) as engine:
            store.slow("push", request=1.0)
            pushing.append(asyncio.create_task(push(engine, "a")))
            await settle()
            raise raised

    with pytest.raises(OwnError) as caught:
        await use()
    assert caught.value is raised
    assert caught.value.__context__ is None
    assert (await store.counts([QUEUE]))[0].ready == 1
    await pushing[0]


@virtual_time
async def test_a_cancelled_caller_leaves_by_the_same_door() -> None:
    """Calls under way come to their end, and the cancellation goes on."""
    store = given_store()
    pushing: list[asyncio.Task[None]] = []

    async def use() -> None:
        async with Engine(store) as engine:
            store.slow("push", request=1.0)
            pushing.append(asyncio.create_task(push(engine, "a")))
            await asyncio.sleep(3600)

    task = asyncio.create_task(use())
    await settle()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await pushing[0]
    assert (await store.counts([QUEUE]))[0].ready == 1


@virtual_time
async def test_a_second_cancellation_does_not_wait_for_a_store_that_hangs() -> None:
    store = given_store()
    pushing: list[asyncio.Task[None]] = []

    async def use() -> None:
        async with Engine(store) as engine:
            store.slow("push", request=asyncio.Event())
            pushing.append(asyncio.create_task(push(engine, "a")))
            await asyncio.sleep(3600)

    task = asyncio.create_task(use())
    for _ in range(2):
        await settle()
        task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    with pytest.raises(StoreUnavailable) as caught:
        await pushing[0]
    assert caught.value.outcome_unknown


@pytest.mark.parametrize("verb", ["reap", "heads", "ping", "wakeups"])
@virtual_time
async def test_a_duty_that_crashes_stops_the_engine(verb: str) -> None:
    """A bug must not go on unseen; who waits is told at once."""
    store = given_store()

    consumers: list[asyncio.Task[list[Delivery]]] = []

    def broken(*args: object, **options: object) -> None:
        raise ZeroDivisionError

    async def use() -> None:
        async with Engine(store) as engine:
            await settle()
            consumers.append(await waiting(engine))
            setattr(store, verb, broken)
            store.break_wakeups()
            await asyncio.sleep(3600)

    with pytest.raises(ExceptionGroup) as caught:
        await use()
    assert caught.group_contains(ZeroDivisionError)
    with pytest.raises(StoreUnavailable, match="stopping"):
        await consumers[0]


@pytest.mark.parametrize("steps", range(12))
@virtual_time
async def test_a_crash_at_any_moment_leaves_no_caller_hanging(steps: int) -> None:
    """The runners of batches may have been cancelled before they began, in their call, or behind it."""
    store = given_store()
    store.slow("push", "reserve", "cancel", request=0.001)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)

    calls: list[asyncio.Task[object]] = []

    async def broken(limit: int, *, recorded: object) -> None:
        raise ZeroDivisionError

    async def use() -> None:
        async with Engine(store) as engine:
            await settle()
            store.reap = broken
            work = [
                push(engine, "a"),
                push(engine, "b"),
                engine.reserve([QUEUE]),
                engine.reserve([QUEUE, OTHER], wait_ms=LONG_MS),
                engine.cancel(QUEUE, ["x"]),
            ]
            calls.extend(asyncio.create_task(one) for one in work)
            loop.after_steps(steps + 1, lambda: engine._reaper.run_within(0))
            await asyncio.sleep(3600)

    with pytest.raises(ExceptionGroup):
        await use()
    async with asyncio.timeout(10):
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert all(not isinstance(answer, Exception) or isinstance(answer, StoreUnavailable) for answer in answers)


@virtual_time
async def test_a_job_that_cannot_be_given_back_does_not_stop_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    store = given_store()

    async def damaged(*_: object) -> None:
        raise StoreDamaged("not ours")

    async with Engine(store) as engine:
        store.give_back = damaged
        consumer = await waiting(engine)
        store.slow("reserve", answer=0.5)
        await push(engine, "a")
        await settle()
        consumer.cancel()
        with caplog.at_level(logging.WARNING):
            await asyncio.sleep(1)
        assert [record.message for record in caplog.records] == ["give_back_failed"]
        await push(engine, "b")


@virtual_time
async def test_a_consumer_cancelled_at_the_very_end_is_cancelled_and_nothing_else() -> None:
    """Its job can no longer be given back; that must not take the place of its cancellation."""
    store = given_store()
    async with Engine(store) as engine:
        consumer = await waiting(engine)

        def refuse(work: Coroutine[Any, Any, None]) -> None:
            work.close()
            raise StoreUnavailable("the engine is not running")

        def cancel(answer: object) -> None:
            engine._spawn = refuse
            consumer.cancel()

        [waiter] = engine._waiters.lists[QUEUE].parked
        waiter.answer.add_done_callback(cancel)
        await push(engine, "a")
        await asyncio.wait([consumer])
        assert consumer.cancelled()
        assert (await store.counts([QUEUE]))[0].leased == 1


@virtual_time
async def test_a_lost_lease_is_nothing_to_give_back(caplog: pytest.LogCaptureFixture) -> None:
    store = given_store()
    async with Engine(store) as engine:
        await push(engine, "a")
        [delivery] = await engine.reserve([QUEUE])
        await engine.ack([delivery.lease])
        [lost] = await engine.give_back([delivery.lease])
        assert isinstance(lost, LeaseLost)
        engine.give_back_later([delivery])
        await settle()
        assert caplog.records == []
