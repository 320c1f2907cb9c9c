"""The default store: one SQLite file, several processes.

A writer thread runs the steps of concurrent callers in one transaction, a reader thread answers questions from
snapshots, and datagram sockets next to the file wake the other processes. The verbs are those of `stores/sql`.
"""

import asyncio
import logging
import shutil
import sqlite3
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from duetime.model.clock import Clock, SystemClock
from duetime.model.errors import DuetimeError, LeaseLost, StoreFull, StoreUnavailable
from duetime.model.job import Lease, Moved
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed, Reaped, Reserved, ResultSink, Send, StoreInfo
from duetime.stores.forwarding import Later
from duetime.stores.registry import Changes
from duetime.stores.sql import verbs
from duetime.stores.sql.registry import RunSteps, SqlRegistry
from duetime.stores.sql.step import Step
from duetime.stores.sql.store import SqlStore
from duetime.stores.sql.threads import BIG_JOBS, ConnectionThreads, DatabaseLink, QueuedStep, Session
from duetime.stores.sqlite.blocking import BlockingSqlite
from duetime.stores.sqlite.connection import (
    QUERIES,
    CommitWatch,
    ForkGuard,
    WriteLock,
    check_synchronous,
    checkpoint,
    connect,
    lacks_room,
    prepare_file,
    retry_while_busy,
    translate,
)
from duetime.stores.sqlite.disk import (
    CHECKPOINT_PAGES,
    PAGE_BYTES,
    SYNCED_CHECKPOINT_PAGES,
    BackgroundThread,
    DiskReserve,
)
from duetime.stores.sqlite.step import SqliteStep
from duetime.stores.sqlite.wake import Mailboxes, Meta, NumberedAnnouncement, SqliteWakeHub, numbered

log = logging.getLogger("duetime.sqlite")


class SqliteSession(Session):
    def __init__(self, connect: Callable[[], sqlite3.Connection], write_lock: WriteLock, lock_timeout_s: float) -> None:
        super().__init__()
        self._guard = ForkGuard()
        self.connection = self._guard.open(connect)
        self.in_use = self._guard.in_use
        self._write_lock, self._lock_timeout_s = write_lock, lock_timeout_s

    def begin(self, *, read_only: bool) -> None:
        """Waits for other processes at need."""
        self.is_committing = False
        deadline = time.monotonic() + self._lock_timeout_s
        if read_only:
            self.connection.execute("BEGIN")
            retry_while_busy(partial(self.connection.execute, QUERIES["get_meta"]), deadline)
        else:
            self._write_lock.begin(self.connection, deadline)

    def commit(self) -> None:
        self.is_committing = True
        self.connection.execute("COMMIT")

    def rollback(self) -> None:
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def close(self) -> None:
        self._guard.close()


class SqliteLink(DatabaseLink):
    errors = (sqlite3.Error, OSError)

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        clock: Clock,
        *,
        write_lock: WriteLock,
        disk: DiskReserve,
        lock_timeout_s: float,
    ) -> None:
        self._connect, self._clock = connect, clock
        self._write_lock, self._disk, self._lock_timeout_s = write_lock, disk, lock_timeout_s

    def connect(self) -> SqliteSession:
        return SqliteSession(self._connect, self._write_lock, self._lock_timeout_s)

    def step(self, session: SqliteSession) -> Step:
        return SqliteStep(session.connection, self._clock.now_ms())

    def translate(self, error: Exception, *, committing: bool = False) -> DuetimeError:
        if isinstance(error, sqlite3.Error):
            return translate(error, committing=committing)
        return StoreUnavailable(f"the SQLite file cannot be used: {error}", unknown=committing)

    def is_full(self, error: Exception) -> bool:
        return isinstance(error, sqlite3.Error) and lacks_room(error)

    is_rolled_back = is_full

    def make_room(self, session: SqliteSession, attempt: int) -> bool:
        """First try to move the log into the file, so that its room is used again; then delete the reserve file."""
        if attempt == 1 and checkpoint(session.connection):
            return True
        if attempt > 2 or not self._disk.release():
            return False
        log.warning("sqlite_reserve_file_released")
        checkpoint(session.connection)
        return True

    def before_commit(self, session: SqliteSession, steps: Sequence[Step]) -> Sequence[NumberedAnnouncement] | None:
        """Counts the transactions that announce something, so that other processes notice a lost datagram. Statements
        for one job have counted theirs already.
        """
        found = [one for step in steps if isinstance(step, SqliteStep) for one in step.announcements]
        wakes = [wake for step in steps for wake in step.wakes]
        registry_version = max([step.registry_version for step in steps], default=0)
        if wakes or registry_version:
            (number,) = session.connection.execute(QUERIES["count_wake"]).fetchone()
            found.append(numbered(number, registry_version, wakes))
        return found or None


