"""counts: exact at one instant, whoever has or has not come by since."""

from msgspec.structs import replace

from duetime.model.clock import ManualClock
from duetime.model.job import Counts
from duetime.model.names import Queue
from duetime.stores.base import RulesChange, Store
from tests.contract.vocabulary import (
    HIGH,
    LOW,
    NOW,
    OTHER,
    QUEUE,
    counts,
    given_dead,
    given_leased,
    job,
    keep_expired,
    pause,
    push,
    push_one,
    reap,
    reserve_some,
)


async def test_an_unknown_queue_has_none_of_anything(store: Store) -> None:
    assert list(await store.counts([QUEUE])) == [Counts(now=NOW)]
    assert list(await store.queues()) == []


async def test_each_queue_is_answered_in_order(store: Store, clock: ManualClock) -> None:
    await push(store, job("a"), job("b", delay="1h"))
    await given_dead(store, "c", queue=OTHER)
    clock.advance("1s")

    answers = await store.counts([OTHER, Queue("no", "such"), QUEUE])

    now = NOW + 1000
    assert [replace(one, cold=0) for one in answers] == [
        Counts(dead=1, now=now),
        Counts(now=now),
        Counts(delayed=1, ready=1, now=now),
    ]
    assert list(await store.counts([])) == []


async def test_every_priority_counts(store: Store) -> None:
    await push(store, job("a", priority=HIGH), job("b"), job("c", priority=LOW), job("d", delay=1, priority=LOW))

    assert await counts(store) == Counts(delayed=1, ready=3)


async def test_time_alone_turns_delayed_into_ready_into_expired(store: Store, clock: ManualClock) -> None:
    await push(store, job("a", delay="1s", ttl="2s"), job("b", delay="2s", ttl="3s"), job("c", delay="1s"))

    seen = {}
    for at in (0, 999, 1000, 2000, 2001, 3000, 3001):
        clock.set(NOW + at)
        seen[at] = await counts(store)

    assert seen == {
        0: Counts(delayed=3),
        999: Counts(delayed=3),
        1000: Counts(delayed=1, ready=2),
        2000: Counts(ready=3),
        2001: Counts(ready=2, expired=1),
        3000: Counts(ready=2, expired=1),
        3001: Counts(ready=1, expired=2),
    }


async def test_a_leased_job_counts_as_leased_until_it_is_taken_back(store: Store, clock: ManualClock) -> None:
    await given_leased(store, "a", ttr="1s", ttl="2s")
    clock.advance("1h")
    assert await counts(store) == Counts(leased=1)

    await reap(store)
    assert await counts(store) == Counts(expired=1)


async def test_expired_counts_for_every_way_to_end(store: Store, clock: ManualClock) -> None:
    # Given four expired jobs
    await push(store, *[job(job_id, ttl="1s") for job_id in "abcd"])
    lease = (await reserve_some(store, 1))[0].lease
    clock.advance("1001ms")
    assert await counts(store) == Counts(leased=1, expired=3)

    # When a release, a push, a reserve and a reap end one each, or find that nothing is left
    await store.release(lease, 0)
    assert await counts(store) == Counts(expired=4)
    await push_one(store, "b", delay="1h")
    assert await counts(store) == Counts(delayed=1, expired=4)
    await reserve_some(store)
    assert await counts(store) == Counts(delayed=1, expired=4)
    await reap(store)
    assert await counts(store) == Counts(delayed=1, expired=4)


async def test_expired_jobs_that_the_queue_keeps_count_as_dead_from_the_first_moment(
    store: Store, clock: ManualClock
) -> None:
    await keep_expired(store)
    await push(store, job("a", ttl="1s"), job("b", ttl="2s"), job("c"))

    clock.advance("1001ms")
    assert await counts(store) == Counts(ready=2, dead=1, expired=1)
    await reap(store)
    assert await counts(store) == Counts(ready=2, dead=1, expired=1)
    clock.advance("1s")
    assert await counts(store) == Counts(ready=1, dead=2, expired=2)


async def test_a_changed_rule_concerns_only_jobs_that_have_not_ended(store: Store, clock: ManualClock) -> None:
    await push_one(store, "a", ttl="1s")
    clock.advance("1001ms")
    await reap(store)
    await push_one(store, "b", ttl="1s")
    clock.advance("1001ms")

    await keep_expired(store)
    assert await counts(store) == Counts(dead=1, expired=2)
    await store.configure(QUEUE, RulesChange(expired_to_dead=False))
    assert await counts(store) == Counts(expired=2)


async def test_a_paused_queue_counts_as_usual(store: Store, clock: ManualClock) -> None:
    await pause(store)
    await push(store, job("a"), job("b", delay="1s"), job("c", ttl="500ms"))
    assert await counts(store) == Counts(delayed=1, ready=2)

    clock.advance("1s")
    assert await counts(store) == Counts(ready=2, expired=1)


async def test_counting_moves_nothing(store: Store, clock: ManualClock) -> None:
    await push_one(store, "a", ttl="1s")
    clock.advance("1001ms")

    assert await counts(store) == await counts(store) == Counts(expired=1)
    clock.set(NOW)
    assert await counts(store) == Counts(ready=1)
