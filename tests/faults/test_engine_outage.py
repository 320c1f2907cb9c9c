"""The engine on a store that is away for a while, loses answers, or hangs. All in virtual time."""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from duetime.engine import Engine
from duetime.model.errors import StoreDamaged, StoreUnavailable
from duetime.model.job import STEP_JOBS, Lease, State
from duetime.model.names import Queue
from duetime.stores.base import RulesChange, Wake
from tests.simulation.engine_room import LONG_MS, OTHER, QUEUE, Stopwatch, given_store, ids, job, push, settle, waiting
from tests.simulation.virtual_loop import run_virtual, virtual_time

SOON_MS = 5.0
LATENCY_S = 0.005
LEASE = Lease(QUEUE, "a", 1, 1)
VERBS: dict[str, Callable[[Engine], Awaitable[Any]]] = {
    "push": lambda engine: engine.push(QUEUE, [job("a")]),
    "reserve": lambda engine: engine.reserve([QUEUE]),
    "reserve and wait": lambda engine: engine.reserve([QUEUE], wait_ms=LONG_MS),
    "ack": lambda engine: engine.ack([LEASE]),
    "release": lambda engine: engine.release(LEASE),
    "give_back": lambda engine: engine.give_back([LEASE]),
    "kill": lambda engine: engine.kill(LEASE),
    "extend": lambda engine: engine.extend(LEASE),
    "cancel": lambda engine: engine.cancel(QUEUE, ["a"]),
    "reschedule": lambda engine: engine.reschedule(QUEUE, ["a"]),
    "respawn": lambda engine: engine.respawn(QUEUE),
    "purge": lambda engine: engine.purge(QUEUE, [State.DEAD]),
    "configure": lambda engine: engine.store.configure(QUEUE, RulesChange(paused=True)),
}


@pytest.mark.parametrize("verb", VERBS)
def test_while_the_store_is_away_a_verb_fails_at_once(verb: str) -> None:
    async def main() -> None:
        store = given_store()
        async with Engine(store) as engine:
            await settle()
            store.down()
            watch = Stopwatch()
            with pytest.raises(StoreUnavailable) as caught:
                await VERBS[verb](engine)
            assert watch.ms == 0
            assert not caught.value.outcome_unknown

    run_virtual(main())


def test_a_lost_answer_is_an_unknown_outcome() -> None:
    async def main() -> None:
        store = given_store()
        async with Engine(store) as engine:
            store.lose_answers("push")
            with pytest.raises(StoreUnavailable) as caught:
                await push(engine, "a")
            assert caught.value.outcome_unknown
            store.heal()
            await push(engine, "a")
            assert ids(await engine.reserve([QUEUE], limit=10)) == ["a"], "pushing again under the same id is safe"

    run_virtual(main())


STEPS: dict[str, tuple[str, Callable[[Engine, list[Lease]], Awaitable[object]]]] = {
    "ack": ("ack", lambda engine, leases: engine.ack(leases)),
    "ack on two queues": ("ack", lambda engine, leases: engine.ack([leases[0], replace(leases[1], queue=OTHER)])),
    "ack by id": ("cancel", lambda engine, leases: engine.ack_by_id(QUEUE, [lease.id for lease in leases])),
    "cancel": ("cancel", lambda engine, leases: engine.cancel(QUEUE, [lease.id for lease in leases])),
    "reschedule": (
        "reschedule",
        lambda engine, leases: engine.reschedule(QUEUE, [lease.id for lease in leases], delay_ms=1),
    ),
    "purge": ("purge", lambda engine, _: engine.purge(QUEUE, [State.LEASED])),
}


@pytest.mark.parametrize("verb", STEPS)
def test_a_verb_that_falls_after_its_first_step_does_not_say_that_nothing_was_done(verb: str) -> None:
    async def main() -> None:
        store = given_store()
        called, call = STEPS[verb]
        async with Engine(store) as engine:
            leases: list[Lease] = []
            for part in range(2):
                await push(engine, *(f"{part}-{number}" for number in range(STEP_JOBS)))
                leases += [delivery.lease for delivery in await engine.reserve([QUEUE], limit=STEP_JOBS)]
            store.down_after(1, called)
            with pytest.raises(StoreUnavailable) as caught:
                await call(engine, leases)
            assert caught.value.outcome_unknown

    run_virtual(main())


def test_the_leases_of_a_lost_answer_lapse_and_come_again() -> None:
    async def main() -> None:
        store = given_store()
        async with Engine(store) as engine:
            await push(engine, "a")
            store.lose_answers("reserve")
            watch = Stopwatch()
            with pytest.raises(StoreUnavailable):
                await engine.reserve([QUEUE], ttr_ms=500)
            store.heal()
            [delivery] = await engine.reserve([QUEUE], wait_ms=LONG_MS)
            assert (delivery.lease.attempt, delivery.used) == (2, 2)
            assert 500 <= watch.ms <= 1500 + SOON_MS

    run_virtual(main())


# --- consumers that wait


