"""The contract's verbs as steps. A dialect says in which thread, on which connection and in which transaction they run.

The rules are in `rules.py`, the steps in `verbs.py` and `views.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

from duetime.duties import Duty
from duetime.model.errors import DuetimeError, JobDead, JobRunning, LeaseLost
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
    Wake,
    Withdrawal,
)
from duetime.stores.finishes import Finish, Finished, JoinCount, KeptResult
from duetime.stores.sql import finishing, verbs, views
from duetime.stores.sql.step import Step
from duetime.stores.sql.threads import BIG_JOBS
from duetime.stores.sql.wake import WakeHub

T = TypeVar("T")


class SqlStore(ABC):
    """The part of `stores.base.Store` that is the same for all dialects."""

    _hub: WakeHub
    one_job: OneJob | None = None
    duty: Duty | None = None

    @abstractmethod
    async def _write(
        self, operation: Callable[[Step], T], *, queue: Queue | None = None, jobs: int = 1, adds: bool = False
    ) -> T:
        """Run a step that changes up to `jobs` jobs of `queue`. If it `adds` jobs, it may be refused for room."""

    @abstractmethod
    async def _read(self, operation: Callable[[Step], T], *, queue: Queue | None = None) -> T:
        """Run a step that only reads, on one snapshot."""

    # --- the hot path

    async def push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        jobs = sum([len(request.jobs) for request in requests])
        return await self._write(lambda step: verbs.push(step, queue, requests), queue=queue, jobs=jobs, adds=True)

    async def reserve(self, queue: Queue, asks: Sequence[Ask]) -> Reserved:
        jobs = sum([ask.limit for ask in asks])
        reserved = await self._write(lambda step: verbs.reserve(step, queue, asks), queue=queue, jobs=jobs)
        if not all(reserved.deliveries):
            self._hub.keep_awake()
        return reserved

    async def ack(self, queue: Queue, leases: Sequence[Lease]) -> Sequence[Moved | LeaseLost | None]:
        return await self._write(lambda step: verbs.ack(step, queue, leases), queue=queue, jobs=len(leases))

    async def finish(self, queue: Queue, finishes: Sequence[Finish]) -> Sequence[Finished | DuetimeError | None]:
        jobs = sum([1 + len(one.then) for one in finishes])
        return await self._write(lambda step: finishing.finish(step, queue, finishes), queue=queue, jobs=jobs)

    async def results(self, queue: Queue, ids: Sequence[str]) -> Sequence[KeptResult | None]:
        self._hub.keep_awake()
        return await self._read(lambda step: finishing.results(step, queue, ids), queue=queue)

    async def joins(self, queue: Queue, *, after: str = "") -> Sequence[JoinCount]:
        return await self._read(lambda step: finishing.joins(step, queue, after), queue=queue)

    async def raise_joins(self, queue: Queue, joins: Sequence[JoinCount]) -> None:
        await self._write(lambda step: finishing.raise_joins(step, queue, joins), queue=queue)

    async def release(self, lease: Lease, delay_ms: int, error: str = "") -> Moved:
        return await self._write(lambda step: verbs.release(step, lease, delay_ms, error), queue=lease.queue)

    async def give_back(self, queue: Queue, give_backs: Sequence[GiveBack]) -> Sequence[Moved | LeaseLost]:
        return await self._write(
            lambda step: verbs.give_back(step, queue, give_backs), queue=queue, jobs=len(give_backs)
        )

    async def kill(self, lease: Lease, error: str = "") -> Moved:
        return await self._write(lambda step: verbs.kill(step, lease, error), queue=lease.queue)

    async def extend(self, lease: Lease, ttr_ms: int) -> int:
        return await self._write(lambda step: verbs.extend(step, lease, ttr_ms), queue=lease.queue)

    async def cancel(self, queue: Queue, ids: Sequence[str], *, finished: bool = False) -> Sequence[Moved | None]:
        return await self._write(
            lambda step: verbs.cancel(step, queue, ids, finished=finished), queue=queue, jobs=len(ids)
        )

    async def withdraw(self, queue: Queue, withdrawals: Sequence[Withdrawal]) -> Sequence[Moved | None]:
        return await self._write(
            lambda step: verbs.withdraw(step, queue, withdrawals), queue=queue, jobs=len(withdrawals)
        )

    async def reschedule(
        self, queue: Queue, ids: Sequence[str], *, delay_ms: int = 0, due_at: int | None = None
    ) -> Sequence[Moved | JobRunning | JobDead | DuetimeError | None]:
        return await self._write(
            lambda step: verbs.reschedule(step, queue, ids, delay_ms, due_at), queue=queue, jobs=len(ids)
        )

    @abstractmethod
    async def reap(self, limit: int = 500, *, recorded: Sequence[str] = ()) -> Reaped: ...

    def wakeups(self) -> AsyncIterator[Wake]:
        return self._hub.wakes()

    # --- reading and administering

    async def heads(self, queues: Sequence[Queue], *, waiting: bool = False) -> Sequence[int | None]:
        if waiting:
            self._hub.keep_awake()
        return await self._read(lambda step: step.heads(queues))

    async def get(self, queue: Queue, ids: Sequence[str]) -> Sequence[Job | None]:
        return await self._read(lambda step: views.get(step, queue, ids), queue=queue)

    async def list_jobs(self, queue: Queue, state: State, *, cursor: str | None = None, limit: int = 100) -> Page:
        return await self._read(lambda step: views.list_jobs(step, queue, state, cursor, limit), queue=queue)

    async def counts(self, queues: Sequence[Queue]) -> Sequence[Counts]:
        return await self._read(lambda step: views.counts(step, queues))

    async def totals(self, queues: Sequence[Queue]) -> Sequence[QueueTotals]:
        return await self._read(lambda step: views.totals(step, queues))

    async def queues(self, namespace: str | None = None) -> Sequence[Queue]:
        return await self._read(lambda step: views.queues(step, namespace))

    async def due_histogram(self, queue: Queue, edges: Sequence[int]) -> Sequence[int]:
        return await self._read(lambda step: views.due_histogram(step, queue, edges), queue=queue)

    async def respawn(
        self,
        queue: Queue,
        *,
        ids: Sequence[str] | None = None,
        limit: int = 1,
        ttl_ms: int = 0,
        tries: int | None = None,
    ) -> Sequence[Moved]:
        return await self._write(
            lambda step: verbs.respawn(step, queue, ids, limit, ttl_ms, tries), queue=queue, jobs=limit
        )

    async def purge(self, queue: Queue, states: Sequence[State], *, limit: int | None = None) -> Purged:
        return await self._write(lambda step: verbs.purge(step, queue, states, limit), queue=queue, jobs=BIG_JOBS)

    async def configure(self, queue: Queue, change: RulesChange | None = None) -> QueueRules:
        if change is None:
            return await self._read(lambda step: step.load_queue(queue).rules())
        return await self._write(lambda step: verbs.configure(step, queue, change), queue=queue)

    async def check(self) -> Sequence[str]:
        return await self._read(lambda step: list(views.check(step)))
