"""What an engine does becomes the journal's entries. The order is store, journal, answer.

What may happen again (delivered, released, given back, lapsed) is written soon and nobody waits for it. For everything
else the engine waits for `promise` before it answers.
"""

import asyncio
from asyncio import Future
from collections.abc import Sequence
from contextlib import suppress

from duetime.engine.observers import MAY_HAPPEN_AGAIN, Observer
from duetime.engine.store_time import StoreTime
from duetime.errors import DuetimeError
from duetime.job import Lease, Moved, State
from duetime.journal import pool_journal
from duetime.journal.events import Draft
from duetime.journal.journal import Journal
from duetime.journal.pushed_lines import pushed_lines
from duetime.journal.registered_nodes import NodeRegistration
from duetime.journal.repeated_pushes import RepeatedPushes, has_repeated
from duetime.names import Queue
from duetime.stores.base import Purged, Push, Pushed, Reaped, Reserved, Store
from duetime.stores.pushed_parts import pushed_parts

ONLY_LOOKS = frozenset({"reserve", "reap"})
"""Verbs that often find nothing to do: a lazy journal does not begin for them."""


class JournalObserver(Observer):
    """Of one pool, for one engine. `store` is asked for jobs that a push found already there."""

    must_hear_all = True

    def __init__(self, store: Store, journal: Journal, pool: str) -> None:
        self._store = store
        self._journal = journal
        self._pool = pool
        self._time = StoreTime()
        self._known: pool_journal.Journaling | None = None
        self._repeated = RepeatedPushes(store, journal, pool)
        self._registration = NodeRegistration(store, journal.node)
        self._calls: dict[int, int] = {}

    async def begin(self) -> None:
        """The pool journals from now on, if it did not. Raises StoreUnavailable."""
        await self._read_clock()
        self._known = await pool_journal.begin(self._store, self._pool)
        if self._journal.writer.is_open:
            await self._registration.make()
        self._journal.keep_for(self._pool, self._pulse, self._renew)

    @property
    def must_prepare(self) -> bool:
        """A lazy journal has no node yet."""
        return not self._registration.is_made

    async def prepare(self) -> None:
        """The node begins and registers. Raises StoreUnavailable."""
        self._journal.ready()
        await self._registration.make()

    async def _renew(self) -> None:
        """A store that was wiped has forgotten since when it journals and who does; the journal has not."""
        if self._known:
            await pool_journal.remember(self._store, self._known)
        if self._journal.writer.is_open:
            await self._registration.make()
            await self._registration.renew()

    async def close(self) -> None:
        self._journal.release(self._pool)
        if self._registration.is_made:
            # Where this fails, the node's own end in the journal says the same.
            with suppress(DuetimeError, OSError):
                await asyncio.to_thread(self._journal.writer.flush)
                await self._registration.end(self._journal.writer.seq)

    def promise(self) -> Future[None] | None:
        return self._journal.promise()

    # --- when it happened

    async def _read_clock(self) -> None:
        self._time.learn((await self._store.ping()).now)

    def _pulse(self) -> int:
        """Nothing that happens before this store time will be recorded any more: no call began before it."""
        return min(self._calls.values(), default=self._time.now_ms())

    def admit(self, verb: str) -> None:
        """Raises JournalFull for a push without room, StoreUnavailable if nothing can be recorded."""
        if verb == "push":
            self._journal.admit()
        else:
            self._journal.ready(sure=verb not in ONLY_LOOKS)

    def began(self, call: int) -> None:
        self._calls[call] = self._time.now_ms()

    def ended(self, call: int) -> None:
        del self._calls[call]

    # --- what happened

    async def pushed(
        self, queue: Queue, requests: Sequence[Push], answers: Sequence[Pushed | DuetimeError]
    ) -> Sequence[Pushed | DuetimeError]:
        for answer in answers[:1]:
            if isinstance(answer, Pushed):
                self._time.learn(answer.now)
        self._journal.record_lines(pushed_lines(self._pool, queue, *pushed_parts(requests, answers)))
        if has_repeated(answers):
            return await self._repeated.record(queue, requests, answers)
        return answers

    def reserved(self, queue: Queue, reserved: Reserved) -> None:
        self._time.learn(reserved.now)
        if reserved.expired or any(reserved.deliveries):
            self._journal.record(pool_journal.delivered(self._pool, queue, reserved))

    def acked(self, queue: Queue, leases: Sequence[Lease], answers: Sequence[object]) -> None:
        self._record(pool_journal.acked(self._pool, queue, leases, answers, self._time.now_ms()))

    async def acked_by_id(self, queue: Queue, ids: Sequence[str], answers: Sequence[object]) -> None:
        if any(answer is None for answer in answers):
            # An ack without a born holds up to its time, which must not be before the job's delivery.
            with suppress(DuetimeError):
                await self._read_clock()
        self._record(pool_journal.acked_by_id(self._pool, queue, ids, answers, self._time.now_ms()))

    def settled(self, verb: str, lease: Lease, moved: Moved) -> None:
        self.moved(lease.queue, [moved])

    def moved(self, queue: Queue, answers: Sequence[object]) -> None:
        self._record(pool_journal.moved(self._pool, queue, answers, self._time.now_ms()))

    def reaped(self, reaped: Reaped) -> None:
        self._time.learn(reaped.now)
        for queue, moved in reaped.moved.items():
            self._journal.record(pool_journal.moved(self._pool, queue, moved, reaped.now))

    def purged(self, queue: Queue, states: Sequence[State], purged: Purged) -> None:
        if purged.removed:
            self._record([pool_journal.purged(self._pool, queue, states, purged.now)])

    def notified(self, lease: Lease, *, status: int, ms: int) -> None:
        self._journal.record([pool_journal.notified(self._pool, lease, self._time.now_ms(), (status, ms))])

    def _record(self, drafts: Sequence[Draft]) -> None:
        """With a promise if something is among them to rely on."""
        if drafts:
            promise = any(draft.event not in MAY_HAPPEN_AGAIN for draft in drafts)
            self._journal.record(drafts, promise=promise)


async def join_journal(store: Store, journal: Journal | None, pool: str) -> Sequence[Observer]:
    """The observers that the journal needs in an engine on the pool's store: one, or none without a journal.

    Raises InvalidSettings if the pool journals and there is no journal.
    """
    if journal is None:
        if found := await pool_journal.known(store):
            raise pool_journal.refusal(found)
        return ()
    observer = JournalObserver(store, journal, pool)
    await observer.begin()
    return (observer,)
