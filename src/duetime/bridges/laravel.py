"""Laravel's queues from Python: push jobs that PHP workers run, and run jobs that PHP pushed.

`connect` opens them: a Redis URL uses the keys of Laravel's Redis driver, a database URL the tables of its database
driver. Both run next to PHP workers: a job is reserved by one of them, and a reservation that ends is taken over in
both directions. docs/bridge-laravel.md has examples.
"""

import logging
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, NamedTuple, Self, Unpack

from msgspec import Struct

from duetime.bridges.foreign import HELD_BYTES, ForeignQueues, HeldBatch, Sizes, own_id
from duetime.bridges.payload import (
    JobOptions,
    LaravelPayload,
    as_laravel_text,
    make_payload,
    next_attempt,
    read_payload,
)
from duetime.bridges.redis_scripts import ForeignRedis
from duetime.model.clock import Duration, delay_ms, duration_ms, instant_ms
from duetime.model.errors import InvalidRequest, LeaseLost
from duetime.model.job import Delivery, NewJob, chunks

log = logging.getLogger("duetime.bridges")

SYSTEM = "laravel"
RETRY_AFTER_S = 90
MIGRATED = 100
PART = re.compile(r":(delayed|reserved|notify|failed|poison|accepted|held(:[^:]*)?)$")
"""What follows the name of a queue in its other keys."""
SLICE_S = 1.0
"""A waiting pop checks for due jobs at least this often, because nobody announces a new delayed job."""


class ReservedJob(Struct, frozen=True):
    """A job as a driver reserved it. `handle` is what the driver needs to find it again."""

    queue: str
    text: bytes
    payload: LaravelPayload
    attempts: int
    handle: Any


class BulkJob(NamedTuple):
    """`delay` is a duration or an aware datetime; None is now."""

    job: str
    data: Any = ""
    delay: Duration | datetime | None = None


class LaravelJob:
    """A reserved job. As a context manager it is deleted at the end, or released after an exception."""

    def __init__(self, driver: "LaravelQueues", reserved: ReservedJob) -> None:
        self._driver, self.reserved = driver, reserved
        self.payload, self.attempts, self.queue = reserved.payload, reserved.attempts, reserved.queue
        self.is_ended = False

    @property
    def data(self) -> Any:
        return self.payload.data

    def delete(self) -> None:
        """The job is done. Raises LeaseLost if its reservation was taken over."""
        self._end(self._driver.delete(self.reserved))

    def release(self, delay: Duration = 0) -> None:
        """Run the job again after the delay. Raises LeaseLost."""
        self._end(self._driver.release(self.reserved, duration_ms(delay) / 1000))

    def fail(self, error: str = "") -> None:
        """Move the job to the failed jobs. Raises LeaseLost."""
        self._end(self._driver.fail(self.reserved, error))

    def extend(self) -> None:
        """Begin the reservation anew. Raises LeaseLost."""
        if not self._driver.extend(self.reserved):
            raise self._lost()

    def _end(self, was_held: bool) -> None:
        self.is_ended = True
        if not was_held:
            raise self._lost()

    def _lost(self) -> LeaseLost:
        return LeaseLost(f"reservation of Laravel job {self.payload.uuid or self.payload.id!r} was lost")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None and not self.is_ended:
            self.delete()
        elif not self.is_ended:
            self.release(self.payload.backoff_s(self.attempts, 0))


