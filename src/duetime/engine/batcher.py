"""The batcher: the only module that decides whether a request is alone in its store call or shares it with others.

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
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from time import monotonic
from typing import Any, Generic, TypeVar

from duetime.engine.priority_rotation import PriorityRotation
from duetime.engine.reaper import LONGEST_REST_S, Reaper
from duetime.engine.recorder import Recorders, Step, is_coroutine
from duetime.engine.requests import (
    AckAndReserveRequest,
    AckByIdRequest,
    AckRequest,
    Answer,
    CancelRequest,
    FinishRequest,
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
from duetime.stores.base import Ask, BlockingOneJob, OneJob, Push, Pushed, Reply, Reserved, Send, Store, pushed_parts
from duetime.stores.finishes import Finished, KeptResult

log = logging.getLogger("duetime.engine")

T = TypeVar("T")
Asked = TypeVar("Asked")

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
"""Of how many queues the batcher remembers something between their calls."""

SHARED_S = 0.25
"""After a call that several requests shared, the queue's next requests wait for each other for this long: each turn of
the event loop brings several of them, and the first one must not go alone."""

LEAST_TTR_MS = round(2 * LONGEST_REST_S * 1000)
"""The reaper looks at least this often for leases that it was not told of, so that these end in time, too."""

SharedCall = Callable[[Queue, Sequence[Asked]], Awaitable[Sequence[Answer | DuetimeError]]]
"""A store call for several requests; one answer or error for each."""
Flushed = Callable[[], asyncio.Future[Any] | None]
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
"""Starts a task; the engine waits for its end and sees its errors."""
GiveBack = Callable[[Sequence[Delivery]], None]


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

    `start` makes the call of a request that is alone, without a task; it returns False if that is not possible.
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
        start: "Callable[[Asked, SingleCall[Asked, Answer]], bool] | None" = None,
        orphan: Callable[[Answer], None] | None = None,
        flushed: Flushed | None = None,
    ) -> None:
        self._call = call
        self._replies = replies
        self._max_weight = max_weight
        self._start_single = start
        self._orphan = orphan
        self._flushed = flushed
        self._closed = False
        # A queue has an inbox while at least one runner serves it; a single call counts as one.
        self._inboxes: dict[Queue, Inbox[Asked, Answer]] = {}
        self._shared_until: dict[Queue, float] = {}
        self.singles: set[SingleCall[Asked, Answer]] = set()
        self._single_ended: asyncio.Future[None] | None = None
        self.calls = self.single_calls = self.requests = 0

    def submit(self, queue: Queue, request: Asked, weight: int, reply: Reply[Answer]) -> None:
        """Take a request; `reply` gets its answer or its error in a later turn of the event loop.

        Raises StoreUnavailable, and then `reply` gets nothing.
        """
        if self._closed:
            raise StoreUnavailable.stopping()
        inbox: Inbox[Asked, Answer] | None = self._inboxes.get(queue)
        if inbox is None:
            inbox = Inbox()
            if self._start_single and self._starts_single(queue, inbox, request, reply):
                return
            self._start(queue, inbox)
            self._inboxes[queue] = inbox
        inbox.entries.append((request, weight, reply))
        inbox.weight += weight
        if inbox.weight >= self._max_weight and inbox.runners < MAX_CALLS:
            self._start(queue, inbox)

    def _starts_single(self, queue: Queue, inbox: Inbox[Asked, Answer], request: Asked, reply: Reply[Answer]) -> bool:
        if self._start_single is None or self._shared_until.get(queue, 0.0) > monotonic():
            return False
        single = SingleCall(self, queue, inbox, (request, 1, reply))
        try:
            if not self._start_single(request, single):
                return False
        except Exception as error:  # of any kind: the caller gets it
            asyncio.get_running_loop().call_soon(single.set_exception, error)
        inbox.runners += 1
        self._inboxes[queue] = inbox
        self.singles.add(single)
        self.single_calls += 1
        self.calls += 1
        self.requests += 1
        return True

    def single_ended(self, single: "SingleCall[Asked, Answer]") -> None:
        """The requests that came during the call share the next one."""
        self.singles.discard(single)
        if self._single_ended and not self._single_ended.done():
            self._single_ended.set_result(None)
        queue, inbox = single.queue, single.inbox
        if inbox.entries:
            with suppress(StoreUnavailable):  # the engine is not running; the callers get an error below
                self._start(queue, inbox)
        self._leave(queue, inbox)

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
        """Returns whether no call of this queue is under way. A hint for other threads."""
        return queue not in self._inboxes and not self._closed

    def close(self) -> None:
        """Take no more requests; requests that are waiting are still served."""
        self._closed = True

    async def drain(self) -> None:
        """Wait for the single calls under way."""
        while self.singles:
            self._single_ended = asyncio.get_running_loop().create_future()
            await self._single_ended

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
        if len(entries) > 1:
            if len(self._shared_until) >= MAX_QUEUES:
                self._shared_until.clear()
            self._shared_until[queue] = monotonic() + SHARED_S
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
        self.answer(queue, pairs)

    def answer(self, queue: Queue, pairs: Sequence[tuple[Submission[Asked, Answer], Answer | Exception]]) -> None:
        """Give the answers of a call to its callers when they are flushed."""
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


class SingleCall(Generic[Asked, Answer]):
    """A call for one request without a task. Gets the request's answer, or its error."""

    __slots__ = ("entry", "inbox", "lane", "queue")

    def __init__(
        self,
        lane: Lane[Asked, Answer],
        queue: Queue,
        inbox: Inbox[Asked, Answer],
        entry: Submission[Asked, Answer],
    ) -> None:
        self.lane, self.queue, self.inbox, self.entry = lane, queue, inbox, entry

    def set_result(self, answer: Answer | DuetimeError, /) -> None:
        self.lane.single_ended(self)
        self.lane.answer(self.queue, ((self.entry, answer),))

    def set_exception(self, error: Exception, /) -> None:
        self.lane.single_ended(self)
        _fail(self.entry[2], error)


