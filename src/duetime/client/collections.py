"""Delayed and blocking queues as plain collections of values, after Redisson's.

Both are views of one ordinary queue: what is offered with a delay to the DelayedQueue is there to take from the
BlockingQueue of the same name when it is due, with nobody needed to move it. A taken value is leased: it comes back
if its consumer dies, and is gone only when it is acknowledged.

    DelayedQueue(client, "mail").offer({"to": "ann"}, "10m")
    with BlockingQueue(client, "mail").take() as taken:
        send(taken.value)
"""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from contextlib import suppress
from typing import Any, Literal, NoReturn, Protocol

from duetime.client.call import Call
from duetime.client.calls import ClientLeases
from duetime.client.client import Client, LeasedJob, QueueClient
from duetime.consumer.held_leases import Answer, HeldLeases
from duetime.engine.duties import run_duty
from duetime.model.backoff import Outage
from duetime.model.clock import Duration, duration_ms
from duetime.model.errors import DuetimeError, JobNotFound, StoreUnavailable
from duetime.model.job import DEFAULT_TTR_MS, STEP_JOBS, Delivery, IfExists, Job, Lease, NewJob, State
from duetime.stores.base import QueueRules

log = logging.getLogger("duetime.client")

TTR_S = DEFAULT_TTR_MS // 1000
UNLIMITED_TRIES = 0
LOOK_EVERY_S = 0.05


class Codec(Protocol):
    def encode(self, value: Any) -> bytes: ...

    def decode(self, data: bytes) -> Any: ...


class JsonCodec:
    """Values as compact JSON with sorted keys, so that equal values are equal bytes."""

    def encode(self, value: Any) -> bytes:
        return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


class Taken(LeasedJob):
    """A value in your hands. As a context manager it is acknowledged on success and released on an exception."""

    def __init__(self, client: Client, delivery: Delivery, value: Any) -> None:
        super().__init__(client, delivery)
        self.value = value

    def __enter__(self) -> "Taken":
        return self


