"""Code of all HTTP protocols between ASGI and their handlers: bodies, answers, waiting, refusals.

A wait for a job lasts for as long as the client waits for the answer. Our own HTTP server does that in the request's
task. Under any other, a second task listens for the disconnect and cancels the wait, as asyncio.timeout does at a
deadline: one step decides whether the wait ended or was cancelled, so a job is never both delivered and given
back.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from duetime.http.exchange import ClientGone, Exchange
from duetime.model.errors import BodyTooLarge, DuetimeError, Forbidden, InvalidRequest, Overloaded
from duetime.wire.messages import ErrorOut

Header = tuple[bytes, bytes]

NO_CONTENT = 204
LONGEST_LENGTH = 18
"""More digits than any body that a limit allows."""


def header(scope: Scope, name: bytes) -> bytes:
    """The first header of that name (in lower case), empty if there is none."""
    for found, value in scope["headers"]:
        if found == name:
            return value
    return b""


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body, refused as soon as it is known to be too large. Raises BodyTooLarge, ClientGone."""
    exchange = exchange_of(scope)
    if exchange is not None and receive == exchange.receive and (body := exchange.whole_body()) is not None:
        if len(body) > limit:
            raise _too_large(limit)
        return body
    announced = header(scope, b"content-length")
    if len(announced) > LONGEST_LENGTH or (announced.isdigit() and int(announced) > limit):
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    while True:
        event = await receive()
        if event["type"] != "http.request":
            raise ClientGone
        chunk: bytes = event.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        if not event.get("more_body"):
            return b"".join((*chunks, chunk)) if chunks else chunk
        chunks.append(chunk)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"a request has at most {limit} bytes", limit=limit)


def exchange_of(scope: Scope) -> Exchange | None:
    """Our own HTTP server's side of the request; None under another server."""
    return scope.get("extensions", {}).get("duetime.exchange")


def request_id(scope: Scope, make_id: Callable[[], str]) -> tuple[str, Sequence[Header]]:
    """The id of this request, and the header that carries it, where the server does not send it by itself."""
    given: str | None = scope.get("state", {}).get("request_id")
    if given:
        return given, ()
    made = make_id()
    return made, ((b"x-request-id", made.encode()),)


async def send_answer(
    scope: Scope, send: Send, status: int, shared: Sequence[Header], body: bytes, own: Sequence[Header] = ()
) -> None:
    """One whole answer. `shared` are headers that many answers have, `own` those of this one.

    Raises OSError if the server knows that the client has disconnected.
    """
    if status == NO_CONTENT:
        shared = ()
    exchange = exchange_of(scope)
    if exchange is not None and not own and send == exchange.send:
        if not exchange.finish(status, tuple(shared), body):
            raise ClientGone
        return
    headers = [*shared, *own]
    if status != NO_CONTENT:
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


T = TypeVar("T")


async def park(scope: Scope, receive: Receive, waiting: Awaitable[T], otherwise: T) -> T:
    """Await; a draining server ends it early with `otherwise`. Raises ClientGone, or is cancelled by the server."""
    exchange = exchange_of(scope)
    if exchange is not None:
        return await exchange.park(waiting, otherwise)
    async with WhileConnected(receive):
        return await waiting


class WhileConnected:
    """Cancels what runs in its block when the client disconnects, and turns that into ClientGone."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "an ASGI application runs in a task"
        self._task = task
        self._cancelling = task.cancelling()
        self._watcher = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watcher.cancel()
        if self._gone and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise ClientGone from None


OURS: dict[int, type[DuetimeError]] = {403: Forbidden, 503: Overloaded}
"""The errors of some statuses; every other status is an InvalidRequest."""


def refusal_body(path: bytes, status: int, reason: str) -> tuple[bytes, bytes]:
    """Content type and body."""
    if path != b"/v1" and not path.startswith(b"/v1/"):
        return b"application/json", msgspec.json.encode({"error": reason})
    kind = OURS.get(status, InvalidRequest)
    title = (kind.__doc__ or "").split("\n", 1)[0]
    return b"application/problem+json", msgspec.json.encode(ErrorOut(kind.code, title, status, detail=reason))
