"""Marks: a push that carries one happens once while the mark lives."""

import msgspec
import pytest

from duetime.model.clock import ManualClock
from duetime.model.errors import ExpiresBeforeDue, JobExists, MarkMismatch
from duetime.model.job import Counts, Event, IfExists, Moved, State
from duetime.stores.base import Push, Pushed, Store
from tests.contract.vocabulary import (
    NOW,
    OTHER,
    QUEUE,
    ack_one,
    as_lists,
    counts,
    given_leased,
    job,
    mark,
    pause,
    push,
    push_one,
    replace_one,
    reserve_one,
    reserve_some,
    states,
)


async def test_a_repeat_changes_nothing_and_gets_the_same_answer(store: Store, clock: ManualClock) -> None:
    # Given a request with each kind of answer
    await push_one(store, "kept", delay="1h")
    await push_one(store, "expired", ttl="1ms")
    clock.advance("2ms")
    jobs = [job("new", delay="5s"), job("kept"), job("expired"), job("new")]
    first = await push(store, *jobs, mark=mark())
    now = NOW + 2
    assert first == Pushed(
        [
            Moved(Event.ACCEPTED, "new", now, due_at=now + 5000),
            Moved(Event.KEPT, "kept", NOW, due_at=NOW + 3_600_000, reason="waiting"),
            Moved(Event.ACCEPTED, "expired", now, due_at=now, reason="expired", was=NOW),
            Moved(Event.KEPT, "new", now, due_at=now + 5000, reason="waiting"),
        ],
        now,
    )
    before = await states(store)

    # When it comes again, later
    clock.advance("1s")
    again = await push(store, *jobs, mark=mark())

    assert again == Pushed(first.jobs, now + 1000, repeated=True)
    assert await states(store) == before


@pytest.mark.parametrize(
    ("brief", "if_exists"), [(False, IfExists.KEEP), (True, IfExists.KEEP), (True, IfExists.ERROR)]
)
async def test_after_the_jobs_were_acked_nothing_is_pushed_again(
    store: Store, brief: bool, if_exists: IfExists
) -> None:
    its_mark = msgspec.structs.replace(mark(), brief=brief)
    first = await push(store, job("a"), job("b"), if_exists=if_exists, mark=its_mark)
    for delivery in await reserve_some(store):
        await ack_one(store, delivery.lease)

    again = await push(store, job("a"), job("b"), if_exists=if_exists, mark=its_mark)

    assert again == Pushed(first.jobs, NOW, repeated=True)
    assert await counts(store) == Counts()


async def test_a_repeat_answers_the_same_whatever_became_of_the_job(store: Store) -> None:
    first = await push(store, job("a"), mark=mark())
    await replace_one(store, "a", b"other")
    await store.kill((await reserve_one(store)).lease)

    again = await push(store, job("a"), mark=mark())

    assert again == Pushed(first.jobs, NOW, repeated=True)


async def test_a_replacing_request_replaces_once(store: Store) -> None:
    await push_one(store, "a", b"old")
    first = await push(store, job("a", b"new"), if_exists=IfExists.REPLACE, mark=mark())
    assert first.jobs == [Moved(Event.REPLACED, "a", NOW + 1, due_at=NOW, was=NOW)]
    lease = (await reserve_one(store)).lease

    again = await push(store, job("a", b"new"), if_exists=IfExists.REPLACE, mark=mark())

    assert again == Pushed(first.jobs, NOW, repeated=True)
    assert await ack_one(store, lease) == Moved(Event.ACKED, "a", NOW + 1, 1)


async def test_another_digest_is_a_mismatch(store: Store) -> None:
    await push(store, job("a"), mark=mark(digest=b"one"))

    with pytest.raises(MarkMismatch):
        await push(store, job("b"), mark=mark(digest=b"other"))

    assert await states(store) == {"a": "ready"}


async def test_a_mismatch_does_not_fail_its_neighbours(store: Store) -> None:
    await push(store, job("a"), mark=mark(digest=b"one"))

    answers = await store.push(
        QUEUE, [Push([job("b")]), Push([job("c")], mark=mark(digest=b"other")), Push([job("d")], mark=mark("other"))]
    )

    assert [type(answer) for answer in answers] == [Pushed, MarkMismatch, Pushed]
    assert await states(store) == {"a": "ready", "b": "ready", "d": "ready"}


@pytest.mark.parametrize("digest", [b"", b"\0", bytes(range(256)), b"\xff" * 64])
@pytest.mark.store_only
async def test_a_digest_is_any_bytes(store: Store, digest: bytes) -> None:
    await push(store, job("a"), mark=mark(digest=digest))

    assert (await push(store, job("a"), mark=mark(digest=digest))).repeated
    with pytest.raises(MarkMismatch):
        await push(store, job("a"), mark=mark(digest=digest + b"\0"))


@pytest.mark.store_only
async def test_a_name_is_any_text(store: Store) -> None:
    for name in ["1", "a b:c/d", "it's", "日本", "load-2027-01-15T08:00:00Z#12", "x" * 255]:
        assert not (await push(store, job("a"), mark=mark(name))).repeated
        assert (await push(store, job("a"), mark=mark(name))).repeated
        assert not (await push(store, job("a"), mark=mark(name + "x"))).repeated


