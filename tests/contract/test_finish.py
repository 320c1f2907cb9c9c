"""finish: a job ends, the jobs that follow from it come into being, and its result is kept, all in one step."""

from typing import Any

import pytest

from duetime.model.clock import ManualClock
from duetime.model.errors import BodyTooLarge, DuetimeError, ExpiresBeforeDue, LeaseLost
from duetime.model.job import STEP_JOBS, Counts, Event, Lease, Moved, NewJob, State, Totals
from duetime.stores.base import RulesChange, Store, Wake
from duetime.stores.finishes import Finish, Finished, KeptResult
from duetime.stores.open import open_store
from tests.contract.vocabulary import (
    HIGH,
    NOW,
    ODD_IDS,
    OTHER,
    QUEUE,
    ack_one,
    as_lists,
    counts,
    found,
    given_dead,
    given_expired,
    given_leased,
    job,
    listening,
    pause,
    push,
    push_one,
    reap,
    reserve_one,
    reserve_some,
    reserved_ids,
    states,
)

HOUR_MS = 3_600_000


async def finish_one(
    store: Store, lease: Lease, *then: NewJob, result: bytes | None = None, ttl_ms: int = HOUR_MS
) -> Finished | DuetimeError | None:
    [answer] = await store.finish(lease.queue, [Finish(lease, then, result, ttl_ms if result is not None else 0)])
    return as_lists(answer)


async def done(store: Store, lease: Lease, *then: NewJob, **options: Any) -> Finished:
    answer = await finish_one(store, lease, *then, **options)
    assert isinstance(answer, Finished), answer
    return answer


async def result_of(store: Store, job_id: str) -> KeptResult | None:
    [kept] = await store.results(QUEUE, [job_id])
    return kept


# --- jobs that follow


async def test_a_finished_job_is_gone_and_the_next_one_is_there(store: Store) -> None:
    lease = await given_leased(store, "a", attributes={"trace": "1"})

    answer = await done(store, lease, job("b", b"next"))

    born = answer.then[0].born
    assert born > lease.born
    assert answer == Finished(Moved(Event.ACKED, "a", lease.born, 1), [Moved(Event.ACCEPTED, "b", born, 0, NOW)], NOW)
    assert await states(store) == {"b": "ready"}
    delivery = await reserve_one(store)
    assert (delivery.lease, delivery.body) == (Lease(QUEUE, "b", born, 1), b"next")


async def test_jobs_that_follow_have_all_options(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "a")
    attributes = {"é": "", "b": "\n"}
    new = job("b", b"\0\xff", delay="90s", ttl="2h", tries=7, priority=HIGH, attributes=attributes)

    answer = await done(store, lease, new, job("c", due_at=NOW + 5), job("d", tries=0, ttl="1s"))

    assert [moved.due_at for moved in answer.then] == [NOW + 90_000, NOW + 5, NOW]
    kept = await found(store, "b")
    assert (kept.body, kept.tries, kept.priority, kept.attributes) == (b"\0\xff", 7, HIGH, attributes)
    assert (kept.expires_at, kept.due_at, kept.attempt) == (NOW + 2 * HOUR_MS, NOW + 90_000, 0)
    assert await states(store) == {"b": "delayed", "c": "delayed", "d": "ready"}
    clock.advance("1001ms")
    assert [moved.event for moved in await reap(store)] == [Event.EXPIRED]
    clock.advance("2h")
    assert [(moved.id, moved.event) for moved in await reap(store)] == [("b", Event.EXPIRED)]


async def test_repeating_it_changes_nothing(store: Store) -> None:
    lease = await given_leased(store, "a")
    await done(store, lease, job("b"), result=b"first")
    await ack_one(store, (await reserve_one(store)).lease)

    assert await finish_one(store, lease, job("b"), job("c"), result=b"second") is None
    assert await states(store) == {}
    kept = await result_of(store, "a")
    assert kept is not None
    assert kept.result == b"first"


