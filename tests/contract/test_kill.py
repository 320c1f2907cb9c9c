"""kill: to the dead letters at once, whatever tries and ttl say."""

from duetime.model.clock import ManualClock
from duetime.model.job import MAX_ERROR, Counts, Event, Moved, Priority, State
from duetime.stores.base import Store
from tests.contract.vocabulary import (
    HIGH,
    NOW,
    counts,
    found,
    get_one,
    given_leased,
    reap,
    reserve_one,
    reserved_ids,
    shown_job,
)


async def test_a_killed_job_is_dead(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "a", body=b"body", ttl="1h", priority=HIGH, attributes={"trace": "1"})
    clock.advance("5s")

    moved = await store.kill(lease, "poison")

    assert moved == Moved(Event.DEAD, "a", NOW, 1, reason="killed")
    assert await counts(store) == Counts(dead=1)
    assert await get_one(store, "a") == shown_job(
        state=State.DEAD,
        body=b"body",
        priority=Priority.HIGH,
        used=1,
        attempt=1,
        dead_at=NOW + 5000,
        reason="killed",
        error="poison",
        attributes={"trace": "1"},
    )


async def test_a_dead_job_is_not_delivered(store: Store, clock: ManualClock) -> None:
    await store.kill(await given_leased(store, "a"))

    clock.advance("100d")

    assert await reserved_ids(store) == []
    assert await reap(store) == []


async def test_a_dead_job_never_expires(store: Store, clock: ManualClock) -> None:
    await store.kill(await given_leased(store, "a", ttl="1s"))

    clock.advance("1h")

    assert await reap(store) == []
    assert await counts(store) == Counts(dead=1)
    assert (await found(store, "a")).expires_at == 0


async def test_killed_after_its_ttl_it_is_dead_and_not_expired(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "a", ttl="1s")
    clock.advance("5s")

    assert await store.kill(lease) == Moved(Event.DEAD, "a", NOW, 1, reason="killed")
    assert await counts(store) == Counts(dead=1)


async def test_killed_with_its_tries_used_up_the_reason_is_killed(store: Store) -> None:
    lease = await given_leased(store, "a", tries=1)

    assert await store.kill(lease) == Moved(Event.DEAD, "a", NOW, 1, reason="killed")


async def test_without_an_error_the_last_one_stays(store: Store) -> None:
    await store.release(await given_leased(store, "a"), 0, "before")

    await store.kill((await reserve_one(store)).lease)

    assert (await found(store, "a")).error == "before"


async def test_the_error_may_be_long(store: Store) -> None:
    await store.kill(await given_leased(store, "a"), "é" * (MAX_ERROR // 2))

    assert (await found(store, "a")).error == "é" * (MAX_ERROR // 2)
