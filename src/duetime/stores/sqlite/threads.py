"""Threads that own one SQLite connection each and run operations for coroutines.

The writer takes the waiting operations into one transaction, queue by queue in turn, so that concurrent callers share
one fsync. A caller gets its result only after COMMIT, so an operation on many jobs is never added to a transaction that
others have begun. An operation that fails undoes only its own changes. The reader runs each operation on a fresh
snapshot, so that a caller sees what it has written.
"""

import asyncio
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from queue import SimpleQueue
from typing import Any, TypeVar

import msgspec

from duetime.model.clock import Clock
from duetime.model.errors import DuetimeError, StoreDamaged, StoreFull, StoreUnavailable
from duetime.model.names import Queue
from duetime.stores.sql.store import BIG_JOBS
from duetime.stores.sqlite.connection import QUERIES, ForkGuard, WriteLock, checkpoint, retry_while_busy, translate
from duetime.stores.sqlite.disk import DiskReserve
from duetime.stores.sqlite.step import SqliteStep
from duetime.stores.sqlite.wake import News, news_of

log = logging.getLogger("duetime.sqlite")

MAX_OPERATIONS = 256
"""The most operations that share a transaction."""
MAX_TRANSACTION_S = 0.02
"""A transaction takes in no further operation after this time, so that no caller waits long for its COMMIT."""

T = TypeVar("T")


