"""The single-job calls (`base.OneJob`) of PostgreSQL: a push of one job without a thread, in one statement.

The statement goes out on a connection of the event loop, in the turn in which the caller asks. It is a transaction of
its own, without a begin and a commit. A push that is unusual, or meets another transaction that changes the queue, is
served by the general verb. So are reserves and acks.
"""

import asyncio
import logging
import os
import select
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from time import monotonic
from typing import Any

import psycopg
from psycopg import pq

from duetime.model.errors import DuetimeError, LeaseLost, StoreUnavailable
from duetime.model.job import Lease, Moved
from duetime.model.names import Queue
from duetime.stores.base import Ask, BlockingOneJob, Push, Pushed, Reserved, ResultSink, Send
from duetime.stores.one_job import BACKOFF_S, FastPathBackoff, GeneralCalls
from duetime.stores.postgres.connection import PostgresLink, translate
from duetime.stores.postgres.session import Encoded
from duetime.stores.postgres.single_statement import PUSH_ONE, is_usual_push, one_job_values, read_pushed_one
from duetime.stores.sql.server_step import STEP_S
from duetime.stores.sql.wake import AnnouncingHub

log = logging.getLogger("duetime.postgres")

_NAME = PUSH_ONE.encode()

PushVerb = Callable[[Queue, Sequence[Push]], Coroutine[Any, Any, Sequence[Pushed | DuetimeError]]]
Results = list[pq.abc.PGresult]
Ended = Callable[[Results | None], None]
"""Called once, with all results, or with None if the connection was lost before they were complete."""