@pytest.mark.parametrize("away_s", [0.004, 0.5, 3.0])
@pytest.mark.parametrize("lost", [False, True], ids=["down", "answers lost"])
def test_consumers_of_several_queues_of_a_slow_store_sit_out_an_outage(away_s: float, lost: bool) -> None:
    """Each waits on all queues, in an order of its own; calls are under way when the outage begins and when it ends."""

    async def main() -> None:
        store, another, chance = given_store(), given_store(), random.Random(7)
        another.inner = store.inner
        queues = [Queue("shop", f"q{number}") for number in range(5)]
        names = [f"j{number:02}" for number in range(40)]

        def slow() -> None:
            store.slow(request=lambda: chance.random() * LATENCY_S, answer=lambda: chance.random() * LATENCY_S)

        slow()
        async with Engine(store) as engine, Engine(another) as producer:
            orders = [chance.sample(queues, len(queues)) for _ in range(60)]
            consumers = [asyncio.create_task(engine.reserve(order, ttr_ms=2_000, wait_ms=LONG_MS)) for order in orders]
            await asyncio.sleep(1)
            for at, name in enumerate(names):
                await push(producer, name, queue=queues[at % len(queues)])
                if at == len(names) // 2:
                    if lost:
                        store.lose_answers("reserve")
                    else:
                        store.down()
                    await asyncio.sleep(away_s)
                    store.heal()
                    slow()
            # Leases whose answers were lost lapse, and their jobs come again. A consumer that was in such a call may
            # have been told of it; there are enough others.
            await asyncio.sleep(30)
            ended = [task for task in consumers if task.done()]
            got = [name for task in ended if task.exception() is None for name in ids(task.result())]
            assert set(got) == set(names)
            before = len(store.calls)
            await asyncio.sleep(10)
            at_rest = Counter(call.verb for call in store.calls[before:])
            assert at_rest["reserve"] == 0
            for task in consumers:
                task.cancel()
            await asyncio.gather(*consumers, return_exceptions=True)

    run_virtual(main())


@pytest.mark.parametrize("away_s", [0.01, 0.5, 3.0, 60.0])
@pytest.mark.parametrize("pushed", ["before", "during", "after"])
def test_a_consumer_sits_out_an_outage_and_gets_its_job(away_s: float, pushed: str) -> None:
    """The job comes by another way than this engine, whose wakes are lost as well."""

    async def main() -> None:
        store = given_store()
        another = given_store()
        another.inner = store.inner
        async with Engine(store) as engine, Engine(another) as producer:
            consumer = await waiting(engine)
            if pushed == "before":
                store.down()
                await push(producer, "a")
            else:
                store.down()
            await asyncio.sleep(away_s / 2)
            if pushed == "during":
                await push(producer, "a")
            await asyncio.sleep(away_s / 2)
            assert not consumer.done()
            store.heal()
            watch = Stopwatch()
            if pushed == "after":
                await push(producer, "a")
            assert ids(await consumer) == ["a"]
            assert watch.ms <= 2000 + SOON_MS

    run_virtual(main())


@virtual_time
async def test_a_consumer_whose_call_fails_goes_on_waiting() -> None:
    store = given_store()
    async with Engine(store) as engine:
        consumer = await waiting(engine, QUEUE, OTHER)
        store.down("reserve")
        await push(engine, "a")
        await push(engine, "b", queue=OTHER)
        await asyncio.sleep(3)
        assert not consumer.done()
        store.heal()
        assert len(await consumer) == 1
        await asyncio.sleep(3)
        counts = await store.counts([QUEUE, OTHER])
        assert sum(counted.leased for counted in counts) == 1


@virtual_time
async def test_a_store_that_refuses_reserves_is_not_asked_all_the_time() -> None:
    store = given_store()
    async with Engine(store) as engine:
        consumer = await waiting(engine)
        store.down("reserve")
        await push(engine, "a")
        await asyncio.sleep(60)
        assert store.count("reserve") < 100
        store.heal()
        assert ids(await consumer) == ["a"]


@pytest.mark.parametrize("news", [False, True], ids=["quiet", "a job comes"])
def test_a_consumer_whose_wait_ends_in_an_outage_is_told(news: bool) -> None:
    """Empty would say that the store was asked and had nothing."""

    async def main() -> None:
        store = given_store()
        async with Engine(store) as engine:
            consumer = await waiting(engine, wait_ms=5000)
            watch = Stopwatch()
            await asyncio.sleep(1)
            store.down()
            if news:
                engine._waiters.on_job_available(QUEUE, 0)
            with pytest.raises(StoreUnavailable):
                await consumer
            assert watch.ms == 4999

    run_virtual(main())


@virtual_time
async def test_a_consumer_whose_wait_ends_after_an_outage_comes_back_empty() -> None:
    store = given_store()
    async with Engine(store) as engine:
        consumer = await waiting(engine, wait_ms=10_000)
        store.down()
        engine._waiters.on_job_available(QUEUE, 0)
        await asyncio.sleep(2)
        store.heal()
        assert await consumer == []


