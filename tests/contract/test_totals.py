"""totals: what happened in a queue, counted in the step in which it happened, in all and by day."""

from datetime import date, timedelta

import msgspec
import pytest

from duetime.model.clock import ManualClock
from duetime.model.job import DAY_MS, TOTAL_DAYS, Event, IfExists, Moved, QueueTotals, State, Totals
from duetime.model.names import Queue
from duetime.stores.base import IDLE_MS, Push, RulesChange, Store
from tests.contract.vocabulary import (
    NOW,
    OTHER,
    QUEUE,
    ack_one,
    as_lists,
    cancel_one,
    give_back_one,
    given_dead,
    given_leased,
    job,
    keep_expired,
    mark,
    push,
    push_one,
    reap,
    replace_one,
    reserve_some,
)

TODAY = date(1970, 1, 1) + timedelta(NOW // DAY_MS)


async def totals(store: Store, queue: Queue = QUEUE) -> QueueTotals:
    [answer] = await store.totals([queue])
    return answer


async def running(store: Store) -> Totals:
    answer = await totals(store)
    assert answer.days == ({TODAY: answer.running} if answer.running != Totals() else {})
    return answer.running


async def test_an_unknown_queue_has_none(store: Store) -> None:
    assert as_lists(await store.totals([QUEUE, OTHER])) == as_lists([QueueTotals(), QueueTotals()])
    assert list(await store.queues()) == []


async def test_each_queue_is_answered_in_order(store: Store) -> None:
    await push(store, job("a"), job("b"))

    assert [one.running for one in await store.totals([OTHER, QUEUE])] == [Totals(), Totals(accepted=2)]


async def test_what_is_pushed_is_accepted(store: Store) -> None:
    await push(store, job("a"), job("b", delay="1h"))
    assert await running(store) == Totals(accepted=2)

    await push(store, job("a"))
    assert await running(store) == Totals(accepted=2), "a kept job was not accepted again"

    await replace_one(store, "a")
    assert await running(store) == Totals(accepted=3), "one that takes another's place was"


async def test_a_duplicate_id_in_a_call(store: Store) -> None:
    await store.push(QUEUE, [Push([job("a"), job("a")], IfExists.REPLACE), Push([job("a")]), Push([job("b")])])

    assert await running(store) == Totals(accepted=3)


async def test_a_refused_or_repeated_push_counts_nothing(store: Store) -> None:
    request = Push([job("a"), job("b")], mark=mark())
    await store.push(QUEUE, [request, request])
    await store.push(QUEUE, [request, Push([job("a")], IfExists.ERROR)])

    assert await running(store) == Totals(accepted=2)


async def test_deliveries_and_acks(store: Store) -> None:
    await push(store, *(job(f"{n}") for n in range(5)))
    taken = await reserve_some(store)
    assert await running(store) == Totals(accepted=5, delivered=5)

    leases = [delivery.lease for delivery in taken]
    await store.ack(QUEUE, leases[:3])
    await store.ack(QUEUE, [*leases[2:4], leases[3]])

    assert await running(store) == Totals(accepted=5, delivered=5, acked=4)


async def test_a_delivery_that_is_given_back_stays_counted(store: Store) -> None:
    await give_back_one(store, await given_leased(store, "a"))

    assert await running(store) == Totals(accepted=1, delivered=1)


async def test_a_release_and_a_lease_that_ran_out(store: Store, clock: ManualClock) -> None:
    lease = await given_leased(store, "a")
    await store.extend(lease, 1000)
    await store.release(lease, 0)
    assert await running(store) == Totals(accepted=1, delivered=1, released=1)

    await reserve_some(store)
    clock.advance("2m")
    await reap(store)

    assert await running(store) == Totals(accepted=1, delivered=2, released=1, lapsed=1)


async def test_a_job_that_ends_instead_of_waiting_again_is_dead_only(store: Store, clock: ManualClock) -> None:
    await store.release(await given_leased(store, "a", tries=1), 0)
    await given_leased(store, "b", tries=1)
    clock.advance("2m")
    await reap(store)

    assert await running(store) == Totals(accepted=2, delivered=2, dead=2)


async def test_a_killed_job_that_is_brought_back(store: Store) -> None:
    await given_dead(store, "a")
    assert await running(store) == Totals(accepted=1, delivered=1, dead=1)

    await store.respawn(QUEUE, ids=["a", "a", "none"])

    assert await running(store) == Totals(accepted=1, delivered=1, dead=1, respawned=1)


async def test_a_cancelled_job_counts_and_a_deleted_dead_letter_does_not(store: Store) -> None:
    await given_dead(store, "dead")
    await given_leased(store, "leased")
    await push_one(store, "waiting", delay="1h")

    await store.cancel(QUEUE, ["dead", "leased", "waiting", "waiting", "none"])

    assert await running(store) == Totals(accepted=3, delivered=2, dead=1, cancelled=2)


@pytest.mark.store_only
async def test_a_cancel_by_a_consumer_that_has_finished_is_an_ack(store: Store) -> None:
    dead = await given_dead(store, "dead")
    leased = await given_leased(store, "leased")
    waiting = await push_one(store, "waiting", delay="1h")

    answers = await store.cancel(QUEUE, ["dead", "leased", "waiting", "none"], finished=True)

    assert list(answers) == [
        Moved(Event.DELETED, "dead", dead.born, 1),
        Moved(Event.ACKED, "leased", leased.born, 1, reason="unfenced"),
        Moved(Event.ACKED, "waiting", waiting.born, 0, reason="unfenced"),
        None,
    ]
    assert await running(store) == Totals(accepted=3, delivered=2, dead=1, acked=2)


async def test_a_job_whose_time_is_over_counts_when_it_is_met(store: Store, clock: ManualClock) -> None:
    await push(store, job("reserved", ttl="1s"), job("replaced", ttl="1s"))
    clock.advance("2s")
    await push_one(store, "replaced", delay="1h")
    assert await running(store) == Totals(accepted=3, expired=1)

    await reserve_some(store)
    await reap(store)

    assert await running(store) == Totals(accepted=3, expired=2)


async def test_expired_jobs_that_are_kept_are_dead(store: Store, clock: ManualClock) -> None:
    await keep_expired(store)
    await push_one(store, "a", ttl="1s")
    clock.advance("2s")
    await reap(store)

    assert await running(store) == Totals(accepted=1, dead=1)


async def test_a_purge_of_some_states_counts_nothing(store: Store) -> None:
    await push(store, job("a"), job("b"))
    await store.reschedule(QUEUE, ["a"], delay_ms=10)
    await store.purge(QUEUE, [State.READY])

    assert await running(store) == Totals(accepted=2)


async def test_a_purge_of_the_queue_takes_its_totals_along(store: Store) -> None:
    await keep_expired(store)
    await push(store, job("a"))
    await push(store, job("a"), queue=OTHER)

    await store.purge(QUEUE, list(State))
    assert await totals(store) == QueueTotals()

    await push(store, job("b"))
    assert await running(store) == Totals(accepted=1)
    assert (await totals(store, OTHER)).running == Totals(accepted=1)


async def test_a_queue_that_is_forgotten_leaves_its_totals(store: Store, clock: ManualClock) -> None:
    for name in ("a", "b"):
        await ack_one(store, await given_leased(store, name))
    clock.advance(f"{IDLE_MS + 1}ms")
    await reap(store)
    assert list(await store.queues()) == []
    assert await running(store) == Totals(accepted=2, delivered=2, acked=2)

    await push_one(store, "c")

    assert await running(store) == Totals(accepted=3, delivered=2, acked=2)


async def test_a_queue_that_is_kept_keeps_its_totals(store: Store, clock: ManualClock) -> None:
    # Given a kept queue of one job that has ended
    await store.configure(QUEUE, RulesChange(kept=True))
    await ack_one(store, await given_leased(store, "a"))
    once = Totals(accepted=1, delivered=1, acked=1)

    # When it is idle for longer than any total is kept of a queue that is forgotten
    for _ in range(3):
        clock.advance(f"{TOTAL_DAYS}d")
        assert await reap(store) == []

    # Then it is there with its totals, also after a purge
    assert list(await store.queues()) == [QUEUE]
    assert await totals(store) == QueueTotals(once)
    await push_one(store, "b")
    await store.purge(QUEUE, list(State))
    assert list(await store.queues()) == [QUEUE]
    assert (await totals(store)).running == msgspec.structs.replace(once, accepted=2)

    # When it is kept no longer, then it is forgotten like any other, and its totals after it
    await store.configure(QUEUE, RulesChange(kept=False))
    clock.advance(f"{IDLE_MS}ms")
    await reap(store)
    assert list(await store.queues()) == []
    assert (await totals(store)).running == msgspec.structs.replace(once, accepted=2)
    await push_one(store, "c")
    await store.purge(QUEUE, list(State))
    assert await totals(store) == QueueTotals()


async def test_a_queue_that_was_forgotten_can_be_kept_with_its_totals(store: Store, clock: ManualClock) -> None:
    await ack_one(store, await given_leased(store, "a"))
    clock.advance(f"{IDLE_MS}ms")
    await reap(store)
    assert list(await store.queues()) == []

    await store.configure(QUEUE, RulesChange(kept=True))
    clock.advance(f"{2 * TOTAL_DAYS}d")
    await reap(store)

    assert (await totals(store)).running == Totals(accepted=1, delivered=1, acked=1)


async def test_days_are_those_of_the_stores_clock_in_utc(store: Store, clock: ManualClock) -> None:
    await push_one(store, "a", delay="2d")
    clock.set((NOW // DAY_MS + 1) * DAY_MS - 1)
    await push_one(store, "b", delay="2d")
    clock.advance("1ms")
    await cancel_one(store, "a")

    assert await totals(store) == QueueTotals(
        Totals(accepted=2, cancelled=1),
        {TODAY: Totals(accepted=2), TODAY + timedelta(1): Totals(cancelled=1)},
    )


async def test_old_days_count_in_the_running_totals_only(store: Store, clock: ManualClock) -> None:
    for number in range(TOTAL_DAYS + 4):
        await push_one(store, f"{number}", delay="1000d")
        if number % 5 == 0:
            await reap(store)
        found = await totals(store)
        assert found.running == Totals(accepted=number + 1)
        assert len(found.days) == min(number + 1, TOTAL_DAYS)
        clock.advance("1d")

    # A day without events is not shown, and one that is too old goes without any
    last = TODAY + timedelta(TOTAL_DAYS + 3)
    found = await totals(store)
    assert list(found.days) == [last - timedelta(days) for days in range(TOTAL_DAYS - 2, -1, -1)]
    clock.advance("40d")
    await reap(store)
    assert await totals(store) == QueueTotals(Totals(accepted=TOTAL_DAYS + 4))
