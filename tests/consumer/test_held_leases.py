"""The leases that a consumer holds: renewed in time, acked together, reported through outages."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import pytest

from duetime.consumer.held_leases import RENEWED_TOGETHER, Answer, HeldLeases
from duetime.model.errors import DuetimeError, InvalidRequest, LeaseLost, StoreUnavailable
from duetime.model.job import Event, Lease, Moved
from duetime.model.names import Queue
from duetime.stores.base import Finish, Finished
from tests.plugins.until import until

LEASE_MS = 30_000
QUEUE = Queue("shop", "mail")


def lease(number: int = 1) -> Lease:
    return Lease(QUEUE, str(number), 1, 1)


def moved(one: Lease, event: Event) -> Moved:
    return Moved(event, one.id, one.born)


class FakeStore:
    """`errors` are raised by the next calls, one each; `calls` has the verb and the ids of every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []
        self.errors: list[Exception] = []
        self.under_way = 0
        self.most = 0
        self.refused = ""
        self.go = asyncio.Event()
        self.go.set()

    async def _call(self, verb: str, leases: Sequence[Lease]) -> None:
        self.calls.append((verb, [one.id for one in leases]))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        await self.go.wait()
        self.under_way -= 1
        if self.errors:
            raise self.errors.pop(0)

    async def ack(self, leases: Sequence[Lease]) -> Sequence[Answer]:
        await self._call("ack", leases)
        return [moved(one, Event.ACKED) for one in leases]

    async def finish(self, finishes: Sequence[Finish]) -> Sequence[Finished | DuetimeError | None]:
        await self._call("finish", [one.lease for one in finishes])
        if self.refused in [one.lease.id for one in finishes]:
            raise InvalidRequest("refused")
        return [Finished(moved(one.lease, Event.ACKED), (), 0) for one in finishes]

    async def release(self, lease: Lease, *, delay_ms: int = 0, error: str = "") -> Moved:
        await self._call("release", [lease])
        return moved(lease, Event.RELEASED)

    async def give_back(self, leases: Sequence[Lease], *, delay_ms: int | None = None) -> Sequence[Answer]:
        await self._call("give_back", leases)
        return [moved(one, Event.GIVEN_BACK) for one in leases]

    async def kill(self, lease: Lease, *, error: str = "") -> Moved:
        await self._call("kill", [lease])
        return moved(lease, Event.DEAD)

    async def extend(self, lease: Lease, ttr_ms: int) -> int:
        await self._call("extend", [lease])
        return ttr_ms


class Consumer:
    """HeldLeases with a clock that the test moves, and the answers to its acks by job id."""

    def __init__(self) -> None:
        self.store = FakeStore()
        self.now = 0.0
        self.tasks: set[asyncio.Task[None]] = set()
        self.answers: dict[str, Answer] = {}
        self.leases = HeldLeases(lambda: self.store, LEASE_MS, self.spawn, lambda: self.now)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def ack(self, number: int, finish: Finish | None = None) -> None:
        def reply(answer: Answer) -> None:
            self.answers[str(number)] = answer

        self.leases.ack(lease(number), reply, finish)

    async def done(self) -> None:
        await asyncio.gather(*self.tasks)


@pytest.fixture
async def consumer() -> AsyncIterator[Consumer]:
    consumer = Consumer()
    yield consumer
    for task in consumer.tasks:
        task.cancel()
    await asyncio.gather(*consumer.tasks, return_exceptions=True)


async def test_a_lease_is_renewed_when_a_third_of_it_has_passed(consumer: Consumer) -> None:
    consumer.leases.add(lease())
    consumer.now = 9.9
    await consumer.leases.run_once()
    assert consumer.store.calls == []
    consumer.now = 10.0
    await consumer.leases.run_once()
    consumer.now = 19.9
    await consumer.leases.run_once()
    assert consumer.store.calls == [("extend", ["1"])]


async def test_leases_are_renewed_side_by_side_within_a_bound(consumer: Consumer) -> None:
    """A store that takes its time to renew one lease must not let the others expire."""
    for number in range(RENEWED_TOGETHER + 10):
        consumer.leases.add(lease(number))
    consumer.now = 10.0
    await consumer.leases.run_once()
    assert len(consumer.store.calls) == RENEWED_TOGETHER + 10
    assert consumer.store.most == RENEWED_TOGETHER