async def test_a_mark_lives_for_its_life(store: Store, clock: ManualClock) -> None:
    await push(store, job("a"), mark=mark(life="10s"))
    await store.cancel(QUEUE, ["a"])

    clock.advance("9999ms")
    assert (await push(store, job("a"), mark=mark(life="10s"))).repeated
    assert await counts(store) == Counts()

    clock.advance("1ms")
    again = await push(store, job("a"), mark=mark(life="10s"))
    assert again == Pushed([Moved(Event.ACCEPTED, "a", NOW + 10_000, due_at=NOW + 10_000)], NOW + 10_000)
    assert await counts(store) == Counts(ready=1)


async def test_a_repeat_does_not_lengthen_the_life(store: Store, clock: ManualClock) -> None:
    await push(store, job("a"), mark=mark(life="10s"))
    clock.advance("6s")
    await push(store, job("a"), mark=mark(life="10s"))
    clock.advance("6s")

    assert not (await push(store, job("a"), mark=mark(life="10s"))).repeated


async def test_a_mark_past_its_life_takes_any_digest(store: Store, clock: ManualClock) -> None:
    await push(store, job("a"), mark=mark(digest=b"one", life="1s"))
    clock.advance("1s")

    pushed = await push(store, job("b"), mark=mark(digest=b"other", life="1s"))

    assert not pushed.repeated
    with pytest.raises(MarkMismatch):
        await push(store, job("a"), mark=mark(digest=b"one"))


@pytest.mark.parametrize("refusal", [JobExists, ExpiresBeforeDue])
async def test_a_refused_request_sets_no_mark(store: Store, refusal: type[Exception]) -> None:
    await push_one(store, "taken")
    bad = job("taken") if refusal is JobExists else job("new", delay=2, ttl=1)

    with pytest.raises(refusal):
        await push(store, job("a"), bad, if_exists=IfExists.ERROR, mark=mark(digest=b"bad"))

    pushed = await push(store, job("a"), if_exists=IfExists.ERROR, mark=mark(digest=b"good"))
    assert not pushed.repeated
    assert await states(store) == {"taken": "ready", "a": "ready"}


async def test_the_mark_is_checked_first(store: Store) -> None:
    await push(store, job("a"), mark=mark(), if_exists=IfExists.ERROR)

    again = await push(store, job("a"), mark=mark(), if_exists=IfExists.ERROR)

    assert again.repeated


async def test_two_requests_with_one_mark_in_one_call(store: Store) -> None:
    answers = as_lists(
        await store.push(QUEUE, [Push([job("a")], mark=mark()), Push([job("a")], mark=mark()), Push([job("b")])])
    )

    accepted = [Moved(Event.ACCEPTED, "a", NOW, due_at=NOW)]
    assert answers == [
        Pushed(accepted, NOW),
        Pushed(accepted, NOW, repeated=True),
        Pushed([Moved(Event.ACCEPTED, "b", NOW, due_at=NOW)], NOW),
    ]


async def test_a_mark_belongs_to_its_queue(store: Store) -> None:
    await push(store, job("a"), mark=mark())

    pushed = await push(store, job("a"), mark=mark(digest=b"another"), queue=OTHER)

    assert not pushed.repeated


async def test_a_large_answer_is_repeated_completely(store: Store) -> None:
    jobs = [job(f"{n:03}-é-{'x' * 100}") for n in range(500)]
    first = await push(store, *jobs, mark=mark())

    again = await push(store, *jobs, mark=mark())

    assert again == Pushed(first.jobs, NOW, repeated=True)


async def test_a_repeat_in_a_paused_queue(store: Store) -> None:
    await push(store, job("a"), mark=mark())
    await pause(store)

    assert (await push(store, job("a"), mark=mark())).repeated


async def test_a_repeat_does_not_touch_a_leased_job(store: Store) -> None:
    lease = await given_leased(store, "a")
    first = await push(store, job("a"), mark=mark())
    assert first.jobs == [Moved(Event.KEPT, "a", NOW, attempt=1, reason="leased")]
    await ack_one(store, lease)

    again = await push(store, job("a"), mark=mark())

    assert again == Pushed(first.jobs, NOW, repeated=True)
    assert await counts(store) == Counts()


async def test_marks_do_not_count_as_jobs(store: Store) -> None:
    await push(store, job("a"), mark=mark())
    await store.cancel(QUEUE, ["a"])

    assert await counts(store) == Counts()
    assert (await store.purge(QUEUE, list(State))).removed == 0


async def test_a_mark_outlives_a_clock_that_was_ahead_for_a_while(store: Store, clock: ManualClock) -> None:
    first = await push(store, job("a"), mark=mark(life="1m"))

    # When the clock is half an hour ahead as the reaper comes by, and is set right again
    clock.advance("30m")
    await store.reap()
    clock.set(NOW + 1000)

    assert await push(store, job("a"), mark=mark(life="1m")) == Pushed(first.jobs, NOW + 1000, repeated=True)
