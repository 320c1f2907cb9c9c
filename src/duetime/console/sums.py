"""What is added up over all queues in the background while somebody looks: the exact totals by day, how many jobs fall
due in each hour of the next day, and how many waiting jobs were tried before.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import date
from typing import Generic, NamedTuple, TypeVar

from duetime.console.queue_snapshots import MOST_QUEUES, LiveQueue, QueueSnapshots
from duetime.engine.pools import Pools
from duetime.model.errors import DuetimeError
from duetime.model.job import STEP_JOBS, State, Totals
from duetime.model.names import Queue

log = logging.getLogger("duetime.console")

T = TypeVar("T")
Sees = Callable[[str, str], bool]
Place = tuple[str, Queue]

EVERY_S = 30.0
SHARE = 100
"""Sums are used for at least this many times as long as it took to add them up."""
BREATHER = 25
"""After this many queues the event loop serves other tasks: a queue has totals of up to 31 days."""
HOURS = 24
HOUR_MS = 3_600_000
MOST_DUE_QUEUES = 300
"""The queues with the most delayed jobs are added up by hour."""
MOST_RETRYING = 5_000
"""Waiting jobs that are read to count those that were tried before, STEP at a time."""
STEP = 50
MOST_READ = 16_777_216
"""Bytes of their bodies."""


class Background(Generic[T]):
    """Runs `add_up` now and then, when somebody asks; None keeps what was known before."""

    def __init__(self, add_up: Callable[[], Awaitable[T | None]]) -> None:
        self._add_up = add_up
        self._known: T | None = None
        self._until = 0.0
        self._adding: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self._adding is not None:
            self._adding.cancel()
            await asyncio.gather(self._adding, return_exceptions=True)

    async def read(self, within_s: float) -> T | None:
        """The last sums; None while they are added up for the first time."""
        if time.monotonic() >= self._until and (self._adding is None or self._adding.done()):
            self._adding = asyncio.create_task(self._run())
        if self._adding is not None and not self._adding.done():
            await asyncio.wait({self._adding}, timeout=within_s)
        return self._known

    async def _run(self) -> None:
        began = time.monotonic()
        found = await self._add_up()
        ended = time.monotonic()
        if found is not None:
            self._known, self._until = found, ended + max(EVERY_S, (ended - began) * SHARE)


class DayTotals:
    """The stores' exact totals."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._sums = Background(self._add_up)
        self.close = self._sums.close

    async def days(self, sees: Sees, *, within_s: float = 0.25) -> dict[date, Totals] | None:
        """The totals of all queues by day; None while they are being added up for the first time."""
        sums = await self._sums.read(within_s)
        if sums is None:
            return None
        found: dict[date, Totals] = {}
        for (pool, namespace), by_day in sums[0].items():
            if sees(pool, namespace):
                for day, totals in by_day.items():
                    found[day] = add_totals(found.get(day, Totals()), totals)
        return found

    async def pool_totals(self, *, within_s: float = 0.25) -> Mapping[str, Totals]:
        """The running totals of each pool; empty while they are being added up for the first time."""
        sums = await self._sums.read(within_s)
        return sums[1] if sums is not None else {}

    async def _add_up(self) -> tuple[dict[tuple[str, str], dict[date, Totals]], dict[str, Totals]] | None:
        sums: dict[tuple[str, str], dict[date, Totals]] = {}
        running: dict[str, Totals] = {}
        for pool in self._pools.names:
            try:
                store = self._pools.engine(pool).store
                queues = (await store.queues())[:MOST_QUEUES]
                for at in range(0, len(queues), STEP_JOBS):
                    chunk = queues[at : at + STEP_JOBS]
                    for place, (queue, totals) in enumerate(zip(chunk, await store.totals(chunk), strict=True)):
                        if place % BREATHER == 0:
                            await asyncio.sleep(0)
                        running[pool] = add_totals(running.get(pool, Totals()), totals.running)
                        into = sums.setdefault((pool, queue.namespace), {})
                        for day, one in totals.days.items():
                            into[day] = add_totals(into.get(day, Totals()), one)
            except DuetimeError as error:
                log.info("console_totals_failed", extra={"pool": pool, "error": error.message})
                return None
        return sums, running


def add_totals(one: Totals, other: Totals) -> Totals:
    return Totals(*[getattr(one, name) + getattr(other, name) for name in Totals.__struct_fields__])


class DueAhead(NamedTuple):
    """`hours` begin with the one at `start` (epoch ms). `is_whole` is False if some queues were left out."""

    start: int
    hours: Sequence[int]
    is_whole: bool


