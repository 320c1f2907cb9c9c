"""Steps for one job that a lone caller in the engine's event loop makes without a task.

The request goes to the store in the turn in which the caller asks, and its answer wakes the caller. What has happened
is noted when the answer comes, whether or not the caller still waits for it. Two callers at once are served better
together, so only one such step is under way; all else goes through the group commit.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from duetime.engine.answer_turns import Spawn
from duetime.engine.observers import Observers
from duetime.engine.shared_calls import SharedCalls
from duetime.engine.told_steps import look_again, tell_acked, tell_pushed, tell_reserved
from duetime.model.job import Delivery, IfExists, Lease, Moved, NewJob
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed
from duetime.stores.direct import Done, PostedCalls

T = TypeVar("T")


class PostedSteps:
    def __init__(
        self,
        calls: PostedCalls,
        *,
        observers: Observers,
        shared: SharedCalls,
        give_back: Callable[[Sequence[Delivery]], None],
        spawn: Spawn,
    ) -> None:
        self._calls, self._observers, self._shared = calls, observers, shared
        self._give_back, self._spawn = give_back, spawn
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
            lambda pushed: tell_pushed(self._observers, queue, request, pushed),
        )

    async def reserve(self, queue: Queue, ttr_ms: int) -> list[Delivery] | None:
        """One job if one is ready; None if nothing was done."""
        wheel, known = self._shared.wheel(queue), self._shared.room.news
        ask = Ask(1, ttr_ms, wheel.take(1))
        reserved = await self._step(
            lambda done: self._calls.reserve(queue, ask, done),
            lambda reserved: self._shared.learn(queue, [ask], reserved, since=known),
            lambda reserved: tell_reserved(self._observers, queue, reserved),
            lambda reserved: self._give_back(reserved.deliveries[0]),
        )
        if not reserved or not reserved.deliveries[0]:
            wheel.put_back(1)
        return None if reserved is None else [*reserved.deliveries[0]]

    async def ack(self, lease: Lease) -> Moved | None:
        """None if nothing was done. Raises StoreUnavailable if it is not known."""
        return await self._step(
            lambda done: self._calls.ack(lease, done), None, lambda moved: tell_acked(self._observers, lease, moved)
        )

    async def _step(
        self,
        post: Callable[[Done[T]], bool],
        note: Callable[[T], None] | None,
        tell: Callable[[T], Awaitable[T]],
        orphan: Callable[[T], None] | None = None,
    ) -> T | None:
        """`note` is called with the answer in any case, `orphan` if the caller has gone, and `tell` if an observer has
        begun, since the step began, to want to hear of all.
        """
        if self._is_busy or (call := self._observers.begin_apart()) is None:
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
                if self._observers.end_apart(call):
                    reply.give(answer, error)
                else:
                    self._spawn(self._tell(call, answer, error, tell, reply))

        is_posted = False
        try:
            is_posted = post(done)
        finally:
            if not is_posted:
                self._observers.drop_apart(call)
        if not is_posted:
            return None
        self._is_busy = True
        return await reply.wait()

    async def _tell(
        self,
        call: int,
        answer: T | None,
        error: Exception | None,
        tell: Callable[[T], Awaitable[T]],
        reply: "LoneReply[T]",
    ) -> None:
        try:
            if answer is not None:
                await look_again(self._observers, "push")
                answer = await tell(answer)
        except Exception as failed:
            answer, error = None, failed
        self._observers.end(call)
        try:
            await self._observers.flush()
        except Exception as failed:
            answer, error = None, failed
        reply.give(answer, error)


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
