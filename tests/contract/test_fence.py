"""The fence: whatever became of its id since, an old lease moves nothing.

An id is used again and again in each way there is, with the clock standing still, moving and stepping back, and all
leases ever held on it are tried after each step. Only the last one may work.
"""

import random
from collections.abc import Awaitable, Callable, Sequence

import pytest

from duetime.model.clock import ManualClock
from duetime.model.errors import LeaseLost
from duetime.model.job import Counts, Event, Lease, Moved, State
from duetime.stores.base import Store
from tests.contract.conftest import HTTP_KINDS
from tests.contract.vocabulary import (
    NOW,
    QUEUE,
    ack_one,
    cancel_one,
    counts,
    found,
    give_back_one,
    given_leased,
    push_one,
    reap,
    replace_one,
    reserve_one,
)

Reuse = Callable[[Store, ManualClock, Lease], Awaitable[object]]


async def cancel_and_push(store: Store, clock: ManualClock, lease: Lease) -> None:
    await cancel_one(store, "a")
    await push_one(store, "a", tries=0)


async def ack_and_push(store: Store, clock: ManualClock, lease: Lease) -> None:
    assert (await ack_one(store, lease)) is not None
    await push_one(store, "a", tries=0)


async def replace_leased(store: Store, clock: ManualClock, lease: Lease) -> None:
    await replace_one(store, "a", tries=0)


async def replace_waiting(store: Store, clock: ManualClock, lease: Lease) -> None:
    await store.release(lease, 1000)
    await replace_one(store, "a", tries=0)


async def replace_dead(store: Store, clock: ManualClock, lease: Lease) -> None:
    await store.kill(lease)
    await replace_one(store, "a", tries=0)


async def delete_dead_and_push(store: Store, clock: ManualClock, lease: Lease) -> None:
    await store.kill(lease)
    await cancel_one(store, "a")
    await push_one(store, "a", tries=0)


async def purge_state_and_push(store: Store, clock: ManualClock, lease: Lease) -> None:
    await store.purge(QUEUE, [State.LEASED])
    await push_one(store, "a", tries=0)


async def purge_queue_and_push(store: Store, clock: ManualClock, lease: Lease) -> None:
    await store.purge(QUEUE, list(State))
    await push_one(store, "a", tries=0)


async def respawn(store: Store, clock: ManualClock, lease: Lease) -> None:
    await store.kill(lease)
    await store.respawn(QUEUE, ids=["a"])


async def release(store: Store, clock: ManualClock, lease: Lease) -> None:
    await store.release(lease, 0)


async def give_back(store: Store, clock: ManualClock, lease: Lease) -> None:
    await give_back_one(store, lease)


async def release_past_ttl_and_push(store: Store, clock: ManualClock, lease: Lease) -> None:
    # Given an incarnation with a ttl, which ends in the same millisecond by a release to a time after that
    await replace_one(store, "a", ttl="1s", tries=0)
    moved = await store.release((await reserve_one(store)).lease, 1001)
    assert moved.event is Event.EXPIRED
    await push_one(store, "a", tries=0)


REUSES: dict[str, Reuse] = {
    reuse.__name__: reuse
    for reuse in (
        cancel_and_push,
        ack_and_push,
        replace_leased,
        replace_waiting,
        replace_dead,
        delete_dead_and_push,
        purge_state_and_push,
        purge_queue_and_push,
        respawn,
        release,
        give_back,
        release_past_ttl_and_push,
    )
}
WALKS = {
    "the same millisecond": [0, 0, 0, 0],
    "later": [1, 5, 60_000, 86_400_000],
    "one millisecond on and on": [1, 2, 3, 4],
    "the clock steps back": [-1, -10, -86_400_000, -86_400_000],
    "back and forth": [-1, 0, -1, 5, 1, 0, 0],
    "forth and back": [5, 0, 5, 0],
}


async def refuses_everywhere(store: Store, lease: Lease) -> None:
    [answer] = await store.ack(QUEUE, [lease])
    assert isinstance(answer, LeaseLost)
    for act in (
        lambda: store.release(lease, 0, "from an old lease"),
        lambda: give_back_one(store, lease),
        lambda: store.kill(lease, "from an old lease"),
        lambda: store.extend(lease, 1),
    ):
        with pytest.raises(LeaseLost):
            await act()


