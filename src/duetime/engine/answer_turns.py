"""Answers to callers that shared a store call, given some at a time.

Each caller has something to do when it gets its answer, and hundreds of them in one turn of the event loop would hold
up everybody else. While a queue's answers are being given, its next call waits: those callers usually ask again at
once, and all of them fit into one call.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from duetime.model.errors import StoreUnavailable
from duetime.model.names import Queue

T = TypeVar("T")

ANSWERS_PER_TURN = 16

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
"""Starts a task; the engine waits for its end and sees its errors."""
Give = Callable[[Iterable[T]], None]
"""Gives each of some answers to its caller."""


class AnswerTurns:
    """The answers of all verbs of an engine, by queue."""

    def __init__(self, spawn: Spawn) -> None:
        self.spawn = spawn
        self._giving: dict[Queue, asyncio.Task[None]] = {}

    def give(self, queue: Queue, answers: Sequence[T], give: Give[T]) -> None:
        """Give the first answers now and some more in each turn of the event loop. All are given, whatever happens."""
        if len(answers) <= ANSWERS_PER_TURN:
            give(answers)
            return
        left = iter(answers)
        give(islice(left, ANSWERS_PER_TURN))
        try:
            task = self.spawn(_give_in_turns(left, give))
        except StoreUnavailable:  # the engine has stopped
            give(left)
            return
        self._giving[queue] = task
        task.add_done_callback(lambda done: self._given(queue, done, left, give))

    def _given(self, queue: Queue, task: asyncio.Task[None], left: Iterator[T], give: Give[T]) -> None:
        if self._giving.get(queue) is task:
            del self._giving[queue]
        give(left)  # those that a cancelled task did not get to

    def under_way(self, queue: Queue) -> asyncio.Task[None] | None:
        """The task that gives answers of the queue now; None if there is none."""
        return self._giving.get(queue)


async def _give_in_turns(left: Iterator[T], give: Give[T]) -> None:
    some: Sequence[T] | None = None
    while some is None or some:
        await asyncio.sleep(0)
        some = list(islice(left, ANSWERS_PER_TURN))
        give(some)
