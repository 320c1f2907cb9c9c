"""purge: removes what is asked for, fences off what runs, and forgets an emptied queue."""

import itertools

import pytest

from duetime.model.clock import ManualClock
from duetime.model.errors import LeaseLost
from duetime.model.job import STEP_JOBS, Counts, State
from duetime.stores.base import Purged, QueueRules, RulesChange, Store
from tests.contract.vocabulary import (
    NOW,
    OTHER,
    QUEUE,
    counts,
    found,
    given_dead,
    given_expired,
    given_leased,
    job,
    mark,
    push,
    push_one,
    reap,
    reserve_one,
    states,
)

ALL = list(State)


async def one_in_each_state(store: Store) -> None:
    await given_dead(store, "dead", ttl="1h")
    await given_leased(store, "leased", ttl="1h")
    await push(store, job("ready", ttl="1h"), job("delayed", delay="1m", ttl="1h"))


@pytest.mark.parametrize(
    "chosen",
    [set(chosen) for size in range(4) for chosen in itertools.combinations(State, size)],
    ids=lambda chosen: "+".join(sorted(chosen)) or "none",
)
async def test_only_the_given_states_are_removed(store: Store, chosen: set[State]) -> None:
    await one_in_each_state(store)

    assert await store.purge(QUEUE, sorted(chosen)) == Purged(len(chosen), NOW)

    assert await states(store) == {state.value: state.value for state in State if state not in chosen}
    left = {state.value: 0 if state in chosen else 1 for state in State}
    assert await counts(store) == Counts(**left)


async def test_reading_a_purged_queue_does_not_keep_it(store: Store) -> None:
    await push_one(store, "a")
    await store.purge(QUEUE, ALL)
    await store.configure(QUEUE, RulesChange())

    await reap(store)

    assert await store.queues() == []


async def test_all_states_remove_everything_and_forget_the_queue(store: Store, clock: ManualClock) -> None:
    await one_in_each_state(store)
    await given_expired(store, clock, "expired")
    await reap(store)
    assert (await counts(store)).expired == 1

    assert await store.purge(QUEUE, ALL) == Purged(4, NOW + 1001)

    assert await counts(store) == Counts()
    assert list(await store.queues()) == []
    clock.advance("1d")
    assert await reap(store) == []


async def test_all_states_with_a_limit_do_not_forget_the_queue(store: Store, clock: ManualClock) -> None:
    await given_expired(store, clock, "expired")
    await reap(store)
    await one_in_each_state(store)

    assert await store.purge(QUEUE, ALL, limit=100) == Purged(4, NOW + 1001)

    assert await counts(store) == Counts(expired=1)
    assert list(await store.queues()) == [QUEUE]


async def test_rules_stay_with_their_queue(store: Store) -> None:
    await push_one(store, "a")
    await store.configure(QUEUE, RulesChange(max_jobs=7, strict=True))

    assert await store.purge(QUEUE, ALL) == Purged(1, NOW)

    assert list(await store.queues()) == [QUEUE]
    assert await store.configure(QUEUE) == QueueRules(max_jobs=7, strict=True)


async def test_marks_stay(store: Store) -> None:
    first = await push(store, job("a"), mark=mark())
    await store.purge(QUEUE, ALL)

    again = await push(store, job("a"), mark=mark())

    assert (again.jobs, again.repeated) == (first.jobs, True)
    assert await counts(store) == Counts()


async def test_a_running_job_is_fenced_off(store: Store) -> None:
    lease = await given_leased(store, "a")
    await store.purge(QUEUE, [State.LEASED])

    assert list(await store.ack(QUEUE, [lease])) == [None]
    with pytest.raises(LeaseLost):
        await store.release(lease, 0)


async def test_another_queue_is_left_alone(store: Store) -> None:
    await push_one(store, "a")
    await push_one(store, "a", queue=OTHER)

    await store.purge(QUEUE, ALL)

    assert await states(store, OTHER) == {"a": "ready"}
    assert list(await store.queues()) == [OTHER]


@pytest.mark.parametrize("state", State)
async def test_the_oldest_go_first(store: Store, clock: ManualClock, state: State) -> None:
    # Given five, one each millisecond, which makes them older one by one in every state
    for n in range(5):
        match state:
            case State.DELAYED:
                await push_one(store, f"{n}", delay="1h")
            case State.READY:
                await push_one(store, f"{n}")
            case State.LEASED:
                await given_leased(store, f"{n}")
            case State.DEAD:
                await given_dead(store, f"{n}")
        clock.advance("1ms")

    assert await store.purge(QUEUE, [state], limit=2) == Purged(2, NOW + 5)
    assert await states(store) == {f"{n}": state.value for n in (2, 3, 4)}
    assert await store.purge(QUEUE, [state], limit=3) == Purged(3, NOW + 5)
    assert await states(store) == {}


@pytest.mark.store_only
async def test_a_call_ends_at_its_bound_and_reports_more(store: Store) -> None:
    for batch in "ab":
        await push(store, *[job(f"{batch}{n:03}") for n in range(400)])

    assert await store.purge(QUEUE, [State.READY]) == Purged(STEP_JOBS, NOW, more=True)
    assert await counts(store) == Counts(ready=800 - STEP_JOBS)
    assert await store.purge(QUEUE, [State.READY]) == Purged(800 - STEP_JOBS, NOW)
    assert await counts(store) == Counts()


@pytest.mark.store_only
async def test_a_limit_beyond_the_bound_ends_at_the_bound(store: Store) -> None:
    for batch in "ab":
        await push(store, *[job(f"{batch}{n:03}") for n in range(300)])

    assert await store.purge(QUEUE, [State.READY], limit=550) == Purged(STEP_JOBS, NOW, more=True)


async def test_a_queue_of_any_size_is_purged(store: Store) -> None:
    for batch in "ab":
        await push(store, *[job(f"{batch}{n:03}") for n in range(400)])

    removed, more = 0, True
    while more:
        purged = await store.purge(QUEUE, ALL)
        removed, more = removed + purged.removed, purged.more

    assert removed == 800
    assert await counts(store) == Counts()
    assert list(await store.queues()) == []

    # The reaper removes what is left behind, bit by bit; the store is sound before and after.
    for _ in range(3):
        assert await reap(store) == []
        assert list(await store.check()) == []


async def test_expired_jobs_that_are_met_count_as_removed(store: Store, clock: ManualClock) -> None:
    await given_expired(store, clock, "a")
    await push_one(store, "b")

    assert await store.purge(QUEUE, [State.READY]) == Purged(2, NOW + 1001)
    assert await counts(store) == Counts()
    assert await reap(store) == []


async def test_nothing_to_purge(store: Store) -> None:
    assert await store.purge(QUEUE, ALL) == Purged(0, NOW)
    assert await store.purge(QUEUE, [State.DEAD]) == Purged(0, NOW)
    assert list(await store.queues()) == []


async def test_nothing_of_a_purged_job_comes_back_with_its_id(store: Store) -> None:
    await given_dead(store, "a", error="it failed", attributes={"old": "yes"}, ttl="1h")
    await store.purge(QUEUE, [State.DEAD])

    await push_one(store, "a")

    again = await found(store, "a")
    assert (again.error, again.attributes, again.attempt, again.used, again.expires_at) == ("", {}, 0, 0, 0)
    delivery = await reserve_one(store)
    assert (delivery.lease.attempt, delivery.used) == (1, 1)
