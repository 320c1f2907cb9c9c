"""Delayed and blocking queues as plain collections of values, after Redisson's, for asyncio.

Both are views of one ordinary queue: a value that is offered to the DelayedQueue can be taken from the BlockingQueue of
the same name when its delay is over; no program has to move it. A taken value is leased: it comes back if its consumer
dies, and is removed only when it is acknowledged.

    await AsyncDelayedQueue(client, "mail").offer({"to": "ann"}, "10m")
    async with await AsyncBlockingQueue(client, "mail").take() as taken:
        send(taken.value)
"""

import sys
import time
from asyncio import sleep
from collections.abc import AsyncIterator, Callable, Iterable, MutableSequence, Sequence
from typing import Any, NoReturn

from duetime.client.async_client import AsyncClient, AsyncLeasedJob, AsyncQueueClient
from duetime.client.checks import instance, items
from duetime.client.collection_base import TTR_S, AsyncListeners, AsyncOnly, Codec, JsonCodec, check_codec
from duetime.model.backoff import Outage
from duetime.model.clock import Duration, duration_ms
from duetime.model.errors import InvalidRequest, JobNotFound, StoreUnavailable
from duetime.model.job import STEP_JOBS, Delivery, IfExists, Job, NewJob, State, check_whole
from duetime.model.names import check_id
from duetime.stores.base import QueueRules

UNLIMITED_TRIES = 0
POLL_EVERY_S = 0.05


class AsyncTaken(AsyncLeasedJob):
    """A value that you have taken. As a context manager, it is acknowledged at the end of the block, and released if
    the block raises.
    """

    def __init__(
        self, client: AsyncClient, delivery: Delivery, value: Any, on_ack: Callable[[Any], None] = lambda _: None
    ) -> None:
        super().__init__(client, delivery)
        self.value = value
        self._on_ack = on_ack

    async def ack(self) -> None:
        """Finish the job. Raises LeaseLost if the lease is no longer valid."""
        await super().ack()
        self._on_ack(self.value)

    async def __aenter__(self) -> "AsyncTaken":
        return self


