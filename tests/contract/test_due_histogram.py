"""due_histogram: how many jobs fall due when."""

import pytest

from duetime.model.clock import ManualClock
from duetime.stores.base import Store
from tests.contract.vocabulary import (
    HIGH,
    LOW,
    NOW,
    OTHER,
    QUEUE,
    YEAR_2100,
    given_dead,
    given_expired,
    given_leased,
    job,
    push,
    push_one,
    reap,
)


async def test_each_bucket_holds_its_lower_edge_and_not_its_upper(store: Store) -> None:
    await push(store, *[job(str(at), due_at=NOW + at) for at in (-1, 0, 9, 10, 19, 20, 21)])

    edges = [NOW, NOW + 10, NOW + 20]

    assert list(await store.due_histogram(QUEUE, edges)) == [2, 2]


async def test_every_priority_counts(store: Store) -> None:
    await push(store, job("a", priority=HIGH), job("b"), job("c", priority=LOW))

    assert list(await store.due_histogram(QUEUE, [NOW, NOW + 1])) == [3]


async def test_only_waiting_jobs_are_counted(store: Store) -> None:
    await given_leased(store, "a")
    await given_dead(store, "b")
    await push_one(store, "c", queue=OTHER)

    assert list(await store.due_histogram(QUEUE, [0, YEAR_2100])) == [0]


async def test_all_of_time(store: Store) -> None:
    await push(store, job("a", due_at=0), job("b"), job("c", due_at=YEAR_2100))

    assert list(await store.due_histogram(QUEUE, [0, 1, NOW, NOW + 1, YEAR_2100, YEAR_2100 + 1])) == [1, 0, 1, 0, 1]


async def test_expired_jobs_count_until_they_are_ended(store: Store, clock: ManualClock) -> None:
    await given_expired(store, clock, "a")
    assert list(await store.due_histogram(QUEUE, [NOW, NOW + 1])) == [1]

    await reap(store)
    assert list(await store.due_histogram(QUEUE, [NOW, NOW + 1])) == [0]


async def test_an_unknown_queue_has_zeros(store: Store) -> None:
    assert list(await store.due_histogram(QUEUE, [0, 10, 20])) == [0, 0]
    assert list(await store.queues()) == []


@pytest.mark.store_only
async def test_an_edge_alone_has_no_bucket(store: Store) -> None:
    await push_one(store, "a")

    assert list(await store.due_histogram(QUEUE, [NOW])) == []
    assert list(await store.due_histogram(QUEUE, [])) == []
