"""The state that all connections of one listener share: the application, the limits, the time, the connections.

`now` and the Date header move once a tick (about a second): time limits are that coarse and never early, and no
request pays for a timer.
"""

import asyncio
import heapq
import logging
import resource
from collections import defaultdict
from collections.abc import Callable, Coroutine
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from starlette.types import ASGIApp

from duetime.http.balance import ConnectionBalance
from duetime.http.proxies import TrustedProxies
from duetime.model.ids import IdMaker
from duetime.model.settings import Settings

if TYPE_CHECKING:
    from duetime.http.connection import Connection
    from duetime.http.exchange import Exchange, FollowUp

log = logging.getLogger("duetime.http")

STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}

SMALL = 65_536
"""The largest body in bytes that counts as small."""
SPARE = 64
FRESH_S = 0.25
"""Seconds in which a new connection does not count as idle."""
FILES_FOR_OTHERS = 256
"""Files kept for other uses than connections: stores, the journal, logs, and clients that are refused."""
RETRY_AFTER_S = 1
TICK_S = 1.0
BLOCKS = 64
"""Sets of headers that are remembered."""
LEAST_TICK_S = 0.005

Headers = tuple[tuple[bytes, bytes], ...]


class HttpLimits(msgspec.Struct, frozen=True):
    """Limits for one client, in seconds and bytes."""

    head_bytes: int = 32_768
    """Request line and headers: this much is always accepted, one read more at most."""
    headers: int = 100
    head_s: float = 10
    """The time from a connection, or from the first byte of a request, to the end of its headers."""
    body_s: float = 10
    """A body may always take this long; after that it must arrive at `body_rate` bytes a second."""
    body_rate: int = 1024
    idle_s: float = 75
    """The time between two requests on one connection."""
    write_s: float = 30
    """The time in which a client reads nothing of its answer."""
    linger_s: float = 2
    """The time that a refused client has to read its answer."""
    connections: int = 16_384
    """Connections of one listener; SPARE more get one answer each."""


