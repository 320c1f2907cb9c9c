"""How many jobs a reserve takes: limits, shares of the priorities, several asks, and the bounds of a call."""

import pytest

from duetime.model.job import (
    MAX_BODY,
    STEP_BYTES,
    STEP_JOBS,
    Counts,
    Priority,
)
from duetime.stores.base import Ask, RulesChange, Store
from tests.contract.vocabulary import (
    LOW,
    NORMAL,
    NOW,
    QUEUE,
    counts,
    job,
    nothing_reserved,
    push,
    push_one,
    reserve,
    reserve_asks,
    reserve_some,
    reserved_ids,
)

QUOTAS = (5, 3, 2)

# --- limits, quotas and several asks


async def test_a_limit_holds(store: Store) -> None:
    await push(store, *[job(f"{n}") for n in range(5)])

    assert await reserved_ids(store, 2) == ["0", "1"]
    assert await reserved_ids(store, 2) == ["2", "3"]
    assert await reserved_ids(store, 2) == ["4"]


@pytest.mark.store_only
async def test_a_limit_of_nothing_gives_nothing(store: Store) -> None:
    await push_one(store, "a")

    assert await reserve(store, 0) == nothing_reserved(NOW)


async def push_of_each(store: Store, count: int) -> None:
    for priority in Priority:
        await push(store, *[job(f"{priority.name[0]}{n:02}", priority=priority) for n in range(count)])


async def shares(store: Store, limit: int, quotas: tuple[int, int, int]) -> str:
    return "".join(job_id[0] for job_id in await reserved_ids(store, limit, quotas=quotas))


async def test_quotas_are_taken_high_normal_low(store: Store) -> None:
    await push_of_each(store, 20)

    assert await shares(store, 10, QUOTAS) == "HHHHHNNNLL"
    assert await shares(store, 10, QUOTAS) == "HHHHHNNNLL"


@pytest.mark.store_only
async def test_slots_beyond_the_quotas_are_filled_by_priority(store: Store) -> None:
    await push_of_each(store, 20)

    assert await shares(store, 12, QUOTAS) == "HHHHHNNNLLHH"


async def test_an_unused_share_goes_to_the_others(store: Store) -> None:
    await push_of_each(store, 3)

    # high has 3 for its 5, so that two places are left, and all that waits is one low job
    assert await shares(store, 10, QUOTAS) == "HHHNNNLLL"


async def test_unused_slots_go_to_the_highest_priority_first(store: Store) -> None:
    await push(store, *[job(f"N{n}", priority=NORMAL) for n in range(9)])
    await push(store, *[job(f"L{n}", priority=LOW) for n in range(9)])

    assert await shares(store, 10, QUOTAS) == "NNNLLNNNNN"


@pytest.mark.store_only
async def test_quotas_beyond_the_limit_are_cut(store: Store) -> None:
    await push_of_each(store, 9)

    assert await shares(store, 6, QUOTAS) == "HHHHHN"
    assert await shares(store, 2, (0, 0, 9)) == "LL"


@pytest.mark.store_only
async def test_no_quotas_is_strict_priority(store: Store) -> None:
    await push_of_each(store, 3)

    assert await shares(store, 7, (0, 0, 0)) == "HHHNNNL"


async def test_a_strict_queue_ignores_quotas(store: Store) -> None:
    await push_of_each(store, 9)
    await store.configure(QUEUE, RulesChange(strict=True))

    assert await shares(store, 10, QUOTAS) == "HHHHHHHHHN"


@pytest.mark.store_only
async def test_several_asks_are_served_one_after_the_other(store: Store) -> None:
    await push_of_each(store, 3)

    reserved = await reserve_asks(
        store, Ask(2, 1000), Ask(0, 1000), Ask(3, 2000, (0, 1, 1)), Ask(500, 3000), Ask(1, 1000)
    )

    given = [[delivery.lease.id for delivery in deliveries] for deliveries in reserved.deliveries]
    assert given == [["H00", "H01"], [], ["N00", "L00", "H02"], ["N01", "N02", "L01", "L02"], []]
    ends = [{delivery.lease_until - NOW for delivery in deliveries} for deliveries in reserved.deliveries]
    assert ends == [{1000}, set(), {2000}, {3000}, set()]
    assert reserved.next_at is None
    assert await counts(store) == Counts(leased=9)


