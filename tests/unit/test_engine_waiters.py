"""Waiting for jobs: what wakes a consumer, who gets what, and how long it takes. All in virtual time.

"Soon" is a few milliseconds: well below the second after which the safety net would have found the job.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from duetime.engine import Engine
from duetime.engine.recorder import JUMP_MS
from duetime.model.job import DEFAULT_TTR_MS, Lease, State
from duetime.stores.base import RulesChange
from tests.simulation.engine_room import (
    LONG_MS,
    OTHER,
    QUEUE,
    Stopwatch,
    given_store,
    ids,
    push,
    settle,
    waiting,
)
from tests.simulation.virtual_loop import LoopClock, run_virtual, virtual_time

SOON_MS = 5.0


# --- what wakes a consumer, in this process and in another


async def is_pushed(engine: Engine) -> None:
    await push(engine, "a")


async def falls_due(engine: Engine) -> None:
    await push(engine, "a", delay="2500ms")
    await asyncio.sleep(2.5)


async def falls_due_before_another(engine: Engine) -> None:
    await push(engine, "late", delay="3m")
    await push(engine, "a", delay="2500ms")
    await asyncio.sleep(2.5)


async def falls_due_after_a_far_one_went(engine: Engine) -> None:
    await push(engine, "first", delay="1m")
    await push(engine, "a", delay="2m")
    await engine.cancel(QUEUE, ["first"])
    await asyncio.sleep(120)


async def is_resumed(engine: Engine) -> None:
    await engine.store.configure(QUEUE, RulesChange(paused=True))
    await push(engine, "a")
    await asyncio.sleep(5)
    await engine.store.configure(QUEUE, RulesChange(paused=False))


async def taken(engine: Engine, job_id: str = "a", *, ttr_ms: int = 60_000) -> Lease:
    """The job in a consumer's hands that nobody who waits has heard of."""
    await engine.store.inner.configure(QUEUE, RulesChange(paused=True))
    await push(engine, job_id)
    await asyncio.sleep(2)
    line = engine.store.inner._queues[QUEUE]
    line.rules = type(line.rules)()
    [delivery] = await engine.reserve([QUEUE], ttr_ms=ttr_ms)
    await settle()
    return delivery.lease


async def is_respawned(engine: Engine) -> None:
    await engine.kill(await taken(engine))
    await engine.respawn(QUEUE)


async def is_released(engine: Engine) -> None:
    await engine.release(await taken(engine))


async def is_released_with_a_delay(engine: Engine) -> None:
    await engine.release(await taken(engine), delay_ms=700)
    await asyncio.sleep(0.7)


async def is_given_back(engine: Engine) -> None:
    await engine.give_back(await taken(engine))


async def is_rescheduled(engine: Engine) -> None:
    await push(engine, "a", delay="1h")
    await engine.reschedule(QUEUE, ["a"], delay_ms=0)


async def is_rescheduled_to_a_near_time(engine: Engine) -> None:
    await push(engine, "a", delay="1h")
    await engine.reschedule(QUEUE, ["a"], delay_ms=300)
    await asyncio.sleep(0.3)


async def runs_out_of_its_lease(engine: Engine) -> None:
    await taken(engine, ttr_ms=400)
    await asyncio.sleep(0.4 - 0.001)


async def runs_out_of_an_extended_lease(engine: Engine) -> None:
    await engine.extend(await taken(engine), ttr_ms=300)
    await asyncio.sleep(0.3)


WAKES = [
    is_pushed,
    falls_due,
    falls_due_before_another,
    falls_due_after_a_far_one_went,
    is_resumed,
    is_respawned,
    is_released,
    is_released_with_a_delay,
    is_given_back,
    is_rescheduled,
    is_rescheduled_to_a_near_time,
    runs_out_of_its_lease,
    runs_out_of_an_extended_lease,
]


@pytest.mark.parametrize("latency_s", [0.0, 0.001])
@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
@pytest.mark.parametrize("happens", WAKES, ids=lambda wake: wake.__name__)
def test_a_consumer_wakes_soon_when_a_job(
    happens: Callable[[Engine], Awaitable[None]], elsewhere: bool, latency_s: float
) -> None:
    async def main() -> None:
        store = given_store()
        store.slow(request=latency_s, answer=latency_s)
        async with Engine(store) as engine, Engine(store) as another:
            consumer = await waiting(engine)
            await happens(another if elsewhere else engine)
            watch = Stopwatch()
            assert ids(await consumer) == ["a"]
            assert watch.ms <= SOON_MS + 5 * latency_s * 1000

    run_virtual(main())