class AsyncCollection(AsyncOnly):
    """What all collections have in common: read and remove values."""

    _states: tuple[State, ...] = ()

    def __init__(self, client: AsyncClient, name: str, codec: Codec | None = None) -> None:
        super().__init__()
        self._client = client
        self._queue: AsyncQueueClient = client.queue(name)
        self._codec = JsonCodec() if codec is None else check_codec(codec)

    async def _offer(self, value: Any, delay_ms: int, job_id: str | None, ttl_ms: int = 0) -> str:
        job_id = self._client.make_id() if job_id is None else check_id(job_id)
        job = NewJob(job_id, self._codec.encode(value), delay_ms, ttl_ms=ttl_ms, tries=UNLIMITED_TRIES)
        [moved] = await self._queue.bulk([job], if_exists=IfExists.KEEP)
        return moved.id

    async def _by_age(self) -> list[Job]:
        """All values, in the order in which they were offered."""
        return sorted([job async for job in self._jobs()], key=lambda job: (job.born, job.id))

    async def entries(self) -> list[tuple[str, Any]]:
        """Iterate over pairs of id and value. You can remove values with `remove_id` meanwhile."""
        return [(job.id, self._codec.decode(job.body)) async for job in self._jobs()]

    async def size_in_memory(self) -> int:
        """Return the size of all values and ids in bytes, without the overhead of the store. Reads all values."""
        return sum([len(job.body) + len(job.id) async for job in self._jobs()])

    async def copy(self, name: str) -> int:
        """Add a copy of every value to another queue, with the same due time. Returns their number. Repeating it
        changes nothing.
        """
        target, copied = self._client.queue(name), list[NewJob]()
        async for job in self._jobs():
            copied.append(NewJob(job.id, job.body, due_at=job.due_at, tries=job.tries, priority=job.priority))
        return len(await target.bulk(copied)) if copied else 0

    async def poll_last_and_offer_first_to(self, name: str) -> Any:
        """Move the value that was offered last to the front of another queue, where it is due immediately. Returns the
        value, or None if there is none. It is added there before it is removed here, so a crash in between leaves it in
        both.
        """
        target = self._client.queue(name)
        for job in reversed(await self._by_age()):
            value = self._codec.decode(job.body)
            first = await target.list_jobs(State.READY, limit=1)
            counts = await target.counts()
            due_at = min(first.jobs[0].due_at - 1, counts.now) if first.jobs else counts.now
            await target.bulk([NewJob(job.id, job.body, due_at=due_at, tries=job.tries, priority=job.priority)])
            if await self._remove(job):
                return value
            await target.cancel(job.id)  # another consumer had taken it
        return None

    async def _jobs(self) -> AsyncIterator[Job]:
        for state in self._states:
            cursor = None
            while True:
                page = await self._queue.list_jobs(state, cursor=cursor, limit=STEP_JOBS)
                for job in page.jobs:
                    yield job
                cursor = page.cursor
                if cursor is None:
                    break

    async def _find(self, value: Any) -> AsyncIterator[Job]:
        wanted = self._codec.encode(value)
        async for job in self._jobs():
            if job.body == wanted:
                yield job

    async def read_all(self) -> list[Any]:
        """Return all values, without taking them."""
        return [self._codec.decode(job.body) async for job in self._jobs()]

    async def contains(self, value: Any) -> bool:
        """Return whether a value is in the queue. Reads all values; `contains_id` does not."""
        async for _ in self._find(value):
            return True
        return False

    async def contains_id(self, job_id: str) -> bool:
        """Return whether a value with this id is in the queue."""
        try:
            job = await self._queue.get(job_id)
        except JobNotFound:
            return False
        return job.state in self._states

    async def remove(self, value: Any) -> bool:
        """Remove one value that is equal to this one. Reads all values; `remove_id` does not."""
        async for job in self._find(value):
            if await self._remove(job):
                return True
        return False

    async def contains_all(self, values: Iterable[Any]) -> bool:
        """Return whether each of the values is in the queue. Reads all values once."""
        there = {job.body async for job in self._jobs()}
        return all(self._codec.encode(value) in there for value in items("values", values))

    async def remove_all(self, values: Iterable[Any]) -> bool:
        """Remove all values that are equal to one of these. Returns whether anything was removed."""
        gone = {self._codec.encode(value) for value in items("values", values)}
        return await self._remove_where(lambda body: body in gone) > 0

    async def retain_all(self, values: Iterable[Any]) -> bool:
        """Remove all values that are equal to none of these. Returns whether anything was removed."""
        kept = {self._codec.encode(value) for value in items("values", values)}
        return await self._remove_where(lambda body: body not in kept) > 0

    async def _remove_where(self, is_unwanted: Callable[[bytes], bool]) -> int:
        # The list is read first, because removing while paging would skip values.
        found = [job async for job in self._jobs() if is_unwanted(job.body)]
        return sum([await self._remove(job) for job in found])

    async def _remove(self, job: Job) -> bool:
        """Returns False if another consumer has it, or it is gone."""
        return await self.remove_id(job.id)

    async def remove_id(self, job_id: str) -> bool:
        """Remove the value with this id. Returns whether there was one."""
        try:
            await self._queue.cancel(job_id)
        except JobNotFound:
            return False
        return True

    async def _values(self) -> AsyncIterator[Any]:
        async for job in self._jobs():
            yield self._codec.decode(job.body)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._queue.name}>"

    async def is_empty(self) -> bool:
        """Return whether `size` is 0."""
        return await self.size() == 0

    async def size(self) -> int:
        """Return the number of values."""
        counts = await self._queue.counts()
        return sum(getattr(counts, state) for state in self._states)

    async def clear(self) -> int:
        """Remove all values. Returns their number."""
        return await self._queue.purge(self._states)

    async def peek(self) -> Any:
        """Return the value that is due next, without taking it, or None if there is none."""
        page = await self._queue.list_jobs(self._states[0], limit=1)
        return self._codec.decode(page.jobs[0].body) if page.jobs else None

    async def element(self) -> Any:
        """Like `peek`, but raises LookupError if the queue is empty."""
        page = await self._queue.list_jobs(self._states[0], limit=1)
        if not page.jobs:
            raise LookupError(f"no value in {self!r}")
        return self._codec.decode(page.jobs[0].body)


