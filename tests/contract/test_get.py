"""get: all there is to know about a job, in any state, without moving it."""

import pytest

from duetime.model.clock import ManualClock
from duetime.model.job import MAX_ERROR, STEP_BYTES, STEP_JOBS, Counts, Priority, State
from duetime.stores.base import Store, get_all
from tests.contract.vocabulary import (
    HIGH,
    LOW,
    NOW,
    OTHER,
    QUEUE,
    YEAR_2100,
    counts,
    found,
    get_one,
    given_dead,
    given_expired,
    given_leased,
    job,
    keep_expired,
    push,
    push_one,
    shown_job,
)


async def test_no_such_job(store: Store) -> None:
    await push_one(store, "a", queue=OTHER)

    assert await get_one(store, "a") is None
    assert list(await store.queues()) == [OTHER]


async def test_many_ids_in_order(store: Store) -> None:
    await push(store, job("a", b"1"), job("b", b"2"))

    jobs = await store.get(QUEUE, ["b", "none", "a", "b"])

    assert [found and (found.id, found.body) for found in jobs] == [("b", b"2"), None, ("a", b"1"), ("b", b"2")]
    assert list(await store.get(QUEUE, [])) == []


async def test_a_delayed_job_with_everything(store: Store) -> None:
    await push_one(
        store,
        "a",
        b"\0\xff",
        due_at=YEAR_2100,
        ttl="36500d",
        tries=0,
        priority=LOW,
        attributes={"trace": "1", "é": "日本"},
    )

    assert await get_one(store, "a") == shown_job(
        state=State.DELAYED,
        body=b"\0\xff",
        due_at=YEAR_2100,
        priority=Priority.LOW,
        tries=0,
        expires_at=NOW + 36_500 * 86_400_000,
        attributes={"trace": "1", "é": "日本"},
    )


async def test_the_clock_turns_delayed_into_ready(store: Store, clock: ManualClock) -> None:
    await push_one(store, "a", delay="10s")

    seen = []
    for at in (NOW, NOW + 9999, NOW + 10_000, NOW + 9999):
        clock.set(at)
        seen.append((await found(store, "a")).state)

    assert seen == [State.DELAYED, State.DELAYED, State.READY, State.DELAYED]


async def test_a_leased_job(store: Store, clock: ManualClock) -> None:
    await given_leased(store, "a", ttr="30s", ttl="1h", priority=HIGH)
    clock.advance("1h")

    assert await get_one(store, "a") == shown_job(
        state=State.LEASED,
        priority=Priority.HIGH,
        used=1,
        attempt=1,
        expires_at=NOW + 3_600_000,
        lease_until=NOW + 30_000,
    )


async def test_a_dead_job(store: Store) -> None:
    await given_dead(store, "a", error="x" * MAX_ERROR, ttl="1h")

    assert await get_one(store, "a") == shown_job(
        state=State.DEAD, used=1, attempt=1, dead_at=NOW, reason="killed", error="x" * MAX_ERROR
    )


@pytest.mark.parametrize("kept", [False, True], ids=["dropped", "kept"])
async def test_an_expired_job_is_not_there(store: Store, clock: ManualClock, kept: bool) -> None:
    if kept:
        await keep_expired(store)
    await given_expired(store, clock, "a")

    assert await get_one(store, "a") is None
    assert await counts(store) == Counts(dead=1 if kept else 0, expired=1)


async def test_a_leased_job_past_its_ttl_is_there(store: Store, clock: ManualClock) -> None:
    await given_leased(store, "a", ttl="1s")
    clock.advance("1h")

    assert (await found(store, "a")).state is State.LEASED


async def test_an_answer_ends_at_a_number_of_ids(store: Store) -> None:
    await push_one(store, "id-0")
    ids = [f"id-{number}" for number in range(STEP_JOBS + 1)]

    jobs = await store.get(QUEUE, ids)

    assert [one and one.id for one in jobs] == ["id-0"] + [None] * (STEP_JOBS - 1)


async def test_an_answer_ends_at_a_number_of_bytes_and_says_where_to_go_on(store: Store) -> None:
    ids = [f"id-{number}" for number in range(8)]
    body = b"x" * (STEP_BYTES // 4)
    for job_id in ids:
        await push_one(store, job_id, body)

    first = await store.get(QUEUE, ids)

    assert 1 <= len(first) < len(ids)
    assert [one and (one.id, one.body) for one in await get_all(store, QUEUE, ids)] == [(one, body) for one in ids]
