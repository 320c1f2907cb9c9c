"""The engine's observer that records its events in the journal. The order is store, journal, answer.

Events whose loss breaks no promise (delivered, released, given back, lapsed, notified) are written soon, and nobody
waits for them. For all others the engine waits for `promise` before it answers.
"""

import asyncio
from asyncio import Future
from collections.abc import Mapping, Sequence
from contextlib import suppress

from duetime.engine.observers import MAY_HAPPEN_AGAIN, Observer
from duetime.engine.store_time import StoreTime
from duetime.journal import pool_journal
from duetime.journal.events import Draft
from duetime.journal.journal import Journal
from duetime.journal.pushed_lines import pushed_lines
from duetime.journal.registered_nodes import NodeRegistration, forget
from duetime.journal.repeated_pushes import RepeatedPushes, has_repeated
from duetime.model.errors import DuetimeError, InvalidSettings
from duetime.model.job import Lease, Moved, State
from duetime.model.names import Queue
from duetime.stores.base import Purged, Push, Pushed, Reaped, Reserved, Store
from duetime.stores.finishes import SeenJoin
from duetime.stores.pushed_parts import pushed_parts

ONLY_LOOKS = frozenset({"reap"})
"""Verbs that often change nothing, and that every program uses: a lazy journal does not make its node for them."""


class JournalObserver(Observer):
    """Records one engine's events in one pool. `store` is asked about jobs that a push found already there."""

    must_hear_all = True

    def __init__(self, store: Store, journal: Journal, pool: str) -> None:
        self._store = store
        self._journal = journal
        self._pool = pool
        self._time = StoreTime()
        self._known: pool_journal.Journaling | None = None
        self._epoch = ""
        self._repeated = RepeatedPushes(store, journal, pool)
        self._registration = NodeRegistration(store, journal.node, journal.options.folder)
        self._calls: dict[int, int] = {}

    async def begin(self) -> None:
        """Register the node if it exists already, mark the pool as one that journals, and begin the heartbeats. The
        node comes first, so that programs that notice the mark can write beside it. Raises InvalidSettings,
        StoreUnavailable.
        """
        info = await self._store.ping()
        self._time.learn(info.now)
        self._epoch = info.epoch
        if self._journal.writer.is_open:
            await self._registration.make()
        try:
            self._known = await pool_journal.begin(self._store, self._pool)
        except InvalidSettings:
            await forget(self._store, [self._journal.node])
            raise
        self._journal.keep_for(self._pool, self._pulse, self._renew)

    @property
    def must_prepare(self) -> bool:
        """True until the node is registered; a lazy journal makes and registers its node in `prepare`."""
        return not self._registration.is_made

    async def prepare(self, verb: str) -> None:
        """Make the node if there is none yet, and register it, unless the verb only looks. Raises StoreUnavailable."""
        if verb in ONLY_LOOKS and not self._journal.writer.is_open:
            return
        self._journal.ready()
        await self._registration.make()

    def take_over(self, calls: Mapping[int, float]) -> None:
        """Count calls that are under way already as begun so many seconds ago."""
        now = self._time.now_ms()
        self._calls |= {call: now - round(age_s * 1000) for call, age_s in calls.items()}

    async def _renew(self) -> None:
        """Write the pool's and the nodes' records again if the store was wiped and has lost them. A store that was not
        wiped has lost them because the pool's journal was ended: they stay away until a journal begins again.
        """
        epoch = (await self._store.ping()).epoch
        if epoch == self._epoch and await pool_journal.known(self._store) is None:
            return
        self._epoch = epoch
        if self._known:
            await pool_journal.remember(self._store, self._known)
        if self._journal.writer.is_open:
            await self._registration.make()
            await self._registration.renew()

    async def close(self) -> None:
        self._journal.release(self._pool)
        if self._registration.is_made:
            # If this fails, the `closed` entry in the node's journal says the same.
            with suppress(DuetimeError, OSError):
                await asyncio.to_thread(self._journal.writer.flush)
                await self._registration.end(self._journal.writer.seq)

    def promise(self) -> Future[None] | None:
        return self._journal.promise()

    # --- when it happened

    async def _read_clock(self) -> None:
        self._time.learn((await self._store.ping()).now)

    def _pulse(self) -> int:
        """A store time before which no event can still be recorded: no call that is under way began earlier."""
        return min(self._calls.values(), default=self._time.now_ms())

    def admit(self, verb: str) -> None:
        """Raises JournalFull for a push if the disk is nearly full, StoreUnavailable if nothing can be recorded."""
        if verb == "push":
            self._journal.admit()
        else:
            self._journal.ready(sure=verb not in ONLY_LOOKS)

    def began(self, call: int) -> None:
        self._calls[call] = self._time.now_ms()

    def ended(self, call: int) -> None:
        self._calls.pop(call, None)

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

    def acked(
        self,
        queue: Queue,
        leases: Sequence[Lease],
        answers: Sequence[object],
        joins: Sequence[SeenJoin | None] = (),
    ) -> None:
        self._record(pool_journal.acked(self._pool, queue, leases, answers, self._time.now_ms(), joins))

    async def acked_by_id(self, queue: Queue, ids: Sequence[str], answers: Sequence[object]) -> None:
        if any(answer is None for answer in answers):
            # Such an entry ends whichever job had the id until the entry's time, so that time must not lie before the
            # job's delivery.
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
        """Record the drafts, with a promise if callers rely on any of them."""
        if drafts:
            promise = any(draft.event not in MAY_HAPPEN_AGAIN for draft in drafts)
            self._journal.record(drafts, promise=promise)


async def join_journal(store: Store, journal: Journal, pool: str) -> Sequence[Observer]:
    """The observer of an engine on the pool's store that writes its journal. Raises as `begin`."""
    observer = JournalObserver(store, journal, pool)
    await observer.begin()
    return (observer,)