class DueAheadSums:
    """How many jobs fall due in each hour of the next day."""

    def __init__(self, pools: Pools, snapshots: QueueSnapshots) -> None:
        self._pools = pools
        self._snapshots = snapshots
        self._sums = Background(self._add_up)
        self.close = self._sums.close

    async def read(self, sees: Sees, *, within_s: float = 0.15) -> DueAhead | None:
        """None while it is added up for the first time."""
        sums = await self._sums.read(within_s)
        if sums is None:
            return None
        start, known, is_whole = sums
        hours = [0] * HOURS
        for (pool, queue), found in known.items():
            if sees(pool, queue.namespace):
                hours = [one + other for one, other in zip(hours, found, strict=False)]
        return DueAhead(start, hours, is_whole)

    async def _add_up(self) -> tuple[int, dict[Place, Sequence[int]], bool]:
        lines = [line for line in (await self._snapshots.read()).lines if line.counts.delayed]
        lines.sort(key=lambda line: -line.counts.delayed)
        start = int(time.time() * 1000) // HOUR_MS * HOUR_MS
        edges = [start + step * HOUR_MS for step in range(HOURS + 1)]
        found: dict[Place, Sequence[int]] = {}
        for line in lines[:MOST_DUE_QUEUES]:
            found[line.pool, line.queue] = await self._read(line, edges)
            await asyncio.sleep(0)
        return start, found, len(lines) <= MOST_DUE_QUEUES

    async def _read(self, line: LiveQueue, edges: Sequence[int]) -> Sequence[int]:
        try:
            return await self._pools.engine(line.pool).store.due_histogram(line.queue, edges)
        except DuetimeError as error:
            log.info("console_due_unread", extra={"queue": str(line.queue), "error": error.message})
            return []


class Retrying(NamedTuple):
    """`is_whole` is False if there were too many waiting jobs to read them all, so that there may be more."""

    jobs: int
    is_whole: bool


class RetryingCounts:
    """How many waiting jobs were tried before. Stores do not count them, but they count which queues gave jobs back
    after a try: only the jobs of those are read, of the queues with the fewest first, and MOST_RETRYING at most.
    """

    def __init__(self, pools: Pools, snapshots: QueueSnapshots) -> None:
        self._pools = pools
        self._snapshots = snapshots
        self._sums = Background(self._add_up)
        self.close = self._sums.close

    async def read(self, sees: Sees, *, within_s: float = 0.15) -> Retrying | None:
        """None while they are counted for the first time."""
        known = await self._sums.read(within_s)
        if known is None:
            return None
        seen = [one for (pool, queue), one in known.items() if sees(pool, queue.namespace)]
        return Retrying(sum(one.jobs for one in seen), all(one.is_whole for one in seen))

    async def _add_up(self) -> dict[Place, Retrying]:
        found: dict[Place, Retrying] = {}
        left, room = MOST_RETRYING, MOST_READ
        for line in await self._candidates():
            try:
                count, looked, size, is_whole = await self._count(line, left, room)
            except DuetimeError as error:
                log.info("console_retrying_unread", extra={"queue": str(line.queue), "error": error.message})
                continue
            left, room = left - looked, room - size
            if count or not is_whole:
                found[line.pool, line.queue] = Retrying(count, is_whole)
        return found

    async def _candidates(self) -> list[LiveQueue]:
        lines = [line for line in (await self._snapshots.read()).lines if line.counts.ready or line.counts.delayed]
        found: list[LiveQueue] = []
        for pool in self._pools.names:
            waiting = [line for line in lines if line.pool == pool]
            for at in range(0, len(waiting), STEP_JOBS):
                some = waiting[at : at + STEP_JOBS]
                try:
                    totals = await self._pools.engine(pool).store.totals([line.queue for line in some])
                except DuetimeError:
                    continue
                tried = (one.running.released or one.running.lapsed for one in totals)
                found += [line for line, is_tried in zip(some, tried, strict=True) if is_tried and not line.is_internal]
        return sorted(found, key=lambda line: line.counts.ready + line.counts.delayed)

    async def _count(self, line: LiveQueue, most: int, most_bytes: int) -> tuple[int, int, int, bool]:
        """How many were tried before, how many were read, their bytes, and whether these are all."""
        store = self._pools.engine(line.pool).store
        count = looked = size = 0
        for state in (State.READY, State.DELAYED):
            cursor: str | None = None
            while True:
                if looked >= most or size >= most_bytes:
                    return count, looked, size, False
                page = await store.list_jobs(line.queue, state, cursor=cursor, limit=STEP)
                count += sum(job.attempt > 0 for job in page.jobs)
                looked += len(page.jobs)
                size += sum(len(job.body) for job in page.jobs)
                cursor = page.cursor
                await asyncio.sleep(0)
                if cursor is None:
                    break
        return count, looked, size, True
