"""extend: the lease ends ttr from now, later or sooner than before."""

from duetime.model.clock import MAX_DURATION, ManualClock
from duetime.model.job import Counts, Event, Moved
from duetime.stores.base import Store
from tests.contract.vocabulary import (
    NOW,
    ack_one,
    counts,
    found,
    given_leased,
    push_one,
    reap,
    reserve_one,
)


async def test_a_renewed_lease_ends_later(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "a", ttr="10s")
    before = await found(store, "a")
    clock.advance("9s")

    assert await store.extend(lease, 10_000) == NOW + 19_000

    after = await found(store, "a")
    assert (before.lease_until, after.lease_until) == (NOW + 10_000, NOW + 19_000)
    assert (after.attempt, after.used, after.due_at) == (before.attempt, before.used, before.due_at)
    clock.set(NOW + 18_999)
    assert await reap(store) == []
    clock.set(NOW + 19_000)
    assert await reap(store) == [Moved(Event.LEASE_EXPIRED, "a", NOW, 1, NOW + 19_000)]


async def test_a_lease_can_be_cut_short(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "a", ttr="1h")

    assert await store.extend(lease, 10) == NOW + 10

    clock.advance("10ms")
    assert await reap(store) == [Moved(Event.LEASE_EXPIRED, "a", NOW, 1, NOW + 10)]


async def test_extending_twice_in_a_millisecond_changes_nothing_more(store: Store) -> None:
    lease = await given_leased(store, "a")

    assert [await store.extend(lease, 5000) for _ in range(3)] == [NOW + 5000] * 3
    assert await counts(store) == Counts(leased=1)


async def test_a_lease_that_ran_out_can_be_renewed_until_the_reaper_comes(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "a", ttr="1s")
    clock.advance("5s")

    assert await store.extend(lease, 1000) == NOW + 6000
    assert await reap(store) == []
    assert await ack_one(store, lease) == Moved(Event.ACKED, "a", NOW, 1)


async def test_a_lease_outlives_the_ttl(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "a", ttl="1s")
    clock.advance("5s")

    assert await store.extend(lease, 60_000) == NOW + 65_000
    assert await counts(store) == Counts(leased=1)


async def test_the_longest_lease(store: Store) -> None:
    lease = await given_leased(store, "a")

    assert await store.extend(lease, MAX_DURATION) == NOW + MAX_DURATION


async def test_other_leases_stay_as_they_are(store: Store) -> None:
    first = await given_leased(store, "a", ttr="10s")
    await push_one(store, "b")
    await reserve_one(store, ttr="20s")

    await store.extend(first, 30_000)

    assert (await found(store, "b")).lease_until == NOW + 20_000
