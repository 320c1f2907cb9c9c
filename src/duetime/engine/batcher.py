"""The batcher decides whether a request is alone in its store call or shares it with others. A store can still decline
its fast path and use the slow one.

    submit(request, reply)
       |
       v
    Lane of the verb: is a call of this queue under way?
       |                       |
       | no                    | yes: the request waits in the queue's inbox
       v                       v
    OneJob of the store     one store call for all requests that wait
       |                       |
       +-----------+-----------+
                   v
    recorders -> flushed -> reply.set_result

The first request on an idle queue goes out immediately; no timer holds it back to collect others. If it is about one
job and the store has single-job calls, it needs no task. Requests that arrive while a store call is under way share the
next one, so under load the batches grow by themselves, and with them the throughput. Only when a full call's worth
waits does a second call start next to the first, so that this process prepares one while the store works on the other.
An answer is given after it is flushed to the journal; the next call does not wait for that.

Each request keeps its own answer: an error value from the store reaches only its caller, a failed call reaches every
caller that was in it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from inspect import iscoroutine
from itertools import islice
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct, field

from duetime.engine.priority_rotation import PriorityRotation
from duetime.engine.reaper import Reaper
from duetime.engine.recorder import Recorders, StoreCall
from duetime.engine.requests import (
    AckByIdRequest,
    AckRequest,
    Answer,
    CancelRequest,
    FinishRequest,
    GiveBackRequest,
    IdsRequest,
    PushRequest,
    Request,
    ReserveRequest,
    ResultsRequest,
)
from duetime.engine.waiters import ResultWaiters, Waiters
from duetime.model.errors import DuetimeError, LeaseLost, StoreUnavailable, own_copy
from duetime.model.job import Delivery, Moved
from duetime.model.names import Queue
from duetime.model.priority_shares import PriorityShares
from duetime.stores.base import Ask, GiveBack, OneJob, Pushed, Reserved, ResultSink, Send, Store, pushed_parts
from duetime.stores.finishes import Finished, KeptResult

log = logging.getLogger("duetime.engine")

T = TypeVar("T")
Asked = TypeVar("Asked", bound=Request[Any])

MAX_CALLS = 2
"""Store calls of one verb that are under way for a queue, at most."""
REPLIES_PER_TURN = 16
"""How many callers get their answers in one turn of the event loop."""
HEAVY_JOBS = 50
"""A call for fewer jobs goes out immediately."""
HEAVY_CALLS = 2
HEAVY_WAIT_S = 0.05
"""A heavy call waits this long at most. Otherwise the calls to a store that hangs would time out two by two."""
MAX_QUEUES = 10_000
"""The batcher remembers the last shared call and the priority rotation of this many queues."""

SHARED_S = 0.25
"""After a call that several requests shared, the queue's next requests wait for each other for this long: each turn of
the event loop brings several of them, and the first one must not go alone."""

Flushed = Callable[[], asyncio.Future[Any] | None]
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
"""Starts a task; the engine waits for its end and sees its errors."""

Submission = tuple[Asked, int, ResultSink[Answer]]
"""A request, its weight, and where its answer goes. A plain tuple, because every request makes one."""
Answers = Sequence[tuple[ResultSink[Answer], Answer | Exception]]


class ReplyScheduler:
    """Gives the answers of all verbs of an engine to their callers, some in each turn of the event loop.

    Each caller has work to do when it gets its answer, and hundreds of them in one turn would delay all other tasks.
    While a queue's answers are being given, its next call waits: those callers usually send another request, and all
    of these fit into one call.
    """

    def __init__(self, spawn: Spawn) -> None:
        self.spawn = spawn
        self._delivering: dict[Queue, asyncio.Task[None]] = {}

    def deliver(self, queue: Queue, answers: Sequence[T], give: Callable[[Iterable[T]], None]) -> None:
        """Call `give` with the first answers now, and with more in each later turn. An error keeps none back."""
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


class Inbox(Struct, Generic[Asked, Answer], eq=False):
    """The requests that wait for a queue's next call. `runners` make its calls, one at a time each."""

    entries: deque[Submission[Asked, Answer]] = field(default_factory=deque[Any])
    weight: int = 0
    runners: int = 0


