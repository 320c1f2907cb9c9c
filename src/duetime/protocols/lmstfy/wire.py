"""Code of both lmstfy listeners: answers, refusals, names, numbers and ids, with lmstfy's texts and spellings.

lmstfy's clients compare texts, so answers are formatted as its server formats them: keys in alphabetical order, `<`,
`>` and `&` escaped, no newline at the end. Numbers are unsigned decimals: no sign, no blanks, and a parameter that is
there must not be empty. Ids are ULIDs whose last four bytes are the delay; a leading `1` marks version 1.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

import msgspec
from msgspec import Struct
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
from duetime.model.ids import ALPHABET, LENGTH, IdMaker
from duetime.model.names import MAX_NAME, Queue
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
    # JSON gives these bytes no meaning outside of strings, so each of them is part of a string.
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
    raw, query = scope["raw_path"], scope["query_string"]
    location = _LAST_SLASH.sub(b"", raw) + (b"?" + query if query else b"")
    return LmstfyAnswer(301 if scope["method"] == "GET" else 307, b"", [(b"location", location), TEXT])


MAX_U16 = 2**16 - 1
MAX_U32 = 2**32 - 1
MAX_I64 = 2**63 - 1
MAX_COUNT = 100
MAX_QUEUES = 1000
"""Queues that one consume may name."""

# Not `$`, which would let a newline at the end pass.
_NAMESPACE = re.compile(r"[A-Za-z0-9_-]*\Z", re.ASCII)
_QUEUE = re.compile(r"(?!_)[A-Za-z0-9_-]*\Z", re.ASCII)
_QUEUES = re.compile(r"[A-Za-z0-9_,-]*\Z", re.ASCII)


class Defaults(Struct, frozen=True):
    """The values of parameters that a request leaves out, in seconds."""

    delay: int = 0
    ttl: int = 86_400
    tries: int = 1
    ttr: int = 120
    timeout: int = 0


class Publishing(Struct, frozen=True):
    delay: int
    ttl: int
    tries: int


class Consuming(Struct, frozen=True):
    ttr: int
    timeout: int
    count: int


def check_names(namespace: str, queue: str) -> None:
    if len(namespace.encode(errors="replace")) > MAX_NAME or len(queue.encode(errors="replace")) > MAX_NAME:
        raise refused(400, "namespace or queue name too long")
    _check_namespace(namespace)
    if not _QUEUE.match(queue):
        raise refused(400, "queue name contains forbidden characters")


def check_consumed_names(namespace: str, queues: str) -> None:
    """The laxer rule of consume: it allows commas, a leading underscore, and any length, but not too many names."""
    _check_namespace(namespace)
    if not _QUEUES.match(queues):
        raise refused(400, "queue name contains forbidden characters")
    if queues.count(",") >= MAX_QUEUES:
        raise refused(400, f"too many queues, cannot exceed {MAX_QUEUES}")


def _check_namespace(namespace: str) -> None:
    if not _NAMESPACE.match(namespace):
        raise refused(400, "namespace name contains forbidden characters")


def is_namespace(name: str) -> bool:
    return bool(_NAMESPACE.match(name))


def consumed_queues(namespace: str, queues: str) -> Sequence[Queue]:
    """The queues in the order of the path, each once. A name that is too long for a queue is left out."""
    names = [name for name in queues.split(",") if name]
    if not names:
        raise refused(400, "invalid queue name(s)")
    if len(names) == 1 and len(queues) <= MAX_NAME and len(namespace) <= MAX_NAME:
        return (Queue(namespace, names[0]),)
    if len(namespace) > MAX_NAME:
        return ()
    return [Queue(namespace, name) for name in dict.fromkeys(names) if len(name) <= MAX_NAME]


def unsigned(text: str, largest: int) -> int | None:
    """The number, or None for anything that is not one or is too large."""
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text if len(text) <= 20 else text.lstrip("0") or "0"
    if len(digits) > 20:
        return None
    number = int(digits)
    return number if number <= largest else None


def read_number(query: Mapping[str, str], name: str, default: int, largest: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    number = unsigned(text, largest)
    if number is None:
        raise refused(400, f"invalid {name}")
    return number


def read_publishing(query: Mapping[str, str], defaults: Defaults) -> Publishing:
    if not query:
        return Publishing(defaults.delay, defaults.ttl, defaults.tries)
    delay = read_number(query, "delay", defaults.delay, MAX_U32)
    ttl = read_number(query, "ttl", defaults.ttl, MAX_U32)
    if 0 < ttl < delay:
        raise refused(400, "ttl is shorter than delay")
    tries = read_number(query, "tries", defaults.tries, MAX_U16)
    if tries == 0:
        raise refused(400, "tries shouldn't be zero")
    return Publishing(delay, ttl, tries)


def read_consuming(query: Mapping[str, str], defaults: Defaults) -> Consuming:
    ttr = read_number(query, "ttr", defaults.ttr, MAX_U32)
    timeout = read_number(query, "timeout", defaults.timeout, MAX_U32)
    count = read_number(query, "count", 1, MAX_COUNT)
    if count == 0:
        raise refused(400, "invalid count")
    return Consuming(ttr, timeout, count)


def read_limit(query: Mapping[str, str]) -> int:
    limit = read_number(query, "limit", 1, MAX_I64)
    if limit == 0:
        raise refused(400, "invalid limit")
    return limit


VERSION_1 = "1"

_TIME = 10
"""The characters of an id that say when it was made."""


class _Digits(dict[int, str]):
    """Maps Crockford's digits to the digits of int(), and every other character to one that int() refuses."""

    def __missing__(self, key: int) -> str:
        return "z"


_DIGITS = _Digits(zip(map(ord, ALPHABET), "0123456789abcdefghijklmnopqrstuv", strict=True))


def make_id(ids: IdMaker, delay_s: int, *, version_1: bool) -> str:
    job_id = ids.make(lmstfy_delay_s=delay_s)
    return VERSION_1 + job_id if version_1 else job_id


def elapsed_ms(job_id: str, now_ms: int) -> int:
    """Milliseconds since the id was made; 0 for an id that holds no time, or one after `now`."""
    extra = len(job_id) - LENGTH
    if extra not in (0, 1):
        return 0
    try:
        made_ms = int(job_id[extra : extra + _TIME].translate(_DIGITS), 32)
    except ValueError:
        return 0
    return max(now_ms - made_ms, 0)
