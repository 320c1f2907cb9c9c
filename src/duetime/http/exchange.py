"""One HTTP request and its answer: what an ASGI application gets as `receive` and `send`.

Beyond ASGI: `send` raises ClientGone when the answer cannot be delivered, so that a job in it can be given back;
and `park` waits for jobs in the request's own task, without a second one that watches for the client's disconnect.
A request that the fast path accepts needs no task and no scope: its `Operation` answers it with `finish`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from starlette.types import Message, Scope

from duetime.http.proxies import HeaderList
from duetime.http.service import SMALL, STATUS_LINES, Headers, Service
from duetime.model.errors import Overloaded
from duetime.model.logs import REQUEST_ID

if TYPE_CHECKING:
    from duetime.http.connection import Connection

log = logging.getLogger("duetime.http")

T = TypeVar("T")

RequestHead = tuple[bytes, bytes, str, list[tuple[bytes, bytes]]]
"""Method, target, version and headers."""

NO_BODY = frozenset({204, 304})
FRAMING = frozenset({b"content-length", b"transfer-encoding", b"connection"})
HOLD_S = 0.5
"""How long a client is watched after an answer that must not be lost."""
DISCONNECT: Message = {"type": "http.disconnect"}
ASGI = {"version": "3.0", "spec_version": "2.4"}


class ClientGone(OSError):
    """The client closed its connection before its answer was written."""

    def __init__(self, message: str = "the client disconnected") -> None:
        super().__init__(message)


class RequestRefused(Exception):
    """Raised inside a parser callback: the request ends here with this status."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        self.reason = reason


class FollowUp:
    """Work that remains after an answer was written. The listener's drain waits for it as for a request."""

    task: asyncio.Task[None] | None = None


class Operation(Protocol):
    """Serves requests without a task. One operation serves all requests with the same head; the data of a single
    request is in `Exchange.context`.
    """

    def submit(self, exchange: "Exchange") -> bool:
        """Begin; the exchange gets the result. Returns False if the application has to serve the request instead."""
        ...

    def respond(self, exchange: "Exchange", result: Any) -> None:
        """Answer with `finish`, or `start` a wait, whose result comes here as well."""
        ...

    def fail(self, exchange: "Exchange", error: Exception) -> None: ...


class Body(Enum):
    """How an answer's body is delimited."""

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"
    UNTIL_CLOSE = "until close"