class Lane(Generic[Asked, Answer]):
    """The requests of one verb, for all queues. `max_weight` bounds a call, but one request always fits.

    `flushed`, called right after a call, returns a future that completes before its answers are given, None if nothing
    is pending; if it fails, its error replaces every answer that is not an error itself.
    """

    def __init__(self, replies: ReplyScheduler, *, max_weight: int, flushed: Flushed | None = None) -> None:
        self.replies = replies
        self._max_weight = max_weight
        self._flushed = flushed
        self._closed = False
        # A queue has an inbox while at least one runner serves it; a single call counts as one.
        self._inboxes: dict[Queue, Inbox[Asked, Answer]] = {}
        self._shared_until: dict[Queue, float] = {}
        self._single_ended: asyncio.Future[None] | None = None
        self.singles = 0
        """Single calls that are under way."""
        self.calls = self.single_calls = self.requests = 0

    # --- what a verb defines

    async def call(self, queue: Queue, requests: Sequence[Asked]) -> Sequence[Answer | DuetimeError]:
        """One store call for several requests; one answer or error for each."""
        raise NotImplementedError

    def start_single(self, request: Asked, reply: ResultSink[Answer], inbox: Inbox[Asked, Answer]) -> bool:
        """Start the call of a lone request without a task; returns False if that is not possible."""
        return False

    def orphan(self, answer: Answer) -> None:
        """Gets the answer of a caller that was cancelled during the call."""

    # --- requests

    def submit(self, request: Asked, reply: ResultSink[Answer]) -> None:
        """Accept a request; `reply` gets its answer or its error in a later turn of the event loop.

        Raises StoreUnavailable, and then `reply` gets nothing.
        """
        if self._closed:
            raise StoreUnavailable.stopping()
        queue = request.queue
        inbox: Inbox[Asked, Answer] | None = self._inboxes.get(queue)
        if inbox is None:
            inbox = Inbox()
            shared_until = self._shared_until.get(queue)
            is_shared = shared_until is not None and asyncio.get_running_loop().time() < shared_until
            if not is_shared and self.start_single(request, reply, inbox):
                inbox.runners = 1
                self._inboxes[queue] = inbox
                self.singles += 1
                self.single_calls += 1
                self.calls += 1
                self.requests += 1
                return
            self._start(queue, inbox)
            self._inboxes[queue] = inbox
        weight = request.weight()
        inbox.entries.append((request, weight, reply))
        inbox.weight += weight
        if inbox.weight >= self._max_weight and inbox.runners < MAX_CALLS:
            self._start(queue, inbox)

    def single_ended(self, queue: Queue, inbox: Inbox[Asked, Answer]) -> None:
        """The requests that came during the call share the next one."""
        self.singles -= 1
        if self._single_ended and not self._single_ended.done():
            self._single_ended.set_result(None)
        if inbox.entries:
            with suppress(StoreUnavailable):  # the engine is not running; the callers get an error below
                self._start(queue, inbox)
        self._leave(queue, inbox)

    async def run(self, request: Asked) -> Answer:
        """Return the answer, or raise the error. A request whose caller is cancelled before the call is not sent."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.submit(request, answer)
        try:
            return await answer
        except asyncio.CancelledError:
            # The answer may have come in the same instant as the cancellation.
            if not answer.cancelled() and answer.exception() is None:
                self.orphan(answer.result())
            raise

    def is_idle(self, queue: Queue) -> bool:
        """Returns whether no call of this queue is under way. A hint for other threads."""
        return queue not in self._inboxes and not self._closed

    def close(self) -> None:
        """Accept no more requests; requests that are waiting are still served."""
        self._closed = True

    async def drain(self) -> None:
        """Wait for the single calls under way."""
        while self.singles:
            self._single_ended = asyncio.get_running_loop().create_future()
            await self._single_ended

    # --- shared calls

    def _start(self, queue: Queue, inbox: Inbox[Asked, Answer]) -> None:
        runner = self.replies.spawn(self._run(queue, inbox))
        inbox.runners += 1
        # A callback and not a `finally`: a task that is cancelled before its first step never gets to one.
        runner.add_done_callback(lambda done: self._broke(done, queue, inbox))

    async def _run(self, queue: Queue, inbox: Inbox[Asked, Answer]) -> None:
        while inbox.entries:
            if giving := self.replies.under_way(queue):
                await asyncio.wait([giving])
            if entries := self._next_entries(inbox):
                await self._serve(queue, entries)
        self._leave(queue, inbox)

    def _broke(self, runner: asyncio.Task[None], queue: Queue, inbox: Inbox[Asked, Answer]) -> None:
        if runner.cancelled() or runner.exception():
            self._leave(queue, inbox)

    def _leave(self, queue: Queue, inbox: Inbox[Asked, Answer]) -> None:
        """A runner has ended. The last one removes the inbox; callers that still wait, because it was stopped, get an
        error.
        """
        inbox.runners -= 1
        if inbox.runners:
            return
        del self._inboxes[queue]
        for _, _, reply in inbox.entries:
            _fail(reply, StoreUnavailable.stopping())

    def _next_entries(self, inbox: Inbox[Asked, Answer]) -> list[Submission[Asked, Answer]]:
        entries: list[Submission[Asked, Answer]] = []
        weight = 0
        while inbox.entries and (not entries or weight + inbox.entries[0][1] <= self._max_weight):
            entry = inbox.entries.popleft()
            _, own_weight, reply = entry
            inbox.weight -= own_weight
            if not reply.done():
                entries.append(entry)
                weight += own_weight
        return entries

    async def _serve(self, queue: Queue, entries: Sequence[Submission[Asked, Answer]]) -> None:
        self.calls += 1
        self.requests += len(entries)
        if len(entries) > 1:
            if len(self._shared_until) >= MAX_QUEUES:
                self._shared_until.clear()
            self._shared_until[queue] = asyncio.get_running_loop().time() + SHARED_S
        replies = [reply for _, _, reply in entries]
        try:
            answers = await self.call(queue, [request for request, _, _ in entries])
            pairs = list(zip(replies, answers, strict=True))
        except asyncio.CancelledError:
            for reply in replies:
                _fail(reply, StoreUnavailable("the engine stopped during the call", unknown=True))
            raise
        except Exception as error:  # of any kind: the callers get it
            for reply in replies:
                _fail(reply, own_copy(error))
            return
        self.answer(queue, pairs)

    # --- answers

    def answer(self, queue: Queue, pairs: Answers[Answer], flushed: asyncio.Future[Any] | None = None) -> None:
        """Give the answers of a call to its callers: without `flushed`, the result of the flush, when what is pending
        now is flushed. If the flush failed, callers get its error in place of every answer that is not an error.
        """
        if flushed is None:
            if self._flushed and (pending := self._flushed()):
                pending.add_done_callback(partial(self.answer, queue, pairs))
                return
        elif isinstance(failure := flushed.exception(), Exception):
            pairs = [
                (reply, answer if isinstance(answer, DuetimeError) else own_copy(failure)) for reply, answer in pairs
            ]
        if len(pairs) > REPLIES_PER_TURN:
            self.replies.deliver(queue, pairs, self._answer)
        else:
            self._answer(pairs)

    def _answer(self, pairs: Iterable[tuple[ResultSink[Answer], Answer | Exception]]) -> None:
        for reply, answer in pairs:
            if isinstance(answer, Exception):
                _fail(reply, answer)
            elif not reply.done():
                try:
                    reply.set_result(answer)
                except Exception:  # an error of one caller must not keep the others from their answers
                    log.exception("reply_failed")
            else:
                self.orphan(answer)


# --- the verbs


class VerbLane(Lane[Asked, Answer]):
    """How the requests of one verb become a store call, and how its outcome becomes their answers."""

    request: ClassVar[type[Request[Any]]]
    is_read: ClassVar[bool] = False
    """No answer waits until it is flushed."""

    def __init__(self, batcher: "Batcher") -> None:
        self.batcher, self.store, self.recorders = batcher, batcher.store, batcher.recorders
        flushed = None if self.is_read else batcher.recorders.flushed
        super().__init__(batcher.replies, max_weight=self.request.max_weight, flushed=flushed)

    def make_call(self, queue: Queue, requests: Sequence[Asked]) -> StoreCall:
        raise NotImplementedError

    def jobs(self, call: StoreCall) -> int:
        """How many jobs the call is for; 0 if it is never heavy."""
        return len(call.asked)

    def store_call(self, call: StoreCall) -> Awaitable[Any]:
        raise NotImplementedError

    def single(self, one_job: OneJob, call: StoreCall, reply: "SingleCall[Any, Any]") -> Send | None:
        """Prepare the single-job call for one request; None if there is none for it."""
        return None

    def answers(self, call: StoreCall, requests: Sequence[Asked], outcome: Any) -> Sequence[Any]:
        """One answer or error per request."""
        raise NotImplementedError

    def failed(self, call: StoreCall) -> None:
        """The call raised an error, or was not made."""

    async def call(self, queue: Queue, requests: Sequence[Asked]) -> Sequence[Any]:
        """Calls for hundreds of jobs take turns, so that a call for a few jobs never waits behind many of them.

        A store serves its calls one after the other, and a flooded queue has up to six calls under way. Two keep a
        store busy; with more, a job of another queue only waits longer.
        """
        call = self.make_call(queue, requests)
        heavy, has_turn = self.batcher.heavy, False
        try:
            if self.jobs(call) >= HEAVY_JOBS:
                with suppress(TimeoutError):
                    async with asyncio.timeout(HEAVY_WAIT_S):
                        has_turn = await heavy.acquire()
            outcome = await self.recorders.run(call, lambda: self.store_call(call))
        except BaseException:
            self.failed(call)
            raise
        finally:
            if has_turn:
                heavy.release()
        return self.answers(call, requests, outcome)

    def start_single(self, request: Asked, reply: ResultSink[Answer], inbox: Inbox[Asked, Answer]) -> bool:
        one_job = self.store.one_job
        if one_job is None or not self.recorders.is_ready:
            return False
        call = self.make_call(request.queue, (request,))
        single = SingleCall(self, call, request, reply, inbox)
        try:
            send = self.single(one_job, call, single)
            if send is None:
                self.failed(call)
                return False
            self.recorders.before(call)
        except Exception as error:  # of any kind: the caller gets it
            asyncio.get_running_loop().call_soon(single.fail, error)
            return True
        try:
            send()
        except Exception as error:  # of any kind: the caller gets it
            asyncio.get_running_loop().call_soon(single.set_exception, error)
        return True


class SingleCall(Struct, Generic[Asked, Answer], eq=False):
    """A call for one request without a task. Gets the store's answer, records it, and answers the request."""

    lane: VerbLane[Asked, Answer]
    call: StoreCall
    request: Asked
    reply: ResultSink[Answer]
    inbox: Inbox[Asked, Answer]

    def done(self) -> bool:
        return False

    def set_result(self, outcome: Any, /) -> None:
        recorded = self.lane.recorders.after(self.call, outcome)
        if iscoroutine(recorded):
            self.lane.replies.spawn(self._answer_later(recorded, outcome))
        else:
            self._answer(recorded)

    set_exception = set_result

    async def _answer_later(self, recording: Coroutine[Any, Any, Any], outcome: Any) -> None:
        try:
            recorded = await recording
        except Exception as error:  # of any kind: the caller gets it, or the error of the store
            recorded = outcome if isinstance(outcome, Exception) else error
        self._answer(recorded)

    def _answer(self, outcome: Any) -> None:
        if isinstance(outcome, Exception):
            self.fail(outcome)
            return
        lane, queue = self.lane, self.call.queue
        try:
            [answer] = lane.answers(self.call, (self.request,), outcome)
        except Exception as error:  # a bug; the caller gets it
            answer = error
        lane.single_ended(queue, self.inbox)
        lane.answer(queue, ((self.reply, answer),))

    def fail(self, error: Exception) -> None:
        """Answer with an error that needs no record."""
        self.lane.failed(self.call)
        self.lane.single_ended(self.call.queue, self.inbox)
        _fail(self.reply, error)


