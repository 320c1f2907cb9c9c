"""Many consumers that wait on the same several queues of a store whose answers take time. All in virtual time."""

import asyncio
import random
from collections import Counter

import pytest

from duetime.engine import Engine
from duetime.model.job import NewJob
from duetime.model.names import Queue
from tests.faults.store_faults import FaultyStore
from tests.simulation.engine_room import LONG_MS, Stopwatch, given_store, ids
from tests.simulation.virtual_loop import virtual_time

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
