"""Waiting for jobs and for results, without polling.

Every queue with waiting consumers has a list of them (`QueueWaiters`). The list reserves jobs for its consumers, first
come first served; a consumer is in at most one reserve at a time. A reserve also says when the next job falls due, and
the list sets its timer to that time. A push, a wake-up from another process and the safety net can only make the timer
end earlier. A job that was leased for a consumer that no longer waits is given back and keeps its place.

A wake-up must not get lost between a reserve that finds no job and the wait after it:

    this process   register   reserve, version 7                   answer "no job"         waits: until when?
                                      |                                   ^
    store                             +---- no job ----- push of a job ---+--+
                                                                             |
    this process                                                             +--> on_job_available: version 8

1. A consumer registers before its first reserve, so each wake-up after that reserve finds it in the list.
2. `version` counts the wake-ups. A reserve is sent with the version of that moment. If a wake-up of the queue has a
   newer version when the answer arrives, the answer may have missed a job: `on_reserve_result` then keeps the due time
   of that job.
3. If a job is due while a reserve of the list is under way, the list reserves once more after it (`_repeat`).
4. A wake-up from another process can get lost on its way. So the safety net checks all lists once a second.

`tests/proof/waiting_model.py` checks this protocol over all orders of events.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context

from duetime.duties import Duty
from duetime.engine.reaper import Reaper
from duetime.engine.recorder import StoreTime
from duetime.engine.requests import Request, ReserveRequest
from duetime.model.backoff import OUTAGE
from duetime.model.clock import to_tick
from duetime.model.errors import DuetimeError, StoreUnavailable, own_copy
from duetime.model.job import STEP_JOBS, Delivery
from duetime.model.names import Queue
from duetime.stores.base import Reserved, ResultSink, Store
from duetime.stores.finishes import KeptResult

CHECK_EVERY_S = 1.0
QUEUES_PER_CHECK = 250
"""Queues in one call of the safety net, so that the check of thousands delays no delivery."""
NEARLY_DUE_S = 0.05
FIRST_BATCH = 8
"""Jobs that a list reserves first. The number doubles with each reserve that brings all of them."""
LASTING_S = OUTAGE.cap_ms / 1000
"""A connection for wake-ups that lasted longer ended an outage; shorter ones belong to the same outage."""

Submit = Callable[[Request[list[Delivery]], ResultSink[list[Delivery]]], None]
"""`Batcher.submit`."""


class Waiter:
    """A consumer that waits: what it wants, the lists it is in, and what it gets. `busy` while a reserve is under way
    for it, which `reserving` has sent. It is the reply of that reserve, even if the consumer no longer waits.
    """

    reserving: "QueueWaiters"

    def __init__(self, limit: int, ttr_ms: int) -> None:
        self.limit, self.ttr_ms = limit, ttr_ms
        self.lists: list[QueueWaiters] = []
        self.answer: asyncio.Future[list[Delivery]] = asyncio.get_running_loop().create_future()
        self.error: Exception | None = None
        self.busy = True

    def free(self) -> None:
        """The reserve brought nothing, so the consumer is available to its other queues, in the order it gave."""
        self.busy = False
        for one in self.lists:
            one.on_waiter_free()

    def fail(self, error: Exception) -> None:
        """End the wait with an error. The future gets no exception, because a consumer that was cancelled
        would not retrieve it.
        """
        if not self.answer.done():
            self.error = error
            self.answer.set_result([])

    # --- as the reply of a reserve

    def done(self) -> bool:
        return False

    def set_result(self, deliveries: list[Delivery], /) -> None:
        if self.answer.done():
            self.reserving.waiters.give_back(deliveries)
        elif deliveries:
            self.answer.set_result(deliveries)
        else:
            self.free()
        self.reserving.on_answer(is_full=len(deliveries) == self.limit)

    def set_exception(self, error: Exception, /) -> None:
        """Consumers wait through an outage until their deadline; the safety net asks again when the store is back."""
        self.reserving.forget_job()
        if isinstance(error, StoreUnavailable):
            self.reserving.waiters.outage = error
        else:
            self.fail(error)
        self.free()
        self.reserving.on_answer(is_full=False)


class QueueWaiters:
    """The consumers that wait for jobs of one queue.

    `_next_at` is when the earliest known job falls due. While a timer is set, that time is to come. Without a timer
    it has passed, and either a reserve is under way for the job or all consumers here are busy in those of other
    queues. `_seen_version` is the version of the last wake-up of this queue, `_sent_version` the version with which
    the reserve that is under way was sent.
    """

    def __init__(self, queue: Queue, waiters: "Waiters") -> None:
        self.queue = queue
        self.parked: dict[Waiter, None] = {}
        self.waiters = waiters
        self._next_at: int | None = None
        self._seen_version = 0
        self._sent_version: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_reserving = False
        self._repeat = False
        self._unanswered = 0
        self._got_all = False
        self._batch = FIRST_BATCH

    @property
    def _reserve_covers_next(self) -> bool:
        """The reserve under way was sent after the last wake-up, so its answer replaces `_next_at`."""
        return self._sent_version is not None and self._seen_version <= self._sent_version and self._timer is None

    def signal(self) -> None:
        """There may be a job: reserve in the next turn of the event loop, or after the reserve that is under way."""
        if self._is_reserving:
            self._repeat = True
        elif self.parked and not self.waiters.closed:
            self._is_reserving = True
            # A reserve is made for many consumers, so it carries no request id and no trace.
            asyncio.get_running_loop().call_soon(self._reserve, context=self.waiters.context)

    def on_waiter_free(self) -> None:
        """A consumer is free again: reserve, but only if a job is known to be due.

        If every freed consumer started a reserve, the reserves of two queues could start each other endlessly: each
        makes some consumers of the other queue busy, finds no job for them, and frees them again.
        """
        if self._next_at is not None and self._timer is None and not self._is_reserving:
            self.signal()

    def on_job_available(self, due_at: int) -> None:
        """A job waits here from `due_at` on."""
        is_outdated = self._reserve_covers_next
        self._seen_version = self.waiters.version
        if self._next_at is None or due_at < self._next_at or is_outdated:
            self._next_at = due_at
            self.set_timer()
        elif self._timer is None:
            self.signal()

    def on_reserve_result(self, reserved: Reserved, version: int) -> None:
        """Use the answer of a reserve that was sent with `version`: when the next job is due, and the store's time."""
        next_at = reserved.next_at
        if self._seen_version > version and self._next_at is not None:
            next_at = self._next_at if next_at is None else min(next_at, self._next_at)
        self._next_at = next_at
        self.set_timer(reserved.now)

    def set_timer(self, now: int | None = None) -> None:
        """Set the timer to the next due time. Without the store's time `now`, by what is known of its clock; if the
        timer ends too early, the reserve then corrects it.
        """
        self.cancel_timer()
        if self._next_at is None or not self.parked:
            return
        seconds = self.waiters.time.seconds_until(self._next_at) if now is None else (self._next_at - now) / 1000
        if seconds <= 0:
            self.signal()
        else:
            # Some loops round timers to milliseconds: up is late by less than one, down would cost an idle call.
            delay = math.ceil(seconds * 1000) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def cancel_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        self.signal()

    def _reserve(self) -> None:
        """Reserve for the next consumers. The batcher groups their requests; each gets an answer of its own."""
        self._repeat = False
        chosen = self._next_waiters()
        if not chosen:
            self._is_reserving = False
            return
        self._sent_version = self.waiters.version
        self._unanswered, self._got_all = len(chosen), True
        for waiter in chosen:
            waiter.busy, waiter.reserving = True, self
            try:
                self.waiters.submit(ReserveRequest(self.queue, waiter.ttr_ms, waiter.limit), waiter)
            except Exception as error:  # of any kind: it is the answer
                waiter.set_exception(error)

    def _next_waiters(self) -> list[Waiter]:
        """The first consumers of the list: few, and twice as many after each reserve that brought jobs for all of them.

        One job for a list of hundreds must not cost a step for each of them.
        """
        chosen: list[Waiter] = []
        wanted = 0
        for waiter in self.parked:
            if waiter.busy or waiter.answer.done():
                continue
            wanted += waiter.limit
            if chosen and wanted > self._batch:
                break
            chosen.append(waiter)
        return chosen

    def forget_job(self) -> None:
        """The reserve under way failed: forget the job that it was for, or the reserves of several queues would start
        and fail in turns.
        """
        if self._reserve_covers_next:
            self._next_at = None

    def on_answer(self, *, is_full: bool) -> None:
        """A consumer of the reserve under way has its answer. After the last one the next reserve may be sent."""
        self._got_all = self._got_all and is_full
        self._unanswered -= 1
        if self._unanswered:
            return
        self._batch = min(2 * self._batch, STEP_JOBS) if self._got_all else FIRST_BATCH
        self._sent_version = None
        self._is_reserving = False
        if self._repeat:
            self.signal()