class PushLane(VerbLane[PushRequest, Pushed]):
    request = PushRequest

    def make_call(self, queue: Queue, requests: Sequence[PushRequest]) -> StoreCall:
        return StoreCall("push", queue, [request.push for request in requests], len(requests))

    def jobs(self, call: StoreCall) -> int:
        return sum([len(push.jobs) for push in call.asked])

    def store_call(self, call: StoreCall) -> Awaitable[Sequence[Pushed | DuetimeError]]:
        return self.store.push(call.queue, call.asked)

    def single(self, one_job: OneJob, call: StoreCall, reply: SingleCall[Any, Any]) -> Send | None:
        [push] = call.asked
        return one_job.push(call.queue, push, reply) if push.is_single else None

    def answers(
        self, call: StoreCall, requests: Sequence[PushRequest], outcome: Sequence[Pushed | DuetimeError]
    ) -> Sequence[Pushed | DuetimeError]:
        """Wakes waiting consumers here, because a cancelled caller's push still happened."""
        if call.queue in self.batcher.waiters.lists:
            _, parts = pushed_parts(call.asked, outcome)
            for part in parts:
                if isinstance(part, Pushed) and not part.repeated:
                    self.batcher.moved(call.queue, part.jobs)
        return outcome


class ReserveLane(VerbLane[ReserveRequest, list[Delivery]]):
    """Requests that follow each other with the same ttr share one ask."""

    request, is_read = ReserveRequest, True

    def orphan(self, answer: list[Delivery]) -> None:
        self.batcher.give_back(answer)

    def make_call(self, queue: Queue, requests: Sequence[ReserveRequest]) -> StoreCall:
        next_turns = self.batcher.rotation(queue).next_turns
        groups: list[list[int]] = []  # [ttr_ms, limit]
        for request in requests:
            if groups and groups[-1][0] == request.ttr_ms:
                groups[-1][1] += request.limit
            else:
                groups.append([request.ttr_ms, request.limit])
        asks = [Ask(limit, ttr_ms, next_turns(limit)) for ttr_ms, limit in groups]
        return StoreCall("reserve", queue, asks, len(requests), version=self.batcher.waiters.version)

    def jobs(self, call: StoreCall) -> int:
        return sum([ask.limit for ask in call.asked])

    def store_call(self, call: StoreCall) -> Awaitable[Reserved]:
        return self.store.reserve(call.queue, call.asked)

    def single(self, one_job: OneJob, call: StoreCall, reply: SingleCall[Any, Any]) -> Send | None:
        [ask] = call.asked
        return one_job.reserve(call.queue, ask, reply) if ask.limit == 1 else None

    def answers(
        self, call: StoreCall, requests: Sequence[ReserveRequest], outcome: Reserved
    ) -> Sequence[list[Delivery]]:
        self.batcher.waiters.on_reserve_result(call.queue, outcome, call.version)
        unused, shares = 0, list[list[Delivery]]()
        asking = iter(requests)
        for ask, deliveries in zip(call.asked, outcome.deliveries, strict=True):
            if deliveries:
                self.batcher.reaper.run_within(ask.ttr_ms / 1000)
            unused += ask.limit - len(deliveries)
            at = 0
            while at < ask.limit:
                limit = next(asking).limit
                shares.append(list(deliveries[at : at + limit]))
                at += limit
        if unused:
            self.batcher.rotation(call.queue).return_turns(unused)
        return shares

    def failed(self, call: StoreCall) -> None:
        self.batcher.rotation(call.queue).return_turns(self.jobs(call))


