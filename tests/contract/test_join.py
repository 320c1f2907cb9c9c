"""finish with a join: the last of several jobs to end pushes what follows from all of them, once."""

import asyncio

import pytest

from duetime.model.clock import ManualClock
from duetime.model.errors import BodyTooLarge, DuetimeError, LeaseLost
from duetime.model.job import STEP_JOBS, Counts, Event, Lease, NewJob, State
from duetime.model.names import Queue
from duetime.stores.base import RulesChange, Store
from duetime.stores.finishes import Finish, Finished, Join, JoinCount
from tests.contract.vocabulary import (
    QUEUE,
    ack_one,
    counts,
    given_leased,
    job,
    push,
    reserve_one,
    reserve_some,
    reserved_ids,
    states,
)

LIFE_MS = 3_600_000


def join(of: int, *then: NewJob, name: str = "g", life_ms: int = LIFE_MS) -> Join:
    return Join(name, of, then or [job("g~>all")], life_ms)


async def members(store: Store, size: int) -> list[Lease]:
    await push(store, *[job(f"g~>{n}") for n in range(size)])
    leases = [delivery.lease for delivery in await reserve_some(store, size)]
    return sorted(leases, key=lambda lease: int(lease.id[3:]))


def joined(answers: object) -> list[object]:
    return [one.joined if isinstance(one, Finished) else one for one in answers]  # type: ignore[attr-defined]


async def test_the_last_one_pushes_the_follow_ups(store: Store) -> None:
    [a, b, c] = await members(store, 3)
    three = join(3, job("g~>all", b"sum", delay="5s"), job("g~>log"))

    assert joined(await store.finish(QUEUE, [Finish(a, join=three)])) == [1]
    assert joined(await store.finish(QUEUE, [Finish(b, [job("g~>x")], join=three)])) == [2]
    assert await states(store) == {"g~>2": "leased", "g~>x": "ready"}
    [last] = await store.finish(QUEUE, [Finish(c, [job("g~>y")], join=three)])

    assert isinstance(last, Finished)
    assert [(moved.id, moved.event) for moved in last.then] == [
        ("g~>y", Event.ACCEPTED),
        ("g~>all", Event.ACCEPTED),
        ("g~>log", Event.ACCEPTED),
    ]
    assert last.joined == 3
    assert await states(store) == {"g~>x": "ready", "g~>y": "ready", "g~>all": "delayed", "g~>log": "ready"}


async def test_all_in_one_call(store: Store) -> None:
    leases = await members(store, 100)

    answers = await store.finish(QUEUE, [Finish(lease, (), b"r", LIFE_MS, join(100)) for lease in leases])

    assert joined(answers) == list(range(1, 101))
    assert [len(answer.then) for answer in answers if isinstance(answer, Finished)] == [0] * 99 + [1]
    assert await reserved_ids(store) == ["g~>all"]


async def test_a_repeated_finish_does_not_count_again(store: Store) -> None:
    [a, b] = await members(store, 2)

    await store.finish(QUEUE, [Finish(a, join=join(2))])
    assert list(await store.finish(QUEUE, [Finish(a, join=join(2)), Finish(a, join=join(2))])) == [None, None]
    assert await counts(store) == Counts(leased=1)
    [last] = await store.finish(QUEUE, [Finish(b, join=join(2))])

    assert isinstance(last, Finished)
    assert await states(store) == {"g~>all": "ready"}
    await ack_one(store, (await reserve_one(store)).lease)
    assert list(await store.finish(QUEUE, [Finish(b, join=join(2))])) == [None]
    assert await states(store) == {}


async def test_a_lost_lease_does_not_count(store: Store) -> None:
    [a, b] = await members(store, 2)
    await store.release(b, 0)

    [lost] = await store.finish(QUEUE, [Finish(b, join=join(2))])
    assert isinstance(lost, LeaseLost)
    assert joined(await store.finish(QUEUE, [Finish(a, join=join(2))])) == [1]
    again = (await reserve_one(store)).lease
    assert joined(await store.finish(QUEUE, [Finish(again, join=join(2))])) == [2]
    assert await states(store) == {"g~>all": "ready"}


