"""A listener: sockets that accept, and the life of all their connections.

It takes bound sockets, so that a supervisor can hand the same ones to several processes. A server that is full makes
room by closing the client that has been idle longest, and leaves new ones in the kernel's queue while no client is
idle. It stops in bounded time: the queue is emptied, so that every client that got a connection gets an answer, parked
waits end, answers under way are finished, and requests that remain at the deadline are aborted.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Sequence

from starlette.types import ASGIApp

from duetime.duties import Rounds, run_duty
from duetime.http.balance import ConnectionBalance
from duetime.http.connection import Connection
from duetime.http.service import Budget, HttpLimits, Service

log = logging.getLogger("duetime.http")

BUDGET = 128 * 1_048_576
"""The memory budget in bytes, where none is given."""
IDLE_GRACE_S = 0.5
"""How long a drained connection without a request stays open: a request may be on its way."""


AT_ONCE = 4
"""Connections accepted in a row, before other processes and the clients of this one get a turn."""
LAST_ONES = 4096
"""Connections accepted from the queue of a socket that closes; more than any backlog."""
PAUSE_S = 0.25
"""The pause before the next accept when there is no room at all, or no file left for a connection."""
OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


YIELD_S = 0.003
YIELDS = 5
"""How often, and for how long, a process with more clients leaves new ones to another process."""


class Acceptor:
    """Accepts from one socket, which other processes may share. Belongs to one event loop.

    It accepts a few connections at a time, so that processes that listen to the same socket share a rush of clients.
    """

    def __init__(self, sock: socket.socket, service: Service) -> None:
        self._socket = sock
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._starting: set[asyncio.Task[object]] = set()
        self._resume: asyncio.TimerHandle | None = None
        self._yields = 0

    def start(self) -> None:
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket.fileno(), self._accept)

    async def close(self) -> None:
        """Accept what is in the kernel's queue, then close. Returns when all of them are connections."""
        if self._socket.fileno() < 0:
            return
        self._accept_some(LAST_ONES)
        self._loop.remove_reader(self._socket.fileno())
        if self._resume is not None:
            self._resume.cancel()
        self._socket.close()
        if self._starting:
            await asyncio.gather(*self._starting, return_exceptions=True)

    def _accept(self) -> None:
        balance = self._service.balance
        if self._yields < YIELDS and balance is not None and balance.is_ahead():
            self._yields += 1
            self._pause(YIELD_S)
            return
        self._yields = 0
        self._accept_some(AT_ONCE)

    def _accept_some(self, count: int) -> None:
        for _ in range(count):
            if self._service.is_full():
                self._pause()
                return
            try:
                client, _ = self._socket.accept()
            except ConnectionAbortedError:  # that client disconnected; others may wait behind it
                continue
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in OUT_OF_FILES:
                    raise
                log.error("cannot_accept", extra={"error": error.strerror})
                self._pause()
                return
            client.setblocking(False)
            task = self._loop.create_task(self._connect(client))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _connect(self, client: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: Connection(self._service), client)
        except OSError:  # the client disconnected already
            client.close()

    def _pause(self, seconds: float = PAUSE_S) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._resume = self._loop.call_later(seconds, self.start)


class Listener:
    """Serves between `start` and `stop`. Belongs to one event loop."""

    def __init__(
        self,
        app: ASGIApp,
        sockets: Sequence[socket.socket],
        *,
        limits: HttpLimits | None = None,
        budget: Budget | None = None,
        balance: ConnectionBalance | None = None,
    ) -> None:
        self._service = Service(app, limits or HttpLimits(), budget or Budget(BUDGET), balance)
        self._acceptors = [Acceptor(sock, self._service) for sock in sockets]
        self._watch: asyncio.Task[None] | None = None

    @property
    def service(self) -> Service:
        """The state that its connections share; metrics read it."""
        return self._service

    async def start(self) -> None:
        self._service.publish_count()
        for acceptor in self._acceptors:
            acceptor.start()
        limits = Rounds("limits of connections", self._check_limits)
        first_after_s = self._service.tick_s
        self._watch = asyncio.create_task(run_duty(limits, first_after_s=first_after_s, survives_bugs=True))

    async def stop(self, grace_s: float) -> None:
        """Drain for at most `grace_s` seconds."""
        service = self._service
        service.draining = True
        service.publish_count()
        for acceptor in self._acceptors:
            await acceptor.close()
        for client in list(service.connections):
            client.drain()
        if service.connections or service.requests:
            await self._wait_empty(grace_s)
        if self._watch is not None:
            self._watch.cancel()

    async def _wait_empty(self, grace_s: float) -> None:
        service = self._service
        idle_grace = asyncio.get_running_loop().call_later(min(IDLE_GRACE_S, grace_s / 2), self._close_idle)
        try:
            async with asyncio.timeout(grace_s):
                await service.empty.wait()
        except TimeoutError:
            await service.abort()
        finally:
            idle_grace.cancel()

    def _close_idle(self) -> None:
        for client in list(self._service.connections):
            client.close_if_idle()

    async def _check_limits(self) -> float:
        service = self._service
        service.move_clock()
        for client in list(service.connections):
            client.watch(service.now)
        return service.tick_s
