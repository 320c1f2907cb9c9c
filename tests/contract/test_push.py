"""push: what is accepted, kept, replaced and refused, and that requests do not disturb each other."""

from typing import Any

import pytest

from duetime.model.clock import ManualClock
from duetime.model.errors import BodyTooLarge, ExpiresBeforeDue, JobExists, QueueFull
from duetime.model.job import MAX_BODY, Counts, Event, IfExists, Moved, NewJob
from duetime.stores.base import Push, Pushed, RulesChange, Store
from tests.contract.vocabulary import (
    HIGH,
    LOW,
    NOW,
    ODD_IDS,
    OTHER,
    QUEUE,
    YEAR_2100,
    as_lists,
    cancel_one,
    counts,
    found,
    get_one,
    job,
    push,
    push_one,
    replace_one,
    reserve_one,
    reserve_some,
    reserved_ids,
    shown_job,
    states,
)


async def test_a_job_without_delay_is_ready_immediately(store: Store) -> None:
    pushed = await push(store, job("a", b"hello"))

    assert pushed == Pushed([Moved(Event.ACCEPTED, "a", NOW, due_at=NOW)], NOW)
    assert await counts(store) == Counts(ready=1)
    assert await get_one(store, "a") == shown_job()


async def test_a_job_with_a_delay_is_ready_when_that_is_over_and_not_before(store: Store, clock: ManualClock) -> None:
    moved = await push_one(store, "a", delay="10s")
    assert moved == Moved(Event.ACCEPTED, "a", NOW, due_at=NOW + 10_000)
    assert await counts(store) == Counts(delayed=1)

    clock.advance("9999ms")
    assert await counts(store) == Counts(delayed=1)
    assert await reserve_some(store) == []

    clock.advance("1ms")
    assert await counts(store) == Counts(ready=1)
    assert (await reserve_one(store)).lease.id == "a"


async def test_due_at_wins_over_delay(store: Store) -> None:
    moved = await push_one(store, "a", delay="10s", due_at=NOW + 5)

    assert moved == Moved(Event.ACCEPTED, "a", NOW, due_at=NOW + 5)


@pytest.mark.parametrize("due_at", [0, 1, NOW - 86_400_000, NOW - 1, NOW])
async def test_a_job_may_be_due_in_the_past(store: Store, due_at: int) -> None:
    moved = await push_one(store, "a", due_at=due_at)

    assert moved == Moved(Event.ACCEPTED, "a", NOW, due_at=due_at)
    assert await counts(store) == Counts(ready=1)
    assert (await reserve_one(store)).due_at == due_at


async def test_a_job_may_be_due_in_2100(store: Store, clock: ManualClock) -> None:
    await push_one(store, "a", due_at=YEAR_2100)
    assert await counts(store) == Counts(delayed=1)

    clock.set(YEAR_2100 - 1)
    assert await reserved_ids(store) == []
    clock.set(YEAR_2100)
    assert await reserved_ids(store) == ["a"]


async def test_everything_that_was_pushed_is_delivered(store: Store) -> None:
    attributes = {"trace": "00-abc", "Ünïcode": "日本 🙂", "empty": "", "lines": "a\nb\tc", "quote": "\"'\\"}
    await push_one(store, "a", b"body", ttl="1h", tries=7, priority=HIGH, attributes=attributes)

    delivery = await reserve_one(store, ttr="30s")

    assert (delivery.lease.queue, delivery.lease.id, delivery.lease.born, delivery.lease.attempt) == (
        QUEUE,
        "a",
        NOW,
        1,
    )
    assert (delivery.body, delivery.attributes, delivery.error) == (b"body", attributes, "")
    assert (delivery.due_at, delivery.lease_until, delivery.expires_at) == (NOW, NOW + 30_000, NOW + 3_600_000)
    assert (delivery.priority, delivery.tries, delivery.used) == (HIGH, 7, 1)


ALIKE: dict[str, Any] = {"body": b"same", "delay": "1s", "ttl": "1h", "tries": 7, "priority": HIGH}
MIXED: dict[str, list[Any]] = {
    "body": [b"a", b"bb", b"ccc"],
    "delay": ["1s", "2s", "3s"],
    "due_at": [None, NOW + 5_000, None],
    "ttl": ["1h", 0, "2h"],
    "tries": [1, 2, 3],
    "priority": [HIGH, LOW, HIGH],
    "attributes": [{}, {"trace": "00-abc"}, {}],
}


@pytest.mark.parametrize("mixed", [*MIXED, "nothing", "attributes of one", "attributes of all", "everything"])
async def test_each_job_of_a_batch_keeps_its_own_options(store: Store, mixed: str) -> None:
    """Stores send what jobs have in common once."""
    options: list[dict[str, Any]] = [dict(ALIKE) for _ in range(3)]
    for at, chosen in enumerate(options):
        chosen |= {name: values[at] for name, values in MIXED.items() if mixed in (name, "everything")}
        if mixed == "attributes of all" or (mixed == "attributes of one" and at == 0):
            chosen["attributes"] = {"kind": "mail"}
        if chosen.get("due_at"):
            chosen |= {"delay": 0, "ttl": 0}
    jobs = [job(f"job-{at}", **chosen) for at, chosen in enumerate(options)]
    await push(store, *jobs)

    for one in jobs:
        kept = await found(store, one.id)
        due_at = one.due_at or NOW + one.delay_ms
        expires_at = NOW + one.ttl_ms if one.ttl_ms else 0
        assert (kept.body, kept.due_at, kept.expires_at) == (one.body, due_at, expires_at)
        assert (kept.tries, kept.priority, kept.attributes) == (one.tries, one.priority, one.attributes)


