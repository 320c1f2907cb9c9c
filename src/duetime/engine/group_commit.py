"""Group commit: requests of a queue that arrive while a store call is under way share the next one.

The first request on an idle queue goes out at once; no timer holds it back to collect others. Under load the batches
grow by themselves, and with them the throughput. Only when a whole call's worth waits does a second call go out beside
the first, so that this process prepares one while the store works on the other. Where an answer is not given before it
is on record, the next call does not wait for that either.

Each request keeps its own answer: an error value from the store reaches only its caller, a failed call reaches every
caller that was in it. How callers get their answers is in `answer_turns.py`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from copy import copy
from typing import Any, Generic, Protocol, TypeVar

from duetime.engine.answer_turns import AnswerTurns
from duetime.model.errors import DuetimeError, StoreUnavailable
from duetime.model.names import Queue

log = logging.getLogger("duetime.engine")

Request = TypeVar("Request")
Answer = TypeVar("Answer")
Given = TypeVar("Given", contravariant=True)  # noqa: PLC0105

MAX_CALLS = 2

GroupedCall = Callable[[Queue, Sequence[Request]], Awaitable[Sequence[Answer | DuetimeError]]]
"""A store call for several requests; one answer or error for each."""
Promise = Callable[[], asyncio.Future[Any] | None]


class AwaitedAnswer(Protocol[Given]):
    """Where a caller gets its answer: a future, or an object of a caller that has no task to wait in.

    The two setters are called at most once, only while `done` says False, and must not raise.
    """

    def done(self) -> bool:
        """Whether the answer is no longer wanted; a request of which this is true before its call is not sent."""
        ...

    def set_result(self, result: Given, /) -> None: ...

    def set_exception(self, exception: Exception, /) -> None: ...


Submission = tuple[Request, int, AwaitedAnswer[Answer]]
"""A request, its weight, and where its answer goes. A plain tuple, because every request makes one."""


class Inbox(Generic[Request, Answer]):
    """The requests that wait for a queue's next call. `runners` make its calls, one at a time each."""

    __slots__ = ("entries", "runners", "weight")

    def __init__(self) -> None:
        self.entries: deque[Submission[Request, Answer]] = deque()
        self.weight = 0
        self.runners = 0


class GroupCommit(Generic[Request, Answer]):
    """One verb's group commit over all queues. `max_weight` bounds a call, but one request always fits.

    `orphan` takes an answer whose caller went away during the call.
    `promise`, asked right after a call, is what must be done before its answers are given, None if nothing; if it
    fails, its error takes the place of every answer that is not an error itself.
    """

    def __init__(
        self,
        call: GroupedCall[Request, Answer],
        turns: AnswerTurns,
        *,
        max_weight: int,
        orphan: Callable[[Answer], None] | None = None,
        promise: Promise | None = None,
    ) -> None:
        self._call = call
        self._turns = turns
        self._max_weight = max_weight
        self._orphan = orphan
        self._promise = promise
        self._closed = False
        # A queue has an inbox while at least one runner serves it.
        self._inboxes: dict[Queue, Inbox[Request, Answer]] = {}
        self.calls = 0
        self.requests = 0

    def put(self, queue: Queue, request: Request, weight: int, reply: AwaitedAnswer[Answer]) -> None:
        """Put a request in line; `reply` gets its answer in a later turn of the event loop, or its error.

        Raises StoreUnavailable, and then `reply` gets nothing.
        """
        if self._closed:
            raise StoreUnavailable.stopping()
        inbox: Inbox[Request, Answer] | None = self._inboxes.get(queue)
        if inbox is None:
            inbox = Inbox()
            self._start(queue, inbox)
            self._inboxes[queue] = inbox
        inbox.entries.append((request, weight, reply))
        inbox.weight += weight
        if inbox.weight >= self._max_weight and inbox.runners < MAX_CALLS:
            self._start(queue, inbox)

    async def submit(self, queue: Queue, request: Request, weight: int = 1) -> Answer:
        """The answer to this request, or its error. A request whose caller goes away before the call is not sent."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.put(queue, request, weight, answer)
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

    def _start(self, queue: Queue, inbox: Inbox[Request, Answer]) -> None:
        runner = self._turns.spawn(self._run(queue, inbox))
        inbox.runners += 1
        # A callback and not a `finally`: a task that is cancelled before its first step never gets to one.
        runner.add_done_callback(lambda done: self._broke(done, queue, inbox))

    async def _run(self, queue: Queue, inbox: Inbox[Request, Answer]) -> None:
        while inbox.entries:
            if giving := self._turns.under_way(queue):
                await asyncio.wait([giving])
            if entries := self._take(inbox):
                await self._serve(queue, entries)
        self._leave(queue, inbox)

    def _broke(self, runner: asyncio.Task[None], queue: Queue, inbox: Inbox[Request, Answer]) -> None:
        if runner.cancelled() or runner.exception():
            self._leave(queue, inbox)

    def _leave(self, queue: Queue, inbox: Inbox[Request, Answer]) -> None:
        """A runner is gone. The last one removes the inbox; callers that still wait, because it was stopped, get an
        error.
        """
        inbox.runners -= 1
        if inbox.runners:
            return
        del self._inboxes[queue]
        for _, _, answer in inbox.entries:
            _fail(answer, StoreUnavailable.stopping())

    def _take(self, inbox: Inbox[Request, Answer]) -> list[Submission[Request, Answer]]:
        entries: list[Submission[Request, Answer]] = []
        weight = 0
        while inbox.entries and (not entries or weight + inbox.entries[0][1] <= self._max_weight):
            entry = inbox.entries.popleft()
            _, own_weight, answer = entry
            inbox.weight -= own_weight
            if not answer.done():
                entries.append(entry)
                weight += own_weight
        return entries

    async def _serve(self, queue: Queue, entries: Sequence[Submission[Request, Answer]]) -> None:
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
        promised = self._promise() if self._promise else None
        if promised is None:
            self._turns.give(queue, pairs, self._answer)
        else:
            promised.add_done_callback(lambda done: self._answer_promised(queue, pairs, done.exception()))

    def _answer_promised(
        self,
        queue: Queue,
        pairs: Sequence[tuple[Submission[Request, Answer], Answer | Exception]],
        broken: BaseException | None,
    ) -> None:
        """`broken`: why the promise was not kept. Callers get it in place of every answer that is not an error."""
        if isinstance(broken, Exception):
            pairs = [
                (entry, answer if isinstance(answer, DuetimeError) else own_copy(broken)) for entry, answer in pairs
            ]
        self._turns.give(queue, pairs, self._answer)

    def _answer(self, pairs: Iterable[tuple[Submission[Request, Answer], Answer | Exception]]) -> None:
        for (_, _, awaited), answer in pairs:
            if isinstance(answer, Exception):
                _fail(awaited, answer)
            elif not awaited.done():
                try:
                    awaited.set_result(answer)
                except Exception:  # whatever one caller does with its answer, the others get theirs
                    log.exception("reply_failed")
            elif self._orphan:
                self._orphan(answer)


def _fail(answer: AwaitedAnswer[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def own_copy(error: Exception) -> Exception:
    """A copy for one caller to raise: a shared error would gather the tracebacks of all callers."""
    if not isinstance(error, DuetimeError):
        return error
    own = copy(error)
    own.__cause__ = error
    return own
