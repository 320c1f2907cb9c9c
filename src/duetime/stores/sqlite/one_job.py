"""The single-job calls (`base.OneJob`) of a SQLite file.

Those of the event loop go to the writer's thread without a task. Blocking ones are one statement
(`single_statement.py`) in the caller's own thread, on a connection of their own. They never wait: while another
connection writes or waits for its turn to write, they decline, and so do pushes for which the disk has no room.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar, TypeVarTuple

from duetime.model.clock import Clock
from duetime.model.errors import DuetimeError, LeaseLost, StoreUnavailable
from duetime.model.job import Delivery, Lease, Moved
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed, Reply, Reserved, Send, Wake
from duetime.stores.sql import verbs
from duetime.stores.sql.step import Step
from duetime.stores.sql.threads import QueuedStep
from duetime.stores.sqlite import single_statement
from duetime.stores.sqlite.connection import ForkGuard, WriteLock, is_unknown, translate
from duetime.stores.sqlite.disk import DiskReserve
from duetime.stores.sqlite.wake import News, SqliteWakeHub, news_of

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


Submit = Callable[..., None]
PushStep = Callable[[Queue, Sequence[Push], Step], Sequence[Pushed | DuetimeError]]


class SqliteOneJob:
    """Implements `base.OneJob`. `submit` gives a step to the writer's thread. `push` is the store's step, which looks
    at the disk first.
    """

    def __init__(
        self, submit: Submit, hub: SqliteWakeHub, push: PushStep, blocking: Callable[[], "BlockingSqlite"]
    ) -> None:
        self._submit, self._hub, self._push = submit, hub, push
        self.blocking = blocking
        self._loop = asyncio.get_running_loop()

    def push(self, queue: Queue, request: Push, reply: Reply[Pushed | DuetimeError]) -> Send:
        requests = (request,)

        def push(step: Step) -> Pushed | DuetimeError:
            return self._push(queue, requests, step)[0]

        return partial(self._submit, QueuedStep(push, reply, adds=True), line=queue)

    def reserve(self, queue: Queue, ask: Ask, reply: Reply[Reserved]) -> Send:
        asks = (ask,)

        def reserve(step: Step) -> Reserved:
            reserved = step.reserve_single_statement(queue, asks) or verbs.reserve(step, queue, asks)
            if not reserved.deliveries[0]:
                self._loop.call_soon_threadsafe(self._hub.keep_awake)
            return reserved

        return partial(self._submit, QueuedStep(reserve, reply), line=queue)

    def ack(self, lease: Lease, reply: Reply[Moved | LeaseLost | None]) -> Send:
        queue, leases = lease.queue, (lease,)

        def ack(step: Step) -> Moved | LeaseLost | None:
            return (step.ack_single_statement(queue, leases) or verbs.ack(step, queue, leases))[0]

        return partial(self._submit, QueuedStep(ack, reply), line=queue)


class BlockingSqlite:
    """Implements `base.BlockingOneJob`. `announce` may be called in any thread."""

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
        done = self._run(single_statement.push, (queue, request, self._clock.now_ms()))
        if done is None:
            return None
        pushed, number = done
        if number:
            self._announce(news_of(number, 0, [Wake(queue, pushed.jobs[0].due_at)]))
        return pushed

    def reserve(self, queue: Queue, ask: Ask, orphan: Callable[[Delivery], None]) -> Reserved | None:
        return self._reserve(queue, ask, orphan)

    def ack_and_reserve(self, lease: Lease, ask: Ask, orphan: Callable[[Delivery], None]) -> Reserved | None:
        return self._reserve(lease.queue, ask, orphan, lease)

    def _reserve(
        self, queue: Queue, ask: Ask, orphan: Callable[[Delivery], None], done: Lease | None = None
    ) -> Reserved | None:
        now, token = self._clock.now_ms(), next(single_statement.tokens)
        try:
            return self._run(single_statement.reserve, (queue, ask, now, token, done))
        except DuetimeError:
            raise
        except BaseException:
            # The caller is interrupted, perhaps after it got a job.
            reserved = self._run(single_statement.reserved, (queue, ask, now, token), writes=False)
            for delivery in reserved.deliveries[0] if reserved else ():
                orphan(delivery)
            raise

    def ack(self, lease: Lease) -> Moved | None:
        return self._run(single_statement.ack, (lease, self._clock.now_ms()))

    def close(self) -> None:
        """Idempotent; waits for a call that is under way."""
        with self._guard.in_use:
            self._is_closed = True
        self._wait_until_open()
        self._guard.close()

    def _run(
        self, call: Callable[[sqlite3.Connection, *Ts], T | None], of: tuple[*Ts], *, writes: bool = True
    ) -> T | None:
        if self._opener is not None:
            self._wait_until_open()
        if self._connection is None:
            return None
        try:
            with self._guard.in_use:
                if self._is_closed or (writes and not self._write_lock.is_free()):
                    return None
                return call(self._connection, *of)
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
            single_statement.prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection
