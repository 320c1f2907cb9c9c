"""heads: the earliest due time per queue, for waiters that look at many queues at once."""

from duetime.model.clock import ManualClock
from duetime.model.names import Queue
from duetime.stores.base import Store
from tests.contract.vocabulary import (
    HIGH,
    LOW,
    NOW,
    OTHER,
    QUEUE,
    given_dead,
    given_expired,
    given_leased,
    job,
    pause,
    push,
    push_one,
    reap,
    resume,
)


async def head(store: Store, queue: Queue = QUEUE) -> int | None:
    [at] = await store.heads([queue])
    return at


async def test_each_queue_is_answered_in_order(store: Store) -> None:
    await push(store, job("a", delay="5s", priority=HIGH), job("b", delay="2s", priority=LOW))
    await push_one(store, "c", due_at=NOW - 9, queue=OTHER)

    heads = await store.heads([OTHER, Queue("no", "such"), QUEUE, OTHER])

    assert list(heads) == [NOW - 9, None, NOW + 2000, NOW - 9]
    assert list(await store.heads([])) == []
    assert list(await store.queues()) == [QUEUE, OTHER]


async def test_leased_and_dead_jobs_do_not_wait(store: Store) -> None:
    lease = await given_leased(store, "a")
    assert await head(store) is None

    await store.release(lease, 1000)
    assert await head(store) == NOW + 1000

    await store.cancel(QUEUE, ["a"])
    await given_dead(store, "b")
    assert await head(store) is None


async def test_a_paused_queue_shows_none(store: Store) -> None:
    await push_one(store, "a")
    await pause(store)
    assert await head(store) is None

    await resume(store)
    assert await head(store) == NOW


async def test_expired_jobs_show_until_they_are_ended(store: Store, clock: ManualClock) -> None:
    await given_expired(store, clock, "a")
    assert await head(store) == NOW

    await reap(store)
    assert await head(store) is None
