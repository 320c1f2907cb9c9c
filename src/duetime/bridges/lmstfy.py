"""lmstfy's jobs in its own Redis, for moving them over. Its clients need no bridge: they work with our server.

Stop lmstfy's servers, or point their clients at Duetime first: a job that a consumer of lmstfy holds looks delayed
until its ttr has passed, and is moved as such if it has tries left. One in its last run stays until then, and becomes
a dead letter, as in lmstfy. Names are `namespace/queue`. Bodies, ids, due times, remaining tries and time to live are
kept. `LmstfyDeadLetters` moves the dead letters, and `tokens` reads who may use them.
"""

import base64
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from duetime.bridges.foreign import HELD_BYTES, ForeignQueues, HeldBatch, Sizes, own_id
from duetime.bridges.redis_scripts import ForeignRedis
from duetime.model.clock import MAX_INSTANT
from duetime.model.errors import NOT_JSON, InvalidRequest
from duetime.model.job import MAX_TRIES, NewJob

TIMER = "timer_set"
PLAIN_ID = 26


class StoredJob(msgspec.Struct):
    """A body of version 1."""

    body: str | None
    attributes: dict[str, str] | None = None


class Lmstfy(ForeignQueues):
    system = "lmstfy"

    def __init__(self, url: str) -> None:
        self._redis = ForeignRedis(url)
        self.close = self._redis.close
        self._scans: dict[str, Iterator[bytes]] = {}
        self._found: dict[str, list[bytes]] = {}
        """What a scan has found and no batch had room for."""

    def names(self) -> Sequence[str]:
        spaces: Any = self._redis.call("HKEYS", "m/ns")
        return sorted(
            f"{space.decode()}/{queue.decode()}"
            for space in spaces
            for queue in self._redis.call("HKEYS", f"m/ns/{space.decode()}")
        )

    def sizes(self, queue: str) -> Sizes:
        return self.list_sizes([queue])[queue]

    def list_sizes(self, queues: Sequence[str]) -> dict[str, Sizes]:
        """Reads the timer, which all queues share, once."""
        by_prefix = {_timer_prefix(queue): queue for queue in queues}
        delayed, reserved, oldest = Counter[str](), Counter[str](), dict[str, int]()
        for entry, due_s in self._redis.members(TIMER):
            if queue := by_prefix.get(_prefix_of(entry)):
                (reserved if _is_last_run(queue, entry) else delayed)[queue] += 1
                oldest[queue] = min(oldest.get(queue, MAX_INSTANT), int(due_s * 1000))
        return {
            queue: Sizes(
                ready=self._redis.call("LLEN", f"q/{queue}"),
                delayed=delayed[queue],
                reserved=reserved[queue],
                quarantined=self._redis.call("LLEN", f"d/{queue}"),
                held=self._redis.count_held(f"{self._held}/{queue}", 5),
                oldest_due_at=oldest.get(queue),
            )
            for queue in queues
        }

    def hold(self, queue: str, limit: int, size: int = HELD_BYTES) -> HeldBatch | None:
        space, name = split(queue)
        held, entries = f"{self._held}/{queue}", list[bytes]()
        keys = [f"{self._list}/{space}/{name}", TIMER, f"d/{space}/{name}"]
        while True:
            given = [limit, size, f"j/{space}/{name}/", *entries]
            batch, tried = self._redis.hold("lmstfy_hold", held, keys, given)
            if batch:
                break
            # No job is ready. What was found in the timer may have left it meanwhile: then others are looked for.
            if not (entries := self._next_delayed(queue, limit)):
                return None
        self._found[queue] = entries[tried:] + self._found.get(queue, [])
        stored = self._redis.batch(held, batch, 5)
        return HeldBatch(batch, [_as_job(*one) for one in stored], stored)

    def forget(self, queue: str, batch: HeldBatch, back: Sequence[int] = (), *, if_unshared: bool = False) -> None:
        """What is put back goes to the timer: it becomes ready there when it is due."""
        space, name = split(queue)
        given, bodies = list[tuple[Any, ...]](), list[bytes]()
        for n, (due_ms, tries, job_id, *_) in enumerate(batch.stored):
            if n in back:
                given.append(self._put_back(queue, int(due_ms), struct.pack("<HH", int(tries), len(job_id)) + job_id))
            else:
                bodies.append(f"j/{space}/{name}/".encode() + job_id)
        # First, because a batch that is gone is not found again; a batch that is left has the bodies, too.
        if bodies:
            self._redis.call("UNLINK", *bodies)
        self._redis.forget(f"{self._held}/{queue}", batch.name, given, if_unshared=if_unshared)

    _list, _held = "q", "duetime_held"

    def _put_back(self, queue: str, due_ms: int, entry: bytes) -> tuple[Any, ...]:
        return "ZADD", TIMER, due_ms / 1000, _timer_prefix(queue) + entry

    def _next_delayed(self, queue: str, limit: int) -> list[bytes]:
        """Entries that no earlier call has found, in a scan that continues from call to call and then begins again."""
        if found := self._found.get(queue):
            self._found[queue] = found[limit:]
            return found[:limit]
        entries = list(islice(self._scans.get(queue, iter(())), limit))
        if not entries:
            now_s = int(self._redis.call("TIME")[0])
            self._scans[queue] = (
                entry for entry, score in self._timer_entries(queue) if score <= now_s or not _is_last_run(queue, entry)
            )
            entries = list(islice(self._scans[queue], limit))
        return entries

    def tokens(self) -> list["LmstfyToken"]:
        """The tokens in this Redis, which is the one that lmstfy calls AdminRedis, with their limits."""
        limiters: Any = self._redis.call("HGETALL", "__throttler_keys__")
        limits = {key.decode(): msgspec.json.decode(value, type=dict[str, int]) for key, value in limiters.items()}
        found: list[LmstfyToken] = []
        for key in self._redis.scan("tk/*/*"):
            _, pool, space = key.split("/", 2)
            described: Any = self._redis.call("HGETALL", key)
            for token, description in described.items():
                secret = token.decode()
                limit = limits.get(f"{pool}/{space}/{secret}", {})
                found.append(LmstfyToken(pool, space, secret, description.decode(errors="replace"), limit))
        return found

    def _timer_entries(self, queue: str) -> Iterator[tuple[bytes, float]]:
        """(entry, due second) of one queue. The zset is shared by all queues, so all of it is scanned, in steps."""
        prefix = _timer_prefix(queue)
        return (one for one in self._redis.members(TIMER) if one[0].startswith(prefix))


