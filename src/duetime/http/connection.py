"""HTTP/1.1 on a socket: one Connection per client.

llhttp (through httptools) parses. This module adds what a queue server needs: it notices a disconnect while a long poll
is parked, also behind pipelined requests, and it bounds the time for head, body, idling and writing, and the memory for
each client. docs/decisions/003-http-server.md says why Duetime has its own server.
"""

import asyncio
import re
import socket
import struct
from typing import Any

import httptools

from duetime.http.exchange import Exchange, RequestRefused, absolute_target
from duetime.http.proxies import HeaderList
from duetime.http.service import FRESH_S, Service

SLICE = 16_384
"""Bytes parsed at a time: bounds how many pipelined requests one read can create."""
HIGH_WATER = 65_536
"""Bytes of a body, or of the requests after the current one, that are kept before reading pauses."""
LINGER_BYTES = 16 * 1_048_576
"""Bytes that a refused client may still send before its connection is aborted."""
QUEUED_COST = 2048
"""Bytes that are charged for a pipelined request, without its body."""
FULL = "the server is overloaded; try again in a moment"
NOT_HTTP = "the request is not valid HTTP"

LENGTHS = frozenset({b"content-length", b"transfer-encoding"})
TCP_INFO = struct.Struct("B23xI")
"""The connection's state and the number of segments that were sent and not acknowledged (linux/tcp.h)."""
TCP_CLOSED = 7

_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")