class Collection:
    """What both views share: looking at and removing the values in some states."""

    def __init__(self, client: Client, name: str, codec: Codec | None = None) -> None:
        self._client = client
        self._queue: QueueClient = client.queue(name)
        self._codec = codec or JsonCodec()

    _states: tuple[State, ...] = ()

    def _offer(self, value: Any, delay_ms: int, job_id: str | None, ttl_ms: int = 0) -> str:
        job_id = job_id or self._client.make_id()
        job = NewJob(job_id, self._codec.encode(value), delay_ms, ttl_ms=ttl_ms, tries=UNLIMITED_TRIES)
        [moved] = self._queue.bulk([job], if_exists=IfExists.KEEP)
        return moved.id

    def _by_age(self) -> list[Job]:
        """All values, the one that was offered first in front."""
        return sorted(self._jobs(), key=lambda job: (job.born, job.id))

    def entries(self) -> Iterator[tuple[str, Any]]:
        """Ids and values, for a loop that removes some of them with `remove_id`."""
        return iter([(job.id, self._codec.decode(job.body)) for job in self._jobs()])

    def size_in_memory(self) -> int:
        """Bytes of the values and their ids, without what the store adds. Looks at all of them."""
        return sum(len(job.body) + len(job.id) for job in self._jobs())

    def copy(self, name: str) -> int:
        """Add every value to another queue too, due when it is here; answers how many. Repeating it changes nothing."""
        target, copied = self._client.queue(name), list[NewJob]()
        for job in self._jobs():
            copied.append(NewJob(job.id, job.body, due_at=job.due_at, tries=job.tries, priority=job.priority))
        return len(target.bulk(copied)) if copied else 0

    def poll_last_and_offer_first_to(self, name: str) -> Any:
        """Move the value that was offered last to the front of another queue, where it is due immediately; returns the
        value, None if there is none. It is there before it is gone here: a crash in between leaves it in both.
        """
        target = self._client.queue(name)
        for job in reversed(self._by_age()):
            first = target.list_jobs(State.READY, limit=1)
            now = target.counts().now
            due_at = min(first.jobs[0].due_at - 1, now) if first.jobs else now
            target.bulk([NewJob(job.id, job.body, due_at=due_at, tries=job.tries, priority=job.priority)])
            if self.remove_id(job.id):
                return self._codec.decode(job.body)
            target.cancel(job.id)  # another consumer had taken it
        return None

    def _jobs(self) -> Iterator[Job]:
        for state in self._states:
            cursor = None
            while True:
                page = self._queue.list_jobs(state, cursor=cursor, limit=STEP_JOBS)
                yield from page.jobs
                cursor = page.cursor
                if cursor is None:
                    break

    def _find(self, value: Any) -> Iterator[str]:
        wanted = self._codec.encode(value)
        return (job.id for job in self._jobs() if job.body == wanted)

    def read_all(self) -> list[Any]:
        """All values, without taking them."""
        return [self._codec.decode(job.body) for job in self._jobs()]

    def contains(self, value: Any) -> bool:
        """Compares values, so it looks at all of them; `contains_id` does not."""
        return next(self._find(value), None) is not None

    def contains_id(self, job_id: str) -> bool:
        try:
            return self._queue.get(job_id).state in self._states
        except JobNotFound:
            return False

    def remove(self, value: Any) -> bool:
        """Remove one value equal to this. Looks at all of them; `remove_id` does not."""
        return any(self.remove_id(job_id) for job_id in self._find(value))

    def contains_all(self, values: Iterable[Any]) -> bool:
        """Whether each of the values is there. Looks at all that are there, once."""
        there = {job.body for job in self._jobs()}
        return all(self._codec.encode(value) in there for value in values)

    def remove_all(self, values: Iterable[Any]) -> bool:
        """Remove everything that equals one of the values; whether anything was removed."""
        gone = {self._codec.encode(value) for value in values}
        return self._remove_where(lambda body: body in gone)

    def retain_all(self, values: Iterable[Any]) -> bool:
        """Remove everything that equals none of the values; whether anything was removed."""
        kept = {self._codec.encode(value) for value in values}
        return self._remove_where(lambda body: body not in kept)

    def _remove_where(self, is_unwanted: Callable[[bytes], bool]) -> bool:
        # The whole list first: removing while paging would skip values.
        found = [job.id for job in self._jobs() if is_unwanted(job.body)]
        return any([self.remove_id(job_id) for job_id in found])

    def remove_id(self, job_id: str) -> bool:
        try:
            self._queue.cancel(job_id)
        except JobNotFound:
            return False
        return True

    def __len__(self) -> int:
        return self.size()

    def __bool__(self) -> bool:
        """A collection is one also while it is empty."""
        return True

    def __contains__(self, value: object) -> bool:
        return self.contains(value)

    def __iter__(self) -> Iterator[Any]:
        """The values, without taking them."""
        return (self._codec.decode(job.body) for job in self._jobs())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._queue.name}>"

    def is_empty(self) -> bool:
        return self.size() == 0

    def size(self) -> int:
        counts = self._queue.counts()
        return sum(getattr(counts, state) for state in self._states)

    def clear(self) -> int:
        """Remove all values; answers how many."""
        return self._queue.purge(self._states)


