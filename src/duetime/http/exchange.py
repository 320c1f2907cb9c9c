"""One HTTP request and its answer: what an ASGI application gets as `receive` and `send`.

Beyond ASGI: `send` raises ClientGone when the answer cannot be delivered, so that a job taken for it can be given back;
and `park` waits for jobs in the request's own task, without a second one that watches for the client's going.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from enum import Enum
from typing import Any, Protocol, TypeVar

from starlette.types import Message

from duetime.http.memory_budget import SMALL
from duetime.http.request_head import RequestHead, expects_continue
from duetime.http.service import STATUS_LINES, Headers, Service, Shortcut
from duetime.model.errors import DuetimeError, Overloaded
from duetime.model.logs import REQUEST_ID

log = logging.getLogger("duetime.http")

T = TypeVar("T")

NO_BODY = frozenset({204, 304})
FRAMING = frozenset({b"content-length", b"transfer-encoding", b"connection"})
HOLD_S = 0.5
"""How long a client is watched after an answer that must not be lost."""
DISCONNECT: Message = {"type": "http.disconnect"}


class ClientGone(OSError):
    """The client closed its connection before its answer was written."""

    def __init__(self, message: str = "the client has gone") -> None:
        super().__init__(message)


class ClientWire(Protocol):
    """A connection, as its exchange sees it."""

    def write(self, data: bytes) -> None: ...

    async def writable(self) -> None:
        """Wait while the client reads more slowly than we write."""
        ...

    def resume_reading(self) -> None: ...

    def taken(self) -> "asyncio.Future[bool]":
        """Whether the client took all that was written to it; done when it asks for something else, or has gone."""
        ...

    def answered(self, exchange: "Exchange") -> None:
        """The whole answer is written."""
        ...

    def refuse_answer(self) -> None:
        """Say that the server is too busy for this answer, if nothing of it was said yet, and close."""
        ...

    def abort(self) -> None: ...

    def scope_of(self, exchange: "Exchange") -> MutableMapping[str, Any]:
        """The exchange's request as ASGI describes it."""
        ...


class FollowUp:
    """What is left to do when an answer is written; the listener's drain waits for it as for a request."""

    task: asyncio.Task[None] | None = None


class Body(Enum):
    """How an answer's body is delimited."""

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"
    UNTIL_CLOSE = "until close"