class Exchange:
    """`keep`: the connection stays open after the answer. `gone`: the client disconnected. `is_spare`: its connection
    is one of those above the limit, which get one answer and may not wait.

    For a request without a task it is the reply that the engine gives the result to.
    """

    task: asyncio.Task[None] | None = None
    operation: Operation
    context: Any = None
    more_body = True
    received = 0
    buffered = 0
    charged = 0
    started_at = 0.0
    gone = False
    finished = False
    is_spare = False
    head_sent = False
    _body_given = False
    _waits_for_body = False
    _changed: asyncio.Event | None = None
    _timer: asyncio.Timeout | None = None
    _response: Message | None = None
    _body = Body.NONE
    _left = 0

    def __init__(self, connection: "Connection", service: Service, head: RequestHead, *, keep: bool) -> None:
        self.connection = connection
        self._service = service
        self.method, self.url, self.version, self.headers = head
        self.keep = keep
        self.request_id = service.request_id()
        self._chunks: list[bytes] = []

    # --- the connection's side

    def begin(self) -> None:
        """Serve the request on the fast path if that accepts it, else by the application.

        Many clients send head and body in two packets. A request whose head the fast path knows waits for the rest of
        a small body.
        """
        service = self._service
        if service.fast_path is None:
            self.start()
        elif not self.more_body:
            if service.fast_path.accept(self):
                service.requests.add(self)
            else:
                self.start()
        elif 0 < self._announced() <= SMALL and not expects_continue(self.headers) and service.fast_path.knows(self):
            self.started_at = service.now
            self._waits_for_body = True
        else:
            self.start()

    def start(self, wait: Callable[[], Awaitable[Any]] | None = None) -> None:
        """Serve the request in a task of its own: by the application, or by the operation after a parked `wait`. The
        operation gets an empty list if a draining server ends the wait early.
        """
        self.started_at = self._service.now
        self._service.begin(self, self._run_app() if wait is None else self._run_wait(wait))

    def feed(self, body: bytes) -> bool:
        """Add a part of the body; False if the server has no room for it.

        A small body is charged as it arrives. A large one is charged for its announced length as soon as it is known
        to be large.
        """
        size = len(body)
        self.received += size
        due = self.received - self.charged
        if due > 0:
            is_large = self.received > SMALL
            if is_large:
                due = max(due, self._announced() - self.charged)
            if not self._service.budget.charge(due, large=is_large):
                return False
            self.charged += due
        self._chunks.append(body)
        self.buffered += size
        if self._changed is not None:
            self._changed.set()
        return True

    def _announced(self) -> int:
        for name, value in self.headers:
            if name == b"content-length":
                return int(value)
        return 0

    def charge(self, size: int) -> bool:
        """Charge the memory budget for more than the body; False if the server has no room for it."""
        if not self._service.budget.charge(size):
            return False
        self.charged += size
        return True

    def refund(self) -> None:
        """Return the request's bytes to the memory budget."""
        self._service.budget.held -= self.charged
        self.charged = 0

    def end(self) -> None:
        self.more_body = False
        if self._changed is not None:
            self._changed.set()
        if self._waits_for_body:
            self._waits_for_body = False
            self.begin()

    def lose(self) -> None:
        """The client disconnected: a parked request ends now, any other runs to its end."""
        self.gone = True
        if self._waits_for_body:
            self._waits_for_body = False
            self.refund()
        if self._changed is not None:
            self._changed.set()
        if self._timer is not None and self.task is not None:
            self.task.cancel()

    def drain(self) -> None:
        self.keep = False
        if self._timer is not None and not self._timer.expired():
            self._timer.reschedule(0)

    async def _run_app(self) -> None:
        REQUEST_ID.set(self.request_id)
        scope = self._scope()
        try:
            await self._service.app(scope, self.receive, self.send)
        except ClientGone:
            pass
        except asyncio.CancelledError:
            self._on_cancelled()
            raise
        except Exception:
            log.exception("request_failed")
        finally:
            self._on_task_end()
            # Break the cycle scope -> exchange -> scope, so that no request waits for the garbage collector.
            scope.pop("extensions", None)

    async def _run_wait(self, wait: Callable[[], Awaitable[Any]]) -> None:
        REQUEST_ID.set(self.request_id)
        try:
            self.operation.respond(self, await self.park(wait(), []))
        except asyncio.CancelledError:
            self._on_cancelled()
            raise
        except Exception as error:
            if self.finished:
                log.exception("request_failed")
            else:
                self.operation.fail(self, error)
        finally:
            self._on_task_end()

    def _on_cancelled(self) -> None:
        if not self.gone:
            self.connection.transport.abort()

    def _on_task_end(self) -> None:
        if not self.finished and not self.gone:
            self._fail()
        self.refund()
        self._service.end(self)

    def _scope(self) -> Scope:
        """The request as ASGI describes it."""
        connection, headers = self.connection, self.headers
        raw_path, _, query = self.url.partition(b"?")
        if not raw_path.startswith(b"/"):
            raw_path, query = absolute_target(self.url)
        path, proxies = raw_path.decode("utf-8", "replace"), connection.proxies
        return {
            "type": "http",
            "asgi": ASGI,
            "http_version": self.version,
            "method": self.method.decode("ascii"),
            "scheme": "http" if proxies is None else proxies.scheme_of(headers),
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": headers,
            "client": connection.client if proxies is None else proxies.client_of(headers, connection.client),
            "server": connection.server,
            "state": {"request_id": self.request_id},
            "extensions": {"duetime.exchange": self},
        }

    def _fail(self) -> None:
        """The application ended without a complete answer: send an empty 500, or abort an answer that had begun."""
        if self.head_sent:
            self.connection.transport.abort()
            return
        self.keep = False
        self.connection.transport.write(self._head({"status": 500, "headers": []}, b"", more=False))
        self.finished = True
        self.connection.answered(self)

    # --- the fast path's side

    def done(self) -> bool:
        """Always False: the request of a client that disconnected runs to its end, as it does in a task."""
        return False

    def set_result(self, result: Any, /) -> None:
        try:
            self.operation.respond(self, result)
        except Exception:
            log.exception("request_failed")
            if not self.finished:
                self.finish(500, (), b"")

    def set_exception(self, error: Exception, /) -> None:
        context = copy_context()
        context.run(REQUEST_ID.set, self.request_id)
        context.run(self.operation.fail, self, error)

    def finish(self, status: int, headers: Headers, body: bytes) -> bool:
        """Send a whole answer, as two messages to `send` would, and end a request without a task. Returns False if the
        client disconnected. An application must not call it if it got another `send` than the exchange's.
        """
        try:
            if self.gone:
                return False
            if len(body) > SMALL:
                self._check_room(len(body))
            if not self.keep or self.more_body or status in NO_BODY or self.method == b"HEAD":
                data = self._head({"status": status, "headers": headers}, body, more=False)
            else:
                service = self._service
                service.answers[status] += 1
                data = b"%b%bX-Request-ID: %b\r\n%bcontent-length: %d\r\n\r\n%b" % (
                    STATUS_LINES[status],
                    service.date_line,
                    self.request_id.encode(),
                    service.header_block(headers),
                    len(body),
                    body,
                )
            self.connection.transport.write(data)
            self.head_sent = self.finished = True
            if self._changed is not None:
                self._changed.set()
            self.connection.answered(self)
            return True
        except ClientGone:
            return False
        finally:
            if self.task is None:
                self.refund()
                self._service.end(self)

    # --- the application's side

    async def park(self, waiting: Awaitable[T], otherwise: T) -> T:
        """Wait for `waiting` in this task: a disconnect of the client cancels it, a draining server ends it with
        `otherwise`. Raises Overloaded at the limit of parked requests; the rest is kept for requests that end.
        """
        if self.is_spare or self._service.parked >= self._service.most_parked:
            if isinstance(waiting, Coroutine):
                waiting.close()  # pyright: ignore[reportUnknownMemberType]
            raise Overloaded
        self._service.parked += 1
        self._timer = timer = asyncio.timeout(0 if self._service.draining else None)
        try:
            async with timer:
                return await waiting
        except TimeoutError:
            if not timer.expired():
                raise
            return otherwise
        finally:
            self._timer = None
            self._service.parked -= 1

    async def receive(self) -> Message:
        while not (self.gone or self.finished):
            if self._chunks or not (self.more_body or self._body_given):
                return {"type": "http.request", "body": self._pop_body(), "more_body": self.more_body}
            if self.more_body and not self.received and expects_continue(self.headers):
                self.connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.connection.resume_reading()
            self._changed = changed = asyncio.Event()
            await changed.wait()
        return DISCONNECT

    def whole_body(self) -> bytes | None:
        """The body that `receive` would return; None if it is incomplete, or if a part was received already."""
        if self.more_body or self._body_given or self.gone or self.buffered < self.received:
            return None
        return self._pop_body()

    def body(self) -> bytes:
        """The part of the body that has arrived and was not received yet. It stays there."""
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)

    def _pop_body(self) -> bytes:
        body = self.body()
        self._chunks.clear()
        self.buffered = 0
        self._body_given = not self.more_body
        return body

    async def send(self, message: Message) -> None:
        if self.gone:
            raise ClientGone
        kind = message["type"]
        if kind == "http.response.start" and self._response is None:
            self._response = message
            return
        if kind != "http.response.body" or self._response is None or self.finished:
            raise RuntimeError(f"an ASGI application sent {kind} out of turn")
        body: bytes = message.get("body", b"")
        more: bool = message.get("more_body", False)
        if len(body) > SMALL:
            self._check_room(len(body))
        if self.head_sent:
            self.connection.transport.write(self._frame(body, more=more))
        else:
            self.connection.transport.write(self._head(self._response, body, more=more))
            self.head_sent = True
        if more:
            await self.connection.writable()
        else:
            self.finished = True
            if self._changed is not None:
                self._changed.set()
            self.connection.answered(self)

    def follow_up(self, on_outcome: Callable[[bool], Awaitable[None]]) -> None:
        """After the answer was written, call `on_outcome` with whether the client received it.

        It did not if it reset the connection or closed it with unread bytes. It did if it closed after it read all,
        sent another request, or stayed connected for HOLD_S.
        """
        received, service, follow_up = self.connection.answer_received(), self._service, FollowUp()

        async def run() -> None:
            try:
                await asyncio.wait([received], timeout=HOLD_S)
                await on_outcome(not received.done() or received.result())
            except Exception:
                log.exception("follow_up_failed")
            finally:
                service.end(follow_up)

        service.begin(follow_up, run())

    def _check_room(self, size: int) -> None:
        """Refuse a large answer while clients leave too many of them unread; the application gives a job in it back."""
        budget = self._service.budget
        if budget.held - self.charged + size <= budget.limit:
            return
        budget.refused += 1
        self.gone = True
        self.connection.refuse_answer()
        raise ClientGone("the memory budget has no room for the answer")

    def _head(self, response: Message, body: bytes, *, more: bool) -> bytes:
        """Status line, headers and the first of the body, in one write."""
        status: int = response["status"]
        self._service.answers[status] += 1
        parts = [
            STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status,
            self._service.date_line,
            b"X-Request-ID: ",
            self.request_id.encode(),
            b"\r\n",
        ]
        lines = 3
        declared = -1
        for name, value in response.get("headers", ()):
            if name in FRAMING:
                if name == b"content-length":
                    declared = int(value)
                elif name == b"connection" and value.lower() == b"close":
                    self.keep = False
                continue
            parts += (name, b": ", value, b"\r\n")
            lines += 1
        framing = self._framing(status, len(body), declared, more=more)
        if not self.keep or self.more_body:
            self.keep = False
            framing += b"connection: close\r\n"
        parts.append(framing)
        head = b"".join(parts)
        if not head.count(b"\n") == head.count(b"\r") == lines + framing.count(b"\n"):
            raise RuntimeError("a response header holds a line break")
        return b"%b\r\n%b" % (head, body if self._body is Body.LENGTH and not more else self._frame(body, more=more))

    def _framing(self, status: int, size: int, declared: int, *, more: bool) -> bytes:
        """How the client will know where the body ends: a length, chunks, or the end of the connection."""
        if status in NO_BODY:
            self._body = Body.NONE
            return b""
        if self.method == b"HEAD":
            self._body = Body.NONE
            return b"content-length: %d\r\n" % max(declared, size)
        if not more or declared >= 0:
            self._body = Body.LENGTH
            self._left = declared if more else size
            return b"content-length: %d\r\n" % self._left
        if self.version == "1.1":
            self._body = Body.CHUNKED
            return b"transfer-encoding: chunked\r\n"
        self._body = Body.UNTIL_CLOSE
        self.keep = False
        return b""

    def _frame(self, body: bytes, *, more: bool) -> bytes:
        match self._body:
            case Body.NONE:
                return b""
            case Body.LENGTH:
                self._left -= len(body)
                if self._left < 0 or (self._left and not more):
                    raise RuntimeError("a response is not as long as its content-length")
                return body
            case Body.CHUNKED:
                chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
                return chunk if more else chunk + b"0\r\n\r\n"
            case Body.UNTIL_CLOSE:
                return body


def expects_continue(headers: HeaderList) -> bool:
    """The client waits with its body for `100 Continue`."""
    return any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)


def absolute_target(url: bytes) -> tuple[bytes, bytes]:
    """Path and query of `http://host/path?query`, as proxies send it; `*` and `host:port` stay as they are."""
    if b"://" not in url:
        return url, b""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise RequestRefused(400, "the request target is not a valid URL") from None
    return parts.path or b"/", parts.query
