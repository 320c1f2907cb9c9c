"""Steps for one job that a lone caller in the engine's event loop makes without a task.

The request goes to the store in the turn in which the caller asks, and its answer wakes the caller. What has happened
is noted when the answer comes, whether or not the caller still waits for it. Two callers at once are served better
together, so only one such step is under way; all else goes through the group commit.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from duetime.engine.batcher import Batcher
from duetime.engine.recorder import Recorders
from duetime.model.job import Delivery, IfExists, Lease, Moved, NewJob
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed, Reserved
from duetime.stores.direct import Done, PostedCalls

T = TypeVar("T")


class PostedSteps:
    def __init__(
        self,
        calls: PostedCalls,
        *,
        recorders: Recorders,
        shared: Batcher,
        give_back: Callable[[Sequence[Delivery]], None],
    ) -> None:
        self._calls, self._recorders, self._shared = calls, recorders, shared
        self._give_back = give_back
        self._is_busy = False
        self._ended: asyncio.Future[None] | None = None

    async def end(self) -> None:
        """Wait for the step that is under way. The engine begins none after this."""
        if self._is_busy:
            self._ended = asyncio.get_running_loop().create_future()
            await self._ended

    async def push(self, queue: Queue, jobs: Sequence[NewJob], if_exists: IfExists) -> Pushed | None:
        """Of one job that is valid; None if nothing was done."""
        request = Push(jobs, if_exists)
        return await self._step(
            lambda done: self._calls.push(queue, request, done),
            lambda pushed: self._shared.moved(queue, pushed.jobs),
        )

    async def reserve(self, queue: Queue, ttr_ms: int) -> list[Delivery] | None:
        """One job if one is ready; None if nothing was done."""
        wheel, known = self._shared.wheel(queue), self._shared.room.news
        ask = Ask(1, ttr_ms, wheel.take(1))

        def learn(reserved: Reserved) -> None:
            self._shared.learn(queue, [ask], reserved, since=known)

        reserved = await self._step(
            lambda done: self._calls.reserve(queue, ask, done),
            learn,
            lambda reserved: self._give_back(reserved.deliveries[0]),
        )
        if not reserved or not reserved.deliveries[0]:
            wheel.put_back(1)
        return None if reserved is None else [*reserved.deliveries[0]]

    async def ack(self, lease: Lease) -> Moved | None:
        """None if nothing was done. Raises StoreUnavailable if it is not known."""
        return await self._step(lambda done: self._calls.ack(lease, done))

    async def _step(
        self,
        post: Callable[[Done[T]], bool],
        note: Callable[[T], None] | None = None,
        orphan: Callable[[T], None] | None = None,
    ) -> T | None:
        """`note` is called with the answer in any case, `orphan` if the caller has gone."""
        if self._is_busy or self._recorders.is_needed:
            return None
        reply = LoneReply(orphan)

        def done(answer: T | None, error: Exception | None) -> None:
            self._is_busy = False
            if self._ended and not self._ended.done():
                self._ended.set_result(None)
            try:
                if answer is not None and note:
                    note(answer)
            finally:  # the caller gets its answer, whatever else fails
                reply.give(answer, error)

        if not post(done):
            return None
        self._is_busy = True
        return await reply.wait()


class LoneReply(Generic[T]):
    """The answer to one caller, which may be gone when the answer comes."""

    def __init__(self, orphan: Callable[[T], None] | None) -> None:
        self._future: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        self._orphan = orphan

    def give(self, answer: T | None, error: Exception | None) -> None:
        if self._future.done():
            self._leave(answer)
        elif error:
            self._future.set_exception(error)
        else:
            self._future.set_result(answer)

    async def wait(self) -> T | None:
        try:
            return await self._future
        except asyncio.CancelledError:
            # The answer may have come in the same instant as the cancellation.
            if not self._future.cancelled() and not self._future.exception():
                self._leave(self._future.result())
            raise

    def _leave(self, answer: T | None) -> None:
        if answer is not None and self._orphan:
            self._orphan(answer)
