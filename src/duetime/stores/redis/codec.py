"""Reads and writes the packed bytes that the scripts use. lua/modules/keys.lua has the same formats.

Each body begins with a *header*, eight bytes for a job with common options. A *record* holds what deliveries
change; where there is one, it counts and not the header. A *moved* is one event of a job. An *info* is the last error
and the attributes.
"""

import logging
from collections.abc import Iterator, Mapping
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

import msgspec

from duetime.model.job import UNFENCED, Event, Job, Moved, NewJob, Priority, Reason, State
from duetime.model.names import Queue

RECORD = Struct(">BQIIHBQQ")
STATE = Struct(">QQQQQ")
MOVED = Struct(">BBQIQQ")
OPTIONS = Struct(">QHBIQ")
U16 = Struct(">H")
TOTALS_BYTES = 54
"""Nine numbers of six bytes, in the order of `job.Totals`."""
BRIEF = Struct(">QQ")
"""What a brief mark keeps: born and now. A full mark is always longer, so the length distinguishes them."""

EVENTS: tuple[Event, ...] = tuple(Event)
REASONS: tuple[str, ...] = ("", *(reason.value for reason in Reason), "waiting", "leased", "dead", "running", UNFENCED)
PRIORITIES: tuple[Priority, ...] = (Priority.NORMAL, *Priority)
"""By the number that is stored, which begins at 1."""

UNREADABLE_INFO = "the attributes of this job are damaged and left out"

WAITING, LEASED = 0, 1
DEAD_REASONS = {2: Reason.TRIES.value, 3: Reason.KILLED.value, 4: Reason.EXPIRED.value}

BORN_EPOCH = 1_577_836_800_000
TRIES_BY_CODE = (5, 1, 0, 2, 3, 10, 25)
_TRIES_FOLLOW = 7
_TTL_BYTES = (0, 2, 2, 6)
_TTL_UNIT_MS = (0, 1000, 60_000)
MAX_SPAN = 65_535

HEADER_BYTES = tuple(
    1 + (8 if flags & 128 else 5) + _TTL_BYTES[flags >> 2 & 3] + (2 if flags >> 4 & 7 == _TRIES_FOLLOW else 0)
    for flags in range(256)
)
"""The length of a header, by its first byte."""

pack_fence = Struct(">BQI").pack
"""LEASED, born, attempt: how the record of a held lease begins."""

_attributes = msgspec.msgpack.Decoder(dict[str, str])
_encode = msgspec.msgpack.Encoder().encode


Record = tuple[int, int, int, int, int, int, int, int]
"""state, born, attempt, used, tries, priority, due_at, expires_at."""


class QueueState(NamedTuple):
    """The running values of a queue; lua/modules/keys.lua explains them."""

    floor: int = 0
    latest: int = 0
    swept: int = 0
    slack: int = 2**52
    largest: int = 0


class Header(NamedTuple):
    born: int
    expires_at: int
    tries: int
    priority: Priority


def is_value(raw: bytes) -> bool:
    """Returns whether these bytes can be a header and a body."""
    return len(raw) > 0 and raw[0] & 3 > 0 and len(raw) >= HEADER_BYTES[raw[0]]


def read_header(raw: bytes) -> Header:
    flags = raw[0]
    at = 9 if flags & 128 else 6
    born = int.from_bytes(raw[1:at], "big") + (0 if flags & 128 else BORN_EPOCH)
    form = flags >> 2 & 3
    until = at + _TTL_BYTES[form]
    span = int.from_bytes(raw[at:until], "big")
    expires_at = span if form == 3 else born + span * _TTL_UNIT_MS[form] if form else 0
    code = flags >> 4 & 7
    tries = U16.unpack_from(raw, until)[0] if code == _TRIES_FOLLOW else TRIES_BY_CODE[code]
    return Header(born, expires_at, tries, PRIORITIES[flags & 3])


def pack_options(job: NewJob) -> bytes:
    """The options of a pushed job without its due time."""
    packed = OPTIONS.pack(job.ttl_ms, job.tries, job.priority, job.attempt, job.born)
    return packed + _encode(dict(job.attributes)) if job.attributes else packed


def plain_header(job: NewJob) -> tuple[bytes, bytes] | None:
    """The bytes before and after the born in the header of a job that is accepted now and has common options; None
    for any other job.
    """
    if job.attributes or job.born or job.attempt or job.due_at is not None or 0 < job.ttl_ms < job.delay_ms:
        return None
    return _plain_header(job.priority, job.ttl_ms, job.tries)


