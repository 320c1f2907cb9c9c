"""A job in your hands: what `pop`, `reserve` and `take` of the SDK give.

Inside Duetime a delivery is plain data (`duetime.Delivery`); these two wrap it for the program that works on it, one
for blocking code and one for asyncio. As a context manager such a job is acked at the end of the block, or released if
the block raises; a job that was settled inside the block is left alone.
"""

import json
import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol

from duetime.model.clock import Duration
from duetime.model.errors import LeaseLost
from duetime.model.job import DEFAULT_TTR_MS, Delivery, Lease, Moved, Priority
from duetime.model.names import Queue

log = logging.getLogger("duetime.client")

TTR_S = DEFAULT_TTR_MS // 1000
SHOWN_BYTES = 60


class JobInHand:
    """What both kinds share: the job's facts. `delivery` has them as data."""

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self._is_settled = False

    def mark_settled(self) -> None:
        """The job was settled by a call about several jobs: the end of its block does nothing."""
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
        """Which delivery of the job this is, counted from 1."""
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
        """What the last try failed with, empty on the first."""
        return self.delivery.error

    def json(self) -> Any:
        """The body as a JSON document. Raises ValueError if it is none."""
        return json.loads(self.delivery.body)

    def text(self) -> str:
        """The body as UTF-8. Raises ValueError if it is something else."""
        return self.delivery.body.decode()

    def __repr__(self) -> str:
        body = self.delivery.body
        shown = repr(body[:SHOWN_BYTES]) + ("..." if len(body) > SHOWN_BYTES else "")
        tries = f"try {self.used} of {self.tries}" if self.tries else f"try {self.used}"
        return f"<{type(self).__name__} {self.id} of {self.queue}, {tries}, body {shown}>"


class BlockingClient(Protocol):
    """What a job needs of its client."""

    def ack(self, leased: Lease) -> None: ...
    def release(self, leased: Lease, *, delay: Duration = 0, error: str = "") -> Moved: ...
    def give_back(self, leased: Lease) -> Moved: ...
    def kill(self, leased: Lease, *, error: str = "") -> Moved: ...
    def extend(self, leased: Lease, ttr: Duration = TTR_S) -> int: ...


class LeasedJob(JobInHand):
    """A job in the hands of blocking code."""

    def __init__(self, client: BlockingClient, delivery: Delivery) -> None:
        super().__init__(delivery)
        self._client = client

    def ack(self) -> None:
        """Finish the job. LeaseLost if somebody else has it by now."""
        self._client.ack(self.lease)
        self._is_settled = True

    def release(self, delay: Duration = 0, *, error: str = "") -> Moved:
        """Give the job back, to be tried again after the delay."""
        moved = self._client.release(self.lease, delay=delay, error=error)
        self._is_settled = True
        return moved

    def give_back(self) -> Moved:
        """Undo the delivery: the job has its old place and its try again."""
        moved = self._client.give_back(self.lease)
        self._is_settled = True
        return moved

    def kill(self, error: str = "") -> Moved:
        """Send the job to the dead letters."""
        moved = self._client.kill(self.lease, error=error)
        self._is_settled = True
        return moved

    def extend(self, ttr: Duration = TTR_S) -> int:
        """Hold the job for longer, from now; answers the new end of the lease in epoch milliseconds."""
        return self._client.extend(self.lease, ttr)

    def __enter__(self) -> "LeasedJob":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_settled:
            return
        if kind is None:
            self.ack()
            return
        try:
            self.release(error=f"{kind.__name__}: {error}")
        except LeaseLost:
            # The consumer's own exception says more; the job is with somebody else already.
            log.warning("lease_lost", extra={"job": self.id})


class AsyncioClient(Protocol):
    """As BlockingClient, with `await`."""

    async def ack(self, leased: Lease) -> None: ...
    async def release(self, leased: Lease, *, delay: Duration = 0, error: str = "") -> Moved: ...
    async def give_back(self, leased: Lease) -> Moved: ...
    async def kill(self, leased: Lease, *, error: str = "") -> Moved: ...
    async def extend(self, leased: Lease, ttr: Duration = TTR_S) -> int: ...


class AsyncLeasedJob(JobInHand):
    """A job in the hands of a coroutine: the twin of LeasedJob, with `await`."""

    def __init__(self, client: AsyncioClient, delivery: Delivery) -> None:
        super().__init__(delivery)
        self._client = client

    async def ack(self) -> None:
        """Finish the job. LeaseLost if somebody else has it by now."""
        await self._client.ack(self.lease)
        self._is_settled = True

    async def release(self, delay: Duration = 0, *, error: str = "") -> Moved:
        """Give the job back, to be tried again after the delay."""
        moved = await self._client.release(self.lease, delay=delay, error=error)
        self._is_settled = True
        return moved

    async def give_back(self) -> Moved:
        """Undo the delivery: the job has its old place and its try again."""
        moved = await self._client.give_back(self.lease)
        self._is_settled = True
        return moved

    async def kill(self, error: str = "") -> Moved:
        """Send the job to the dead letters."""
        moved = await self._client.kill(self.lease, error=error)
        self._is_settled = True
        return moved

    async def extend(self, ttr: Duration = TTR_S) -> int:
        """Hold the job for longer, from now; answers the new end of the lease in epoch milliseconds."""
        return await self._client.extend(self.lease, ttr)

    async def __aenter__(self) -> "AsyncLeasedJob":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_settled:
            return
        if kind is None:
            await self.ack()
            return
        try:
            await self.release(error=f"{kind.__name__}: {error}")
        except LeaseLost:
            log.warning("lease_lost", extra={"job": self.id})


class AsyncTaking:
    """What `take` of an async queue gives: `async with queue.take() as job:` or `job = await queue.take()`."""

    def __init__(self, taking: Any) -> None:
        self._taking = taking
        self._job: AsyncLeasedJob | None = None

    def __await__(self) -> Any:
        return self._taking.__await__()

    async def __aenter__(self) -> AsyncLeasedJob:
        self._job = job = await self._taking
        return job

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._job is not None:
            await self._job.__aexit__(kind, error, trace)