@pytest.mark.parametrize(
    ("reuse", "walk"),
    [(reuse, "back and forth") for reuse in REUSES]
    + [("ack_and_push", walk) for walk in WALKS if walk != "back and forth"],
)
async def test_old_leases_move_nothing(
    store: Store, store_kind: str, clock: ManualClock, reuse: str, walk: str, scale: int
) -> None:
    # What the API passes on of a lease does not depend on how many came before; the fence itself stands in the store.
    steps = WALKS[walk] if scale > 1 or store_kind not in HTTP_KINDS else WALKS[walk][:2]
    await old_leases_move_nothing(store, clock, [(reuse, step) for step in steps])


@pytest.mark.parametrize("seed", range(3))
async def test_old_leases_move_nothing_after_random_reuses(store: Store, clock: ManualClock, seed: int) -> None:
    chance = random.Random(seed)
    steps = [step for walk in WALKS.values() for step in walk]
    await old_leases_move_nothing(
        store, clock, [(chance.choice(list(REUSES)), chance.choice(steps)) for _ in range(len(REUSES))]
    )


async def old_leases_move_nothing(store: Store, clock: ManualClock, history: Sequence[tuple[str, int]]) -> None:
    leases = [await given_leased(store, "a", tries=0)]

    for reuse, step in history:
        # When the id is used again
        clock.set(NOW + step)
        await REUSES[reuse](store, clock, leases[-1])

        # Then no old lease works while the job waits ...
        for old in leases:
            await refuses_everywhere(store, old)

        # ... nor while somebody else holds it
        clock.set(max(clock.now_ms(), (await found(store, "a")).due_at))
        delivery = await reserve_one(store)
        assert delivery.lease not in leases
        for old in leases:
            await refuses_everywhere(store, old)
        assert (await found(store, "a")).lease_until == delivery.lease_until
        leases.append(delivery.lease)

    last = leases[-1]
    assert await ack_one(store, last) == Moved(Event.ACKED, "a", last.born, last.attempt)


@pytest.mark.parametrize("gone", ["waiting", "reaped"])
async def test_an_expired_job_pushed_again(store: Store, clock: ManualClock, gone: str) -> None:
    lease = await given_leased(store, "a", ttl="1s")
    await store.release(lease, 0)
    clock.advance("1001ms")
    if gone == "reaped":
        await reap(store)

    await push_one(store, "a")

    await refuses_everywhere(store, lease)
    new = (await reserve_one(store)).lease
    await refuses_everywhere(store, lease)
    assert await ack_one(store, new) == Moved(Event.ACKED, "a", NOW + 1001, 1)


async def test_an_expired_job_pushed_again_after_the_clock_stepped_back(store: Store, clock: ManualClock) -> None:
    # Given a job that expired while the clock was ahead
    lease = await given_leased(store, "a", ttl="1s")
    await store.release(lease, 0)
    clock.advance("1001ms")
    await push_one(store, "a")

    # When the clock steps back to where the first one was born, and the id is used again
    clock.set(NOW)
    await replace_one(store, "a")

    await refuses_everywhere(store, lease)
    assert (await reserve_one(store)).lease.born == NOW + 1002
    await refuses_everywhere(store, lease)


async def test_a_lease_that_lapsed(store: Store, clock: ManualClock) -> None:
    old = await given_leased(store, "a", ttr="1s")
    clock.advance("1s")
    await reap(store)
    await refuses_everywhere(store, old)

    new = (await reserve_one(store)).lease

    await refuses_everywhere(store, old)
    assert await ack_one(store, new) == Moved(Event.ACKED, "a", NOW, 2)


@pytest.mark.parametrize("states", [list(State), [State.LEASED], list(State)[::-1]], ids=["all", "leased", "reversed"])
async def test_a_job_purged_while_the_clock_was_behind(store: Store, clock: ManualClock, states: list[State]) -> None:
    # Given a lease on a job born at NOW
    lease = await given_leased(store, "a")

    # When the clock steps back, the queue is purged, and the id comes again once the clock shows NOW anew
    clock.set(NOW - 1)
    await store.purge(QUEUE, states)
    clock.set(NOW)
    await push_one(store, "a")

    # Then the old lease does not fit the new job
    new = await reserve_one(store)
    assert new.lease != lease
    await refuses_everywhere(store, lease)
    assert await counts(store) == Counts(leased=1)


