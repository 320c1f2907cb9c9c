"""What the blocking and the async client do differently, and what their leased jobs share.

`client.py` is generated from `async_client.py`; only the bases of the queues are written twice, because `take` of an
async queue can be awaited or entered, and only a blocking queue has a length.
"""

import json
from collections.abc import Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from duetime.model.clock import Duration
from duetime.model.job import DEFAULT_TTR_MS, Delivery, Job, Lease, Priority
from duetime.model.names import Queue

TTR_S = DEFAULT_TTR_MS // 1000
SHOWN_BYTES = 60


class JobInHand:
    """The fields of a leased job. `delivery` has the same as data."""

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self._is_settled = False

    def mark_settled(self) -> None:
        """A call about several jobs has finished this one, so the end of its block does nothing."""
        self._is_settled = True

    @property
    def lease(self) -> Lease:
        return self.delivery.lease

    @property
    def id(self) -> str:
        return self.delivery.lease.id

    @property
    def queue(self) -> Queue:
        return self.delivery.lease.queue

    @property
    def attempt(self) -> int:
        """The number of this delivery of the job, counted from 1."""
        return self.delivery.lease.attempt

    @property
    def body(self) -> bytes:
        return self.delivery.body

    @property
    def attributes(self) -> Mapping[str, str]:
        return self.delivery.attributes

    @property
    def priority(self) -> Priority:
        return self.delivery.priority

    @property
    def tries(self) -> int:
        return self.delivery.tries

    @property
    def used(self) -> int:
        return self.delivery.used

    @property
    def due_at(self) -> int:
        return self.delivery.due_at

    @property
    def lease_until(self) -> int:
        return self.delivery.lease_until

    @property
    def expires_at(self) -> int:
        return self.delivery.expires_at

    @property
    def error(self) -> str:
        """The error of the last try; empty on the first try."""
        return self.delivery.error

    def json(self) -> Any:
        """Return the body as a JSON document. Raises ValueError if it is not JSON."""
        return json.loads(self.delivery.body)

    def text(self) -> str:
        """Return the body as text. Raises ValueError if it is not UTF-8."""
        return self.delivery.body.decode()

    def __repr__(self) -> str:
        body = self.delivery.body
        shown = repr(body[:SHOWN_BYTES]) + ("..." if len(body) > SHOWN_BYTES else "")
        tries = f"try {self.used} of {self.tries}" if self.tries else f"try {self.used}"
        return f"<{type(self).__name__} {self.id} of {self.queue}, {tries}, body {shown}>"


class ExitableJob(Protocol):
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


AsyncJob = TypeVar("AsyncJob", bound=ExitableJob)
BlockingJob = TypeVar("BlockingJob")


class AsyncTaking(Generic[AsyncJob]):
    """Returned by `take` of an async queue: `async with queue.take() as job:` or `job = await queue.take()`."""

    def __init__(self, taking: Coroutine[Any, Any, AsyncJob]) -> None:
        self._taking = taking
        self._job: AsyncJob | None = None

    def __await__(self) -> Any:
        return self._taking.__await__()

    async def __aenter__(self) -> AsyncJob:
        self._job = job = await self._taking
        return job

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._job is not None:
            await self._job.__aexit__(kind, error, trace)


class AsyncQueue(Generic[AsyncJob]):
    """The part of an async queue that the blocking one has in another form."""

    def take(self, timeout: Duration | None = None, *, ttr: Duration = TTR_S) -> AsyncTaking[AsyncJob]:
        """Lease the next job. Waits forever, or until the timeout, and then raises TimeoutError. As a context manager,
        it acks the job at the end of the block, and releases it if the block raises.
        """
        return AsyncTaking(self._take(timeout, ttr))

    async def _take(self, timeout: Duration | None, ttr: Duration) -> AsyncJob:
        raise NotImplementedError


class BlockingQueueBase(Generic[BlockingJob]):
    """The part of a blocking queue that the async one lacks or has in another form."""

    def take(self, timeout: Duration | None = None, *, ttr: Duration = TTR_S) -> BlockingJob:
        """Lease the next job. Waits forever, or until the timeout, and then raises TimeoutError. As a context manager,
        it acks the job at the end of the block, and releases it if the block raises.
        """
        return self._take(timeout, ttr)

    def _take(self, timeout: Duration | None, ttr: Duration) -> BlockingJob:
        raise NotImplementedError

    def size(self) -> int:
        raise NotImplementedError

    def get_many(self, ids: Sequence[str]) -> list[Job | None]:
        raise NotImplementedError

    def __len__(self) -> int:
        """Same as `size()`."""
        return self.size()

    def __bool__(self) -> bool:
        """True, also while the queue is empty."""
        return True

    def __contains__(self, job_id: object) -> bool:
        """Whether there is a job with this id, in any state."""
        return isinstance(job_id, str) and self.get_many([job_id]) != [None]