PushStep = Callable[[Queue, Sequence[Push], Step], Sequence[Pushed | DuetimeError]]


class SqliteOneJob:
    """Implements `base.OneJob`: steps of the writer's thread for callers without a task. `submit` sends a step to that
    thread, `push` is the store's own, and `on_empty` is called in the event loop after a reserve that found no job.
    """

    def __init__(
        self,
        submit: Callable[..., None],
        push: PushStep,
        on_empty: Callable[[], None],
        blocking: Callable[[], BlockingSqlite],
    ) -> None:
        self._submit, self._push, self._on_empty = submit, push, on_empty
        self.blocking = blocking
        self._loop = asyncio.get_running_loop()

    def push(self, queue: Queue, request: Push, reply: ResultSink[Sequence[Pushed | DuetimeError]]) -> Send:
        return partial(self._submit, QueuedStep(partial(self._push, queue, (request,)), reply, adds=True), line=queue)

    def reserve(self, queue: Queue, ask: Ask, reply: ResultSink[Reserved]) -> Send:
        asks = (ask,)

        def reserve(step: Step) -> Reserved:
            reserved = verbs.reserve(step, queue, asks)
            if not reserved.deliveries[0]:
                self._loop.call_soon_threadsafe(self._on_empty)
            return reserved

        return partial(self._submit, QueuedStep(reserve, reply), line=queue)

    def ack(self, lease: Lease, reply: ResultSink[Sequence[Moved | LeaseLost | StoreUnavailable | None]]) -> Send:
        step = QueuedStep(lambda step: verbs.ack(step, lease.queue, (lease,)), reply)
        return partial(self._submit, step, line=lease.queue)


T = TypeVar("T")
ReadChangesIfChanged = Callable[[str, Hashable, Callable[[], Awaitable[Changes]]], Awaitable[Changes]]

SWEEP_EVERY_MS = 10_000
"""How often a process that writes nothing deletes rows that are no longer needed."""
PROVEN_S = 5.0
"""How long an answer to `ping` proves that the reader's thread answers."""
LOCK_TIMEOUT_S = 5.0
"""How long a call waits for another process's transaction before StoreUnavailable."""


