"""php-delayqueue's messages in its own Redis, for moving them over. Its clients need no bridge: they work with ours.

A queue is a topic. Ids, due times and bodies are kept. `read_topics` reads the topics from its MySQL or MariaDB.
"""

import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

from msgspec import Struct

from duetime.bridges.foreign import HELD_BYTES, ForeignQueues, HeldBatch, Sizes, own_id
from duetime.bridges.laravel_database import Database
from duetime.bridges.redis_scripts import ForeignRedis
from duetime.model.errors import InvalidSettings
from duetime.model.job import NewJob

PASSED = 400_000
"""Entries of other topics that one step may pass in a ready list, which takes Redis a few milliseconds."""


class DelayQueue(ForeignQueues):
    """`prefix` and `buckets` are those of its configuration."""

    system = "delayqueue"

    def __init__(self, url: str, *, prefix: str = "dq_", buckets: int = 2) -> None:
        if buckets < 1:
            raise InvalidSettings(f"buckets must be at least 1, got {buckets}")
        self._redis = ForeignRedis(url)
        self.close = self._redis.close
        self._prefix, self._buckets = prefix, buckets
        self._ready = [f"{prefix}{priority}ready_queue" for priority in (1, 2, 3)]
        self._scans: dict[str, Iterator[bytes]] = {}

    def names(self) -> Sequence[str]:
        """The topics that have messages. Reads all of them, in steps."""
        return sorted({topic for topic, _ in self._all_delayed()}.union(self._all_ready()))

    def sizes(self, queue: str) -> Sizes:
        return self.list_sizes([queue])[queue]

    def list_sizes(self, queues: Sequence[str]) -> dict[str, Sizes]:
        """Reads all messages once."""
        ready, delayed, oldest = Counter(self._all_ready()), Counter[str](), dict[str, int]()
        for topic, due_at in self._all_delayed():
            delayed[topic] += 1
            oldest[topic] = min(oldest.get(topic, due_at), due_at)
        held = {queue: self._redis.count_held(self._held(queue), 3) for queue in queues}
        return {one: Sizes(ready[one], delayed[one], held=held[one], oldest_due_at=oldest.get(one)) for one in queues}

    def _all_delayed(self) -> Iterator[tuple[str, int]]:
        buckets = (self._redis.members(f"{self._prefix}bucket_{n}") for n in range(self._buckets))
        return ((_topic(member), int(due_s * 1000)) for bucket in buckets for member, due_s in bucket)

    def _all_ready(self) -> Iterator[str]:
        return (_topic(member) for key in self._ready for member in self._redis.values(key))

    def hold(self, queue: str, limit: int, size: int = HELD_BYTES) -> HeldBatch | None:
        """`size` bounds nothing: a message has at most 9,999 bytes."""
        held = self._held(queue)
        for ready, members in self._next_members(queue, limit):
            keys = [self._bucket(queue), ready, f"{self._prefix}job_info"]
            name, _ = self._redis.hold("delayqueue_hold", held, keys, members)
            if name:
                break
        else:
            return None
        stored = self._redis.batch(held, name, 3)
        return HeldBatch(name, [_as_job(*one) for one in stored], stored)

    def forget(self, queue: str, batch: HeldBatch, back: Sequence[int] = (), *, if_unshared: bool = False) -> None:
        """What is put back waits in the bucket: it becomes ready there when it is due."""
        given = [
            ("ZADD", self._bucket(queue), int(due_ms) / 1000, member)
            for due_ms, member, _ in (batch.stored[n] for n in back)
        ]
        # First, because a batch that is gone is not found again; a batch that is left has the bodies, too.
        if moved := [member for n, (_, member, _) in enumerate(batch.stored) if n not in back]:
            self._redis.call("HDEL", f"{self._prefix}job_info", *moved)
        self._redis.forget(self._held(queue), batch.name, given, if_unshared=if_unshared)

    def _next_members(self, queue: str, limit: int) -> Iterator[tuple[str, list[bytes]]]:
        """(ready list, members of the topic there or in the bucket), in portions. The first portion is empty: a batch
        that was left behind comes first.
        """
        yield self._ready[0], []
        for ready in self._ready:
            if members := self._first_ready(ready, queue, limit):
                yield ready, members
        # The scan of the bucket continues from call to call; then it begins once more, for what was added meanwhile.
        while members := list(islice(self._scans.get(queue, iter(())), limit)):
            yield self._ready[0], members
        self._scans[queue] = (member for member, _ in self._delayed(queue))
        while members := list(islice(self._scans[queue], limit)):
            yield self._ready[0], members

    def _held(self, queue: str) -> str:
        return f"{self._prefix}duetime_held:{queue}"

    def _bucket(self, topic: str) -> str:
        return f"{self._prefix}bucket_{zlib.crc32(topic.encode()) % self._buckets}"

    def _delayed(self, topic: str) -> Iterator[tuple[bytes, float]]:
        """Members of a topic, with their due seconds."""
        return (one for one in self._redis.members(self._bucket(topic)) if _topic(one[0]) == topic)

    def _first_ready(self, key: str, topic: str, limit: int) -> list[bytes]:
        """Members of a topic in a ready list: fewer than `limit` if many others are between them."""
        members, passed = list[bytes](), 0
        for place, member in enumerate(self._redis.values(key)):
            if _topic(member) == topic:
                passed += place - len(members)
                if members and (len(members) == limit or passed > PASSED):
                    break
                members.append(member)
        return members


