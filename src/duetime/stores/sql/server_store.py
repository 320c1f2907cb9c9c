"""The base of the stores on database servers.

Steps run in `ConnectionThreads`. One round of the reaper is many transactions, so that it locks one queue at a time.
"""

import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from duetime.model.errors import DuetimeError
from duetime.model.job import Moved
from duetime.model.names import Queue
from duetime.stores.base import Reaped, StoreInfo
from duetime.stores.sql import verbs
from duetime.stores.sql.locked_queues import LockedQueues, QueueRound
from duetime.stores.sql.outbox import OutboxImporter, rows_set_aside
from duetime.stores.sql.registry import SqlRegistry
from duetime.stores.sql.step import Step
from duetime.stores.sql.store import SqlStore
from duetime.stores.sql.threads import ConnectionThreads, DatabaseLink
from duetime.stores.sql.wake import AnnouncingHub

log = logging.getLogger("duetime.stores")

T = TypeVar("T")

LEFT_OUT_MS = 1000
"""How long the reaper waits before it visits the queues again that it has left out."""

_RECORDS = "records"
"""The key by which writers of the registry run one after the other."""


class ServerStore(SqlStore):
    """Keeps the contract of `stores.base.Store` on connections of a `DatabaseLink`."""

    def __init__(self, name: str, link: DatabaseLink, connections: int, hub: AnnouncingHub) -> None:
        self._name = name
        self._hub = self._server_hub = hub
        self._threads = ConnectionThreads(f"duetime-{name}", link, size=connections, announce=hub.announce)
        self._locked = LockedQueues(lambda queue: self._write(partial(verbs.is_locked, queue=queue)))
        self._importer = OutboxImporter(self._read, self._write)
        self.registry = SqlRegistry(partial(self._threads.run, key=_RECORDS), self._read, hub)

    async def _write(
        self, operation: Callable[[Step], T], *, queue: Queue | None = None, jobs: int = 1, adds: bool = False
    ) -> T:
        return await self._threads.run(operation, key=queue, jobs=jobs)

    async def _read(self, operation: Callable[[Step], T], *, queue: Queue | None = None) -> T:
        return await self._threads.run(operation, read_only=True)

    async def reap(self, limit: int = 500, *, recorded: Sequence[str] = ()) -> Reaped:
        now, agenda = await self._read(lambda step: (step.now, verbs.queues_to_reap(step, limit)))
        moved: dict[Queue, Sequence[Moved]] = {}
        reaping = self._locked.begin_round()
        try:
            is_done = await self._reap_queues(reaping, agenda, limit, moved)
            more = await self._sweep()
            only_locked = is_done and reaping.is_left_out
            next_at = await self._read(partial(verbs.next_reap, after=now if only_locked else 0))
        except DuetimeError as error:
            if not moved:
                raise
            # What was moved must reach the journal, so the error is not raised. The next round follows immediately, and
            # meets it if it lasts.
            log.warning("reaper_round_cut_short", extra={"error": error.message})
            return Reaped(moved, now, now)
        imported = await self._importer.run(reaping, recorded)
        if reaping.is_left_out:
            next_at = min(next_at or sys.maxsize, now + LEFT_OUT_MS)
        next_at = now if more or imported.has_more else next_at
        return Reaped(moved, next_at, now, imported.pushed, tuple(imported.receipts))

    async def ping(self) -> StoreInfo:
        (epoch, version), now = await self._read(lambda step: (step.fetch_one("get_meta"), step.now))
        return StoreInfo(self._name, version.partition(" ")[0], epoch, now)

    async def check(self) -> Sequence[str]:
        return [*await super().check(), *await self._read(rows_set_aside)]

    async def _reap_queues(
        self, reaping: QueueRound, agenda: Sequence[Queue], limit: int, moved: dict[Queue, Sequence[Moved]]
    ) -> bool:
        """Returns True if nothing is left to do but what the round has left out."""
        left = limit

        async def reap_one(queue: Queue) -> bool:
            nonlocal left
            happened = await self._write(partial(verbs.reap_queue, queue=queue, limit=left), queue=queue)
            if happened:
                moved[queue] = happened
                left -= len(happened)
            return left > 0

        await reaping.visit(agenda, reap_one)
        return left > 0

    async def _sweep(self) -> bool:
        """Delete some of what is no longer needed. Returns True if there is more to delete now."""
        has_more_ended = await self._write(verbs.sweep_what_has_ended)
        await self._write(verbs.forget_queues)
        for queue in await self._read(verbs.queues_with_old_totals):
            if not await self._write(partial(verbs.is_locked, queue=queue)):
                await self._write(partial(verbs.fold_totals, queue=queue), queue=queue)
        return await self._write(verbs.sweep_discarded) or has_more_ended

    async def _registry_version(self) -> int:
        return (await self._read(lambda step: step.fetch_one("registry_version")))[0]

    async def close(self) -> None:
        self._hub.close()
        await self._threads.close()
        await self._server_hub.finish()