# --- the verbs


class Verb(Generic[Asked]):
    """How the requests of one verb become a store call, and how its outcome becomes their answers."""

    def __init__(self, batcher: "Batcher") -> None:
        self.batcher = batcher
        self.store = batcher.store

    def step(self, queue: Queue, requests: Sequence[Asked]) -> Step:
        raise NotImplementedError

    def jobs(self, step: Step) -> int:
        return len(step.asked)

    def call(self, step: Step) -> Awaitable[Any]:
        raise NotImplementedError

    def single(self, one_job: OneJob, step: Step, reply: "StepReply") -> Send | None:
        """Prepare the single-job call for a step of one request; None if there is none for it."""
        return None

    def outcome(self, answer: Any) -> Any:
        """The outcome of a step whose single-job call got this answer."""
        return [answer]

    def answers(self, step: Step, requests: Sequence[Asked], outcome: Any) -> Sequence[Any]:
        """One answer or error per request."""
        raise NotImplementedError

    def failed(self, step: Step) -> None:
        """The call raised an error."""


class PushVerb(Verb[PushRequest]):
    def step(self, queue: Queue, requests: Sequence[PushRequest]) -> Step:
        return Step("push", queue, [request.push for request in requests], len(requests))

    def jobs(self, step: Step) -> int:
        return sum([len(push.jobs) for push in step.asked])

    def call(self, step: Step) -> Awaitable[Sequence[Pushed | DuetimeError]]:
        return self.store.push(step.queue, step.asked)

    def single(self, one_job: OneJob, step: Step, reply: "StepReply") -> Send | None:
        [push] = step.asked
        return one_job.push(step.queue, push, reply) if len(push.jobs) == 1 and push.mark is None else None

    def answers(
        self, step: Step, requests: Sequence[PushRequest], outcome: Sequence[Pushed | DuetimeError]
    ) -> Sequence[Pushed | DuetimeError]:
        """Wakes waiting consumers here, because a cancelled caller's push still happened."""
        _, parts = pushed_parts(step.asked, outcome)
        for part in parts:
            if isinstance(part, Pushed) and not part.repeated:
                self.batcher.moved(step.queue, part.jobs)
        return outcome


class ReserveStep(Step):
    """`groups`: (ttr_ms, limits of the requests) for each ask. `version`: that of the waiters before the call."""

    __slots__ = ("groups", "version")

    def __init__(
        self, queue: Queue, asks: Sequence[Ask], callers: int, groups: Sequence[tuple[int, list[int]]], version: int
    ) -> None:
        super().__init__("reserve", queue, asks, callers)
        self.groups, self.version = groups, version