async def test_the_same_finish_twice_in_a_call_happens_once(store: Store) -> None:
    lease = await given_leased(store, "a")
    one = Finish(lease, [job("b")])

    [first, second] = await store.finish(QUEUE, [one, one])

    assert isinstance(first, Finished)
    assert second is None
    assert await counts(store) == Counts(ready=1)


async def test_a_lost_lease_pushes_and_keeps_nothing(store: Store) -> None:
    lease = await given_leased(store, "a")
    await store.release(lease, 0)

    answer = await finish_one(store, lease, job("b"), result=b"x")

    assert isinstance(answer, LeaseLost)
    assert answer.fields["id"] == "a"
    assert await states(store) == {"a": "ready"}
    assert await result_of(store, "a") is None


async def test_one_bad_finish_does_not_fail_its_neighbours(store: Store) -> None:
    await push(store, job("a"), job("b"), job("c"), job("d"))
    [a, b, c, d] = [delivery.lease for delivery in sorted(await reserve_some(store), key=lambda one: one.lease.id)]
    await store.kill(b)
    await ack_one(store, c)

    answers = await store.finish(QUEUE, [Finish(one, [job(f"after {one.id}")]) for one in (a, b, c, d)])

    assert [type(answer) for answer in answers] == [Finished, LeaseLost, type(None), Finished]
    assert await states(store) == {"b": "dead", "after a": "ready", "after d": "ready"}


async def test_a_taken_id_is_kept(store: Store) -> None:
    lease = await given_leased(store, "a")
    await push_one(store, "waits", b"old", delay="1h")
    dead = await given_dead(store, "dead")
    leased = await given_leased(store, "leased")

    answer = await done(store, lease, job("waits", b"new"), job("dead"), job("leased"), job("new"))

    assert [(moved.event, moved.reason) for moved in answer.then[:3]] == [
        (Event.KEPT, "waiting"),
        (Event.KEPT, "dead"),
        (Event.KEPT, "leased"),
    ]
    assert answer.then[0].due_at == NOW + HOUR_MS
    assert [moved.born for moved in answer.then[1:3]] == [dead.born, leased.born]
    assert answer.then[3].event is Event.ACCEPTED
    assert (await found(store, "waits")).body == b"old"
    assert await states(store) == {"waits": "delayed", "dead": "dead", "leased": "leased", "new": "ready"}


async def test_the_place_of_an_expired_job_is_free(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "a")
    await given_expired(store, clock, "b")

    answer = await done(store, lease, job("b", b"new", ttl="1h"))

    [moved] = answer.then
    assert (moved.event, moved.reason, moved.was > 0) == (Event.ACCEPTED, "expired", True)
    assert moved.born > moved.was
    assert await counts(store) == Counts(ready=1, expired=1)
    assert (await reserve_one(store)).body == b"new"


async def test_a_job_can_be_followed_by_one_of_its_own_id(store: Store) -> None:
    lease = await given_leased(store, "a", body=b"one", attributes={"x": "y"})

    answer = await done(store, lease, job("a", b"two"))

    assert answer.then[0].event is Event.ACCEPTED
    assert answer.then[0].born > lease.born
    again = await reserve_one(store)
    assert (again.body, again.lease.attempt, again.attributes) == (b"two", 1, {})
    assert isinstance((await store.ack(QUEUE, [lease]))[0], LeaseLost)
    assert await finish_one(store, again.lease) is not None


async def test_finishes_of_a_call_happen_in_their_order(store: Store) -> None:
    await push(store, job("a"), job("b"))
    [a, b] = sorted([delivery.lease for delivery in await reserve_some(store)], key=lambda lease: lease.id)

    [first, second] = await store.finish(QUEUE, [Finish(a, [job("b")]), Finish(b, [job("a"), job("c")])])

    assert isinstance(first, Finished)
    assert isinstance(second, Finished)
    assert [moved.event for moved in first.then] == [Event.KEPT]
    assert [moved.event for moved in second.then] == [Event.ACCEPTED, Event.ACCEPTED]
    assert await states(store) == {"a": "ready", "c": "ready"}


