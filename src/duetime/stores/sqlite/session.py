"""Sessions on a SQLite file: one for the thread that writes and one for the thread that reads (`sql/threads.py`).

Steps of all queues that wait to write share a transaction, and so one fsync. Each step that reads gets a fresh
snapshot, so that a caller sees what it has written.
"""

import logging
import sqlite3
import time
from collections.abc import Callable, Sequence

from duetime.model.clock import Clock
from duetime.model.errors import DuetimeError, StoreUnavailable
from duetime.stores.sql.step import Step
from duetime.stores.sql.threads import DatabaseLink, Session
from duetime.stores.sqlite.connection import (
    QUERIES,
    ForkGuard,
    WriteLock,
    checkpoint,
    lacks_room,
    retry_while_busy,
    translate,
)
from duetime.stores.sqlite.disk import DiskReserve
from duetime.stores.sqlite.step import SqliteStep
from duetime.stores.sqlite.wake import News, news_of

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
            retry_while_busy(lambda: self.connection.execute(QUERIES["get_meta"]).fetchone(), deadline)
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
    """`announce` is called in the writer's thread with what a transaction announces."""

    errors = (sqlite3.Error, OSError)

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
        self._connect, self._clock, self._announce = connect, clock, announce
        self._write_lock, self._disk, self._lock_timeout_s = write_lock, disk, lock_timeout_s
        self._news: News | None = None

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

    def before_commit(self, session: SqliteSession, steps: Sequence[Step]) -> None:
        """Counts the transactions that announce something, so that other processes notice a lost datagram."""
        self._news = None
        wakes = [wake for step in steps for wake in step.wakes]
        registry_version = max([step.registry_version for step in steps], default=0)
        if wakes or registry_version:
            (number,) = session.connection.execute(QUERIES["count_wake"]).fetchone()
            self._news = news_of(number, registry_version, wakes)

    def after_commit(self, steps: Sequence[Step]) -> None:
        if self._news is not None:
            self._announce(self._news)
