"""reap: leases that ran out come back, jobs past their ttl end, in all queues, within a bound."""

import pytest

from duetime.model.clock import ManualClock
from duetime.model.errors import LeaseLost
from duetime.model.job import Counts, Event, Moved, Priority, State
from duetime.model.names import Queue
from duetime.stores.base import IDLE_MS, Reaped, Store
from tests.contract.vocabulary import (
    HIGH,
    NOW,
    OTHER,
    QUEUE,
    as_lists,
    counts,
    found,
    get_one,
    give_back_one,
    given_dead,
    given_expired,
    given_leased,
    job,
    keep_expired,
    pause,
    push,
    push_one,
    reap,
    replace_one,
    reserve_one,
    reserve_some,
    reserved_ids,
    shown_job,
    states,
)


async def test_an_empty_store_has_nothing_to_do(store: Store) -> None:
    assert await store.reap() == Reaped({}, None, NOW)


# --- leases


async def test_a_lease_that_ran_out_comes_back(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "a", body=b"body", ttr="10s", priority=HIGH, attributes={"trace": "1"})
    clock.advance("10s")

    now = NOW + 10_000
    assert await reap(store) == [Moved(Event.LEASE_EXPIRED, "a", NOW, 1, due_at=now)]

    assert await counts(store) == Counts(ready=1)
    assert await get_one(store, "a") == shown_job(
        body=b"body", due_at=now, priority=Priority.HIGH, used=1, attempt=1, attributes={"trace": "1"}
    )
    with pytest.raises(LeaseLost):
        await store.extend(lease, 1000)
    assert (await reserve_one(store)).lease.attempt == 2


async def test_a_lease_that_runs_is_left_alone(store: Store, clock: ManualClock) -> None:
    await given_leased(store, "a", ttr="10s")
    clock.advance("9999ms")

    assert await reap(store) == []
    assert await counts(store) == Counts(leased=1)


async def test_the_last_try_that_runs_out_is_the_end(store: Store, clock: ManualClock) -> None:
    await given_leased(store, "a", ttr="10s", tries=1)
    clock.advance("15s")

    assert await reap(store) == [Moved(Event.DEAD, "a", NOW, 1, reason="tries")]
    assert await counts(store) == Counts(dead=1)
    dead = await found(store, "a")
    assert (dead.reason, dead.dead_at, dead.used) == ("tries", NOW + 15_000, 1)


async def test_a_lease_that_runs_out_after_the_ttl_expires(store: Store, clock: ManualClock) -> None:
    await given_leased(store, "a", ttr="10s", ttl="5s")
    clock.advance("6s")
    assert await reap(store) == []
    assert await counts(store) == Counts(leased=1)

    clock.advance("4s")
    assert await reap(store) == [Moved(Event.EXPIRED, "a", NOW, 1)]
    assert await counts(store) == Counts(expired=1)


async def test_a_lease_that_runs_out_at_the_last_moment_of_the_ttl_comes_back(store: Store, clock: ManualClock) -> None:
    await given_leased(store, "a", ttr="10s", ttl="10s")
    clock.advance("10s")

    assert await reap(store) == [Moved(Event.LEASE_EXPIRED, "a", NOW, 1, due_at=NOW + 10_000)]

    clock.advance("1ms")
    assert await reap(store) == [Moved(Event.EXPIRED, "a", NOW, 1)]


async def test_tries_win_over_expired(store: Store, clock: ManualClock) -> None:
    await given_leased(store, "a", ttr="10s", ttl="5s", tries=1)
    clock.advance("10s")

    assert await reap(store) == [Moved(Event.DEAD, "a", NOW, 1, reason="tries")]
    assert await counts(store) == Counts(dead=1)


async def test_the_last_error_stays(store: Store, clock: ManualClock) -> None:
    await store.release(await given_leased(store, "a"), 0, "it failed")
    await reserve_one(store, ttr="1s")
    clock.advance("1s")

    await reap(store)

    assert (await found(store, "a")).error == "it failed"


async def test_leases_come_back_earliest_first(store: Store, clock: ManualClock) -> None:
    for job_id, ttr in (("a", "3s"), ("b", "1s"), ("c", "2s"), ("d", "1s")):
        await given_leased(store, job_id, ttr=ttr)
    clock.advance("3s")

    assert [moved.id for moved in await reap(store)] == ["b", "d", "c", "a"]


# --- expired jobs


async def test_a_job_past_its_ttl_is_ended(store: Store, clock: ManualClock) -> None:
    await push_one(store, "a", ttl="1s", attributes={"trace": "1"})

    clock.advance("1s")
    assert await reap(store) == []
    clock.advance("1ms")
    assert await reap(store) == [Moved(Event.EXPIRED, "a", NOW)]
    assert await counts(store) == Counts(expired=1)
    assert await reap(store) == []
    assert await counts(store) == Counts(expired=1)


