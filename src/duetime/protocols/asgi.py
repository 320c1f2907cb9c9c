"""What the HTTP protocols share between ASGI and their handlers: reading headers and bodies, sending answers."""

from collections.abc import Callable, Sequence

from starlette.types import Receive, Scope, Send

from duetime.http.exchange import ClientGone, Exchange
from duetime.model.errors import BodyTooLarge

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
    """The id of this request, and the header that tells it, where the server does not send it by itself."""
    given: str | None = scope.get("state", {}).get("request_id")
    if given:
        return given, ()
    made = make_id()
    return made, ((b"x-request-id", made.encode()),)


async def send_answer(
    scope: Scope, send: Send, status: int, shared: Sequence[Header], body: bytes, own: Sequence[Header] = ()
) -> None:
    """One whole answer. `shared` are headers that many answers have, `own` those of this one.

    Raises OSError if the server knows that nobody is there to read it.
    """
    if status == NO_CONTENT:
        shared = ()
    exchange = exchange_of(scope)
    if exchange is not None and not own and send == exchange.send:
        exchange.answer(status, tuple(shared), body)
        return
    headers = [*shared, *own]
    if status != NO_CONTENT:
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
