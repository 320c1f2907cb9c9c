"""Direct calls (`stores/direct.py`) to a SQLite file: one statement (`one_job.py`) in the caller's own thread.

They have a connection of their own, and never wait: while another connection writes or waits for its turn to write,
they decline, and the call goes to the writer's thread. Pushes for which the disk has no room go there, too.
"""

import sqlite3
import threading
from collections.abc import Callable
from itertools import count
from typing import TypeVar, TypeVarTuple

from duetime.model.clock import Clock
from duetime.model.errors import DuetimeError, StoreUnavailable
from duetime.model.job import Lease, Moved
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed, Reserved, Wake
from duetime.stores.direct import Orphan
from duetime.stores.sqlite.connection import ForkGuard, WriteLock, is_unknown, translate
from duetime.stores.sqlite.disk import DiskReserve
from duetime.stores.sqlite.one_job import OneJobStatements
from duetime.stores.sqlite.wake import News, news_of

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class DirectSqlite:
    """Keeps `stores.direct.DirectCalls`. `announce` may be called in any thread."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        clock: Clock,
        *,
        write_lock: WriteLock,
        disk: DiskReserve,
        announce: Callable[[News], None],
    ) -> None:
        self._connect, self._clock, self._announce = connect, clock, announce
        self._write_lock, self._disk = write_lock, disk
        self._guard, self._tokens = ForkGuard(), count(1)
        self._statements: OneJobStatements | None = None
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
        done = self._run(OneJobStatements.push, (queue, request, self._clock.now_ms()))
        if done is None:
            return None
        pushed, number = done
        if number:
            self._announce(news_of(number, 0, [Wake(queue, pushed.jobs[0].due_at)]))
        return pushed

    def reserve(self, queue: Queue, ask: Ask, orphan: Orphan) -> Reserved | None:
        return self._reserve(queue, ask, orphan)

    def ack_and_reserve(self, lease: Lease, ask: Ask, orphan: Orphan) -> Reserved | None:
        return self._reserve(lease.queue, ask, orphan, lease)

    def _reserve(self, queue: Queue, ask: Ask, orphan: Orphan, done: Lease | None = None) -> Reserved | None:
        now, token = self._clock.now_ms(), next(self._tokens)
        try:
            return self._run(OneJobStatements.reserve, (queue, ask, now, token, done))
        except DuetimeError:
            raise
        except BaseException:
            # The caller is interrupted, perhaps after it got a job.
            reserved = self._run(OneJobStatements.reserved, (queue, ask, now, token), writes=False)
            for delivery in reserved.deliveries[0] if reserved else ():
                orphan(delivery)
            raise

    def ack(self, lease: Lease) -> Moved | None:
        return self._run(OneJobStatements.ack, (lease, self._clock.now_ms()))

    def close(self) -> None:
        """Idempotent; waits for a call that is under way."""
        with self._guard.in_use:
            self._is_closed = True
        self._wait_until_open()
        self._guard.close()

    def _run(
        self, call: Callable[[OneJobStatements, *Ts], T | None], of: tuple[*Ts], *, writes: bool = True
    ) -> T | None:
        if self._opener is not None:
            self._wait_until_open()
        if self._statements is None:
            return None
        try:
            with self._guard.in_use:
                if self._is_closed or (writes and not self._write_lock.is_free()):
                    return None
                return call(self._statements, *of)
        except sqlite3.Error as error:
            if is_unknown(error):
                raise translate(error, committing=True) from error
            return None  # the file is locked, or full, or not as it should be: the writer's thread says so

    def _wait_until_open(self) -> None:
        if (opener := self._opener) is not None:
            opener.join()
            self._opener = None

    def _open(self) -> None:
        try:
            self._guard.open(self._prepare)
        except (sqlite3.Error, DuetimeError):
            return  # the writer's thread serves all calls

    def _prepare(self) -> sqlite3.Connection:
        if self._is_closed:
            raise StoreUnavailable("the store is closed")
        connection = self._connect()
        try:
            self._statements = OneJobStatements(connection)
        except BaseException:
            connection.close()
            raise
        return connection
