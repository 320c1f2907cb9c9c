"""php-delayqueue's messages in its own Redis, for moving them over. Its clients need no bridge: they work with ours.

A queue is a topic. Ids, due times and bodies are kept. Register the topics here first (docs/delayqueue.md): their
callbacks are in php-delayqueue's MySQL, which the bridge does not read.
"""

import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from duetime.bridges.foreign import HeldBatch, Sizes
from duetime.bridges.redis_scripts import ForeignRedis
from duetime.model.clock import SystemClock
from duetime.model.errors import InvalidRequest
from duetime.model.ids import IdMaker
from duetime.model.job import Delivery, NewJob

SYSTEM = "delayqueue"
BUCKETS = 2
SCAN_STEP = 2000
PRIORITIES = (1, 2, 3)


class DelayQueue:
    """`prefix` and `buckets` are those of its configuration."""

    system = SYSTEM

    def __init__(self, url: str, *, prefix: str = "dq_", buckets: int = BUCKETS) -> None:
        self._redis = ForeignRedis(url)
        self._prefix, self._buckets = prefix, buckets
        self._ids = IdMaker(SystemClock())

    def names(self) -> Sequence[str]:
        """The topics that have messages. Reads all of them, in steps."""
        return sorted({_topic(member) for key in self._all_keys() for member, _ in self._members(key)})

    def sizes(self, queue: str) -> Sizes:
        waiting = [score for _, score in self._of_topic(self._bucket(queue), queue)]
        ready = sum(1 for key in self._ready_keys() for _ in self._of_topic(key, queue))
        oldest = min((score for score in waiting if score is not None), default=None)
        return Sizes(ready=ready, delayed=len(waiting), oldest_due_at=None if oldest is None else int(oldest * 1000))

    def hold(self, queue: str, limit: int) -> HeldBatch | None:
        new, held = self._ids.make(), f"{self._prefix}duetime_held:{queue}"
        name = ""
        for ready in self._ready_keys():
            members = [member for member, _ in islice(self._of_topic(ready, queue), limit)]
            if len(members) < limit:
                members += [
                    member for member, _ in islice(self._of_topic(self._bucket(queue), queue), limit - len(members))
                ]
            keys = [self._bucket(queue), ready, f"{self._prefix}job_info", held, f"{held}:{new}"]
            name = self._redis.run("delayqueue_hold", keys, [new, *members]).decode()
            if name:
                break
        if not name:
            return None
        fields: Any = self._redis.call("LRANGE", f"{held}:{name}", 0, -1)
        stored = [fields[n : n + 3] for n in range(0, len(fields), 3)]
        return HeldBatch(name, [_as_job(*one) for one in stored], stored)

    def forget(self, queue: str, batch: HeldBatch, back: Sequence[int] = ()) -> None:
        """What is put back waits in the bucket: it becomes ready there when it is due."""
        held = f"{self._prefix}duetime_held:{queue}"
        given = [
            ("ZADD", self._bucket(queue), int(due_ms) / 1000, member)
            for due_ms, member, _ in (batch.stored[n] for n in back)
        ]
        self._redis.forget(held, f"{held}:{batch.name}", batch.name, given)
        if moved := [member for n, (_, member, _) in enumerate(batch.stored) if n not in back]:
            self._redis.call("HDEL", f"{self._prefix}job_info", *moved)

    def accept(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        raise InvalidRequest("jobs cannot be relayed to php-delayqueue: its clients work with Duetime's server")

    def close(self) -> None:
        self._redis.close()

    def _bucket(self, topic: str) -> str:
        return f"{self._prefix}bucket_{zlib.crc32(topic.encode()) % self._buckets}"

    def _ready_keys(self) -> list[str]:
        return [f"{self._prefix}{priority}ready_queue" for priority in PRIORITIES]

    def _all_keys(self) -> list[str]:
        return [*(f"{self._prefix}bucket_{n}" for n in range(self._buckets)), *self._ready_keys()]

    def _of_topic(self, key: str, topic: str) -> Iterator[tuple[bytes, float | None]]:
        return (one for one in self._members(key) if _topic(one[0]) == topic)

    def _members(self, key: str) -> Iterator[tuple[bytes, float | None]]:
        """(member, due second) of a bucket, or (member, None) of a ready list."""
        if key.endswith("ready_queue"):
            first = 0
            while members := self._redis.call("LRANGE", key, first, first + SCAN_STEP - 1):
                yield from ((member, None) for member in members)
                first += len(members)
            return
        cursor: Any = 0
        while True:
            cursor, found = self._redis.call("ZSCAN", key, cursor, "COUNT", SCAN_STEP)
            pairs = (
                found if not found or isinstance(found[0], list | tuple) else zip(found[::2], found[1::2], strict=True)
            )
            for member, score in pairs:
                yield member, float(score)
            if int(cursor) == 0:
                return


def _topic(member: bytes) -> str:
    return member.partition(b":")[0].decode(errors="replace")


def _as_job(due_ms: bytes, member: bytes, body: bytes) -> NewJob:
    topic, _, job_id = member.decode(errors="replace").partition(":")
    return NewJob(job_id or topic, body, due_at=int(due_ms), attributes={"delayqueue.topic": topic})
