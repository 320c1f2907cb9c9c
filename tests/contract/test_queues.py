"""queues: every queue that was pushed to or configured, until it is purged or nobody has used it for a while."""

import pytest

from duetime.model.clock import ManualClock
from duetime.model.errors import DuetimeError
from duetime.model.job import Counts, State
from duetime.model.names import Queue
from duetime.stores.base import IDLE_MS, Push, QueueRules, RulesChange, Store
from tests.contract.vocabulary import (
    NOW,
    OTHER,
    QUEUE,
    ack_one,
    cancel_one,
    counts,
    given_dead,
    given_leased,
    job,
    push_one,
    reap,
    reserve_one,
)


async def test_an_empty_store_has_none(store: Store) -> None:
    assert list(await store.queues()) == []
    assert list(await store.queues("shop")) == []


async def test_they_come_sorted_and_by_namespace(store: Store) -> None:
    queues = [Queue("b", "x"), Queue("a", "z"), Queue("a", "a"), Queue("A", "z"), Queue("a", "z.1"), Queue("a.b", "c")]
    for queue in queues:
        await push_one(store, "a", queue=queue)

    assert list(await store.queues()) == sorted(queues)
    assert list(await store.queues("a")) == [Queue("a", "a"), Queue("a", "z"), Queue("a", "z.1")]
    assert list(await store.queues("none")) == []


async def test_a_queue_stays_when_its_jobs_are_gone(store: Store) -> None:
    await ack_one(store, await given_leased(store, "a"))
    await push_one(store, "b", queue=OTHER)
    await cancel_one(store, "b", OTHER)

    assert list(await store.queues()) == [QUEUE, OTHER]


async def test_a_configured_queue_is_there_without_jobs(store: Store) -> None:
    await store.configure(QUEUE, RulesChange(strict=True))

    assert list(await store.queues()) == [QUEUE]


async def test_asking_for_rules_makes_no_queue(store: Store) -> None:
    await store.configure(QUEUE)

    assert list(await store.queues()) == []


async def test_a_refused_push_makes_no_queue(store: Store) -> None:
    [answer] = await store.push(QUEUE, [Push([job("a", delay="2s", ttl="1s")])])

    assert isinstance(answer, DuetimeError)
    assert list(await store.queues()) == []


async def test_a_purged_queue_is_gone_until_it_is_used_again(store: Store) -> None:
    await push_one(store, "a")
    await store.purge(QUEUE, list(State))
    assert list(await store.queues()) == []

    await push_one(store, "a")
    assert list(await store.queues()) == [QUEUE]


async def test_many_queues(store: Store) -> None:
    queues = [Queue(f"ns{n % 3}", f"q{n:03}") for n in range(150)]
    for queue in queues:
        await push_one(store, "a", queue=queue)

    assert list(await store.queues()) == sorted(queues)
    assert list(await store.queues("ns1")) == sorted(queue for queue in queues if queue.namespace == "ns1")


# --- forgetting


async def empty(store: Store, clock: ManualClock, end: str) -> None:
    """A queue whose one job has ended just now."""
    match end:
        case "ack":
            await ack_one(store, await given_leased(store, "a"))
        case "cancel":
            await push_one(store, "a", delay="1h")
            await cancel_one(store, "a")
        case "delete":
            await given_dead(store, "a")
            await cancel_one(store, "a")
        case "purge":
            await push_one(store, "a")
            await store.purge(QUEUE, [State.READY])
        case _:
            await push_one(store, "a", ttl="1s")
            clock.advance("1001ms")
            await reap(store)


@pytest.mark.parametrize("end", ["ack", "cancel", "delete", "purge", "expiry"])
async def test_an_empty_queue_that_nobody_pushes_to_is_forgotten(store: Store, clock: ManualClock, end: str) -> None:
    await empty(store, clock, end)

    clock.advance(f"{IDLE_MS - 1}ms")
    assert await reap(store) == []
    assert list(await store.queues()) == [QUEUE]

    clock.advance("1ms")
    await store.reap()
    assert list(await store.queues()) == []
    assert await counts(store) == Counts()
    assert (await store.reap()).next_at is None


async def test_a_push_keeps_an_empty_queue(store: Store, clock: ManualClock) -> None:
    await ack_one(store, await given_leased(store, "a"))
    clock.advance("5m")
    await ack_one(store, await given_leased(store, "b"))

    clock.set(NOW + IDLE_MS)
    await store.reap()
    assert list(await store.queues()) == [QUEUE]

    clock.advance("5m")
    await store.reap()
    assert list(await store.queues()) == []


@pytest.mark.parametrize("what", ["delayed", "leased", "dead", "rules"])
async def test_a_queue_that_holds_something_is_never_forgotten(store: Store, clock: ManualClock, what: str) -> None:
    match what:
        case "delayed":
            await push_one(store, "a", delay="30d")
        case "leased":
            await given_leased(store, "a", ttr="30d")
        case "dead":
            await given_dead(store, "a")
        case _:
            await ack_one(store, await given_leased(store, "a"))
            await store.configure(QUEUE, RulesChange(max_jobs=7, paused=True))

    for _ in range(3):
        clock.advance("1d")
        assert await reap(store) == []

    assert list(await store.queues()) == [QUEUE]
    if what == "rules":
        assert await store.configure(QUEUE) == QueueRules(max_jobs=7, paused=True)
        await store.configure(QUEUE, RulesChange(max_jobs=0, paused=False))
        await store.reap()
        assert list(await store.queues()) == []


async def test_borns_rise_over_the_forgetting_of_a_queue(store: Store, clock: ManualClock) -> None:
    # Given a lease of a job that ended, in a queue that was forgotten since
    lease = await given_leased(store, "a")
    await ack_one(store, lease)
    clock.advance(f"{IDLE_MS}ms")
    await store.reap()
    assert list(await store.queues()) == []

    # When the clock steps back, and the id comes again
    clock.set(NOW)
    await push_one(store, "a")

    # Then the old lease does not fit
    assert (await reserve_one(store)).lease.born > lease.born
    [answer] = await store.ack(QUEUE, [lease])
    assert isinstance(answer, DuetimeError)
    assert list(await store.queues()) == [QUEUE]
