"""The journal of one process, for its event loop: the engines of all its pools write to it (`recorder.py`).

Inside it loops run: one per pool writes a heartbeat every 5 s; another closes dead nodes, ships sealed segments and
deletes old ones. A `lazy` journal makes its node when it is first needed, so that a program that only reads jobs
leaves no node behind.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from duetime.duties import Rounds, run_duty
from duetime.journal.events import Draft
from duetime.journal.housekeeping import Shipper, close_dead_nodes, delete_old
from duetime.journal.options import JournalOptions
from duetime.journal.writer import Writer
from duetime.model.errors import DuetimeError, InvalidSettings, StoreUnavailable
from duetime.model.job import Event

log = logging.getLogger("duetime.journal")

HEARTBEAT_S = 5.0
HOUSEKEEPING_S = 10.0

Watermark = Callable[[], int]
"""Returns a store time: no later entry of this pool has an earlier one."""
Renew = Callable[[], Awaitable[None]]
"""Writes the records of the pool's journal again if its store was wiped. May raise DuetimeError."""


class Journal:
    """An async context manager, for one event loop. Leaving it writes the node's last entry, `closed`."""

    def __init__(self, options: JournalOptions, *, lazy: bool = False) -> None:
        self.options = options
        self.writer = Writer(options, as_error=_unknown_outcome)
        self._lazy = lazy
        self._shipper = Shipper(options, self.writer.node) if options.ship_to else None
        self._watermarks: dict[str, Watermark] = {}
        self._renewals: dict[str, Renew] = {}
        self._closed = False
        self._loops: list[asyncio.Task[None]] = []
        self._with_heartbeat: set[str] = set()

    async def __aenter__(self) -> "Journal":
        if not self._lazy:
            self.open()
        return self

    def release(self, pool: str) -> None:
        """The pool's store is closed, so stop renewing its records. Its heartbeats continue, because they remain
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
            # If this was the last process here, no other one will ship the segment that was sealed just now.
            await asyncio.to_thread(self._ship, self._shipper)

    def open(self, *, only_check: bool = False) -> None:
        """Make the node of a lazy journal if it is not made yet; `only_check` that it can be made. Raises
        InvalidSettings, or StoreUnavailable if the journal is closed.
        """
        if self._closed:
            raise StoreUnavailable("the journal is closed")
        if self.writer.is_open:
            return
        if only_check:
            self._check_folder()
            return
        try:
            self.writer.open(asyncio.get_running_loop().call_soon_threadsafe)
        except OSError as error:
            raise self._unopenable(error.strerror or str(error)) from None
        for pool in self._watermarks:
            self._begin_heartbeats(pool)
        self._run("journal housekeeping", self._run_housekeeping, HOUSEKEEPING_S if self._lazy else 0.0)

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

    # --- its loops

    def keep_for(self, pool: str, watermark: Watermark, renew: Renew) -> None:
        """From now on write heartbeats for this pool and renew its records."""
        self._watermarks[pool] = watermark
        self._renewals[pool] = renew
        if self.writer.is_open:
            self._begin_heartbeats(pool)

    def _begin_heartbeats(self, pool: str) -> None:
        self._write_heartbeat(pool)
        if pool not in self._with_heartbeat:
            self._with_heartbeat.add(pool)
            self._run(f"journal heartbeats of {pool}", partial(self._renew_and_write_heartbeat, pool), HEARTBEAT_S)

    def _run(self, name: str, work: Callable[[], Awaitable[float]], first_after_s: float) -> None:
        duty = run_duty(Rounds(name, work), first_after_s=first_after_s, survives_bugs=True)
        self._loops.append(asyncio.create_task(duty))

    async def _renew_and_write_heartbeat(self, pool: str) -> float:
        """A loop for each pool, so that a store that hangs delays the heartbeats of its own pool alone."""
        # The records come first: a reader that has seen the heartbeat relies on them.
        if renew := self._renewals.get(pool):
            with suppress(DuetimeError):  # the store is down; the next heartbeat tries again
                await renew()
        self._write_heartbeat(pool)
        return HEARTBEAT_S

    def _write_heartbeat(self, pool: str) -> None:
        self.writer.append([Draft(ts=self._watermarks[pool](), event=Event.HEARTBEAT, pool=pool)], write_soon=True)

    async def _run_housekeeping(self) -> float:
        await asyncio.to_thread(self._clean_up)
        return HOUSEKEEPING_S

    def _clean_up(self) -> None:
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
        except Exception as error:  # each library of a file system has its own errors
            log.warning("journal_not_shipped", extra={"error": str(error), "waiting": shipper.waiting})


def _unknown_outcome(error: Exception) -> StoreUnavailable:
    return StoreUnavailable(f"done, but the journal could not be written: {error}", unknown=True)