class AckLane(VerbLane[AckRequest, Sequence[Moved | LeaseLost | None]]):
    request = AckRequest

    def make_call(self, queue: Queue, requests: Sequence[AckRequest]) -> StoreCall:
        return StoreCall("ack", queue, [lease for request in requests for lease in request.leases], len(requests))

    def store_call(self, call: StoreCall) -> Awaitable[Sequence[Moved | LeaseLost | StoreUnavailable | None]]:
        return self.store.ack(call.queue, call.asked)

    def single(self, one_job: OneJob, call: StoreCall, reply: SingleCall[Any, Any]) -> Send | None:
        return one_job.ack(call.asked[0], reply) if len(call.asked) == 1 else None

    def answers(self, call: StoreCall, requests: Sequence[AckRequest], outcome: Sequence[Any]) -> Sequence[Any]:
        return _split(outcome, [request.leases for request in requests])


class GiveBackLane(VerbLane[GiveBackRequest, Sequence[Moved | LeaseLost]]):
    request = GiveBackRequest

    def close(self) -> None:
        """Stays open: an engine that stops gives back the jobs whose consumers it has cancelled."""

    def make_call(self, queue: Queue, requests: Sequence[GiveBackRequest]) -> StoreCall:
        asked = [GiveBack(lease, request.delay_ms) for request in requests for lease in request.leases]
        return StoreCall("give_back", queue, asked, len(requests))

    def store_call(self, call: StoreCall) -> Awaitable[Sequence[Moved | LeaseLost | StoreUnavailable]]:
        return self.store.give_back(call.queue, call.asked)

    def answers(self, call: StoreCall, requests: Sequence[GiveBackRequest], outcome: Sequence[Any]) -> Sequence[Any]:
        self.batcher.moved(call.queue, outcome)
        return _split(outcome, [request.leases for request in requests])


