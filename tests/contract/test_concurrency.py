"""Many at once: processes and tasks share a store, and every job has exactly one live lease."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from duetime.model.errors import LeaseLost
from duetime.model.job import STEP_JOBS, Counts, Event, Lease, Moved, State
from duetime.stores.base import Push, Pushed, Store
from duetime.stores.open import open_store
from tests.contract import contender
from tests.contract.conftest import SHARED_KINDS
from tests.contract.vocabulary import (
    QUEUE,
    ack_one,
    counts,
    give_back_one,
    given_leased,
    job,
    push,
    push_one,
    reap,
    replace_one,
    reserve_one,
    reserve_some,
    walk,
)

PROCESSES = 4
RACE = contender.QUEUE

shared = pytest.mark.parametrize("store_kind", SHARED_KINDS, indirect=True)


@pytest.fixture
async def shared_store(store_url: str) -> AsyncIterator[Store]:
    """On the store's own clock, which all processes share."""
    opened = await open_store(store_url)
    yield opened
    assert list(await opened.check()) == []
    await opened.close()


async def race(role: str, url: str, processes: int) -> list[Any]:
    """Run the role in that many processes, started together; answers what each printed."""
    started = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(contender.__file__)),
            role,
            url,
            f"p{n}",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for n in range(processes)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
        outputs = await asyncio.gather(*[process.communicate(b"go\n") for process in started])
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert [process.returncode for process in started] == [0] * processes
    return [json.loads(out) for out, _ in outputs]


@shared
@pytest.mark.timeout(300)
async def test_processes_that_reserve_share_the_jobs_without_overlap(
    shared_store: Store, store_url: str, scale: int
) -> None:
    # Given many ready jobs
    batches = [[f"{batch}-{n:03}" for n in range(250)] for batch in range(4 * scale)]
    for ids in batches:
        await push(shared_store, *[job(job_id) for job_id in ids], queue=RACE)
    everything = {job_id for ids in batches for job_id in ids}

    # When several processes reserve until nothing is left
    grabbed = await race("grab", store_url, PROCESSES)

    # Then each job went to exactly one of them, once, and its lease is good
    leases = [Lease(RACE, *lease) for each in grabbed for lease in each]
    assert Counter(lease.id for lease in leases) == Counter(everything)
    assert {lease.attempt for lease in leases} == {1}
    assert await counts(shared_store, RACE) == Counts(leased=len(everything))
    assert list(await shared_store.check()) == []
    for start in range(0, len(leases), STEP_JOBS):
        batch = leases[start : start + STEP_JOBS]
        answers = await shared_store.ack(RACE, batch)
        assert list(answers) == [Moved(Event.ACKED, lease.id, lease.born, 1) for lease in batch]
    assert await counts(shared_store, RACE) == Counts()


@shared
@pytest.mark.timeout(300)
async def test_processes_that_push_reserve_release_and_ack_lose_nothing(shared_store: Store, store_url: str) -> None:
    results = await race("work", store_url, PROCESSES)

    pushed = [job_id for result in results for job_id in result["pushed"]]
    acked = [job_id for result in results for job_id in result["acked"]]
    assert len(pushed) == len(set(pushed)) == PROCESSES * 50
    assert Counter(acked) == Counter(pushed)
    assert await counts(shared_store, RACE) == Counts()


@shared
@pytest.mark.timeout(300)
async def test_of_processes_that_push_the_same_ids_one_is_accepted(shared_store: Store, store_url: str) -> None:
    accepted = await race("fill", store_url, PROCESSES)

    assert sum(accepted) == STEP_JOBS
    assert await counts(shared_store, RACE) == Counts(ready=STEP_JOBS)


# --- tasks in one process


async def test_tasks_that_reserve_share_the_jobs_without_overlap(store: Store) -> None:
    ids = [f"{n:03}" for n in range(200)]
    await push(store, *[job(job_id) for job_id in ids])

    async def grab() -> list[Lease]:
        leases: list[Lease] = []
        while deliveries := await reserve_some(store, 3):
            leases += [delivery.lease for delivery in deliveries]
        return leases

    leases = [lease for each in await asyncio.gather(*[grab() for _ in range(20)]) for lease in each]

    assert sorted(lease.id for lease in leases) == ids
    assert await counts(store) == Counts(leased=200)
    assert list(await store.check()) == []


