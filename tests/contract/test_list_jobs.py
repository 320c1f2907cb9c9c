"""list_jobs: pages through one state in a fixed order; who stays is seen exactly once."""

import itertools

import pytest

from duetime.model.clock import ManualClock
from duetime.model.errors import InvalidRequest
from duetime.model.job import Counts, Priority, State
from duetime.stores.base import Cursor, Page, Store
from tests.contract.vocabulary import (
    HIGH,
    LOW,
    NOW,
    ODD_IDS,
    OTHER,
    QUEUE,
    as_lists,
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
    walk,
)

PAGE_SIZES = [1, 2, 3, 100]


async def ids(store: Store, state: State, limit: int = 100) -> list[str]:
    return [job.id for job in await walk(store, state, limit=limit)]


@pytest.mark.parametrize("state", State)
async def test_nothing_is_one_empty_page(store: Store, state: State) -> None:
    assert as_lists(await store.list_jobs(QUEUE, state)) == Page([], None)
    assert list(await store.queues()) == []


@pytest.mark.parametrize("state", State)
async def test_a_listed_job_is_the_job_that_get_shows(store: Store, state: State) -> None:
    options = {"ttl": "1h", "priority": HIGH, "attributes": {"trace": "1"}, "tries": 3}
    match state:
        case State.DELAYED:
            await push_one(store, "a", b"body", delay="1m", **options)
        case State.READY:
            await store.release(await given_leased(store, "a", body=b"body", **options), 0, "it failed")
        case State.LEASED:
            await given_leased(store, "a", body=b"body", **options)
        case State.DEAD:
            await given_dead(store, "a", body=b"body", error="it failed", **options)

    page = await store.list_jobs(QUEUE, state)

    assert list(page.jobs) == [await found(store, "a")]
    assert page.jobs[0].state is state
    for other in set(State) - {state}:
        assert await ids(store, other) == []


@pytest.mark.parametrize("limit", PAGE_SIZES)
async def test_ready_jobs_come_as_they_would_be_delivered(store: Store, clock: ManualClock, limit: int) -> None:
    mixes = list(itertools.product(Priority, [NOW, NOW + 1], ["a", "b"]))
    jobs = [job(f"{name}-{priority}-{due}", due_at=due, priority=priority) for priority, due, name in mixes]
    await push(store, *jobs[::-1], job("delayed", delay="1h"))
    clock.advance("1ms")

    assert await ids(store, State.READY, limit) == [each.id for each in jobs]


@pytest.mark.parametrize("limit", PAGE_SIZES)
async def test_delayed_jobs_come_by_due_time_whatever_their_priority(store: Store, limit: int) -> None:
    await push(
        store,
        job("c", delay="2s", priority=LOW),
        job("a", delay="3s", priority=HIGH),
        job("b", delay="2s", priority=HIGH),
        job("d", delay="1s"),
        job("ready"),
    )

    assert await ids(store, State.DELAYED, limit) == ["d", "b", "c", "a"]


@pytest.mark.parametrize("limit", PAGE_SIZES)
async def test_leased_jobs_come_by_the_end_of_their_lease(store: Store, limit: int) -> None:
    for job_id, ttr in (("a", "3s"), ("b", "1s"), ("d", "2s"), ("c", "2s")):
        await given_leased(store, job_id, ttr=ttr)

    assert await ids(store, State.LEASED, limit) == ["b", "c", "d", "a"]


@pytest.mark.parametrize("limit", PAGE_SIZES)
async def test_dead_jobs_come_longest_dead_first(store: Store, clock: ManualClock, limit: int) -> None:
    for job_id in ("z", "y", "c", "b"):
        await given_dead(store, job_id, priority=HIGH if job_id == "b" else LOW)
        if job_id != "c":
            clock.advance("1s")

    assert await ids(store, State.DEAD, limit) == ["z", "y", "b", "c"]


@pytest.mark.parametrize("limit", PAGE_SIZES)
async def test_odd_ids_survive_a_cursor(store: Store, limit: int) -> None:
    await push(store, *[job(job_id) for job_id in ODD_IDS])

    assert await ids(store, State.READY, limit) == sorted(ODD_IDS)


