"""Delayed and blocking queues as plain collections of values, after Redisson's.

Both views stand on one ordinary queue: what is offered with a delay to the DelayedQueue is there to take from the
BlockingQueue of the same name when it is due, with nobody needed to move it. A taken value is leased: it comes back
if its consumer dies, and is gone only when it is acknowledged.

    DelayedQueue(client, "mail").offer({"to": "ann"}, "10m")
    with BlockingQueue(client, "mail").take() as taken:
        send(taken.value)
"""

import json
import logging
import threading
from collections.abc import Callable, Iterator, MutableSequence
from types import TracebackType
from typing import Any, Protocol

from duetime.client.client import Client, QueueClient
from duetime.clock import Duration, duration_ms
from duetime.errors import DuetimeError, JobNotFound, LeaseLost
from duetime.job import DEFAULT_TTR_MS, STEP_JOBS, Delivery, IfExists, Job, NewJob, State
from duetime.stores.base import QueueRules

log = logging.getLogger("duetime.client")

TTR_S = DEFAULT_TTR_MS // 1000
PARK_S = 30
UNLIMITED_TRIES = 0


class Codec(Protocol):
    def encode(self, value: Any) -> bytes: ...

    def decode(self, data: bytes) -> Any: ...


class JsonCodec:
    """Values as compact JSON with sorted keys, so that equal values are equal bytes."""

    def encode(self, value: Any) -> bytes:
        return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


class Taken:
    """A value in your hands. As a context manager it is acknowledged on success and released on an exception."""

    def __init__(self, client: Client, delivery: Delivery, value: Any) -> None:
        self.value = value
        self.delivery = delivery
        self._client = client
        self._settled = False

    def ack(self) -> None:
        """Done with it. LeaseLost if it was given to somebody else meanwhile."""
        self._client.ack(self.delivery)
        self._settled = True

    def release(self, delay: Duration = 0, *, error: str = "") -> None:
        """Back to the queue, for another try."""
        self._client.release(self.delivery, delay=delay, error=error)
        self._settled = True

    def extend(self, ttr: Duration = TTR_S) -> None:
        """Hold it for longer, from now."""
        self._client.extend(self.delivery, ttr)

    def __enter__(self) -> "Taken":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._settled:
            return
        if kind is None:
            self.ack()
            return
        try:
            self.release(error=f"{kind.__name__}: {error}")
        except LeaseLost:
            # The consumer's own exception says more; the value is with somebody else already.
            log.warning("lease_lost", extra={"job": self.delivery.lease.id})


class Collection:
    """What both views share: looking at and removing the values in some states."""

    def __init__(self, client: Client, name: str, codec: Codec | None = None) -> None:
        self._client = client
        self._queue: QueueClient = client.queue(name)
        self._codec = codec or JsonCodec()

    _states: tuple[State, ...] = ()

    def _offer(self, value: Any, delay_ms: int, job_id: str | None, if_exists: IfExists) -> str:
        job = NewJob(job_id or self._client.make_id(), self._codec.encode(value), delay_ms, tries=UNLIMITED_TRIES)
        [moved] = self._queue.bulk([job], if_exists=if_exists)
        return moved.id

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

    def remove_id(self, job_id: str) -> bool:
        try:
            self._queue.cancel(job_id)
        except JobNotFound:
            return False
        return True

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

    def offer(self, value: Any, delay: Duration, *, id: str | None = None) -> str:
        """Add a value that is due after the delay; answers its id. Offering the same id again changes nothing."""
        return self._offer(value, duration_ms(delay), id, IfExists.KEEP)

    def poll(self) -> Any:
        """Take the value that was offered first, due or not; None if there is none. Looks at all of them.

        As Redisson does; `BlockingQueue.poll` takes only what is due.
        """
        while jobs := sorted(self._jobs(), key=lambda job: (job.born, job.id)):
            for job in jobs:
                # Two consumers may find the same value; the one that removes it has it.
                if self.remove_id(job.id):
                    return self._codec.decode(job.body)
        return None

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


class BlockingQueue(Collection):
    """Values that are due, first in first out."""

    _states = (State.READY,)

    def offer(self, value: Any, *, id: str | None = None) -> str:
        """Add a value that is due now; answers its id. Offering the same id again changes nothing."""
        return self._offer(value, 0, id, IfExists.KEEP)

    def take(self, timeout: Duration | None = None, *, lease: bool = True, ttr: Duration = TTR_S) -> Any:
        """The next value as a Taken, waiting for ever or until the timeout (then TimeoutError).

        With lease=False the bare value, acknowledged before it is returned: at most once, as in Redisson.
        """
        left_ms = None if timeout is None else duration_ms(timeout)
        while True:
            park_ms = PARK_S * 1000 if left_ms is None else min(left_ms, PARK_S * 1000)
            delivery = self._queue.pop(ttr=ttr, wait=f"{park_ms}ms")
            if delivery is not None:
                return self._taken(delivery) if lease else self._unleased(delivery)
            if left_ms is not None:
                left_ms -= park_ms
                if left_ms <= 0:
                    raise TimeoutError(f"no value in {self._queue.name} within the timeout")

    def poll(self, timeout: Duration = 0, *, ttr: Duration = TTR_S) -> Taken | None:
        """The next value as a Taken, or None if there is none in time."""
        delivery = self._queue.pop(ttr=ttr, wait=timeout)
        return None if delivery is None else self._taken(delivery)

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
        return Subscription(self, consumer, ttr)

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
        return taken.value


class Subscription:
    """A consumer in a thread of its own, until it is closed."""

    RELEASE_DELAY = 1

    def __init__(self, queue: BlockingQueue, consumer: Callable[[Any], None], ttr: Duration) -> None:
        self._queue = queue
        self._consumer = consumer
        self._ttr = ttr
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="duetime subscription", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish the value in hand and stop."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                taken = self._queue.poll("1s", ttr=self._ttr)
                if taken:
                    self._handle(taken)
            except (DuetimeError, ValueError) as error:
                log.warning("subscription_error", extra={"error": str(error)})
                self._closed.wait(self.RELEASE_DELAY)

    def _handle(self, taken: Taken) -> None:
        try:
            self._consumer(taken.value)
        except Exception as error:  # the consumer's code may raise anything
            log.exception("consumer_failed")
            taken.release(self.RELEASE_DELAY, error=f"{type(error).__name__}: {error}")
        else:
            taken.ack()