class Connection(asyncio.Protocol):
    """Answers in the order of the requests, one at a time.

    `_exchange` is the request being answered, `_queued` are requests that came with it in one read, and `_held` are
    bytes behind those, unparsed: reading does not stop for them unless they are many, so that a FIN is seen.
    `_receiving` is the request whose body is being read, `_unbegun` the one whose head was in the current read.
    """

    __slots__ = (
        "_charged",
        "_deadline",
        "_exchange",
        "_headers",
        "_held",
        "_idle_from",
        "_in_head",
        "_linger_left",
        "_lingering",
        "_overhead",
        "_parser",
        "_queued",
        "_read_paused",
        "_received",
        "_receiving",
        "_replayed",
        "_service",
        "_stalled_at",
        "_stalled_size",
        "_unbegun",
        "_unsent",
        "_upgrade",
        "_url",
        "_writable",
        "client",
        "proxies",
        "server",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, service: Service) -> None:
        self._service = service
        self._parser = httptools.HttpRequestParser(self)
        self._exchange: Exchange | None = None
        self._unbegun: Exchange | None = None
        self._receiving: Exchange | None = None
        self._queued: list[Exchange] = []
        self._held = bytearray()
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._in_head = self._upgrade = self._replayed = False
        self._overhead = 0
        self._charged = self._unsent = 0
        self._lingering = False
        self._linger_left = 0
        self._read_paused = False
        self._writable: asyncio.Event | None = None
        self._received: asyncio.Future[bool] | None = None
        self._stalled_at = 0.0
        self._stalled_size = 0
        self._idle_from = service.clock() + FRESH_S
        self._deadline = service.now + service.limits.head_s

    # --- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # pyright: ignore[reportAttributeAccessIssue]  # a stream's transport, not its base
        self.client = _address(transport.get_extra_info("peername"))
        self.server = _address(transport.get_extra_info("sockname"))
        proxies = self._service.proxies
        self.proxies = proxies if proxies is not None and proxies.trusts(self.client) else None
        self._service.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._written()
        if self._received is not None:
            self._received.set_result(exc is None and _received_all(self.transport))
        if self._exchange is not None:
            self._exchange.lose()
        for exchange in self._queued:
            exchange.refund()
        self._service.budget.held -= self._charged
        self._charged = 0
        self._service.remove(self)
        del self._parser  # it refers to us: a cycle that the garbage collector would have to find

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            self._linger_left -= len(data)
            if self._linger_left < 0:
                self.transport.abort()
        elif len(data) <= SLICE:
            self._feed(data)
        else:
            self._feed_slices(data)

    def pause_writing(self) -> None:
        self._writable = asyncio.Event()
        self._stalled_at, self._stalled_size = self._service.now, self.transport.get_write_buffer_size()
        self._unsent = self._stalled_size
        self._service.budget.held += self._unsent  # even if that exceeds the budget: these bytes are in memory already

    def resume_writing(self) -> None:
        self._written()
        if self._exchange is None and not self._lingering:
            self._serve_next()

    def _written(self) -> None:
        if self._writable is not None:
            self._writable.set()
            self._writable = None
            self._service.budget.held -= self._unsent
            self._unsent = 0

    # --- the parser's side

    def on_message_begin(self) -> None:
        self._url = b""
        if self._headers:
            self._headers = []
        self._in_head = True
        self._overhead = 0
        if self._received is not None:
            self._received.set_result(True)
            self._received = None
        if self._exchange is None:
            self._deadline = self._service.now + self._service.limits.head_s

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._charged:
            self._charge_unparsed()
        if self._replayed:
            return
        if len(self._headers) > self._service.limits.headers:
            raise RequestRefused(431, "the request has too many headers")
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise RequestRefused(505, "the HTTP version must be 1.1 or 1.0")
        check_head(self._headers, version)
        if not self._url.startswith(b"/"):
            absolute_target(self._url)
        head = self._parser.get_method(), self._url, version, self._headers
        self._headers = []  # trailers go nowhere
        self._upgrade = self._parser.should_upgrade()
        service = self._service
        is_spare = bool(service.spares) and not service.may_stay(self)
        keep = version == "1.1" and self._parser.should_keep_alive() and not service.draining and not is_spare
        exchange = self._receiving = Exchange(self, service, head, keep=keep)
        if is_spare:
            exchange.is_spare = True
        if self._exchange is None:
            self._exchange = self._unbegun = exchange
        else:
            if not exchange.charge(QUEUED_COST):
                raise RequestRefused(503, FULL)
            self._queued.append(exchange)

    def on_body(self, body: bytes) -> None:
        exchange = self._receiving
        if exchange is None:
            raise RequestRefused(400, NOT_HTTP)
        if not exchange.feed(body):
            raise RequestRefused(503, FULL)
        self._overhead -= len(body)
        if exchange.buffered > HIGH_WATER:
            self._pause_reading()

    def on_message_complete(self) -> None:
        if not self._upgrade and self._receiving is not None:
            self._receiving.end()
            self._receiving = None

    # --- in

    def _buffer(self, data: bytes | memoryview) -> None:
        self._held += data
        if not self._charge_unparsed():
            self._refuse(503, FULL)
        elif len(self._held) > HIGH_WATER:
            self._pause_reading()

    def _charge_unparsed(self) -> bool:
        """Charge the memory budget for the unparsed bytes there are now; False if they do not fit."""
        kept = len(self._held) + (self._overhead if self._in_head else 0)
        more, self._charged = kept - self._charged, kept
        if more <= 0:
            self._service.budget.held += more
        elif not self._service.budget.charge(more):
            self._charged -= more
            return False
        return True

    def _feed_slices(self, data: bytes | bytearray) -> None:
        view = memoryview(data)
        for at in range(0, len(view), SLICE):
            if self._lingering:
                return
            if self._held:  # the slice before this one stays unparsed
                self._buffer(view[at:])
                return
            self._feed(view[at : at + SLICE])

    def _feed(self, data: bytes | memoryview) -> None:
        """Parse, then begin to serve the request whose head was in these bytes; its body may be in them, too. While
        the answer to a complete request is under way, or the client does not read earlier answers, bytes stay unparsed.
        """
        exchange = self._exchange
        if self._writable is not None if exchange is None else not exchange.more_body:
            self._buffer(data)
            return
        size = len(data)
        refusal: RequestRefused | None = None
        try:
            while data:
                try:
                    self._parser.feed_data(data)
                    break
                except httptools.HttpParserUpgrade as upgrade:
                    self._decline_upgrade()
                    data = data[upgrade.args[0] :]
                if data and self._receiving is None:
                    self._buffer(data)
                    break
        except httptools.HttpParserError as error:
            cause = error.__context__
            refusal = cause if isinstance(cause, RequestRefused) else RequestRefused(400, NOT_HTTP)
        if self._unbegun is not None:
            exchange, self._unbegun = self._unbegun, None
            exchange.begin()
        if refusal is not None:
            self._refuse(refusal.status, refusal.reason)
        elif self._in_head or (self._exchange is not None and self._exchange.more_body):
            self._bound_overhead(size)

    def _decline_upgrade(self) -> None:
        """Ignores a request to change the protocol, because the server speaks no other.

        The parser treats the bytes after the head as another protocol. If they were parsed as the next request, a body
        could smuggle one in. So a new parser gets the head again, reduced to the headers that define the body's length.
        """
        self._upgrade = False
        self._parser = httptools.HttpRequestParser(self)
        headers = self._receiving.headers if self._receiving else []
        framing = [b"%b: %b\r\n" % header for header in headers if header[0] in LENGTHS]
        self._replayed = True
        self._parser.feed_data(b"PUT / HTTP/1.1\r\n%b\r\n" % b"".join(framing))
        self._replayed = False

    def _bound_overhead(self, size: int) -> None:
        """The parser collects an unfinished header or trailer, and chunk sizes are free: bound all that is no body."""
        self._overhead += size
        allowed = self._service.limits.head_bytes
        if not self._in_head and self._exchange is not None:
            allowed += SLICE + 8 * self._exchange.received
        if self._overhead > allowed:
            self._refuse(431, "the headers are too large")
        elif self._in_head and not self._charge_unparsed():
            self._refuse(503, FULL)

    def _pause_reading(self) -> None:
        if not self._read_paused and not self.transport.is_closing():
            self._read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self._read_paused and not self.transport.is_closing():
            self._read_paused = False
            self.transport.resume_reading()

    # --- out

    async def writable(self) -> None:
        """Wait while the client reads more slowly than we write."""
        if self._writable is not None:
            await self._writable.wait()

    def answer_received(self) -> "asyncio.Future[bool]":
        """Returns whether the client received the whole answer. Done when it sends another request or disconnects."""
        if self._received is None:
            self._received = asyncio.get_running_loop().create_future()
        return self._received

    def answered(self, exchange: Exchange) -> None:
        """The whole answer is written."""
        self._exchange = None
        if exchange.keep:
            self._serve_next()
        else:
            if not exchange.more_body:
                self._idle_from = 0.0  # all of its request was read, so closing first loses nothing
            self._linger()

    def _serve_next(self) -> None:
        if self._writable is not None:  # no further answers for a client that does not read the earlier ones
            return
        self._idle_from = self._service.clock()
        if self._queued:
            self._exchange = self._queued.pop(0)
            self._exchange.begin()
        else:
            limits = self._service.limits
            self._deadline = self._service.now + (limits.head_s if self._in_head else limits.idle_s)
        if self._held and (self._exchange is None or self._exchange.more_body):
            held, self._held = self._held, bytearray()
            self._charge_unparsed()
            self._feed_slices(held)
        if self._read_paused and len(self._held) <= HIGH_WATER:
            self.resume_reading()

    def _refuse(self, status: int, reason: str) -> None:
        """End with an error of the server itself; complete requests that came before it are answered first."""
        if self._queued and self._queued[-1].more_body:
            self._queued.pop().refund()  # it is incomplete and gets no answer; those before it get theirs
        exchange = self._queued[-1] if self._queued else self._exchange
        if exchange is not None and not exchange.more_body:
            exchange.keep = False
            self._held.clear()
            self._charge_unparsed()
            self._lingering, self._linger_left = True, LINGER_BYTES
            return
        if exchange is None or not exchange.head_sent:
            self.transport.write(self._service.error(status, reason, self._url))
        if exchange is not None:
            exchange.lose()
        self._exchange = None
        self._linger()

    def refuse_answer(self) -> None:
        """Answer 503 in place of an answer that has not begun, and close."""
        if self._exchange is None or self._exchange.head_sent:
            self.transport.abort()
            return
        self.transport.write(self._service.error(503, FULL, self._exchange.url.partition(b"?")[0]))
        self._exchange = None
        self._linger()

    def _linger(self) -> None:
        """Close our side and read on for a moment: closing over unread input would destroy the answer."""
        if self.transport.is_closing():
            return
        self._lingering, self._linger_left = True, LINGER_BYTES
        self._deadline = self._service.now + self._service.limits.linger_s
        self.resume_reading()
        if self._service.draining:
            self.transport.close()
        else:
            self.transport.write_eof()

    # --- the listener's side

    def watch(self, now: float) -> None:
        exchange = self._exchange
        if self.transport.is_closing() or self._writable is not None:
            self._watch_writing(now)
        elif exchange is None:
            if now > self._deadline + self._service.tick_s:
                self._end_late()
        elif exchange.more_body and not self._read_paused:
            limits = self._service.limits
            if now > exchange.started_at + self._service.tick_s + limits.body_s + exchange.received / limits.body_rate:
                self._refuse(408, "the body took too long")

    def _end_late(self) -> None:
        if self._in_head and not self._lingering:
            self._refuse(408, "the headers took too long")
        else:
            self.transport.close()

    def _watch_writing(self, now: float) -> None:
        size = self.transport.get_write_buffer_size()
        if not self._stalled_at or size < self._stalled_size:
            self._stalled_at, self._stalled_size = now, size
        elif now > self._stalled_at + self._service.tick_s + self._service.limits.write_s:
            self.transport.abort()

    def drain(self) -> None:
        if self._exchange is not None:
            self._exchange.drain()
        for exchange in self._queued:
            exchange.drain()

    def idle_since(self) -> float | None:
        busy = self._exchange is not None or self._writable is not None or (self._lingering and self._idle_from)
        if busy or self.transport.is_closing() or self._idle_from > self._service.clock():
            return None
        return self._idle_from

    def close_if_idle(self) -> None:
        if self._exchange is None:
            self.transport.close()