async def test_a_delayed_job_expires_too(store: Store, clock: ManualClock) -> None:
    await push_one(store, "a", delay="10s", ttl="20s")
    assert await reap(store) == []

    clock.advance("20001ms")

    assert await reap(store) == [Moved(Event.EXPIRED, "a", NOW)]


async def test_a_job_that_fell_due_between_two_passes_expires(store: Store, clock: ManualClock) -> None:
    await push_one(store, "a", delay="10s", ttl="20s")
    for _ in range(4):
        clock.advance("5s")
        assert await reap(store) == []

    clock.advance("1ms")

    assert await reap(store) == [Moved(Event.EXPIRED, "a", NOW)]


@pytest.mark.parametrize("way", ["push", "release", "give back", "lapse", "reschedule", "respawn"])
async def test_a_job_that_waits_from_before_the_last_pass_on_expires(
    store: Store, clock: ManualClock, way: str
) -> None:
    # Given a reaper that has just passed, and had to look at everything: a job was due only as its ttl ended
    lease = await given_leased(store, "a", ttl="10s", ttr="1s")
    await push_one(store, "bystander", delay="500ms", ttl="500ms")
    clock.advance("1s")
    if way != "lapse":
        await store.extend(lease, 60_000)
    await store.reap()
    assert await counts(store) == Counts(ready=1 if way == "lapse" else 0, leased=0 if way == "lapse" else 1, expired=1)

    # When a job comes to wait, due at or before that pass
    match way:
        case "push":
            await replace_one(store, "a", ttl="9s", due_at=NOW)
        case "release":
            await store.release(lease, 0)
        case "give back":
            await give_back_one(store, lease)
        case "reschedule":
            await store.release(lease, 5000)
            await store.reschedule(QUEUE, ["a"], due_at=NOW)
        case "respawn":
            await store.kill(lease)
            await store.respawn(QUEUE, ids=["a"], ttl_ms=9000)
        case _:
            assert way == "lapse"

    # Then it expires on time
    clock.set(NOW + 10_000)
    assert (await counts(store), await reap(store)) == (Counts(ready=1, expired=1), [])
    clock.advance("1ms")
    assert await counts(store) == Counts(expired=2)
    assert [(moved.event, moved.id) for moved in await reap(store)] == [(Event.EXPIRED, "a")]
    assert await counts(store) == Counts(expired=2)


async def test_jobs_that_expire_in_the_same_millisecond_end_by_id(store: Store, clock: ManualClock) -> None:
    await push(store, job("b", ttl="1s"), job("a", ttl="1s", priority=HIGH), job("c", ttl="500ms"))
    clock.advance("1001ms")

    assert [moved.id for moved in await reap(store)] == ["c", "a", "b"]


async def test_expired_jobs_go_to_the_dead_if_the_queue_says_so(store: Store, clock: ManualClock) -> None:
    await keep_expired(store)
    await given_expired(store, clock, "a")
    assert await counts(store) == Counts(dead=1, expired=1)

    assert await reap(store) == [Moved(Event.DEAD, "a", NOW, reason="expired")]

    assert await counts(store) == Counts(dead=1, expired=1)
    dead = await found(store, "a")
    assert (dead.state, dead.reason, dead.dead_at, dead.expires_at) == (State.DEAD, "expired", NOW + 1001, 0)


async def test_a_job_rescued_from_the_dead_does_not_expire_again(store: Store, clock: ManualClock) -> None:
    await keep_expired(store)
    await given_expired(store, clock, "a")
    await reap(store)

    await store.respawn(QUEUE, ids=["a"])
    clock.advance("1h")

    assert await reap(store) == []
    assert await counts(store) == Counts(ready=1, expired=1)


@pytest.mark.parametrize("end", ["ack", "cancel", "kill", "replace"])
async def test_a_job_that_ended_otherwise_does_not_expire(store: Store, clock: ManualClock, end: str) -> None:
    lease = await given_leased(store, "a", ttl="1s")
    match end:
        case "ack":
            await store.ack(QUEUE, [lease])
        case "cancel":
            await store.cancel(QUEUE, ["a"])
        case "kill":
            await store.kill(lease)
        case _:
            await replace_one(store, "a")
    clock.advance("1h")

    assert await reap(store) == []
    assert (await counts(store)).expired == 0


# --- all queues, bounds, next_at


async def test_all_queues_in_one_call(store: Store, clock: ManualClock) -> None:
    third = Queue("other-tenant", "mail")
    await given_leased(store, "a", ttr="1s")
    await push_one(store, "b", ttl="1s", queue=OTHER)
    await given_leased(store, "c", ttr="1h", queue=third)
    clock.advance("1001ms")

    reaped = as_lists(await store.reap())

    assert reaped.moved == {
        QUEUE: [Moved(Event.LEASE_EXPIRED, "a", NOW, 1, due_at=NOW + 1001)],
        OTHER: [Moved(Event.EXPIRED, "b", NOW)],
    }
    assert reaped.now == NOW + 1001
    assert reaped.next_at is not None
    assert reaped.now < reaped.next_at <= NOW + 3_600_000