class LmstfyDeadLetters(Lmstfy):
    """The dead letters, with the same methods: they are counted as ready."""

    _list, _held = "d", "duetime_held_dead"

    def sizes(self, queue: str) -> Sizes:
        held = self._redis.count_held(f"{self._held}/{queue}", 5)
        return Sizes(ready=self._redis.call("LLEN", f"d/{queue}"), delayed=0, held=held)

    def _next_delayed(self, queue: str, limit: int) -> list[bytes]:
        return []

    def _put_back(self, queue: str, due_ms: int, entry: bytes) -> tuple[Any, ...]:
        return "RPUSH", f"d/{queue}", "", entry


class LmstfyToken(msgspec.Struct, frozen=True):
    """`limit` has read, write (requests) and interval (seconds), or is empty."""

    pool: str
    namespace: str
    secret: str
    description: str
    limit: dict[str, int]


def split(queue: str) -> tuple[str, str]:
    space, slash, name = queue.partition("/")
    if not slash or not space or not name:
        raise InvalidRequest(f"lmstfy queue must be written namespace/queue, got {queue!r}")
    return space, name


def _timer_prefix(queue: str) -> bytes:
    """The beginning of each entry of this queue in the timer."""
    space, name = (part.encode() for part in split(queue))
    return struct.pack(f"<H{len(space)}sH{len(name)}s", len(space), space, len(name), name)


def _prefix_of(entry: bytes) -> bytes:
    name_at = 2 + int.from_bytes(entry[:2], "little")
    return entry[: name_at + 2 + int.from_bytes(entry[name_at : name_at + 2], "little")]


def _is_last_run(queue: str, entry: bytes) -> bool:
    """Returns whether no tries are left, so that a consumer holds the job or has held it."""
    return entry[(first := len(_timer_prefix(queue))) : first + 2] == b"\0\0"


def _as_job(due_ms: bytes, tries: bytes, job_id: bytes, ttl_ms: bytes, stored: bytes) -> NewJob:
    theirs = job_id.decode(errors="replace")
    body, attributes = stored, {"lmstfy.id": theirs}
    if len(theirs) != PLAIN_ID:
        try:
            read = msgspec.json.decode(stored, type=StoredJob)
            body, attributes = base64.b64decode(read.body or ""), {**(read.attributes or {}), **attributes}
        except (*NOT_JSON, ValueError):
            attributes["lmstfy.invalid"] = "true"
    return NewJob(
        own_id(job_id),
        body,
        due_at=int(due_ms),
        ttl_ms=max(1, int(ttl_ms)) if int(ttl_ms) >= 0 else 0,
        tries=min(max(1, int(tries)), MAX_TRIES),
        attributes=attributes,
    )
