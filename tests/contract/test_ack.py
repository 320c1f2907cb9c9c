"""ack: finished jobs are gone; an older lease finishes nothing."""

from duetime.model.clock import ManualClock
from duetime.model.errors import LeaseLost
from duetime.model.job import Counts, Event, Lease, Moved
from duetime.stores.base import Store
from tests.contract.vocabulary import (
    NOW,
    OTHER,
    QUEUE,
    ack_one,
    counts,
    get_one,
    given_leased,
    job,
    push,
    push_one,
    reap,
    reserve_some,
    states,
)


async def test_an_acked_job_is_gone(store: Store) -> None:
    lease = await given_leased(store, "a", attributes={"trace": "1"})

    assert await ack_one(store, lease) == Moved(Event.ACKED, "a", NOW, 1)
    assert await get_one(store, "a") is None
    assert await states(store) == {}
    assert await counts(store) == Counts()


async def test_the_same_lease_twice_in_a_call_acks_once(store: Store) -> None:
    lease = await given_leased(store, "a")

    assert list(await store.ack(QUEUE, [lease, lease])) == [Moved(Event.ACKED, "a", NOW, 1), None]


async def test_a_lease_that_never_was_is_lost_or_gone(store: Store) -> None:
    await push_one(store, "a")

    [waiting, absent] = await store.ack(QUEUE, [Lease(QUEUE, "a", NOW, 1), Lease(QUEUE, "b", NOW, 1)])

    assert isinstance(waiting, LeaseLost)
    assert waiting.fields["id"] == "a"
    assert absent is None
    assert await counts(store) == Counts(ready=1)


async def test_all_four_of_a_lease_must_match(store: Store) -> None:
    lease = await given_leased(store, "a")
    await push_one(store, "a", queue=OTHER)

    wrong = [
        Lease(QUEUE, "a", lease.born + 1, 1),
        Lease(QUEUE, "a", lease.born - 1, 1),
        Lease(QUEUE, "a", lease.born, 2),
    ]

    assert [type(answer) for answer in await store.ack(QUEUE, wrong)] == [LeaseLost] * 3
    [other] = await store.ack(OTHER, [Lease(OTHER, "a", lease.born, 1)])
    assert isinstance(other, LeaseLost)
    assert (await counts(store), await counts(store, OTHER)) == (Counts(leased=1), Counts(ready=1))
    assert await ack_one(store, lease) == Moved(Event.ACKED, "a", NOW, 1)


async def test_a_lost_lease_does_not_fail_its_neighbours(store: Store) -> None:
    await push(store, job("a"), job("b"), job("c"))
    [a, b, c] = [delivery.lease for delivery in await reserve_some(store)]
    await store.release(b, 0)

    answers = await store.ack(QUEUE, [a, b, Lease(QUEUE, "never", NOW, 1), c])

    assert answers[0] == Moved(Event.ACKED, "a", NOW, 1)
    assert isinstance(answers[1], LeaseLost)
    assert answers[2] is None
    assert answers[3] == Moved(Event.ACKED, "c", NOW, 1)
    assert await states(store) == {"b": "ready"}


async def test_a_lease_that_ran_out_is_held_until_the_reaper_comes(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "a", ttr="1s")
    clock.advance("1h")

    assert await ack_one(store, lease) == Moved(Event.ACKED, "a", NOW, 1)
    assert await reap(store) == []


async def test_a_lease_that_was_taken_back_is_lost(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "a", ttr="1s")
    clock.advance("1s")
    await reap(store)

    [answer] = await store.ack(QUEUE, [lease])

    assert isinstance(answer, LeaseLost)
    assert await counts(store) == Counts(ready=1)


async def test_a_job_leased_past_its_ttl_can_be_acked(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "a", ttl="1s")
    clock.advance("5s")

    assert await ack_one(store, lease) == Moved(Event.ACKED, "a", NOW, 1)
    assert await counts(store) == Counts()


async def test_500_leases_in_one_call(store: Store) -> None:
    await push(store, *[job(f"{n:03}") for n in range(500)])
    leases = [delivery.lease for delivery in await reserve_some(store)]

    assert list(await store.ack(QUEUE, leases)) == [Moved(Event.ACKED, f"{n:03}", NOW, 1) for n in range(500)]
    assert await counts(store) == Counts()
