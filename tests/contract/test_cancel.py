"""cancel: removed by id from wherever the job is."""

from duetime.model.clock import ManualClock
from duetime.model.errors import LeaseLost
from duetime.model.job import Counts, Event, Moved
from duetime.stores.base import Store
from tests.contract.vocabulary import (
    NOW,
    OTHER,
    QUEUE,
    cancel_one,
    counts,
    found,
    given_dead,
    given_expired,
    given_leased,
    job,
    keep_expired,
    push,
    push_one,
    reap,
    reserve_one,
    states,
)


async def test_a_running_job_is_fenced_off(store: Store) -> None:
    lease = await given_leased(store, "a")
    await push_one(store, "b")

    assert await cancel_one(store, "a") == Moved(Event.CANCELLED, "a", NOW, 1, reason="running")
    assert await counts(store) == Counts(ready=1)
    assert list(await store.ack(QUEUE, [lease])) == [None]


async def test_a_running_job_cancelled_and_pushed_again_is_another_one(store: Store) -> None:
    lease = await given_leased(store, "a")
    await cancel_one(store, "a")
    await push_one(store, "a")
    await reserve_one(store)

    [answer] = await store.ack(QUEUE, [lease])

    assert isinstance(answer, LeaseLost)
    assert await counts(store) == Counts(leased=1)


async def test_nothing_of_a_cancelled_job_comes_back_with_its_id(store: Store) -> None:
    await given_dead(store, "a", error="it failed", attributes={"old": "yes"})
    await cancel_one(store, "a")

    await push_one(store, "a")

    again = await found(store, "a")
    assert (again.error, again.attributes, again.attempt, again.used, again.reason) == ("", {}, 0, 0, "")


async def test_no_such_job(store: Store) -> None:
    await push_one(store, "a", queue=OTHER)

    assert await cancel_one(store, "a") is None
    assert await counts(store, OTHER) == Counts(ready=1)


async def test_an_expired_job_that_the_queue_keeps_is_not_lost_to_a_cancel(store: Store, clock: ManualClock) -> None:
    await keep_expired(store)
    await given_expired(store, clock, "a")

    assert await cancel_one(store, "a") is None
    assert await counts(store) == Counts(dead=1, expired=1)


async def test_many_ids_are_answered_one_by_one(store: Store) -> None:
    await push(store, job("a"), job("b", delay="1h"), job("c"))

    answers = await store.cancel(QUEUE, ["b", "none", "a", "b"])

    assert list(answers) == [Moved(Event.CANCELLED, "b", NOW), None, Moved(Event.CANCELLED, "a", NOW), None]
    assert await states(store) == {"c": "ready"}


async def test_a_cancelled_lease_leaves_nothing_for_the_reaper(store: Store, clock: ManualClock) -> None:
    await given_leased(store, "a", ttr="1s")
    await cancel_one(store, "a")

    clock.advance("1m")

    assert await reap(store) == []
