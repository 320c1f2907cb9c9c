"""How many jobs of all queues fall due in each hour of the next day, added up in the background now and then."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from duetime.console.queue_looks import LiveQueue, QueueLooks
from duetime.engine.pools import Pools
from duetime.model.errors import DuetimeError
from duetime.model.names import Queue

log = logging.getLogger("duetime.console")

HOURS = 24
HOUR_MS = 3_600_000
EVERY_S = 30.0
MOST_QUEUES = 300
"""The queues with the most delayed jobs are added up."""


class DueAhead(NamedTuple):
    """`hours` begin with the one at `start` (epoch ms). `is_whole` is False if some queues were left out."""

    start: int
    hours: Sequence[int]
    is_whole: bool


class DueAheadSums:
    def __init__(self, pools: Pools, looks: QueueLooks) -> None:
        self._pools = pools
        self._looks = looks
        self._known: dict[tuple[str, Queue], Sequence[int]] = {}
        self._start = 0
        self._left_out = False
        self._at = -EVERY_S
        self._adding: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self._adding is not None:
            self._adding.cancel()
            await asyncio.gather(self._adding, return_exceptions=True)

    async def read(self, sees: Callable[[str, str], bool], *, within_s: float = 0.15) -> DueAhead | None:
        """None while it is added up for the first time."""
        if time.monotonic() - self._at >= EVERY_S and (self._adding is None or self._adding.done()):
            self._adding = asyncio.create_task(self._add_up())
        if self._adding is not None and not self._adding.done():
            await asyncio.wait({self._adding}, timeout=within_s)
        if self._at < 0:
            return None
        hours = [0] * HOURS
        for (pool, queue), found in self._known.items():
            if sees(pool, queue.namespace):
                hours = [one + other for one, other in zip(hours, found, strict=False)]
        return DueAhead(self._start, hours, not self._left_out)

    async def _add_up(self) -> None:
        lines = [line for line in (await self._looks.look()).lines if line.counts.delayed]
        lines.sort(key=lambda line: -line.counts.delayed)
        start = int(time.time() * 1000) // HOUR_MS * HOUR_MS
        edges = [start + step * HOUR_MS for step in range(HOURS + 1)]
        found: dict[tuple[str, Queue], Sequence[int]] = {}
        for line in lines[:MOST_QUEUES]:
            found[line.pool, line.queue] = await self._read(line, edges)
            await asyncio.sleep(0)
        self._known, self._start, self._left_out, self._at = found, start, len(lines) > MOST_QUEUES, time.monotonic()

    async def _read(self, line: LiveQueue, edges: Sequence[int]) -> Sequence[int]:
        try:
            return await self._pools.engine(line.pool).store.due_histogram(line.queue, edges)
        except DuetimeError as error:
            log.info("console_due_unread", extra={"queue": str(line.queue), "error": error.message})
            return []
