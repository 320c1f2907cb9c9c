"""Pushing an id that is taken: keep, replace or error, and an id twice in one request."""

import pytest

from duetime.model.clock import ManualClock
from duetime.model.errors import JobExists
from duetime.model.ids import IdMaker
from duetime.model.job import Counts, Event, IfExists, Moved, State
from duetime.stores.base import Push, Pushed, Store
from tests.contract.vocabulary import (
    HIGH,
    LOW,
    NOW,
    QUEUE,
    ack_one,
    counts,
    found,
    get_one,
    given_dead,
    given_expired,
    given_leased,
    job,
    push,
    push_one,
    replace_one,
    reserve_one,
    reserved_ids,
    shown_job,
    states,
)

# --- keep


async def test_keep_leaves_a_waiting_job_as_it_is(store: Store, clock: ManualClock) -> None:
    await push_one(store, "a", b"old", delay="10s")
    before = await found(store, "a")
    clock.advance("1s")

    moved = await push_one(store, "a", b"new", priority=HIGH, attributes={"new": "yes"})

    assert moved == Moved(Event.KEPT, "a", NOW, due_at=NOW + 10_000, reason="waiting")
    assert await found(store, "a") == before
    assert await counts(store) == Counts(delayed=1)


@pytest.mark.parametrize("taken", [0, 1, 2])
async def test_keep_finds_the_one_id_of_a_batch_that_is_taken(store: Store, taken: int) -> None:
    """The ids are made in one moment, as those of most batches are; another one lies between them."""
    maker = IdMaker(clock=ManualClock(NOW))
    ids = [maker.make() for _ in range(4)]
    between, batch = ids[1], [ids[0], ids[2], ids[3]]
    await push_one(store, between, b"between")
    await push_one(store, batch[taken], b"old")

    pushed = await push(store, *(job(job_id, b"new") for job_id in batch))

    events = [Event.KEPT if at == taken else Event.ACCEPTED for at in range(3)]
    assert [(moved.id, moved.event) for moved in pushed.jobs] == list(zip(batch, events, strict=True))
    assert [(await found(store, job_id)).body for job_id in batch] == [
        b"old" if at == taken else b"new" for at in range(3)
    ]
    assert (await found(store, between)).body == b"between"
    assert await counts(store) == Counts(ready=4)


async def test_keep_leaves_a_leased_job_to_its_consumer(store: Store) -> None:
    lease = await given_leased(store, "a", body=b"old")

    moved = await push_one(store, "a", b"new")

    assert moved == Moved(Event.KEPT, "a", NOW, attempt=1, reason="leased")
    assert (await found(store, "a")).body == b"old"
    assert await ack_one(store, lease) == Moved(Event.ACKED, "a", NOW, 1)


async def test_keep_leaves_a_dead_job_dead_and_reports_it(store: Store) -> None:
    await given_dead(store, "a")

    moved = await push_one(store, "a")

    assert moved == Moved(Event.KEPT, "a", NOW, attempt=1, reason="dead")
    assert await counts(store) == Counts(dead=1)


async def test_keep_takes_the_place_of_an_expired_job(store: Store, clock: ManualClock) -> None:
    await given_expired(store, clock, "a")

    moved = await push_one(store, "a", b"new")

    assert moved == Moved(Event.ACCEPTED, "a", NOW + 1001, due_at=NOW + 1001, reason="expired", was=NOW)
    assert (await found(store, "a")).body == b"new"
    assert await counts(store) == Counts(ready=1, expired=1)


# --- replace


async def test_replace_forgets_everything_about_the_old_job(store: Store, clock: ManualClock) -> None:
    # Given a job with all that a job can have
    await push_one(store, "a", b"old", ttl="1h", tries=3, priority=LOW, attributes={"old": "yes"})
    await store.release((await reserve_one(store)).lease, 5, "it failed")
    clock.advance("1s")

    moved = await replace_one(store, "a", b"new", delay="2s")

    born = NOW + 1000
    assert moved == Moved(Event.REPLACED, "a", born, due_at=NOW + 3000, was=NOW)
    assert await get_one(store, "a") == shown_job(born=born, state=State.DELAYED, body=b"new", due_at=NOW + 3000)
    assert await counts(store) == Counts(delayed=1)


