"""configure: the rules that verbs obey in the same step: paused, strict, expired_to_dead and the caps."""

import pytest
from msgspec.structs import replace

from duetime.model.clock import ManualClock
from duetime.model.errors import BodyTooLarge, MarkMismatch, QueueFull, TopicOffline
from duetime.model.job import Counts, Event, IfExists, Moved
from duetime.stores.base import Mark, Push, Pushed, QueueRules, RulesChange, Store
from tests.contract.vocabulary import (
    HIGH,
    LOW,
    NOW,
    OTHER,
    QUEUE,
    ack_one,
    cancel_one,
    counts,
    found,
    give_back_one,
    given_dead,
    given_expired,
    given_leased,
    job,
    nothing_reserved,
    pause,
    push,
    push_one,
    reap,
    replace_one,
    reschedule_one,
    reserve,
    reserved_ids,
    resume,
    states,
)


async def test_a_queue_starts_without_rules(store: Store) -> None:
    assert await store.configure(QUEUE) == QueueRules()
    await push_one(store, "a")
    assert await store.configure(QUEUE) == QueueRules()


async def test_only_what_is_set_changes(store: Store) -> None:
    assert await store.configure(QUEUE, RulesChange(strict=True, max_jobs=10)) == QueueRules(strict=True, max_jobs=10)
    assert await store.configure(QUEUE, RulesChange(paused=True, max_body=5)) == QueueRules(
        paused=True, strict=True, max_jobs=10, max_body=5
    )
    assert await store.configure(QUEUE, RulesChange(expired_to_dead=True, strict=False)) == QueueRules(
        paused=True, expired_to_dead=True, max_jobs=10, max_body=5
    )
    assert await store.configure(QUEUE, RulesChange(max_jobs=0)) == QueueRules(
        paused=True, expired_to_dead=True, max_body=5
    )


async def test_rules_can_be_read(store: Store) -> None:
    rules = QueueRules(
        paused=True, strict=True, expired_to_dead=True, max_jobs=3, max_body=1_048_576, kept=True, offline=True
    )
    await store.configure(QUEUE, RulesChange(True, True, True, 3, 1_048_576, True, True))

    assert await store.configure(QUEUE) == await store.configure(QUEUE, RulesChange()) == rules


async def test_repeating_a_change_changes_nothing_more(store: Store) -> None:
    change = RulesChange(strict=True, max_jobs=2)

    assert await store.configure(QUEUE, change) == await store.configure(QUEUE, change)


async def test_another_queue_has_its_own(store: Store) -> None:
    await store.configure(QUEUE, RulesChange(paused=True))

    assert await store.configure(OTHER) == QueueRules()


# --- paused


async def test_a_paused_queue_takes_pushes_and_gives_none(store: Store, clock: ManualClock) -> None:
    await pause(store)

    assert await push_one(store, "a") == Moved(Event.ACCEPTED, "a", NOW, due_at=NOW)
    assert await push_one(store, "b", delay="1s") == Moved(Event.ACCEPTED, "b", NOW, due_at=NOW + 1000)
    assert await reserve(store) == nothing_reserved(paused=True)
    assert await counts(store) == Counts(delayed=1, ready=1)

    clock.advance("1s")
    assert await counts(store) == Counts(ready=2)
    await resume(store)
    assert await reserved_ids(store) == ["a", "b"]


async def test_everything_else_works_while_a_queue_is_paused(store: Store) -> None:
    leases = {job_id: await given_leased(store, job_id) for job_id in ("ack", "release", "give_back", "kill", "extend")}
    await given_dead(store, "dead")
    await push_one(store, "moved", delay="1h")
    await push_one(store, "cancelled", delay="1h")
    await pause(store)

    assert await ack_one(store, leases["ack"]) == Moved(Event.ACKED, "ack", NOW, 1)
    assert (await store.release(leases["release"], 0)).event is Event.RELEASED
    assert (await give_back_one(store, leases["give_back"])).event is Event.GIVEN_BACK
    assert (await store.kill(leases["kill"])).event is Event.DEAD
    assert await store.extend(leases["extend"], 5) == NOW + 5
    assert len(await store.respawn(QUEUE, ids=["dead"])) == 1
    assert await reschedule_one(store, "moved") == Moved(Event.RESCHEDULED, "moved", NOW, due_at=NOW)
    assert await cancel_one(store, "cancelled") == Moved(Event.CANCELLED, "cancelled", NOW)

    assert await states(store) == {
        "release": "ready",
        "give_back": "ready",
        "kill": "dead",
        "extend": "leased",
        "dead": "ready",
        "moved": "ready",
    }