class FinishLane(VerbLane[FinishRequest, Sequence[Finished | DuetimeError | None]]):
    request = FinishRequest

    def make_call(self, queue: Queue, requests: Sequence[FinishRequest]) -> StoreCall:
        return StoreCall("finish", queue, [one for request in requests for one in request.finishes], len(requests))

    def jobs(self, call: StoreCall) -> int:
        return sum([1 + len(one.then) for one in call.asked])

    def store_call(self, call: StoreCall) -> Awaitable[Sequence[Finished | DuetimeError | None]]:
        return self.store.finish(call.queue, call.asked)

    def answers(self, call: StoreCall, requests: Sequence[FinishRequest], outcome: Sequence[Any]) -> Sequence[Any]:
        """Wakes the callers of this process that wait for jobs or results."""
        done = [(one, answer) for one, answer in zip(call.asked, outcome, strict=True) if isinstance(answer, Finished)]
        self.batcher.moved(call.queue, [moved for _, answer in done for moved in answer.then])
        if kept := [one.lease.id for one, _ in done if one.keeps_result]:
            self.batcher.results.on_results_kept(call.queue, kept)
        return _split(outcome, [request.finishes for request in requests])


class CancelLane(VerbLane[IdsRequest[Any], Sequence[Moved | None]]):
    request = CancelRequest
    verb, is_finished = "cancel", False

    def make_call(self, queue: Queue, requests: Sequence[IdsRequest[Any]]) -> StoreCall:
        return StoreCall(self.verb, queue, [job_id for request in requests for job_id in request.ids], len(requests))

    def jobs(self, call: StoreCall) -> int:
        return 0

    def store_call(self, call: StoreCall) -> Awaitable[Sequence[Moved | StoreUnavailable | None]]:
        return self.store.cancel(call.queue, call.asked, finished=self.is_finished)

    def answers(self, call: StoreCall, requests: Sequence[IdsRequest[Any]], outcome: Sequence[Any]) -> Sequence[Any]:
        return _split(outcome, [request.ids for request in requests])