class ReserveVerb(Verb[ReserveRequest]):
    """Requests that follow each other with the same ttr share one ask."""

    def step(self, queue: Queue, requests: Sequence[ReserveRequest]) -> ReserveStep:
        groups: list[tuple[int, list[int]]] = []
        for request in requests:
            if groups and groups[-1][0] == request.ttr_ms:
                groups[-1][1].append(request.limit)
            else:
                groups.append((request.ttr_ms, [request.limit]))
        next_turns = self.batcher.rotation(queue).next_turns
        asks = [Ask(sum(limits), ttr_ms, next_turns(sum(limits))) for ttr_ms, limits in groups]
        return ReserveStep(queue, asks, len(requests), groups, self.batcher.waiters.version)

    def jobs(self, step: Step) -> int:
        return sum([ask.limit for ask in step.asked])

    def call(self, step: Step) -> Awaitable[Reserved]:
        return self.store.reserve(step.queue, step.asked)

    def single(self, one_job: OneJob, step: Step, reply: "StepReply") -> Send | None:
        [ask] = step.asked
        return one_job.reserve(step.queue, ask, reply) if ask.limit == 1 else None

    def outcome(self, answer: Reserved) -> Reserved:
        return answer

    def answers(self, step: Step, requests: Sequence[ReserveRequest], outcome: Reserved) -> Sequence[list[Delivery]]:
        assert isinstance(step, ReserveStep)
        self.batcher.waiters.on_reserve_result(step.queue, outcome, step.version)
        unused, shares = 0, list[list[Delivery]]()
        for ask, (_, limits), deliveries in zip(step.asked, step.groups, outcome.deliveries, strict=True):
            if deliveries:
                self.batcher.reaper.expect(ask.ttr_ms / 1000)
            unused += ask.limit - len(deliveries)
            at = 0
            for limit in limits:
                shares.append(list(deliveries[at : at + limit]))
                at += limit
        self.batcher.rotation(step.queue).return_turns(unused)
        return shares

    def failed(self, step: Step) -> None:
        self.batcher.rotation(step.queue).return_turns(self.jobs(step))


class AckVerb(Verb[AckRequest]):
    def step(self, queue: Queue, requests: Sequence[AckRequest]) -> Step:
        return Step("ack", queue, [lease for request in requests for lease in request.leases], len(requests))

    def call(self, step: Step) -> Awaitable[Sequence[Moved | LeaseLost | StoreUnavailable | None]]:
        return self.store.ack(step.queue, step.asked)

    def single(self, one_job: OneJob, step: Step, reply: "StepReply") -> Send | None:
        return one_job.ack(step.asked[0], reply) if len(step.asked) == 1 else None

    def answers(self, step: Step, requests: Sequence[AckRequest], outcome: Sequence[Any]) -> Sequence[Any]:
        return _split(outcome, [request.leases for request in requests])


class FinishVerb(Verb[FinishRequest]):
    def step(self, queue: Queue, requests: Sequence[FinishRequest]) -> Step:
        return Step("finish", queue, [one for request in requests for one in request.finishes], len(requests))

    def jobs(self, step: Step) -> int:
        return sum([1 + len(one.then) for one in step.asked])

    def call(self, step: Step) -> Awaitable[Sequence[Finished | DuetimeError | None]]:
        return self.store.finish(step.queue, step.asked)

    def answers(self, step: Step, requests: Sequence[FinishRequest], outcome: Sequence[Any]) -> Sequence[Any]:
        """Wakes those who wait here for jobs and results."""
        done = [(one, answer) for one, answer in zip(step.asked, outcome, strict=True) if isinstance(answer, Finished)]
        self.batcher.moved(step.queue, [moved for _, answer in done for moved in answer.then])
        if kept := [one.lease.id for one, _ in done if one.keeps_result]:
            self.batcher.results.on_results_kept(step.queue, kept)
        return _split(outcome, [request.finishes for request in requests])


class CancelVerb(Verb[IdsRequest[Any]]):
    verb, is_finished = "cancel", False

    def step(self, queue: Queue, requests: Sequence[IdsRequest[Any]]) -> Step:
        return Step(self.verb, queue, [job_id for request in requests for job_id in request.ids], len(requests))

    def jobs(self, step: Step) -> int:
        return 0  # never heavy

    def call(self, step: Step) -> Awaitable[Sequence[Moved | StoreUnavailable | None]]:
        return self.store.cancel(step.queue, step.asked, finished=self.is_finished)

    def answers(self, step: Step, requests: Sequence[IdsRequest[Any]], outcome: Sequence[Any]) -> Sequence[Any]:
        return _split(outcome, [request.ids for request in requests])


