"""Code of all HTTP protocols between ASGI and their handlers: bodies, answers, refusals.

Their applications are ASGI with one extension: they need the exchange of our HTTP server, which tells them whether a
client is still there.
"""

from collections.abc import Sequence

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
    if (body := exchange_of(scope).whole_body()) is not None:
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


def exchange_of(scope: Scope) -> Exchange:
    """The HTTP server's side of the request."""
    return scope["extensions"]["duetime.exchange"]


async def send_answer(
    scope: Scope, send: Send, status: int, shared: Sequence[Header], body: bytes, own: Sequence[Header] = ()
) -> None:
    """One whole answer. `shared` are headers that many answers have, `own` those of this one. Raises ClientGone."""
    if status == NO_CONTENT:
        shared = ()
    exchange = exchange_of(scope)
    if not own and send == exchange.send:
        if not exchange.finish(status, tuple(shared), body):
            raise ClientGone
        return
    headers = [*shared, *own]
    if status != NO_CONTENT:
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


OURS: dict[int, type[DuetimeError]] = {403: Forbidden, 503: Overloaded}
"""The errors of some statuses; every other status is an InvalidRequest."""


def refusal_body(path: bytes, status: int, reason: str) -> tuple[bytes, bytes]:
    """Content type and body."""
    if path != b"/v1" and not path.startswith(b"/v1/"):
        return b"application/json", msgspec.json.encode({"error": reason})
    kind = OURS.get(status, InvalidRequest)
    title = (kind.__doc__ or "").split("\n", 1)[0]
    return b"application/problem+json", msgspec.json.encode(ErrorOut(kind.code, title, status, detail=reason))
