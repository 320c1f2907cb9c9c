"""give_back: a delivery that never reached its consumer is undone, except that its number stays used."""

from duetime.model.clock import ManualClock
from duetime.model.job import Counts, Event, Moved, Priority
from duetime.stores.base import Store
from tests.contract.vocabulary import (
    LOW,
    NOW,
    counts,
    found,
    get_one,
    given_leased,
    push_one,
    reserve_one,
    reserved_ids,
    shown_job,
)


async def test_it_restores_the_try_and_keeps_the_attempt(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "a", body=b"body", priority=LOW, attributes={"trace": "1"})
    clock.advance("5s")

    moved = await store.give_back(lease)

    assert moved == Moved(Event.GIVEN_BACK, "a", NOW, 1, NOW)
    assert await counts(store) == Counts(ready=1)
    assert await get_one(store, "a") == shown_job(
        body=b"body", priority=Priority.LOW, attempt=1, attributes={"trace": "1"}
    )
    delivery = await reserve_one(store)
    assert (delivery.lease.attempt, delivery.used) == (2, 1)


async def test_it_keeps_its_place_in_the_line(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "z", due_at=NOW - 5)
    await push_one(store, "a")
    clock.advance("1m")

    await store.give_back(lease)

    assert await reserved_ids(store) == ["z", "a"]


async def test_it_keeps_the_place_of_its_last_release(store: Store, clock: ManualClock) -> None:
    await store.release(await given_leased(store, "a"), 1000)
    clock.advance("5s")
    lease = (await reserve_one(store)).lease

    assert await store.give_back(lease) == Moved(Event.GIVEN_BACK, "a", NOW, 2, NOW + 1000)
    assert (await found(store, "a")).due_at == NOW + 1000


async def test_with_a_delay_it_is_due_after_that_and_has_its_try(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "a", due_at=NOW - 5, tries=1)
    clock.advance("1s")

    moved = await store.give_back(lease, 5000)

    assert moved == Moved(Event.GIVEN_BACK, "a", NOW, 1, NOW + 6000)
    assert await counts(store) == Counts(delayed=1)
    assert await reserved_ids(store) == []
    clock.advance("5s")
    delivery = await reserve_one(store)
    assert (delivery.lease.attempt, delivery.used, delivery.due_at) == (2, 1, NOW + 6000)


async def test_given_back_with_delay_0_it_is_last_of_the_due_jobs(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "a", due_at=NOW - 5)
    await push_one(store, "z")
    clock.advance("1m")

    assert await store.give_back(lease, 0) == Moved(Event.GIVEN_BACK, "a", NOW, 1, NOW + 60_000)
    assert await reserved_ids(store) == ["z", "a"]


async def test_it_never_kills(store: Store) -> None:
    await push_one(store, "a", tries=1)

    for attempt in range(1, 10):
        delivery = await reserve_one(store)
        assert (delivery.lease.attempt, delivery.used) == (attempt, 1)
        assert (await store.give_back(delivery.lease)).event is Event.GIVEN_BACK

    assert await counts(store) == Counts(ready=1)
    moved = await store.release((await reserve_one(store)).lease, 0)
    assert moved == Moved(Event.DEAD, "a", NOW, 10, reason="tries")


async def test_it_keeps_the_last_error(store: Store) -> None:
    await store.release(await given_leased(store, "a"), 0, "it failed")

    await store.give_back((await reserve_one(store)).lease)

    job = await found(store, "a")
    assert (job.error, job.used, job.attempt) == ("it failed", 1, 2)


async def test_with_its_tries_used_up_it_still_expires(store: Store, clock: ManualClock) -> None:
    # Given the only try, which giving back restores: so the job is not out of tries
    lease = await given_leased(store, "a", ttl="1s", tries=1)
    clock.advance("1001ms")

    assert await store.give_back(lease) == Moved(Event.EXPIRED, "a", NOW, 1)