async def test_replace_in_the_same_millisecond_is_born_later(store: Store) -> None:
    await push_one(store, "a")

    assert await replace_one(store, "a") == Moved(Event.REPLACED, "a", NOW + 1, due_at=NOW, was=NOW)
    assert await replace_one(store, "a") == Moved(Event.REPLACED, "a", NOW + 2, due_at=NOW, was=NOW + 1)


async def test_replace_takes_a_leased_job_from_its_consumer(store: Store) -> None:
    await given_leased(store, "a", body=b"old")

    moved = await replace_one(store, "a", b"new")

    assert moved == Moved(Event.REPLACED, "a", NOW + 1, due_at=NOW, was=NOW)
    assert await counts(store) == Counts(ready=1)
    delivery = await reserve_one(store)
    assert (delivery.body, delivery.lease.attempt, delivery.used) == (b"new", 1, 1)


async def test_replace_takes_a_job_from_the_dead(store: Store) -> None:
    await given_dead(store, "a", error="it failed")

    moved = await replace_one(store, "a", b"new")

    assert moved == Moved(Event.REPLACED, "a", NOW + 1, due_at=NOW, was=NOW)
    assert await counts(store) == Counts(ready=1)
    assert (await found(store, "a")).error == ""


async def test_replace_changes_the_priority(store: Store) -> None:
    await push_one(store, "a", priority=LOW)
    await push_one(store, "b")

    await replace_one(store, "a", priority=HIGH)

    assert await reserved_ids(store) == ["a", "b"]


# --- error


async def test_error_refuses_a_taken_id(store: Store) -> None:
    await push_one(store, "a", b"old", if_exists=IfExists.ERROR)

    with pytest.raises(JobExists) as caught:
        await push_one(store, "a", b"new", if_exists=IfExists.ERROR)

    assert caught.value.fields["id"] == "a"
    assert (await found(store, "a")).body == b"old"


async def test_a_refused_request_changes_nothing_and_its_neighbours_go_on(store: Store) -> None:
    await push_one(store, "taken")

    answers = await store.push(
        QUEUE,
        [
            Push([job("a")], IfExists.ERROR),
            Push([job("b"), job("taken"), job("c")], IfExists.ERROR),
            Push([job("d")], IfExists.ERROR),
        ],
    )

    assert [type(answer) for answer in answers] == [Pushed, JobExists, Pushed]
    assert await states(store) == {"taken": "ready", "a": "ready", "d": "ready"}


# --- an id twice in one request


async def test_keep_with_an_id_twice_keeps_the_first(store: Store) -> None:
    pushed = await push(store, job("a", b"first"), job("a", b"second", delay="1s"))

    assert pushed.jobs == [
        Moved(Event.ACCEPTED, "a", NOW, due_at=NOW),
        Moved(Event.KEPT, "a", NOW, due_at=NOW, reason="waiting"),
    ]
    assert (await found(store, "a")).body == b"first"
    assert await counts(store) == Counts(ready=1)


async def test_replace_with_an_id_twice_keeps_the_last(store: Store) -> None:
    pushed = await push(store, job("a", b"first"), job("a", b"second", delay="1s"), if_exists=IfExists.REPLACE)

    assert pushed.jobs == [
        Moved(Event.ACCEPTED, "a", NOW, due_at=NOW),
        Moved(Event.REPLACED, "a", NOW + 1, due_at=NOW + 1000, was=NOW),
    ]
    assert (await found(store, "a")).body == b"second"
    assert await counts(store) == Counts(delayed=1)


async def test_error_with_an_id_twice_refuses_the_request(store: Store) -> None:
    with pytest.raises(JobExists):
        await push(store, job("a"), job("b"), job("a"), if_exists=IfExists.ERROR)

    assert await states(store) == {}
