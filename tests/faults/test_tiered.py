"""A tiered pool whose tiers fail at any step: no job is lost, and none is delivered again after its ack."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar
from urllib.parse import quote

import pytest

from duetime.engine import Engine
from duetime.model.clock import ManualClock, SystemClock
from duetime.model.errors import DuetimeError, InvalidSettings, JobDead, JobExists, StoreUnavailable
from duetime.model.job import Event, IfExists, Moved, State, Totals
from duetime.stores.base import Push, Pushed, RulesChange, Store
from duetime.stores.finishes import Finish, Finished, Join
from duetime.stores.memory.store import MemoryStore
from duetime.stores.open import open_store
from duetime.stores.tiered import tiers
from duetime.stores.tiered.store import TieredStore
from tests.contract.vocabulary import (
    QUEUE,
    ack_one,
    cancel_one,
    counts,
    get_one,
    given_dead,
    given_leased,
    job,
    mark,
    push,
    push_one,
    replace_one,
    reschedule_one,
    reserve_one,
    reserve_some,
    reserved_ids,
)
from tests.faults.store_faults import FaultyStore
from tests.plugins.until import until

T = TypeVar("T")

HOUR, DAY = 3_600_000, 86_400_000
HORIZON = 2 * DAY


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def hot(clock: ManualClock) -> FaultyStore:
    return FaultyStore(MemoryStore(clock))


@pytest.fixture
def cold(clock: ManualClock) -> FaultyStore:
    return FaultyStore(MemoryStore(clock))


def opening(store: Store) -> Callable[[], Awaitable[Store]]:
    async def opened() -> Store:
        return store

    return opened


@pytest.fixture
async def store(hot: FaultyStore, cold: FaultyStore, clock: ManualClock) -> AsyncIterator[TieredStore]:
    store = await TieredStore.open("pool", opening(hot), opening(cold), horizon_ms=HORIZON, clock=clock)
    yield store
    await store.close()


async def tier_of(job_id: str, hot: Store, cold: Store) -> list[str]:
    return [name for name, tier in (("hot", hot), ("cold", cold)) if await get_one(tier, job_id)]


async def comes_back(store: TieredStore, cold: FaultyStore) -> None:
    """Cold answers again."""
    cold.heal()
    await until(lambda: store._cold.is_up)


# --- where jobs live


async def test_a_job_lives_in_the_tier_of_its_due_time(store: TieredStore, hot: Store, cold: Store) -> None:
    await push(store, job("soon", delay="1d"), job("at the horizon", delay="2d"), job("later", delay="3d"))

    assert [await tier_of(one, hot, cold) for one in ("soon", "at the horizon", "later")] == [
        ["hot"],
        ["hot"],
        ["cold"],
    ]
    [counts] = await store.counts([QUEUE])
    assert (counts.delayed, counts.cold) == (3, 1)
    listed = [found.id for found in (await store.list_jobs(QUEUE, State.DELAYED)).jobs]
    assert listed == ["soon", "at the horizon", "later"]


async def test_a_job_is_promoted_before_it_is_due_and_delivered_once(
    store: TieredStore, hot: Store, cold: Store, clock: ManualClock
) -> None:
    await push(store, *(job(f"{number}", delay="3d", attributes={"n": str(number)}) for number in range(1200)))
    assert await store.promoter.run_once() == 0

    clock.advance("1d")
    assert await store.promoter.run_once() == 1200
    assert await cold.queues() == [QUEUE]
    assert (await cold.counts([QUEUE]))[0].total == 0
    assert await reserved_ids(store) == []

    clock.advance("2d")
    delivered = [one for _ in range(4) for one in await reserved_ids(store)]
    assert sorted(delivered, key=int) == [f"{number}" for number in range(1200)]
    [totals] = await store.totals([QUEUE])
    assert totals.running == Totals(accepted=1200, delivered=1200)


async def test_nothing_of_a_job_is_lost_on_the_way(store: TieredStore, clock: ManualClock) -> None:
    pushed = await push_one(store, "a", b"body", delay="3d", ttl="5d", tries=7, attributes={"to": "ann"})
    before = await get_one(store, "a")
    clock.advance("2d")
    await store.promoter.run_once()

    assert before
    assert await get_one(store, "a") == before
    clock.advance("1d")
    delivery = await reserve_one(store)
    assert (delivery.lease.born, delivery.tries, delivery.attributes) == (pushed.born, 7, {"to": "ann"})


async def test_rules_hold_in_both_tiers_and_a_paused_queue_is_promoted(
    store: TieredStore, hot: Store, clock: ManualClock
) -> None:
    await store.configure(QUEUE, RulesChange(paused=True, max_body=4))
    with pytest.raises(DuetimeError, match="body"):
        await push_one(store, "large", b"12345", delay="3d")
    await push_one(store, "a", b"1", delay="3d")
    clock.advance("2d")

    assert await store.promoter.run_once() == 1
    assert await get_one(hot, "a")


# --- verbs on jobs of the other tier


async def test_a_job_that_expired_in_cold_is_a_dead_letter_like_any_other(
    store: TieredStore, clock: ManualClock
) -> None:
    """No promoter ran for days, so that these jobs died before they were in hot."""
    await store.configure(QUEUE, RulesChange(expired_to_dead=True))
    await push(store, *[job(name, delay="3d", ttl="4d") for name in ("a", "b", "c", "d")])
    clock.advance("5d")
    assert [len(moved) for moved in (await store.reap()).moved.values()] == [4]
    await given_dead(store, "e")

    page = await store.list_jobs(QUEUE, State.DEAD)
    assert [one.id for one in page.jobs] == ["a", "b", "c", "d", "e"]
    [refused] = await store.reschedule(QUEUE, ["a"], delay_ms=3_600_000)
    assert isinstance(refused, JobDead)
    cancelled = await cancel_one(store, "b")
    assert cancelled
    assert cancelled.event is Event.DELETED
    assert [one.id for one in await store.respawn(QUEUE, ids=["c", "e", "b"])] == ["c", "e"]
    assert [one.id for one in await store.respawn(QUEUE, limit=5)] == ["a", "d"]
    assert (await counts(store)).dead == 0

    await store.promoter.run_once()
    assert sorted(await reserved_ids(store, 5)) == ["a", "c", "d", "e"]


async def test_an_id_of_cold_does_not_follow_a_second_time(store: TieredStore) -> None:
    there = await push_one(store, "far", delay="3d")
    lease = await given_leased(store, "a")
    follows = [job("far", b"again"), job("near")]

    [finished] = await store.finish(QUEUE, [Finish(lease, follows[1:], join=Join("j", 1, follows[:1], 60_000))])

    assert isinstance(finished, Finished)
    assert [(one.id, one.event) for one in finished.then] == [("near", Event.ACCEPTED), ("far", Event.KEPT)]
    assert finished.then[1].born == there.born
    assert (await counts(store)).total == 2


@pytest.mark.parametrize(("first", "second"), [("1h", "3d"), ("3d", "1h")])
async def test_an_id_that_the_other_tier_has_is_taken(store: TieredStore, first: str, second: str) -> None:
    there = await push_one(store, "a", delay=first)

    kept = await push_one(store, "a", delay=second)
    assert (kept.event, kept.born, kept.due_at) == (Event.KEPT, there.born, there.due_at)
    with pytest.raises(JobExists):
        await push_one(store, "a", delay=second, if_exists=IfExists.ERROR)


@pytest.mark.parametrize(
    ("first", "second", "tier"), [("1h", "3d", "hot"), ("3d", "1h", "hot"), ("3d", "5d", "cold"), ("48h", "2h", "hot")]
)
async def test_a_replacement_is_where_it_can_be_delivered_in_time(
    store: TieredStore, hot: Store, cold: Store, first: str, second: str, tier: str
) -> None:
    old = await push_one(store, "a", b"old", delay=first)

    new = await replace_one(store, "a", b"new", delay=second)

    assert (new.event, new.was) == (Event.REPLACED, old.born)
    assert new.born > old.born
    assert await tier_of("a", hot, cold) == [tier]
    found = await get_one(store, "a")
    assert found
    assert (found.body, found.born, found.due_at) == (b"new", new.born, new.due_at)


@pytest.mark.parametrize(
    ("first", "second", "tier"), [("1h", "3d", "hot"), ("3d", "1h", "hot"), ("3d", "5d", "cold"), ("48h", "2h", "hot")]
)
async def test_a_rescheduled_job_is_where_it_can_be_delivered_in_time(
    store: TieredStore, hot: Store, cold: Store, first: str, second: str, tier: str
) -> None:
    await push_one(store, "a", delay=first)
    delay_ms = job("x", delay=second).delay_ms

    moved = await reschedule_one(store, "a", delay_ms=delay_ms)

    assert moved
    assert moved.due_at == ManualClock().now_ms() + delay_ms
    assert await tier_of("a", hot, cold) == [tier]


async def test_a_job_of_cold_is_cancelled_withdrawn_and_found(store: TieredStore, hot: Store, cold: Store) -> None:
    await push(store, job("a", delay="3d"), job("b", delay="3d"))

    moved = await cancel_one(store, "a")
    assert moved
    assert moved.event is Event.CANCELLED
    assert await cancel_one(store, "a") is None
    assert await tier_of("a", hot, cold) == []
    [totals] = await store.totals([QUEUE])
    assert totals.running == Totals(accepted=2, cancelled=1)


# --- the same moment


async def test_a_cancel_between_the_two_steps_of_a_promotion_holds(
    store: TieredStore, hot: Store, cold: Store, clock: ManualClock
) -> None:
    """Whoever has read the job from cold before it was cancelled does not bring it back."""
    await push_one(store, "a", delay="3d")
    clock.advance("2d")
    read = await store._tiers.read_cold(QUEUE, ["a"])

    assert await cancel_one(store, "a")
    assert await store._tiers.promote(QUEUE, read) == 1

    assert await tier_of("a", hot, cold) == []
    clock.advance("1d")
    assert await reserved_ids(store) == []


async def test_a_job_that_was_acked_is_not_promoted_again(
    store: TieredStore, cold: FaultyStore, clock: ManualClock
) -> None:
    """The promoter died after the copy, and the job was due before the next one came."""
    await push_one(store, "a", delay="3d")
    clock.advance("3d")
    cold.down("withdraw")
    with pytest.raises(StoreUnavailable):
        await store.promoter.run_once()
    delivery = await reserve_one(store)
    await ack_one(store, delivery.lease)
    await comes_back(store, cold)

    await store.promoter.run_once()

    assert await get_one(store, "a") is None
    assert await reserved_ids(store) == []


async def test_two_promoters_promote_each_job_once(
    store: TieredStore, hot: Store, cold: Store, clock: ManualClock
) -> None:
    other = await TieredStore.open("pool", opening(hot), opening(cold), horizon_ms=HORIZON, clock=clock)
    await push(store, *(job(f"{number}", delay="3d") for number in range(500)))
    clock.advance("2d")
    read = await store._tiers.read_cold(QUEUE, [f"{number}" for number in range(500)])

    await asyncio.gather(*(one.promoter.run_once() for one in (store, other)), other._tiers.promote(QUEUE, read))

    assert (await hot.counts([QUEUE]))[0].total == 500
    assert (await cold.counts([QUEUE]))[0].total == 0
    [totals] = await store.totals([QUEUE])
    assert totals.running == Totals(accepted=500)


async def test_two_jobs_of_one_id_are_both_delivered(
    store: TieredStore, hot: Store, cold: Store, clock: ManualClock
) -> None:
    """Pushed at the same moment, so that neither push saw the other."""
    await push_one(hot, "a", b"soon", delay="1h")
    clock.advance("1ms")
    await push_one(cold, "a", b"later", delay="1d")

    assert await store.promoter.run_once() == 0, "hot has another job with this id"
    clock.advance("1h")
    first = await reserve_one(store)
    await ack_one(store, first.lease)
    await store.promoter.run_once()
    clock.advance("1d")
    assert (first.body, (await reserve_one(store)).body) == (b"soon", b"later")


async def test_a_repeated_request_is_done_once_although_the_horizon_has_moved(
    store: TieredStore, hot: Store, cold: Store, clock: ManualClock
) -> None:
    due_at = clock.now_ms() + 3 * DAY
    request = Push([job("a", due_at=due_at), job("b", due_at=due_at + DAY)], mark=mark(life="9d"))
    [first] = await store.push(QUEUE, [request])
    clock.advance("2d")
    await store.promoter.run_once()
    assert await cancel_one(store, "a")

    [again] = await store.push(QUEUE, [request])

    assert isinstance(first, Pushed)
    assert isinstance(again, Pushed)
    assert again.repeated
    assert list(again.jobs) == list(first.jobs)
    assert await tier_of("a", hot, cold) == []


# --- a tier is down


async def test_while_cold_is_down_what_is_due_soon_goes_on(
    store: TieredStore, cold: FaultyStore, clock: ManualClock
) -> None:
    await push_one(store, "before", delay="3d")
    cold.down()
    with pytest.raises(StoreUnavailable):
        await push_one(store, "refused", delay="3d")
    await until(lambda: not store._cold.is_up)

    await push_one(store, "now")
    delivery = await reserve_one(store)
    assert await ack_one(store, delivery.lease)
    with pytest.raises(StoreUnavailable, match="the cold tier is down"):
        await push_one(store, "refused", delay="3d")
    [unknown] = await store.cancel(QUEUE, ["before"])
    assert isinstance(unknown, StoreUnavailable), "not the same as: there is no such job"
    assert "cold" in (await store.ping()).problems

    await comes_back(store, cold)
    assert await push_one(store, "refused", delay="3d")
    clock.advance("3d")
    await store.promoter.run_once()
    assert sorted(await reserved_ids(store)) == ["before", "refused"]


async def test_with_spill_later_jobs_go_to_hot_while_cold_is_down(
    hot: FaultyStore, cold: FaultyStore, clock: ManualClock
) -> None:
    cold.down()
    store = await TieredStore.open("pool", opening(hot), opening(cold), horizon_ms=HORIZON, spill=True, clock=clock)
    await push_one(store, "a", delay="3d")
    assert await get_one(hot, "a")
    await store.close()


async def test_a_promoter_that_is_a_day_late_says_so_and_begins_with_the_earliest(
    store: TieredStore, hot: FaultyStore, clock: ManualClock
) -> None:
    for days in (3, 4, 5):
        await push_one(store, f"{days}", delay=f"{days}d")
    clock.advance("4d")
    hot.down("push")
    with pytest.raises(StoreUnavailable):
        await store.promoter.run_once()
    assert "have been due for 86400 s" in (await store.ping()).problems["promoter"].message

    hot.heal()
    assert await store.promoter.run_once() == 3
    assert await reserved_ids(store) == ["3", "4"]
    await store.promoter.run_once()
    assert "promoter" not in (await store.ping()).problems


@pytest.mark.parametrize("seed", range(20))
async def test_lost_answers_and_refusals_at_any_step(
    store: TieredStore, hot: FaultyStore, cold: FaultyStore, clock: ManualClock, seed: int
) -> None:
    """Every job that was accepted is delivered once, unless it was cancelled; a cancelled one is not delivered.

    No outage takes six hours: a mark lives as long.
    """
    chance = random.Random(seed)
    accepted, cancelled, unknown = set[str](), set[str](), set[str]()
    done = list[str]()
    for number in range(300):
        tier = chance.choice([hot, cold])
        tier.heal()
        store._cold._down = None  # a member that failed is tried again without a pause
        if chance.random() < 0.3:
            verbs = chance.sample(["push", "withdraw", "get", "reschedule", "list_jobs"], 2)
            chance.choice([tier.down, tier.lose_answers])(*verbs)
        known = sorted(accepted - cancelled - {*done})
        match chance.randrange(6):
            case 0 | 1:
                answer = await attempt(push_one(store, f"{number}", delay=f"{chance.randrange(80)}h"))
                (accepted if isinstance(answer, Moved) else unknown).add(f"{number}")
            case 2 if known:
                one = chance.choice(known)
                answer = await attempt(cancel_one(store, one))
                (cancelled if isinstance(answer, Moved) else unknown).add(one)
            case 3 if known:
                await attempt(reschedule_one(store, chance.choice(known), delay_ms=chance.randrange(80) * HOUR))
            case 4:
                await attempt(store.promoter.run_once())
            case _:
                clock.advance(f"{chance.randrange(40)}m")
                done += await consume(store)
    hot.heal()
    cold.heal()
    store._cold._down = None
    for _ in range(40):
        clock.advance("4h")
        await store.promoter.run_once()
        done += await consume(store)

    assert accepted - cancelled - unknown <= {*done}, "lost"
    assert not (cancelled - unknown) & {*done}, "delivered after it was cancelled"
    assert len(done) == len({*done}), "delivered after its ack"
    assert (await store.counts([QUEUE]))[0].total == 0


async def attempt(call: Awaitable[T]) -> T | DuetimeError:
    try:
        return await call
    except DuetimeError as error:
        return error


async def consume(store: Store) -> list[str]:
    """Take and ack whatever is ready."""
    deliveries = await attempt(reserve_some(store))
    if isinstance(deliveries, DuetimeError):
        return []
    return [one.lease.id for one in deliveries if await ack_one(store, one.lease)]


# --- by its address


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("tiered:pool?hot=memory:", "two stores"),
        ("tiered:?hot=memory:&cold=memory:", "a name"),
        ("tiered:pool?hot=memory:&cold=memory:&horizon=soon", "horizon"),
        ("tiered:pool?hot=memory:&cold=memory:&horizon=1s", "at least 1m"),
        ("tiered:pool?hot=memory:&cold=memory:&spill=yes", "true or false"),
        ("tiered:pool?hot=memory:&cold=memory:&promote_per_s=-1", "a number of jobs, got '-1'"),
        ("group:g?a=tiered%3Ax%3Fhot%3Dmemory:%26cold%3Dmemory:", "single store, got tiered:"),
        ("tiered:pool?hot=memory:&cold=memory:&wrong=1", "two stores"),
        ("tiered:pool?hot=memory:&cold=tiered:x", "must not be a tiered pool"),
    ],
)
async def test_a_wrong_address_is_refused(url: str, problem: str) -> None:
    with pytest.raises(InvalidSettings, match=problem):
        await open_store(url)


async def test_on_redis_and_postgresql_a_promoter_runs_in_the_background(
    redis_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "IDLE_S", 0.05)
    monkeypatch.setattr(tiers, "LEAD_MS", 200)
    url = f"tiered:pool?hot={quote(redis_url)}&cold={quote(postgres_url)}&horizon=1m"
    stores = [await open_store(url) for _ in range(2)]
    store = stores[0]
    soon = SystemClock().now_ms() + 60_500
    await push(store, *(job(f"{number}", due_at=soon + number) for number in range(700)))
    await push_one(store, "next year", delay="365d")
    assert isinstance(store, TieredStore)
    hot = store._tiers.hot

    async def all_promoted() -> bool:
        """Jobs that are being promoted count twice, until cold has removed them."""
        totals = [(await one.counts([QUEUE]))[0].total for one in (hot, *stores)]
        return totals == [700, 701, 701]

    try:
        async with Engine(stores[0]), Engine(stores[1]):
            await until(all_promoted)
    finally:
        for one in stores:
            await one.close()
