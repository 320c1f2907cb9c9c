"""The observer of an engine that journals when its pool does: from the start, or from the moment it notices.

An embedded engine has one, and a server that was told to keep no journal. While the pool does not journal it costs one
look at the registry a second. When the pool begins to, an embedded engine opens a journal of its own before its next
step; one that was told "off" refuses every step from then on, because what bypasses the journal of a pool looks lost
to audit, and reconcile would deliver finished jobs again.
"""

import asyncio
import logging
import math
import threading
import time
from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from duetime.engine.observers import Observer
from duetime.journal import pool_journal
from duetime.journal.engines_without_journal import LOOK_EVERY_S, EngineAnnouncement, WithoutJournal
from duetime.journal.journal import Journal
from duetime.journal.observer import JournalObserver
from duetime.journal.options import JournalOptions
from duetime.journal.registered_nodes import RegisteredNode, registered
from duetime.model.errors import DuetimeError, StoreUnavailable
from duetime.model.job import Lease, Moved, State
from duetime.model.names import DEFAULT_POOL, Queue
from duetime.stores.base import Purged, Push, Pushed, Reaped, Reserved, Store
from duetime.stores.finishes import SeenJoin

log = logging.getLogger("duetime.journal")

ABANDONED_S = 600.0
"""No step takes so long: every store gives up earlier."""

ChooseOptions = Callable[[Mapping[str, RegisteredNode]], JournalOptions | None]
"""Takes the nodes that write the pool's journal, answers where this engine writes; None if it was told "off"."""


class JournalFollower(Observer):
    """Tells a JournalObserver everything, as soon as there is one."""

    must_hear_all = True

    def __init__(self, store: Store, choose: ChooseOptions, *, told_off: bool) -> None:
        self._store = store
        self._choose = choose
        self._told_off = told_off
        self._announcement = EngineAnnouncement(store, WithoutJournal.TOLD_OFF if told_off else WithoutJournal.SO_FAR)
        self._journal: Journal | None = None
        self._inner: JournalObserver | None = None
        self._looked_at = -math.inf
        self._looking = asyncio.Lock()
        self._calls: dict[int, float] = {}
        self._apart = threading.Lock()
        """Held while it is decided whether a step in another thread is one without a journal."""

    async def begin(self, *, wanted: bool = False) -> None:
        """Join the pool's journal if it has one, or begin one if that is `wanted`. Raises InvalidSettings if the pool
        journals and this engine was told "off"; StoreUnavailable.
        """
        if wanted:
            await self._join(None)
        elif found := await pool_journal.known(self._store):
            await self._join(found)

    @property
    def must_prepare(self) -> bool:
        if self._inner:
            return self._inner.must_prepare
        return time.monotonic() - self._looked_at >= LOOK_EVERY_S

    async def prepare(self, verb: str) -> None:
        async with self._looking:
            if self._inner is None and self.must_prepare:
                await self._look()
        if self._inner and self._inner.must_prepare:
            await self._inner.prepare(verb)

    async def _look(self) -> None:
        """Steps that begin meanwhile wait for the answer, because what is known is too old for them, too."""
        looked_at = time.monotonic()
        # While the registry can only be read, no journal can begin that would have to know of this engine.
        with suppress(StoreUnavailable):
            await self._announcement.renew()
        if found := await pool_journal.known(self._store):
            await self._join(found)
        self._looked_at = looked_at

    async def _join(self, found: pool_journal.Journaling | None) -> None:
        options = self._choose(await registered(self._store))
        if options is None:
            if found:
                raise pool_journal.refusal(found)
            return
        pool = found.pool if found else DEFAULT_POOL
        journal = await Journal(options, lazy=True).__aenter__()
        try:
            inner = JournalObserver(self._store, journal, pool)
            await inner.begin()
            with self._apart:
                is_busy = bool(self._calls)
            if is_busy:  # these calls end after this, and what they did is recorded
                await inner.prepare("push")
        except BaseException:
            await journal.__aexit__()
            raise
        now = time.monotonic()
        with self._apart:
            # A step that was interrupted in its first instruction is never ended; it must not hold up heartbeats.
            calls = {call: now - began for call, began in self._calls.items() if now - began < ABANDONED_S}
            inner.take_over(calls)
            self._journal, self._inner = journal, inner
        log.info("journal_joined", extra={"pool": pool, "folder": str(options.folder)})
        with suppress(DuetimeError):  # it ends by itself
            await self._announcement.withdraw()

    async def close(self) -> None:
        with suppress(DuetimeError):
            await self._announcement.withdraw()
        if self._inner:
            await self._inner.close()
        if self._journal:
            await self._journal.__aexit__()

    # --- what happens is told to the journal, if there is one

    def promise(self) -> Future[None] | None:
        return self._inner.promise() if self._inner else None

    def admit(self, verb: str) -> None:
        if self._inner:
            self._inner.admit(verb)

    def began(self, call: int) -> None:
        if self._inner:
            self._inner.began(call)
        else:
            self._calls[call] = time.monotonic()

    def ended(self, call: int) -> None:
        with self._apart:
            self._calls.pop(call, None)
        if self._inner:
            self._inner.ended(call)

    def begin_apart(self, call: int) -> bool:
        now = time.monotonic()
        with self._apart:
            if self._inner or now - self._looked_at >= LOOK_EVERY_S:
                return False
            self._calls[call] = now
            return True

    def end_apart(self, call: int) -> bool:
        now = time.monotonic()
        with self._apart:
            # A step that took long may have come after the moment since which the pool journals: it is told after
            # another look.
            if self._inner or now - self._looked_at >= LOOK_EVERY_S:
                return False
            del self._calls[call]
            return True

    async def pushed(
        self, queue: Queue, requests: Sequence[Push], answers: Sequence[Pushed | DuetimeError]
    ) -> Sequence[Pushed | DuetimeError]:
        return await self._inner.pushed(queue, requests, answers) if self._inner else answers

    def reserved(self, queue: Queue, reserved: Reserved) -> None:
        if self._inner:
            self._inner.reserved(queue, reserved)

    def acked(
        self,
        queue: Queue,
        leases: Sequence[Lease],
        answers: Sequence[object],
        joins: Sequence[SeenJoin | None] = (),
    ) -> None:
        if self._inner:
            self._inner.acked(queue, leases, answers, joins)

    async def acked_by_id(self, queue: Queue, ids: Sequence[str], answers: Sequence[object]) -> None:
        if self._inner:
            await self._inner.acked_by_id(queue, ids, answers)

    def settled(self, verb: str, lease: Lease, moved: Moved) -> None:
        if self._inner:
            self._inner.settled(verb, lease, moved)

    def moved(self, queue: Queue, answers: Sequence[object]) -> None:
        if self._inner:
            self._inner.moved(queue, answers)

    def reaped(self, reaped: Reaped) -> None:
        if self._inner:
            self._inner.reaped(reaped)

    def purged(self, queue: Queue, states: Sequence[State], purged: Purged) -> None:
        if self._inner:
            self._inner.purged(queue, states, purged)

    def notified(self, lease: Lease, *, status: int, ms: int) -> None:
        if self._inner:
            self._inner.notified(lease, status=status, ms=ms)