class DelayedQueue(Collection):
    """Values that wait for their time."""

    _states = (State.DELAYED,)

    def offer(self, value: Any, delay: Duration, *, id: str | None = None, ttl: Duration = 0) -> str:
        """Add a value that is due after the delay; answers its id. Offering the same id again changes nothing. With a
        ttl the value is removed that long after it was due, if nobody took it.
        """
        delay_ms, ttl_ms = duration_ms(delay), duration_ms(ttl)
        return self._offer(value, delay_ms, id, delay_ms + ttl_ms if ttl_ms else 0)

    def poll(self) -> Any:
        """Take the value that was offered first, due or not; None if there is none. Looks at all of them.

        As Redisson does; `BlockingQueue.poll` takes only what is due.
        """
        return next(iter(self.poll_many(1)), None)

    def poll_many(self, limit: int) -> list[Any]:
        """As `poll`, for up to `limit` values: Redisson's poll(limit)."""
        taken: list[Any] = []
        while len(taken) < limit and (jobs := self._by_age()):
            for job in jobs[: limit - len(taken)]:
                # Two consumers may find the same value; the one that removes it has it.
                if self.remove_id(job.id):
                    taken.append(self._codec.decode(job.body))
        return taken

    def add(self, *_: Any) -> NoReturn:
        """Refused, as in Redisson: a delayed value needs its delay, which `offer` takes."""
        raise NotImplementedError("DelayedQueue values must have a delay: use offer(value, delay)")

    add_all = index_of = move = add

    def expire(self, *_: Any) -> NoReturn:
        """Refused: a queue does not expire as a whole. Its values do, each by its own ttl."""
        raise NotImplementedError("queue cannot expire as a whole: use offer(value, delay, ttl=...)")

    clear_expire = expire

    def destroy(self) -> None:
        """Nothing to do: no client of a queue keeps a timer for it. Here for programs that call it."""

    def element(self) -> Any:
        """As `peek`, but an empty queue raises LookupError."""
        return _first(self)

    def get(self, index: int) -> Any:
        """The value at a place in the order in which they were offered. Raises IndexError. Looks at all of them."""
        return self._codec.decode(self._by_age()[index].body)

    def peek(self) -> Any:
        """The value that falls due next, without taking it; None if there is none."""
        page = self._queue.list_jobs(State.DELAYED, limit=1)
        return self._codec.decode(page.jobs[0].body) if page.jobs else None

    def get_delay(self, job_id: str) -> float:
        """Seconds until the value is due by the store's clock, 0 if it is. Raises JobNotFound."""
        job = self._queue.get(job_id)
        return max(0, job.due_at - self._queue.counts().now) / 1000

    def reschedule(self, job_id: str, delay: Duration) -> None:
        """Make a waiting value due after the delay, from now. Raises JobNotFound, JobRunning."""
        self._queue.reschedule(job_id, delay=delay)


ListenerEvent = Literal["added", "removed"]