@pytest.mark.parametrize("happens", [wake for wake in WAKES if wake is not is_resumed], ids=lambda wake: wake.__name__)
def test_changes_of_this_process_need_no_wake_from_the_store(happens: Callable[[Engine], Awaitable[None]]) -> None:
    async def main() -> None:
        store = given_store()
        store.silence_wakeups()
        async with Engine(store) as engine:
            consumer = await waiting(engine)
            await happens(engine)
            watch = Stopwatch()
            assert ids(await consumer) == ["a"]
            assert watch.ms <= SOON_MS

    run_virtual(main())


@virtual_time
async def test_a_job_whose_producer_went_away_wakes_a_consumer_too() -> None:
    store = given_store()
    store.silence_wakeups()
    async with Engine(store) as engine:
        consumer = await waiting(engine)
        store.slow("push", answer=0.1)
        producer = asyncio.create_task(push(engine, "a"))
        await settle()
        producer.cancel()
        watch = Stopwatch()
        assert ids(await consumer) == ["a"]
        assert watch.ms <= 100 + SOON_MS


@virtual_time
async def test_a_ready_job_is_leased_without_waiting() -> None:
    async with Engine(given_store()) as engine:
        await push(engine, "a")
        watch = Stopwatch()
        assert ids(await engine.reserve([QUEUE], wait_ms=1000)) == ["a"]
        assert watch.ms == 0


@virtual_time
async def test_nothing_is_delivered_early() -> None:
    store = given_store()
    async with Engine(store) as engine:
        consumer = await waiting(engine)
        await push(engine, "a", delay="1234ms")
        [delivery] = await consumer
        assert delivery.due_at <= (await store.ping()).now < delivery.due_at + SOON_MS


@virtual_time
async def test_an_idle_engine_asks_for_jobs_only_when_it_must() -> None:
    """Nobody polls: one look, one call when the job falls due, and the safety net's checks in between."""
    store = given_store()
    async with Engine(store) as engine:
        await push(engine, "a", delay="5m")
        consumer = await waiting(engine)
        assert ids(await consumer) == ["a"]
        assert store.count("reserve") == 2


# --- how long it waits


@pytest.mark.parametrize("wait_ms", [1, 17, 999, 1000, 1001, 61_003])
def test_it_answers_empty_at_its_deadline_and_not_before(wait_ms: int) -> None:
    async def main() -> None:
        async with Engine(given_store()) as engine:
            watch = Stopwatch()
            assert await engine.reserve([QUEUE, OTHER], wait_ms=wait_ms) == []
            assert watch.ms == wait_ms

    run_virtual(main())


@virtual_time
async def test_it_answers_at_its_deadline_through_wakes_that_bring_it_nothing() -> None:
    store = given_store()
    async with Engine(store) as engine:
        await engine.store.configure(QUEUE, RulesChange(paused=True))
        watch = Stopwatch()
        consumer = asyncio.create_task(engine.reserve([QUEUE], wait_ms=2000))
        for number in range(10):
            await asyncio.sleep(0.15)
            await push(engine, f"j{number}")
        assert await consumer == []
        assert watch.ms == 2000
        assert store.count("reserve") > 10


@virtual_time
async def test_a_slow_store_does_not_keep_a_consumer_past_its_deadline_nor_its_job() -> None:
    store = given_store()
    async with Engine(store) as engine:
        consumer = await waiting(engine, wait_ms=1000)
        watch = Stopwatch()
        store.slow("reserve", answer=5.0)
        await push(engine, "a")
        assert await consumer == []
        assert watch.ms == 999

        store.slow("reserve")
        await asyncio.sleep(5)
        [found] = await store.get(QUEUE, ["a"])
        assert (found.state, found.used) == (State.READY, 0)


# --- answers that cross news on their way


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
def test_an_old_answer_does_not_overwrite_a_newer_version(elsewhere: bool) -> None:
    """The answer "nothing waits" is still on its way when a job with a short delay is pushed."""

    async def main() -> None:
        store = given_store()
        async with Engine(store) as engine, Engine(store) as another:
            gate = asyncio.Event()
            store.slow("reserve", answer=gate)
            consumer = asyncio.create_task(engine.reserve([QUEUE], wait_ms=LONG_MS))
            await settle()
            await push(another if elsewhere else engine, "a", delay="100ms")
            watch = Stopwatch()
            await settle()
            store.slow("reserve")
            gate.set()
            assert ids(await consumer) == ["a"]
            assert watch.ms <= 100 + SOON_MS

    run_virtual(main())


@virtual_time
async def test_an_old_answer_to_a_neighbour_does_not_overwrite_a_newer_version() -> None:
    store = given_store()
    async with Engine(store) as engine:
        consumer = await waiting(engine)
        gate = asyncio.Event()
        store.slow("reserve", answer=gate)
        neighbour = asyncio.create_task(engine.reserve([QUEUE]))
        await settle()
        await push(engine, "a", delay="100ms")
        watch = Stopwatch()
        await settle()
        store.slow("reserve")
        gate.set()
        assert await neighbour == []
        assert ids(await consumer) == ["a"]
        assert watch.ms <= 100 + SOON_MS


