"""Consumers that wait on several queues, and several consumers of one queue. All in virtual time."""

import asyncio

import pytest

from duetime.engine import Engine
from duetime.model.errors import InvalidRequest
from duetime.stores.base import RulesChange
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
from tests.simulation.virtual_loop import run_virtual, virtual_time

SOON_MS = 5.0

# --- several queues, several consumers


@virtual_time
async def test_queues_are_checked_in_the_given_order() -> None:
    async with Engine(given_store()) as engine:
        for queue in (QUEUE, OTHER, THIRD):
            await push(engine, queue.name, queue=queue)
        assert ids(await engine.reserve([OTHER, THIRD, QUEUE], wait_ms=1000)) == [OTHER.name]
        assert ids(await engine.reserve([OTHER, THIRD, QUEUE], wait_ms=1000, limit=2)) == [THIRD.name, QUEUE.name]


@pytest.mark.parametrize("order", [[QUEUE, OTHER, THIRD], [THIRD, OTHER, QUEUE], [OTHER, QUEUE, THIRD]], ids=str)
def test_jobs_that_arrive_during_the_first_check_are_tried_in_the_given_order(order: list) -> None:
    async def main() -> None:
        store = given_store()
        async with Engine(store) as engine:
            store.slow("reserve", answer=0.1)
            consumer = asyncio.create_task(engine.reserve(order, wait_ms=LONG_MS))
            await asyncio.sleep(0.25)  # it has looked at two of them and is in its look at the third
            for queue in reversed(order):
                await push(engine, queue.name, queue=queue)
            assert ids(await consumer) == [order[0].name]

    run_virtual(main())


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
def test_a_thousand_consumers_share_a_thousand_jobs_one_each(engines: int) -> None:
    async def main() -> None:
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

    run_virtual(main())


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
def test_a_bad_ask_is_refused(queues: list, limit: int, ttr_ms: int) -> None:
    async def main() -> None:
        async with Engine(given_store()) as engine:
            with pytest.raises(InvalidRequest):
                await engine.reserve(queues, limit=limit, ttr_ms=ttr_ms, wait_ms=10)

    run_virtual(main())


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
def test_a_consumer_of_many_queues_is_on_time(delay_ms: int, elsewhere: bool, before: bool) -> None:
    async def main() -> None:
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

    run_virtual(main())


@pytest.mark.parametrize("verb", ["ping", "heads"])
def test_a_job_that_arrives_while_many_queues_are_checked_is_not_missed(verb: str) -> None:
    async def main() -> None:
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

    run_virtual(main())