@lru_cache(256)
def _plain_header(priority: Priority, ttl_ms: int, tries: int) -> tuple[bytes, bytes] | None:
    if priority is not Priority.NORMAL:
        return None
    for form, unit_ms in enumerate(_TTL_UNIT_MS):
        span, rest = divmod(ttl_ms, unit_ms) if unit_ms else (0, ttl_ms)
        if rest == 0 and span <= MAX_SPAN:
            code = TRIES_BY_CODE.index(tries) if tries in TRIES_BY_CODE else _TRIES_FOLLOW
            flags = PRIORITIES.index(priority, 1) + 4 * form + 16 * code
            tail = (U16.pack(span) if form else b"") + (U16.pack(tries) if code == _TRIES_FOLLOW else b"")
            return bytes((flags,)), tail
    return None


def read_moved(job_id: str, packed: bytes) -> Moved:
    fields: tuple[int, int, int, int, int, int] = MOVED.unpack(packed)
    event, reason, born, attempt, due_at, was = fields
    return Moved(EVENTS[event], job_id, born, attempt, due_at, REASONS[reason], was)


def read_marked(packed: bytes) -> Iterator[Moved]:
    """Reads what a full mark keeps: for each job the length of its id, its id and its moved."""
    at = 0
    while at < len(packed):
        begin = at + 2
        end = begin + U16.unpack_from(packed, at)[0]
        at = end + MOVED.size
        yield read_moved(packed[begin:end].decode(), packed[end:at])


def read_info(packed: bytes | None) -> tuple[str, Mapping[str, str]]:
    """The last error and the attributes. A job whose attributes cannot be read is shown without them, and says so."""
    if not packed:
        return "", {}
    try:
        end = 2 + U16.unpack_from(packed)[0]
        return packed[2:end].decode(), _attributes.decode(packed[end:]) if len(packed) > end else {}
    except (ValueError, StructError):  # msgspec's and Unicode's errors are ValueErrors
        return UNREADABLE_INFO, {}


class PackedEntry(NamedTuple):
    """A job as the scripts that read jobs answer it. `at` is its due_at, lease end or time of death."""

    raw: bytes
    record: bytes | None
    at: bytes
    info: bytes | None


def read_job(queue: Queue, job_id: str, entry: PackedEntry, now: int) -> Job:
    at = int(entry.at)
    header = read_header(entry.raw)
    fields: Record = WAITING, header.born, 0, 0, header.tries, header.priority, at, header.expires_at
    if entry.record:
        fields = RECORD.unpack(entry.record)
    state, born, attempt, used, tries, priority, due_at, expires_at = fields
    error, attributes = read_info(entry.info)
    return Job(
        queue=queue,
        id=job_id,
        born=born,
        state=_state_of(state, at, now),
        body=entry.raw[HEADER_BYTES[entry.raw[0]] :],
        due_at=at if state == WAITING else due_at,
        priority=PRIORITIES[priority],
        tries=tries,
        used=used,
        attempt=attempt,
        expires_at=expires_at,
        lease_until=at if state == LEASED else 0,
        dead_at=at if state in DEAD_REASONS else 0,
        reason=DEAD_REASONS.get(state, ""),
        error=error,
        attributes=attributes,
    )


def _state_of(state: int, at: int, now: int) -> State:
    if state == WAITING:
        return State.DELAYED if at > now else State.READY
    return State.LEASED if state == LEASED else State.DEAD


def read_totals(packed: bytes) -> list[int]:
    return [int.from_bytes(packed[at : at + 6]) for at in range(0, TOTALS_BYTES, 6)]


log = logging.getLogger("duetime.stores")


def read_happened(queue: Queue, pairs: list[bytes]) -> list[Moved]:
    """Reads a list of id, moved, id, moved ... An empty moved means that the job was set aside; that is logged."""
    happened: list[Moved] = []
    for i in range(0, len(pairs), 2):
        job_id, moved = pairs[i], pairs[i + 1]
        if moved:
            happened.append(read_moved(job_id.decode(), moved))
        else:
            shown = job_id.decode(errors="backslashreplace")
            log.error("damaged_job_set_aside", extra={"queue": str(queue), "job": shown})
    return happened
