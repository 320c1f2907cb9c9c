"""Deliveries whose client is gone are given back; where the store has no room even for that, their leases lapse."""

from collections.abc import Sequence

import pytest

from duetime.engine import Engine
from duetime.model.errors import DuetimeError, LeaseLost, StoreDamaged, StoreFull
from duetime.model.job import Moved, NewJob
from duetime.model.names import Queue
from duetime.stores.base import GiveBack
from duetime.stores.memory.store import MemoryStore
from tests.faults.store_faults import FaultyStore

QUEUE, OTHER = Queue("shop", "mail"), Queue("shop", "sms")


class Refusing(MemoryStore):
    """Takes back no job of `QUEUE`."""

    def __init__(self, error: DuetimeError) -> None:
        super().__init__()
        self.error = error

    async def give_back(self, queue: Queue, give_backs: Sequence[GiveBack]) -> Sequence[Moved | LeaseLost]:
        if queue == QUEUE:
            raise self.error
        return await super().give_back(queue, give_backs)


@pytest.mark.parametrize("error", [StoreFull(), StoreDamaged()], ids=["full", "damaged"])
async def test_what_cannot_be_given_back_is_logged_and_holds_up_nothing(
    error: DuetimeError, caplog: pytest.LogCaptureFixture
) -> None:
    async with Engine(Refusing(error)) as engine:
        await engine.push(QUEUE, [NewJob("a", b""), NewJob("b", b"")])
        await engine.push(OTHER, [NewJob("c", b"")])
        found = await engine.reserve([QUEUE, OTHER], limit=3)

        await engine.give_back_all(found)

        assert [(one.ready, one.leased) for one in await engine.store.counts([QUEUE, OTHER])] == [(0, 2), (1, 0)]
    [record] = caplog.records
    assert (record.message, record.jobs) == ("give_back_failed", ["a", "b"])  # type: ignore[attr-defined]


async def test_a_lost_lease_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with Engine(MemoryStore()) as engine:
        await engine.push(QUEUE, [NewJob("a", b""), NewJob("b", b"")])
        [a, b] = await engine.reserve([QUEUE], limit=2)
        await engine.ack([a.lease])

        await engine.give_back_all([a, b])

        [counts] = await engine.store.counts([QUEUE])
        assert (counts.ready, counts.leased) == (1, 0)
    assert caplog.records == []


async def test_500_deliveries_are_given_back_in_one_store_call() -> None:
    store = FaultyStore(MemoryStore())
    async with Engine(store) as engine:
        await engine.push(QUEUE, [NewJob(f"{n}", b"") for n in range(500)])
        found = await engine.reserve([QUEUE], limit=500)

        await engine.give_back_all(found)

        assert store.count("give_back") == 1
        [counts] = await store.counts([QUEUE])
        assert (counts.ready, counts.leased) == (500, 0)


async def test_many_clients_that_give_up_share_store_calls() -> None:
    store = FaultyStore(MemoryStore())
    async with Engine(store) as engine:
        await engine.push(QUEUE, [NewJob(f"{n}", b"") for n in range(500)])
        found = await engine.reserve([QUEUE], limit=500)
        tasks = [task for delivery in found for task in engine.give_back_later([delivery])]
    for task in tasks:
        await task
    assert store.count("give_back") <= 3
    [counts] = await store.counts([QUEUE])
    assert (counts.ready, counts.leased) == (500, 0)