async def test_expired_jobs_end_while_a_queue_is_paused(store: Store, clock: ManualClock) -> None:
    await pause(store)
    await given_expired(store, clock, "a")

    assert await counts(store) == Counts(expired=1)
    assert await reserve(store) == nothing_reserved(now=NOW + 1001, paused=True)
    assert await reap(store) == [Moved(Event.EXPIRED, "a", NOW)]


# --- strict


@pytest.mark.store_only
async def test_a_strict_queue_serves_by_priority_alone(store: Store) -> None:
    await push(store, *[job(f"h{n}", priority=HIGH) for n in range(3)], job("l", priority=LOW))
    await store.configure(QUEUE, RulesChange(strict=True))

    assert await reserved_ids(store, 2, quotas=(1, 0, 1)) == ["h0", "h1"]

    await store.configure(QUEUE, RulesChange(strict=False))
    assert await reserved_ids(store, 2, quotas=(0, 0, 1)) == ["l", "h2"]


# --- max_body


async def test_a_body_as_large_as_allowed_is_taken_and_a_larger_one_refused(store: Store) -> None:
    await store.configure(QUEUE, RulesChange(max_body=5))

    await push_one(store, "a", b"12345")
    with pytest.raises(BodyTooLarge) as caught:
        await push_one(store, "b", b"123456")

    assert caught.value.fields["id"] == "b"
    assert await states(store) == {"a": "ready"}


async def test_a_body_is_measured_in_bytes(store: Store) -> None:
    await store.configure(QUEUE, RulesChange(max_body=5))

    with pytest.raises(BodyTooLarge):
        await push_one(store, "a", "ééé".encode())


async def test_a_cap_on_bodies_holds_for_jobs_that_would_be_kept(store: Store) -> None:
    await push_one(store, "a", b"123456789")
    await store.configure(QUEUE, RulesChange(max_body=5))

    with pytest.raises(BodyTooLarge):
        await push_one(store, "a", b"123456789")
    assert await push_one(store, "a", b"123") == Moved(Event.KEPT, "a", NOW, due_at=NOW, reason="waiting")


async def test_one_large_body_refuses_its_request_and_no_other(store: Store) -> None:
    await store.configure(QUEUE, RulesChange(max_body=5))

    answers = await store.push(QUEUE, [Push([job("a", b"1"), job("b", b"123456")]), Push([job("c", b"1")])])

    assert [type(answer) for answer in answers] == [BodyTooLarge, Pushed]
    assert await states(store) == {"c": "ready"}


# --- max_jobs


async def test_a_full_queue_refuses_new_jobs(store: Store) -> None:
    await store.configure(QUEUE, RulesChange(max_jobs=2))
    await push(store, job("a"), job("b"))

    with pytest.raises(QueueFull) as caught:
        await push_one(store, "c")

    assert caught.value.fields["max_jobs"] == 2
    assert await states(store) == {"a": "ready", "b": "ready"}


async def test_a_request_that_does_not_fit_is_refused_completely(store: Store) -> None:
    await store.configure(QUEUE, RulesChange(max_jobs=2))

    answers = await store.push(
        QUEUE, [Push([job("a"), job("b"), job("c")]), Push([job("d")]), Push([job("e"), job("f")]), Push([job("g")])]
    )

    assert [type(answer) for answer in answers] == [QueueFull, Pushed, QueueFull, Pushed]
    assert await states(store) == {"d": "ready", "g": "ready"}


async def test_jobs_in_every_state_count(store: Store) -> None:
    await store.configure(QUEUE, RulesChange(max_jobs=4))
    await given_dead(store, "dead")
    await given_leased(store, "leased")
    await push(store, job("ready"), job("delayed", delay="1h"))

    with pytest.raises(QueueFull):
        await push_one(store, "more")

    await cancel_one(store, "dead")
    await push_one(store, "more")


async def test_expired_jobs_count_until_they_are_ended(store: Store, clock: ManualClock) -> None:
    await store.configure(QUEUE, RulesChange(max_jobs=1))
    await given_expired(store, clock, "a")

    with pytest.raises(QueueFull):
        await push_one(store, "b")

    await reap(store)
    await push_one(store, "b")


async def test_a_full_queue_accepts_pushes_that_add_nothing(store: Store, clock: ManualClock) -> None:
    await store.configure(QUEUE, RulesChange(max_jobs=1))
    await push_one(store, "a", ttl="1s")

    assert (await push_one(store, "a")).event is Event.KEPT
    assert (await replace_one(store, "a", ttl="1s")).event is Event.REPLACED
    assert [moved.event for moved in (await push(store, job("a"), job("a"), if_exists=IfExists.REPLACE)).jobs] == [
        Event.REPLACED
    ] * 2
    await replace_one(store, "a", ttl="1s")
    clock.advance("1001ms")
    taken = await push_one(store, "a")
    assert (taken.event, taken.reason) == (Event.ACCEPTED, "expired")