async def test_many_attributes_are_kept(store: Store) -> None:
    attributes = {f"key-{n}": "v" * 4096 for n in range(64)}

    await push_one(store, "a", attributes=attributes)

    assert (await found(store, "a")).attributes == attributes
    assert (await reserve_one(store)).attributes == attributes


async def test_a_body_comes_back_as_it_went_in(store: Store) -> None:
    bodies = {
        "empty": b"",
        "nul": b"\0",
        "nuls": b"\0" * 1000,
        "every byte": bytes(range(256)) * 4,
        "newline": b"\r\n",
        "not utf-8": b"\xff\xfe invalid utf-8 \xc3\x28",
        "utf-8": "日本語".encode(),
        "number": b"12",
        "json": b"{}",
    }

    await push(store, *[job(name, body) for name, body in bodies.items()])

    assert {name: (await found(store, name)).body for name in bodies} == bodies
    assert {delivery.lease.id: delivery.body for delivery in await reserve_some(store, 100)} == bodies


async def test_a_body_of_a_mebibyte_comes_back_as_it_went_in(store: Store) -> None:
    body = bytes(range(256)) * (MAX_BODY // 256)

    await push_one(store, "a", body)

    assert (await found(store, "a")).body == body
    assert (await reserve_one(store)).body == body


async def test_ids_may_hold_any_printable_character(store: Store) -> None:
    # Given another job, so that a verb that matches too much is seen
    await push_one(store, "bystander", delay="1h")

    # When all odd ids go through their lives together
    assert [moved.id for moved in (await push(store, *map(job, ODD_IDS))).jobs] == ODD_IDS
    for job_id in ODD_IDS:
        assert (await push_one(store, job_id)).event is Event.KEPT
        assert (await replace_one(store, job_id)).event is Event.REPLACED
        assert (await found(store, job_id)).id == job_id
    assert await states(store) == {"bystander": "delayed", **dict.fromkeys(ODD_IDS, "ready")}
    deliveries = {delivery.lease.id: delivery for delivery in await reserve_some(store, 100)}
    assert sorted(deliveries) == sorted(ODD_IDS)
    for job_id in ODD_IDS:
        assert (await store.release(deliveries[job_id].lease, 0)).id == job_id
        [rescheduled] = await store.reschedule(QUEUE, [job_id], delay_ms=5)
        assert isinstance(rescheduled, Moved)
        assert rescheduled.id == job_id
        assert (cancelled := await cancel_one(store, job_id)) is not None
        assert cancelled.id == job_id

    # Then only these jobs were touched
    assert await states(store) == {"bystander": "delayed"}


async def test_ids_that_look_alike_are_different(store: Store) -> None:
    alike = ["a", "A", "a ", " a", "á", "a\u0301", "01", "1", "1.0", "+1"]

    await push(store, *[job(job_id, job_id.encode()) for job_id in alike])

    assert await counts(store) == Counts(ready=len(alike))
    delivered = {delivery.lease.id: delivery.body for delivery in await reserve_some(store)}
    assert delivered == {job_id: job_id.encode() for job_id in alike}


async def test_the_same_id_in_another_queue_is_another_job(store: Store) -> None:
    await push_one(store, "a", b"one")
    await push_one(store, "a", b"other", queue=OTHER)

    assert await counts(store) == await counts(store, OTHER) == Counts(ready=1)
    assert (await reserve_one(store)).body == b"one"
    assert (await reserve_one(store, queue=OTHER)).body == b"other"


async def test_many_requests_in_one_call_are_answered_in_order(store: Store) -> None:
    answers = as_lists(
        await store.push(QUEUE, [Push([job("a")]), Push([job("b"), job("c", delay="1s")]), Push([job("a")])])
    )

    assert answers == [
        Pushed([Moved(Event.ACCEPTED, "a", NOW, due_at=NOW)], NOW),
        Pushed([Moved(Event.ACCEPTED, "b", NOW, due_at=NOW), Moved(Event.ACCEPTED, "c", NOW, due_at=NOW + 1000)], NOW),
        Pushed([Moved(Event.KEPT, "a", NOW, due_at=NOW, reason="waiting")], NOW),
    ]


async def test_a_large_request_is_accepted_as_one(store: Store) -> None:
    pushed = await push(store, *[job(f"{n:04}") for n in range(500)])

    assert [moved.id for moved in pushed.jobs] == [f"{n:04}" for n in range(500)]
    assert await counts(store) == Counts(ready=500)


# --- ttl


async def test_a_ttl_as_long_as_the_delay_is_accepted(store: Store, clock: ManualClock) -> None:
    await push_one(store, "a", delay="10s", ttl="10s")

    clock.advance("10s")

    assert await reserved_ids(store) == ["a"]


async def test_a_ttl_shorter_than_the_delay_is_refused(store: Store) -> None:
    with pytest.raises(ExpiresBeforeDue) as caught:
        await push_one(store, "a", delay="10s", ttl="9999ms")

    assert caught.value.fields["id"] == "a"
    assert await counts(store) == Counts()


async def test_a_due_at_past_the_ttl_is_refused(store: Store) -> None:
    with pytest.raises(ExpiresBeforeDue):
        await push_one(store, "a", due_at=NOW + 1001, ttl="1s")

    await push_one(store, "a", due_at=NOW + 1000, ttl="1s")


async def test_a_refused_ttl_does_not_fail_the_other_requests(store: Store) -> None:
    answers = await store.push(QUEUE, [Push([job("a"), job("b", delay="2s", ttl="1s")]), Push([job("c")])])

    assert [type(answer) for answer in answers] == [ExpiresBeforeDue, Pushed]
    assert await states(store) == {"c": "ready"}


async def test_a_job_lives_until_its_ttl_is_over(store: Store, clock: ManualClock) -> None:
    await push_one(store, "a", ttl="1s")

    clock.advance("1s")
    assert await counts(store) == Counts(ready=1)
    assert (await found(store, "a")).expires_at == NOW + 1000

    clock.advance("1ms")
    assert await counts(store) == Counts(expired=1)
    assert await get_one(store, "a") is None
    assert await states(store) == {}


# --- the order of refusals


async def test_the_first_refusal_wins(store: Store) -> None:
    await push_one(store, "taken")
    await store.configure(QUEUE, RulesChange(max_body=5, max_jobs=1))

    async def refusal(*jobs: NewJob) -> type:
        [answer] = await store.push(QUEUE, [Push(jobs, IfExists.ERROR)])
        return type(answer)

    assert await refusal(job("taken", b"123456", delay=2, ttl=1)) is BodyTooLarge
    assert await refusal(job("taken", b"12345", delay=2, ttl=1)) is ExpiresBeforeDue
    assert await refusal(job("taken", b"12345")) is JobExists
    assert await refusal(job("new", b"12345")) is QueueFull
    assert await refusal(job("new", b"12345"), job("taken", b"123456")) is QueueFull
    assert await refusal(job("new", b"1", delay=2, ttl=1), job("taken", b"123456")) is ExpiresBeforeDue
    assert await states(store) == {"taken": "ready"}


# --- born


async def test_jobs_pushed_in_one_millisecond_are_born_in_it(store: Store) -> None:
    await push_one(store, "a")
    await push_one(store, "b")

    assert [(await found(store, job_id)).born for job_id in ("a", "b")] == [NOW, NOW]


async def test_a_job_is_born_after_every_earlier_incarnation(store: Store) -> None:
    borns = []
    for _ in range(5):
        borns.append((await push_one(store, "a")).born)
        await cancel_one(store, "a")

    assert borns == [NOW, NOW + 1, NOW + 2, NOW + 3, NOW + 4]


async def test_jobs_of_one_push_after_an_end_in_the_same_millisecond(store: Store) -> None:
    await push_one(store, "a")
    await store.cancel(QUEUE, ["a"])

    pushed = await push(store, job("a"), job("b"), job("c"))

    assert [moved.born for moved in pushed.jobs] == [NOW + 1, NOW + 2, NOW + 3]


async def test_an_end_long_after_the_birth_does_not_raise_the_next_born(store: Store, clock: ManualClock) -> None:
    await push_one(store, "a")
    clock.advance("1s")
    await cancel_one(store, "a")

    assert (await push_one(store, "a")).born == NOW + 1000
    assert (await push_one(store, "b")).born == NOW + 1000


async def test_a_job_put_back_carries_its_old_born_and_attempt(store: Store) -> None:
    old = NOW - 86_400_000

    moved = await push_one(store, "a", born=old, attempt=3, tries=5)

    assert moved == Moved(Event.ACCEPTED, "a", old, attempt=3, due_at=NOW)
    assert await get_one(store, "a") == shown_job(born=old, attempt=3)
    delivery = await reserve_one(store)
    assert (delivery.lease.born, delivery.lease.attempt, delivery.used) == (old, 4, 1)


async def test_a_job_put_back_is_kept_when_it_is_still_there(store: Store) -> None:
    await push_one(store, "a", b"here")

    moved = await push_one(store, "a", b"put back", born=NOW - 5000, attempt=2)

    assert moved == Moved(Event.KEPT, "a", NOW, due_at=NOW, reason="waiting")
    assert (await found(store, "a")).body == b"here"


@pytest.mark.parametrize("tries", [0, 1, 65_535])
async def test_tries_are_kept(store: Store, tries: int) -> None:
    await push_one(store, "a", tries=tries)

    assert (await found(store, "a")).tries == tries
    assert (await reserve_one(store)).tries == tries
