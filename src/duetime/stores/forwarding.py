"""The base of stores that wrap another store: every verb passes through `_call`, which a wrapper overrides.

A store that answers a second late:

    class Slow(ForwardingStore):
        async def _call(self, verb, call, *args, **options):
            await asyncio.sleep(1)
            return await call(*args, **options)
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from types import CoroutineType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from duetime.duties import Duty
from duetime.model.errors import DuetimeError, JobDead, JobRunning, LeaseLost, StoreUnavailable
from duetime.model.job import Counts, Job, Lease, Moved, QueueTotals, State
from duetime.model.names import Queue
from duetime.stores.base import (
    Ask,
    GiveBack,
    OneJob,
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
    Withdrawal,
)
from duetime.stores.finishes import Finish, Finished, JoinCount, KeptResult
from duetime.stores.registry import Registry

P = ParamSpec("P")
T = TypeVar("T")

if TYPE_CHECKING:
    Later = CoroutineType[Any, Any, T]
else:  # CoroutineType takes no parameters at run time
    Later = Coroutine[Any, Any, T]
"""What an `async def` returns. The verbs hand on the coroutine of `_call` and are none themselves, because a call of a
store passes here on its hottest path.
"""


class ForwardingStore:
    """Implements the Store protocol. The registry, `wakeups` and `close` do not pass through `_call`.

    It has no single-job calls, because these would bypass `_call`.
    """

    one_job: OneJob | None = None
    duty: Duty | None = None

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    async def _call(self, verb: str, call: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        """`call` is the method `verb` of the wrapped store."""
        return await call(*args, **options)

    @property
    def registry(self) -> Registry:
        return self.inner.registry

    def push(self, queue: Queue, requests: Sequence[Push]) -> Later[Sequence[Pushed | DuetimeError]]:
        return self._call("push", self.inner.push, queue, requests)

    def reserve(self, queue: Queue, asks: Sequence[Ask]) -> Later[Reserved]:
        return self._call("reserve", self.inner.reserve, queue, asks)

    def ack(
        self, queue: Queue, leases: Sequence[Lease]
    ) -> Later[Sequence[Moved | LeaseLost | StoreUnavailable | None]]:
        return self._call("ack", self.inner.ack, queue, leases)

    def finish(
        self, queue: Queue, finishes: Sequence[Finish]
    ) -> Later[Sequence[Finished | LeaseLost | DuetimeError | None]]:
        return self._call("finish", self.inner.finish, queue, finishes)

    def results(self, queue: Queue, ids: Sequence[str]) -> Later[Sequence[KeptResult | None]]:
        return self._call("results", self.inner.results, queue, ids)

    def joins(self, queue: Queue, *, after: str = "") -> Later[Sequence[JoinCount]]:
        return self._call("joins", self.inner.joins, queue, after=after)

    def raise_joins(self, queue: Queue, joins: Sequence[JoinCount]) -> Later[None]:
        return self._call("raise_joins", self.inner.raise_joins, queue, joins)

    def release(self, lease: Lease, delay_ms: int, error: str = "") -> Later[Moved]:
        return self._call("release", self.inner.release, lease, delay_ms, error)

    def give_back(
        self, queue: Queue, give_backs: Sequence[GiveBack]
    ) -> Later[Sequence[Moved | LeaseLost | StoreUnavailable]]:
        return self._call("give_back", self.inner.give_back, queue, give_backs)

    def kill(self, lease: Lease, error: str = "") -> Later[Moved]:
        return self._call("kill", self.inner.kill, lease, error)

    def extend(self, lease: Lease, ttr_ms: int) -> Later[int]:
        return self._call("extend", self.inner.extend, lease, ttr_ms)

    def cancel(
        self, queue: Queue, ids: Sequence[str], *, finished: bool = False
    ) -> Later[Sequence[Moved | StoreUnavailable | None]]:
        return self._call("cancel", self.inner.cancel, queue, ids, finished=finished)

    def reschedule(
        self, queue: Queue, ids: Sequence[str], *, delay_ms: int = 0, due_at: int | None = None
    ) -> Later[Sequence[Moved | JobRunning | JobDead | DuetimeError | None]]:
        return self._call("reschedule", self.inner.reschedule, queue, ids, delay_ms=delay_ms, due_at=due_at)

    def reap(self, limit: int = 500, *, recorded: Sequence[str] = ()) -> Later[Reaped]:
        return self._call("reap", self.inner.reap, limit, recorded=recorded)

    def wakeups(self) -> AsyncIterator[Wake]:
        return self.inner.wakeups()

    def heads(self, queues: Sequence[Queue], *, waiting: bool = False) -> Later[Sequence[int | None]]:
        return self._call("heads", self.inner.heads, queues, waiting=waiting)

    def get(self, queue: Queue, ids: Sequence[str]) -> Later[Sequence[Job | None]]:
        return self._call("get", self.inner.get, queue, ids)

    def list_jobs(self, queue: Queue, state: State, *, cursor: str | None = None, limit: int = 100) -> Later[Page]:
        return self._call("list_jobs", self.inner.list_jobs, queue, state, cursor=cursor, limit=limit)

    def counts(self, queues: Sequence[Queue]) -> Later[Sequence[Counts]]:
        return self._call("counts", self.inner.counts, queues)

    def totals(self, queues: Sequence[Queue]) -> Later[Sequence[QueueTotals]]:
        return self._call("totals", self.inner.totals, queues)

    def queues(self, namespace: str | None = None) -> Later[Sequence[Queue]]:
        return self._call("queues", self.inner.queues, namespace)

    def due_histogram(self, queue: Queue, edges: Sequence[int]) -> Later[Sequence[int]]:
        return self._call("due_histogram", self.inner.due_histogram, queue, edges)

    def respawn(
        self,
        queue: Queue,
        *,
        ids: Sequence[str] | None = None,
        limit: int = 1,
        ttl_ms: int = 0,
        tries: int | None = None,
    ) -> Later[Sequence[Moved | StoreUnavailable]]:
        return self._call("respawn", self.inner.respawn, queue, ids=ids, limit=limit, ttl_ms=ttl_ms, tries=tries)

    def purge(self, queue: Queue, states: Sequence[State], *, limit: int | None = None) -> Later[Purged]:
        return self._call("purge", self.inner.purge, queue, states, limit=limit)

    def withdraw(
        self, queue: Queue, withdrawals: Sequence[Withdrawal]
    ) -> Later[Sequence[Moved | StoreUnavailable | None]]:
        return self._call("withdraw", self.inner.withdraw, queue, withdrawals)

    def configure(self, queue: Queue, change: RulesChange | None = None) -> Later[QueueRules]:
        return self._call("configure", self.inner.configure, queue, change)

    def ping(self) -> Later[StoreInfo]:
        return self._call("ping", self.inner.ping)

    def check(self) -> Later[Sequence[str]]:
        return self._call("check", self.inner.check)

    async def close(self) -> None:
        await self.inner.close()