class BlockingQueue(Collection):
    """Values that are due, first in first out."""

    _states = (State.READY,)

    def __init__(self, client: Client, name: str, codec: Codec | None = None) -> None:
        super().__init__(client, name, codec)
        self._listeners: dict[str, list[Callable[[Any], None]]] = {}

    def offer(self, value: Any, *, id: str | None = None) -> str:
        """Add a value that is due now; answers its id. Offering the same id again changes nothing."""
        added = self._offer(value, 0, id)
        self._tell("added", value)
        return added

    add = put = offer

    def add_listener(self, event: ListenerEvent, listener: Callable[[Any], None]) -> None:
        """Hear of every value that is added, or removed for good, through this object."""
        self._listeners.setdefault(event, []).append(listener)

    def remove_listener(self, event: ListenerEvent, listener: Callable[[Any], None]) -> None:
        self._listeners.get(event, []).remove(listener)

    def _tell(self, event: ListenerEvent, value: Any) -> None:
        for listener in self._listeners.get(event, []):
            listener(value)

    def remove(self, value: Any) -> bool:
        """Remove one value equal to this. Looks at all of them; `remove_id` does not."""
        removed = super().remove(value)
        if removed:
            self._tell("removed", value)
        return removed

    def element(self) -> Any:
        """As `peek`, but an empty queue raises LookupError."""
        return _first(self)

    def index_of(self, value: Any) -> int:
        """How many values come before this one, -1 if it is not there."""
        wanted = self._codec.encode(value)
        return next((number for number, job in enumerate(self._jobs()) if job.body == wanted), -1)

    def poll_many(self, limit: int, timeout: Duration = 0, *, ttr: Duration = TTR_S) -> list[Taken]:
        """Up to `limit` values that are due, waiting for the first one: Redisson's poll(limit)."""
        return [self._taken(job.delivery) for job in self._queue.reserve(limit=limit, ttr=ttr, wait=timeout)]

    def poll_from_any(
        self, names: Sequence[str], timeout: Duration = 0, *, limit: int = 1, ttr: Duration = TTR_S
    ) -> list[Taken]:
        """Up to `limit` values of this queue or the named ones, in this order; `taken.queue` tells whose each is."""
        jobs = self._client.reserve([self._queue.name.name, *names], limit=limit, ttr=ttr, wait=timeout)
        return [self._taken(job.delivery) for job in jobs]

    def poll_last_from_any(self, names: Sequence[str] = (), timeout: Duration = 0) -> tuple[str, Any] | None:
        """The value that was offered last to this queue or the named ones, in this order, with the name of its queue;
        None if there is none in time. It is removed before it is returned, and looked for among all that are there.
        """
        deadline = time.monotonic() + duration_ms(timeout) / 1000
        queues = [self, *(BlockingQueue(self._client, name, self._codec) for name in names)]
        while True:
            for queue in queues:
                for job in reversed(queue._by_age()):
                    if queue.remove_id(job.id):
                        return job.queue.name, self._codec.decode(job.body)
            if time.monotonic() >= deadline:
                return None
            time.sleep(LOOK_EVERY_S)

    def move(self, name: str, count: int = 1) -> int:
        """Move the next values to the end of another queue; answers how many. Each is there before it is acknowledged
        here: a crash in between leaves it in both.
        """
        target, moved = self._client.queue(name), 0
        while moved < count and (jobs := self._queue.reserve(limit=min(count - moved, STEP_JOBS))):
            target.bulk([NewJob(job.id, job.body, tries=job.tries, priority=job.priority) for job in jobs])
            self._queue.ack(jobs)
            moved += len(jobs)
        return moved

    def take(self, timeout: Duration | None = None, *, lease: bool = True, ttr: Duration = TTR_S) -> Any:
        """The next value as a Taken, waiting for ever or until the timeout (then TimeoutError). The wait goes on when
        the server or the store was away.

        With lease=False the bare value, acknowledged before it is returned: at most once, as in Redisson.
        """
        outage, deadline = Outage(), None if timeout is None else time.monotonic() + duration_ms(timeout) / 1000
        while True:
            left = None if deadline is None else f"{max(0, round((deadline - time.monotonic()) * 1000))}ms"
            try:
                job = self._queue.take(left, ttr=ttr)
                break
            except StoreUnavailable:
                outage.failed()
                if deadline is not None and time.monotonic() + outage.pause_s > deadline:
                    raise
                time.sleep(outage.pause_s)
        return self._taken(job.delivery) if lease else self._unleased(job.delivery)

    def poll(self, timeout: Duration = 0, *, ttr: Duration = TTR_S) -> Taken | None:
        """The next value as a Taken, or None if there is none in time."""
        job = self._queue.pop(ttr=ttr, wait=timeout)
        return None if job is None else self._taken(job.delivery)

    def peek(self) -> Any:
        """The next value without taking it; None if there is none."""
        page = self._queue.list_jobs(State.READY, limit=1)
        return self._codec.decode(page.jobs[0].body) if page.jobs else None

    def drain_to(self, target: MutableSequence[Any], limit: int | None = None) -> int:
        """Move values that are due to the end of `target`, acknowledged; answers how many."""
        moved = 0
        while limit is None or moved < limit:
            want = STEP_JOBS if limit is None else min(limit - moved, STEP_JOBS)
            deliveries = self._queue.reserve(limit=want)
            if not deliveries:
                break
            values = [self._codec.decode(delivery.body) for delivery in deliveries]
            self._queue.ack(deliveries)
            target.extend(values)
            moved += len(values)
        return moved

    def subscribe(self, consumer: Callable[[Any], None], *, ttr: Duration = TTR_S) -> "Subscription":
        """Call `consumer` with every value, in a thread; acknowledged when it returns, released when it raises."""
        return Subscription(self._client, self, consumer, ttr)

    def rules(self) -> QueueRules:
        """The queue's rules; a cap is `max_jobs`."""
        return self._queue.configure()

    def remaining_capacity(self) -> int | None:
        """How many more jobs the queue takes, None if it has no cap."""
        status = self._queue.status()
        return max(0, status.rules.max_jobs - status.counts.total) if status.rules.max_jobs else None

    def _taken(self, delivery: Delivery) -> Taken:
        try:
            return Taken(self._client, delivery, self._codec.decode(delivery.body))
        except ValueError as error:
            # A value that cannot be read now cannot be read later, so it goes to the dead letters, where people see it.
            self._client.kill(delivery, error=f"not readable by the codec: {error}")
            raise

    def _unleased(self, delivery: Delivery) -> Any:
        taken = self._taken(delivery)
        taken.ack()
        self._tell("removed", taken.value)
        return taken.value