async def test_a_plain_ack_does_not_count(store: Store) -> None:
    [a, b] = await members(store, 2)
    await ack_one(store, a)
    assert joined(await store.finish(QUEUE, [Finish(b, join=join(2))])) == [1]
    assert await states(store) == {}


async def test_a_join_of_one_is_complete_immediately_and_begins_again(store: Store) -> None:
    [a, b] = await members(store, 2)

    [first, second] = await store.finish(QUEUE, [Finish(a, join=join(1)), Finish(b, join=join(1))])

    assert isinstance(first, Finished)
    assert isinstance(second, Finished)
    assert [moved.event for moved in (*first.then, *second.then)] == [Event.ACCEPTED, Event.KEPT]
    assert await states(store) == {"g~>all": "ready"}


async def test_joins_of_other_names_and_queues_are_others(store: Store) -> None:
    [a, b, c] = await members(store, 3)
    answers = await store.finish(
        QUEUE,
        [Finish(a, join=join(3)), Finish(b, join=join(3, name="g~>two")), Finish(c, join=join(3, name="g~>two"))],
    )
    assert joined(answers) == [1, 1, 2]


async def test_a_follow_up_may_have_the_id_of_a_joined_job(store: Store) -> None:
    [a, b, c] = await members(store, 3)
    three = join(3, job("g~>0", b"again"), job("g~>2", b"again"))

    await store.finish(QUEUE, [Finish(a, join=three), Finish(b, join=three), Finish(c, join=three)])

    assert await states(store) == {"g~>0": "ready", "g~>2": "ready"}
    assert [delivery.body for delivery in await reserve_some(store)] == [b"again", b"again"]


async def test_a_refused_follow_up_leaves_the_last_job_leased(store: Store) -> None:
    [a, b] = await members(store, 2)
    await store.configure(QUEUE, RulesChange(max_body=3))
    large = join(2, job("g~>all", b"12345"))

    assert joined(await store.finish(QUEUE, [Finish(a, join=large)])) == [1]
    [refused] = await store.finish(QUEUE, [Finish(b, join=large)])
    assert isinstance(refused, BodyTooLarge)
    assert refused.fields["id"] == "g~>all"
    assert await states(store) == {"g~>1": "leased"}
    assert joined(await store.finish(QUEUE, [Finish(b, join=join(2, job("g~>all", b"1")))])) == [2]


async def test_a_join_is_kept_for_its_life_and_through_a_purge(store: Store, clock: ManualClock) -> None:
    [a, b, c] = await members(store, 3)
    await store.finish(QUEUE, [Finish(a, join=join(3, life_ms=1000))])
    clock.advance("999ms")
    await store.reap()
    assert joined(await store.finish(QUEUE, [Finish(b, join=join(3, life_ms=1000))])) == [2]
    await store.purge(QUEUE, list(State))
    lease = await given_leased(store, "g~>late")
    clock.advance("999ms")
    assert joined(await store.finish(QUEUE, [Finish(lease, join=join(9, life_ms=1000))])) == [3]
    lease = await given_leased(store, "g~>later")
    clock.advance("1000ms")
    assert joined(await store.finish(QUEUE, [Finish(lease, join=join(9, life_ms=1000))])) == [1]
    assert c


async def test_results_do_not_see_a_join(store: Store) -> None:
    [a, _] = await members(store, 2)
    await store.finish(QUEUE, [Finish(a, join=join(2))])
    assert list(await store.results(QUEUE, ["g", "g~>0"])) == [None, None]