@pytest.mark.parametrize("end", ["ack", "cancel", "purge", "expire"])
async def test_a_job_that_ended_while_the_clock_was_behind(store: Store, clock: ManualClock, end: str) -> None:
    lease = await given_leased(store, "a", ttl="1s")
    clock.set(NOW - 1)
    match end:
        case "ack":
            await ack_one(store, lease)
        case "cancel":
            await cancel_one(store, "a")
        case "purge":
            await store.purge(QUEUE, [State.LEASED], limit=1)
        case _:
            assert (await store.release(lease, 5000)).event is Event.EXPIRED

    clock.set(NOW)
    await push_one(store, "a")

    assert (await reserve_one(store)).lease == Lease(QUEUE, "a", NOW + 1, 1)
    await refuses_everywhere(store, lease)


@pytest.mark.parametrize("behind", [0, 1, 60_000])
@pytest.mark.parametrize("end", ["ack", "cancel", "delete", "release", "reap", "purge some", "purge all"])
async def test_the_clock_steps_back_between_an_end_and_the_next_push(
    store: Store, clock: ManualClock, end: str, behind: int
) -> None:
    # Given a lease on a job that ended while the clock was past its born
    lease = await given_leased(store, "a", ttl="1s", ttr="1s")
    clock.advance("500ms")
    match end:
        case "ack":
            assert await ack_one(store, lease)
        case "cancel":
            assert await cancel_one(store, "a")
        case "delete":
            await store.kill(lease)
            assert await cancel_one(store, "a")
        case "release":
            assert (await store.release(lease, 5000)).event is Event.EXPIRED
        case "reap":
            clock.advance("501ms")
            assert [moved.event for moved in await reap(store)] == [Event.EXPIRED]
        case "purge some":
            await store.purge(QUEUE, [State.LEASED])
        case _:
            await store.purge(QUEUE, list(State))

    # When the clock steps back, and the id comes again
    clock.set(NOW - behind)
    await push_one(store, "a")

    # Then the old lease does not fit the new job, neither now nor after the clock has shown that time once more
    new = (await reserve_one(store)).lease
    assert new.born > lease.born
    await refuses_everywhere(store, lease)
    assert await ack_one(store, new) == Moved(Event.ACKED, "a", new.born, 1)
    clock.set(NOW + 400)
    await push_one(store, "a")
    assert (await reserve_one(store)).lease.born > new.born
    await refuses_everywhere(store, new)


async def test_the_clock_steps_back_after_a_job_with_a_given_born_ended(store: Store, clock: ManualClock) -> None:
    await push_one(store, "a", born=NOW - 10)
    lease = (await reserve_one(store)).lease
    await ack_one(store, lease)

    clock.set(NOW - 10)
    await push_one(store, "a")

    assert (await reserve_one(store)).lease.born > lease.born
    await refuses_everywhere(store, lease)


async def test_a_job_put_back_under_its_old_born_goes_on_counting(store: Store) -> None:
    # Given a lease that was held when the store was lost
    lost = Lease(QUEUE, "a", NOW - 60_000, 3)

    # When the job is put back from the journal
    await push_one(store, "a", born=lost.born, attempt=3)

    await refuses_everywhere(store, lost)
    assert (await reserve_one(store)).lease == Lease(QUEUE, "a", lost.born, 4)
    await refuses_everywhere(store, lost)


async def test_the_same_lease_in_another_queue_is_another_one(store: Store) -> None:
    lease = await given_leased(store, "a")

    with pytest.raises(LeaseLost):
        await store.release(Lease(QUEUE._replace(name="other"), "a", lease.born, lease.attempt), 0)
    with pytest.raises(LeaseLost):
        await store.kill(Lease(QUEUE._replace(namespace="other"), "a", lease.born, lease.attempt))

    assert await counts(store) == Counts(leased=1)