def _first(values: Collection) -> Any:
    for value in values:
        return value
    raise LookupError(f"no value in {values!r}")


class Subscription:
    """Calls a consumer with one value after the other, in a thread of its own, until it is closed. A second thread
    renews the lease of the value that the consumer works on.
    """

    RELEASE_DELAY_S = 1

    def __init__(self, client: Client, queue: BlockingQueue, consumer: Callable[[Any], None], ttr: Duration) -> None:
        self._client = client
        self._queue = queue
        self._consumer = consumer
        self._ttr = ttr
        self._closed = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._leases = HeldLeases(lambda: ClientLeases(self._send), duration_ms(ttr), self._loop.create_task)
        self._renewal = self._loop.create_task(run_duty(self._leases))
        self._thread = threading.Thread(target=self._run, name="duetime subscription", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish the value in hand and stop."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        renewing = threading.Thread(target=self._renew, name="duetime lease renewal", daemon=True)
        renewing.start()
        outage = Outage()
        while not self._closed.is_set():
            try:
                taken = self._queue.poll("1s", ttr=self._ttr)
                if taken:
                    asyncio.run_coroutine_threadsafe(self._hold(taken.lease), self._loop).result()
                    asyncio.run_coroutine_threadsafe(self._report(taken, self._consume(taken)), self._loop).result()
            except (DuetimeError, ValueError) as error:
                if outage.failed():
                    log.warning("subscription_error", extra={"error": str(error)})
                self._closed.wait(outage.pause_s)
            else:
                outage.worked()
        self._loop.call_soon_threadsafe(self._renewal.cancel)
        renewing.join()

    def _consume(self, taken: Taken) -> str:
        """Returns what the consumer failed with, empty if it did not fail."""
        try:
            self._consumer(taken.value)
        except Exception as error:  # the consumer's code may raise anything
            log.exception("consumer_failed")
            return f"{type(error).__name__}: {error}"
        return ""

    # --- in the thread that renews

    def _renew(self) -> None:
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._renewal)
        self._loop.close()

    async def _send(self, call: Call[Any]) -> Any:
        # Nothing else runs in this loop, so the call may block it.
        return self._client.send(call)

    async def _hold(self, lease: Lease) -> None:
        self._leases.add(lease)

    async def _report(self, taken: Taken, error: str) -> None:
        if error:
            await self._leases.release(taken.lease, delay_ms=self.RELEASE_DELAY_S * 1000, error=error)
            return
        acked: asyncio.Future[Answer] = self._loop.create_future()
        self._leases.ack(taken.lease, acked.set_result)
        if isinstance(answer := await acked, DuetimeError):
            raise answer
