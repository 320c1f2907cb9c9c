"""An engine whose verbs leave spans. Needs the extra [otel]; the plain engine knows nothing of it and pays nothing.

It is a subclass and no recorder: a span lies around one caller's request, in that caller's context, and a push writes
its context into the jobs before they are stored. Recorders get store calls, which many callers share.
"""

from collections.abc import Sequence
from typing import Any

from duetime.engine.engine import Engine
from duetime.model.errors import LeaseLost
from duetime.model.job import DEFAULT_TTR_MS, Delivery, IfExists, Lease, Moved, NewJob
from duetime.model.names import Queue
from duetime.stores.base import Mark, Pushed, Store
from duetime.tracing.spans import Tracing, now_ns


class TracedEngine(Engine):
    """Takes the arguments of an Engine, and the maker of its spans."""

    def __init__(self, store: Store, *, tracing: Tracing, **options: Any) -> None:
        super().__init__(store, **options)
        self._tracing = tracing

    async def push(
        self,
        queue: Queue,
        jobs: Sequence[NewJob],
        *,
        if_exists: IfExists = IfExists.KEEP,
        mark: Mark | None = None,
        made_ids: bool = False,
    ) -> Pushed:
        with self._tracing.pushing(queue, jobs) as carried:
            return await super().push(queue, carried, if_exists=if_exists, mark=mark, made_ids=made_ids)

    async def reserve(
        self, queues: Sequence[Queue], *, limit: int = 1, ttr_ms: int = DEFAULT_TTR_MS, wait_ms: int = 0
    ) -> list[Delivery]:
        began_ns = now_ns()
        found = await super().reserve(queues, limit=limit, ttr_ms=ttr_ms, wait_ms=wait_ms)
        self._tracing.received(found, began_ns)
        return found

    async def ack(self, leases: Sequence[Lease]) -> list[Moved | LeaseLost | None]:
        if not leases:
            return []
        with self._tracing.settling("ack", leases):
            return await super().ack(leases)

    async def ack_by_id(self, queue: Queue, ids: Sequence[str]) -> Sequence[Moved | None]:
        if not ids:
            return []
        with self._tracing.settling("ack", [Lease(queue, job_id, 0, 0) for job_id in ids]):
            return await super().ack_by_id(queue, ids)

    async def release(self, lease: Lease, *, delay_ms: int = 0, error: str = "") -> Moved:
        with self._tracing.settling("release", [lease]):
            return await super().release(lease, delay_ms=delay_ms, error=error)

    async def kill(self, lease: Lease, *, error: str = "") -> Moved:
        with self._tracing.settling("kill", [lease]):
            return await super().kill(lease, error=error)
