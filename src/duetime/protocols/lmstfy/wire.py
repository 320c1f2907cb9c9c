"""What the two lmstfy listeners share: answers, refusals, queries, and how their JSON is spelt.

lmstfy's clients compare texts, so answers look as its server writes them: keys in alphabetical order, `<`, `>` and `&`
escaped, no newline at the end.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote_plus

import msgspec
from starlette.types import Receive, Scope

from duetime.http.exchange import ClientGone
from duetime.model.errors import (
    BodyTooLarge,
    DuetimeError,
    Forbidden,
    InvalidRequest,
    Overloaded,
    PoolNotFound,
    QueueFull,
    TopicOffline,
    Unauthorized,
)
from duetime.protocols.asgi import Header, read_body

log = logging.getLogger("duetime.lmstfy")

JSON: Header = (b"content-type", b"application/json; charset=utf-8")
TEXT: Header = (b"content-type", b"text/plain; charset=utf-8")

_ESCAPES = {
    b"<": rb"\u003c",
    b">": rb"\u003e",
    b"&": rb"\u0026",
    "\u2028".encode(): rb"\u2028",
    "\u2029".encode(): rb"\u2029",
}
_ESCAPED = re.compile(b"|".join(_ESCAPES))
_LAST_SLASH = re.compile(rb"(?:/|%2[fF])\Z")


class LmstfyAnswer(NamedTuple):
    status: int
    body: bytes = b""
    headers: Sequence[Header] = (JSON,)


class Refused(Exception):
    """Ends a request with the answer it carries."""

    def __init__(self, answer: LmstfyAnswer) -> None:
        self.answer = answer
        super().__init__(answer.status)


def to_json(value: Any) -> bytes:
    # JSON gives these bytes no meaning outside of strings, so every one of them stands in a string.
    return _ESCAPED.sub(lambda found: _ESCAPES[found.group()], msgspec.json.encode(value, order="sorted"))


def to_pretty_json(value: Any) -> bytes:
    return msgspec.json.format(to_json(value), indent=4)


def error(status: int, text: str) -> LmstfyAnswer:
    return LmstfyAnswer(status, to_json({"error": text}))


INTERNAL = error(500, "internal error")
CRASHED = LmstfyAnswer(500, b"", ())
REFUSALS: Mapping[type[Exception], LmstfyAnswer] = {
    PoolNotFound: error(404, "pool not found"),
    Forbidden: error(403, "the token does not allow this"),
    BodyTooLarge: error(413, "body too large"),
    Overloaded: LmstfyAnswer(503, to_json({"error": Overloaded().message}), (JSON, (b"retry-after", b"1"))),
    QueueFull: LmstfyAnswer(429, to_json({"msg": "the queue is full"})),
    TopicOffline: error(409, TopicOffline.of_queue().message),
}


def refused(status: int, text: str) -> Refused:
    return Refused(error(status, text))


def answer_to(failure: Exception) -> LmstfyAnswer:
    """The answer for an error; it says nothing about the inside of the server, which the log does."""
    if answer := REFUSALS.get(type(failure)):
        return answer
    if isinstance(failure, Unauthorized):
        return error(401, failure.message)
    if isinstance(failure, InvalidRequest):
        return error(400, "invalid request")
    if isinstance(failure, DuetimeError):
        log.warning("request_failed", extra={"error": failure.code, "detail": failure.message})
        return INTERNAL
    log.error("request_crashed", exc_info=failure)
    return CRASHED


def parse_query(raw: bytes) -> dict[str, str]:
    """The first value of each name, decoded; a name without a value has an empty one."""
    found: dict[str, str] = {}
    if not raw:
        return found
    for pair in raw.decode(errors="replace").split("&"):
        name, _, value = pair.partition("=")
        if "%" in pair or "+" in pair:
            name, value = unquote_plus(name), unquote_plus(value)
        if name:
            found.setdefault(name, value)
    return found


async def read_all(scope: Scope, receive: Receive, limit: int, too_large: str) -> bytes:
    """The whole body; lmstfy's refusals if it is too large or cut off."""
    try:
        return await read_body(scope, receive, limit)
    except ClientGone:
        raise refused(400, "failed to read body") from None
    except BodyTooLarge:
        raise refused(413, too_large) from None


def without_slash(scope: Scope) -> LmstfyAnswer:
    """Redirects to the address without its last slash: 301 for GET, and 307, which keeps the method, for others."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    query: bytes = scope["query_string"]
    location = _LAST_SLASH.sub(b"", raw) + (b"?" + query if query else b"")
    return LmstfyAnswer(301 if scope["method"] == "GET" else 307, b"", [(b"location", location), TEXT])
