"""The journal of one process, for its event loop: the engines of all its pools write to it.

    async with Journal(JournalOptions(folder)) as journal:
        journal.record([Draft(...)], promise=True)
        await journal.flush()

Inside it loops run: one per pool writes a heartbeat every 5 s; another closes dead nodes, ships sealed segments and
deletes old ones. A `lazy` journal makes its node when it is first needed, so that a program that only reads jobs
leaves no node behind.
"""

import asyncio
import logging
import os
from asyncio import Future
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from duetime.engine.duties import Rounds, run_duty
from duetime.journal.events import Draft
from duetime.journal.housekeeping import Shipper, close_dead_nodes, delete_old
from duetime.journal.options import JournalOptions
from duetime.journal.writer import MAX_BACKLOG, Numbered, Waiter, Writer, tell_each
from duetime.model.errors import DuetimeError, InvalidSettings, JournalFull, StoreUnavailable
from duetime.model.job import Event

log = logging.getLogger("duetime.journal")

HEARTBEAT_S = 5.0
HOUSEKEEPING_S = 10.0

Pulse = Callable[[], int]
"""A store time before which nothing more will be recorded for a pool."""
Renew = Callable[[], Awaitable[None]]
"""Writes the records of the pool's journal again if its store was wiped. May raise DuetimeError."""