class Waiters:
    """All lists of an engine, and the duty that checks them every second in case a wake-up was lost (the safety net).

    `lists` has a list for each queue with waiting consumers; other threads may ask whether it has one. `version` counts
    the wake-ups. `outage` is why the store could not be reached when it was last called.
    """

    name = "safety net"

    def __init__(self, store: Store, submit: Submit, give_back: Callable[[Sequence[Delivery]], object]) -> None:
        self.submit = submit
        self.give_back = give_back
        self.context = Context()
        self.time = StoreTime()
        self.version = 0
        self.outage: StoreUnavailable | None = None
        self.closed = False
        self._store = store
        self.lists: dict[Queue, QueueWaiters] = {}
        self._check_now = asyncio.Event()

    @property
    def parked(self) -> int:
        return len({waiter for one in self.lists.values() for waiter in one.parked})

    async def wait(
        self, queues: Sequence[Queue], waiter: Waiter, deadline: float, *, first: Awaitable[list[Delivery]]
    ) -> list[Delivery]:
        """Register, reserve once with `first`, which tries the queues in the order that the consumer gave, then wait
        until the loop's clock shows `deadline`. Returns empty only after it.
        """
        for queue in queues:
            queue_waiters = self.lists.get(queue) or self.lists.setdefault(queue, QueueWaiters(queue, self))
            queue_waiters.parked[waiter] = None
            waiter.lists.append(queue_waiters)
        try:
            found = await first
            if found:
                return found
            waiter.free()
            loop = asyncio.get_running_loop()
            while not waiter.answer.done() and (left := deadline - loop.time()) > 0:
                await asyncio.wait([waiter.answer], timeout=left)
            if error := waiter.error or (None if waiter.answer.done() else self.outage):
                raise own_copy(error)
            return waiter.answer.result() if waiter.answer.done() else []
        except asyncio.CancelledError:
            # The answer may have come in the same instant as the cancellation.
            if waiter.answer.done():
                self.give_back(waiter.answer.result())
            raise
        finally:
            # A reserve that is under way for this consumer then gives its jobs back.
            waiter.answer.cancel()
            for one in waiter.lists:
                one.parked.pop(waiter, None)
                if not one.parked and self.lists.get(one.queue) is one:
                    one.cancel_timer()
                    del self.lists[one.queue]

    def on_job_available(self, queue: Queue, due_at: int) -> None:
        """A job waits in the queue from `due_at` on: known from a push here or a wake-up from elsewhere."""
        self.version += 1
        if queue_waiters := self.lists.get(queue):
            queue_waiters.on_job_available(due_at)

    def on_reserve_result(self, queue: Queue, reserved: Reserved, version: int) -> None:
        """Use the answer of any reserve of this engine, which was sent with `version`."""
        self.outage = None
        self._on_store_time(reserved.now)
        if queue_waiters := self.lists.get(queue):
            queue_waiters.on_reserve_result(reserved, version)

    def _on_store_time(self, now_ms: int) -> None:
        if self.time.observe(now_ms):
            for one in list(self.lists.values()):
                one.set_timer()

    def check_now(self) -> None:
        """Wake-ups may have been missed: check all queues with waiting consumers."""
        self._check_now.set()

    def close(self) -> None:
        """End all waits. Jobs that are on their way to a consumer are given back."""
        self.closed = True
        for one in self.lists.values():
            one.cancel_timer()
            for waiter in one.parked:
                waiter.fail(StoreUnavailable.stopping())

    async def due_queues(self, queues: Sequence[Queue]) -> list[Queue]:
        """The queues whose first job is due or nearly due, in their order. Sets the timers of the others."""
        self._on_store_time((await self._store.ping()).now)
        due: list[Queue] = []
        for queue, head in zip(queues, await self._store.heads(queues, waiting=True), strict=True):
            if head is None:
                continue
            if self.time.seconds_until(head) <= NEARLY_DUE_S:
                due.append(queue)
            else:
                self.on_job_available(queue, head)
        return due

    async def run_once(self) -> float:
        self._check_now.clear()
        if queues := list(self.lists):
            try:
                info = await self._store.ping()
                for at in range(0, len(queues), QUEUES_PER_CHECK):
                    some = queues[at : at + QUEUES_PER_CHECK]
                    for queue, head in zip(some, await self._store.heads(some, waiting=True), strict=True):
                        if head is not None:
                            self.on_job_available(queue, head)
            except StoreUnavailable as error:
                self.outage = error
                raise
            self.outage = None
            self._on_store_time(info.now)
        return CHECK_EVERY_S

    async def rest(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(to_tick(seconds, asyncio.get_running_loop())):
                await self._check_now.wait()


class ResultWaiters:
    """Callers that wait for results of jobs, by queue and id.

    A caller registers before its first check, as a consumer does. It checks again when a wake-up of the store, or a
    finish of this process, names one of its jobs, and once a second.
    """

    def __init__(self, check: Callable[[Queue, Sequence[str]], Awaitable[Mapping[str, KeptResult]]]) -> None:
        """`check` returns the results that exist; the callers of a queue share its store calls."""
        self._check = check
        self._waiting: dict[Queue, dict[str, set[asyncio.Event]]] = {}
        self._closed = False

    async def wait(self, queue: Queue, ids: Sequence[str], deadline: float) -> Mapping[str, KeptResult]:
        """Returns the results of these jobs when all exist, or those that do at the deadline (on the loop's clock).

        A caller that waits survives an outage of the store; StoreUnavailable is raised if the store is down at the
        first check or at the last.
        """
        kept = asyncio.Event()
        waiting = self._waiting.setdefault(queue, {})
        for job_id in ids:
            waiting.setdefault(job_id, set()).add(kept)
        try:
            return await self._wait(queue, ids, deadline, kept)
        finally:
            for job_id in set(ids):
                waiting[job_id].discard(kept)
                if not waiting[job_id]:
                    del waiting[job_id]
            if not waiting:
                del self._waiting[queue]

    async def _wait(
        self, queue: Queue, ids: Sequence[str], deadline: float, kept: asyncio.Event
    ) -> Mapping[str, KeptResult]:
        now = asyncio.get_running_loop().time
        found = dict(await self._check(queue, ids))
        while (missing := [job_id for job_id in ids if job_id not in found]) and now() < deadline:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(deadline - now(), CHECK_EVERY_S)):
                    await kept.wait()
            kept.clear()
            try:
                found.update(await self._check(queue, missing))
            except StoreUnavailable:
                if self._closed or now() >= deadline:
                    raise
        return found

    def on_results_kept(self, queue: Queue, ids: Sequence[str]) -> None:
        """Results of these jobs were kept; without ids, of any jobs of the queue."""
        if waiting := self._waiting.get(queue):
            for job_id in ids or waiting:
                for kept in waiting.get(job_id, ()):
                    kept.set()

    def check_now(self) -> None:
        """Wake-ups may have been missed."""
        for queue in self._waiting:
            self.on_results_kept(queue, ())

    def close(self) -> None:
        """Every caller checks once more, and the engine refuses that."""
        self._closed = True
        self.check_now()


class WakeListener(Duty):
    """Passes the store's wake-ups to waiting consumers, callers that wait for results, and the reaper.

    A wake-up without a queue says that others may have been lost, or that another program has committed jobs
    (`push_in`), which the reaper imports.
    """

    name = "wake-ups"

    def __init__(self, store: Store, waiters: Waiters, results: ResultWaiters, reaper: Reaper) -> None:
        self._store, self._waiters, self._results, self._reaper = store, waiters, results, reaper

    async def run_once(self) -> float:
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async for wake in self._store.wakeups():
                if wake.queue is None:
                    self._waiters.check_now()
                    self._results.check_now()
                    self._reaper.run_within(0)
                elif wake.results is not None:
                    self._results.on_results_kept(wake.queue, wake.results)
                else:
                    self._waiters.on_job_available(wake.queue, wake.due_at)
        except DuetimeError:
            if loop.time() - started <= LASTING_S:
                raise
        else:
            raise StoreUnavailable("the store ended its wake-ups")
        return OUTAGE.base_ms / 1000
