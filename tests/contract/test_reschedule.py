"""reschedule: a waiting job gets another due time; others are refused or not found."""

import msgspec
import pytest

from duetime.model.clock import ManualClock
from duetime.model.errors import ExpiresBeforeDue, JobDead, JobRunning
from duetime.model.job import Counts, Event, Moved, State
from duetime.stores.base import Store
from tests.contract.vocabulary import (
    HIGH,
    NOW,
    QUEUE,
    YEAR_2100,
    counts,
    found,
    given_dead,
    given_leased,
    job,
    push,
    push_one,
    reschedule_one,
    reserve_one,
    reserved_ids,
)


async def test_a_delayed_job_can_be_brought_forward(store: Store) -> None:
    await push_one(store, "a", delay="1h")

    assert await reschedule_one(store, "a") == Moved(Event.RESCHEDULED, "a", NOW, due_at=NOW)
    assert await counts(store) == Counts(ready=1)
    assert await reserved_ids(store) == ["a"]


async def test_a_ready_job_can_be_put_off(store: Store, clock: ManualClock) -> None:
    await push_one(store, "a")
    clock.advance("1s")

    assert await reschedule_one(store, "a", delay_ms=5000) == Moved(Event.RESCHEDULED, "a", NOW, due_at=NOW + 6000)
    assert await counts(store) == Counts(delayed=1)

    clock.advance("5s")
    assert await reserved_ids(store) == ["a"]


@pytest.mark.parametrize("due_at", [0, NOW - 1, NOW, NOW + 1, YEAR_2100])
async def test_an_instant_wins_over_a_delay(store: Store, due_at: int) -> None:
    await push_one(store, "a", delay="1s")

    moved = await reschedule_one(store, "a", delay_ms=77, due_at=due_at)

    assert moved == Moved(Event.RESCHEDULED, "a", NOW, due_at=due_at)
    assert (await found(store, "a")).due_at == due_at


async def test_only_the_due_time_changes(store: Store) -> None:
    lease = await given_leased(store, "a", body=b"body", ttl="1h", tries=3, priority=HIGH, attributes={"trace": "1"})
    await store.release(lease, 1000, "it failed")
    before = await found(store, "a")

    assert await reschedule_one(store, "a", delay_ms=5) == Moved(Event.RESCHEDULED, "a", NOW, 1, NOW + 5)

    assert await found(store, "a") == msgspec.structs.replace(before, due_at=NOW + 5, state=State.DELAYED)


async def test_it_changes_the_order(store: Store) -> None:
    await push(store, job("a"), job("b"), job("c", delay="1h"))

    await reschedule_one(store, "c", due_at=NOW - 1)

    assert await reserved_ids(store) == ["c", "a", "b"]


async def test_past_its_ttl_is_refused(store: Store) -> None:
    await push_one(store, "a", ttl="10s")

    with pytest.raises(ExpiresBeforeDue) as caught:
        await reschedule_one(store, "a", delay_ms=10_001)

    assert caught.value.fields["id"] == "a"
    assert (await found(store, "a")).due_at == NOW


async def test_to_the_last_moment_of_its_ttl_is_accepted(store: Store, clock: ManualClock) -> None:
    await push_one(store, "a", ttl="10s")

    assert await reschedule_one(store, "a", delay_ms=10_000) == Moved(Event.RESCHEDULED, "a", NOW, due_at=NOW + 10_000)

    clock.advance("10s")
    assert (await reserve_one(store)).expires_at == NOW + 10_000


async def test_it_still_expires_on_time(store: Store, clock: ManualClock) -> None:
    await push_one(store, "a", ttl="10s")
    await reschedule_one(store, "a", delay_ms=5000)
    await reschedule_one(store, "a", delay_ms=0)

    clock.advance("10001ms")

    assert await counts(store) == Counts(expired=1)


async def test_many_ids_are_answered_one_by_one(store: Store) -> None:
    await given_leased(store, "running")
    await given_dead(store, "dead")
    await push(store, job("a"), job("short", ttl="1s"), job("b", delay="1h"))

    answers = await store.reschedule(QUEUE, ["a", "running", "none", "dead", "short", "b", "a"], delay_ms=2000)

    moved = [Moved(Event.RESCHEDULED, job_id, NOW, due_at=NOW + 2000) for job_id in ("a", "b", "a")]
    assert [answer for answer in answers if isinstance(answer, Moved)] == moved
    kinds = [type(answer) for answer in answers]
    assert kinds == [Moved, JobRunning, type(None), JobDead, ExpiresBeforeDue, Moved, Moved]
    assert await counts(store) == Counts(delayed=2, ready=1, leased=1, dead=1)
