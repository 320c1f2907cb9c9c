"""The base of the stores on database servers.

Steps run in `ConnectionThreads`. One round of the reaper is many transactions, so that it locks one queue at a time.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from duetime.errors import DuetimeError
from duetime.job import Moved
from duetime.names import Queue
from duetime.stores.base import Push, Pushed, Reaped
from duetime.stores.sql import verbs
from duetime.stores.sql.announcements import AnnouncingHub
from duetime.stores.sql.connection_threads import ConnectionThreads, DatabaseLink
from duetime.stores.sql.incoming import INCOMING_JOBS, incoming_queues, take_incoming
from duetime.stores.sql.registry import SqlRegistry
from duetime.stores.sql.step import Step
from duetime.stores.sql.store import SqlStore

log = logging.getLogger("duetime.stores")

T = TypeVar("T")

_RECORDS = "records"
"""The key by which writers of the registry run one after the other."""


class ServerStore(SqlStore):
    """Keeps the contract of `stores.base.Store` on connections of a `DatabaseLink`."""

    def __init__(self, name: str, link: DatabaseLink, connections: int, hub: AnnouncingHub) -> None:
        self._hub = self._server_hub = hub
        self._threads = ConnectionThreads(f"duetime-{name}", link, size=connections, announce=hub.announce)
        self.registry = SqlRegistry(partial(self._threads.run, order_key=_RECORDS), self._read, hub)

    async def _write(
        self, operation: Callable[[Step], T], *, queue: Queue | None = None, jobs: int = 1, adds: bool = False
    ) -> T:
        return await self._threads.run(operation, order_key=queue, jobs=jobs)

    async def _read(self, operation: Callable[[Step], T], *, queue: Queue | None = None) -> T:
        return await self._threads.run(operation, read_only=True)

    async def _take_incoming(self) -> dict[Queue, Sequence[tuple[Push, Pushed]]]:
        """Move jobs of other programs' transactions into their queues."""
        pushed: dict[Queue, Sequence[tuple[Push, Pushed]]] = {}
        try:
            for queue in await self._read(incoming_queues):
                if taken := await self._write(partial(take_incoming, queue=queue), queue=queue):
                    pushed[queue] = taken
        except DuetimeError as error:
            # The next round takes the others.
            log.warning("incoming_jobs_not_taken", extra={"error": error.message})
        return pushed

    async def reap(self, limit: int = 500) -> Reaped:
        now, agenda = await self._read(lambda step: (step.now, verbs.queues_to_reap(step, limit)))
        moved: dict[Queue, Sequence[Moved]] = {}
        try:
            await self._reap_queues(agenda, limit, moved)
            more = await self._sweep()
            next_at = await self._read(verbs.next_reap)
        except DuetimeError as error:
            if not moved:
                raise
            # What was moved must reach the journal, so the error is not raised. The next round comes at once, and
            # meets it if it lasts.
            log.warning("reaper_round_cut_short", extra={"error": error.message})
            return Reaped(moved, now, now)
        pushed = await self._take_incoming()
        more = more or any(len(part) == INCOMING_JOBS for part in pushed.values())
        return Reaped(moved, now if more else next_at, now, pushed)

    async def _reap_queues(self, agenda: Sequence[Queue], limit: int, moved: dict[Queue, Sequence[Moved]]) -> None:
        for queue in agenda:
            if happened := await self._write(partial(verbs.reap_queue, queue=queue, limit=limit), queue=queue):
                moved[queue] = happened
                limit -= len(happened)
            if limit <= 0:
                break

    async def _sweep(self) -> bool:
        """Delete some of what is no longer needed; True if there is more to delete now."""
        await self._write(verbs.sweep_what_has_ended)
        await self._write(verbs.forget_queues)
        for queue in await self._read(verbs.queues_with_old_totals):
            await self._write(partial(verbs.fold_totals, queue=queue), queue=queue)
        return await self._write(verbs.sweep_discarded)

    async def _registry_version(self) -> int:
        return (await self._read(lambda step: step.fetch_one("registry_version")))[0]

    async def close(self) -> None:
        self._hub.close()
        await self._threads.close()
        await self._server_hub.finish()