class LoopConnection:
    """A connection that sends one prepared statement at a time from the event loop, and never blocks it."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self._connection, self._pgconn = connection, connection.pgconn
        self._loop = asyncio.get_running_loop()
        # libpq closes its own descriptor by itself when the connection is lost.
        self._descriptor = os.dup(self._pgconn.socket)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)
        self._results: Results = []
        self._ended: Ended | None = None
        self._answer_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.is_closed = False
        self._pgconn.nonblocking = 1
        self._loop.add_reader(self._descriptor, self._read)

    def is_ready(self) -> bool:
        """Whether a statement can be sent. Notices that the server has ended the connection while it was idle."""
        while not self._ended and not self.is_closed and self._poll.poll(0):
            self._read()
        return not self._ended and not self.is_closed

    def send(self, name: bytes, encoded: Sequence[Encoded], ended: Ended) -> None:
        """`ended` is called in a later turn of the event loop."""
        self._ended, self._results = ended, []
        self._answer_until = self._loop.time() + STEP_S
        if self._timer is None:
            self._timer = self._loop.call_at(self._answer_until, self._check_time)
        values, _, formats = zip(*encoded, strict=True)
        try:
            self._pgconn.send_query_prepared(name, values, formats, pq.Format.BINARY)
            if self._pgconn.flush():
                self._loop.add_writer(self._descriptor, self._flush)
        except psycopg.Error:
            self._loop.call_soon(self.close)

    def _check_time(self) -> None:
        """One timer serves many statements: to set one for each took longer than to encode the push."""
        self._timer = None
        if self._ended and self._loop.time() >= self._answer_until:
            self.close()
        elif self._ended:
            self._timer = self._loop.call_at(self._answer_until, self._check_time)

    def _flush(self) -> None:
        try:
            if not self._pgconn.flush():
                self._loop.remove_writer(self._descriptor)
        except psycopg.Error:
            self.close()

    def _read(self) -> None:
        try:
            self._pgconn.consume_input()
            while not self._pgconn.is_busy():
                result = self._pgconn.get_result()
                if result is None:
                    self._end(self._results)
                    break
                self._results.append(result)
        except psycopg.Error:
            self.close()
        if self._pgconn.status == pq.ConnStatus.BAD:
            self.close()

    def _end(self, results: Results | None) -> None:
        ended, self._ended = self._ended, None
        if ended:
            ended(results)

    def close(self) -> None:
        """Idempotent. A statement that is under way ends as one whose connection was lost."""
        if not self.is_closed:
            self.is_closed = True
            self._loop.remove_reader(self._descriptor)
            self._loop.remove_writer(self._descriptor)
            os.close(self._descriptor)
            if self._timer:
                self._timer.cancel()
            self._connection.close()
        self._end(None)


class PostgresOneJob:
    """Implements `base.OneJob`. The connection is opened by the first call, which is served by the verb.

    `push` is that verb, which also serves what the statement declined.
    """

    def __init__(self, link: PostgresLink, hub: AnnouncingHub, push: PushVerb) -> None:
        self._link, self._hub, self._push = link, hub, push
        self._backoff, self._general_calls = FastPathBackoff(), GeneralCalls()
        self._connection: LoopConnection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._open_after = 0.0
        self._is_closed = False

    def push(self, queue: Queue, request: Push, reply: ResultSink[Sequence[Pushed | DuetimeError]]) -> Send | None:
        known = self._link.known_values(queue)
        if known is None or self._backoff.has(PUSH_ONE, queue) or not is_usual_push([request]):
            return None
        encoded = self._link.encode(PUSH_ONE, {**known, **one_job_values(request.jobs[0])})
        connection = self._ready_connection(encoded)
        if connection is None:
            return None

        def ended(results: Results | None) -> None:
            if results is None or not _is_sure(results):
                reply.set_exception(
                    StoreUnavailable("the connection to PostgreSQL was lost during a push", unknown=True)
                )
            elif results[0].ntuples:
                pushed, wakes = read_pushed_one(queue, [request], _numbers(results[0]))
                if wakes:
                    self._hub.announce_in_loop(wakes, 0)
                reply.set_result(pushed)
            else:
                # The statement has changed nothing, or was refused. The verb finds out why.
                if results[0].status != pq.ExecStatus.TUPLES_OK:
                    connection.close()  # it may lead to the old primary of a failover
                self._backoff.add(PUSH_ONE, queue)
                self._general_calls.run(self._push(queue, [request]), reply)

        return partial(connection.send, _NAME, encoded, ended)

    def reserve(self, queue: Queue, ask: Ask, reply: ResultSink[Reserved]) -> None:
        return None

    def ack(self, lease: Lease, reply: ResultSink[Sequence[Moved | LeaseLost | StoreUnavailable | None]]) -> None:
        return None

    def blocking(self) -> BlockingOneJob | None:
        return None

    async def close(self) -> None:
        self._is_closed = True
        if self._opening:
            await asyncio.wait([self._opening])
        if self._connection:
            self._connection.close()

    def _ready_connection(self, encoded: Sequence[Encoded]) -> LoopConnection | None:
        if self._connection and self._connection.is_ready():
            return self._connection
        is_lost = self._connection is None or self._connection.is_closed
        if is_lost and not self._opening and not self._is_closed and monotonic() >= self._open_after:
            self._opening = asyncio.get_running_loop().create_task(self._open([kind for _, kind, _ in encoded]))
        return None

    async def _open(self, types: Sequence[int]) -> None:
        try:
            connection = await asyncio.to_thread(self._link.connect_prepared, PUSH_ONE, types)
            self._connection = LoopConnection(connection)
        except psycopg.Error as error:
            self._open_after = monotonic() + BACKOFF_S
            log.warning("postgres_loop_connection_failed", extra={"error": str(translate(error))})
        finally:
            self._opening = None


def _is_sure(results: Results) -> bool:
    """Whether the statement ended well, or the server itself refused it. An error after its end concerns the commit."""
    return len(results) == 1 and (
        results[0].status == pq.ExecStatus.TUPLES_OK or results[0].error_field(pq.DiagnosticField.SQLSTATE) is not None
    )


def _numbers(result: pq.abc.PGresult) -> list[int | None]:
    """The values of the first row, all of them integers or null, in binary form."""
    found = (result.get_value(0, column) for column in range(result.nfields))
    return [None if value is None else int.from_bytes(value, "big", signed=True) for value in found]