async def test_no_asks_give_nothing(store: Store) -> None:
    await push_one(store, "a")

    assert await reserve_asks(store) == nothing_reserved(NOW, asks=0)


# --- bounds


@pytest.mark.store_only
async def test_a_call_ends_at_its_bound_of_jobs(store: Store) -> None:
    await push(store, *[job(f"{n:04}", due_at=NOW - 1) for n in range(STEP_JOBS)])
    await push(store, *[job(f"{n:04}") for n in range(STEP_JOBS, STEP_JOBS + 10)])

    reserved = await reserve_asks(store, Ask(STEP_JOBS - 1, 1000), Ask(STEP_JOBS, 1000))

    assert [len(deliveries) for deliveries in reserved.deliveries] == [STEP_JOBS - 1, 1]
    assert reserved.next_at == NOW
    assert await counts(store) == Counts(ready=10, leased=STEP_JOBS)
    assert await reserved_ids(store) == [f"{n:04}" for n in range(STEP_JOBS, STEP_JOBS + 10)]


async def test_a_call_ends_at_its_bound_of_bytes(store: Store) -> None:
    fitting = STEP_BYTES // MAX_BODY
    await push(store, *[job(f"{n}", b"x" * MAX_BODY) for n in range(fitting + 2)])

    assert await reserved_ids(store) == [f"{n}" for n in range(fitting)]
    assert await counts(store) == Counts(ready=2, leased=fitting)
    reserved = await reserve_asks(store, Ask(1, 1000), Ask(9, 1000))
    assert [[d.lease.id for d in given] for given in reserved.deliveries] == [["4"], ["5"]]


LARGE_ATTRIBUTES = {f"{n:02}": "x" * 4094 for n in range(64)}


async def test_attributes_count_against_the_bytes(store: Store) -> None:
    # Given jobs of 256 KiB each, all of it in attributes, so that 16 fit into a call
    count, size = 20, 64 * 4096
    for n in range(count):
        await push_one(store, f"{n:02}", b"", attributes=LARGE_ATTRIBUTES)

    given = await reserve_some(store)

    # Then a store may count what it puts around them, but not ignore them
    assert STEP_BYTES // size - 1 <= len(given) <= STEP_BYTES // size
    assert all(delivery.attributes == LARGE_ATTRIBUTES for delivery in given)
    assert await counts(store) == Counts(ready=count - len(given), leased=len(given))
    rest = await reserved_ids(store)
    assert [delivery.lease.id for delivery in given] + rest == [f"{n:02}" for n in range(count)]


@pytest.mark.store_only
async def test_a_job_that_does_not_fit_in_the_step_waits_for_the_next(store: Store) -> None:
    # Given a body that fits alone, one that fills the step to one byte too many, and a small one behind it
    await push_one(store, "1", b"x" * MAX_BODY)
    await push_one(store, "2", b"x" * (STEP_BYTES - MAX_BODY + 1))
    await push_one(store, "3", b"small")

    first = await reserve(store, 9)
    assert [delivery.lease.id for delivery in first.deliveries[0]] == ["1"]
    assert first.next_at == NOW
    assert await reserved_ids(store) == ["2", "3"]


@pytest.mark.store_only
async def test_at_least_one_job_is_given_whatever_its_size(store: Store) -> None:
    await push_one(store, "a", b"x" * (STEP_BYTES + 1))
    await push_one(store, "b", b"small")

    assert await reserved_ids(store) == ["a"]
    assert await reserved_ids(store) == ["b"]


@pytest.mark.store_only
async def test_empty_bodies_do_not_count_against_the_bytes(store: Store) -> None:
    await push(store, *[job(f"{n}", b"") for n in range(5)])
    await push_one(store, "z", b"x" * (STEP_BYTES + 1))

    assert await reserved_ids(store) == ["0", "1", "2", "3", "4", "z"]
