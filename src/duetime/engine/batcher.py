"""The batcher: the only module that decides whether a request is alone in its store call or shares it with others.

    submit(request, reply)
       |
       v
    Lane (one per verb) -> inbox of the queue -> one store call for all requests that wait -> recorders -> replies

The first request on an idle queue goes out immediately; no timer holds it back to collect others. Requests that arrive
while a store call is under way share the next one, so under load the batches grow by themselves, and with them the
throughput. Only when a full call's worth waits does a second call start next to the first, so that this process
prepares one while the store works on the other. An answer is given after it is flushed to the journal; the next call
does not wait for that.

Each request keeps its own answer: an error value from the store reaches only its caller, a failed call reaches every
caller that was in it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from duetime.engine.recorder import Recorders, Step
from duetime.engine.requests import (
    AckByIdRequest,
    AckRequest,
    Answer,
    CancelRequest,
    FinishRequest,
    PushRequest,
    Request,
    ReserveRequest,
    ResultsRequest,
)
from duetime.engine.wheel import Wheel
from duetime.model.errors import DuetimeError, LeaseLost, StoreUnavailable
from duetime.model.job import Delivery, Moved
from duetime.model.names import Queue
from duetime.stores.base import Ask, Pushed, Reserved, Store, pushed_parts
from duetime.stores.finishes import Finished, KeptResult

if TYPE_CHECKING:
    from duetime.engine.reaper import Reaper
    from duetime.engine.result_waiting import ResultWaiting
    from duetime.engine.waiting import WaitingRoom, Wants

log = logging.getLogger("duetime.engine")

T = TypeVar("T")
Asked = TypeVar("Asked")
Given = TypeVar("Given", contravariant=True)  # noqa: PLC0105

MAX_CALLS = 2
"""Store calls of one verb that are under way for a queue, at most."""
REPLIES_PER_TURN = 16
"""How many callers get their answers in one turn of the event loop."""
HEAVY_JOBS = 50
"""A call for fewer jobs goes out immediately."""
HEAVY_CALLS = 2
HEAVY_WAIT_S = 0.05
"""A heavy call waits this long at most. Otherwise the calls to a store that hangs would time out two by two."""
MAX_WHEELS = 10_000

SharedCall = Callable[[Queue, Sequence[Asked]], Awaitable[Sequence[Answer | DuetimeError]]]
"""A store call for several requests; one answer or error for each."""
Flushed = Callable[[], asyncio.Future[Any] | None]
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
"""Starts a task; the engine waits for its end and sees its errors."""


class Reply(Protocol[Given]):
    """Where a caller gets its answer: a future, or an object of a caller that has no task to wait in.

    The two setters are called at most once, only while `done` says False, and must not raise.
    """

    def done(self) -> bool:
        """Returns whether the answer is no longer wanted. Then a request that waits is not sent."""
        ...

    def set_result(self, result: Given, /) -> None: ...

    def set_exception(self, exception: Exception, /) -> None: ...


Submission = tuple[Asked, int, Reply[Answer]]
"""A request, its weight, and where its answer goes. A plain tuple, because every request makes one."""


class ReplyScheduler:
    """Gives the answers of all verbs of an engine to their callers, some in each turn of the event loop.

    Each caller has something to do when it gets its answer, and hundreds of them in one turn would hold up everybody
    else. While a queue's answers are being given, its next call waits: those callers usually ask again, and all of
    them fit into one call.
    """

    def __init__(self, spawn: Spawn) -> None:
        self.spawn = spawn
        self._delivering: dict[Queue, asyncio.Task[None]] = {}

    def deliver(self, queue: Queue, answers: Sequence[T], give: Callable[[Iterable[T]], None]) -> None:
        """Call `give` with the first answers now and with some more in each turn. All are given, whatever happens."""
        if len(answers) <= REPLIES_PER_TURN:
            give(answers)
            return
        left = iter(answers)
        give(islice(left, REPLIES_PER_TURN))
        try:
            task = self.spawn(_give_in_turns(left, give))
        except StoreUnavailable:  # the engine has stopped
            give(left)
            return
        self._delivering[queue] = task
        task.add_done_callback(lambda done: self._delivered(queue, done, left, give))

    def _delivered(
        self, queue: Queue, task: asyncio.Task[None], left: Iterator[T], give: Callable[[Iterable[T]], None]
    ) -> None:
        if self._delivering.get(queue) is task:
            del self._delivering[queue]
        give(left)  # those that a cancelled task did not get to

    def under_way(self, queue: Queue) -> asyncio.Task[None] | None:
        """The task that gives answers of the queue now; None if there is none."""
        return self._delivering.get(queue)


async def _give_in_turns(left: Iterator[T], give: Callable[[Iterable[T]], None]) -> None:
    some: Sequence[T] | None = None
    while some is None or some:
        await asyncio.sleep(0)
        some = list(islice(left, REPLIES_PER_TURN))
        give(some)


class Inbox(Generic[Asked, Answer]):
    """The requests that wait for a queue's next call. `runners` make its calls, one at a time each."""

    __slots__ = ("entries", "runners", "weight")

    def __init__(self) -> None:
        self.entries: deque[Submission[Asked, Answer]] = deque()
        self.weight = 0
        self.runners = 0


