"""Group commit: requests of a queue that arrive while a store call is under way share the next one.

The first request on an idle queue goes out at once; there is no timer and no wait for company. Under load the batches
grow by themselves, and with them the throughput. Each request keeps its own answer: an error value from the store
reaches only its caller, a failed call reaches all who were in it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from duetime.errors import DuetimeError, StoreUnavailable
from duetime.names import Queue

Request = TypeVar("Request")
Answer = TypeVar("Answer")

Spawn = Callable[[Coroutine[Any, Any, None]], object]
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
        # A queue has an inbox while its runner lives.
        self._inboxes: dict[Queue, list[Entry[Request, Answer]]] = {}
        self.calls = 0
        self.requests = 0

    async def submit(self, queue: Queue, request: Request, weight: int = 1) -> Answer:
        """The answer to this request, or its error. A request whose caller goes away before the call is not sent."""
        entry = Entry(request, weight, asyncio.get_running_loop().create_future())
        inbox = self._inboxes.get(queue)
        if inbox is None:
            self._inboxes[queue] = [entry]
            self._spawn(self._run(queue))
        else:
            inbox.append(entry)
        try:
            return await entry.answer
        except asyncio.CancelledError:
            # The answer may have come in the same instant as the cancellation.
            if self._orphan and not entry.answer.cancelled() and entry.answer.exception() is None:
                self._orphan(entry.answer.result())
            raise

    async def _run(self, queue: Queue) -> None:
        try:
            while self._inboxes[queue]:
                if entries := self._take(queue):
                    await self._serve(queue, entries)
        finally:
            for entry in self._inboxes.pop(queue):
                _fail(entry.answer, StoreUnavailable("the engine is stopping"))

    def _take(self, queue: Queue) -> list[Entry[Request, Answer]]:
        inbox = self._inboxes[queue]
        weight, end = 0, 0
        for entry in inbox:
            weight += entry.weight
            if end and weight > self._max_weight:
                break
            end += 1
        self._inboxes[queue] = inbox[end:]
        return [entry for entry in inbox[:end] if not entry.answer.done()]

    async def _serve(self, queue: Queue, entries: Sequence[Entry[Request, Answer]]) -> None:
        self.calls += 1
        self.requests += len(entries)
        try:
            answers = await self._call(queue, [entry.request for entry in entries])
        except asyncio.CancelledError:
            for entry in entries:
                _fail(entry.answer, StoreUnavailable("the engine stopped during the call", unknown=True))
            raise
        except Exception as error:  # whatever it is, it belongs to the callers
            for entry in entries:
                _fail(entry.answer, error)
            return
        for entry, answer in zip(entries, answers, strict=True):
            if isinstance(answer, DuetimeError):
                _fail(entry.answer, answer)
            elif not entry.answer.done():
                entry.answer.set_result(answer)
            elif self._orphan:
                self._orphan(answer)


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