async def test_a_paused_queue_is_reaped_all_the_same(store: Store, clock: ManualClock) -> None:
    await given_leased(store, "a", ttr="1s")
    await push_one(store, "b", ttl="1s")
    await pause(store)
    clock.advance("1001ms")

    assert await reap(store) == [
        Moved(Event.LEASE_EXPIRED, "a", NOW, 1, due_at=NOW + 1001),
        Moved(Event.EXPIRED, "b", NOW),
    ]


async def test_a_limit_holds_over_all_queues_and_the_answer_reports_more(store: Store, clock: ManualClock) -> None:
    for queue in (QUEUE, OTHER):
        await push(store, *[job(f"{n}", ttl="1s") for n in range(5)], *[job(f"l{n}") for n in range(5)], queue=queue)
        await reserve_some(store, 3, ttr="1s", queue=queue)
    clock.advance("1001ms")

    sizes, moved = [], []
    while not sizes or sizes[-1]:
        reaped = await store.reap(limit=3)
        moved += [(queue, each.id) for queue, seen in reaped.moved.items() for each in seen]
        sizes.append(sum(map(len, reaped.moved.values())))
        more = len(moved) < 10
        assert (reaped.next_at is not None and reaped.next_at <= reaped.now) == more

    assert all(size <= 3 for size in sizes)
    assert sorted(moved) == sorted((queue, f"{n}") for queue in (QUEUE, OTHER) for n in range(5))


async def test_500_in_one_call_by_default(store: Store, clock: ManualClock) -> None:
    await push(store, *[job(f"{n:04}", ttl="1s") for n in range(600)])
    clock.advance("1001ms")

    first, second = await reap(store), await reap(store)

    assert [len(first), len(second)] == [500, 100]
    assert await counts(store) == Counts(expired=600)


async def test_next_at_is_never_later_than_the_next_lease_end(store: Store) -> None:
    await given_leased(store, "a", ttr="10s")
    await given_leased(store, "b", ttr="5s", queue=OTHER)

    next_at = (await store.reap()).next_at

    assert next_at is not None
    assert NOW < next_at <= NOW + 5000


async def test_next_at_is_never_later_than_the_next_expiry(store: Store) -> None:
    await push_one(store, "a", ttl="10s")
    await push_one(store, "b", delay="3s", ttl="5s", queue=OTHER)

    next_at = (await store.reap()).next_at

    assert next_at is not None
    assert NOW < next_at <= NOW + 5001


@pytest.mark.store_only
async def test_following_next_at_meets_every_end_on_time(store: Store, clock: ManualClock) -> None:
    # Given ends of both kinds at known instants
    await push_one(store, "x", ttl="7s")
    await push_one(store, "y", delay="2s", ttl="3s", queue=OTHER)
    for job_id, ttr in (("a", "1s"), ("b", "5s")):
        await given_leased(store, job_id, ttr=ttr, priority=HIGH, tries=1)

    # When the reaper sleeps until what it was told, each time
    seen: list[tuple[int, str]] = []
    for _ in range(50):
        reaped = await store.reap()
        seen += [(reaped.now - NOW, moved.id) for jobs in reaped.moved.values() for moved in jobs]
        if reaped.next_at is None or reaped.next_at >= NOW + IDLE_MS:
            break  # from then on only idle queues are forgotten
        assert reaped.next_at > reaped.now
        clock.set(reaped.next_at)

    assert seen == [(1000, "a"), (3001, "y"), (5000, "b"), (7001, "x")]
    assert (await counts(store), await counts(store, OTHER)) == (Counts(dead=2, expired=1), Counts(expired=1))


async def test_waiting_and_dead_jobs_are_left_alone(store: Store, clock: ManualClock) -> None:
    await given_dead(store, "dead")
    await push(store, job("ready"), job("delayed", delay="1000d"))

    clock.advance("365d")

    assert await store.reap() == Reaped({}, None, clock.now_ms())
    assert await states(store) == {"ready": "ready", "delayed": "delayed", "dead": "dead"}
    assert await reserved_ids(store) == ["ready"]


async def test_an_unknown_receipt_is_no_error(store: Store, clock: ManualClock) -> None:
    """Another process may have said already that the jobs are on record."""
    await given_leased(store, "a", ttr="1s")
    clock.advance("2s")

    reaped = await store.reap(recorded=["01ARZ3NDEKTSV4RRFFQ69G5FAV"])

    assert [moved.id for moved in reaped.moved[QUEUE]] == ["a"]
    assert (dict(reaped.pushed), list(reaped.receipts)) == ({}, [])