class AckByIdLane(CancelLane):
    request = AckByIdRequest
    verb, is_finished = "ack_by_id", True


class ResultsLane(VerbLane[ResultsRequest, Mapping[str, KeptResult]]):
    request, is_read = ResultsRequest, True

    def make_call(self, queue: Queue, requests: Sequence[ResultsRequest]) -> StoreCall:
        ids = list(dict.fromkeys(job_id for request in requests for job_id in request.ids))
        return StoreCall("results", queue, ids, len(requests))

    def jobs(self, call: StoreCall) -> int:
        return 0

    async def store_call(self, call: StoreCall) -> list[KeptResult | None]:
        found: list[KeptResult | None] = []
        while left := call.asked[len(found) :]:
            found += await self.store.results(call.queue, left)
        return found

    def answers(
        self, call: StoreCall, requests: Sequence[ResultsRequest], outcome: Sequence[KeptResult | None]
    ) -> Sequence[dict[str, KeptResult]]:
        found = {one.id: one for one in outcome if one}
        return [{job_id: found[job_id] for job_id in request.ids if job_id in found} for request in requests]


LANES = (PushLane, ReserveLane, AckLane, GiveBackLane, FinishLane, CancelLane, AckByIdLane, ResultsLane)


class Batcher:
    """Makes the store calls of all verbs that can be grouped, in one lane for each verb.

    It creates `waiters` and `results`, which make their store calls through it. `give_back` gets deliveries whose
    consumer was cancelled.
    """

    def __init__(
        self,
        store: Store,
        recorders: Recorders,
        *,
        spawn: Spawn,
        reaper: Reaper,
        give_back: Callable[[Sequence[Delivery]], object],
        shares: PriorityShares,
    ) -> None:
        self.store, self.recorders, self.reaper, self.give_back = store, recorders, reaper, give_back
        self.replies = ReplyScheduler(spawn)
        self.heavy = asyncio.Semaphore(HEAVY_CALLS)
        self._shares = shares
        self._rotations: dict[Queue, PriorityRotation] = {}
        self.lanes: dict[type[Request[Any]], Lane[Any, Any]] = {lane.request: lane(self) for lane in LANES}
        self.waiters = Waiters(store, self.lanes[ReserveRequest].submit, give_back)
        self.results = ResultWaiters(lambda queue, ids: self.run(ResultsRequest(queue, ids)))

    def run(self, request: Request[Answer]) -> Coroutine[Any, Any, Answer]:
        """Submit a request and wait for its answer. A request whose caller is cancelled before the call is not sent."""
        return self.lanes[type(request)].run(request)

    async def close(self) -> None:
        """Accept no more requests, and wait for single-job calls under way. Requests that wait are still served."""
        for lane in self.lanes.values():
            lane.close()
        for lane in self.lanes.values():
            await lane.drain()

    def moved(self, queue: Queue, answers: Sequence[object]) -> None:
        """This process put jobs into waiting: its own consumers need no wake from the store."""
        if due := [answer.due_at for answer in answers if isinstance(answer, Moved) and answer.due_at]:
            self.waiters.on_job_available(queue, min(due))

    def set_shares(self, shares: PriorityShares) -> None:
        """From the next delivery on."""
        self._shares = shares
        self._rotations.clear()

    def rotation(self, queue: Queue) -> PriorityRotation:
        rotation = self._rotations.get(queue)
        if rotation is None:
            if len(self._rotations) >= MAX_QUEUES:
                self._rotations.clear()
            rotation = self._rotations[queue] = PriorityRotation(self._shares.of(queue.namespace))
        return rotation


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


def _fail(answer: ResultSink[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
