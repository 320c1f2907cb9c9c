"""The base of the stores on database servers.

Steps run in `ConnectionThreads`. One round of the reaper is many transactions, so that it locks one queue at a time.
"""

import logging
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
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

MAX_FAILURES = 3
"""A round takes in no more jobs after so many queues whose jobs could not be taken. If one is held by somebody, the
others are not kept waiting; if the server is down, the round does not wait for each of them.
"""

HELD_S = 30.0
"""About how long the reaper only looks whether a queue is held, after it waited in vain for the lock of one."""
LEFT_OUT_MS = 1000
"""How long the reaper rests before it looks at such a queue again."""

_RECORDS = "records"
"""The key by which writers of the registry run one after the other."""


class ServerStore(SqlStore):
    """Keeps the contract of `stores.base.Store` on connections of a `DatabaseLink`."""

    def __init__(self, name: str, link: DatabaseLink, connections: int, hub: AnnouncingHub) -> None:
        self._hub = self._server_hub = hub
        self._held: dict[Queue, float] = {}
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
        failures = 0
        try:
            queues = list(await self._read(incoming_queues))
        except DuetimeError as error:
            log.warning("incoming_jobs_not_taken", extra={"error": error.message})
            return pushed
        random.shuffle(queues)
        while queues and failures < MAX_FAILURES:
            queue = queues.pop()
            try:
                if taken := await self._write(partial(take_incoming, queue=queue), queue=queue):
                    pushed[queue] = taken
            except DuetimeError as error:
                failures += 1
                log.warning("incoming_jobs_not_taken", extra={"queue": str(queue), "error": error.message})
        return pushed

    async def reap(self, limit: int = 500) -> Reaped:
        now, agenda = await self._read(lambda step: (step.now, verbs.queues_to_reap(step, limit)))
        moved: dict[Queue, Sequence[Moved]] = {}
        try:
            is_left_out = await self._reap_queues(agenda, limit, moved)
            more = await self._sweep()
            next_at = await self._read(partial(verbs.next_reap, after=now if is_left_out else 0))
            if is_left_out:
                next_at = min(next_at or sys.maxsize, now + LEFT_OUT_MS)
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

    async def _reap_queues(self, agenda: Sequence[Queue], limit: int, moved: dict[Queue, Sequence[Moved]]) -> bool:
        """True if nothing is left to do but queues that cannot be reaped now, because somebody holds them.

        These come last, and a round waits for the lock of one queue at most: so any number of them may be held.
        """
        self._held = {queue: until for queue, until in self._held.items() if queue in agenda}
        is_left_out = has_waited = False
        for queue in sorted(agenda, key=self._held.__contains__):
            if limit <= 0:
                return False
            look_until = monotonic() + HELD_S * random.uniform(0.5, 1.5)  # so that each is waited for at some time
            may_wait = not has_waited and self._held.get(queue, 0) <= monotonic()
            if not may_wait and await self._write(partial(verbs.is_held, queue=queue)):
                is_left_out = True
                if has_waited:
                    self._held[queue] = look_until
                continue
            try:
                happened = await self._write(partial(verbs.reap_queue, queue=queue, limit=limit), queue=queue)
            except DuetimeError as error:
                # If the server is down, the next look says so.
                log.warning("queue_not_reaped", extra={"queue": str(queue), "error": error.message})
                is_left_out = has_waited = True
                self._held[queue] = look_until
                continue
            self._held.pop(queue, None)
            if happened:
                moved[queue] = happened
                limit -= len(happened)
        return is_left_out

    async def _sweep(self) -> bool:
        """Delete some of what is no longer needed; True if there is more to delete now."""
        await self._write(verbs.sweep_what_has_ended)
        await self._write(verbs.forget_queues)
        for queue in await self._read(verbs.queues_with_old_totals):
            if not await self._write(partial(verbs.is_held, queue=queue)):
                await self._write(partial(verbs.fold_totals, queue=queue), queue=queue)
        return await self._write(verbs.sweep_discarded)

    async def _registry_version(self) -> int:
        return (await self._read(lambda step: step.fetch_one("registry_version")))[0]

    async def close(self) -> None:
        self._hub.close()
        await self._threads.close()
        await self._server_hub.finish()
