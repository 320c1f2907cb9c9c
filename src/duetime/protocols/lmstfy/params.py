"""Names and numbers as lmstfy reads them, with its texts for what it refuses.

Numbers are unsigned decimals: no sign, no blanks, and a parameter that is there must not be empty.
"""

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from duetime.model.names import MAX_NAME, Queue
from duetime.protocols.lmstfy.wire import refused

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
