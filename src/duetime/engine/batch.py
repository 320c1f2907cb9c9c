"""Group commit: requests of a queue that arrive while a store call is under way share the next one.

The first request on an idle queue goes out at once; there is no timer and no wait for company. Under load the batches
grow by themselves, and with them the throughput. Each request keeps its own answer: an error value from the store
reaches only its caller, a failed call reaches all who were in it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from copy import copy
from typing import Any, Generic, NamedTuple, TypeVar

from duetime.errors import DuetimeError, StoreUnavailable
from duetime.names import Queue

Request = TypeVar("Request")
Answer = TypeVar("Answer")

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
"""Starts a task that somebody keeps an eye on."""


class Entry(NamedTuple, Generic[Request, Answer]):
    request: Request
    weight: int
    answer: asyncio.Future[Answer]


class Batch(Generic[Request, Answer]):
    """One verb's group commit over all queues. `max_weight` bounds a call, but one request always fits.

    `orphan` takes an answer whose caller went away during the call.
    """

    def __init__(
        self,
        call: Callable[[Queue, Sequence[Request]], Awaitable[Sequence[Answer | DuetimeError]]],
        spawn: Spawn,
        *,
        max_weight: int,
        orphan: Callable[[Answer], None] | None = None,
    ) -> None:
        self._call = call
        self._spawn = spawn
        self._max_weight = max_weight
        self._orphan = orphan
        self._closed = False
        # A queue has an inbox while its runner lives.
        self._inboxes: dict[Queue, deque[Entry[Request, Answer]]] = {}
        self.calls = 0
        self.requests = 0

    async def submit(self, queue: Queue, request: Request, weight: int = 1) -> Answer:
        """The answer to this request, or its error. A request whose caller goes away before the call is not sent."""
        if self._closed:
            raise StoreUnavailable("the engine is stopping")
        inbox = self._inboxes.get(queue)
        if inbox is None:
            inbox = self._start(queue)
        entry = Entry(request, weight, asyncio.get_running_loop().create_future())
        inbox.append(entry)
        try:
            return await entry.answer
        except asyncio.CancelledError:
            # The answer may have come in the same instant as the cancellation.
            if self._orphan and not entry.answer.cancelled() and entry.answer.exception() is None:
                self._orphan(entry.answer.result())
            raise

    def close(self) -> None:
        """Take no more requests; those that are in are served."""
        self._closed = True

    def _start(self, queue: Queue) -> deque[Entry[Request, Answer]]:
        inbox = deque[Entry[Request, Answer]]()
        runner = self._spawn(self._run(queue, inbox))
        self._inboxes[queue] = inbox
        # A callback and not a `finally`: a task that is cancelled before its first step never gets to one.
        runner.add_done_callback(lambda _: self._abandon(queue, inbox))
        return inbox

    async def _run(self, queue: Queue, inbox: deque[Entry[Request, Answer]]) -> None:
        while inbox:
            if entries := self._take(inbox):
                await self._serve(queue, entries)
        del self._inboxes[queue]

    def _abandon(self, queue: Queue, inbox: deque[Entry[Request, Answer]]) -> None:
        """The runner is gone, and so is the inbox if it came to its end; otherwise those who still wait are told."""
        if self._inboxes.get(queue) is inbox:
            del self._inboxes[queue]
            for entry in inbox:
                _fail(entry.answer, StoreUnavailable("the engine is stopping"))

    def _take(self, inbox: deque[Entry[Request, Answer]]) -> list[Entry[Request, Answer]]:
        entries: list[Entry[Request, Answer]] = []
        weight = 0
        while inbox and (not entries or weight + inbox[0].weight <= self._max_weight):
            entry = inbox.popleft()
            if not entry.answer.done():
                entries.append(entry)
                weight += entry.weight
        return entries

    async def _serve(self, queue: Queue, entries: Sequence[Entry[Request, Answer]]) -> None:
        self.calls += 1
        self.requests += len(entries)
        try:
            answers = await self._call(queue, [entry.request for entry in entries])
            pairs = list(zip(entries, answers, strict=True))
        except asyncio.CancelledError:
            for entry in entries:
                _fail(entry.answer, StoreUnavailable("the engine stopped during the call", unknown=True))
            raise
        except Exception as error:  # whatever it is, it belongs to the callers
            for entry in entries:
                _fail(entry.answer, own_copy(error))
            return
        for entry, answer in pairs:
            if isinstance(answer, DuetimeError):
                _fail(entry.answer, answer)
            elif not entry.answer.done():
                entry.answer.set_result(answer)
            elif self._orphan:
                self._orphan(answer)


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def own_copy(error: Exception) -> Exception:
    """One for each caller to raise: a shared error would gather the tracebacks of all of them."""
    if not isinstance(error, DuetimeError):
        return error
    own = copy(error)
    own.__cause__ = error
    return own
