"""The background work of a tiered store."""

from collections.abc import Sequence

from duetime.model.clock import SystemClock
from duetime.model.job import NewJob
from duetime.model.names import Queue
from duetime.stores.base import Push
from duetime.stores.forwarding import ForwardingStore, Later
from duetime.stores.memory.store import MemoryStore
from duetime.stores.tiered.store import TieredStore
from tests.plugins.until import until

QUEUE = Queue("shop", "mail")
HOUR_MS = 3_600_000


class _BreaksOnce(ForwardingStore):
    """Its first list of queues fails in a way that nobody foresaw."""

    broke = False

    def queues(self, namespace: str | None = None) -> Later[Sequence[Queue]]:
        if not self.broke:
            self.broke = True
            raise RuntimeError("a bug")
        return super().queues(namespace)


async def test_jobs_are_promoted_after_a_bug_broke_the_promoter() -> None:
    hot, cold = MemoryStore(), _BreaksOnce(MemoryStore())

    async def open_hot() -> MemoryStore:
        return hot

    async def open_cold() -> _BreaksOnce:
        return cold

    await cold.push(QUEUE, [Push([NewJob("far", b"", due_at=SystemClock().now_ms() + HOUR_MS // 2)])])
    tiered = await TieredStore.open("t", open_hot, open_cold, horizon_ms=HOUR_MS)

    await until(lambda: cold.broke)

    async def is_promoted() -> bool:
        return (await hot.get(QUEUE, ["far"])) != [None]

    await until(is_promoted, deadline_s=20)
    await tiered.close()