@pytest.mark.parametrize("cursor", ["", "x", "1:2", "a:b:c", "1:-1:x", "1:1e3:x", "1:" + "9" * 16 + ":x", "1:1:\0"])
async def test_a_cursor_from_elsewhere_is_refused(store: Store, cursor: str) -> None:
    await push(store, job("a"))

    for state in State:
        with pytest.raises(InvalidRequest, match="cursor"):
            await store.list_jobs(QUEUE, state, cursor=cursor)


async def test_a_list_begins_at_an_instant(store: Store) -> None:
    await push(store, *[job(f"{n}", delay=f"{n}s") for n in range(1, 9)])

    page = await store.list_jobs(QUEUE, State.DELAYED, cursor=str(Cursor(0, NOW + 6000, "")))

    assert [each.id for each in page.jobs] == ["6", "7", "8"]


async def test_a_full_last_page_may_have_a_cursor_but_the_walk_ends(store: Store) -> None:
    await push(store, job("a"), job("b"))

    first = await store.list_jobs(QUEUE, State.READY, limit=2)

    assert [each.id for each in first.jobs] == ["a", "b"]
    assert await ids(store, State.READY, 2) == ["a", "b"]


async def test_many_jobs_in_one_millisecond(store: Store) -> None:
    await push(store, *[job(f"{n:03}", delay="1h") for n in range(250)])

    assert await ids(store, State.DELAYED, 100) == [f"{n:03}" for n in range(250)]


async def test_expired_jobs_are_not_listed(store: Store, clock: ManualClock) -> None:
    await given_expired(store, clock, "a")
    await push_one(store, "b")

    assert await ids(store, State.READY, 1) == ["b"]
    assert await ids(store, State.DEAD) == []


async def test_a_page_of_expired_jobs_does_not_end_the_walk(store: Store, clock: ManualClock) -> None:
    await push(store, *[job(f"{n:02}", ttl="1s") for n in range(20)])
    clock.advance("1001ms")
    await push(store, job("a"), job("b"))

    assert await ids(store, State.READY, 3) == ["a", "b"]
    assert await counts(store) == Counts(ready=2, expired=20)


async def test_dead_by_expiry_is_listed_once_it_was_ended(store: Store, clock: ManualClock) -> None:
    await keep_expired(store)
    await given_expired(store, clock, "a")

    await store.reap()

    [dead] = await walk(store, State.DEAD)
    assert (dead.id, dead.reason) == ("a", "expired")


@pytest.mark.parametrize("state", State)
async def test_jobs_that_stay_are_listed_exactly_once_while_others_change(
    store: Store, clock: ManualClock, state: State
) -> None:
    async def add(job_id: str) -> None:
        match state:
            case State.DELAYED:
                await push_one(store, job_id, delay="1h")
            case State.READY:
                await push_one(store, job_id)
            case State.LEASED:
                await given_leased(store, job_id)
            case State.DEAD:
                await given_dead(store, job_id)

    # Given ten who stay and ten who leave, one by one in time
    for n in range(10):
        await add(f"stay-{n}")
        await add(f"leave-{n}")
        clock.advance("1ms")

    # When between any two pages one leaves (from the front, the middle or the end) and one comes
    seen: list[str] = []
    cursor: str | None = None
    leaving = iter([0, 9, 4, 1, 5, 8, 2, 7, 3, 6])
    for step in itertools.count():
        page = await store.list_jobs(QUEUE, state, cursor=cursor, limit=2)
        seen += [each.id for each in page.jobs]
        cursor = page.cursor
        if cursor is None:
            break
        assert step < 100, "the walk does not end"
        if (leaver := next(leaving, None)) is not None:
            assert await cancel_one(store, f"leave-{leaver}") is not None
            await add(f"come-{step}")
            clock.advance("1ms")

    assert [job_id for job_id in seen if job_id.startswith("stay")] == [f"stay-{n}" for n in range(10)]
    assert len(seen) == len(set(seen))


async def test_the_job_under_the_cursor_may_go(store: Store) -> None:
    await push(store, *[job(f"{n}") for n in range(6)])
    page = await store.list_jobs(QUEUE, State.READY, limit=3)
    for each in page.jobs:
        await cancel_one(store, each.id)

    rest = await store.list_jobs(QUEUE, State.READY, cursor=page.cursor, limit=3)

    assert [each.id for each in rest.jobs] == ["3", "4", "5"]


async def test_another_queue_is_another_list(store: Store) -> None:
    await push_one(store, "a")
    await push_one(store, "b", queue=OTHER)

    assert [each.id for each in await walk(store, State.READY, OTHER)] == ["b"]
