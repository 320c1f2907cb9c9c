"""The blocking single-job calls (`base.BlockingOneJob`) of a SQLite file.

Each is a short transaction in the caller's own thread, on a connection of its own. It never waits: while another
connection writes or waits for its turn to write, it declines, and so does a push for which the disk has no room.
"""

import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from duetime.model.clock import Clock
from duetime.model.errors import DuetimeError, StoreUnavailable
from duetime.model.job import Delivery, Lease, Moved
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed, Reserved
from duetime.stores.sqlite.connection import ForkGuard, WriteLock, is_unknown, translate
from duetime.stores.sqlite.disk import DiskReserve
from duetime.stores.sqlite.step import SqliteStep
from duetime.stores.sqlite.wake import NumberedAnnouncement

T = TypeVar("T")


class BlockingSqlite:
    """Implements `base.BlockingOneJob`. `announce` may be called in any thread."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        clock: Clock,
        *,
        write_lock: WriteLock,
        disk: DiskReserve,
        announce: Callable[[Sequence[NumberedAnnouncement]], None],
    ) -> None:
        self._connect, self._clock, self._announce = connect, clock, announce
        self._write_lock, self._disk = write_lock, disk
        self._guard = ForkGuard()
        self._connection: sqlite3.Connection | None = None
        self._is_closed = False
        # The connection is opened in another thread: a handler of a signal that forks must find it guarded or not made.
        # It is opened now, so that it is there, or nearly so, when the first call comes.
        self._opener: threading.Thread | None = threading.Thread(
            target=self._open, name="duetime-sqlite-opener", daemon=True
        )
        self._opener.start()

    def push(self, queue: Queue, request: Push) -> Pushed | None:
        if not self._disk.has_room():
            return None
        answers = self._run(lambda step: step.fast_push(queue, (request,)))
        return answers[0] if answers else None

    def reserve(self, queue: Queue, ask: Ask, orphan: Callable[[Delivery], None]) -> Reserved | None:
        return self._run(lambda step: step.fast_reserve(queue, (ask,)), partial(_each_delivery, orphan))

    def ack_and_reserve(self, lease: Lease, ask: Ask, orphan: Callable[[Delivery], None]) -> Reserved | None:
        def ack_and_reserve(step: SqliteStep) -> Reserved | None:
            return step.fast_reserve(lease.queue, (ask,)) if step.fast_ack(lease.queue, (lease,)) else None

        return self._run(ack_and_reserve, partial(_each_delivery, orphan))

    def ack(self, lease: Lease) -> Moved | None:
        answers = self._run(lambda step: step.fast_ack(lease.queue, (lease,)))
        return answers[0] if answers else None

    def close(self) -> None:
        """Idempotent; waits for a call that is under way."""
        with self._guard.in_use:
            self._is_closed = True
        self._wait_until_open()
        self._guard.close()

    def _run(
        self, operation: Callable[[SqliteStep], T | None], interrupted: Callable[[T], None] | None = None
    ) -> T | None:
        """Run an operation as a transaction; if it answers None, nothing is done. `interrupted` gets the answer if an
        exception (Ctrl-C, for example) ends the call after the commit.
        """
        if self._opener is not None:
            self._wait_until_open()
        done: list[T] = []
        try:
            with self._guard.in_use:
                if self._connection is None or self._is_closed or not self._write_lock.is_free():
                    return None
                announcements = self._transact(self._connection, operation, done)
            self._announce(announcements)
            return done[0] if done else None
        except sqlite3.Error as error:
            if is_unknown(error):
                raise translate(error, committing=True) from error
            return None  # the file is locked, or full, or not as it should be: the writer's thread says so
        except BaseException:
            if interrupted and done:
                interrupted(done[0])
            raise

    def _transact(
        self, connection: sqlite3.Connection, operation: Callable[[SqliteStep], T | None], done: list[T]
    ) -> Sequence[NumberedAnnouncement]:
        """Puts the answer into `done` before the commit: an exception may come right after it."""
        step = SqliteStep(connection, self._clock.now_ms())
        try:
            connection.execute("BEGIN IMMEDIATE")
            if (answer := operation(step)) is None:
                connection.execute("ROLLBACK")
                return ()
            done.append(answer)
            connection.execute("COMMIT")
        except BaseException:
            if self._guard.roll_back():
                done.clear()
            raise
        return step.announcements

    def _wait_until_open(self) -> None:
        if (opener := self._opener) is not None:
            opener.join()
            self._opener = None

    def _open(self) -> None:
        with suppress(sqlite3.Error, DuetimeError):  # the writer's thread serves all calls then
            self._connection = self._guard.open(self._connect_unless_closed)

    def _connect_unless_closed(self) -> sqlite3.Connection:
        if self._is_closed:
            raise StoreUnavailable("the store is closed")
        return self._connect()


def _each_delivery(do: Callable[[Delivery], None], reserved: Reserved) -> None:
    for delivery in reserved.deliveries[0]:
        do(delivery)
