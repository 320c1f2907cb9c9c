"""give_back: a delivery that never reached its consumer is undone, except that its number stays used."""

from duetime.model.clock import ManualClock
from duetime.model.errors import LeaseLost
from duetime.model.job import Counts, Event, Lease, Moved, Priority, Totals
from duetime.stores.base import GiveBack, Store, Wake
from tests.contract.vocabulary import (
    HIGH,
    LOW,
    NOW,
    QUEUE,
    counts,
    found,
    get_one,
    give_back_one,
    given_leased,
    job,
    listening,
    push,
    push_one,
    reserve_one,
    reserve_some,
    reserved_ids,
    shown_job,
    states,
    value,
)


async def test_it_restores_the_try_and_keeps_the_attempt(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "a", body=b"body", priority=LOW, attributes={"trace": "1"})
    clock.advance("5s")

    moved = await give_back_one(store, lease)

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

    await give_back_one(store, lease)

    assert await reserved_ids(store) == ["z", "a"]


async def test_it_keeps_the_place_of_its_last_release(store: Store, clock: ManualClock) -> None:
    await store.release(await given_leased(store, "a"), 1000)
    clock.advance("5s")
    lease = (await reserve_one(store)).lease

    assert await give_back_one(store, lease) == Moved(Event.GIVEN_BACK, "a", NOW, 2, NOW + 1000)
    assert (await found(store, "a")).due_at == NOW + 1000


async def test_with_a_delay_it_is_due_after_that_and_has_its_try(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "a", due_at=NOW - 5, tries=1)
    clock.advance("1s")

    moved = await give_back_one(store, lease, 5000)

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

    assert await give_back_one(store, lease, 0) == Moved(Event.GIVEN_BACK, "a", NOW, 1, NOW + 60_000)
    assert await reserved_ids(store) == ["z", "a"]


async def test_it_never_kills(store: Store) -> None:
    await push_one(store, "a", tries=1)

    for attempt in range(1, 10):
        delivery = await reserve_one(store)
        assert (delivery.lease.attempt, delivery.used) == (attempt, 1)
        assert (await give_back_one(store, delivery.lease)).event is Event.GIVEN_BACK

    assert await counts(store) == Counts(ready=1)
    moved = await store.release((await reserve_one(store)).lease, 0)
    assert moved == Moved(Event.DEAD, "a", NOW, 10, reason="tries")


async def test_it_keeps_the_last_error(store: Store) -> None:
    await store.release(await given_leased(store, "a"), 0, "it failed")

    await give_back_one(store, (await reserve_one(store)).lease)

    job = await found(store, "a")
    assert (job.error, job.used, job.attempt) == ("it failed", 1, 2)


async def test_with_its_tries_used_up_it_still_expires(store: Store, clock: ManualClock) -> None:
    # Given the only try, which giving back restores: so the job is not out of tries
    lease = await given_leased(store, "a", ttl="1s", tries=1)
    clock.advance("1001ms")

    assert await give_back_one(store, lease) == Moved(Event.EXPIRED, "a", NOW, 1)


# --- several leases in a call


async def test_500_leases_in_one_call(store: Store) -> None:
    await push(store, *[job(f"{n:03}") for n in range(500)])
    leases = [delivery.lease for delivery in await reserve_some(store)]

    answers = await store.give_back(QUEUE, [GiveBack(lease) for lease in leases])

    assert list(answers) == [Moved(Event.GIVEN_BACK, f"{n:03}", NOW, 1, NOW) for n in range(500)]
    assert await counts(store) == Counts(ready=500)
    [totals] = await store.totals([QUEUE])
    assert totals.running == Totals(accepted=500, delivered=500)
    assert await reserved_ids(store) == [f"{n:03}" for n in range(500)]


async def test_more_leases_than_a_step_has_jobs(store: Store) -> None:
    await push(store, *[job(f"{n:04}") for n in range(500)])
    await push(store, *[job(f"{n:04}") for n in range(500, 600)])
    leases = [delivery.lease for _ in range(2) for delivery in await reserve_some(store)]

    answers = await store.give_back(QUEUE, [GiveBack(lease) for lease in leases])

    assert [value(answer).id for answer in answers] == [lease.id for lease in leases]
    assert await counts(store) == Counts(ready=600)


async def test_each_lease_has_its_own_answer(store: Store, clock: ManualClock) -> None:
    await push(store, job("a", tries=1), job("b", ttl="1s"), job("c"), job("d"), job("e"))
    leases = {delivery.lease.id: delivery.lease for delivery in await reserve_some(store)}
    await store.release(leases["d"], 0)
    clock.advance("1001ms")
    later = NOW + 1001 + 7000

    answers = await store.give_back(
        QUEUE,
        [
            GiveBack(leases["c"], 7000),
            GiveBack(leases["b"]),
            GiveBack(leases["d"]),
            GiveBack(Lease(QUEUE, "never", NOW, 1)),
            GiveBack(Lease(QUEUE, "e", NOW, 2)),
            GiveBack(leases["a"]),
            GiveBack(leases["c"]),
        ],
    )

    c, b, d, never, e, a, again = answers
    assert c == Moved(Event.GIVEN_BACK, "c", NOW, 1, later)
    assert b == Moved(Event.EXPIRED, "b", NOW, 1)
    assert a == Moved(Event.GIVEN_BACK, "a", NOW, 1, NOW)
    lost = [answer.fields["id"] for answer in (d, never, e, again) if isinstance(answer, LeaseLost)]
    assert lost == ["d", "never", "e", "c"]
    assert await states(store) == {"a": "ready", "c": "delayed", "d": "ready", "e": "leased"}
    assert await counts(store) == Counts(ready=2, delayed=1, leased=1, expired=1)
    assert (await found(store, "a")).used == 0


async def test_they_are_delivered_in_their_old_order(store: Store, clock: ManualClock) -> None:
    await push(store, job("late", delay="2s"), job("early", delay="1s"), job("high", delay="3s", priority=HIGH))
    clock.advance("3s")
    leases = [delivery.lease for delivery in await reserve_some(store)]

    await store.give_back(QUEUE, [GiveBack(lease) for lease in reversed(leases)])

    assert await reserved_ids(store) == ["high", "early", "late"]


async def test_several_given_back_wake_with_the_earliest(store: Store) -> None:
    await push(store, job("a", due_at=NOW - 3), job("b", due_at=NOW - 7))
    leases = [delivery.lease for delivery in await reserve_some(store)]
    await push_one(store, "c")
    async with listening(store) as wakes:
        await store.give_back(QUEUE, [GiveBack(lease) for lease in leases])

        await wakes.until(Wake(QUEUE, NOW - 7))
