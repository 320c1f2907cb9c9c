"""A store whose every step is written down.

A thin wrapper of a pool's store. The order is store, journal, answer: verbs that come alone wait here until what they
did is written; those that the engine batches (push, ack, cancel) only record, and `promise` is what the engine waits
for before it answers, so that the next batch need not wait for it. What may happen again (delivered, released, given
back, lapsed) is written soon and nobody waits.

A step that has begun is recorded, also if its caller goes away.
"""

import asyncio
from asyncio import Future
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from duetime.engine.waiting import StoreTime
from duetime.errors import DuetimeError, JobDead, JobRunning, JournalFull, LeaseLost, StoreUnavailable
from duetime.job import Counts, Event, Job, Lease, Moved, QueueTotals, State
from duetime.journal import pool_journal
from duetime.journal.events import Draft
from duetime.journal.journal import Journal
from duetime.journal.pushed_lines import pushed_lines
from duetime.journal.repeated_pushes import RepeatedPushes, has_repeated
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
from duetime.stores.pushed_parts import pushed_parts
from duetime.stores.registry import Registry

T = TypeVar("T")

NOT_AWAITED = frozenset({Event.RELEASED, Event.GIVEN_BACK, Event.LEASE_EXPIRED})


class Journaled:
    """Keeps the Store protocol, and adds `promise`."""

    def __init__(self, store: Store, journal: Journal, pool: str) -> None:
        self.inner = store
        self._journal = journal
        self._pool = pool
        self._time = StoreTime()
        self._known: pool_journal.Journaling | None = None
        self._repeated = RepeatedPushes(store, journal, pool)
        self._calls: dict[int, int] = {}
        self._calls_begun = 0
        self._steps: set[asyncio.Task[Any]] = set()

    async def begin(self) -> None:
        """The pool journals from now on, if it did not. Raises StoreUnavailable."""
        await self.ping()
        self._known = await pool_journal.begin(self.inner, self._pool)
        self._journal.keep_for(self._pool, self._pulse, self._renew)

    async def _renew(self) -> None:
        """A store that was wiped has forgotten since when it journals; the journal has not."""
        if self._known:
            await pool_journal.remember(self.inner, self._known)

    @property
    def registry(self) -> Registry:
        return self.inner.registry

    def promise(self) -> Future[None] | None:
        """Done when all that must be on record before an answer is; None if it is."""
        return self._journal.promise()

    # --- when it happened

    def _learn(self, now: int) -> None:
        self._time.learn(now)

    def _pulse(self) -> int:
        """Nothing that happens before this store time will be recorded any more: no call began before it."""
        return min(self._calls.values(), default=self._time.now_ms())

    @contextmanager
    def _call(self) -> Generator[None]:
        self._calls_begun += 1
        number = self._calls_begun
        self._calls[number] = self._time.now_ms()
        try:
            yield
        finally:
            del self._calls[number]

    async def _whole(self, step: Coroutine[Any, Any, T]) -> T:
        """The step comes to its end even if the caller is cancelled."""
        task = asyncio.create_task(step)
        self._steps.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._steps.discard(task)
        if not task.cancelled():
            task.exception()  # seen, also if the caller has gone

    # --- the hot path

    async def push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        try:
            self._journal.admit()
        except JournalFull as full:
            return [full] * len(requests)
        with self._call():
            answers = await self.inner.push(queue, requests)
            for answer in answers[:1]:
                if isinstance(answer, Pushed):
                    self._learn(answer.now)
            self._journal.record_lines(pushed_lines(self._pool, queue, *pushed_parts(requests, answers)))
            if has_repeated(answers):
                answers = await self._repeated.record(queue, requests, answers)
        return answers

    async def reserve(self, queue: Queue, asks: Sequence[Ask]) -> Reserved:
        self._journal.ready(sure=False)
        with self._call():
            reserved = await self.inner.reserve(queue, asks)
            self._learn(reserved.now)
            if reserved.expired or any(reserved.deliveries):
                self._journal.record(pool_journal.delivered(self._pool, queue, reserved))
        return reserved

    async def ack(self, queue: Queue, leases: Sequence[Lease]) -> Sequence[Moved | LeaseLost | StoreUnavailable | None]:
        self._journal.ready()
        with self._call():
            answers = await self.inner.ack(queue, leases)
            self._record(pool_journal.acked(self._pool, queue, leases, answers, self._time.now_ms()))
        return answers

    async def cancel(
        self, queue: Queue, ids: Sequence[str], *, finished: bool = False
    ) -> Sequence[Moved | StoreUnavailable | None]:
        self._journal.ready()
        with self._call():
            answers = await self.inner.cancel(queue, ids, finished=finished)
            if not finished:
                self._record(pool_journal.moved(self._pool, queue, answers, self._time.now_ms()))
                return answers
            if any(answer is None for answer in answers):
                # An ack without a born holds up to its time, which must not be before the job's delivery.
                with suppress(DuetimeError):
                    await self.ping()
            self._record(pool_journal.acked_by_id(self._pool, queue, ids, answers, self._time.now_ms()))
        return answers

    def _record(self, drafts: Sequence[Draft]) -> None:
        if drafts:
            self._journal.record(drafts, promise=True)

    async def release(self, lease: Lease, delay_ms: int, error: str = "") -> Moved:
        return await self._one(lease.queue, lambda: self.inner.release(lease, delay_ms, error))

    async def give_back(self, lease: Lease) -> Moved:
        return await self._one(lease.queue, lambda: self.inner.give_back(lease))

    async def kill(self, lease: Lease, error: str = "") -> Moved:
        return await self._one(lease.queue, lambda: self.inner.kill(lease, error))

    async def _one(self, queue: Queue, step: Callable[[], Awaitable[Moved]]) -> Moved:
        async def alone() -> Sequence[Moved]:
            return [await step()]

        [moved] = await self._whole(self._several(queue, alone))
        return moved

    async def _several(self, queue: Queue, step: Callable[[], Awaitable[Sequence[T]]]) -> Sequence[T]:
        """Records what moved, and waits for that if it is something to rely on."""
        self._journal.ready()
        with self._call():
            answers = await step()
            drafts = pool_journal.moved(self._pool, queue, answers, self._time.now_ms())
            awaited = any(draft.event not in NOT_AWAITED for draft in drafts)
            self._journal.record(drafts, promise=awaited)
        if awaited:
            await self._journal.flush()
        return answers

    def notified(self, lease: Lease, status: int, ms: int) -> None:
        """A callback answered. Written soon; nobody waits."""
        draft = pool_journal.notified(self._pool, lease, self._time.now_ms(), (status, ms))
        self._journal.record([draft])

    async def extend(self, lease: Lease, ttr_ms: int) -> int:
        return await self.inner.extend(lease, ttr_ms)

    async def reschedule(
        self, queue: Queue, ids: Sequence[str], *, delay_ms: int = 0, due_at: int | None = None
    ) -> Sequence[Moved | JobRunning | JobDead | DuetimeError | None]:
        inner = self.inner.reschedule
        return await self._whole(self._several(queue, lambda: inner(queue, ids, delay_ms=delay_ms, due_at=due_at)))

    async def reap(self, limit: int = 500) -> Reaped:
        self._journal.ready(sure=False)
        with self._call():
            reaped = await self.inner.reap(limit)
            self._learn(reaped.now)
            for queue, moved in reaped.moved.items():
                self._journal.record(pool_journal.moved(self._pool, queue, moved, reaped.now))
        return reaped

    def wakeups(self) -> AsyncIterator[Wake]:
        return self.inner.wakeups()

    # --- looking and administering

    async def heads(self, queues: Sequence[Queue]) -> Sequence[int | None]:
        return await self.inner.heads(queues)

    async def get(self, queue: Queue, ids: Sequence[str]) -> Sequence[Job | None]:
        return await self.inner.get(queue, ids)

    async def list_jobs(self, queue: Queue, state: State, *, cursor: str | None = None, limit: int = 100) -> Page:
        return await self.inner.list_jobs(queue, state, cursor=cursor, limit=limit)

    async def counts(self, queues: Sequence[Queue]) -> Sequence[Counts]:
        return await self.inner.counts(queues)

    async def totals(self, queues: Sequence[Queue]) -> Sequence[QueueTotals]:
        return await self.inner.totals(queues)

    async def queues(self, namespace: str | None = None) -> Sequence[Queue]:
        return await self.inner.queues(namespace)

    async def due_histogram(self, queue: Queue, edges: Sequence[int]) -> Sequence[int]:
        return await self.inner.due_histogram(queue, edges)

    async def respawn(
        self,
        queue: Queue,
        *,
        ids: Sequence[str] | None = None,
        limit: int = 1,
        ttl_ms: int = 0,
        tries: int | None = None,
    ) -> Sequence[Moved | StoreUnavailable]:
        def step() -> Awaitable[Sequence[Moved | StoreUnavailable]]:
            return self.inner.respawn(queue, ids=ids, limit=limit, ttl_ms=ttl_ms, tries=tries)

        return await self._whole(self._several(queue, step))

    async def purge(self, queue: Queue, states: Sequence[State], *, limit: int | None = None) -> Purged:
        return await self._whole(self._purge(queue, states, limit))

    async def _purge(self, queue: Queue, states: Sequence[State], limit: int | None) -> Purged:
        self._journal.ready()
        with self._call():
            purged = await self.inner.purge(queue, states, limit=limit)
            if purged.removed:
                self._record([pool_journal.purged(self._pool, queue, states, purged.now)])
        await self._journal.flush()
        return purged

    async def configure(self, queue: Queue, change: RulesChange | None = None) -> QueueRules:
        return await self.inner.configure(queue, change)

    async def ping(self) -> StoreInfo:
        info = await self.inner.ping()
        self._learn(info.now)
        return info

    async def check(self) -> Sequence[str]:
        return await self.inner.check()

    async def close(self) -> None:
        self._journal.release(self._pool)
        await asyncio.gather(*self._steps, return_exceptions=True)
        await self.inner.close()


async def join_journal(store: Store, journal: Journal | None, pool: str) -> Store:
    """The pool's store as an engine may use it. Raises InvalidSettings if the pool journals and there is no journal."""
    if journal is None:
        if found := await pool_journal.known(store):
            raise pool_journal.refusal(found)
        return store
    journaled = Journaled(store, journal, pool)
    await journaled.begin()
    return journaled
