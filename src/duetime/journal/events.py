"""The entries of the journal: one for each event of a job or of a node.

The engine writes entries; the console, `duetime history` and Spark read them. The key of a job in every table is
(namespace, queue, id, born); entries of one job are ordered by (born, attempt, kind), never by time across nodes.

A line of a segment is 8 hex digits of CRC-32, 8 of length, a space, the entry as JSON, and a newline. A line is either
complete or damaged: the check sum is over the JSON and the length counts its bytes, so a torn write, a flipped bit and
a cut file are all found, and found at the right place. The space is the number of the format: a line that an older
reader would misunderstand has another character there (docs/formats.md).
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any
from zlib import crc32

import msgspec
from msgspec import UNSET, Struct, UnsetType

from duetime.model.errors import NOT_JSON
from duetime.model.job import Event
from duetime.model.names import DEFAULT_POOL
from duetime.stores.finishes import SeenJoin

HEAD = 17
"""Bytes of a line before the JSON."""

ENDS = frozenset(
    {Event.ACKED, Event.CANCELLED, Event.REPLACED, Event.EXPIRED, Event.PURGED, Event.DELETED},
)
"""The events that end a job. Replaced ends the incarnation `was`; purged (one entry per call) ends all its jobs."""

MAX_ERROR = 2048
"""Bytes of the error of a try that the journal keeps; the store keeps more of the last one."""
REPEATED = "repeated"
"""The reason of an entry that may repeat an earlier one: see `Draft`."""


class Draft(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An event before a node gives it a number and writes it down. Times are epoch milliseconds, `ttl` and `ms` are
    milliseconds, zero means none.

    `ts` is the store's time of the event. The `ts` of a heartbeat says more: all events of its node and pool with an
    earlier `ts` precede it. `body`, `ttl`, `tries`, `priority` and `attributes` are set for accepted and adopted,
    and for replaced, whose job takes the place of `was`: they are enough to push the job again. A body that is valid
    UTF-8 is in `body`, any other in `body_b64`. `status` and `ms` belong to notified: what the callback answered,
    and how long it took. `error` belongs to released and dead: the end of what the consumer reported, at most MAX_ERROR
    bytes. `join` belongs to acked: the task group that the job was one of. `reason` is the store's (see
    `job.Moved`); "unfenced" for an ack by id alone; for purged, the states that were purged, joined by commas; for
    closed, "successor" if another process closed the node. `batch` is the part of the push's mark before the first
    slash.

    The reason "repeated" marks an entry that is written because the process that changed the store may have died
    before it could write one (decision 020). Accepted or replaced, repeated, shows the job as the store had it at
    `ts`; the job began at `born`, and its `ttl` counts from there. Acked, repeated, says that the job no longer
    existed when it was acked; this is the job's end if no entry has another end or a higher attempt. Without a `born`
    it is about the job that had the id until `ts`.
    """

    ts: int
    event: Event
    pool: str = DEFAULT_POOL
    namespace: str = ""
    queue: str = ""
    id: str = ""
    born: int = 0
    attempt: int = 0
    due_at: int = 0
    priority: int = 0
    ttl: int = 0
    tries: int = 0
    reason: str = ""
    body: str | UnsetType = UNSET
    body_b64: str | UnsetType = UNSET
    attributes: Mapping[str, str] = {}
    batch: str = ""
    was: int = 0
    status: int = 0
    ms: int = 0
    error: str = ""
    join: SeenJoin | UnsetType = UNSET


class Entry(Draft, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One line of the journal: a draft with its place. `wrote_at` is the node's time at which the entry was made.

    `seq` starts at 1 for each node and has no gaps.
    """

    wrote_at: int
    node: str
    seq: int


def body_fields(body: bytes) -> dict[str, str]:
    """The field that can hold the body: `body` for valid UTF-8, else `body_b64`."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_b64": b64encode(body).decode()}


def body_of(entry: Entry) -> bytes | None:
    """The job's body; None if the entry carries none."""
    if entry.body is not UNSET:
        return entry.body.encode()
    return None if entry.body_b64 is UNSET else b64decode(entry.body_b64)


def as_fields(entry: Entry) -> dict[str, Any]:
    """The entry's fields by name, without a body that is not set; for people and tables."""
    return {name: value for name in entry.__struct_fields__ if (value := getattr(entry, name)) is not UNSET}


# --- lines

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Entry).decode


def write_line(entry: Entry) -> bytes:
    return write_text(_encode(entry))


def write_draft(draft: Draft, place: bytes) -> bytes:
    """The line of a draft with its place, which is what `place_of` answers. No Entry is made for it, to save time."""
    return write_text(place + _encode(draft)[1:])


def place_of(wrote_at: int, node: str, seq: int) -> bytes:
    return b"%b%d," % (place_before_seq(wrote_at, node), seq)


def place_before_seq(wrote_at: int, node: str) -> bytes:
    return b'{"wrote_at":%d,"node":%b,"seq":' % (wrote_at, _encode(node))


def write_text(text: bytes) -> bytes:
    """The line of an entry that was encoded as JSON already."""
    return b"%08x%08x %b\n" % (crc32(text), len(text), text)


def read_line(line: bytes) -> Entry:
    """The entry of a line. Raises ValueError that says what is wrong with the line."""
    if not line.endswith(b"\n"):
        raise ValueError("the line is cut")
    if len(line) <= HEAD or line[HEAD - 1 : HEAD] != b" ":
        raise ValueError("the line has no head, or a newer release wrote it")
    text = line[HEAD:-1]
    if line[8 : HEAD - 1] != b"%08x" % len(text):
        raise ValueError(f"the line holds {len(text)} bytes and says another length")
    if line[:8] != b"%08x" % crc32(text):
        raise ValueError("the check sum does not fit")
    try:
        return _decode(text)
    except NOT_JSON as error:
        raise ValueError(f"not an entry: {error}") from None