async def test_a_renewal_that_fails_is_repeated_in_the_next_round(consumer: Consumer) -> None:
    consumer.leases.add(lease())
    consumer.now = 10.0
    consumer.store.errors = [StoreUnavailable("down"), ZeroDivisionError("planted")]
    for _ in range(4):
        await consumer.leases.run_once()
    assert [verb for verb, _ in consumer.store.calls] == ["extend"] * 3
    assert lease() in consumer.leases


async def test_a_lost_lease_is_reported_once_and_no_longer_held(consumer: Consumer) -> None:
    lost: list[str] = []
    consumer.leases.add(lease(), lambda: lost.append("1"))
    consumer.now = 10.0
    consumer.store.errors = [LeaseLost("lost")]
    await consumer.leases.run_once()
    await consumer.leases.run_once()
    assert (lost, len(consumer.leases)) == (["1"], 0)
    assert [verb for verb, _ in consumer.store.calls] == ["extend"]


async def test_a_lease_that_ends_is_not_reported_as_lost(consumer: Consumer) -> None:
    """The ack may have reached the store before the renewal did: its answer says what happened."""
    lost: list[str] = []
    consumer.leases.add(lease(), lambda: lost.append("1"))
    consumer.now = 10.0
    consumer.ack(1)
    consumer.store.errors = [LeaseLost("lost")]
    await consumer.leases.run_once()
    await consumer.done()
    assert (lost, len(consumer.leases)) == ([], 0)
    assert isinstance(consumer.answers["1"], Moved)


async def test_acks_gather_while_one_is_under_way(consumer: Consumer) -> None:
    consumer.store.go.clear()
    consumer.ack(1)
    consumer.ack(2)
    await until(lambda: bool(consumer.store.calls))
    for number in (3, 4, 5):
        consumer.ack(number)
    consumer.store.go.set()
    await consumer.done()
    assert consumer.store.calls == [("ack", ["1", "2"]), ("ack", ["3", "4", "5"])]
    assert sorted(consumer.answers) == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("verb", ["ack", "release", "kill", "give_back"])
async def test_a_report_is_repeated_until_the_store_answers(consumer: Consumer, verb: str) -> None:
    """The lease is renewed meanwhile, and let go of afterwards."""
    consumer.leases.add(lease())
    consumer.store.errors = [StoreUnavailable("down"), StoreUnavailable("down")]
    if verb == "ack":
        consumer.ack(1)
        await asyncio.sleep(0)
        assert lease() in consumer.leases
        await consumer.done()
    else:
        await getattr(consumer.leases, verb)(lease())
    assert consumer.store.calls == [(verb, ["1"])] * 3
    assert len(consumer.leases) == 0


async def test_a_lease_that_was_lost_meanwhile_is_the_answer(consumer: Consumer) -> None:
    consumer.store.errors = [StoreUnavailable("down"), LeaseLost("lost")]
    consumer.leases.add(lease())
    with pytest.raises(LeaseLost):
        await consumer.leases.release(lease())
    assert len(consumer.leases) == 0


async def test_an_error_of_our_own_in_one_call_of_acks_does_not_hold_the_next(consumer: Consumer) -> None:
    consumer.store.go.clear()
    consumer.store.errors = [ZeroDivisionError("planted")]
    consumer.ack(1)
    await until(lambda: bool(consumer.store.calls))
    consumer.ack(2)
    consumer.store.go.set()
    await consumer.done()
    assert isinstance(consumer.answers["1"], DuetimeError)
    assert isinstance(consumer.answers["2"], Moved)


async def test_a_finish_that_is_refused_does_not_fail_its_neighbours(consumer: Consumer) -> None:
    consumer.store.refused = "2"
    for number in (1, 2, 3):
        consumer.ack(number, Finish(lease(number), (), b"1", 1000))
    await consumer.done()
    assert consumer.store.calls == [("finish", ["1", "2", "3"]), *(("finish", [one]) for one in "123")]
    assert isinstance(consumer.answers["1"], Moved)
    assert isinstance(consumer.answers["2"], InvalidRequest)
    assert isinstance(consumer.answers["3"], Moved)


async def test_a_release_that_is_cancelled_leaves_the_job_to_be_given_back(consumer: Consumer) -> None:
    consumer.leases.add(lease(2))
    consumer.store.go.clear()
    releasing = asyncio.create_task(consumer.leases.release(lease(1)))
    await until(lambda: bool(consumer.store.calls))
    releasing.cancel()
    await asyncio.gather(releasing, return_exceptions=True)
    consumer.store.go.set()
    consumer.store.errors = [StoreUnavailable("down")]
    await consumer.leases.give_back_all()
    assert consumer.store.calls[1:] == [("give_back", ["2", "1"])]
    assert len(consumer.leases) == 0
