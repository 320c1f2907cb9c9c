"""HTTP/1.1 on a socket: one Connection per client.

llhttp (through httptools) parses; what a queue server needs around it is here: a client that goes is noticed while its
long poll is parked, also behind pipelined requests; head, body, idle and write time are bounded, and so is everything
that is kept in memory for a client. Why it is ours: docs/decisions/003-http-server.md.
"""

import asyncio
import socket
import struct
from typing import Any
from urllib.parse import unquote

import httptools

from duetime.http.exchange import Exchange
from duetime.http.request_head import RequestRefused, absolute_target, check_head
from duetime.http.service import FRESH_S, Service

SLICE = 16_384
"""Bytes parsed at a time: bounds how many pipelined requests one read can create."""
HIGH_WATER = 65_536
"""Bytes of a body, or of requests behind the present one, that are kept before reading pauses."""
LINGER_BYTES = 16 * 1_048_576
"""What a refused client may still send before it is cut off."""
QUEUED_COST = 2048
"""What a request that was sent ahead takes, without its body."""
FULL = "the server has too much to do; try again in a moment"

LENGTHS = frozenset({b"content-length", b"transfer-encoding"})
TCP_INFO = struct.Struct("B23xI")
"""The connection's state and the number of segments that were sent and not acknowledged (linux/tcp.h)."""
TCP_CLOSED = 7
ASGI = {"version": "3.0", "spec_version": "2.4"}


