"""Accepting connections from a listening socket that other processes may share.

A few are taken at a time, so that processes that listen side by side share a rush of clients; a server that is full
makes room by closing the client that has been idle longest, and leaves new ones in the kernel's queue while no client
is idle. At
the end the queue is emptied before the socket is closed: whoever got a connection gets an answer.
"""

import asyncio
import errno
import logging
import socket
from typing import Protocol

log = logging.getLogger("duetime.http")

AT_ONCE = 4
"""Connections taken before other processes, and this one's clients, have their turn."""
LAST_ONES = 4096
"""What is still taken from the queue of a socket that closes; more than any backlog."""
PAUSE_S = 0.25
"""The pause before the next accept when there is no room at all, or no file left for a connection."""
OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


YIELD_S = 0.003
YIELDS = 5
"""How often, and for how long, a process that has more clients than another leaves the next ones to it."""


class AcceptorHost(Protocol):
    """The listener, as its acceptors see it."""

    def is_packed(self) -> bool:
        """There is no room for one more client, and none could be made."""
        ...

    def is_ahead(self) -> bool:
        """Another process that listens here has clearly fewer clients."""
        ...

    def connection(self) -> asyncio.Protocol: ...


class Acceptor:
    """Belongs to one event loop."""

    def __init__(self, sock: socket.socket, host: AcceptorHost) -> None:
        self._socket = sock
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._starting: set[asyncio.Task[object]] = set()
        self._resume: asyncio.TimerHandle | None = None
        self._yields = 0

    def start(self) -> None:
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket.fileno(), self._accept)

    async def close(self) -> None:
        """Take what is in the queue, then close. Returns when all of them are connections."""
        if self._socket.fileno() < 0:
            return
        self._take(LAST_ONES)
        self._loop.remove_reader(self._socket.fileno())
        if self._resume is not None:
            self._resume.cancel()
        self._socket.close()
        if self._starting:
            await asyncio.gather(*self._starting, return_exceptions=True)

    def _accept(self) -> None:
        if self._yields < YIELDS and self._host.is_ahead():
            self._yields += 1
            self._pause(YIELD_S)
            return
        self._yields = 0
        self._take(AT_ONCE)

    def _take(self, count: int) -> None:
        for _ in range(count):
            if self._host.is_packed():
                self._pause()
                return
            try:
                client, _ = self._socket.accept()
            except ConnectionAbortedError:  # that client has gone; others may wait behind it
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
            await self._loop.connect_accepted_socket(self._host.connection, client)
        except OSError:  # the client has gone already
            client.close()

    def _pause(self, seconds: float = PAUSE_S) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._resume = self._loop.call_later(seconds, self.start)