class AsyncDelayedQueue(AsyncCollection):
    """Values whose delay is not over, in the order in which they are due."""

    _states = (State.DELAYED,)

    async def offer(self, value: Any, delay: Duration, *, id: str | None = None, ttl: Duration = 0) -> str:
        """Add a value that is due after the delay. Returns its id. Offering the same id again changes nothing. With a
        ttl, the value is removed if nobody has taken it for that long after it was due.
        """
        delay_ms, ttl_ms = duration_ms(delay), duration_ms(ttl)
        return await self._offer(value, delay_ms, id, delay_ms + ttl_ms if ttl_ms else 0)

    async def poll(self) -> Any:
        """Take the value that is due next, without waiting until it is due. Returns None if there is none.

        `BlockingQueue.poll` takes only what is due.
        """
        return next(iter(await self.poll_many(1)), None)

    async def poll_many(self, limit: int) -> list[Any]:
        """Like `poll`, for up to `limit` values: Redisson's poll(limit)."""
        taken: list[Any] = []
        limit = check_whole("limit", limit, 0, sys.maxsize)
        while len(taken) < limit:
            page = await self._queue.list_jobs(State.DELAYED, limit=min(limit - len(taken), STEP_JOBS))
            if not page.jobs:
                break
            for job in page.jobs:
                try:
                    value = self._codec.decode(job.body)
                except ValueError:
                    if taken:  # these are removed already
                        return taken
                    raise
                # Two consumers may find the same value; the one that removes it has it.
                if await self._remove(job):
                    taken.append(value)
        return taken

    def add(self, *_: Any) -> NoReturn:
        """Refused, as in Redisson: a delayed value needs its delay, which `offer` takes."""
        raise NotImplementedError("DelayedQueue values must have a delay: use offer(value, delay)")

    add_all = index_of = move = add

    def expire(self, *_: Any) -> NoReturn:
        """Refused: a queue does not expire. Its values do, each by its own ttl."""
        raise NotImplementedError("queue cannot expire as a whole: use offer(value, delay, ttl=...)")

    clear_expire = expire

    def destroy(self) -> None:
        """Does nothing, because no client keeps a timer for a queue. It exists for programs that call it."""

    async def get(self, index: int) -> Any:
        """Return the value at a position, in the order of due times; -1 is the last. Also reads the values before it.
        Raises IndexError.
        """
        if type(index) is not int:
            raise InvalidRequest(f"index must be a whole number, got {index!r:.40}")
        left = index if index >= 0 else index + await self.size()
        cursor = None
        while left >= 0:
            page = await self._queue.list_jobs(State.DELAYED, cursor=cursor, limit=min(left + 1, STEP_JOBS))
            if left < len(page.jobs):
                return self._codec.decode(page.jobs[left].body)
            left, cursor = left - len(page.jobs), page.cursor
            if cursor is None:
                break
        raise IndexError(f"no value at {index} in {self!r}")

    async def get_delay(self, job_id: str) -> float:
        """Return the seconds until the value is due by the store's clock, or 0 if it is due. Raises JobNotFound."""
        job = await self._queue.get(job_id)
        counts = await self._queue.counts()
        return max(0, job.due_at - counts.now) / 1000

    async def reschedule(self, job_id: str, delay: Duration) -> None:
        """Change the due time of a waiting value to the delay from now. Raises JobNotFound, JobRunning."""
        await self._queue.reschedule(job_id, delay=delay)


