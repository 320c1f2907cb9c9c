"""Steps of a blocking caller that are made in its own thread, when nobody else is concerned.

A store may offer calls for one job past the event loop (`stores/direct.py`). They are used while no recorder has to
record them, no consumer of this engine waits for the queue, and no other thread makes such a call in this moment; two
callers at once are served better together, by the group commit. In all other cases the answer here is None, nothing
was done, and the caller asks the engine.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, TypeVarTuple

from duetime.engine.admission import check_lease
from duetime.engine.batcher import Batcher
from duetime.engine.reaper import LONGEST_REST_S
from duetime.engine.recorder import Recorders
from duetime.model.errors import DuetimeError, LeaseLost, StoreUnavailable
from duetime.model.job import Delivery, IfExists, Lease, Moved, NewJob, check_job
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed
from duetime.stores.direct import DirectCalls

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

LEAST_TTR_MS = round(2 * LONGEST_REST_S * 1000)
"""The reaper looks at least this often for leases that it was not told of, so that these end in time, too."""


class DirectSteps:
    """Made in the engine's event loop, used in other threads."""

    def __init__(
        self,
        calls: DirectCalls,
        *,
        recorders: Recorders,
        shared: Batcher,
        give_back: Callable[[Sequence[Delivery]], None],
        ack_after_loss: Callable[[Sequence[Lease]], Awaitable[list[Moved | LeaseLost | None]]],
        max_body: int,
    ) -> None:
        self._calls, self._recorders, self._shared, self._room = calls, recorders, shared, shared.room
        self._give_back, self._ack_after_loss, self._max_body = give_back, ack_after_loss, max_body
        self._loop = asyncio.get_running_loop()
        self._one_at_a_time = threading.Lock()
        self._is_closed = False

    def push(self, queue: Queue, job: NewJob, if_exists: IfExists) -> Pushed | None:
        """As `Engine.push` of one job; None if the engine is to do it."""
        check_job(job, max_body=self._max_body)
        request = Push((job,), if_exists)
        answer = self._step(self._calls.push, queue, request)
        if isinstance(answer, DuetimeError):
            raise answer
        if answer and self._room.has_line(queue):
            self._loop.call_soon_threadsafe(self._shared.moved, queue, answer.jobs)
        return answer

    def reserve(self, queue: Queue, ttr_ms: int, wait_ms: int) -> list[Delivery] | None:
        """As `Engine.reserve` of one job of one queue; None if the engine is to do it."""
        if ttr_ms < LEAST_TTR_MS or self._room.has_line(queue):
            return None
        # Another thread may turn the wheel in the same instant; then one turn of it is lost, which is no harm.
        wheel = self._shared.wheel(queue)
        ask = Ask(1, ttr_ms, wheel.take(1))
        reserved = self._step(self._calls.reserve, queue, ask, self._take_back)
        if not reserved or not reserved.deliveries[0]:
            wheel.put_back(1)
            return None if reserved is None or wait_ms > 0 else []
        return [*reserved.deliveries[0]]

    def ack(self, lease: Lease) -> list[Moved | DuetimeError | None] | None:
        """As `Engine.ack` of one lease; None if the engine is to do it."""
        check_lease(lease)
        try:
            moved = self._step(self._calls.ack, lease)
        except StoreUnavailable:
            return [*self._in_loop(self._ack_after_loss([lease]))]
        return None if moved is None else [moved]

    def ack_and_reserve(self, lease: Lease, ttr_ms: int) -> list[Delivery] | None:
        """Finish a job, and lease one of the same queue if one is ready. None if nothing was done: the engine is to do
        one after the other.
        """
        queue = lease.queue
        if ttr_ms < LEAST_TTR_MS or self._room.has_line(queue):
            return None
        check_lease(lease)
        wheel = self._shared.wheel(queue)
        ask = Ask(1, ttr_ms, wheel.take(1))
        reserved = self._step(self._calls.ack_and_reserve, lease, ask, self._take_back)
        if not reserved or not reserved.deliveries[0]:
            wheel.put_back(1)
        return None if reserved is None else [*reserved.deliveries[0]]

    def close(self) -> None:
        """Later calls answer None. A call that is under way ends, and closes what is to be closed."""
        self._is_closed = True
        if self._one_at_a_time.acquire(blocking=False):
            try:
                self._calls.close()
            finally:
                self._one_at_a_time.release()

    def _step(self, make: Callable[[*Ts], T | None], *of: *Ts) -> T | None:
        if not self._one_at_a_time.acquire(blocking=False):
            return None
        try:
            return None if self._is_closed or self._recorders.is_needed else make(*of)
        finally:
            self._one_at_a_time.release()
            if self._is_closed:
                self.close()

    def _in_loop(self, work: Awaitable[T]) -> T:
        async def run() -> T:
            return await work

        try:
            return asyncio.run_coroutine_threadsafe(run(), self._loop).result()
        except RuntimeError as stopped:
            raise StoreUnavailable.stopping() from stopped

    def _take_back(self, delivery: Delivery) -> None:
        self._loop.call_soon_threadsafe(self._give_back, [delivery])
