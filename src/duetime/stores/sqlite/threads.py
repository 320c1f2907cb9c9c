"""Threads that own one connection each and run operations for coroutines.

The writer takes whatever waits into one transaction, queue by queue in turn, so that concurrent callers share one
fsync; a caller hears of its result only after COMMIT, and so an operation on many jobs begins a transaction.
An operation that fails takes back only what it did itself. The reader runs each operation on a fresh snapshot, so that
a caller sees what it has written.
"""

import asyncio
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from queue import SimpleQueue
from typing import Any, TypeVar

import msgspec

from duetime.clock import Clock
from duetime.errors import DuetimeError, StoreDamaged, StoreFull, StoreUnavailable
from duetime.names import Queue
from duetime.stores.sql.store import BIG_JOBS
from duetime.stores.sqlite.connection import QUERIES, Turnstile, checkpoint, retry_while_busy, translate
from duetime.stores.sqlite.disk import DiskReserve
from duetime.stores.sqlite.step import SqliteStep
from duetime.stores.sqlite.wake import News, news_of

log = logging.getLogger("duetime.sqlite")

MAX_OPERATIONS = 256
"""Per transaction ..."""
MAX_TRANSACTION_S = 0.02
"""... which takes in no further operation after this long, so that nobody waits for long behind it."""

T = TypeVar("T")


class PendingStep:
    """An operation on its way through a thread."""

    __slots__ = ("adds", "error", "future", "is_big", "operation", "queue", "result", "step")

    def __init__(
        self,
        operation: Callable[[SqliteStep], Any],
        future: "asyncio.Future[Any]",
        queue: Queue | None,
        is_big: bool,
        adds: bool,
    ) -> None:
        self.operation, self.future, self.queue, self.is_big, self.adds = operation, future, queue, is_big, adds
        self.result: Any = None
        self.error: BaseException | None = None
        self.step: SqliteStep | None = None

    def resolve(self) -> None:
        """In the caller's loop. A caller that was cancelled no longer listens."""
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
        self._lines.setdefault(call.queue, deque()).append(call)

    def take(self, *, small: bool = False) -> PendingStep | None:
        """The next one. `small`: big ones, and those that wait behind them, stay where they are."""
        for queue, line in self._lines.items():
            if not (small and line[0].is_big):
                call = line.popleft()
                del self._lines[queue]
                if line:
                    self._lines[queue] = line  # as the last one
                return call
        return None