class PendingStep:
    """An operation that a caller waits for, from its request to its result."""

    __slots__ = ("adds", "error", "future", "is_big", "operation", "queue", "result", "step")

    def __init__(
        self,
        operation: Callable[[SqliteStep], Any],
        future: asyncio.Future[Any],
        queue: Queue | None,
        is_big: bool,
        adds: bool,
    ) -> None:
        self.operation, self.future, self.queue, self.is_big, self.adds = operation, future, queue, is_big, adds
        self.result: Any = None
        self.error: BaseException | None = None
        self.step: SqliteStep | None = None

    def resolve(self) -> None:
        """Called in the caller's loop. A caller that was cancelled gets no result."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


class WaitingLines:
    """Operations that wait: each queue's in a line of its own, and the lines are served in turn.

    So an operation of a quiet queue waits for one operation of a flooded queue, and not for all of them.
    """

    def __init__(self) -> None:
        self._lines: dict[Queue | None, deque[PendingStep]] = {}

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, call: PendingStep) -> None:
        line = self._lines.get(call.queue)
        if line is None:
            self._lines[call.queue] = deque((call,))
        else:
            line.append(call)

    def take(self, *, small: bool = False) -> PendingStep | None:
        """The next operation. With `small`, a line whose first operation is big is passed over."""
        for queue, line in self._lines.items():
            if not (small and line[0].is_big):
                call = line.popleft()
                del self._lines[queue]
                if line:
                    self._lines[queue] = line  # the line goes to the end
                return call
        return None


class DatabaseThread:
    """Owns a connection from `start` to `close`. Coroutines of one event loop call `start`, `run` and `close`.

    No error of an operation ends the thread. When a caller is cancelled, its operation is skipped if it has not begun;
    otherwise it takes effect and its result is dropped.
    """

    def __init__(self, name: str, connect: Callable[[], sqlite3.Connection], clock: Clock) -> None:
        self._connect, self._clock = connect, clock
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[PendingStep | None] = SimpleQueue()
        self._lines = WaitingLines()
        self._is_last = False
        self._running: list[PendingStep] = []
        self._closing = False
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()

    async def start(self) -> None:
        self._thread.start()
        await asyncio.shield(self._opened)

    async def run(
        self, operation: Callable[[SqliteStep], T], *, queue: Queue | None = None, jobs: int = 1, adds: bool = False
    ) -> T:
        """Run an operation for `queue` on up to so many `jobs`.

        An operation that `adds` jobs gets none of the disk room that is kept back for the others.
        """
        if self._closing:
            raise StoreUnavailable("the store is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._inbox.put(PendingStep(operation, future, queue, jobs >= BIG_JOBS, adds))
        return await future

    async def close(self) -> None:
        """Finish the operations that were asked for so far, then close the connection. Idempotent."""
        if self._thread.ident is None:
            self._closing = True
            return
        if not self._closing:
            self._closing = True
            self._inbox.put(None)
        await asyncio.shield(self._closed)
        self._thread.join()

    # --- in the thread

    def _main(self) -> None:
        guard = ForkGuard()
        try:
            connection = guard.open(self._connect)
        except BaseException as error:
            self._closing = True
            self._post(_settle, self._opened, _public(error))
            self._post(_settle, self._closed, None)
            return
        self._post(_settle, self._opened, None)
        try:
            while (call := self._next()) is not None:
                with guard.in_use:
                    self._serve(connection, call)
        except BaseException as error:
            # This is a bug of ours: better a store that is closed than callers that wait for ever.
            self._fail(StoreUnavailable(f"the store's thread has ended: {error!r}", unknown=True), self._running)
            raise
        finally:
            self._closing = True
            self._fail_waiting(StoreUnavailable("the store is closed"))
            guard.close()
            self._post(_settle, self._closed, None)

    def _serve(self, connection: sqlite3.Connection, first: PendingStep) -> None:
        """Run one call in a transaction of its own."""
        self._transact(connection, iter((first,)))

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Start a transaction, waiting for other processes at need. Raises sqlite3.Error."""
        raise NotImplementedError

    def _before_commit(self, connection: sqlite3.Connection, steps: Sequence[SqliteStep]) -> None:
        """Called as the last thing inside the transaction."""

    def _after_commit(self, steps: Sequence[SqliteStep]) -> None:
        """Called after COMMIT, when the results are on their way to the callers."""

    def _make_room(self, connection: sqlite3.Connection, attempt: int) -> bool:
        """Called after a transaction that found no room; `attempt` is how often it was repeated before. True if it is
        worth another try.
        """
        return False

    def _transact(self, connection: sqlite3.Connection, calls: Iterator[PendingStep], attempt: int = 0) -> None:
        self._running = done = list[PendingStep]()
        try:
            self._begin(connection)
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self._fail(translate(error), calls)
            # The callers that wait have waited just as long: another timeout would not help them.
            return self._fail_waiting(translate(error))
        try:
            for call in calls:
                if not call.future.cancelled():
                    done.append(call)
                    self._operate(connection, call, is_first=len(done) == 1)
                    if isinstance(call.error, StoreFull):
                        return self._start_over(connection, done, call.error, attempt)
            steps = [call.step for call in done if call.step is not None]
            self._before_commit(connection, steps)
        except sqlite3.Error as error:
            return self._start_over(connection, done, translate(error), attempt)
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            return self._start_over(connection, done, translate(error, committing=True), attempt)
        self._resolve(done)
        return self._after_commit(steps)

    def _operate(self, connection: sqlite3.Connection, call: PendingStep, *, is_first: bool) -> None:
        """Run one operation so that its failure is its own. Raises only when the whole transaction is lost.

        The first operation of a transaction, often the only one, needs no savepoint: if it fails, there is nothing but
        its own changes to undo.
        """
        if not is_first:
            connection.execute("SAVEPOINT operation")
        try:
            step = SqliteStep(connection, self._clock.now_ms())
            call.result, call.error, call.step = call.operation(step), None, step
        except BaseException as error:
            call.error, call.step = _public(error), None
            if not connection.in_transaction:
                raise
            if is_first:
                connection.execute("ROLLBACK")
                return self._begin(connection)
            connection.execute("ROLLBACK TO operation")
        if not is_first:
            connection.execute("RELEASE operation")
        return None

    def _start_over(
        self, connection: sqlite3.Connection, calls: list[PendingStep], error: DuetimeError, attempt: int
    ) -> None:
        """Handle a transaction that failed. If only room is missing, each operation is tried alone, so that those that
        need little room succeed.
        """
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if not isinstance(error, StoreFull):
            return self._fail(error, calls)
        if len(calls) > 1:
            for call in calls:
                self._transact(connection, iter((call,)))
        elif not calls[0].adds and self._make_room(connection, attempt):
            self._transact(connection, iter(calls), attempt + 1)
        else:
            self._fail(error, calls)
        return None

    def _next(self) -> PendingStep | None:
        """Wait for an operation; None after the last one."""
        while not (call := self._next_waiting()) and not self._is_last:
            call = self._inbox.get()
            if call is not None and self._inbox.empty():
                return call  # it is alone, so there is no line to stand in
            self._take_in(call)
        return call

    def _next_waiting(self, *, small: bool = False) -> PendingStep | None:
        """The next of the operations that were asked for until now, None if there is none."""
        while not self._inbox.empty():
            self._take_in(self._inbox.get())
        return self._lines.take(small=small)

    def _take_in(self, call: PendingStep | None) -> None:
        """None is the order to close: nothing is asked for after it."""
        if call is None:
            self._is_last = True
        else:
            self._lines.add(call)

    def _fail_waiting(self, error: DuetimeError) -> None:
        self._fail(error, iter(self._next_waiting, None))

    def _fail(self, error: DuetimeError, calls: Iterable[PendingStep]) -> None:
        failed = list(calls)
        for call in failed:
            call.error = error
        self._resolve(failed)

    def _resolve(self, calls: list[PendingStep]) -> None:
        if calls:
            self._post(_resolve_all, calls)

    def _post(self, callback: Callable[..., object], *arguments: object) -> None:
        # A closed loop raises RuntimeError; then no caller is left to hear the result.
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            return