class Lane(Generic[Asked, Answer]):
    """The requests of one verb, for all queues. `max_weight` bounds a call, but one request always fits.

    `orphan` gets an answer whose caller went away during the call.
    `flushed`, asked right after a call, returns a future that completes before its answers are given, None if nothing
    is pending; if it fails, its error replaces every answer that is not an error itself.
    """

    def __init__(
        self,
        call: SharedCall[Asked, Answer],
        replies: ReplyScheduler,
        *,
        max_weight: int,
        orphan: Callable[[Answer], None] | None = None,
        flushed: Flushed | None = None,
    ) -> None:
        self._call = call
        self._replies = replies
        self._max_weight = max_weight
        self._orphan = orphan
        self._flushed = flushed
        self._closed = False
        # A queue has an inbox while at least one runner serves it.
        self._inboxes: dict[Queue, Inbox[Asked, Answer]] = {}
        self.calls = 0
        self.requests = 0

    def submit(self, queue: Queue, request: Asked, weight: int, reply: Reply[Answer]) -> None:
        """Queue a request; `reply` gets its answer or its error in a later turn of the event loop.

        Raises StoreUnavailable, and then `reply` gets nothing.
        """
        if self._closed:
            raise StoreUnavailable.stopping()
        inbox: Inbox[Asked, Answer] | None = self._inboxes.get(queue)
        if inbox is None:
            inbox = Inbox()
            self._start(queue, inbox)
            self._inboxes[queue] = inbox
        inbox.entries.append((request, weight, reply))
        inbox.weight += weight
        if inbox.weight >= self._max_weight and inbox.runners < MAX_CALLS:
            self._start(queue, inbox)

    async def run(self, queue: Queue, request: Asked, weight: int = 1) -> Answer:
        """The answer to this request, or its error. A request whose caller goes away before the call is not sent."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.submit(queue, request, weight, answer)
        try:
            return await answer
        except asyncio.CancelledError:
            # The answer may have come in the same instant as the cancellation.
            if self._orphan and not answer.cancelled() and answer.exception() is None:
                self._orphan(answer.result())
            raise

    def is_idle(self, queue: Queue) -> bool:
        """Whether a request of this queue would be alone in its call. Never after the close."""
        return queue not in self._inboxes and not self._closed

    def close(self) -> None:
        """Take no more requests; requests that are waiting are still served."""
        self._closed = True

    def _start(self, queue: Queue, inbox: Inbox[Asked, Answer]) -> None:
        runner = self._replies.spawn(self._run(queue, inbox))
        inbox.runners += 1
        # A callback and not a `finally`: a task that is cancelled before its first step never gets to one.
        runner.add_done_callback(lambda done: self._broke(done, queue, inbox))

    async def _run(self, queue: Queue, inbox: Inbox[Asked, Answer]) -> None:
        while inbox.entries:
            if giving := self._replies.under_way(queue):
                await asyncio.wait([giving])
            if entries := self._next_entries(inbox):
                await self._serve(queue, entries)
        self._leave(queue, inbox)

    def _broke(self, runner: asyncio.Task[None], queue: Queue, inbox: Inbox[Asked, Answer]) -> None:
        if runner.cancelled() or runner.exception():
            self._leave(queue, inbox)

    def _leave(self, queue: Queue, inbox: Inbox[Asked, Answer]) -> None:
        """A runner is gone. The last one removes the inbox; callers that still wait, because it was stopped, get an
        error.
        """
        inbox.runners -= 1
        if inbox.runners:
            return
        del self._inboxes[queue]
        for _, _, answer in inbox.entries:
            _fail(answer, StoreUnavailable.stopping())

    def _next_entries(self, inbox: Inbox[Asked, Answer]) -> list[Submission[Asked, Answer]]:
        entries: list[Submission[Asked, Answer]] = []
        weight = 0
        while inbox.entries and (not entries or weight + inbox.entries[0][1] <= self._max_weight):
            entry = inbox.entries.popleft()
            _, own_weight, answer = entry
            inbox.weight -= own_weight
            if not answer.done():
                entries.append(entry)
                weight += own_weight
        return entries

    async def _serve(self, queue: Queue, entries: Sequence[Submission[Asked, Answer]]) -> None:
        self.calls += 1
        self.requests += len(entries)
        try:
            answers = await self._call(queue, [request for request, _, _ in entries])
            pairs = list(zip(entries, answers, strict=True))
        except asyncio.CancelledError:
            for _, _, answer in entries:
                _fail(answer, StoreUnavailable("the engine stopped during the call", unknown=True))
            raise
        except Exception as error:  # of any kind: the callers get it
            for _, _, answer in entries:
                _fail(answer, own_copy(error))
            return
        pending = self._flushed() if self._flushed else None
        if pending is None:
            self._replies.deliver(queue, pairs, self._answer)
        else:
            pending.add_done_callback(lambda done: self._answer_flushed(queue, pairs, done.exception()))

    def _answer_flushed(
        self,
        queue: Queue,
        pairs: Sequence[tuple[Submission[Asked, Answer], Answer | Exception]],
        failure: BaseException | None,
    ) -> None:
        """`failure`: why the flush failed. Callers get it in place of every answer that is not an error."""
        if isinstance(failure, Exception):
            pairs = [
                (entry, answer if isinstance(answer, DuetimeError) else own_copy(failure)) for entry, answer in pairs
            ]
        self._replies.deliver(queue, pairs, self._answer)

    def _answer(self, pairs: Iterable[tuple[Submission[Asked, Answer], Answer | Exception]]) -> None:
        for (_, _, reply), answer in pairs:
            if isinstance(answer, Exception):
                _fail(reply, answer)
            elif not reply.done():
                try:
                    reply.set_result(answer)
                except Exception:  # whatever one caller does with its answer, the others get theirs
                    log.exception("reply_failed")
            elif self._orphan:
                self._orphan(answer)


class Batcher:
    """Makes the store calls of all verbs that can be grouped."""

    def __init__(
        self, store: Store, recorders: Recorders, *, room: "WaitingRoom", results: "ResultWaiting", reaper: "Reaper"
    ) -> None:
        self._store, self._recorders = store, recorders
        self._results, self._reaper = results, reaper
        self.room = room
        self._heavy = asyncio.Semaphore(HEAVY_CALLS)
        self._wheels: dict[Queue, Wheel] = {}
        flushed = recorders.flushed

        def lane(
            kind: type[Request[Any]], call: SharedCall[Any, Any], *, flushed: Flushed | None = flushed
        ) -> Lane[Any, Any]:
            orphan = room.give_back if kind is ReserveRequest else None
            return Lane(call, room.replies, max_weight=kind.max_weight, orphan=orphan, flushed=flushed)

        self.lanes: dict[type[Request[Any]], Lane[Any, Any]] = {
            PushRequest: lane(PushRequest, self._push),
            ReserveRequest: lane(ReserveRequest, self._reserve, flushed=None),
            AckRequest: lane(AckRequest, self._ack),
            FinishRequest: lane(FinishRequest, self._finish),
            CancelRequest: lane(CancelRequest, self._cancel),
            AckByIdRequest: lane(AckByIdRequest, self._ack_by_id),
            ResultsRequest: lane(ResultsRequest, self._read_results, flushed=None),
        }

    def submit(self, request: Request[Answer], reply: Reply[Answer]) -> None:
        """Take a request that was checked. `reply` gets its answer or its error in a later turn of the event loop.

        Raises StoreUnavailable when the engine stops, and then `reply` gets nothing.
        """
        self.lanes[type(request)].submit(request.queue, request, request.weight(), reply)

    async def run(self, request: Request[Answer]) -> Answer:
        """Submit a request and wait for its answer. A request whose caller goes away before the call is not sent."""
        return await self.lanes[type(request)].run(request.queue, request, request.weight())

    def close(self) -> None:
        """Take no more requests; requests that are waiting are still served."""
        for lane in self.lanes.values():
            lane.close()

    # --- one store call for several requests

    async def _push(self, queue: Queue, requests: Sequence[PushRequest]) -> Sequence[Pushed | DuetimeError]:
        """Wakes waiting consumers here, because a cancelled caller's push still happened."""
        pushes = [request.push for request in requests]
        jobs = sum([len(push.jobs) for push in pushes])
        step = Step("push", queue, pushes, len(requests))
        answers = await self._call(jobs, step, lambda: self._store.push(queue, pushes))
        _, parts = pushed_parts(pushes, answers)
        pushed = [part.jobs for part in parts if isinstance(part, Pushed) and not part.repeated]
        self.moved(queue, pushed[0] if len(pushed) == 1 else [moved for jobs in pushed for moved in jobs])
        return answers

    async def _reserve(self, queue: Queue, requests: Sequence[ReserveRequest]) -> Sequence[list[Delivery]]:
        return await self.reserve(queue, [(request.limit, request.ttr_ms) for request in requests])

    async def reserve(self, queue: Queue, wants: "Wants") -> Sequence[list[Delivery]]:
        """Requests that follow each other with the same ttr share one ask."""
        wheel = self.wheel(queue)
        groups = _merge(wants)
        asks = [Ask(sum(limits), ttr_ms, wheel.take(sum(limits))) for ttr_ms, limits in groups]
        unused = sum([ask.limit for ask in asks])
        known = self.room.news
        try:
            step = Step("reserve", queue, asks, len(wants))
            reserved = await self._call(unused, step, lambda: self._store.reserve(queue, asks))
            unused -= sum(map(len, reserved.deliveries))
        finally:
            wheel.put_back(unused)
        self.learn(queue, asks, reserved, since=known)
        shares: list[list[Delivery]] = []
        for (_, limits), deliveries in zip(groups, reserved.deliveries, strict=True):
            at = 0
            for limit in limits:
                shares.append(list(deliveries[at : at + limit]))
                at += limit
        return shares

    def learn(self, queue: Queue, asks: Sequence[Ask], reserved: Reserved, *, since: int) -> None:
        """Pass on what a reserve has found; `since` is the room's `news` before it."""
        self.room.learn(queue, reserved, since=since)
        for ask, deliveries in zip(asks, reserved.deliveries, strict=True):
            if deliveries:
                self._reaper.expect(ask.ttr_ms / 1000)

    async def _ack(
        self, queue: Queue, requests: Sequence[AckRequest]
    ) -> Sequence[Sequence[Moved | LeaseLost | None] | DuetimeError]:
        leases = [lease for request in requests for lease in request.leases]
        step = Step("ack", queue, leases, len(requests))
        answers = await self._call(len(leases), step, lambda: self._store.ack(queue, leases))
        return _split(answers, [request.leases for request in requests])

    async def _finish(
        self, queue: Queue, requests: Sequence[FinishRequest]
    ) -> Sequence[Sequence[Finished | DuetimeError | None]]:
        """Wakes those who wait here for jobs and results."""
        finishes = [one for request in requests for one in request.finishes]
        jobs = sum([1 + len(one.then) for one in finishes])
        step = Step("finish", queue, finishes, len(requests))
        answers = await self._call(jobs, step, lambda: self._store.finish(queue, finishes))
        done = [(one, answer) for one, answer in zip(finishes, answers, strict=True) if isinstance(answer, Finished)]
        self.moved(queue, [moved for _, answer in done for moved in answer.then])
        if kept := [one.lease.id for one, _ in done if one.keeps_result]:
            self._results.notice(queue, kept)
        return _split(answers, [request.finishes for request in requests])

    async def _cancel(self, queue: Queue, requests: Sequence[CancelRequest]) -> Sequence[Sequence[Moved | None]]:
        ids = [job_id for request in requests for job_id in request.ids]
        step = Step("cancel", queue, ids, len(requests))
        answers = await self._recorders.run(step, lambda: self._store.cancel(queue, ids))
        return _split(answers, [request.ids for request in requests])

    async def _ack_by_id(self, queue: Queue, requests: Sequence[AckByIdRequest]) -> Sequence[Sequence[Moved | None]]:
        ids = [job_id for request in requests for job_id in request.ids]
        step = Step("ack_by_id", queue, ids, len(requests))
        answers = await self._recorders.run(step, lambda: self._store.cancel(queue, ids, finished=True))
        return _split(answers, [request.ids for request in requests])

    async def _read_results(self, queue: Queue, requests: Sequence[ResultsRequest]) -> Sequence[dict[str, KeptResult]]:
        ids = list(dict.fromkeys(job_id for request in requests for job_id in request.ids))
        found: dict[str, KeptResult] = {}
        while ids:
            step = Step("results", queue, ids, len(requests))
            answers = await self._recorders.run(step, lambda some=ids: self._store.results(queue, some))
            found.update({one.id: one for one in answers if one})
            ids = ids[len(answers) :]
        return [{job_id: found[job_id] for job_id in request.ids if job_id in found} for request in requests]

    async def _call(self, jobs: int, step: Step, call: Callable[[], Awaitable[T]]) -> T:
        """Calls for hundreds of jobs take turns, so that a call for a few jobs never waits behind many of them.

        A store serves its calls one after the other, and a flooded queue has up to seven calls under way. Two keep a
        store busy; with more, a job of another queue only waits longer.
        """
        if jobs < HEAVY_JOBS:
            return await self._recorders.run(step, call)
        has_turn = False
        with suppress(TimeoutError):
            async with asyncio.timeout(HEAVY_WAIT_S):
                has_turn = await self._heavy.acquire()
        try:
            return await self._recorders.run(step, call)
        finally:
            if has_turn:
                self._heavy.release()

    def moved(self, queue: Queue, answers: Sequence[object]) -> None:
        """This process put jobs into waiting: its own consumers need no wake from the store."""
        if due := [answer.due_at for answer in answers if isinstance(answer, Moved) and answer.due_at]:
            self.room.notice(queue, min(due))

    def wheel(self, queue: Queue) -> Wheel:
        wheel = self._wheels.get(queue)
        if wheel is None:
            if len(self._wheels) >= MAX_WHEELS:
                self._wheels.clear()
            wheel = self._wheels[queue] = Wheel()
        return wheel