PRIORITY_NAMES = {1: "high", 2: "normal", 3: "low"}
TOPIC_COLUMNS = (
    "topic", "t_name", "delay", "callback", "method", "timeout", "re_notify_flag", "email", "priority", "createor",
    "status",
)  # fmt: skip


class ForeignTopic(Struct, frozen=True):
    """A row of dq_topic. `fields` are those of our topic, under php-delayqueue's rules for answers and requests."""

    key: str
    callback: str
    is_online: bool
    fields: dict[str, Any]


def read_topics(url: str) -> list[ForeignTopic]:
    """The topics in php-delayqueue's database (mysql://user:password@host/database)."""
    with closing(Database(url)) as database, database.transaction() as run:
        rows = run.rows(f"SELECT {', '.join(TOPIC_COLUMNS)} FROM dq_topic ORDER BY id")
    return [_as_topic(dict(zip(TOPIC_COLUMNS, row, strict=True))) for row in rows]


def _as_topic(row: dict[str, Any]) -> ForeignTopic:
    condition = row["re_notify_flag"] or ""
    fields = {
        "name": row["t_name"] or "",
        "delay": f"{int(row['delay'] or 0)}s",
        "method": str(row["method"] or "GET").upper(),
        "timeout": f"{int(row['timeout'] or 3000)}ms",
        # The column's default is a label by mistake: a condition names a part of the answer.
        "retry_if": condition if "{" in condition else "",
        "priority": PRIORITY_NAMES.get(int(row["priority"] or 2), "normal"),
        "alert": [address.strip() for address in (row["email"] or "").split(",") if address.strip()],
        "creator": row["createor"] or "",
        "success": "body",
        "php_fields": True,
    }
    return ForeignTopic(row["topic"], row["callback"], int(row["status"] or 1) == 1, fields)


def _topic(member: bytes) -> str:
    return member.partition(b":")[0].decode(errors="replace")


def _as_job(due_ms: bytes, member: bytes, body: bytes) -> NewJob:
    """Its tries are unlimited, as those of a job that a client adds to a topic: the topic's cap ends them."""
    topic, _, job_id = member.partition(b":")
    attributes = {"delayqueue.topic": topic.decode(errors="replace")}
    return NewJob(own_id(job_id or topic), body, due_at=int(due_ms), tries=0, attributes=attributes)