async def test_a_refused_finish_leaves_the_lease_as_it_was(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "a")
    await store.configure(QUEUE, RulesChange(max_body=3))

    large = await finish_one(store, lease, job("b", b"1"), job("c", b"1234"), result=b"x")
    late = await finish_one(store, lease, job("b", b"1"), job("c", b"1", delay="2s", ttl="1s"))

    assert isinstance(large, BodyTooLarge)
    assert large.fields["id"] == "c"
    assert isinstance(late, ExpiresBeforeDue)
    assert await states(store) == {"a": "leased"}
    assert await result_of(store, "a") is None
    await done(store, lease, job("b", b"1"))


async def test_a_queue_that_is_full_and_offline_takes_what_follows(store: Store) -> None:
    lease = await given_leased(store, "a")
    await store.configure(QUEUE, RulesChange(max_jobs=1, offline=True))

    await done(store, lease, job("b"), job("c"))

    assert await counts(store) == Counts(ready=2)


async def test_totals_count_both(store: Store) -> None:
    lease = await given_leased(store, "a")
    await push_one(store, "c", delay="1h")
    await done(store, lease, job("b"), job("c"))

    [totals] = await store.totals([QUEUE])
    assert totals.running == Totals(accepted=3, delivered=1, acked=1)


async def test_a_queue_of_one_job_after_the_other_stays_known(store: Store, clock: ManualClock) -> None:
    await push_one(store, "0")
    for step in range(1, 6):
        clock.advance("9m")
        await reap(store)
        await done(store, (await reserve_one(store)).lease, job(str(step)))
    clock.advance("9m")
    await reap(store)
    assert list(await store.queues()) == [QUEUE]
    assert await states(store) == {"5": "ready"}


async def test_many_finishes_with_many_jobs(store: Store) -> None:
    await push(store, *[job(f"{n:03}") for n in range(100)])
    leases = [delivery.lease for delivery in await reserve_some(store, 100)]
    finishes = [Finish(lease, [job(f"{lease.id}/{n}") for n in range(4)], b"r" * 100, HOUR_MS) for lease in leases]
    assert sum(1 + len(one.then) for one in finishes) == STEP_JOBS

    answers = await store.finish(QUEUE, finishes)

    assert all(isinstance(answer, Finished) for answer in answers)
    assert await counts(store) == Counts(ready=400)
    assert len(set(await reserved_ids(store))) == 400
    assert [kept and kept.result for kept in await store.results(QUEUE, [lease.id for lease in leases])] == [
        b"r" * 100
    ] * 100


async def test_odd_ids(store: Store) -> None:
    lease = await given_leased(store, "a")
    await done(store, lease, *map(job, ODD_IDS))
    leases = {delivery.lease.id: delivery.lease for delivery in await reserve_some(store, 100)}
    assert sorted(leases) == sorted(ODD_IDS)
    for job_id in ODD_IDS:
        await done(store, leases[job_id], result=b"\0")
        assert await result_of(store, job_id) == KeptResult(job_id, leases[job_id].born, b"\0", NOW + HOUR_MS)


# --- wakes


async def test_a_job_that_follows_wakes(store: Store) -> None:
    lease = await given_leased(store, "a")
    async with listening(store) as wakes:
        await done(store, lease, job("b", delay="1s"))
        await wakes.until(Wake(QUEUE, NOW + 1000))


async def test_a_paused_queue_takes_finishes(store: Store) -> None:
    lease = await given_leased(store, "a")
    await pause(store)
    await done(store, lease, job("b"), result=b"")
    assert await counts(store) == Counts(ready=1)


async def test_a_kept_result_wakes(store: Store) -> None:
    lease = await given_leased(store, "a b\u00e9")
    async with listening(store) as wakes:
        await done(store, lease, result=b"x")
        await wakes.until(Wake(QUEUE, results=("a b\u00e9",)))