class AckByIdVerb(CancelVerb):
    verb, is_finished = "ack_by_id", True


class ResultsVerb(Verb[ResultsRequest]):
    def step(self, queue: Queue, requests: Sequence[ResultsRequest]) -> Step:
        ids = list(dict.fromkeys(job_id for request in requests for job_id in request.ids))
        return Step("results", queue, ids, len(requests))

    def jobs(self, step: Step) -> int:
        return 0  # never heavy

    async def call(self, step: Step) -> list[KeptResult | None]:
        found: list[KeptResult | None] = []
        while left := step.asked[len(found) :]:
            found += await self.store.results(step.queue, left)
        return found

    def answers(
        self, step: Step, requests: Sequence[ResultsRequest], outcome: Sequence[KeptResult | None]
    ) -> Sequence[dict[str, KeptResult]]:
        found = {one.id: one for one in outcome if one}
        return [{job_id: found[job_id] for job_id in request.ids if job_id in found} for request in requests]


class StepReply:
    """Gets the answer of a single-job call of the store: records it, and answers the request."""

    __slots__ = ("_call", "_recorders", "_step", "_verb")

    def __init__(self, recorders: Recorders, verb: Verb[Any], step: Step, call: SingleCall[Any, Any]) -> None:
        self._recorders, self._verb, self._step, self._call = recorders, verb, step, call

    def done(self) -> bool:
        return False

    def set_result(self, answer: Any, /) -> None:
        recorded = self._recorders.after(self._step, self._verb.outcome(answer))
        if is_coroutine(recorded):
            self._verb.batcher.replies.spawn(self._answer_later(recorded))
        else:
            self._answer(recorded)

    def set_exception(self, error: Exception, /) -> None:
        recorded = self._recorders.after(self._step, error)
        if is_coroutine(recorded):
            self._verb.batcher.replies.spawn(self._fail_later(recorded, error))
        else:
            self._fail(error)

    async def _answer_later(self, recording: Coroutine[Any, Any, Any]) -> None:
        try:
            outcome = await recording
        except Exception as error:  # of any kind: the caller gets it
            self._fail(error)
        else:
            self._answer(outcome)

    async def _fail_later(self, recording: Coroutine[Any, Any, Any], error: Exception) -> None:
        try:
            await recording
        finally:
            self._fail(error)

    def _answer(self, outcome: Any) -> None:
        try:
            [answer] = self._verb.answers(self._step, (self._call.entry[0],), outcome)
        except Exception as error:  # a bug; the caller gets it
            self._call.set_exception(error)
        else:
            self._call.set_result(answer)

    def _fail(self, error: Exception) -> None:
        self._verb.failed(self._step)
        self._call.set_exception(error)


