"""A store that is watched: every verb's time, and what it moved.

A thin wrapper of the real store, put around it where a pool is opened. It decides nothing and changes nothing; a call
costs it one reading of the clock before and one after, and a few additions per job.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TypeVar

from duetime.errors import DuetimeError, JobDead, JobRunning, LeaseLost, StoreUnavailable
from duetime.job import Counts, Job, Lease, Moved, QueueTotals, State
from duetime.metrics.pool_meters import PoolMeters
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

T = TypeVar("T")

VERBS = tuple(name for name in vars(Store) if not name.startswith("_") and name not in ("registry", "wakeups", "close"))

now_s = time.perf_counter


class Metered:
    """Keeps the Store protocol."""

    def __init__(self, store: Store, meters: PoolMeters) -> None:
        self.inner = store
        self._meters = meters
        self._calls = {verb: meters.calls(verb) for verb in VERBS}

    @property
    def registry(self) -> Registry:
        return self.inner.registry

    async def _timed(self, verb: str, call: Awaitable[T]) -> T:
        """A call that was refused (a lost lease) was served; one that the store could not serve is an error, too."""
        began = now_s()
        try:
            return await call
        except DuetimeError as error:
            if not isinstance(error, LeaseLost):
                self._meters.failed(verb, error.code)
            raise
        finally:
            self._calls[verb].observe(now_s() - began)

    # --- the hot path

    async def push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        answers = await self._timed("push", self.inner.push(queue, requests))
        meters = self._meters.queue(queue)
        for answer in answers:
            if isinstance(answer, Pushed) and not answer.repeated:
                meters.push(answer)
        return answers

    async def reserve(self, queue: Queue, asks: Sequence[Ask]) -> Reserved:
        reserved = await self._timed("reserve", self.inner.reserve(queue, asks))
        for deliveries in reserved.deliveries:
            if deliveries:
                self._meters.queue(queue).deliver(deliveries, reserved.now)
                self._meters.started(deliveries, now_s())
        if reserved.expired:
            self._meters.queue(queue).moved(reserved.expired)
        return reserved

    async def ack(self, queue: Queue, leases: Sequence[Lease]) -> Sequence[Moved | LeaseLost | StoreUnavailable | None]:
        answers = await self._timed("ack", self.inner.ack(queue, leases))
        self._meters.queue(queue).moved(answers)
        at_s, ended = now_s(), self._meters.ended
        for lease, answer in zip(leases, answers, strict=True):
            if isinstance(answer, Moved):
                ended(lease, at_s)
        return answers

    async def release(self, lease: Lease, delay_ms: int, error: str = "") -> Moved:
        return self._ended(lease, await self._timed("release", self.inner.release(lease, delay_ms, error)))

    async def give_back(self, lease: Lease) -> Moved:
        moved = await self._timed("give_back", self.inner.give_back(lease))
        self._meters.queue(lease.queue).moved([moved])
        self._meters.forget(lease)
        return moved

    async def kill(self, lease: Lease, error: str = "") -> Moved:
        return self._ended(lease, await self._timed("kill", self.inner.kill(lease, error)))

    def _ended(self, lease: Lease, moved: Moved) -> Moved:
        self._meters.queue(lease.queue).moved([moved])
        self._meters.ended(lease, now_s())
        return moved

    async def extend(self, lease: Lease, ttr_ms: int) -> int:
        return await self._timed("extend", self.inner.extend(lease, ttr_ms))

    async def cancel(
        self, queue: Queue, ids: Sequence[str], *, finished: bool = False
    ) -> Sequence[Moved | StoreUnavailable | None]:
        answers = await self._timed("cancel", self.inner.cancel(queue, ids, finished=finished))
        at_s = now_s()
        for answer in answers if finished else ():
            if isinstance(answer, Moved):
                self._meters.ended(Lease(queue, answer.id, answer.born, answer.attempt), at_s)
        return self._moved(queue, answers)

    async def reschedule(
        self, queue: Queue, ids: Sequence[str], *, delay_ms: int = 0, due_at: int | None = None
    ) -> Sequence[Moved | JobRunning | JobDead | DuetimeError | None]:
        call = self.inner.reschedule(queue, ids, delay_ms=delay_ms, due_at=due_at)
        return self._moved(queue, await self._timed("reschedule", call))

    def _moved(self, queue: Queue, moved: Sequence[T]) -> Sequence[T]:
        self._meters.queue(queue).moved(moved)
        return moved

    async def reap(self, limit: int = 500) -> Reaped:
        reaped = await self._timed("reap", self.inner.reap(limit))
        self._meters.reaped(reaped.now)
        for queue, moved in reaped.moved.items():
            self._meters.queue(queue).moved(moved)
        return reaped

    def wakeups(self) -> AsyncIterator[Wake]:
        return self.inner.wakeups()

    # --- looking and administering

    async def heads(self, queues: Sequence[Queue]) -> Sequence[int | None]:
        return await self._timed("heads", self.inner.heads(queues))

    async def get(self, queue: Queue, ids: Sequence[str]) -> Sequence[Job | None]:
        return await self._timed("get", self.inner.get(queue, ids))

    async def list_jobs(self, queue: Queue, state: State, *, cursor: str | None = None, limit: int = 100) -> Page:
        return await self._timed("list_jobs", self.inner.list_jobs(queue, state, cursor=cursor, limit=limit))

    async def counts(self, queues: Sequence[Queue]) -> Sequence[Counts]:
        return await self._timed("counts", self.inner.counts(queues))

    async def totals(self, queues: Sequence[Queue]) -> Sequence[QueueTotals]:
        return await self._timed("totals", self.inner.totals(queues))

    async def queues(self, namespace: str | None = None) -> Sequence[Queue]:
        return await self._timed("queues", self.inner.queues(namespace))

    async def due_histogram(self, queue: Queue, edges: Sequence[int]) -> Sequence[int]:
        return await self._timed("due_histogram", self.inner.due_histogram(queue, edges))

    async def respawn(
        self,
        queue: Queue,
        *,
        ids: Sequence[str] | None = None,
        limit: int = 1,
        ttl_ms: int = 0,
        tries: int | None = None,
    ) -> Sequence[Moved | StoreUnavailable]:
        call = self.inner.respawn(queue, ids=ids, limit=limit, ttl_ms=ttl_ms, tries=tries)
        return self._moved(queue, await self._timed("respawn", call))

    async def purge(self, queue: Queue, states: Sequence[State], *, limit: int | None = None) -> Purged:
        purged = await self._timed("purge", self.inner.purge(queue, states, limit=limit))
        if purged.removed:
            self._meters.queue(queue).purged.value += purged.removed
        return purged

    async def configure(self, queue: Queue, change: RulesChange | None = None) -> QueueRules:
        return await self._timed("configure", self.inner.configure(queue, change))

    async def ping(self) -> StoreInfo:
        return await self._timed("ping", self.inner.ping())

    async def check(self) -> Sequence[str]:
        return await self._timed("check", self.inner.check())

    async def close(self) -> None:
        await self.inner.close()