async def test_many_kept_results_are_announced_without_names(store: Store) -> None:
    await push(store, *[job(f"{n:03}") for n in range(200)])
    leases = [delivery.lease for delivery in await reserve_some(store, 200)]
    async with listening(store) as wakes:
        await store.finish(QUEUE, [Finish(lease, (), b"x", HOUR_MS) for lease in leases])
        await wakes.until(Wake(QUEUE, results=()))


@pytest.mark.store_only
async def test_another_process_gets_notified_of_results(
    store: Store, store_url: str, store_kind: str, clock: ManualClock
) -> None:
    if store_kind in ("memory", "group"):
        return
    other = await open_store(store_url, clock=clock)
    try:
        async with listening(other) as wakes:
            lease = await given_leased(store, "a")
            await done(store, lease, result=b"x")
            await wakes.until(Wake(QUEUE, results=("a",)))
            [kept] = await other.results(QUEUE, ["a"])
            assert kept
    finally:
        await other.close()


# --- results


async def test_a_result_is_kept_for_its_time(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "a")
    await done(store, lease, result=b"42", ttl_ms=1000)

    assert await result_of(store, "a") == KeptResult("a", lease.born, b"42", NOW + 1000)
    clock.advance("999ms")
    assert await result_of(store, "a") is not None
    clock.advance("1ms")
    assert await result_of(store, "a") is None
    await store.reap()
    assert await result_of(store, "a") is None


async def test_an_empty_result_is_one(store: Store) -> None:
    await done(store, await given_leased(store, "a"), result=b"")
    kept = await result_of(store, "a")
    assert kept is not None
    assert kept.result == b""


async def test_without_a_time_nothing_is_kept(store: Store) -> None:
    await done(store, await given_leased(store, "a"), result=b"x", ttl_ms=0)
    assert await result_of(store, "a") is None


async def test_a_later_result_takes_the_place_of_an_earlier_one(store: Store, clock: ManualClock) -> None:
    await done(store, await given_leased(store, "a"), result=b"one", ttl_ms=10 * HOUR_MS)
    clock.advance("1s")
    lease = await given_leased(store, "a")
    await done(store, lease, result=b"two")

    assert await result_of(store, "a") == KeptResult("a", lease.born, b"two", clock.now_ms() + HOUR_MS)


async def test_a_result_belongs_to_its_queue_and_outlives_a_purge(store: Store, clock: ManualClock) -> None:
    await done(store, await given_leased(store, "a"), result=b"x", ttl_ms=24 * HOUR_MS)
    await done(store, await given_leased(store, "a", queue=OTHER), result=b"y")

    await store.purge(QUEUE, list(State))

    kept = await result_of(store, "a")
    assert kept is not None
    assert kept.result == b"x"
    clock.advance("1h")
    await store.reap()
    await store.reap()
    assert await result_of(store, "a") is not None
    assert list(await store.results(OTHER, ["a"])) == [None]


async def test_results_come_in_the_order_of_the_ids(store: Store) -> None:
    await done(store, await given_leased(store, "a"), result=b"A")
    await done(store, await given_leased(store, "b"), result=b"B")

    kept = await store.results(QUEUE, ["b", "never", "a", "b"])

    assert [one and one.result for one in kept] == [b"B", None, b"A", b"B"]


@pytest.mark.store_only
async def test_reading_results_ends_at_its_bound(store: Store, store_kind: str) -> None:
    large = b"x" * 262_144
    ids = [str(n) for n in range(20)]
    for job_id in ids:
        await done(store, await given_leased(store, job_id), result=large)

    kept = await store.results(QUEUE, ids)

    assert len(kept) == (16 if store_kind != "group" else len(kept))
    assert all(one and one.result == large for one in kept)
    assert len(await store.results(QUEUE, [f"never {n}" for n in range(600)])) == STEP_JOBS
