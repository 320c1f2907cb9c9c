"""wakeups: who waits hears of a job that is now the first, and of nothing else that matters less.

A wake is a hint, so the tests say what must be heard and what must not; to know that something was not heard, they
wait for a later wake that must be.
"""

from collections.abc import AsyncIterator

import pytest

from duetime.model.clock import ManualClock
from duetime.stores.base import Store, Wake
from duetime.stores.open import open_store
from tests.contract.conftest import SHARED_KINDS
from tests.contract.vocabulary import (
    HIGH,
    LOW,
    NOW,
    OTHER,
    QUEUE,
    Wakes,
    give_back_one,
    given_dead,
    given_leased,
    job,
    listening,
    pause,
    push,
    push_one,
    reap,
    replace_one,
    reschedule_one,
    reserve_one,
    reserve_some,
    resume,
)


async def heard_of(store: Store, wakes: Wakes) -> set[int]:
    """The due times announced for QUEUE so far, found by waiting for a wake that is sure to come."""
    await push_one(store, "marker", due_at=1, queue=OTHER)
    seen = await wakes.until(Wake(OTHER, 1))
    return {wake.due_at for wake in seen if wake.queue == QUEUE}


async def hear_out(store: Store, wakes: Wakes) -> None:
    """Let what was announced before pass: an announcement may come after the answer of the verb that caused it."""
    await push_one(store, "earlier marker", due_at=2, queue=OTHER)
    await wakes.until(Wake(OTHER, 2))


async def test_the_first_wake_means_check_every_queue(store: Store) -> None:
    wakeups = store.wakeups()

    first = await anext(aiter(wakeups))

    assert first == Wake()
    await wakeups.aclose()  # type: ignore[attr-defined]


async def test_a_push_wakes(store: Store) -> None:
    async with listening(store) as wakes:
        await push_one(store, "a", delay="5s")

        await wakes.until(Wake(QUEUE, NOW + 5000))


async def test_only_the_earliest_wakes(store: Store) -> None:
    async with listening(store) as wakes:
        await push_one(store, "a", delay="5s")
        await push_one(store, "later", delay="9s", priority=HIGH)
        await push_one(store, "sooner", delay="2s", priority=LOW)
        await push_one(store, "between", delay="3s")

        assert await heard_of(store, wakes) == {NOW + 5000, NOW + 2000}


async def test_a_request_wakes_for_its_earliest_job(store: Store) -> None:
    async with listening(store) as wakes:
        await push(store, job("a", delay="5s"), job("b", delay="2s"), job("c", delay="9s"))

        assert NOW + 2000 in await heard_of(store, wakes)


async def test_a_job_that_is_kept_wakes_nobody(store: Store) -> None:
    await push_one(store, "a", delay="5s")
    async with listening(store) as wakes:
        await hear_out(store, wakes)
        await push_one(store, "a", delay="1s")

        assert await heard_of(store, wakes) == set()


async def test_a_replacement_that_comes_sooner_wakes(store: Store) -> None:
    await push_one(store, "a", delay="5s")
    async with listening(store) as wakes:
        await replace_one(store, "a", delay="1s")

        await wakes.until(Wake(QUEUE, NOW + 1000))


async def test_a_release_wakes(store: Store) -> None:
    lease = await given_leased(store, "a")
    async with listening(store) as wakes:
        await store.release(lease, 500)

        await wakes.until(Wake(QUEUE, NOW + 500))


async def test_a_release_behind_others_wakes_no_consumer(store: Store) -> None:
    lease = await given_leased(store, "a")
    await push_one(store, "b")
    async with listening(store) as wakes:
        await hear_out(store, wakes)
        await store.release(lease, 500)

        assert await heard_of(store, wakes) == set()


async def test_giving_back_wakes(store: Store) -> None:
    lease = await given_leased(store, "a", due_at=NOW - 7)
    await push_one(store, "b")
    async with listening(store) as wakes:
        await give_back_one(store, lease)

        await wakes.until(Wake(QUEUE, NOW - 7))


async def test_a_lease_that_ran_out_wakes(store: Store, clock: ManualClock) -> None:
    await given_leased(store, "a", ttr="1s")
    clock.advance("1s")
    async with listening(store) as wakes:
        await reap(store)

        await wakes.until(Wake(QUEUE, NOW + 1000))


async def test_a_respawn_wakes(store: Store) -> None:
    await given_dead(store, "a")
    async with listening(store) as wakes:
        await store.respawn(QUEUE, ids=["a"])

        await wakes.until(Wake(QUEUE, NOW))


async def test_bringing_a_job_forward_wakes(store: Store) -> None:
    await push(store, job("a", delay="1h"), job("b", delay="5s"))
    async with listening(store) as wakes:
        await reschedule_one(store, "a", delay_ms=1000)

        await wakes.until(Wake(QUEUE, NOW + 1000))


async def test_a_resume_wakes(store: Store) -> None:
    await push_one(store, "a", delay="5s")
    await pause(store)
    async with listening(store) as wakes:
        await resume(store)

        await wakes.until(Wake(QUEUE, NOW + 5000))


async def test_jobs_that_end_wake_no_consumer(store: Store) -> None:
    await push(store, *[job(job_id) for job_id in "abcd"])
    a, b, c, _ = [delivery.lease for delivery in await reserve_some(store)]
    async with listening(store) as wakes:
        await hear_out(store, wakes)
        await store.ack(QUEUE, [a])
        await store.kill(b)
        await store.extend(c, 5000)
        await store.cancel(QUEUE, ["d"])

        assert await heard_of(store, wakes) == set()


async def test_every_listener_gets_the_wake(store: Store) -> None:
    async with listening(store) as one, listening(store) as other:
        await push_one(store, "a", delay="5s")

        await one.until(Wake(QUEUE, NOW + 5000))
        await other.until(Wake(QUEUE, NOW + 5000))


async def test_a_listener_that_ended_does_not_disturb_others(store: Store) -> None:
    async with listening(store):
        pass
    async with listening(store) as wakes:
        await push_one(store, "a")

        await wakes.until(Wake(QUEUE, NOW))
    assert (await reserve_one(store)).lease.id == "a"


@pytest.fixture
async def neighbour(store: Store, store_url: str, clock: ManualClock) -> AsyncIterator[Store]:
    """A second opening of the same store, as another process would have."""
    opened = await open_store(store_url, clock=clock)
    yield opened
    await opened.close()


@pytest.mark.parametrize("store_kind", SHARED_KINDS, indirect=True)
async def test_a_push_by_another_process_wakes(store: Store, neighbour: Store) -> None:
    async with listening(neighbour) as wakes:
        await push_one(store, "a", delay="5s")

        await wakes.until(Wake(QUEUE, NOW + 5000))


@pytest.mark.parametrize("store_kind", SHARED_KINDS, indirect=True)
async def test_a_resume_by_another_process_wakes(store: Store, neighbour: Store) -> None:
    await push_one(store, "a")
    await pause(neighbour)
    async with listening(store) as wakes:
        await resume(neighbour)

        await wakes.until(Wake(QUEUE, NOW))
