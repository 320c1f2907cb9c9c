"""reserve: order, quotas, bounds, what expires on the way, and what the answer says about the rest."""

import itertools

import pytest

from duetime.model.clock import MAX_DURATION, ManualClock
from duetime.model.job import (
    STEP_JOBS,
    Counts,
    Delivery,
    Event,
    Lease,
    Moved,
    Priority,
    State,
)
from duetime.stores.base import Ask, Push, Reserved, Store
from tests.contract.vocabulary import (
    HIGH,
    LOW,
    NORMAL,
    NOW,
    OTHER,
    QUEUE,
    YEAR_2100,
    counts,
    found,
    given_expired,
    given_leased,
    job,
    keep_expired,
    nothing_reserved,
    pause,
    push,
    push_one,
    reap,
    reserve,
    reserve_asks,
    reserve_one,
    reserve_some,
    reserved_ids,
    resume,
    shown_job,
)


async def test_an_empty_queue_gives_nothing_and_knows_no_next(store: Store) -> None:
    assert await reserve(store) == nothing_reserved()
    assert list(await store.queues()) == []


async def test_a_delivery_is_one_attempt_and_one_try(store: Store, clock: ManualClock) -> None:
    await push_one(store, "a", b"body")
    clock.advance("5s")

    reserved = await reserve(store, ttr="30s")

    lease = Lease(QUEUE, "a", NOW, 1)
    delivery = Delivery(lease, b"body", NOW, NOW + 35_000, Priority.NORMAL, tries=5, used=1)
    assert reserved == Reserved([[delivery]], None, NOW + 5000, expired=[])
    assert await counts(store) == Counts(leased=1)
    assert await found(store, "a") == shown_job(
        state=State.LEASED, body=b"body", used=1, attempt=1, lease_until=NOW + 35_000
    )


async def test_a_lease_may_be_as_long_as_it_gets(store: Store) -> None:
    await push_one(store, "a")

    [delivery] = (await store.reserve(QUEUE, [Ask(1, MAX_DURATION)])).deliveries[0]

    assert delivery.lease_until == NOW + MAX_DURATION


async def test_attempts_count_up_over_deliveries(store: Store) -> None:
    await push_one(store, "a", tries=0)

    seen = []
    for _ in range(4):
        delivery = await reserve_one(store)
        seen.append((delivery.lease.attempt, delivery.used))
        await store.release(delivery.lease, 0)

    assert seen == [(1, 1), (2, 2), (3, 3), (4, 4)]


async def test_unlimited_tries_never_run_out(store: Store) -> None:
    await push_one(store, "a", tries=0)

    for _ in range(300):
        await store.release((await reserve_one(store)).lease, 0)

    assert await counts(store) == Counts(ready=1)
    assert (await found(store, "a")).attempt == 300


# --- order


async def test_priority_then_due_at_then_id(store: Store, clock: ManualClock) -> None:
    # Given every mix of priority, due time and id, pushed in an order that helps nobody
    mixes = list(itertools.product(Priority, [NOW - 5, NOW, NOW + 5], ["a", "b"]))
    jobs = [
        job(f"{job_id}-{priority}-{due_at}", due_at=due_at, priority=priority) for priority, due_at, job_id in mixes
    ]
    await push(store, *jobs[::-1][::2], *jobs[::2])
    clock.advance("5ms")

    expected = [f"{job_id}-{priority}-{due_at}" for priority, due_at, job_id in mixes]
    assert await reserved_ids(store) == expected


async def test_within_a_millisecond_ids_decide_by_code_point(store: Store) -> None:
    ids = ["~", "a", "Z", "z", "é", "ÿ", "日", "\uffee", "🚀", "10", "9", "A", " b"]
    await push(store, *[job(job_id) for job_id in ids])

    assert await reserved_ids(store) == sorted(ids)


async def test_a_job_due_long_ago_comes_before_one_due_now(store: Store) -> None:
    await push_one(store, "now")
    await push_one(store, "yesterday", due_at=NOW - 86_400_000)
    await push_one(store, "1970", due_at=0)

    assert await reserved_ids(store) == ["1970", "yesterday", "now"]


async def test_a_job_due_in_2100_is_the_next(store: Store) -> None:
    await push_one(store, "a", due_at=YEAR_2100)

    assert await reserve(store) == nothing_reserved(YEAR_2100)


async def test_a_released_job_goes_behind_those_that_are_due_before_it(store: Store, clock: ManualClock) -> None:
    await push_one(store, "a")
    await push_one(store, "b", delay="10ms")
    delivery = await reserve_one(store)
    clock.advance("5ms")

    await store.release(delivery.lease, 10)
    clock.advance("10ms")

    assert await reserved_ids(store) == ["b", "a"]


# --- next_at


async def test_next_at_is_the_earliest_due_at_that_waits(store: Store) -> None:
    await push_one(store, "a", delay="10s", priority=HIGH)
    await push_one(store, "b", delay="5s", priority=LOW)

    assert await reserve(store) == nothing_reserved(NOW + 5000)


