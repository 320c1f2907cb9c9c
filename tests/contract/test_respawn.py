"""respawn: dead jobs come back with new tries and a new ttl, under the same born."""

import pytest

from duetime.model.clock import ManualClock
from duetime.model.job import STEP_JOBS, Counts, Event, Moved, Priority
from duetime.stores.base import Store
from tests.contract.vocabulary import (
    HIGH,
    NOW,
    QUEUE,
    counts,
    found,
    get_one,
    given_dead,
    given_leased,
    job,
    pause,
    push,
    push_one,
    reap,
    reserve_one,
    reserve_some,
    reserved_ids,
    shown_job,
    states,
)


async def test_a_respawned_job_is_ready_now(store: Store, clock: ManualClock) -> None:
    await given_dead(store, "a", body=b"body", priority=HIGH, attributes={"trace": "1"}, error="it failed", ttl="1s")
    clock.advance("10s")

    moved = list(await store.respawn(QUEUE, ids=["a"]))

    now = NOW + 10_000
    assert moved == [Moved(Event.RESPAWNED, "a", NOW, 1, due_at=now)]
    assert await counts(store) == Counts(ready=1)
    assert await get_one(store, "a") == shown_job(
        body=b"body", due_at=now, priority=Priority.HIGH, attempt=1, attributes={"trace": "1"}
    )
    delivery = await reserve_one(store)
    assert (delivery.lease.attempt, delivery.used, delivery.error) == (2, 1, "")


async def test_it_may_get_a_new_ttl_and_new_tries(store: Store, clock: ManualClock) -> None:
    await given_dead(store, "a", ttl="1h", tries=1)
    clock.advance("10s")

    await store.respawn(QUEUE, ids=["a"], ttl_ms=500, tries=2)

    job = await found(store, "a")
    assert (job.expires_at, job.tries) == (NOW + 10_500, 2)
    moved = await store.release((await reserve_one(store)).lease, 0)
    assert moved.event is Event.RELEASED
    clock.advance("501ms")
    assert await counts(store) == Counts(expired=1)


async def test_zero_tries_are_unlimited_ones(store: Store) -> None:
    await given_dead(store, "a", tries=1)

    await store.respawn(QUEUE, ids=["a"], tries=0)

    assert (await found(store, "a")).tries == 0
    assert (await store.release((await reserve_one(store)).lease, 0)).event is Event.RELEASED


async def test_without_a_ttl_it_never_expires(store: Store, clock: ManualClock) -> None:
    await given_dead(store, "a", ttl="1s")
    await store.respawn(QUEUE, ids=["a"])

    clock.advance("1000d")

    assert await reap(store) == []
    assert await counts(store) == Counts(ready=1)


async def test_its_tries_count_from_zero_and_it_can_die_again(store: Store) -> None:
    await given_dead(store, "a", tries=2)
    await store.respawn(QUEUE, ids=["a"])

    first = await store.release((await reserve_one(store)).lease, 0)
    second = await store.release((await reserve_one(store)).lease, 0)

    assert first == Moved(Event.RELEASED, "a", NOW, 2, NOW)
    assert second == Moved(Event.DEAD, "a", NOW, 3, reason="tries")


async def test_ids_that_are_not_dead_are_passed_over(store: Store) -> None:
    await given_dead(store, "dead")
    await given_leased(store, "leased")
    await push(store, job("ready"), job("delayed", delay="1h"))

    moved = await store.respawn(QUEUE, ids=["ready", "none", "dead", "leased", "delayed", "dead"])

    assert list(moved) == [Moved(Event.RESPAWNED, "dead", NOW, 1, due_at=NOW)]
    assert await states(store) == {"dead": "ready", "leased": "leased", "ready": "ready", "delayed": "delayed"}


async def test_ids_are_answered_in_their_order(store: Store) -> None:
    for job_id in "abc":
        await given_dead(store, job_id)

    assert [moved.id for moved in await store.respawn(QUEUE, ids=["c", "a"])] == ["c", "a"]
    assert await states(store) == {"a": "ready", "b": "dead", "c": "ready"}


async def test_the_longest_dead_come_first(store: Store, clock: ManualClock) -> None:
    for job_id in ("z", "c", "b", "a"):
        await given_dead(store, job_id)
        if job_id == "z":
            clock.advance("1s")

    assert [moved.id for moved in await store.respawn(QUEUE)] == ["z"]
    assert [moved.id for moved in await store.respawn(QUEUE, limit=2)] == ["a", "b"]
    assert [moved.id for moved in await store.respawn(QUEUE, limit=100)] == ["c"]
    assert list(await store.respawn(QUEUE, limit=100)) == []
    assert await counts(store) == Counts(ready=4)


@pytest.mark.store_only
async def test_a_limit_of_nothing(store: Store) -> None:
    await given_dead(store, "a")

    assert list(await store.respawn(QUEUE, limit=0)) == []


@pytest.mark.store_only
async def test_a_call_ends_at_its_bound(store: Store) -> None:
    for batch in ("a", "b"):
        await push(store, *[job(f"{batch}{n:03}") for n in range(300)])
        for delivery in await reserve_some(store):
            await store.kill(delivery.lease)
    ids = [f"{batch}{n:03}" for batch in ("a", "b") for n in range(300)]

    first = [moved.id for moved in await store.respawn(QUEUE, limit=10_000)]
    second = [moved.id for moved in await store.respawn(QUEUE, limit=10_000)]

    assert (first, second) == (ids[:STEP_JOBS], ids[STEP_JOBS:])


async def test_no_such_queue(store: Store) -> None:
    assert list(await store.respawn(QUEUE, limit=5)) == []
    assert list(await store.respawn(QUEUE, ids=["a"])) == []
    assert list(await store.queues()) == []


async def test_a_paused_queue_respawns(store: Store) -> None:
    await given_dead(store, "a")
    await pause(store)

    assert len(await store.respawn(QUEUE, ids=["a"])) == 1
    assert await counts(store) == Counts(ready=1)


async def test_it_goes_behind_those_that_were_due_before(store: Store, clock: ManualClock) -> None:
    await given_dead(store, "a")
    await push_one(store, "z")
    clock.advance("1ms")

    await store.respawn(QUEUE, ids=["a"])

    assert await reserved_ids(store) == ["z", "a"]