async def test_an_id_twice_in_a_request_adds_once(store: Store) -> None:
    await store.configure(QUEUE, RulesChange(max_jobs=1))

    pushed = await push(store, job("a"), job("a"))

    assert [moved.event for moved in pushed.jobs] == [Event.ACCEPTED, Event.KEPT]


async def test_a_cap_below_what_is_there_removes_nothing(store: Store) -> None:
    await push(store, job("a"), job("b"), job("c"))

    await store.configure(QUEUE, RulesChange(max_jobs=1))

    assert await counts(store) == Counts(ready=3)
    with pytest.raises(QueueFull):
        await push_one(store, "d")
    assert await reserved_ids(store) == ["a", "b", "c"]


async def test_a_full_queue_takes_its_own_jobs_back(store: Store) -> None:
    await store.configure(QUEUE, RulesChange(max_jobs=1))
    lease = await given_leased(store, "a", tries=1)

    assert (await store.release(lease, 0)).event is Event.DEAD
    assert len(await store.respawn(QUEUE, ids=["a"])) == 1
    assert await counts(store) == Counts(ready=1)


# --- offline


async def test_an_offline_queue_refuses_every_push_and_nothing_else(store: Store) -> None:
    await push(store, job("ready"), job("delayed", delay="1h"))
    lease = await given_leased(store, "leased", tries=1)
    await store.configure(QUEUE, RulesChange(offline=True))

    for if_exists in IfExists:
        answers = await store.push(
            QUEUE, [Push([job("ready"), job("new")], if_exists), Push([job("other")], if_exists)]
        )
        assert [type(answer) for answer in answers] == [TopicOffline] * 2

    assert (await store.release(lease, 0)).event is Event.DEAD
    assert len(await store.respawn(QUEUE, ids=["leased"])) == 1
    assert isinstance(await reschedule_one(store, "delayed", delay_ms=0), Moved)
    assert sorted(await reserved_ids(store)) == ["delayed", "leased", "ready"]


async def test_an_online_queue_takes_jobs_again(store: Store) -> None:
    await store.configure(QUEUE, RulesChange(offline=True, kept=True))
    await store.configure(QUEUE, RulesChange(offline=False))

    assert (await push_one(store, "a")).event is Event.ACCEPTED
    assert await store.configure(QUEUE) == QueueRules(kept=True)


async def test_an_offline_queue_takes_jobs_that_were_accepted_before(store: Store) -> None:
    await store.configure(QUEUE, RulesChange(offline=True))

    [answer] = await store.push(QUEUE, [Push([replace(job("a"), born=NOW - 1000, attempt=2)])])

    assert isinstance(answer, Pushed)
    assert [(moved.event, moved.born) for moved in answer.jobs] == [(Event.ACCEPTED, NOW - 1000)]


async def test_a_push_that_is_repeated_by_its_mark_is_answered_offline(store: Store) -> None:
    mark = Mark("m", b"1", 60_000)
    await store.push(QUEUE, [Push([job("a")], mark=mark)])
    await store.configure(QUEUE, RulesChange(offline=True))

    first, second, third = await store.push(
        QUEUE,
        [
            Push([job("a")], mark=mark),
            Push([job("a")], mark=Mark("m", b"2", 60_000)),
            Push([job("b")], mark=Mark("n", b"1", 60_000)),
        ],
    )

    assert isinstance(first, Pushed)
    assert first.repeated
    assert isinstance(second, MarkMismatch)
    assert isinstance(third, TopicOffline)


async def test_an_offline_queue_is_never_forgotten(store: Store, clock: ManualClock) -> None:
    await store.configure(QUEUE, RulesChange(offline=True))
    clock.advance("2h")
    await reap(store)

    with pytest.raises(TopicOffline):
        await push_one(store, "a")


# --- expired_to_dead


async def test_expired_to_dead_changes_what_has_not_been_ended(store: Store, clock: ManualClock) -> None:
    await given_expired(store, clock, "a")

    await store.configure(QUEUE, RulesChange(expired_to_dead=True))

    assert await reap(store) == [Moved(Event.DEAD, "a", NOW, reason="expired")]
    dead = await found(store, "a")
    assert (dead.reason, dead.used, dead.attempt) == ("expired", 0, 0)
