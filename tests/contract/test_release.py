"""release: the job waits again, dies when its tries are used up, or expires when its time is over."""

from collections.abc import Awaitable

import pytest

from duetime.model.clock import ManualClock
from duetime.model.errors import LeaseLost
from duetime.model.job import MAX_ERROR, Counts, Event, Lease, Moved, Priority, State
from duetime.stores.base import Store
from tests.contract.vocabulary import (
    HIGH,
    NOW,
    counts,
    found,
    get_one,
    give_back_one,
    given_leased,
    keep_expired,
    push_one,
    reap,
    reserve_one,
    reserved_ids,
    shown_job,
    states,
)


async def test_a_released_job_waits_for_its_delay(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "a", body=b"body", priority=HIGH, attributes={"trace": "1"})
    clock.advance("1s")

    moved = await store.release(lease, 5000)

    due_at = NOW + 6000
    assert moved == Moved(Event.RELEASED, "a", NOW, 1, due_at)
    assert await counts(store) == Counts(delayed=1)
    assert await get_one(store, "a") == shown_job(
        state=State.DELAYED,
        body=b"body",
        due_at=due_at,
        priority=Priority.HIGH,
        used=1,
        attempt=1,
        attributes={"trace": "1"},
    )

    clock.set(due_at - 1)
    assert await reserved_ids(store) == []
    clock.set(due_at)
    delivery = await reserve_one(store)
    assert (delivery.lease.attempt, delivery.used, delivery.due_at) == (2, 2, due_at)


async def test_without_a_delay_it_is_ready_immediately(store: Store) -> None:
    lease = await given_leased(store, "a")

    assert await store.release(lease, 0) == Moved(Event.RELEASED, "a", NOW, 1, NOW)
    assert await counts(store) == Counts(ready=1)


async def test_a_lease_that_ran_out_can_be_released_until_the_reaper_comes(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "a", ttr="1s")
    clock.advance("5s")

    assert await store.release(lease, 0) == Moved(Event.RELEASED, "a", NOW, 1, NOW + 5000)
    assert await reap(store) == []


# --- tries


@pytest.mark.parametrize("tries", [1, 2, 3])
async def test_when_its_tries_are_used_up_it_is_dead(store: Store, clock: ManualClock, tries: int) -> None:
    await push_one(store, "a", tries=tries)
    for _ in range(tries - 1):
        moved = await store.release((await reserve_one(store)).lease, 0)
        assert moved.event is Event.RELEASED
    lease = (await reserve_one(store)).lease
    clock.advance("1s")

    moved = await store.release(lease, 5000, "the last failure")

    assert moved == Moved(Event.DEAD, "a", NOW, tries, reason="tries")
    assert await counts(store) == Counts(dead=1)
    dead = await found(store, "a")
    assert (dead.state, dead.reason, dead.dead_at, dead.error) == (State.DEAD, "tries", NOW + 1000, "the last failure")
    assert (dead.attempt, dead.used, dead.lease_until) == (tries, tries, 0)


# --- ttl, of a job that is released or given back


def end(store: Store, verb: str, lease: Lease, delay_ms: int = 0) -> Awaitable[Moved]:
    if verb == "release":
        return store.release(lease, delay_ms, "too late")
    return give_back_one(store, lease, delay_ms or None)


@pytest.mark.parametrize("verb", ["release", "give_back"])
async def test_after_its_ttl_it_expires(store: Store, clock: ManualClock, verb: str) -> None:
    lease = await given_leased(store, "a", ttl="1s")
    clock.advance("1001ms")

    assert await end(store, verb, lease) == Moved(Event.EXPIRED, "a", NOW, 1)
    assert await counts(store) == Counts(expired=1)
    assert await get_one(store, "a") is None


@pytest.mark.parametrize("verb", ["release", "give_back"])
async def test_at_the_last_moment_of_its_ttl_it_waits(store: Store, clock: ManualClock, verb: str) -> None:
    lease = await given_leased(store, "a", ttl="1s")
    clock.advance("1s")

    event, due_at = (Event.RELEASED, NOW + 1000) if verb == "release" else (Event.GIVEN_BACK, NOW)
    assert await end(store, verb, lease) == Moved(event, "a", NOW, 1, due_at)
    assert await counts(store) == Counts(ready=1)
    assert (await found(store, "a")).expires_at == NOW + 1000

    clock.advance("1ms")
    assert await counts(store) == Counts(expired=1)


