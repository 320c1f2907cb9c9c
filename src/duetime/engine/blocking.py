"""Calls of blocking callers: single-job calls in the caller's own thread, without the event loop."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from duetime.engine.batcher import Batcher
from duetime.engine.reaper import LONGEST_REST_S
from duetime.engine.requests import AckAndReserveRequest, AckRequest, Answer, PushRequest, Request, ReserveRequest
from duetime.model.errors import DuetimeError
from duetime.model.job import Delivery
from duetime.model.names import Queue
from duetime.stores.base import Ask, BlockingOneJob, Push, Pushed, Reserved

T = TypeVar("T")

MIN_BLOCKING_TTR_MS = round(2 * LONGEST_REST_S * 1000)
"""The reaper checks at least this often for leases that it does not know of, so that these end in time, too."""


class BlockingCalls:
    """Requests of threads that have no event loop.

    `run` makes the store call in the caller's own thread if all of this is true; otherwise the event loop makes it:

    - `Engine.open_blocking` was called, and the store has blocking single-job calls (SQLite, a single Redis);
    - the request is a push without a mark, a reserve, an ack, or an ack with reserve, of one job;
    - no recorder has to record it: the engine has neither a journal nor metrics, and its node is registered;
    - no other call of this verb is under way in the queue, and no other thread is in such a call;
    - for a reserve: no consumer of this engine waits for a job of the queue, and the ttr is at least
      MIN_BLOCKING_TTR_MS, because the reaper does not know of the lease;
    - the store accepts it: the queue is known and has no rules that the single-job statement does not know, the
      disk has room, and no other process is writing (see `BlockingOneJob`).
    """

    def __init__(self, batcher: Batcher) -> None:
        """Called in the engine's event loop."""
        self._batcher, self._waiters = batcher, batcher.waiters
        self._loop = asyncio.get_running_loop()
        self._one_job = batcher.store.one_job.blocking() if batcher.store.one_job else None
        self._in_use = threading.Lock()
        self._is_closed = self._one_job is None

    def run(self, request: Request[Answer]) -> Answer | None:
        """Returns None if nothing was done and the event loop has to serve the request."""
        one_job, lane = self._one_job, self._batcher.lanes.get(type(request))
        if one_job is None or self._batcher.recorders.is_needed or (lane and not lane.is_idle(request.queue)):
            return None
        if not self._in_use.acquire(blocking=False):
            return None
        try:
            return None if self._is_closed else self._call(one_job, request)
        finally:
            self._in_use.release()
            if self._is_closed:
                self.close()

    def _call(self, one_job: BlockingOneJob, request: Request[Any]) -> Any:
        match request:
            case PushRequest(queue, push):
                return self._push(one_job, queue, push)
            case ReserveRequest(queue, ttr_ms, 1):
                return self._reserve(one_job.reserve, queue, queue, ttr_ms)
            case AckRequest(_, [lease]):
                moved = one_job.ack(lease)
                return None if moved is None else [moved]
            case AckAndReserveRequest(queue, lease, ttr_ms):
                return self._reserve(one_job.ack_and_reserve, queue, lease, ttr_ms)
            case _:
                return None

    def _push(self, one_job: BlockingOneJob, queue: Queue, push: Push) -> Pushed | None:
        if not push.is_single:
            return None
        answer = one_job.push(queue, push)
        if isinstance(answer, DuetimeError):
            raise answer
        if answer and queue in self._waiters.lists:
            self._loop.call_soon_threadsafe(self._batcher.moved, queue, answer.jobs)
        return answer

    def _reserve(
        self,
        reserve: Callable[[T, Ask, Callable[[Delivery], None]], Reserved | None],
        queue: Queue,
        of: T,
        ttr_ms: int,
    ) -> list[Delivery] | None:
        if ttr_ms < MIN_BLOCKING_TTR_MS or queue in self._waiters.lists:
            return None
        # Another thread may use the rotation in the same instant; then one turn is lost, which does no harm.
        rotation = self._batcher.rotation(queue)
        reserved = reserve(of, Ask(1, ttr_ms, rotation.next_turns(1)), self._give_back)
        if not reserved or not reserved.deliveries[0]:
            rotation.return_turns(1)
        return None if reserved is None else [*reserved.deliveries[0]]

    def _give_back(self, delivery: Delivery) -> None:
        self._loop.call_soon_threadsafe(self._waiters.give_back, [delivery])

    def close(self) -> None:
        """Later calls answer None. A call that is under way ends, and closes the connection."""
        self._is_closed = True
        if self._one_job and self._in_use.acquire(blocking=False):
            try:
                self._one_job.close()
            finally:
                self._in_use.release()