class AsyncBlockingQueue(AsyncCollection, AsyncListeners):
    """Values that are due, first in first out."""

    _states = (State.READY,)

    async def offer(self, value: Any, *, id: str | None = None) -> str:
        """Add a value that is due now. Returns its id. Offering the same id again changes nothing."""
        added = await self._offer(value, 0, id)
        self._notify("added", value)
        return added

    add = put = offer

    async def _remove(self, job: Job) -> bool:
        removed = await super().remove_id(job.id)
        if removed:
            self._notify("removed", self._codec.decode(job.body))
        return removed

    async def remove_id(self, job_id: str) -> bool:
        if not self._listeners["removed"]:
            return await super().remove_id(job_id)
        try:
            job = await self._queue.get(job_id)
        except JobNotFound:
            return False
        return await self._remove(job)

    async def clear(self) -> int:
        """Remove all values; returns how many. Removes them one by one while there are listeners."""
        if not self._listeners["removed"]:
            return await super().clear()
        return await self._remove_where(lambda _: True)

    async def index_of(self, value: Any) -> int:
        """Return how many values are before this one, or -1 if it is not in the queue."""
        wanted, place = self._codec.encode(value), 0
        async for job in self._jobs():
            if job.body == wanted:
                return place
            place += 1
        return -1

    async def poll_many(self, limit: int, timeout: Duration = 0, *, ttr: Duration = TTR_S) -> list[AsyncTaken]:
        """Take up to `limit` values that are due. Waits up to the timeout for the first one: Redisson's poll(limit)."""
        jobs = await self._queue.reserve(limit=limit, ttr=ttr, wait=timeout)
        return [await self._taken(job.delivery) for job in jobs]

    async def poll_from_any(
        self, names: Sequence[str], timeout: Duration = 0, *, limit: int = 1, ttr: Duration = TTR_S
    ) -> list[AsyncTaken]:
        """Take up to `limit` values from this queue and the named ones, in this order. `taken.queue` is the queue of a
        value.
        """
        jobs = await self._client.reserve(
            [self._queue.name.name, *items("names", names)], limit=limit, ttr=ttr, wait=timeout
        )
        return [await self._taken(job.delivery) for job in jobs]

    async def poll_last_from_any(self, names: Sequence[str] = (), timeout: Duration = 0) -> tuple[str, Any] | None:
        """Remove and return the value that was offered last to this queue or the named ones, in this order, with the
        name of its queue. Returns None if there is none in time. Reads all values.
        """
        deadline = time.monotonic() + duration_ms(timeout) / 1000
        queues = [self, *(AsyncBlockingQueue(self._client, name, self._codec) for name in items("names", names))]
        while True:
            for queue in queues:
                for job in reversed(await queue._by_age()):
                    value = self._codec.decode(job.body)
                    if await queue._remove(job):
                        return job.queue.name, value
            if time.monotonic() >= deadline:
                return None
            await sleep(POLL_EVERY_S)

    async def move(self, name: str, count: int = 1) -> int:
        """Move the next values to the end of another queue. Returns their number. Each is added there before it is
        acknowledged here, so a crash in between leaves it in both.
        """
        target, moved = self._client.queue(name), 0
        count = check_whole("count", count, 0, sys.maxsize)
        while moved < count:
            jobs = await self._queue.reserve(limit=min(count - moved, STEP_JOBS))
            if not jobs:
                break
            await target.bulk([NewJob(job.id, job.body, tries=job.tries, priority=job.priority) for job in jobs])
            await self._queue.ack(jobs)
            moved += len(jobs)
            for job in jobs:
                self._notify("removed", self._codec.decode(job.body))
        return moved

    async def take(self, timeout: Duration | None = None, *, lease: bool = True, ttr: Duration = TTR_S) -> Any:
        """Take the next value. Waits forever, or until the timeout, and then raises TimeoutError. The wait continues
        after an outage of the server or the store.

        With lease=False, returns the plain value, which is acknowledged before it is returned: at most once, as in
        Redisson.
        """
        outage, deadline = Outage(), None if timeout is None else time.monotonic() + duration_ms(timeout) / 1000
        while True:
            left = None if deadline is None else f"{max(0, round((deadline - time.monotonic()) * 1000))}ms"
            try:
                job = await self._queue.take(left, ttr=ttr)
                break
            except StoreUnavailable:
                outage.failed()
                if deadline is not None and time.monotonic() + outage.pause_s > deadline:
                    raise
                await sleep(outage.pause_s)
        taken = await self._taken(job.delivery)
        if lease:
            return taken
        await taken.ack()
        return taken.value

    async def poll(self, timeout: Duration = 0, *, ttr: Duration = TTR_S) -> AsyncTaken | None:
        """Take the next value. Returns None if there is none in time."""
        job = await self._queue.pop(ttr=ttr, wait=timeout)
        return None if job is None else await self._taken(job.delivery)

    async def drain_to(self, target: MutableSequence[Any], limit: int | None = None) -> int:
        """Take values that are due, acknowledge them, and add them to the end of `target`. Returns their number."""
        moved = 0
        instance("target", target, MutableSequence)  # before values are removed
        if limit is not None:
            check_whole("limit", limit, 0, sys.maxsize)
        while limit is None or moved < limit:
            want = STEP_JOBS if limit is None else min(limit - moved, STEP_JOBS)
            deliveries = await self._queue.reserve(limit=want)
            if not deliveries:
                break
            values = [(await self._taken(job.delivery)).value for job in deliveries]
            await self._queue.ack(deliveries)
            target.extend(values)
            moved += len(values)
            for value in values:
                self._notify("removed", value)
        return moved

    async def rules(self) -> QueueRules:
        """Return the rules of the queue. Its size limit is `max_jobs`."""
        return await self._queue.configure()

    async def remaining_capacity(self) -> int | None:
        """Return how many more jobs the queue accepts, or None if it has no limit."""
        status = await self._queue.status()
        return max(0, status.rules.max_jobs - status.counts.total) if status.rules.max_jobs else None

    async def _taken(self, delivery: Delivery) -> AsyncTaken:
        try:
            value = self._codec.decode(delivery.body)
        except ValueError as error:
            # A value that cannot be decoded now cannot be decoded later, so it becomes a dead letter.
            await self._client.kill(delivery, error=f"not readable by the codec: {error}")
            raise
        return AsyncTaken(self._client, delivery, value, lambda value: self._notify("removed", value))