async def test_next_at_is_in_the_past_when_ready_jobs_are_left(store: Store) -> None:
    await push_one(store, "a", due_at=NOW - 10)
    await push_one(store, "b", due_at=NOW - 5)
    await push_one(store, "c", delay="5s")

    assert (await reserve(store)).next_at == NOW - 5
    assert (await reserve(store)).next_at == NOW + 5000


async def test_next_at_forgets_leased_and_dead_jobs(store: Store) -> None:
    lease = await given_leased(store, "a")
    assert (await reserve(store)).next_at is None

    await store.kill(lease)
    assert (await reserve(store)).next_at is None


async def test_another_queue_does_not_show(store: Store) -> None:
    await push_one(store, "a", queue=OTHER)

    assert await reserve(store) == nothing_reserved()


# --- ttl


@pytest.mark.store_only
async def test_an_expired_job_is_never_delivered_and_is_reported(store: Store, clock: ManualClock) -> None:
    await given_expired(store, clock, "a")
    await push_one(store, "b")

    reserved = await reserve(store, 5)

    assert [delivery.lease.id for delivery in reserved.deliveries[0]] == ["b"]
    assert reserved.expired == [Moved(Event.EXPIRED, "a", NOW)]
    assert reserved.next_at is None
    assert await counts(store) == Counts(leased=1, expired=1)
    assert await reap(store) == []


async def test_a_job_is_delivered_up_to_its_expiry(store: Store, clock: ManualClock) -> None:
    await push_one(store, "a", ttl="1s")

    clock.advance("1s")

    delivery = await reserve_one(store)
    assert delivery.expires_at == clock.now_ms()


@pytest.mark.store_only
async def test_an_expired_job_that_is_met_goes_to_the_dead_if_the_queue_says_so(
    store: Store, clock: ManualClock
) -> None:
    await keep_expired(store)
    await given_expired(store, clock, "a")

    reserved = await reserve(store)

    assert reserved.deliveries == [[]]
    assert reserved.expired == [Moved(Event.DEAD, "a", NOW, reason="expired")]
    assert await counts(store) == Counts(dead=1, expired=1)
    dead = await found(store, "a")
    assert (dead.state, dead.reason, dead.dead_at, dead.expires_at) == (State.DEAD, "expired", NOW + 1001, 0)


@pytest.mark.store_only
async def test_expired_jobs_count_against_the_scanned_jobs(store: Store, clock: ManualClock) -> None:
    await push(store, *[job(f"{n:04}", ttl="1ms") for n in range(STEP_JOBS + 1)])
    await push_one(store, "zzz")
    clock.advance("2ms")

    first = await reserve(store, 9)
    assert (first.deliveries, len(first.expired), first.next_at) == ([[]], STEP_JOBS, NOW)
    assert await counts(store) == Counts(ready=1, expired=STEP_JOBS + 1)

    second = await reserve(store, 9)
    assert [delivery.lease.id for delivery in second.deliveries[0]] == ["zzz"]
    assert second.expired == [Moved(Event.EXPIRED, f"{STEP_JOBS:04}", NOW)]
    assert await counts(store) == Counts(leased=1, expired=STEP_JOBS + 1)


# --- pause


async def test_a_paused_queue_gives_none_and_reports_it(store: Store) -> None:
    await push_one(store, "a")
    await pause(store)

    assert await reserve_asks(store, Ask(1, 1000), Ask(1, 1000)) == nothing_reserved(asks=2, paused=True)
    assert await counts(store) == Counts(ready=1)

    await resume(store)
    assert await reserved_ids(store) == ["a"]


# --- ids, bodies and errors in one batch


async def test_each_delivery_carries_its_own(store: Store) -> None:
    await store.push(
        QUEUE,
        [
            Push([job("a", b"one", attributes={"n": "1"})]),
            Push([job("b", b"two", ttl="1h", priority=LOW)]),
            Push([job("c", b"", tries=0, priority=HIGH)]),
        ],
    )

    deliveries = await reserve_some(store)

    assert deliveries == [
        Delivery(Lease(QUEUE, "c", NOW, 1), b"", NOW, NOW + 60_000, HIGH, tries=0, used=1),
        Delivery(Lease(QUEUE, "a", NOW, 1), b"one", NOW, NOW + 60_000, NORMAL, 5, 1, attributes={"n": "1"}),
        Delivery(Lease(QUEUE, "b", NOW, 1), b"two", NOW, NOW + 60_000, LOW, 5, 1, expires_at=NOW + 3_600_000),
    ]


async def test_the_last_error_comes_with_the_next_delivery(store: Store) -> None:
    lease = await given_leased(store, "a")
    await store.release(lease, 0, "timeout")

    delivery = await reserve_one(store)

    assert delivery.error == "timeout"


@pytest.mark.parametrize("count", [1, 2, 100, STEP_JOBS])
async def test_a_batch_is_delivered_completely(store: Store, count: int) -> None:
    await push(store, *[job(f"{n:04}", str(n).encode()) for n in range(count)])

    deliveries = await reserve_some(store, count)

    assert [(delivery.lease.id, delivery.body) for delivery in deliveries] == [
        (f"{n:04}", str(n).encode()) for n in range(count)
    ]