async def test_tasks_that_push_reserve_release_and_ack_lose_nothing(store: Store) -> None:
    acked: list[str] = []

    async def produce(name: int) -> None:
        for n in range(10):
            await push_one(store, f"{name}-{n}", tries=3)

    async def consume() -> None:
        while len(acked) < 100:
            for delivery in await reserve_some(store, 4):
                match delivery.lease.attempt:
                    case 1:
                        await store.release(delivery.lease, 0, "once more")
                    case 2:
                        await give_back_one(store, delivery.lease)
                    case _:
                        assert await ack_one(store, delivery.lease) is not None
                        acked.append(delivery.lease.id)
            await asyncio.sleep(0)

    async with asyncio.timeout(50):
        await asyncio.gather(*[produce(n) for n in range(10)], *[consume() for _ in range(10)])

    assert sorted(acked) == sorted(f"{name}-{n}" for name in range(10) for n in range(10))
    assert await counts(store) == Counts()
    assert list(await store.check()) == []


async def test_of_many_acks_of_one_lease_one_counts(store: Store) -> None:
    lease = await given_leased(store, "a")

    answers = await asyncio.gather(*[store.ack(QUEUE, [lease]) for _ in range(20)])

    moved = [answer for [answer] in answers if answer is not None]
    assert moved == [Moved(Event.ACKED, "a", lease.born, 1)]


async def test_of_ack_and_release_and_kill_of_one_lease_one_wins(store: Store) -> None:
    for n in range(10):
        lease = await given_leased(store, f"{n}")

        answers = await asyncio.gather(
            store.release(lease, 3_600_000),
            store.ack(QUEUE, [lease]),
            store.kill(lease),
            give_back_one(store, lease),
            store.cancel(QUEUE, [lease.id]),
            return_exceptions=True,
        )

        unexpected = [each for each in answers if isinstance(each, BaseException) and not isinstance(each, LeaseLost)]
        assert unexpected == []
        held = await counts(store)
        assert held.leased == 0
        await store.purge(QUEUE, list(State), limit=10)


async def test_of_many_pushes_of_one_id_one_is_accepted(store: Store) -> None:
    answers = await asyncio.gather(*[store.push(QUEUE, [Push([job("a", str(n).encode())])]) for n in range(20)])

    events = Counter(moved.event for [answer] in answers if isinstance(answer, Pushed) for moved in answer.jobs)
    assert events == {Event.ACCEPTED: 1, Event.KEPT: 19}
    assert await counts(store) == Counts(ready=1)


async def test_of_many_replacements_the_last_one_is_there(store: Store) -> None:
    pushed = await asyncio.gather(*[replace_one(store, "a", str(n).encode()) for n in range(20)])

    borns = [moved.born for moved in pushed]
    assert len(set(borns)) == 20
    last = max(range(20), key=lambda n: borns[n])
    [there] = await walk(store, State.READY)
    assert (there.body, there.born) == (str(last).encode(), borns[last])


async def test_many_reapers_take_each_lease_back_once(store: Store, clock: Any) -> None:
    await push(store, *[job(f"{n:03}") for n in range(100)])
    await reserve_some(store, 100, ttr="1s")
    clock.advance("1s")

    reaped = await asyncio.gather(*[store.reap(limit=10) for _ in range(20)])

    ids = sorted(moved.id for each in reaped for jobs in each.moved.values() for moved in jobs)
    assert ids == [f"{n:03}" for n in range(100)]
    assert await reap(store) == []
    assert await counts(store) == Counts(ready=100)


async def test_a_cancelled_reserve_leaves_the_store_sound(store: Store) -> None:
    await push(store, *[job(f"{n:03}") for n in range(50)])

    for _ in range(20):
        task = asyncio.create_task(reserve_some(store, 2))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    # Then the store answers, and each job is in one place, whether or not its delivery was heard of
    held = await counts(store)
    assert (held.ready + held.leased, held.total) == (50, 50)
    if held.ready:
        assert (await reserve_one(store)).lease.attempt == 1
    assert list(await store.check()) == []
