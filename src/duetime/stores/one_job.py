"""What the single-job calls (`base.OneJob`) of several stores share."""

import asyncio
from collections.abc import Coroutine
from time import monotonic
from typing import Any, TypeVar

from duetime.model.names import Queue
from duetime.stores.base import ResultSink

T = TypeVar("T")

BACKOFF_S = 1.0
"""How long a verb uses its general form in a queue after the single-job form declined."""
MAX_QUEUES = 10_000


class FastPathBackoff:
    """The queues that last declined a single-job call, by verb. Only a hint, so that threads may share it."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, Queue], float] = {}

    def has(self, verb: str, queue: Queue) -> bool:
        until = self._until.get((verb, queue))
        return until is not None and until > monotonic()

    def add(self, verb: str, queue: Queue) -> None:
        if len(self._until) >= MAX_QUEUES:
            self._until.clear()
        self._until[verb, queue] = monotonic() + BACKOFF_S

    def clear(self) -> None:
        self._until.clear()


class GeneralCalls:
    """Runs the general form of a verb for a reply, after the single-job form declined."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def run(self, work: Coroutine[Any, Any, T], reply: ResultSink[T]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(lambda done: self._done(done, reply))

    def _done(self, task: asyncio.Task[T], reply: ResultSink[T]) -> None:
        self._running.discard(task)
        error = asyncio.CancelledError("cancelled") if task.cancelled() else task.exception()
        if reply.done():
            return
        if error is None:
            reply.set_result(task.result())
        else:
            reply.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