def check_head(headers: HeaderList, version: str) -> None:
    """Raises RequestRefused: 400 for a Host that is missing, doubled or invalid, 501 for a coding we cannot undo.

    The parser decodes only the chunks of `gzip, chunked`, and would pass on the compressed bytes as the body.
    """
    hosts = codings = 0
    for name, value in headers:
        if name == b"host":
            hosts += 1
            if _HOST.fullmatch(value) is None:
                raise RequestRefused(400, "the Host header is not valid")
        elif name == b"transfer-encoding":
            codings += 1
            if codings > 1 or value.strip().lower() != b"chunked":
                raise RequestRefused(501, "the transfer coding must be chunked")
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise RequestRefused(400, "the request must have exactly one Host header")


def _received_all(transport: asyncio.Transport) -> bool:
    """Returns whether the client acknowledged every byte and then closed in order.

    A client that closed before our bytes arrived also closed in order; its kernel then resets the connection. The event
    loop has already seen the end of the stream and does not report the reset, but the socket shows it.
    """
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return True
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size)
        state, unacknowledged = TCP_INFO.unpack(info)
    except (AttributeError, OSError, struct.error):  # not on Linux
        return True
    return state != TCP_CLOSED and not unacknowledged


def _address(name: Any) -> tuple[str, int] | None:
    """Host and port of an IP socket; a Unix socket's client has none."""
    return name[:2] if isinstance(name, tuple) else None  # pyright: ignore[reportUnknownVariableType]