def limits_of(settings: Settings) -> HttpLimits:
    """The limits as they are set, with no more connections than this process can have files."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return HttpLimits(
        head_bytes=settings.max_header_size,
        headers=settings.max_headers,
        head_s=settings.header_timeout.total_seconds(),
        body_s=settings.body_timeout.total_seconds(),
        body_rate=max(1, settings.body_rate),
        idle_s=settings.idle_timeout.total_seconds(),
        write_s=settings.write_timeout.total_seconds(),
        connections=max(1, min(settings.max_connections, files - FILES_FOR_OTHERS)),
    )


class Budget:
    """Bytes that a process may keep in memory for its HTTP clients, one budget for all listeners.

    Request bodies are charged until they are answered, answers while their client does not read them, and pipelined
    requests while they wait. When the budget is spent, a request is refused with 503 before its body is read, so that
    memory stops growing whatever clients do. Large requests may use three quarters only: a few of them never lock out
    the many small ones. `held` is the sum of all charges; code that charges bytes subtracts them again.
    """

    __slots__ = ("held", "limit", "limit_for_large", "refused")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.limit_for_large = limit * 3 // 4
        self.held = 0
        self.refused = 0

    def charge(self, size: int, *, large: bool = False) -> bool:
        """False, and no charge, if there is no room for `size`."""
        held = self.held + size
        if held > (self.limit_for_large if large else self.limit):
            self.refused += 1
            return False
        self.held = held
        return True


class FastPath(Protocol):
    """Serves requests without a task, next to the application."""

    def knows(self, exchange: "Exchange") -> bool:
        """Returns whether `accept` may serve the request once its body is complete."""
        ...

    def accept(self, exchange: "Exchange") -> bool:
        """Serve a complete request: `Exchange.finish` answers it in a later turn of the event loop, never in the same
        one, so that requests that a client sends ahead do not nest. Returns False if the application has to serve it.
        """
        ...


RefusalBody = Callable[[bytes, int, str], tuple[bytes, bytes]]
"""Takes path, status and reason; answers content type and body."""


def plain_refusal(path: bytes, status: int, reason: str) -> tuple[bytes, bytes]:
    """The body of an error where no application defines one."""
    return b"application/json", msgspec.json.encode({"error": reason})


class Service:
    """One listener's shared state. Belongs to one event loop."""

    def __init__(
        self, app: ASGIApp, limits: HttpLimits, budget: Budget, balance: ConnectionBalance | None = None
    ) -> None:
        self.app = app
        self.limits = limits
        self.budget = budget
        self.balance = balance
        self.connections: set[Connection] = set()
        self.proxies: TrustedProxies | None = None
        self.fast_path: FastPath | None = None
        self.refusal_body: RefusalBody = plain_refusal
        self.spares: set[Connection] = set()
        self.parked = 0
        # An eighth of the connections is left to requests that do not wait for jobs.
        self.most_parked = max(1, limits.connections - max(1, limits.connections // 8))
        self.requests: set[Exchange | FollowUp] = set()
        self.answers: defaultdict[int, int] = defaultdict(int)
        self.draining = False
        self.empty = asyncio.Event()
        shortest = min(limits.head_s, limits.body_s, limits.idle_s, limits.write_s, limits.linger_s)
        self.tick_s = max(LEAST_TICK_S, min(TICK_S, shortest / 2))
        self.request_id = IdMaker().make
        self.clock = asyncio.get_running_loop().time
        self._blocks: dict[Headers, bytes] = {}
        self._loop = asyncio.get_running_loop()
        self.move_clock()

    def move_clock(self) -> None:
        self.now = self._loop.time()
        self.date_line = f"date: {formatdate(usegmt=True)}\r\n".encode()

    def begin(self, request: "Exchange | FollowUp", work: Coroutine[Any, Any, None]) -> None:
        """Run one request; the listener's drain waits for it, also when its client disconnects."""
        request.task = self._loop.create_task(work)
        self.requests.add(request)

    def end(self, request: "Exchange | FollowUp") -> None:
        self.requests.discard(request)
        if self.draining:
            self._check_empty()

    def add(self, client: "Connection") -> None:
        self.connections.add(client)
        if len(self.connections) - len(self.spares) > self.limits.connections:
            self.spares.add(client)
        self.publish_count()

    def may_stay(self, client: "Connection") -> bool:
        """Returns whether a connection stays open after its next answer. A spare one does if there is room now."""
        if client in self.spares and len(self.connections) - len(self.spares) < self.limits.connections:
            self.spares.discard(client)
        return client not in self.spares

    def publish_count(self) -> None:
        """Show the other processes how many clients this one has."""
        if self.balance is None:
            return
        if self.draining:
            self.balance.vacate()
        else:
            self.balance.publish(len(self.connections))

    def remove(self, client: "Connection") -> None:
        self.connections.discard(client)
        self.spares.discard(client)
        self.publish_count()
        if self.draining:
            self._check_empty()

    def is_full(self) -> bool:
        """Returns whether no further connection can be accepted. If no place is left, spare ones included, it first
        closes a sixteenth of all connections, those that have been idle longest.
        """
        limit = self.limits.connections
        return len(self.connections) >= limit + SPARE and not self._close_longest_idle(limit // 16 + 1)

    def _close_longest_idle(self, count: int) -> bool:
        idle = [
            (since, id(client), client) for client in self.connections if (since := client.idle_since()) is not None
        ]
        for _, _, client in heapq.nsmallest(count, idle):
            self.remove(client)
            client.close_if_idle()
        if idle:
            log.warning("connections_shed", extra={"count": min(count, len(idle)), "open": len(self.connections)})
        return bool(idle)

    def _check_empty(self) -> None:
        if not self.connections and not self.requests:
            self.empty.set()

    async def abort(self) -> None:
        """End a drain whose time is over: cancel the requests that are left and wait for them."""
        tasks = [request.task for request in self.requests if request.task is not None]
        for task in tasks:
            task.cancel()
        for client in list(self.connections):
            client.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)

    def header_block(self, headers: Headers) -> bytes:
        """The lines of headers that many answers share. None of them is about the length of the body."""
        block = self._blocks.get(headers)
        if block is None:
            block = b"".join([b"%b: %b\r\n" % header for header in headers])
            if not block.count(b"\n") == block.count(b"\r") == len(headers):
                raise RuntimeError("a response header holds a line break")
            if len(self._blocks) < BLOCKS:
                self._blocks[headers] = block
        return block

    def error(self, status: int, reason: str, path: bytes = b"") -> bytes:
        """A whole error answer of the server itself, without the application."""
        self.answers[status] += 1
        kind, body = self.refusal_body(path, status, reason)
        return b"%b%bX-Request-ID: %b\r\nconnection: close\r\n%bcontent-type: %b\r\n" % (
            STATUS_LINES[status],
            self.date_line,
            self.request_id().encode(),
            b"retry-after: %d\r\n" % RETRY_AFTER_S if status == 503 else b"",
            kind,
        ) + b"content-length: %d\r\n\r\n%b" % (len(body), body)