@pytest.mark.parametrize("verb", ["release", "give_back"])
async def test_released_past_its_ttl_it_expires_immediately(store: Store, verb: str) -> None:
    lease = await given_leased(store, "a", ttl="1s")

    assert await end(store, verb, lease, 1001) == Moved(Event.EXPIRED, "a", NOW, 1)
    assert await counts(store) == Counts(expired=1)


@pytest.mark.parametrize("verb", ["release", "give_back"])
async def test_an_expired_one_goes_to_the_dead_if_the_queue_says_so(
    store: Store, clock: ManualClock, verb: str
) -> None:
    await keep_expired(store)
    lease = await given_leased(store, "a", ttl="1s")
    clock.advance("1001ms")

    assert await end(store, verb, lease) == Moved(Event.DEAD, "a", NOW, 1, reason="expired")
    assert await counts(store) == Counts(dead=1, expired=1)
    dead = await found(store, "a")
    assert (dead.reason, dead.attempt, dead.expires_at, dead.dead_at) == ("expired", 1, 0, NOW + 1001)
    assert (dead.used, dead.error) == ((1, "too late") if verb == "release" else (0, ""))


async def test_released_to_the_last_moment_of_its_ttl_it_waits(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "a", ttl="1s")

    assert await store.release(lease, 1000) == Moved(Event.RELEASED, "a", NOW, 1, NOW + 1000)
    clock.advance("1s")
    assert await reserved_ids(store) == ["a"]


async def test_a_released_job_still_expires_on_time(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "a", ttl="10s")
    await store.release(lease, 5000)
    clock.advance("10001ms")

    assert await counts(store) == Counts(expired=1)
    assert await reserved_ids(store) == []


async def test_tries_win_over_expired(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "a", ttl="1s", tries=1)
    clock.advance("5s")

    assert await store.release(lease, 0) == Moved(Event.DEAD, "a", NOW, 1, reason="tries")
    assert await counts(store) == Counts(dead=1)


async def test_tries_win_over_a_release_past_the_ttl(store: Store) -> None:
    lease = await given_leased(store, "a", ttl="1s", tries=1)

    assert await store.release(lease, 5000) == Moved(Event.DEAD, "a", NOW, 1, reason="tries")
    assert await counts(store) == Counts(dead=1)


# --- the last error


async def test_the_last_error_is_kept(store: Store) -> None:
    lease = await given_leased(store, "a")
    await store.release(lease, 0, "first")
    assert (await found(store, "a")).error == "first"

    lease = (await reserve_one(store)).lease
    await store.release(lease, 0, "second")
    assert (await found(store, "a")).error == "second"


async def test_an_empty_error_keeps_the_one_before(store: Store) -> None:
    await store.release(await given_leased(store, "a"), 0, "first")

    await store.release((await reserve_one(store)).lease, 0)

    assert (await found(store, "a")).error == "first"


@pytest.mark.parametrize("error", ["x" * MAX_ERROR, "é\n\t\"'\\ 日本 🙂", "0", " "])
async def test_an_error_is_shown_as_it_was_given(store: Store, error: str) -> None:
    lease = await given_leased(store, "a", attributes={"kept": "yes"})

    await store.release(lease, 0, error)

    job = await found(store, "a")
    assert (job.error, job.attributes) == (error, {"kept": "yes"})
    assert (await reserve_one(store)).error == error


async def test_a_refused_release_leaves_the_error_alone(store: Store) -> None:
    lease = await given_leased(store, "a")
    await store.release(lease, 0, "first")

    with pytest.raises(LeaseLost):
        await store.release(lease, 0, "from an old lease")

    assert (await found(store, "a")).error == "first"


async def test_other_jobs_stay_where_they_are(store: Store) -> None:
    lease = await given_leased(store, "a")
    await push_one(store, "b")
    await push_one(store, "c", delay="1h")

    await store.release(lease, 1000)

    assert await states(store) == {"a": "delayed", "b": "ready", "c": "delayed"}