def _merge(wants: "Wants") -> list[tuple[int, list[int]]]:
    """Groups requests that follow each other with the same ttr: (ttr_ms, their limits)."""
    groups: list[tuple[int, list[int]]] = []
    for limit, ttr_ms in wants:
        if groups and groups[-1][0] == ttr_ms:
            groups[-1][1].append(limit)
        else:
            groups.append((ttr_ms, [limit]))
    return groups


def _split(answers: Sequence[Any], requests: Sequence[Sequence[Any]]) -> list[Any]:
    """Each request's answers; or the error of a request that was for a part of the store that is down."""
    shares: list[Any] = []
    at = 0
    for request in requests:
        shares.append(answers[at : at + len(request)])
        at += len(request)
    if not [answer for answer in answers if isinstance(answer, StoreUnavailable)]:
        return shares
    return [_error_in(share) or share for share in shares]


def _error_in(share: Sequence[Any]) -> StoreUnavailable | None:
    down = next((answer for answer in share if isinstance(answer, StoreUnavailable)), None)
    if down and any(isinstance(answer, Moved | Finished) for answer in share):
        return StoreUnavailable(down.message, unknown=True)
    return down


def _fail(answer: Reply[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def own_copy(error: Exception) -> Exception:
    """A copy for one caller to raise: a shared error would gather the tracebacks of all callers."""
    if not isinstance(error, DuetimeError):
        return error
    own = copy(error)
    own.__cause__ = error
    return own
