"""Waiting for jobs: what wakes a consumer, who gets what, and how long it takes. All in virtual time.

"Soon" is a few milliseconds: well below the second after which the safety net would have found the job.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from duetime.engine import Engine
from duetime.engine.recorder import JUMP_MS
from duetime.model.errors import InvalidRequest
from duetime.model.job import DEFAULT_TTR_MS, Lease, NewJob, State
from duetime.model.names import Queue
from duetime.stores.base import RulesChange
from tests.faults.store_faults import FaultyStore
from tests.simulation.engine_room import (
    LONG_MS,
    OTHER,
    QUEUE,
    THIRD,
    Stopwatch,
    given_store,
    ids,
    push,
    settle,
    waiting,
)
from tests.simulation.virtual_loop import LoopClock, virtual_time

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
    await engine.give_back([await taken(engine)])


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
@virtual_time
async def test_a_consumer_wakes_soon_when_a_job(
    happens: Callable[[Engine], Awaitable[None]], elsewhere: bool, latency_s: float
) -> None:
    store = given_store()
    store.slow(request=latency_s, answer=latency_s)
    async with Engine(store) as engine, Engine(store) as another:
        consumer = await waiting(engine)
        await happens(another if elsewhere else engine)
        watch = Stopwatch()
        assert ids(await consumer) == ["a"]
        assert watch.ms <= SOON_MS + 5 * latency_s * 1000


@pytest.mark.parametrize("happens", [wake for wake in WAKES if wake is not is_resumed], ids=lambda wake: wake.__name__)
@virtual_time
async def test_changes_of_this_process_need_no_wake_from_the_store(
    happens: Callable[[Engine], Awaitable[None]],
) -> None:
    store = given_store()
    store.silence_wakeups()
    async with Engine(store) as engine:
        consumer = await waiting(engine)
        await happens(engine)
        watch = Stopwatch()
        assert ids(await consumer) == ["a"]
        assert watch.ms <= SOON_MS


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
@virtual_time
async def test_it_answers_empty_at_its_deadline_and_not_before(wait_ms: int) -> None:
    async with Engine(given_store()) as engine:
        watch = Stopwatch()
        assert await engine.reserve([QUEUE, OTHER], wait_ms=wait_ms) == []
        assert watch.ms == wait_ms


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
@virtual_time
async def test_an_old_answer_does_not_overwrite_a_newer_version(elsewhere: bool) -> None:
    """The answer "nothing waits" is still on its way when a job with a short delay is pushed."""
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
@virtual_time
async def test_when_the_store_s_clock_jumps_ahead_a_job_is_still_on_time(jump_ms: int) -> None:
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


@pytest.mark.parametrize("jump_ms", [10, 500, 60_000])
@virtual_time
async def test_when_the_store_s_clock_is_set_back_nothing_is_early_and_nothing_spins(jump_ms: int) -> None:
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


@pytest.mark.parametrize("jump_ms", [2000, 3_600_000])
@virtual_time
async def test_when_the_store_s_clock_jumps_over_a_job_it_is_found_within_a_second(jump_ms: int) -> None:
    clock = LoopClock()
    async with Engine(given_store(clock)) as engine:
        consumer = await waiting(engine)
        await push(engine, "a", delay="1500ms")
        await settle()
        clock.offset_ms += jump_ms
        watch = Stopwatch()
        assert ids(await consumer) == ["a"]
        assert watch.ms <= 1000 + SOON_MS


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


# --- several queues, several consumers


@virtual_time
async def test_queues_are_checked_in_the_given_order() -> None:
    async with Engine(given_store()) as engine:
        for queue in (QUEUE, OTHER, THIRD):
            await push(engine, queue.name, queue=queue)
        assert ids(await engine.reserve([OTHER, THIRD, QUEUE], wait_ms=1000)) == [OTHER.name]
        assert ids(await engine.reserve([OTHER, THIRD, QUEUE], wait_ms=1000, limit=2)) == [THIRD.name, QUEUE.name]


@pytest.mark.parametrize("order", [[QUEUE, OTHER, THIRD], [THIRD, OTHER, QUEUE], [OTHER, QUEUE, THIRD]], ids=str)
@virtual_time
async def test_jobs_that_arrive_during_the_first_check_are_tried_in_the_given_order(order: list) -> None:
    store = given_store()
    async with Engine(store) as engine:
        store.slow("reserve", answer=0.1)
        consumer = asyncio.create_task(engine.reserve(order, wait_ms=LONG_MS))
        await asyncio.sleep(0.25)  # it has looked at two of them and is in its look at the third
        for queue in reversed(order):
            await push(engine, queue.name, queue=queue)
        assert ids(await consumer) == [order[0].name]


@virtual_time
async def test_a_job_in_any_of_its_queues_wakes_a_consumer() -> None:
    async with Engine(given_store()) as engine:
        for queue in (THIRD, QUEUE, OTHER):
            consumer = await waiting(engine, QUEUE, OTHER, THIRD)
            await push(engine, "a", queue=queue)
            [delivery] = await consumer
            assert delivery.lease.queue == queue


@virtual_time
async def test_a_queue_named_twice_is_as_good_as_once() -> None:
    async with Engine(given_store()) as engine:
        consumer = await waiting(engine, QUEUE, QUEUE)
        await push(engine, "a", "b")
        assert ids(await consumer) == ["a"]


@virtual_time
async def test_one_consumer_of_many_queues_gets_one_job_and_the_others_stay_ready() -> None:
    """A consumer is in at most one call at a time, so nothing has to be given back."""
    store = given_store()
    store.slow("reserve", request=0.01, answer=0.01)
    async with Engine(store) as engine:
        consumer = await waiting(engine, QUEUE, OTHER, THIRD)
        await asyncio.sleep(0.1)
        await asyncio.gather(*(push(engine, queue.name, queue=queue) for queue in (QUEUE, OTHER, THIRD)))
        assert len(await consumer) == 1
        await asyncio.sleep(1)
        counts = await store.counts([QUEUE, OTHER, THIRD])
        assert (sum(count.ready for count in counts), sum(count.leased for count in counts)) == (2, 1)
        assert store.count("give_back") == 0


@virtual_time
async def test_a_wake_of_one_queue_during_a_call_for_another_is_not_lost() -> None:
    """The consumer is in a call at one queue that brings nothing; meanwhile a job comes into its other queue."""
    store = given_store()
    async with Engine(store) as engine, Engine(store) as thief:
        consumer = await waiting(engine, QUEUE, OTHER)
        store.slow("reserve", answer=0.02)
        await engine.store.configure(QUEUE, RulesChange(paused=True))
        await push(thief, "paused")
        await push(engine, "also paused")
        await push(engine, "a", queue=OTHER)
        watch = Stopwatch()
        assert ids(await consumer) == ["a"]
        assert watch.ms < 100


@virtual_time
async def test_first_come_is_first_served() -> None:
    async with Engine(given_store()) as engine:
        consumers = [await waiting(engine) for _ in range(5)]
        for number in range(5):
            await push(engine, f"j{number}")
            await settle()
            assert [consumer.done() for consumer in consumers] == [place <= number for place in range(5)]
        assert [ids(await consumer) for consumer in consumers] == [[f"j{number}"] for number in range(5)]


@virtual_time
async def test_first_come_is_first_served_out_of_one_push() -> None:
    async with Engine(given_store()) as engine:
        consumers = [await waiting(engine, ttr_ms=1000 + number % 2) for number in range(6)]
        await push(engine, *"abcdef")
        assert [ids(await consumer) for consumer in consumers] == [[letter] for letter in "abcdef"]


@pytest.mark.parametrize("engines", [1, 3])
@virtual_time
async def test_a_thousand_consumers_share_a_thousand_jobs_one_each(engines: int) -> None:
    store = given_store()
    store.slow("reserve", request=0.0005, answer=0.0005)
    async with Engine(store) as first, Engine(store) as second, Engine(store) as third:
        rooms = [first, second, third][:engines]
        consumers = [asyncio.create_task(rooms[n % engines].reserve([QUEUE], wait_ms=LONG_MS)) for n in range(1000)]
        await asyncio.sleep(1)
        watch = Stopwatch()
        await asyncio.gather(*(push(first, f"j{number:03}") for number in range(1000)))
        got = [ids(await consumer) for consumer in consumers]

        assert all(len(one) == 1 for one in got)
        assert sorted(one for [one] in got) == [f"j{number:03}" for number in range(1000)]
        assert watch.ms < 100
        assert all(engine.parked == 0 for engine in rooms)


@virtual_time
async def test_more_jobs_than_consumers() -> None:
    store = given_store()
    async with Engine(store) as engine:
        consumers = [await waiting(engine) for _ in range(3)]
        await push(engine, *"abcdefg")
        assert [ids(await consumer) for consumer in consumers] == [["a"], ["b"], ["c"]]
        [counted] = await store.counts([QUEUE])
        assert (counted.ready, counted.leased) == (4, 3)


@virtual_time
async def test_a_consumer_of_several_jobs_gets_those_that_are_ready() -> None:
    async with Engine(given_store()) as engine:
        greedy, modest = await waiting(engine, limit=10), await waiting(engine, limit=2)
        await push(engine, *"abc")
        assert ids(await greedy) == ["a", "b", "c"]
        await push(engine, *"defg")
        assert ids(await modest) == ["d", "e"]
        assert ids(await engine.reserve([QUEUE], limit=5, wait_ms=1000)) == ["f", "g"]


@virtual_time
async def test_more_consumers_than_one_call_can_serve_are_all_served() -> None:
    async with Engine(given_store()) as engine:
        consumers = [await waiting(engine, limit=400) for _ in range(4)]
        for start in range(0, 1600, 400):
            await push(engine, *(f"j{number:04}" for number in range(start, start + 400)))
        assert [len(await consumer) for consumer in consumers] == [400] * 4


@pytest.mark.parametrize(
    ("queues", "limit", "ttr_ms"), [([], 1, 1), ([QUEUE], 0, 1), ([QUEUE], 501, 1), ([QUEUE], 1, -1)]
)
@virtual_time
async def test_a_bad_ask_is_refused(queues: list, limit: int, ttr_ms: int) -> None:
    async with Engine(given_store()) as engine:
        with pytest.raises(InvalidRequest):
            await engine.reserve(queues, limit=limit, ttr_ms=ttr_ms, wait_ms=10)


# --- many queues

MANY = [QUEUE._replace(name=f"q{number:02}") for number in range(30)]


@virtual_time
async def test_a_check_of_many_queues_costs_few_calls_and_keeps_their_order() -> None:
    store = given_store()
    async with Engine(store) as engine:
        for queue in (MANY[20], MANY[7], MANY[25]):
            await push(engine, queue.name, queue=queue)
        await push(engine, "late", queue=MANY[3], delay="1h")
        store.calls.clear()
        assert ids(await engine.reserve(MANY, limit=2)) == ["q07", "q20"]
        assert store.count("reserve") == 2
        assert ids(await engine.reserve(list(reversed(MANY)), limit=2)) == ["q25"]


@pytest.mark.parametrize("delay_ms", [0, 1, 20, 49, 51, 500, 5000])
@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
@pytest.mark.parametrize("before", [False, True], ids=["pushed after", "pushed before"])
@virtual_time
async def test_a_consumer_of_many_queues_is_on_time(delay_ms: int, elsewhere: bool, before: bool) -> None:
    store = given_store()
    async with Engine(store) as engine, Engine(store) as another:
        doer = another if elsewhere else engine
        if before:
            await push(doer, "a", queue=MANY[17], delay=delay_ms / 1000)
        watch = Stopwatch()
        consumer = asyncio.create_task(engine.reserve(MANY, wait_ms=LONG_MS))
        if not before:
            await asyncio.sleep(0.1)
            await push(doer, "a", queue=MANY[17], delay=delay_ms / 1000)
            watch = Stopwatch()
        assert ids(await consumer) == ["a"]
        assert delay_ms <= watch.ms <= delay_ms + SOON_MS


@pytest.mark.parametrize("verb", ["ping", "heads"])
@virtual_time
async def test_a_job_that_arrives_while_many_queues_are_checked_is_not_missed(verb: str) -> None:
    store = given_store()
    async with Engine(store) as engine:
        await settle()
        store.slow(verb, answer=0.02)
        consumer = asyncio.create_task(engine.reserve(MANY, wait_ms=LONG_MS))
        await asyncio.sleep(0.01)
        await push(engine, "a", queue=MANY[17])
        watch = Stopwatch()
        assert ids(await consumer) == ["a"]
        assert watch.ms <= 20 + SOON_MS


# --- many consumers that wait on the same several queues of a store whose answers take time


LATENCY_S = 0.005
REST_S = 20


def slow_store(*, even: bool = True) -> FaultyStore:
    """Each call takes the same time, so that calls which begin together end together; or its own time."""
    store, chance = given_store(), random.Random(1)
    if even:
        store.slow(request=LATENCY_S)
    else:
        store.slow(request=lambda: chance.random() * LATENCY_S, answer=lambda: chance.random() * LATENCY_S)
    return store


def queues(count: int) -> list[Queue]:
    return [Queue("shop", f"q{number}") for number in range(count)]


def calls(store: FaultyStore) -> Counter[str]:
    return Counter(call.verb for call in store.calls)


@pytest.mark.parametrize("even", [True, False], ids=["even", "uneven"])
@pytest.mark.parametrize(("consumers", "shared", "jobs"), [(40, 2, 10), (60, 10, 30), (20, 2, 2)])
@virtual_time
async def test_consumers_without_a_job_make_no_calls(consumers: int, shared: int, jobs: int, even: bool) -> None:
    store, names = slow_store(even=even), queues(shared)
    async with Engine(store) as engine:
        waits = [asyncio.create_task(engine.reserve(names, wait_ms=LONG_MS)) for _ in range(consumers)]
        await asyncio.sleep(1)
        # One after the other, and some of them while the calls for others are under way.
        await asyncio.gather(
            *(engine.push(names[number % shared], [NewJob(f"j{number}", b"")]) for number in range(jobs))
        )
        await asyncio.sleep(1)
        assert sum(task.done() for task in waits) == jobs
        before = calls(store)
        await asyncio.sleep(REST_S)
        spent = calls(store) - before
        assert set(spent) == {"ping", "heads", "reap"}, spent
        assert max(spent.values()) <= REST_S * 1.2, spent
        for task in waits:
            task.cancel()
        await asyncio.wait(waits)


@pytest.mark.parametrize("even", [True, False], ids=["even", "uneven"])
@pytest.mark.parametrize("shared", [2, 5, 10])
@virtual_time
async def test_no_job_stays_ready_while_consumers_wait_for_it(shared: int, even: bool) -> None:
    store, names, chance = slow_store(even=even), queues(shared), random.Random(7)
    late: list[float] = []
    pushed: dict[str, Stopwatch] = {}
    async with Engine(store) as engine:

        async def consume(own: list[Queue]) -> None:
            while True:
                for job_id in ids(await engine.reserve(own, wait_ms=LONG_MS)):
                    late.append(pushed[job_id].ms)

        tasks = [asyncio.create_task(consume(chance.sample(names, chance.randint(2, shared)))) for _ in range(60)]
        await asyncio.sleep(1)
        for number in range(300):
            job_id = f"j{number}"
            answer = asyncio.create_task(engine.push(chance.choice(names), [NewJob(job_id, b"")]))
            pushed[job_id] = Stopwatch()
            await asyncio.sleep(chance.choice([0, 0, 0.001, 0.01]))
            await answer
        await asyncio.sleep(0.5)
        assert len(late) == 300
        # A push, the call that was under way, and the one that brings the job; each takes two latencies at most.
        assert max(late) <= 4 * 2 * LATENCY_S * 1000
        # Each consumer looks once at each of its queues when it comes; then one call brings a job, and one may be vain.
        assert store.count("reserve") <= 60 * shared + 300 * (shared + 2)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@virtual_time
async def test_an_outage_is_sat_out_without_asking_again_and_again() -> None:
    """Calls that fail for one queue must not set off calls for the next."""
    store, names = slow_store(), queues(3)
    async with Engine(store) as engine:
        waits = [asyncio.create_task(engine.reserve(names, wait_ms=LONG_MS)) for _ in range(40)]
        await asyncio.sleep(1)
        store.down("reserve")
        await asyncio.gather(*(engine.push(queue, [NewJob("a", b"")]) for queue in names))
        before = store.count("reserve")
        await asyncio.sleep(REST_S)
        # The safety net looks once a second at each queue; each look is one call.
        assert store.count("reserve") - before <= REST_S * len(names) * 1.2
        store.heal("reserve")
        await asyncio.sleep(2.5)
        assert sum(task.done() for task in waits) == len(names)
        for task in waits:
            task.cancel()
        await asyncio.wait(waits)
