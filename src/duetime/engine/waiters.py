"""Waiting for jobs, without polling.

Each queue with waiting consumers has a line of them (`QueueWaiters`). A consumer joins the lines of its queues *before*
it asks the store for the first time, so no wake falls between asking and waiting. A line makes one store call at a time
for the consumers in it, first come first served; a consumer is in at most one call at a time. The store answers when
the next job falls due, and the line sets its timer to that instant. A push, a wake from another process and the safety
net can only make the timer end earlier.

A job that was leased for a consumer that has gone meanwhile is given back, and stands where it stood before.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

from duetime.engine.batcher import ReplyScheduler, own_copy
from duetime.engine.store_time import StoreTime
from duetime.model.errors import StoreUnavailable
from duetime.model.job import STEP_JOBS, Delivery
from duetime.model.names import Queue
from duetime.model.ticks import to_tick
from duetime.stores.base import Reserved, Store

CHECK_EVERY_S = 1.0
CHECK_AT_ONCE = 250
"""Queues in one call, so that the check of thousands holds up no delivery."""
ABOUT_TO_S = 0.05
FIRST_REACH = 8

Wants = Sequence[tuple[int, int]]
"""(limit, ttr_ms) per consumer."""
Reserve = Callable[[Queue, Wants], Awaitable[Sequence[list[Delivery]]]]
"""One store call; answers what each consumer gets. The call tells the room what it learned."""
GiveBack = Callable[[Sequence[Delivery]], None]


class Waiter:
    """A consumer that waits: what it wants, the lines it is in, and what it gets."""

    def __init__(self, limit: int, ttr_ms: int) -> None:
        self.wants = (limit, ttr_ms)
        self.lines: list[QueueWaiters] = []
        self.answer: asyncio.Future[list[Delivery]] = asyncio.get_running_loop().create_future()
        self.error: Exception | None = None
        self.busy = True

    def free(self) -> None:
        """The call brought nothing, so the consumer is available to its other queues, in the order it named them."""
        self.busy = False
        for line in self.lines:
            line.offer()

    def fail(self, error: Exception) -> None:
        """End the wait with an error. The future gets no exception, because a consumer that has gone retrieves none."""
        if not self.answer.done():
            self.error = error
            self.answer.set_result([])


class QueueWaiters:
    """The line of consumers that wait for jobs of one queue.

    `_next_at` is when the earliest known job falls due. While a timer is set, that instant is to come. Without a timer
    it has passed, and either a call is under way for the job or all consumers here are busy in calls for other queues.
    """

    def __init__(self, queue: Queue, room: "WaitingRoom") -> None:
        self.queue = queue
        self.parked: dict[Waiter, None] = {}
        self._room = room
        self._next_at: int | None = None
        self._noticed = 0
        self._asked: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._calling = False
        self._again = False
        self._reach = FIRST_REACH

    def signal(self) -> None:
        """There may be a job: ask the store, now or right after the call that is under way."""
        if self._calling:
            self._again = True
        elif self.parked and not self._room.closed:
            # An engine that breaks starts no more calls; when it ends, the waiting consumers get an error.
            with suppress(StoreUnavailable):
                self._room.replies.spawn(self._serve())
                self._calling = True

    def offer(self) -> None:
        """A consumer is free again: ask the store, but only for a job that is known to be due.

        If every freed consumer set off a call, the calls for two queues would set off each other for ever: each keeps
        some consumers from the other and brings them nothing.
        """
        if self._next_at is not None and self._timer is None and not self._calling:
            self.signal()

    def notice(self, due_at: int) -> None:
        """A job waits here from `due_at` on."""
        # The answer of a call under way replaces what was known before that call, but not what was noticed since.
        outdated = self._asked is not None and self._noticed <= self._asked and self._timer is None
        self._noticed = self._room.news
        if self._next_at is None or due_at < self._next_at or outdated:
            self._next_at = due_at
            self.clock_changed()
        elif self._timer is None:
            self.signal()

    def learn(self, reserved: Reserved, since: int) -> None:
        """Take over what a reserve of this queue said about the jobs that are left, by the store's own clock.

        A job that was noticed while the call was under way may have come after it, so that its answer misses the job.
        """
        next_at = reserved.next_at
        if self._noticed > since and self._next_at is not None:
            next_at = self._next_at if next_at is None else min(next_at, self._next_at)
        self._next_at = next_at
        self._set_timer(0.0 if next_at is None else (next_at - reserved.now) / 1000)

    def clock_changed(self) -> None:
        """Set the timer by what is known of the store's clock. If it ends too early, the call then sets it right."""
        self._set_timer(0.0 if self._next_at is None else self._room.time.seconds_until(self._next_at))

    def _set_timer(self, seconds: float) -> None:
        self.cancel_timer()
        if self._next_at is None or not self.parked:
            return
        if seconds <= 0:
            self.signal()
        else:
            # Some loops round timers to milliseconds: up is late by less than one, down would cost an idle call.
            delay = math.ceil(seconds * 1000) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay, self._fire)

    def cancel_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self.signal()

    async def _serve(self) -> None:
        try:
            self._again = True
            while self._again:
                self._again = False
                await self._call_once()
        finally:
            self._calling = False

    async def _call_once(self) -> None:
        waiters = self._next_waiters()
        if not waiters:
            return
        for waiter in waiters:
            waiter.busy = True
        self._asked = self._room.news
        try:
            shares = await self._room.reserve(self.queue, [waiter.wants for waiter in waiters])
        except Exception as error:  # whatever it is, it belongs to the consumers
            self._failed(waiters, error)
            return
        finally:
            self._asked = None
        filled = sum(map(len, shares)) == sum(waiter.wants[0] for waiter in waiters)
        self._reach = min(2 * self._reach, STEP_JOBS) if filled else FIRST_REACH
        self._room.replies.deliver(self.queue, list(zip(waiters, shares, strict=True)), self._hand_over)
        if giving := self._room.replies.under_way(self.queue):
            await asyncio.wait([giving])

    def _hand_over(self, pairs: Iterable[tuple[Waiter, list[Delivery]]]) -> None:
        for waiter, share in pairs:
            if waiter.answer.done():
                self._room.give_back(share)
            elif share:
                waiter.answer.set_result(share)
            else:
                waiter.free()

    def _next_waiters(self) -> list[Waiter]:
        """The first consumers of the line: few, and twice as many after each call that brought jobs for all of them.

        One job for a line of hundreds must not cost a step for each of them.
        """
        chosen: list[Waiter] = []
        wanted = 0
        for waiter in self.parked:
            if waiter.busy or waiter.answer.done():
                continue
            wanted += waiter.wants[0]
            if chosen and wanted > self._reach:
                break
            chosen.append(waiter)
        return chosen

    def _failed(self, waiters: Sequence[Waiter], error: Exception) -> None:
        """Consumers wait through an outage until their deadline; the safety net asks again when the store is back.

        Until then the line forgets the jobs that this call was for, or the calls of several queues would fail in turns.
        """
        if self._asked is not None and self._noticed <= self._asked and self._timer is None:
            self._next_at = None
        if isinstance(error, StoreUnavailable):
            self._room.outage = error
        for waiter in waiters:
            if not isinstance(error, StoreUnavailable):
                waiter.fail(error)
            waiter.free()


