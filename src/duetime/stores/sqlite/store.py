"""The default store: one SQLite file, several processes.

A writer thread shares each transaction among all callers of the moment, a reader thread answers questions from
snapshots, datagram sockets beside the file wake the other processes. The rules are in `rules.py`, the steps in
`sqlite_verbs.py` and `sqlite_views.py`; here they become the contract's verbs.
"""

import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

from duetime.clock import Clock, SystemClock
from duetime.errors import DuetimeError, JobDead, JobRunning, LeaseLost, StoreFull, StoreUnavailable
from duetime.job import Counts, Job, Lease, Moved, QueueTotals, State
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
    StoreInfo,
    Wake,
)
from duetime.stores.sqlite import verbs, views
from duetime.stores.sqlite.connection import Turnstile, check_synchronous, connect, lacks_room, prepare_file
from duetime.stores.sqlite.disk import DiskReserve
from duetime.stores.sqlite.registry import SqliteRegistry
from duetime.stores.sqlite.rows import fetch_one, load_queue
from duetime.stores.sqlite.threads import BIG_JOBS, ReaderThread, Step, WriterThread
from duetime.stores.sqlite.wake import Mailboxes, Meta, WakeHub

LOCK_TIMEOUT_S = 5.0
"""How long a call waits for another process's transaction before StoreUnavailable."""


