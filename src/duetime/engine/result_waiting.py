"""Waiting for results of jobs, without polling.

A caller registers before it looks, so that no wake falls between looking and waiting. It looks again when a wake of the
store, or a finish of this process, names one of its jobs. The safety net is one look per second, which callers of a
queue share (`batcher.py`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from duetime.model.errors import StoreUnavailable
from duetime.model.names import Queue
from duetime.stores.finishes import KeptResult

LOOK_EVERY_S = 1.0

Look = Callable[[Queue, Sequence[str]], Awaitable[Mapping[str, KeptResult]]]
"""The results that are there."""


class ResultWaiting:
    """Those who wait, by queue and id."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._waiting: dict[Queue, dict[str, set[asyncio.Event]]] = {}
        self._closed = False

    async def wait(self, queue: Queue, ids: Sequence[str], deadline: float) -> Mapping[str, KeptResult]:
        """The results of these jobs that are there when all are, or at the deadline (on the loop's clock).

        A caller that waits survives an outage of the store; StoreUnavailable is raised if the store is down at the
        first look or at the last.
        """
        heard = asyncio.Event()
        self._join(queue, ids, heard)
        try:
            return await self._wait(queue, ids, deadline, heard)
        finally:
            self._leave(queue, ids, heard)

    async def _wait(
        self, queue: Queue, ids: Sequence[str], deadline: float, heard: asyncio.Event
    ) -> Mapping[str, KeptResult]:
        now = asyncio.get_running_loop().time
        found = dict(await self._look(queue, ids))
        while (missing := [job_id for job_id in ids if job_id not in found]) and now() < deadline:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(deadline - now(), LOOK_EVERY_S)):
                    await heard.wait()
            heard.clear()
            try:
                found.update(await self._look(queue, missing))
            except StoreUnavailable:
                if self._closed or now() >= deadline:
                    raise
        return found

    def notice(self, queue: Queue, ids: Sequence[str]) -> None:
        """Results of these jobs were kept; without ids, of any jobs of the queue."""
        if waiting := self._waiting.get(queue):
            for job_id in ids or waiting:
                for heard in waiting.get(job_id, ()):
                    heard.set()

    def check_now(self) -> None:
        """Wakes may have been missed."""
        for queue in self._waiting:
            self.notice(queue, ())

    def close(self) -> None:
        """Everybody looks once more, and the engine refuses that."""
        self._closed = True
        self.check_now()

    def _join(self, queue: Queue, ids: Sequence[str], heard: asyncio.Event) -> None:
        waiting = self._waiting.setdefault(queue, {})
        for job_id in ids:
            waiting.setdefault(job_id, set()).add(heard)

    def _leave(self, queue: Queue, ids: Sequence[str], heard: asyncio.Event) -> None:
        waiting = self._waiting[queue]
        for job_id in set(ids):
            waiting[job_id].discard(heard)
            if not waiting[job_id]:
                del waiting[job_id]
        if not waiting:
            del self._waiting[queue]