@virtual_time
async def test_an_error_of_the_queue_reaches_those_who_wait_for_it() -> None:
    store = given_store()

    async def damaged(*args: object, **options: object) -> None:
        raise StoreDamaged("not ours")

    async with Engine(store) as engine:
        consumers = [await waiting(engine) for _ in range(3)]
        other = await waiting(engine, OTHER)
        store.reserve = damaged
        await push(engine, "a")
        errors = await asyncio.gather(*consumers, return_exceptions=True)
        assert errors == [StoreDamaged("not ours")] * 3
        assert len({id(error) for error in errors}) == 3
        del store.reserve
        await push(engine, "b", queue=OTHER)
        assert ids(await other) == ["b"]


# --- the duties


@virtual_time
async def test_duties_back_off_and_come_back_by_themselves(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "duetime")
    store = given_store()
    async with Engine(store) as engine:
        consumer = await waiting(engine)
        await push(engine, "leased", queue=OTHER)
        await engine.reserve([OTHER], ttr_ms=1000)
        store.down()
        store.calls.clear()
        await asyncio.sleep(600)
        assert 100 < store.count("reap") < 1000
        store.heal()
        caplog.clear()
        await asyncio.sleep(2)
        assert (await store.counts([OTHER]))[0].ready == 1
        assert {record.message for record in caplog.records} == {"duty_works"}
        consumer.cancel()


@virtual_time
async def test_an_outage_is_logged_once_by_each_duty(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "duetime")
    store = given_store()
    async with Engine(store) as engine:
        consumer = await waiting(engine)
        store.down()
        await asyncio.sleep(600)
        assert [record.message for record in caplog.records] == ["duty_fails"] * 3
        consumer.cancel()


@pytest.mark.parametrize("verb", ["reap", "heads"])
def test_a_damaged_store_does_not_end_the_engine(verb: str) -> None:
    async def main() -> None:
        store = given_store()

        async def damaged(*args: object, **options: object) -> None:
            raise StoreDamaged("not ours")

        async with Engine(store) as engine:
            setattr(store, verb, damaged)
            consumer = await waiting(engine)
            await asyncio.sleep(10)
            await push(engine, "a")
            assert ids(await consumer) == ["a"]

    run_virtual(main())


# --- wakes


@virtual_time
async def test_a_listener_that_was_cut_off_comes_back_and_looks_everywhere() -> None:
    store = given_store()
    async with Engine(store) as engine, Engine(store) as another:
        consumer = await waiting(engine)
        await asyncio.sleep(0.5)
        store.break_wakeups()
        await push(another, "a")
        watch = Stopwatch()
        assert ids(await consumer) == ["a"]
        assert watch.ms < 100, "as soon as it is connected again, not at the next check"


@virtual_time
async def test_a_listener_that_is_cut_off_again_and_again_does_not_spin() -> None:
    store = given_store()
    async with Engine(store) as engine:
        consumer = await waiting(engine)
        store.down("wakeups")
        steps = asyncio.get_running_loop().steps
        await asyncio.sleep(60)
        assert asyncio.get_running_loop().steps - steps < 2000
        store.heal()
        consumer.cancel()


@virtual_time
async def test_a_listener_that_connects_and_breaks_all_the_time_backs_off_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = given_store()
    connects = 0

    async def flapping() -> AsyncIterator[Wake]:
        nonlocal connects
        connects += 1
        yield Wake()
        raise StoreUnavailable("gone again")

    store.wakeups = flapping
    async with Engine(store):
        await asyncio.sleep(60)
        assert connects < 100
        assert [record.message for record in caplog.records] == ["duty_fails"]


# --- a store that hangs


@virtual_time
async def test_a_store_that_hangs_for_one_queue_does_not_hold_up_another() -> None:
    store = given_store()
    async with Engine(store) as engine:
        gate = asyncio.Event()
        store.slow("push", request=gate)
        stuck = asyncio.create_task(push(engine, "a"))
        await settle()
        store.slow("push")
        await push(engine, "b", queue=OTHER)
        assert ids(await engine.reserve([OTHER])) == ["b"]
        gate.set()
        await stuck


@virtual_time
async def test_engines_on_one_store_survive_each_other_s_outages() -> None:
    """One engine loses the store while it holds a lease; the other takes the job back and delivers it."""
    inner = given_store().inner
    here, there = given_store(), given_store()
    here.inner = there.inner = inner
    async with Engine(here) as engine, Engine(there) as another:
        await push(engine, "a")
        [lost] = await engine.reserve([QUEUE], ttr_ms=500)
        here.down()
        watch = Stopwatch()
        [found] = await another.reserve([QUEUE], wait_ms=LONG_MS)
        assert (found.lease.id, found.lease.attempt) == ("a", 2)
        assert watch.ms <= 1500 + SOON_MS
        here.heal()
        [answer] = await engine.ack([lost.lease])
        assert answer is not None
        assert (await engine.ack([found.lease]))[0].id == "a"