class Batcher:
    """Makes the store calls of all verbs that can be grouped.

    It creates `waiters` and `results`, which make their store calls through it. `give_back` gets deliveries whose
    consumer has gone.
    """

    def __init__(
        self, store: Store, recorders: Recorders, *, spawn: Spawn, reaper: Reaper, give_back: GiveBack
    ) -> None:
        self.store, self.recorders, self.reaper = store, recorders, reaper
        self.replies = ReplyScheduler(spawn)
        self.waiters = Waiters(store, self.submit, give_back)
        self.results = ResultWaiters(lambda queue, ids: self.run(ResultsRequest(queue, ids)))
        self._heavy = asyncio.Semaphore(HEAVY_CALLS)
        self._rotations: dict[Queue, PriorityRotation] = {}
        verbs: dict[type[Request[Any]], Verb[Any]] = {
            PushRequest: PushVerb(self),
            ReserveRequest: ReserveVerb(self),
            AckRequest: AckVerb(self),
            FinishRequest: FinishVerb(self),
            CancelRequest: CancelVerb(self),
            AckByIdRequest: AckByIdVerb(self),
            ResultsRequest: ResultsVerb(self),
        }
        self.lanes = {kind: self._lane(kind, verb) for kind, verb in verbs.items()}

    def _lane(self, kind: type[Request[Any]], verb: Verb[Any]) -> Lane[Any, Any]:
        one_job, recorders = self.store.one_job, self.recorders

        async def call(queue: Queue, requests: Sequence[Any]) -> Sequence[Any]:
            step = verb.step(queue, requests)
            try:
                outcome = await self._call(verb, step)
            except BaseException:
                verb.failed(step)
                raise
            return verb.answers(step, requests, outcome)

        def start(request: Any, call: SingleCall[Any, Any]) -> bool:
            if one_job is None or not recorders.is_ready:
                return False
            step = verb.step(request.queue, (request,))
            reply = StepReply(recorders, verb, step, call)
            try:
                send = verb.single(one_job, step, reply)
                if send is not None:
                    recorders.before(step)
            except BaseException:
                verb.failed(step)
                raise
            if send is None:
                verb.failed(step)
                return False
            try:
                send()
            except Exception as error:  # of any kind: the caller gets it
                asyncio.get_running_loop().call_soon(reply.set_exception, error)
            return True

        is_read = kind in (ReserveRequest, ResultsRequest)
        return Lane(
            call,
            self.replies,
            max_weight=kind.max_weight,
            start=start if one_job else None,
            orphan=self.waiters.give_back if kind is ReserveRequest else None,
            flushed=None if is_read else recorders.flushed,
        )

    def submit(self, request: Request[Answer], reply: Reply[Answer]) -> None:
        """Take a request that was checked. `reply` gets its answer or its error in a later turn of the event loop.

        Raises StoreUnavailable when the engine stops, and then `reply` gets nothing.
        """
        self.lanes[type(request)].submit(request.queue, request, request.weight(), reply)

    async def run(self, request: Request[Answer]) -> Answer:
        """Submit a request and wait for its answer. A request whose caller goes away before the call is not sent."""
        return await self.lanes[type(request)].run(request.queue, request, request.weight())

    async def close(self) -> None:
        """Take no more requests, and wait for single-job calls under way. Requests that wait are still served."""
        for lane in self.lanes.values():
            lane.close()
        for lane in self.lanes.values():
            await lane.drain()

    async def _call(self, verb: Verb[Any], step: Step) -> Any:
        """Calls for hundreds of jobs take turns, so that a call for a few jobs never waits behind many of them.

        A store serves its calls one after the other, and a flooded queue has up to six calls under way. Two keep a
        store busy; with more, a job of another queue only waits longer.
        """

        def call() -> Awaitable[Any]:
            return verb.call(step)

        if verb.jobs(step) < HEAVY_JOBS:
            return await self.recorders.run(step, call)
        has_turn = False
        with suppress(TimeoutError):
            async with asyncio.timeout(HEAVY_WAIT_S):
                has_turn = await self._heavy.acquire()
        try:
            return await self.recorders.run(step, call)
        finally:
            if has_turn:
                self._heavy.release()

    def moved(self, queue: Queue, answers: Sequence[object]) -> None:
        """This process put jobs into waiting: its own consumers need no wake from the store."""
        if due := [answer.due_at for answer in answers if isinstance(answer, Moved) and answer.due_at]:
            self.waiters.on_job_available(queue, min(due))

    def rotation(self, queue: Queue) -> PriorityRotation:
        rotation = self._rotations.get(queue)
        if rotation is None:
            if len(self._rotations) >= MAX_QUEUES:
                self._rotations.clear()
            rotation = self._rotations[queue] = PriorityRotation()
        return rotation


# --- blocking callers


class BlockingCalls:
    """Requests of threads that have no event loop."""

    def __init__(self, batcher: Batcher) -> None:
        """Called in the engine's event loop."""
        self._batcher, self._waiters = batcher, batcher.waiters
        self._loop = asyncio.get_running_loop()
        self._one_job = batcher.store.one_job.blocking() if batcher.store.one_job else None
        self._in_use = threading.Lock()
        self._is_closed = self._one_job is None

    def run(self, request: Request[Answer]) -> Answer | None:
        """See `Engine.run_blocking`. None: nothing was done, and the event loop is to serve the request."""
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
        if len(push.jobs) != 1 or push.mark:
            return None
        answer = one_job.push(queue, push)
        if isinstance(answer, DuetimeError):
            raise answer
        if answer and self._waiters.has_waiters(queue):
            self._loop.call_soon_threadsafe(self._batcher.moved, queue, answer.jobs)
        return answer

    def _reserve(
        self,
        reserve: Callable[[T, Ask, Callable[[Delivery], None]], Reserved | None],
        queue: Queue,
        of: T,
        ttr_ms: int,
    ) -> list[Delivery] | None:
        if ttr_ms < LEAST_TTR_MS or self._waiters.has_waiters(queue):
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