async def test_callers_that_finish_at_the_same_time_push_once(store: Store) -> None:
    leases = await members(store, 40)

    async def finish(lease: Lease) -> Finished | DuetimeError | None:
        [answer] = await store.finish(QUEUE, [Finish(lease, join=join(40))])
        return answer

    answers = await asyncio.gather(*map(finish, leases))

    assert sorted(answer.joined for answer in answers if isinstance(answer, Finished)) == list(range(1, 41))
    assert await states(store) == {"g~>all": "ready"}


@pytest.mark.store_only
async def test_two_calls_that_repeat_each_other_push_once(store: Store) -> None:
    leases = await members(store, 30)
    finishes = [Finish(lease, join=join(30)) for lease in leases]

    first, second = await asyncio.gather(store.finish(QUEUE, finishes), store.finish(QUEUE, finishes[::-1]))

    assert sum(isinstance(answer, Finished) for answer in (*first, *second)) == 30
    assert await states(store) == {"g~>all": "ready"}


# --- counts that go to another store


@pytest.mark.store_only
async def test_counts_are_listed_while_they_count(store: Store, clock: ManualClock) -> None:
    leases = await members(store, 5)
    await store.finish(QUEUE, [Finish(leases[0], (), b"result", LIFE_MS, join(3, name="g~>b"))])
    await store.finish(QUEUE, [Finish(lease, join=join(3, name="g~>a")) for lease in leases[1:3]])
    clock.advance(1)

    counting = [JoinCount("g~>a", 2, LIFE_MS - 1_000), JoinCount("g~>b", 1, LIFE_MS - 1_000)]
    assert list(await store.joins(QUEUE)) == counting
    assert list(await store.joins(QUEUE, after="g~>a")) == counting[1:]
    assert list(await store.joins(Queue("shop", "another"))) == []
    await store.finish(QUEUE, [Finish(leases[3], join=join(3, name="g~>a"))])
    assert list(await store.joins(QUEUE)) == counting[1:]
    clock.advance(LIFE_MS // 1000)
    assert list(await store.joins(QUEUE)) == []


@pytest.mark.store_only
async def test_a_raised_count_continues(store: Store, clock: ManualClock) -> None:
    [a, b] = await members(store, 2)
    for count in (3, 1):  # it never falls
        await store.raise_joins(QUEUE, [JoinCount("g~>sum", count, 5_000), JoinCount("g~>other", 1, 5_000)])
    assert [one.count for one in await store.joins(QUEUE)] == [1, 3]
    clock.advance(4)

    assert joined(await store.finish(QUEUE, [Finish(a, join=join(5, name="g~>sum"))])) == [4]
    clock.advance(LIFE_MS // 1000 - 1)
    assert joined(await store.finish(QUEUE, [Finish(b, join=join(5, name="g~>sum"))])) == [5]
    assert await states(store) == {"g~>all": "ready"}
    assert list(await store.joins(QUEUE)) == []


@pytest.mark.store_only
async def test_a_raised_count_ends(store: Store, clock: ManualClock) -> None:
    [a] = await members(store, 1)
    await store.raise_joins(QUEUE, [JoinCount("g~>sum", 3, 5_000)])
    clock.advance(5)
    assert list(await store.joins(QUEUE)) == []
    assert joined(await store.finish(QUEUE, [Finish(a, join=join(5, name="g~>sum"))])) == [1]


@pytest.mark.store_only
async def test_a_list_of_counts_ends_at_its_bound(store: Store) -> None:
    many = [JoinCount(f"g~>{number:04}", 1, LIFE_MS) for number in range(STEP_JOBS + 3)]
    await store.raise_joins(QUEUE, many[:STEP_JOBS])
    await store.raise_joins(QUEUE, many[STEP_JOBS:])
    first = await store.joins(QUEUE)
    rest = await store.joins(QUEUE, after=first[-1].name)
    assert [one.name for one in (*first, *rest)] == [one.name for one in many]
    assert len(first) == STEP_JOBS