class Exchange:
    """`keep`: the connection lives on after the answer. `gone`: there is nobody to answer any more. `is_spare`: its
    connection is one of those beyond the limit, which get one answer at once and no waiting.
    """

    task: asyncio.Task[None] | None = None
    more_body = True
    received = 0
    buffered = 0
    charged = 0
    started_at = 0.0
    gone = False
    finished = False
    is_spare = False
    head_sent = False
    _request_id = ""
    _scope: MutableMapping[str, Any] | None = None
    _given = False
    _news: asyncio.Event | None = None
    _timer: asyncio.Timeout | None = None
    _response: Message | None = None
    _body = Body.NONE
    _left = 0

    def __init__(self, wire: ClientWire, service: Service, head: RequestHead, *, keep: bool) -> None:
        self._wire = wire
        self._service = service
        self.method, self.url, self.version, self.headers = head
        self.keep = keep
        self._chunks: list[bytes] = []

    @property
    def request_id(self) -> str:
        if not self._request_id:
            self._request_id = self._service.request_id()
        return self._request_id

    @property
    def scope(self) -> MutableMapping[str, Any]:
        """Made when an application is asked; a request that takes the shortcut needs none."""
        if self._scope is None:
            self._scope = self._wire.scope_of(self)
        return self._scope

    # --- the connection's side

    def start(self) -> None:
        self.started_at = self._service.now
        self._service.begin(self, self._run())

    def begin(self) -> None:
        """Serve the request by the shortcut if it is whole and the shortcut takes it, else by the application."""
        service = self._service
        if service.shortcut is not None and not self.more_body and self._takes_shortcut(service.shortcut):
            service.requests.add(self)
        else:
            self.start()

    def _takes_shortcut(self, shortcut: Shortcut) -> bool:
        try:
            return shortcut(self)
        except DuetimeError:
            return False  # the application meets the same error, and says it in its own words
        except Exception:
            log.exception("shortcut_failed")
            return False

    def finish(self, status: int, headers: Headers, body: bytes) -> bool:
        """The answer to a request that took the shortcut. False if its client has gone."""
        try:
            self.answer(status, headers, body)
        except ClientGone:
            return False
        finally:
            self.settle()
            self._service.end(self)
        return True

    def feed(self, body: bytes) -> bool:
        """Take a part of the body; False if the server has no room for it."""
        size = len(body)
        self.received += size
        if self.received > self.charged and not self._pay():
            return False
        self._chunks.append(body)
        self.buffered += size
        if self._news is not None:
            self._news.set()
        return True

    def charge(self, size: int) -> bool:
        if not self._service.budget.take(size):
            return False
        self.charged += size
        return True

    def _pay(self) -> bool:
        """Charges a small body as it arrives, and a large one for its whole announced length as soon as that shows."""
        due = self.received - self.charged
        large = self.received > SMALL
        if large:
            due = max(due, self._announced() - self.charged)
        if not self._service.budget.take(due, large=large):
            return False
        self.charged += due
        return True

    def _announced(self) -> int:
        for name, value in self.headers:
            if name == b"content-length":
                return int(value)
        return 0

    def settle(self) -> None:
        """Takes the request off the memory budget."""
        self._service.budget.give(self.charged)
        self.charged = 0

    def end(self) -> None:
        self.more_body = False
        if self._news is not None:
            self._news.set()

    def lose(self) -> None:
        """The client has gone: a parked request ends here, any other runs to its end."""
        self.gone = True
        self._tell()
        if self._timer is not None and self.task is not None:
            self.task.cancel()

    def drain(self) -> None:
        self.keep = False
        if self._timer is not None and not self._timer.expired():
            self._timer.reschedule(0)

    def _tell(self) -> None:
        if self._news is not None:
            self._news.set()

    async def _run(self) -> None:
        REQUEST_ID.set(self.request_id)
        try:
            await self._service.app(self.scope, self.receive, self.send)
        except ClientGone:
            pass
        except asyncio.CancelledError:
            if not self.gone:
                self._wire.abort()
            raise
        except Exception:
            log.exception("request_failed")
        finally:
            if not self.finished and not self.gone:
                self._fail()
            self.settle()
            self._service.end(self)
            # Break the cycle scope -> exchange -> scope, so that no request waits for the garbage collector.
            del self.scope["extensions"]

    def _fail(self) -> None:
        """The application ended without a whole answer: an empty 500, or a cut where one had begun."""
        if self.head_sent:
            self._wire.abort()
            return
        self.keep = False
        self._wire.write(self._head({"status": 500, "headers": []}, b"", more=False))
        self.finished = True
        self._wire.answered(self)

    # --- the application's side

    async def park(self, waiting: Awaitable[T], otherwise: T) -> T:
        """Wait for `waiting` in this task: the client's going cancels it, a draining server ends it with
        `otherwise`. Raises Overloaded while so many wait that the rest is kept for requests that end.
        """
        if self.is_spare or self._service.parked >= self._service.limits.parked:
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
            if self._chunks or not (self.more_body or self._given):
                return {"type": "http.request", "body": self._take(), "more_body": self.more_body}
            if self.more_body and not self.received and expects_continue(self.headers):
                self._wire.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._wire.resume_reading()
            self._news = news = asyncio.Event()
            await news.wait()
        return DISCONNECT

    def whole_body(self) -> bytes | None:
        """What `receive` would bring, in one step; None if the body is not all here, or somebody has received of it."""
        if self.more_body or self._given or self.gone or self.buffered < self.received:
            return None
        return self._take()

    def body(self) -> bytes:
        """What has come of the body and was not received yet."""
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)

    def _take(self) -> bytes:
        body = self.body()
        self._chunks.clear()
        self.buffered = 0
        self._given = not self.more_body
        return body

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """What two messages to `send` would do, in one step. Raises ClientGone.

        For an application that has its answer ready, and only where `send` is this exchange's own.
        """
        if self.gone:
            raise ClientGone
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
        self._wire.write(data)
        self.head_sent = self.finished = True
        if self._news is not None:
            self._news.set()
        self._wire.answered(self)

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
            self._wire.write(self._frame(body, more=more))
        else:
            self._wire.write(self._head(self._response, body, more=more))
            self.head_sent = True
        if more:
            await self._wire.writable()
        else:
            self.finished = True
            self._tell()
            self._wire.answered(self)

    def follow_up(self, settle: Callable[[bool], Awaitable[None]]) -> None:
        """Call `settle` once the answer is written and the client's connection has told whether it was taken.

        A reset, or a close over unread bytes, says no; a close after all was read, the next request, and HOLD_S without
        any of these, say yes.
        """
        taken, service, follow_up = self._wire.taken(), self._service, FollowUp()

        async def run() -> None:
            try:
                await asyncio.wait([taken], timeout=HOLD_S)
                await settle(not taken.done() or taken.result())
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
        self._wire.refuse_answer()
        raise ClientGone("the answer found no room")

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
