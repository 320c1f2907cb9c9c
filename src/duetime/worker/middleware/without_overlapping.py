"""Never two runs of a key at once, over all workers, also when one is killed.

The lock is a job in the queue `duetime.locks`, which nobody reserves. Its id stands for the key, its body says which
delivery of which job holds it. A lock lives no longer than the lease of its holder: a job that finds it taken looks at
the holder's job, and if that delivery has ended without a word (its worker was killed and the lease has lapsed), takes
the lock over. Taking over and letting go are each a look and a push with a mark made of the `born` of the lock that was
seen, so of all who see the same lock only one can replace it. A lock that was let go of stays for a while as a free
one: if it went at once, somebody who has just seen it could replace the one that comes after it.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct

from duetime.client.calls import get, push
from duetime.model.clock import Duration, duration_ms
from duetime.model.errors import DuetimeError, MarkMismatch
from duetime.model.job import DAY_MS, Event, IfExists, Job, NewJob
from duetime.model.names import Queue, check_queue
from duetime.stores.base import Mark
from duetime.worker.current_job import CurrentJob
from duetime.worker.middleware.keys import JobKey, ask, by_task, is_leased, key_text
from duetime.worker.middleware_chain import Middleware
from duetime.worker.task_exceptions import Cancel, Postpone

LOCKS = "duetime.locks"
LIFE_MS = 7 * DAY_MS
"""The longest that a lock is held, and that one is kept whose holder died and whose key nobody asks for again."""
FREE_MS = 120_000
"""The life of a free lock, and of the marks: longer than what somebody has seen of a lock can be worth anything."""
SEEN_S = 30
"""What was seen of a lock so long ago is not acted upon."""
LOOKS = 5
"""How often a lock is looked at that changes each time, before the job waits like others."""


class LockHolder(Struct, frozen=True, array_like=True):
    """One delivery of one job."""

    queue: str
    id: str
    born: int
    attempt: int


def without_overlapping(key: JobKey = by_task, *, after: Duration = "1s", drop: bool = False) -> Middleware:
    """Run no two jobs of a key at the same time. The second one is postponed by `after`, or with `drop` removed."""
    after_ms = duration_ms(after)

    async def alone(job: CurrentJob, call: Callable[[], Awaitable[Any]]) -> Any:
        lock = OverlapLock(job, key_text("overlap", job, key))
        if not await lock.take():
            if drop:
                raise Cancel("another one is running")
            raise Postpone(after=f"{after_ms}ms")
        try:
            return await call()
        finally:
            await lock.let_go()

    return alone


class OverlapLock:
    def __init__(self, job: CurrentJob, name: str) -> None:
        info = job.info
        self._job = job
        self._name = name
        self._queue: Queue = check_queue(info.namespace, LOCKS)
        self._mine = msgspec.json.encode(LockHolder(info.queue, info.id, info.born, info.attempt))
        self._born = 0

    async def take(self) -> bool:
        """False if another delivery holds it."""
        for _ in range(LOOKS):
            seen_at = time.monotonic()
            [moved] = (await ask(self._job, push(self._queue, [self._lock()], IfExists.KEEP))).jobs
            if moved.event is not Event.KEPT:
                self._born = moved.born
                return True
            [held] = await ask(self._job, get(self._queue, [self._name]))
            if held is None:
                continue  # it was let go of in this moment
            if held.body == self._mine:  # the answer to the push was lost, and the push was repeated
                self._born = held.born
                return True
            if await self._is_held(held):
                return False
            if time.monotonic() - seen_at < SEEN_S and await self._replace(held.born, self._lock()):
                return True
        return False

    async def let_go(self) -> None:
        """Free the lock if this delivery still owns it. The mark alone cannot tell: a run that hung may come here long
        after another one took the lock over, when the mark of the takeover has ended.
        """
        try:
            [held] = await ask(self._job, get(self._queue, [self._name]))
            if held is not None and held.born == self._born:
                await self._replace(self._born, NewJob(self._name, b"", delay_ms=FREE_MS, ttl_ms=FREE_MS, tries=0))
        except (DuetimeError, Postpone):
            return  # it ends with the lease

    async def _is_held(self, lock: Job) -> bool:
        try:
            holder = msgspec.json.decode(lock.body, type=LockHolder)
            queue = check_queue(self._queue.namespace, holder.queue)
        except (msgspec.MsgspecError, DuetimeError):
            return False  # it was let go of
        return await is_leased(self._job, queue, holder.id, holder.born, holder.attempt)

    async def _replace(self, born: int, new: NewJob) -> bool:
        """Put a new lock in the place of the one that was born then; False if somebody else has."""
        mark = Mark(f"/lock/{self._name}~{born}", new.body or b"free", FREE_MS)
        try:
            pushed = await ask(self._job, push(self._queue, [new], IfExists.REPLACE, mark))
        except MarkMismatch:
            return False
        self._born = pushed.jobs[0].born
        return True

    def _lock(self) -> NewJob:
        return NewJob(self._name, self._mine, delay_ms=LIFE_MS, ttl_ms=LIFE_MS, tries=0)