class LaravelQueues(ForeignQueues, ABC):
    """What both drivers have in common: Laravel's queue methods. `queue` is "default" if not given."""

    system = SYSTEM

    def __init__(self, retry_after: Duration, handler: str | None) -> None:
        self.retry_after_s = max(1, -(-duration_ms(retry_after) // 1000))
        self._handler = handler

    # --- producers

    def push(self, job: str, data: Any = "", queue: str = "default", **options: Unpack[JobOptions]) -> str:
        """Run `Class@method` with JSON data now. Returns the payload's id."""
        return self.bulk([BulkJob(job, data)], queue, **options)[0]

    def later(
        self,
        delay: Duration | datetime,
        job: str,
        data: Any = "",
        queue: str = "default",
        **options: Unpack[JobOptions],
    ) -> str:
        """Run it after a delay, or at an aware datetime; rounded up to Laravel's whole seconds. Past times mean now."""
        return self.bulk([BulkJob(job, data, delay)], queue, **options)[0]

    def bulk(self, jobs: Iterable[BulkJob], queue: str = "default", **options: Unpack[JobOptions]) -> list[str]:
        """Add many jobs, each with its own delay. Returns the payloads' ids."""
        made = [(_when(one.delay), *self._made(one, options)) for one in jobs]
        for some in chunks([(when, text) for when, text, _ in made], size=lambda one: len(one[1])):
            self.add_texts(queue, some)
        return [job_id for *_, job_id in made]

    def push_raw(self, text: bytes, queue: str = "default", delay: Duration | datetime | None = None) -> None:
        """Add a finished payload. Raises InvalidRequest for one that a PHP worker would lose."""
        next_attempt(text)
        self.add_texts(queue, [(_when(delay), text)])

    @staticmethod
    def _made(one: BulkJob, options: JobOptions) -> tuple[bytes, str]:
        now, delay = time.time(), one.delay
        delay_s = instant_ms(delay) / 1000 - now if isinstance(delay, datetime) else delay_ms(delay or 0) / 1000
        delay_s = None if delay is None else max(0, delay_s)
        text = make_payload(one.job, one.data, now, delay_s=delay_s, options=options)
        return text, str(read_payload(text).id)

    # --- consumers

    def pop(self, queue: str = "default", *, wait: Duration = 0) -> LaravelJob | None:
        """Reserve the next job, or None if none is ready in time."""
        found = self.reserve([queue], 1, duration_ms(wait) / 1000)
        return LaravelJob(self, found[0]) if found else None

    def size(self, queue: str = "default") -> int:
        sizes = self.sizes(queue)
        return sizes.total - sizes.held

    def pending_size(self, queue: str = "default") -> int:
        return self.sizes(queue).ready

    def delayed_size(self, queue: str = "default") -> int:
        return self.sizes(queue).delayed

    def reserved_size(self, queue: str = "default") -> int:
        return self.sizes(queue).reserved

    # --- relay

    def accept(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        now_s = time.time()
        made: list[tuple[str, bytes]] = []
        for one in deliveries:
            job_id = f"{one.lease.id}.{one.lease.born}"
            made.append((job_id, as_laravel_text(one.body, job_id, handler=self._handler, now_s=now_s)))
        self.accept_texts(queue, made)

    def _batch(self, queue: str, name: str, held: Sequence[tuple[int, bytes, int | None]]) -> HeldBatch:
        """`held` are (due time, text, attempts; None if the text has them). A text that is no payload is relayed, too:
        nothing gets lost.
        """
        return HeldBatch(name, [self._as_job(queue, name, n, *one) for n, one in enumerate(held)], held)

    @staticmethod
    def _as_job(queue: str, batch: str, number: int, due_at: int, text: bytes, attempts: int | None) -> NewJob:
        attributes, theirs, tries = {"laravel.queue": queue}, f"{batch}.{number}", 1
        try:
            payload = read_payload(text)
        except InvalidRequest:
            attributes["laravel.invalid"] = "true"
        else:
            theirs = payload.uuid or payload.id or theirs
            attributes["laravel.job"] = payload.names[0][:200].replace("\0", "")
            tries = payload.tries_after(payload.attempts if attempts is None else attempts)
        return NewJob(own_id(theirs.encode(), f"{SYSTEM}-"), text, due_at=due_at, tries=tries, attributes=attributes)

    # --- what a driver implements, besides ForeignQueues

    @abstractmethod
    def add_texts(self, queue: str, texts: Sequence[tuple[str, bytes]]) -> None:
        """Add payloads: "" for now, "+SECONDS" for a delay, else the epoch second at which the job is due."""

    @abstractmethod
    def reserve(self, queues: Sequence[str], limit: int, wait_s: float = 0) -> list[ReservedJob]:
        """Reserve ready jobs of the first queues that have some."""

    @abstractmethod
    def delete(self, job: ReservedJob) -> bool:
        """Returns False, as the next three do, if the reservation was lost; then nothing changed."""

    @abstractmethod
    def release(self, job: ReservedJob, delay_s: float, uncounted: int = 0) -> bool:
        """With `uncounted=1` this reservation is no attempt."""

    @abstractmethod
    def extend(self, job: ReservedJob) -> bool: ...

    @abstractmethod
    def fail(self, job: ReservedJob, error: str) -> bool: ...

    @abstractmethod
    def accept_texts(self, queue: str, texts: Sequence[tuple[str, bytes]]) -> None:
        """Add payloads by id; one that was added in the last week is not added again."""

    @abstractmethod
    def clear(self, queue: str = "default") -> int:
        """Delete all jobs of the queue. Returns how many there were."""


def _when(delay: Duration | datetime | None) -> str:
    if delay is None:
        return ""
    if isinstance(delay, datetime):
        return f"{instant_ms(delay) / 1000:.3f}"
    return f"+{delay_ms(delay) / 1000:.3f}"


class LaravelRedis(LaravelQueues):
    """The keys of Laravel's Redis driver. `prefix` is that of the application: `laravel_database_` up to Laravel 12,
    `laravel-database-` from 13, unless REDIS_PREFIX says otherwise. On a cluster the name gets braces, as in 13.5.
    """

    def __init__(
        self, url: str, *, prefix: str = "", retry_after: Duration = RETRY_AFTER_S, handler: str | None = None
    ) -> None:
        super().__init__(retry_after, handler)
        self._prefix = prefix
        self._redis = ForeignRedis(url)
        self.close = self._redis.close

    def _key(self, queue: str, part: str = "") -> str:
        tagged = "{" in queue and "}" in queue.partition("{")[2][1:]
        name = f"{{{queue}}}" if self._redis.is_cluster and not tagged else queue
        return f"{self._prefix}queues:{name}{part and ':' + part}"

    def _keys(self, queue: str, *parts: str) -> list[str]:
        return [self._key(queue, part) for part in parts]

    def names(self) -> Sequence[str]:
        begin = f"{self._prefix}queues:"
        return sorted({PART.sub("", key.removeprefix(begin)) for key in self._redis.scan(f"{begin}*")})

    def sizes(self, queue: str) -> Sizes:
        call, first = self._redis.call, self._redis.head_score(self._key(queue, "delayed"))
        return Sizes(
            ready=call("LLEN", self._key(queue)),
            delayed=call("ZCARD", self._key(queue, "delayed")),
            reserved=call("ZCARD", self._key(queue, "reserved")),
            quarantined=call("LLEN", self._key(queue, "poison")),
            held=self._redis.count_held(self._key(queue, "held"), 2),
            oldest_due_at=None if first is None else int(first * 1000),
        )

    def add_texts(self, queue: str, texts: Sequence[tuple[str, bytes]]) -> None:
        self._redis.run(
            "laravel_push", self._keys(queue, "", "notify", "delayed"), [part for one in texts for part in one]
        )

    def reserve(self, queues: Sequence[str], limit: int, wait_s: float = 0) -> list[ReservedJob]:
        deadline = time.monotonic() + wait_s
        while True:
            next_s = SLICE_S
            for queue in queues:
                keys = self._keys(queue, "delayed", "reserved", "", "notify")
                left_ms: int = self._redis.run("laravel_migrate", keys, [MIGRATED])
                if found := self._claim(queue, limit):
                    return found
                next_s = min(next_s, left_ms / 1000) if left_ms >= 0 else next_s
            pause_s = min(next_s, deadline - time.monotonic())
            if pause_s <= 0:
                return []
            # Laravel wakes one worker for each token. A token too many or too few only costs a check.
            self._redis.wait_for([self._key(queue, "notify") for queue in queues], pause_s)

    def _claim(self, queue: str, limit: int) -> list[ReservedJob]:
        while texts := self._redis.call("LRANGE", self._key(queue), 0, limit - 1):
            following = [_attempt_or_empty(text) for text in texts]
            claimed: Any = self._redis.run(
                "laravel_claim",
                self._keys(queue, "", "reserved", "notify", "poison"),
                [self.retry_after_s, *(part for pair in zip(texts, following, strict=True) for part in pair)],
            )
            if set_aside := following.count(b""):
                log.error("laravel_payload_set_aside", extra={"queue": queue, "payloads": set_aside})
            if found := [self._reserved(queue, text) for text, done in zip(following, claimed, strict=True) if done]:
                return found
        return []

    @staticmethod
    def _reserved(queue: str, text: bytes) -> ReservedJob:
        payload = read_payload(text)
        return ReservedJob(queue, text, payload, payload.attempts, None)

    def _finish(self, job: ReservedJob, part: str, how: str, seconds: float = 0, text: bytes | None = None) -> bool:
        keys = self._keys(job.queue, "reserved", part)
        return self._redis.run("laravel_end", keys, [job.text, how, f"{seconds:.3f}", text or job.text]) == 1

    def delete(self, job: ReservedJob) -> bool:
        return self._finish(job, "delayed", "delete")

    def release(self, job: ReservedJob, delay_s: float, uncounted: int = 0) -> bool:
        return self._finish(job, "delayed", "zadd", delay_s, next_attempt(job.text, -uncounted))

    def extend(self, job: ReservedJob) -> bool:
        return self._finish(job, "reserved", "zadd", self.retry_after_s)

    def fail(self, job: ReservedJob, error: str) -> bool:
        """Laravel keeps failed jobs in a table, and Redis has none: the list `queues:NAME:failed` keeps them here."""
        return self._finish(job, "failed", "push")

    def hold(self, queue: str, limit: int, size: int = HELD_BYTES) -> HeldBatch | None:
        held, keys = self._key(queue, "held"), self._keys(queue, "", "delayed", "notify", "reserved")
        name, _ = self._redis.hold("laravel_hold", held, keys, [limit, size])
        stored = self._redis.batch(held, name, 2)
        return self._batch(queue, name, [(int(due_at), text, None) for due_at, text in stored]) if name else None

    def forget(self, queue: str, batch: HeldBatch, back: Sequence[int] = (), *, if_unshared: bool = False) -> None:
        """What is put back is delayed first; every worker moves what is due to the ready jobs."""
        given = [("ZADD", self._key(queue, "delayed"), batch.stored[n][0] / 1000, batch.stored[n][1]) for n in back]
        self._redis.forget(self._key(queue, "held"), batch.name, given, if_unshared=if_unshared)

    def accept_texts(self, queue: str, texts: Sequence[tuple[str, bytes]]) -> None:
        self._redis.run("accept", self._keys(queue, "", "accepted", "notify"), [part for one in texts for part in one])

    def clear(self, queue: str = "default") -> int:
        return self._redis.run("laravel_clear", self._keys(queue, "", "notify", "delayed", "reserved"), [])


def _attempt_or_empty(text: bytes) -> bytes:
    try:
        return next_attempt(text)
    except InvalidRequest:
        return b""


def connect(
    url: str, *, prefix: str = "", retry_after: Duration = RETRY_AFTER_S, handler: str | None = None
) -> LaravelQueues:
    """Laravel's queues in Redis or, by the URL of a database, in its tables. `prefix` is for Redis keys. `handler`
    (Class@method) runs our jobs that have no Laravel payload, for `accept` and the relay.
    """
    if url.startswith(("redis:", "rediss:", "redis+cluster:")):
        return LaravelRedis(url, prefix=prefix, retry_after=retry_after, handler=handler)
    from duetime.bridges.laravel_database import LaravelDatabase  # noqa: PLC0415 (optional drivers)

    return LaravelDatabase(url, retry_after=retry_after, handler=handler)