class SqliteStore(SqlStore):
    """Keeps the contract of `stores.base.Store`. Belongs to the event loop that opened it; made by `open`."""

    def __init__(
        self, path: Path, clock: Clock, synchronous: str, lock_timeout_s: float, reserve: int | None = None
    ) -> None:
        path = path.resolve()  # the same in every process, whatever links or relative path it was opened by
        self._path, self._synchronous = path, synchronous
        self._background = BackgroundThread()
        try:
            self._disk = DiskReserve(path, reserve, self._background)
        except OSError as error:
            raise StoreUnavailable(f"cannot use the folder of the SQLite file: {error}") from error
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

        def connect_blocking() -> sqlite3.Connection:
            is_synced = synchronous in ("FULL", "EXTRA")
            pages = min(SYNCED_CHECKPOINT_PAGES if is_synced else CHECKPOINT_PAGES, self._disk.checkpoint_pages)
            return open_file(time.monotonic() + lock_timeout_s, checkpoint_pages=pages)

        self._clock, self._connect_blocking = clock, connect_blocking
        self._blocking: list[BlockingSqlite] = []
        self._watch = CommitWatch(connect_reader)
        self._answers: dict[str, tuple[int, Hashable, Any]] = {}
        """By kind of question: the version of the file, the question and the answer."""
        self._has_written, self._swept_at = True, 0
        self._write_lock, self._mailboxes = _open_shared_files(path)
        hub = SqliteWakeHub(self._mailboxes, self._read_meta)
        self._hub, self._announce = hub, hub.announce

        def threads(name: str, connect: Callable[[], sqlite3.Connection]) -> ConnectionThreads:
            link = SqliteLink(
                connect,
                clock,
                write_lock=self._write_lock,
                disk=self._disk,
                lock_timeout_s=lock_timeout_s,
            )
            return ConnectionThreads(f"duetime-sqlite-{name}", link, size=1, announce=hub.announce)

        self._writer, self._reader = threads("writer", connect_writer), threads("reader", connect_reader)
        self.registry = SqliteRegistry(self._write, self._read, self._hub, read_if_changed=self._read_if_changed)
        submit = partial(self._writer.submit, key="writer")
        self.one_job = SqliteOneJob(submit, self._push, hub.keep_awake, self._open_blocking)

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
        store = cls(Path(path), clock or SystemClock(), check_synchronous(synchronous), lock_timeout_s, reserve)
        try:
            await store._write(_open_connection)
            await store._read(store._watch.open)
        except BaseException:
            await store.close()
            raise
        return store

    async def _read_meta(self) -> Meta:
        return await self._read_if_changed("meta", None, partial(self._read, _read_meta))

    # --- how steps run

    def _write(
        self, operation: Callable[[Step], T], *, queue: Queue | None = None, jobs: int = 1, adds: bool = False
    ) -> Later[T]:
        self._has_written = True
        return self._writer.run(operation, key="writer", line=queue, jobs=jobs, adds=adds)

    def _read(self, operation: Callable[[Step], T], *, queue: Queue | None = None) -> Later[T]:
        """Each step is alone in its transaction, as a big one is, so that its answer waits for no other."""
        return self._reader.run(operation, key="reader", line=queue, jobs=BIG_JOBS, read_only=True)

    async def _read_if_changed(self, kind: str, question: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """Returns what `read` returned for this question last time, without waking a thread, if no connection has
        committed since. For questions that are asked every second; one answer of each kind is kept.
        """
        version = self._watch.version()
        if version is None:
            return await read()
        if (known := self._answers.get(kind)) and known[:2] == (version, question):
            return known[2]
        answer = await read()
        self._answers[kind] = version, question, answer
        return answer

    def _open_blocking(self) -> BlockingSqlite:
        opened = BlockingSqlite(
            self._connect_blocking,
            self._clock,
            write_lock=self._write_lock,
            disk=self._disk,
            announce=self._announce,
        )
        self._blocking.append(opened)
        return opened

    # --- verbs that know the file

    async def push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        try:
            jobs = sum([len(request.jobs) for request in requests])
            return await self._write(partial(self._push, queue, requests), queue=queue, jobs=jobs, adds=True)
        except StoreFull as full:
            if len(requests) == 1:
                return [full]
        # A request that has no room must not fail its neighbours.
        return [answer for request in requests for answer in await self.push(queue, [request])]

    def _push(self, queue: Queue, requests: Sequence[Push], step: Step) -> Sequence[Pushed | DuetimeError]:
        disk = self._disk
        if not disk.has_room() and (refusal := disk.refusal(step.fetch_one("free_pages")[0] * PAGE_BYTES)):
            return [refusal for _ in requests]
        return verbs.push(step, queue, requests)

    async def reap(self, limit: int = 500, *, recorded: Sequence[str] = ()) -> Reaped:
        """In a process that writes nothing, the reader checks first whether a lease or a ttl has ended: an idle process
        takes no write lock.
        """
        if not self._has_written and 0 <= self._clock.now_ms() - self._swept_at < SWEEP_EVERY_MS:
            next_at = await self._read_if_changed("next reap", None, partial(self._read, verbs.next_reap))
            now = self._clock.now_ms()
            if next_at is None or next_at > now:
                return Reaped({}, next_at, now)
        reaped = await self._write(lambda step: verbs.reap(step, limit))
        if not reaped.moved and (reaped.next_at is None or reaped.next_at > reaped.now):
            self._has_written, self._swept_at = False, reaped.now
        return reaped

    async def heads(self, queues: Sequence[Queue], *, waiting: bool = False) -> Sequence[int | None]:
        if waiting:
            self._hub.keep_awake()
        kind = "heads, waiting" if waiting else "heads"
        return await self._read_if_changed(kind, tuple(queues), partial(super().heads, queues))

    async def queues(self, namespace: str | None = None) -> Sequence[Queue]:
        return await self._read_if_changed("queues", namespace, partial(super().queues, namespace))

    async def ping(self) -> StoreInfo:
        """While nobody commits, the file and the disk are read every PROVEN_S seconds at most."""
        information = await self._read_if_changed(
            "ping", time.monotonic() // PROVEN_S, partial(self._read, self._describe)
        )
        return msgspec.structs.replace(information, now=self._clock.now_ms())

    def _describe(self, step: Step) -> StoreInfo:
        epoch, disk = _read_meta(step).epoch, shutil.disk_usage(self._path.parent)
        used, kept_by = disk.total - disk.free, f"every commit, synchronous={self._synchronous}"
        files = (self._path, self._path.with_name(f"{self._path.name}-wal"))
        own = sum(file.stat().st_size for file in files if file.exists())
        return StoreInfo(
            "sqlite", sqlite3.sqlite_version, epoch, step.now, used, disk.total, persistence=kept_by, own_bytes=own
        )

    async def check(self) -> Sequence[str]:
        """The rows are checked only if SQLite finds the file itself sound."""
        findings = await self._read(lambda step: step.fetch("check_file"))
        return [f"the file: {finding}" for (finding,) in findings if finding != "ok"] or await super().check()

    async def close(self) -> None:
        for blocking in self._blocking:
            blocking.close()
        self._hub.close()
        self._disk.note_log()
        await self._writer.close()
        await self._reader.close()
        self._watch.close()
        self._background.close()
        self._disk.rebuild_reserve_file()
        self._mailboxes.close()
        self._write_lock.close()


class SqliteRegistry(SqlRegistry):
    def __init__(
        self, write: RunSteps, read: RunSteps, hub: SqliteWakeHub, *, read_if_changed: ReadChangesIfChanged
    ) -> None:
        super().__init__(write, read, hub)
        self._read_if_changed = read_if_changed

    async def changes(self, since: int = 0) -> Changes:
        return await self._read_if_changed("registry", since, partial(super().changes, since))


def _read_meta(step: Step) -> Meta:
    return Meta(*step.fetch_one("get_meta"))


def _open_connection(step: Step) -> None:
    """The first step of a thread opens its connection, and raises what is wrong with the file."""


def _open_shared_files(path: Path) -> tuple[WriteLock, Mailboxes]:
    """What the processes on a file share: the lock for writing, and the folder of mailboxes."""
    folder = path.with_name(path.name + "-wake")
    try:
        folder.mkdir(0o700, exist_ok=True)
        return WriteLock(folder / "turn"), Mailboxes(folder)
    except OSError as error:
        raise StoreUnavailable(f"cannot use the folder of wake-up sockets next to the SQLite file: {error}") from error
