"""Deliveries whose client is gone are given back; where the store has no room even for that, their leases lapse."""

import pytest

from duetime.engine import Engine
from duetime.model.errors import DuetimeError, LeaseLost, StoreDamaged, StoreFull
from duetime.model.job import Lease, Moved, NewJob
from duetime.model.names import Queue
from duetime.stores.memory.store import MemoryStore

QUEUE = Queue("shop", "mail")


class Refusing(MemoryStore):
    """Takes back no job called `stuck`."""

    def __init__(self, error: DuetimeError) -> None:
        super().__init__()
        self.error = error

    async def give_back(self, lease: Lease, delay_ms: int | None = None) -> Moved:
        if lease.id == "stuck":
            raise self.error
        return await super().give_back(lease, delay_ms)


@pytest.mark.parametrize(
    ("error", "logged"),
    [(StoreFull(), ["give_back_failed"]), (StoreDamaged(), ["give_back_failed"]), (LeaseLost(), [])],
    ids=["full", "damaged", "lost"],
)
async def test_what_cannot_be_given_back_is_logged_and_holds_up_nothing(
    error: DuetimeError, logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with Engine(Refusing(error)) as engine:
        await engine.push(QUEUE, [NewJob("stuck", b""), NewJob("other", b"")])
        found = await engine.reserve([QUEUE], limit=2)

        await engine.give_back_all(found)

        [counts] = await engine.store.counts([QUEUE])
        assert (counts.ready, counts.leased) == (1, 1)
    assert [record.message for record in caplog.records] == logged