class WaitingRoom:
    """All lines of an engine, and the duty that checks them every second in case a wake was lost.

    `news` counts the jobs that were noticed. `outage` is why the store could not be reached when it was last asked.
    """

    name = "safety net"

    def __init__(self, store: Store, replies: ReplyScheduler, *, reserve: Reserve, give_back: GiveBack) -> None:
        self.replies = replies
        self.reserve = reserve
        self.give_back = give_back
        self.time = StoreTime()
        self.news = 0
        self.outage: StoreUnavailable | None = None
        self.closed = False
        self._store = store
        self._lines: dict[Queue, QueueWaiters] = {}
        self._check_now = asyncio.Event()

    @property
    def parked(self) -> int:
        return len({waiter for line in self._lines.values() for waiter in line.parked})

    def has_line(self, queue: Queue) -> bool:
        """Whether a consumer waits for this queue; also for other threads to ask."""
        return queue in self._lines

    async def wait(
        self, queues: Sequence[Queue], waiter: Waiter, deadline: float, *, first: "FirstLook"
    ) -> list[Delivery]:
        """Join the lines, ask once, then wait until the loop's clock shows `deadline`; answers empty only after it."""
        waiter.lines = [self._park(queue, waiter) for queue in queues]
        try:
            found = await first()
            if found:
                return found
            waiter.free()
            loop = asyncio.get_running_loop()
            while not waiter.answer.done() and (left := deadline - loop.time()) > 0:
                await asyncio.wait([waiter.answer], timeout=left)
            return self._outcome(waiter)
        except asyncio.CancelledError:
            # The answer may have come in the same instant as the cancellation.
            if waiter.answer.done():
                self.give_back(waiter.answer.result())
            raise
        finally:
            # A line that has a call under way for this consumer sees by this that the consumer has gone.
            waiter.answer.cancel()
            for line in waiter.lines:
                self._leave(line, waiter)

    def _outcome(self, waiter: Waiter) -> list[Delivery]:
        if error := waiter.error or (None if waiter.answer.done() else self.outage):
            raise own_copy(error)
        return waiter.answer.result() if waiter.answer.done() else []

    def _park(self, queue: Queue, waiter: Waiter) -> QueueWaiters:
        line = self._lines.get(queue) or self._lines.setdefault(queue, QueueWaiters(queue, self))
        line.parked[waiter] = None
        return line

    def _leave(self, line: QueueWaiters, waiter: Waiter) -> None:
        line.parked.pop(waiter, None)
        if not line.parked and self._lines.get(line.queue) is line:
            line.cancel_timer()
            del self._lines[line.queue]

    def notice(self, queue: Queue, due_at: int) -> None:
        """A job waits in the queue from `due_at` on: known from a push here or a wake from elsewhere."""
        self.news += 1
        if line := self._lines.get(queue):
            line.notice(due_at)

    def learn(self, queue: Queue, reserved: Reserved, *, since: int) -> None:
        """Take over what any reserve of this engine found out; `since` is `news` as it was before that call."""
        self.outage = None
        self._learn_time(reserved.now)
        if line := self._lines.get(queue):
            line.learn(reserved, since)

    def _learn_time(self, now_ms: int) -> None:
        if self.time.learn(now_ms):
            for line in list(self._lines.values()):
                line.clock_changed()

    def check_now(self) -> None:
        """Wakes may have been missed: check all queues with waiting consumers."""
        self._check_now.set()

    def close(self) -> None:
        """End all waits. Jobs that are on their way to a consumer are given back."""
        self.closed = True
        for line in self._lines.values():
            line.cancel_timer()
            for waiter in line.parked:
                waiter.fail(StoreUnavailable.stopping())

    async def due(self, queues: Sequence[Queue]) -> list[Queue]:
        """The queues whose first job has fallen due or is about to, in their order; timers of the others are set."""
        self._learn_time((await self._store.ping()).now)
        worth: list[Queue] = []
        for queue, head in zip(queues, await self._store.heads(queues), strict=True):
            if head is None:
                continue
            if self.time.seconds_until(head) <= ABOUT_TO_S:
                worth.append(queue)
            else:
                self.notice(queue, head)
        return worth

    async def run_once(self) -> float:
        self._check_now.clear()
        if queues := list(self._lines):
            try:
                info = await self._store.ping()
                for at in range(0, len(queues), CHECK_AT_ONCE):
                    await self._check(queues[at : at + CHECK_AT_ONCE])
            except StoreUnavailable as error:
                self.outage = error
                raise
            self.outage = None
            self._learn_time(info.now)
        return CHECK_EVERY_S

    async def _check(self, queues: Sequence[Queue]) -> None:
        for queue, head in zip(queues, await self._store.heads(queues), strict=True):
            if head is not None:
                self.notice(queue, head)

    async def rest(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(to_tick(seconds, asyncio.get_running_loop())):
                await self._check_now.wait()


FirstLook = Callable[[], Awaitable[list[Delivery]]]
"""The first look of a consumer: it tries its queues in the order that it gave."""