class DatabaseThread:
    """Owns a connection from `start` to `close`; both, and `run`, are for coroutines of one loop.

    The thread outlives every error of an operation, and a caller that is cancelled: if its operation has not begun it
    never will, otherwise it takes effect unheard.
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

        One that `adds` jobs gets none of the room that is kept back for the others.
        """
        if self._closing:
            raise StoreUnavailable("the store is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._inbox.put(PendingStep(operation, future, queue, jobs >= BIG_JOBS, adds))
        return await future

    async def close(self) -> None:
        """Finish what was asked for so far, then let go. Idempotent."""
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
        try:
            connection = self._connect()
        except BaseException as error:
            self._closing = True
            self._post(_settle, self._opened, _public(error))
            self._post(_settle, self._closed, None)
            return
        self._post(_settle, self._opened, None)
        try:
            while (call := self._next()) is not None:
                self._serve(connection, call)
        except BaseException as error:
            # A mistake of ours: better a store that is closed than callers that wait for ever.
            self._fail(StoreUnavailable(f"the store's thread has ended: {error!r}", unknown=True), self._running)
            raise
        finally:
            self._closing = True
            self._fail_waiting(StoreUnavailable("the store is closed"))
            connection.close()
            self._post(_settle, self._closed, None)

    def _serve(self, connection: sqlite3.Connection, first: PendingStep) -> None:
        """One transaction for one call."""
        self._transact(connection, iter((first,)))

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Start a transaction, waiting for others at need; sqlite3.Error if it cannot be."""
        raise NotImplementedError

    def _before_commit(self, connection: sqlite3.Connection, steps: Sequence[SqliteStep]) -> None:
        """Last words inside the transaction."""

    def _after_commit(self, steps: Sequence[SqliteStep]) -> None:
        """The transaction holds and its callers know."""

    def _make_room(self, connection: sqlite3.Connection, attempt: int) -> bool:
        """Outside a transaction, after `attempt` failed ones: whether there may be room for a step now."""
        return False

    def _transact(self, connection: sqlite3.Connection, calls: Iterator[PendingStep], attempt: int = 0) -> None:
        self._running = done = list[PendingStep]()
        try:
            self._begin(connection)
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self._fail(translate(error), calls)
            # Whoever waits has waited just as long: it would not be better off with another timeout.
            return self._fail_waiting(translate(error))
        try:
            for call in calls:
                if not call.future.cancelled():
                    done.append(call)
                    self._operate(connection, call)
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

    def _operate(self, connection: sqlite3.Connection, call: PendingStep) -> None:
        """Run one operation so that its failure is its own. Raises only when the whole transaction is lost."""
        connection.execute("SAVEPOINT operation")
        try:
            step = SqliteStep(connection, self._clock.now_ms())
            call.result, call.error, call.step = call.operation(step), None, step
        except BaseException as error:
            call.error, call.step = _public(error), None
            if not connection.in_transaction:
                raise
            connection.execute("ROLLBACK TO operation")
        connection.execute("RELEASE operation")

    def _start_over(
        self, connection: sqlite3.Connection, calls: list[PendingStep], error: DuetimeError, attempt: int
    ) -> None:
        """A transaction came to nothing. Where only room is missing, those that need little of it shall not suffer."""
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
        """Waits for an operation; None after the last one."""
        while not (call := self._next_waiting()) and not self._is_last:
            self._take_in(self._inbox.get())
        return call

    def _next_waiting(self, *, small: bool = False) -> PendingStep | None:
        """One of those that were asked for until now, if there is one."""
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
        self._post(_resolve_all, calls)

    def _post(self, callback: Callable[..., object], *arguments: object) -> None:
        # A closed loop refuses with RuntimeError: nobody is left to hear it.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)


class WriterThread(DatabaseThread):
    """The one writer of this process; `announce` is called in the thread, after the callers know."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        clock: Clock,
        *,
        turnstile: Turnstile,
        disk: DiskReserve,
        lock_timeout_s: float,
        announce: Callable[[News], None],
    ) -> None:
        super().__init__("duetime-sqlite-writer", connect, clock)
        self._turnstile, self._lock_timeout_s, self._announce = turnstile, lock_timeout_s, announce
        self._disk = disk
        self._news: News | None = None

    def _serve(self, connection: sqlite3.Connection, first: PendingStep) -> None:
        self._transact(connection, chain((first,), self._companions()))

    def _companions(self) -> Iterator[PendingStep]:
        """Calls that share the transaction of the first one."""
        deadline = time.monotonic() + MAX_TRANSACTION_S
        for _ in range(MAX_OPERATIONS - 1):
            # A big one begins the next transaction: those who are in this one need not wait for it.
            if time.monotonic() >= deadline or (call := self._next_waiting(small=True)) is None:
                return
            yield call

    def _begin(self, connection: sqlite3.Connection) -> None:
        self._turnstile.begin(connection, time.monotonic() + self._lock_timeout_s)

    def _make_room(self, connection: sqlite3.Connection, attempt: int) -> bool:
        """First the log begins anew in the room it has, then the ballast goes."""
        if attempt == 0 and checkpoint(connection):
            return True
        if attempt > 1 or not self._disk.release():
            return False
        log.warning("sqlite_ballast_released")
        checkpoint(connection)
        return True

    def _before_commit(self, connection: sqlite3.Connection, steps: Sequence[SqliteStep]) -> None:
        wakes = [wake for step in steps for wake in step.wakes]
        registry_version = max((step.registry_version for step in steps), default=0)
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
    """What a caller gets to see: no driver's error leaves the store."""
    match error:
        case sqlite3.Error():
            return translate(error)
        case OSError():
            return StoreUnavailable(f"the SQLite file cannot be used: {error}")
        case msgspec.DecodeError():
            return StoreDamaged(f"the SQLite file holds what Duetime did not write: {error}")
        case _:
            return error
