"""The base of stores that wrap another store: every verb passes through `_call`, which a wrapper overrides.

A store that answers a second late:

    class Slow(ForwardingStore):
        async def _call(self, verb, call, *args, **options):
            await asyncio.sleep(1)
            return await call(*args, **options)
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import ParamSpec, TypeVar

from duetime.errors import DuetimeError, JobDead, JobRunning, LeaseLost, StoreUnavailable
from duetime.job import Counts, Job, Lease, Moved, QueueTotals, State
from duetime.names import Queue
from duetime.stores.base import (
    Ask,
    Page,
    Purged,
    Push,
    Pushed,
    QueueRules,
    Reaped,
    Reserved,
    RulesChange,
    Store,
    StoreInfo,
    Wake,
)
from duetime.stores.registry import Registry

P = ParamSpec("P")
T = TypeVar("T")


class ForwardingStore:
    """Implements the Store protocol. The registry, `wakeups` and `close` do not pass through `_call`."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    async def _call(self, verb: str, call: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        """`call` is the method `verb` of the wrapped store."""
        return await call(*args, **options)

    @property
    def registry(self) -> Registry:
        return self.inner.registry

    async def push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        return await self._call("push", self.inner.push, queue, requests)

    async def reserve(self, queue: Queue, asks: Sequence[Ask]) -> Reserved:
        return await self._call("reserve", self.inner.reserve, queue, asks)

    async def ack(self, queue: Queue, leases: Sequence[Lease]) -> Sequence[Moved | LeaseLost | StoreUnavailable | None]:
        return await self._call("ack", self.inner.ack, queue, leases)

    async def release(self, lease: Lease, delay_ms: int, error: str = "") -> Moved:
        return await self._call("release", self.inner.release, lease, delay_ms, error)

    async def give_back(self, lease: Lease) -> Moved:
        return await self._call("give_back", self.inner.give_back, lease)

    async def kill(self, lease: Lease, error: str = "") -> Moved:
        return await self._call("kill", self.inner.kill, lease, error)

    async def extend(self, lease: Lease, ttr_ms: int) -> int:
        return await self._call("extend", self.inner.extend, lease, ttr_ms)

    async def cancel(
        self, queue: Queue, ids: Sequence[str], *, finished: bool = False
    ) -> Sequence[Moved | StoreUnavailable | None]:
        return await self._call("cancel", self.inner.cancel, queue, ids, finished=finished)

    async def reschedule(
        self, queue: Queue, ids: Sequence[str], *, delay_ms: int = 0, due_at: int | None = None
    ) -> Sequence[Moved | JobRunning | JobDead | DuetimeError | None]:
        return await self._call("reschedule", self.inner.reschedule, queue, ids, delay_ms=delay_ms, due_at=due_at)

    async def reap(self, limit: int = 500) -> Reaped:
        return await self._call("reap", self.inner.reap, limit)

    def wakeups(self) -> AsyncIterator[Wake]:
        return self.inner.wakeups()

    async def heads(self, queues: Sequence[Queue]) -> Sequence[int | None]:
        return await self._call("heads", self.inner.heads, queues)

    async def get(self, queue: Queue, ids: Sequence[str]) -> Sequence[Job | None]:
        return await self._call("get", self.inner.get, queue, ids)

    async def list_jobs(self, queue: Queue, state: State, *, cursor: str | None = None, limit: int = 100) -> Page:
        return await self._call("list_jobs", self.inner.list_jobs, queue, state, cursor=cursor, limit=limit)

    async def counts(self, queues: Sequence[Queue]) -> Sequence[Counts]:
        return await self._call("counts", self.inner.counts, queues)

    async def totals(self, queues: Sequence[Queue]) -> Sequence[QueueTotals]:
        return await self._call("totals", self.inner.totals, queues)

    async def queues(self, namespace: str | None = None) -> Sequence[Queue]:
        return await self._call("queues", self.inner.queues, namespace)

    async def due_histogram(self, queue: Queue, edges: Sequence[int]) -> Sequence[int]:
        return await self._call("due_histogram", self.inner.due_histogram, queue, edges)

    async def respawn(
        self,
        queue: Queue,
        *,
        ids: Sequence[str] | None = None,
        limit: int = 1,
        ttl_ms: int = 0,
        tries: int | None = None,
    ) -> Sequence[Moved | StoreUnavailable]:
        return await self._call("respawn", self.inner.respawn, queue, ids=ids, limit=limit, ttl_ms=ttl_ms, tries=tries)

    async def purge(self, queue: Queue, states: Sequence[State], *, limit: int | None = None) -> Purged:
        return await self._call("purge", self.inner.purge, queue, states, limit=limit)

    async def configure(self, queue: Queue, change: RulesChange | None = None) -> QueueRules:
        return await self._call("configure", self.inner.configure, queue, change)

    async def ping(self) -> StoreInfo:
        return await self._call("ping", self.inner.ping)

    async def check(self) -> Sequence[str]:
        return await self._call("check", self.inner.check)

    async def close(self) -> None:
        await self.inner.close()