class Connection(asyncio.Protocol):
    """Answers in the order of the requests, one at a time.

    `_exchange` is the request being answered, `_queued` are requests that came with it in one read, and `_held` are
    bytes behind those, unparsed: reading does not stop for them unless they are many, so that a FIN is seen.
    """

    __slots__ = (
        "_charged",
        "_client",
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
        "_proxies",
        "_queued",
        "_read_paused",
        "_replayed",
        "_server",
        "_service",
        "_stalled_at",
        "_stalled_size",
        "_taken",
        "_transport",
        "_unbegun",
        "_unsent",
        "_upgrade",
        "_url",
        "_writable",
    )

    _transport: asyncio.Transport

    def __init__(self, service: Service) -> None:
        self._service = service
        self._parser = httptools.HttpRequestParser(self)
        self._exchange: Exchange | None = None
        self._unbegun: Exchange | None = None
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
        self._taken: asyncio.Future[bool] | None = None
        self._stalled_at = 0.0
        self._stalled_size = 0
        self._idle_from = service.clock() + FRESH_S
        self._deadline = service.after(service.limits.head_s)

    # --- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # pyright: ignore[reportAttributeAccessIssue]  # a stream's transport, not its base
        self._client = _address(transport.get_extra_info("peername"))
        self._server = _address(transport.get_extra_info("sockname"))
        proxies = self._service.proxies
        self._proxies = proxies if proxies is not None and proxies.trusts(self._client) else None
        self._service.welcome(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._written()
        if self._taken is not None:
            self._taken.set_result(exc is None and _took_all(self._transport))
        if self._exchange is not None:
            self._exchange.lose()
        for exchange in self._queued:
            exchange.settle()
        self._service.budget.give(self._charged)
        self._charged = 0
        self._service.forget(self)
        del self._parser  # it refers to us: a cycle that the garbage collector would have to find

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            self._linger_left -= len(data)
            if self._linger_left < 0:
                self._transport.abort()
        elif self._writable is not None if self._exchange is None else not self._exchange.more_body:
            self._hold(data)
        elif len(data) <= SLICE:
            self._feed(data)
        else:
            self._feed_slices(data)

    def pause_writing(self) -> None:
        self._writable = asyncio.Event()
        self._stalled_at, self._stalled_size = self._service.now, self._transport.get_write_buffer_size()
        self._unsent = self._stalled_size
        self._service.budget.force(self._unsent)

    def resume_writing(self) -> None:
        self._written()
        if self._exchange is None and not self._lingering:
            self._go_on()

    def _written(self) -> None:
        if self._writable is not None:
            self._writable.set()
            self._writable = None
            self._service.budget.give(self._unsent)
            self._unsent = 0

    # --- the parser's side

    def on_message_begin(self) -> None:
        self._url = b""
        if self._headers:
            self._headers = []
        self._in_head = True
        self._overhead = 0
        if self._taken is not None:
            self._taken.set_result(True)
            self._taken = None
        if self._exchange is None:
            self._deadline = self._service.after(self._service.limits.head_s)

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._charged:
            self._settle()
        if self._replayed:
            return
        if len(self._headers) > self._service.limits.headers:
            raise RequestRefused(431, "there are too many headers")
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise RequestRefused(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
        check_head(self._headers, version)
        if not self._url.startswith(b"/"):
            absolute_target(self._url)
        head = self._parser.get_method(), self._url, version, self._headers
        self._headers = []  # trailers go nowhere
        self._upgrade = self._parser.should_upgrade()
        service = self._service
        is_spare = bool(service.spares) and not service.settle_in(self)
        keep = version == "1.1" and self._parser.should_keep_alive() and not service.draining and not is_spare
        exchange = Exchange(self, service, head, keep=keep)
        if is_spare:
            exchange.is_spare = True
        if self._exchange is None:
            self._exchange = self._unbegun = exchange
        else:
            if not exchange.charge(QUEUED_COST):
                raise RequestRefused(503, FULL)
            self._queued.append(exchange)

    def on_body(self, body: bytes) -> None:
        exchange = self._latest()
        if not exchange.feed(body):
            raise RequestRefused(503, FULL)
        self._overhead -= len(body)
        if exchange.buffered > HIGH_WATER:
            self._pause_reading()

    def on_message_complete(self) -> None:
        if not self._upgrade:
            self._latest().end()

    def scope_of(self, exchange: Exchange) -> dict[str, Any]:
        raw_path, _, query = exchange.url.partition(b"?")
        if not raw_path.startswith(b"/"):
            raw_path, query = absolute_target(exchange.url)
        path, headers = raw_path.decode("utf-8", "replace"), exchange.headers
        return {
            "type": "http",
            "asgi": ASGI,
            "http_version": exchange.version,
            "method": exchange.method.decode("ascii"),
            "scheme": "http" if self._proxies is None else self._proxies.scheme_of(headers),
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": headers,
            "client": self._client if self._proxies is None else self._proxies.client_of(headers, self._client),
            "server": self._server,
            "state": {"request_id": exchange.request_id},
            "extensions": {"duetime.exchange": exchange},
        }

    def _latest(self) -> Exchange:
        exchange = self._queued[-1] if self._queued else self._exchange
        if exchange is None:
            raise RequestRefused(400, "this is not HTTP")
        return exchange

    # --- in

    def _hold(self, data: bytes | memoryview) -> None:
        self._held += data
        if not self._settle():
            self._refuse(503, FULL)
        elif len(self._held) > HIGH_WATER:
            self._pause_reading()

    def _settle(self) -> bool:
        """Charges the unparsed bytes to the memory budget; False if they do not fit."""
        kept = len(self._held) + (self._overhead if self._in_head else 0)
        more, self._charged = kept - self._charged, kept
        if more <= 0:
            self._service.budget.give(-more)
        elif not self._service.budget.take(more):
            self._charged -= more
            return False
        return True

    def _feed_slices(self, data: bytes | bytearray) -> None:
        view = memoryview(data)
        for at in range(0, len(view), SLICE):
            if self._lingering:
                return
            if self._exchange is not None and not self._exchange.more_body:
                self._hold(view[at:])
                return
            self._feed(view[at : at + SLICE])

    def _feed(self, data: bytes | memoryview) -> None:
        size = len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            self._begin()
            cause = error.__context__
            if isinstance(cause, RequestRefused):
                self._refuse(cause.status, cause.reason)
            else:
                self._refuse(400, "this is not HTTP")
            return
        self._begin()
        if self._in_head or (self._exchange is not None and self._exchange.more_body):
            self._bound_overhead(size)

    def _begin(self) -> None:
        """Begin to serve the request whose head was in the bytes just read, now that its body may be known, too."""
        if self._unbegun is not None:
            exchange, self._unbegun = self._unbegun, None
            exchange.begin()

    def _parse(self, data: bytes | memoryview) -> None:
        while True:
            try:
                return self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                self._decline_upgrade()
                data = data[upgrade.args[0] :]
            if not self._latest().more_body:
                return self._hold(data) if data else None

    def _decline_upgrade(self) -> None:
        """Ignores a request to change the protocol, because the server speaks no other.

        The parser takes what follows the head for another protocol. Taking it for the next request would let a body
        smuggle one in; so a new parser gets the head once more, reduced to what tells the body's length.
        """
        self._upgrade = False
        self._parser = httptools.HttpRequestParser(self)
        headers = self._latest().headers
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
        elif self._in_head and not self._settle():
            self._refuse(503, FULL)

    def _pause_reading(self) -> None:
        if not self._read_paused and not self._transport.is_closing():
            self._read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._read_paused and not self._transport.is_closing():
            self._read_paused = False
            self._transport.resume_reading()

    # --- out

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    async def writable(self) -> None:
        if self._writable is not None:
            await self._writable.wait()

    def taken(self) -> "asyncio.Future[bool]":
        if self._taken is None:
            self._taken = asyncio.get_running_loop().create_future()
        return self._taken

    def answered(self, exchange: Exchange) -> None:
        self._exchange = None
        if exchange.keep:
            self._go_on()
        else:
            if not exchange.more_body:
                self._idle_from = 0.0  # nothing of it is unread, so closing before the client does costs nothing
            self._linger()

    def _go_on(self) -> None:
        if self._writable is not None:  # no further answers for a client that does not read those it has
            return
        self._idle_from = self._service.clock()
        if self._queued:
            self._exchange = self._queued.pop(0)
            self._exchange.begin()
        else:
            limits = self._service.limits
            self._deadline = self._service.after(limits.head_s if self._in_head else limits.idle_s)
        if self._held and (self._exchange is None or self._exchange.more_body):
            held, self._held = self._held, bytearray()
            self._settle()
            self._feed_slices(held)
        if self._read_paused and len(self._held) <= HIGH_WATER:
            self.resume_reading()

    def _refuse(self, status: int, reason: str) -> None:
        """End with an error of our own; whole requests that came before it are answered first."""
        if self._queued and self._queued[-1].more_body:
            self._queued.pop().settle()  # not whole: those before it get their answers, and it gets none
        exchange = self._queued[-1] if self._queued else self._exchange
        if exchange is not None and not exchange.more_body:
            exchange.keep = False
            self._held.clear()
            self._settle()
            self._lingering, self._linger_left = True, LINGER_BYTES
            return
        if exchange is None or not exchange.head_sent:
            self._transport.write(self._service.error(status, reason, self._url))
        if exchange is not None:
            exchange.lose()
        self._exchange = None
        self._linger()

    def refuse_answer(self) -> None:
        if self._exchange is None or self._exchange.head_sent:
            self._transport.abort()
            return
        self._transport.write(self._service.error(503, FULL, self._exchange.url.partition(b"?")[0]))
        self._exchange = None
        self._linger()

    def _linger(self) -> None:
        """Say that we are done and read on for a moment: closing over unread input would destroy the answer."""
        if self._transport.is_closing():
            return
        self._lingering, self._linger_left = True, LINGER_BYTES
        self._deadline = self._service.after(self._service.limits.linger_s)
        self.resume_reading()
        if self._service.draining:
            self._transport.close()
        else:
            self._transport.write_eof()

    # --- the listener's side

    def watch(self, now: float) -> None:
        exchange = self._exchange
        if self._transport.is_closing() or self._writable is not None:
            self._watch_writing(now)
        elif exchange is None:
            if now > self._deadline:
                self._end_late()
        elif exchange.more_body and not self._read_paused:
            limits = self._service.limits
            if now > exchange.started_at + self._service.tick_s + limits.body_s + exchange.received / limits.body_rate:
                self._refuse(408, "the body took too long")

    def _end_late(self) -> None:
        if self._in_head and not self._lingering:
            self._refuse(408, "the headers took too long")
        else:
            self._transport.close()

    def _watch_writing(self, now: float) -> None:
        size = self._transport.get_write_buffer_size()
        if not self._stalled_at or size < self._stalled_size:
            self._stalled_at, self._stalled_size = now, size
        elif now > self._stalled_at + self._service.tick_s + self._service.limits.write_s:
            self._transport.abort()

    def drain(self) -> None:
        if self._exchange is not None:
            self._exchange.drain()
        for exchange in self._queued:
            exchange.drain()

    def idle_since(self) -> float | None:
        busy = self._exchange is not None or self._writable is not None or (self._lingering and self._idle_from)
        if busy or self._transport.is_closing() or self._idle_from > self._service.clock():
            return None
        return self._idle_from

    def close_if_idle(self) -> None:
        if self._exchange is None:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()


def _took_all(transport: asyncio.Transport) -> bool:
    """Whether the client's side acknowledged every byte and then closed in order.

    A client that went before our bytes came closes in order too, and its kernel resets the connection when they come.
    The event loop, which has seen the end of the stream, does not hear of that; the socket knows.
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