class Journal:
    """An async context manager, for one event loop. Leaving it writes the node's last entry, `closed`."""

    def __init__(self, options: JournalOptions, *, lazy: bool = False) -> None:
        self.options = options
        self.writer = Writer(options, tell=self._tell)
        self._lazy = lazy
        self._shipper = Shipper(options, self.writer.node) if options.ship_to else None
        self._pulses: dict[str, Pulse] = {}
        self._renewals: dict[str, Renew] = {}
        self._promised = 0
        self._closed = False
        self._loops: list[asyncio.Task[None]] = []
        self._beating: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> "Journal":
        self._loop = asyncio.get_running_loop()
        if not self._lazy:
            self._open()
        return self

    def release(self, pool: str) -> None:
        """The pool's store is closed, so its records are no longer renewed. Its heartbeats go on, because they stay
        true: this node can change nothing in the pool any more.
        """
        self._renewals.pop(pool, None)

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await asyncio.to_thread(self.writer.close)
        if self._shipper and self.writer.entries:
            # If this was the last process here, nobody else will ship the segment that was sealed just now.
            await asyncio.to_thread(self._ship, self._shipper)

    def _open(self) -> None:
        try:
            self.writer.open()
        except OSError as error:
            raise self._unopenable(error.strerror or str(error)) from None
        for pool in self._pulses:
            self._begin_beats(pool)
        self._run("journal housekeeping", self._keep_house, HOUSEKEEPING_S if self._lazy else 0.0)

    def _check_folder(self) -> None:
        """Check, without making the node, that it can be made."""
        folder = self.options.folder
        while not os.path.lexists(folder) and folder != folder.parent:
            folder = folder.parent
        if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
            raise self._unopenable(f"{folder} is no folder that this user may write to")

    def _unopenable(self, reason: str) -> InvalidSettings:
        return InvalidSettings(
            f"the journal cannot be written to {self.options.folder} ({reason}): choose another folder with --journal, "
            "DUETIME_JOURNAL or journal in duetime.toml"
        )

    # --- for the engines

    @property
    def node(self) -> str:
        return self.writer.node

    @property
    def ship_lag_s(self) -> float:
        """The age of the oldest sealed segment without a verified copy; 0 if nothing is shipped."""
        return self._shipper.lag_s if self._shipper else 0.0

    def admit(self) -> None:
        """Check before a push that its jobs can be recorded. Raises JournalFull or StoreUnavailable."""
        self.ready()
        if self.writer.free < self.options.reserve:
            raise JournalFull(
                f"the disk of the journal has {self.writer.free:,} bytes left, of which {self.options.reserve:,} are "
                "kept for deliveries and acks",
            )
        if self.writer.failure:
            raise self._unwritable()

    def _unwritable(self) -> StoreUnavailable:
        return StoreUnavailable(f"the journal cannot be written: {self.writer.failure}")

    def ready(self, *, sure: bool = True) -> None:
        """Check before a verb that its events can be recorded. Raises StoreUnavailable or InvalidSettings. `sure`: the
        verb is expected to change something, so a lazy journal makes its node now.
        """
        if self._closed:
            raise StoreUnavailable("the journal is closed")
        if not self.writer.is_open:
            if sure:
                self._open()
            else:
                self._check_folder()
        if self.writer.backlog > MAX_BACKLOG:
            raise self._unwritable()

    def record(self, drafts: Iterable[Draft], *, promise: bool = False) -> None:
        """Put drafts in line to be written soon. `promise`: the caller will call `promise` or `flush`, and the drafts
        need not be written before that.
        """
        if not self.writer.is_open:
            self._open()
        self.writer.append(drafts, hurry=not promise)
        if promise:
            self._promised = self.writer.seq

    def record_lines(self, numbered: Numbered) -> None:
        """As `record` with a promise, for callers that make lines faster than drafts can be encoded."""
        self.writer.append_lines(numbered)
        self._promised = self.writer.seq

    def promise(self) -> Future[None] | None:
        """A future that is done when all entries recorded with a promise are written; None if they are already.

        The future raises StoreUnavailable with an unknown outcome if they could not be written.
        """
        if self._promised <= self.writer.entries or self._loop is None or self.writer.write_through():
            return None
        future: Future[None] = self._loop.create_future()

        def written(error: Exception | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(
                    StoreUnavailable(f"done, but the journal could not be written: {error}", unknown=True)
                )

        self.writer.wait(written)
        return future

    async def flush(self) -> None:
        if promised := self.promise():
            await promised

    def _tell(self, waiters: Sequence[Waiter], error: Exception | None) -> None:
        """Called in the writer's thread: all waiters of a group are told in one callback of the event loop."""

        if self._loop:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any longer
                self._loop.call_soon_threadsafe(tell_each, waiters, error)

    # --- its loops

    def keep_for(self, pool: str, pulse: Pulse, renew: Renew) -> None:
        """From now on write heartbeats for this pool and renew its records."""
        self._pulses[pool] = pulse
        self._renewals[pool] = renew
        if self.writer.is_open:
            self._begin_beats(pool)

    def _begin_beats(self, pool: str) -> None:
        self._beat(pool)
        if pool not in self._beating:
            self._beating.add(pool)
            self._run(f"journal heartbeats of {pool}", partial(self._renew_and_beat, pool), HEARTBEAT_S)

    def _run(self, name: str, work: Callable[[], Awaitable[float]], first_after_s: float) -> None:
        duty = run_duty(Rounds(name, work), first_after_s=first_after_s, survives_bugs=True)
        self._loops.append(asyncio.create_task(duty))

    async def _renew_and_beat(self, pool: str) -> float:
        """A loop for each pool, so that a store that hangs delays the heartbeats of its own pool alone."""
        # The records come first: a reader that has seen the heartbeat relies on them.
        if renew := self._renewals.get(pool):
            with suppress(DuetimeError):  # the store is down; the next heartbeat tries again
                await renew()
        self._beat(pool)
        return HEARTBEAT_S

    def _beat(self, pool: str) -> None:
        self.writer.append([Draft(ts=self._pulses[pool](), event=Event.HEARTBEAT, pool=pool)])

    async def _keep_house(self) -> float:
        await asyncio.to_thread(self._keep_house_once)
        return HOUSEKEEPING_S

    def _keep_house_once(self) -> None:
        try:
            for node in close_dead_nodes(self.options.folder):
                log.warning("journal_closed_for_dead_node", extra={"node": node})
            if self._shipper:
                self._ship(self._shipper)
            if deleted := delete_old(self.options, self.node):
                log.info("journal_deleted", extra={"segments": len(deleted)})
        except OSError as error:
            log.warning("journal_housekeeping_failed", extra={"error": str(error)})

    def _ship(self, shipper: Shipper) -> None:
        try:
            shipper.run_once()
        except Exception as error:  # each file system's library has errors of its own
            log.warning("journal_not_shipped", extra={"error": str(error), "waiting": shipper.waiting})
