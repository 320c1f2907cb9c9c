"""withdraw: jobs are taken out, or sent to the dead letters, if they are as the caller saw them."""

import pytest

from duetime.model.clock import ManualClock
from duetime.model.job import Counts, Event, Job, Moved, Reason, State
from duetime.stores.base import Store, Withdrawal
from tests.contract.vocabulary import (
    NOW,
    QUEUE,
    counts,
    found,
    get_one,
    given_dead,
    given_expired,
    given_leased,
    push_one,
    replace_one,
    reschedule_one,
    reserve_one,
)

pytestmark = pytest.mark.store_only

HOUR = 3_600_000


def seen(job: Job, reason: Reason | None = None, error: str = "") -> Withdrawal:
    return Withdrawal(job.id, job.born, 0 if job.state is State.DEAD else job.due_at, reason, error)


async def withdraw(store: Store, *withdrawals: Withdrawal) -> list[object]:
    return list(await store.withdraw(QUEUE, withdrawals))


async def test_a_waiting_job_is_gone(store: Store) -> None:
    await push_one(store, "a", delay="1h", ttl="2h", attributes={"trace": "1"})
    await push_one(store, "b")
    both = [seen(await found(store, "a")), seen(await found(store, "b"))]

    assert await withdraw(store, *both) == [Moved(Event.CANCELLED, "a", NOW), Moved(Event.CANCELLED, "b", NOW)]
    assert await counts(store) == Counts()
    assert await withdraw(store, *both) == [None, None]
    assert list(await store.check()) == []


async def test_a_dead_letter_is_gone(store: Store) -> None:
    await given_dead(store, "a", error="boom")

    assert await withdraw(store, seen(await found(store, "a"))) == [Moved(Event.DELETED, "a", NOW, 1)]
    assert await counts(store) == Counts()


async def test_a_job_that_changed_stays(store: Store, clock: ManualClock) -> None:
    await push_one(store, "replaced", delay="1h")
    await push_one(store, "rescheduled", delay="1h")
    await push_one(store, "leased")
    old = [seen(await found(store, name)) for name in ("replaced", "rescheduled", "leased")]
    await reserve_one(store)
    await replace_one(store, "replaced", delay="1h")
    await reschedule_one(store, "rescheduled", delay_ms=2 * HOUR)

    assert await withdraw(store, *old, Withdrawal("absent", NOW, NOW)) == [None] * 4
    assert await counts(store) == Counts(delayed=2, leased=1)


async def test_a_leased_job_is_never_withdrawn(store: Store) -> None:
    await given_leased(store, "a")

    assert await withdraw(store, Withdrawal("a", NOW, NOW), Withdrawal("a", NOW, 0)) == [None, None]


async def test_an_expired_job_counts_as_absent(store: Store, clock: ManualClock) -> None:
    await given_expired(store, clock, "a")

    assert await withdraw(store, Withdrawal("a", NOW, NOW)) == [None]


@pytest.mark.parametrize("reason", list(Reason))
async def test_a_waiting_job_becomes_a_dead_letter(store: Store, reason: Reason) -> None:
    await push_one(store, "a", delay="1h", ttl="2h", attempt=3, born=NOW - 5, attributes={"trace": "1"})
    before = await found(store, "a")

    [moved] = await withdraw(store, seen(before, reason, "boom"))

    assert moved == Moved(Event.DEAD, "a", NOW - 5, 3, reason=reason)
    dead = await found(store, "a")
    assert (dead.state, dead.reason, dead.error, dead.attempt, dead.born) == ("dead", reason, "boom", 3, NOW - 5)
    assert (dead.dead_at, dead.expires_at, dead.attributes) == (NOW, 0, {"trace": "1"})
    assert await counts(store) == Counts(dead=1)
    assert list(await store.check()) == []
    assert await withdraw(store, seen(before, reason), seen(dead, reason)) == [None, None]
    await store.respawn(QUEUE)
    assert (await reserve_one(store)).lease.attempt == 4


async def test_only_one_of_two_takes_a_job(store: Store) -> None:
    await push_one(store, "a")
    one = seen(await found(store, "a"))

    assert await withdraw(store, one, one) == [Moved(Event.CANCELLED, "a", NOW), None]
    assert await get_one(store, "a") is None


async def test_totals_count_what_left_and_what_died(store: Store) -> None:
    await push_one(store, "a")
    await push_one(store, "b")
    await withdraw(store, seen(await found(store, "a")), seen(await found(store, "b"), Reason.KILLED))
    [totals] = await store.totals([QUEUE])
    assert (totals.running.cancelled, totals.running.dead) == (1, 1)