# --- the safety net


@virtual_time
async def test_without_any_wakes_a_job_from_elsewhere_is_found_within_a_second() -> None:
    store = given_store()
    store.silence_wakeups()
    async with Engine(store) as engine, Engine(store) as another:
        await asyncio.sleep(0.5)
        for number in range(5):
            consumer = await waiting(engine)
            await asyncio.sleep(0.3 * number)
            await push(another, f"j{number}")
            watch = Stopwatch()
            assert ids(await consumer) == [f"j{number}"]
            assert watch.ms <= 1000 + SOON_MS


@virtual_time
async def test_without_any_wakes_a_delayed_job_from_elsewhere_is_on_time() -> None:
    store = given_store()
    store.silence_wakeups()
    async with Engine(store) as engine, Engine(store) as another:
        consumer = await waiting(engine)
        await push(another, "a", delay="1750ms")
        watch = Stopwatch()
        assert ids(await consumer) == ["a"]
        assert watch.ms <= 1750 + SOON_MS


@virtual_time
async def test_the_safety_net_makes_no_calls_without_waiters() -> None:
    store = given_store()
    async with Engine(store):
        await asyncio.sleep(10)
        assert (store.count("heads"), store.count("ping")) == (0, 0)


# --- the store's clock jumps


@pytest.mark.parametrize("jump_ms", [3, 30, 500, 3_600_000])
def test_when_the_store_s_clock_jumps_ahead_a_job_is_still_on_time(jump_ms: int) -> None:
    async def main() -> None:
        clock = LoopClock()
        async with Engine(given_store(clock)) as engine:
            consumer = await waiting(engine)
            await push(engine, "a", delay="2h")
            due = clock.now_ms() + 7_200_000
            await asyncio.sleep(10)
            clock.offset_ms = due - clock.now_ms() - 5000 - jump_ms
            await asyncio.sleep(3)
            clock.offset_ms += jump_ms
            assert ids(await consumer) == ["a"]
            assert due <= clock.now_ms() <= due + JUMP_MS + SOON_MS

    run_virtual(main())


@pytest.mark.parametrize("jump_ms", [10, 500, 60_000])
def test_when_the_store_s_clock_is_set_back_nothing_is_early_and_nothing_spins(jump_ms: int) -> None:
    async def main() -> None:
        clock = LoopClock()
        store = given_store(clock)
        async with Engine(store) as engine:
            consumer = await waiting(engine)
            await push(engine, "a", delay="10s")
            await asyncio.sleep(5)
            clock.offset_ms -= jump_ms
            watch = Stopwatch()
            [delivery] = await consumer
            assert delivery.due_at <= clock.now_ms() <= delivery.due_at + SOON_MS
            assert watch.ms == pytest.approx(5000 + jump_ms, abs=SOON_MS)
            assert store.count("reserve") < 10

    run_virtual(main())


@pytest.mark.parametrize("jump_ms", [2000, 3_600_000])
def test_when_the_store_s_clock_jumps_over_a_job_it_is_found_within_a_second(jump_ms: int) -> None:
    async def main() -> None:
        clock = LoopClock()
        async with Engine(given_store(clock)) as engine:
            consumer = await waiting(engine)
            await push(engine, "a", delay="1500ms")
            await settle()
            clock.offset_ms += jump_ms
            watch = Stopwatch()
            assert ids(await consumer) == ["a"]
            assert watch.ms <= 1000 + SOON_MS

    run_virtual(main())


@virtual_time
async def test_a_store_whose_clock_runs_fast_is_still_on_time() -> None:
    """A millisecond every second: no step that looks like a jump, and 180 ms after three minutes."""
    clock = LoopClock()
    async with Engine(given_store(clock)) as engine:
        consumer = await waiting(engine)
        await push(engine, "a", delay="3m")
        while not consumer.done():
            await asyncio.sleep(1)
            clock.offset_ms += 1
        [delivery] = await consumer
        delivered_at = delivery.lease_until - DEFAULT_TTR_MS
        assert 0 <= delivered_at - delivery.due_at <= JUMP_MS + SOON_MS


@virtual_time
async def test_a_wake_before_the_clock_is_known_is_kept() -> None:
    """A wake from elsewhere comes before this engine has had any answer from the store."""
    store = given_store()
    async with Engine(store) as another, Engine(store) as engine:
        store.slow("ping", "heads", request=LONG_MS)
        gate = asyncio.Event()
        store.slow("reserve", request=gate)
        consumer = asyncio.create_task(engine.reserve([QUEUE], wait_ms=LONG_MS))
        await settle()
        await push(another, "a", delay="200ms")
        watch = Stopwatch()
        await settle()
        gate.set()
        assert ids(await consumer) == ["a"]
        assert watch.ms <= 200 + SOON_MS
        store.slow("ping", "heads")