class WriterThread(DatabaseThread):
    """The one writer of this process. It calls `announce` in its thread, after the results went to the callers."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        clock: Clock,
        *,
        write_lock: WriteLock,
        disk: DiskReserve,
        lock_timeout_s: float,
        announce: Callable[[News], None],
    ) -> None:
        super().__init__("duetime-sqlite-writer", connect, clock)
        self._write_lock, self._lock_timeout_s, self._announce = write_lock, lock_timeout_s, announce
        self._disk = disk
        self._news: News | None = None

    def _serve(self, connection: sqlite3.Connection, first: PendingStep) -> None:
        self._transact(connection, chain((first,), self._companions()))

    def _companions(self) -> Iterator[PendingStep]:
        """Calls that share the transaction of the first one."""
        deadline = time.monotonic() + MAX_TRANSACTION_S
        for _ in range(MAX_OPERATIONS - 1):
            # A big operation begins the next transaction, so that the callers in this one need not wait for it.
            if time.monotonic() >= deadline or (call := self._next_waiting(small=True)) is None:
                return
            yield call

    def _begin(self, connection: sqlite3.Connection) -> None:
        self._write_lock.begin(connection, time.monotonic() + self._lock_timeout_s)

    def _make_room(self, connection: sqlite3.Connection, attempt: int) -> bool:
        """First try to move the log into the file, so that its room is used again; then delete the reserve file."""
        if attempt == 0 and checkpoint(connection):
            return True
        if attempt > 1 or not self._disk.release():
            return False
        log.warning("sqlite_reserve_file_released")
        checkpoint(connection)
        return True

    def _before_commit(self, connection: sqlite3.Connection, steps: Sequence[SqliteStep]) -> None:
        wakes = [wake for step in steps for wake in step.wakes]
        registry_version = max([step.registry_version for step in steps], default=0)
        if wakes or registry_version:
            (number,) = connection.execute(QUERIES["count_wake"]).fetchone()
            self._news = news_of(number, registry_version, wakes)
        else:
            self._news = None

    def _after_commit(self, steps: Sequence[SqliteStep]) -> None:
        if self._news is not None:
            self._announce(self._news)


class ReaderThread(DatabaseThread):
    """Every operation sees one snapshot, taken when it begins."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], clock: Clock, *, lock_timeout_s: float) -> None:
        super().__init__("duetime-sqlite-reader", connect, clock)
        self._lock_timeout_s = lock_timeout_s

    def _begin(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN")
        retry_while_busy(
            lambda: connection.execute(QUERIES["get_meta"]).fetchone(), time.monotonic() + self._lock_timeout_s
        )


def _resolve_all(calls: list[PendingStep]) -> None:
    for call in calls:
        call.resolve()


def _settle(future: "asyncio.Future[None]", error: BaseException | None) -> None:
    if not future.done():
        future.set_result(None) if error is None else future.set_exception(error)


def _public(error: BaseException) -> BaseException:
    """The error that the caller gets: no error of the driver leaves the store."""
    match error:
        case sqlite3.Error():
            return translate(error)
        case OSError():
            return StoreUnavailable(f"the SQLite file cannot be used: {error}")
        case msgspec.DecodeError():
            return StoreDamaged(f"the SQLite file holds what Duetime did not write: {error}")
        case _:
            return error