class SqliteStore:
    """Keeps the contract of `stores.base.Store`. Belongs to the event loop that opened it; made by `open`."""

    def __init__(
        self, path: Path, clock: Clock, synchronous: str, lock_timeout_s: float, reserve: int | None = None
    ) -> None:
        self._path, self._disk = path, _disk_of(path, reserve)
        open_file = partial(connect, path, synchronous=synchronous, checkpoint_pages=self._disk.checkpoint_pages)

        def open_writer() -> sqlite3.Connection:
            deadline = time.monotonic() + lock_timeout_s
            connection = open_file(deadline)
            try:
                prepare_file(connection, clock.now_ms(), deadline)
            except BaseException:
                connection.close()
                raise
            return connection

        def connect_writer() -> sqlite3.Connection:
            try:
                return open_writer()
            except sqlite3.OperationalError as error:
                if not lacks_room(error) or not self._disk.release():
                    raise
            return open_writer()

        def connect_reader() -> sqlite3.Connection:
            return open_file(time.monotonic() + lock_timeout_s, read_only=True)

        self._data_version = 0
        self._turnstile, self._mailboxes = _beside(path)
        self._hub = WakeHub(self._mailboxes, self._look)
        self._writer = WriterThread(
            connect_writer,
            clock,
            turnstile=self._turnstile,
            disk=self._disk,
            lock_timeout_s=lock_timeout_s,
            announce=self._hub.announce,
        )
        self._reader = ReaderThread(connect_reader, clock, lock_timeout_s=lock_timeout_s)
        self.registry = SqliteRegistry(self._writer, self._reader, self._hub)

    @classmethod
    async def open(
        cls,
        path: str | Path,
        *,
        clock: Clock | None = None,
        synchronous: str = "FULL",
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        reserve: int | None = None,
    ) -> "SqliteStore":
        """Open or create the file, and upgrade it at need. Its folder must exist.

        `synchronous` is SQLite's: FULL keeps every accepted job through a loss of power, NORMAL only through the end of
        the process. `reserve`: pushes are refused while less than that is free on the disk; see `DiskReserve`.
        Raises StoreUnavailable, StoreDamaged, InvalidSettings.
        """
        store = cls(_real_path(path), clock or SystemClock(), check_synchronous(synchronous), lock_timeout_s, reserve)
        try:
            await store._writer.start()
            await store._reader.start()
        except BaseException:
            await store.close()
            raise
        return store

    async def _look(self, always: bool) -> Meta | None:
        return await self._reader.run(lambda step: self._read_meta(step, always))

    def _read_meta(self, step: Step, always: bool) -> Meta | None:
        before, (self._data_version,) = self._data_version, fetch_one(step, "data_version")
        if before == self._data_version and not always:
            return None
        _, wakes, registry_version = fetch_one(step, "get_meta")
        return Meta(wakes, registry_version)

    # --- the hot path

    async def push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        try:
            jobs = sum(len(request.jobs) for request in requests)
            return await self._writer.run(
                lambda step: self._push(step, queue, requests), queue=queue, jobs=jobs, adds=True
            )
        except StoreFull as full:
            if len(requests) == 1:
                return [full]
        # A request that has no room must not fail its neighbours.
        return [answer for request in requests for answer in await self.push(queue, [request])]

    def _push(self, step: Step, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        if refusal := self._disk.refusal():
            return [refusal for _ in requests]
        return verbs.push(step, queue, requests)

    async def reserve(self, queue: Queue, asks: Sequence[Ask]) -> Reserved:
        return await self._writer.run(
            lambda step: verbs.reserve(step, queue, asks), queue=queue, jobs=sum(ask.limit for ask in asks)
        )

    async def ack(self, queue: Queue, leases: Sequence[Lease]) -> Sequence[Moved | LeaseLost | None]:
        return await self._writer.run(lambda step: verbs.ack(step, queue, leases), queue=queue, jobs=len(leases))

    async def release(self, lease: Lease, delay_ms: int, error: str = "") -> Moved:
        return await self._writer.run(lambda step: verbs.release(step, lease, delay_ms, error), queue=lease.queue)

    async def give_back(self, lease: Lease) -> Moved:
        return await self._writer.run(lambda step: verbs.give_back(step, lease), queue=lease.queue)

    async def kill(self, lease: Lease, error: str = "") -> Moved:
        return await self._writer.run(lambda step: verbs.kill(step, lease, error), queue=lease.queue)

    async def extend(self, lease: Lease, ttr_ms: int) -> int:
        return await self._writer.run(lambda step: verbs.extend(step, lease, ttr_ms), queue=lease.queue)

    async def cancel(self, queue: Queue, ids: Sequence[str], *, finished: bool = False) -> Sequence[Moved | None]:
        return await self._writer.run(
            lambda step: verbs.cancel(step, queue, ids, finished=finished), queue=queue, jobs=len(ids)
        )

    async def reschedule(
        self, queue: Queue, ids: Sequence[str], *, delay_ms: int = 0, due_at: int | None = None
    ) -> Sequence[Moved | JobRunning | JobDead | DuetimeError | None]:
        return await self._writer.run(
            lambda step: verbs.reschedule(step, queue, ids, step.now + delay_ms if due_at is None else due_at),
            queue=queue,
            jobs=len(ids),
        )

    async def reap(self, limit: int = 500) -> Reaped:
        return await self._writer.run(lambda step: verbs.reap(step, limit))

    def wakeups(self) -> AsyncIterator[Wake]:
        return self._hub.wakes()

    # --- looking and administering

    async def heads(self, queues: Sequence[Queue]) -> Sequence[int | None]:
        return await self._reader.run(lambda step: views.heads(step, queues))

    async def get(self, queue: Queue, ids: Sequence[str]) -> Sequence[Job | None]:
        return await self._reader.run(lambda step: views.get(step, queue, ids), queue=queue)

    async def list_jobs(self, queue: Queue, state: State, *, cursor: str | None = None, limit: int = 100) -> Page:
        return await self._reader.run(lambda step: views.list_jobs(step, queue, state, cursor, limit), queue=queue)

    async def counts(self, queues: Sequence[Queue]) -> Sequence[Counts]:
        return await self._reader.run(lambda step: views.counts(step, queues))

    async def totals(self, queues: Sequence[Queue]) -> Sequence[QueueTotals]:
        return await self._reader.run(lambda step: [views.totals(step, queue) for queue in queues])

    async def queues(self, namespace: str | None = None) -> Sequence[Queue]:
        return await self._reader.run(lambda step: views.queues(step, namespace))

    async def due_histogram(self, queue: Queue, edges: Sequence[int]) -> Sequence[int]:
        return await self._reader.run(lambda step: views.due_histogram(step, queue, edges), queue=queue)

    async def respawn(
        self,
        queue: Queue,
        *,
        ids: Sequence[str] | None = None,
        limit: int = 1,
        ttl_ms: int = 0,
        tries: int | None = None,
    ) -> Sequence[Moved]:
        return await self._writer.run(
            lambda step: verbs.respawn(step, queue, ids, limit, ttl_ms, tries), queue=queue, jobs=limit
        )

    async def purge(self, queue: Queue, states: Sequence[State], *, limit: int | None = None) -> Purged:
        return await self._writer.run(lambda step: verbs.purge(step, queue, states, limit), queue=queue, jobs=BIG_JOBS)

    async def configure(self, queue: Queue, change: RulesChange | None = None) -> QueueRules:
        if change is None:
            return await self._reader.run(lambda step: load_queue(step, queue).rules())
        return await self._writer.run(lambda step: verbs.configure(step, queue, change), queue=queue)

    async def ping(self) -> StoreInfo:
        epoch, now, disk = await self._reader.run(
            lambda step: (fetch_one(step, "get_meta")[0], step.now, shutil.disk_usage(self._path.parent))
        )
        return StoreInfo("sqlite", sqlite3.sqlite_version, epoch, now, disk.total - disk.free, disk.total)

    async def check(self) -> Sequence[str]:
        return await self._reader.run(views.check)

    async def close(self) -> None:
        self._hub.close()
        await self._writer.close()
        await self._reader.close()
        self._disk.keep_what_is_left()
        self._mailboxes.close()
        self._turnstile.close()


def _real_path(path: str | Path) -> Path:
    """The same for every process, however it was named there."""
    return Path(path).resolve()


def _disk_of(path: Path, reserve: int | None) -> DiskReserve:
    try:
        return DiskReserve(path, reserve)
    except OSError as error:
        raise StoreUnavailable(f"cannot use the folder of the SQLite file: {error}") from error


def _beside(path: Path) -> tuple[Turnstile, Mailboxes]:
    """What the processes on a file share: their turns to write, and their mailboxes."""
    folder = path.with_name(path.name + "-wake")
    try:
        folder.mkdir(exist_ok=True)
        return Turnstile(folder / "turn"), Mailboxes(folder)
    except OSError as error:
        raise StoreUnavailable(f"cannot use the folder beside the SQLite file: {error}") from error
