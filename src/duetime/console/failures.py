"""All dead letters of all queues by error, newest first: what the page Failures shows and acts on.

Stores list the dead letters of one queue, oldest first, a few hundred at a time. So a task reads them in small steps,
the newest hours first, while somebody has it open; after that it reads what has come since. A queue whose dead
letters became fewer is read anew. What is kept in memory of each is when it died, its id and its group, and all of it
is forgotten when nobody has looked for a while.
"""

import asyncio
import hashlib
import heapq
import logging
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from duetime.console.errors_seen import ErrorName, name_error
from duetime.console.queue_snapshots import QueueSnapshots
from duetime.engine.pools import Pools
from duetime.model.errors import DuetimeError
from duetime.model.job import Job, State
from duetime.model.names import Queue
from duetime.stores.base import Cursor
from duetime.wire import payload

log = logging.getLogger("duetime.console")

STEP = 100
"""Dead letters that are read at a time: a step takes a few milliseconds."""
WINDOWS_MS = (300_000, 3_600_000, 86_400_000, 7 * 86_400_000)
"""The newest dead letters are read first: those of these last milliseconds, one after the other, then all others."""
MANY = 1_000
"""A queue with no more dead letters than this is read in one go."""
REREAD_S = 3.0
REREAD_SHARE = 20
"""A queue is read anew at most once in this many times as long as that took."""
FORGET_S = 900.0
HOUR_MS = 3_600_000
SAMPLE = 4_096
MOST_TASKS = 20
LARGEST_TASK = 65_536
"""Larger bodies are not searched for the name of a task."""

Place = tuple[str, Queue]


def task_of(body: bytes) -> str:
    """The name of the task that the job runs; empty if it runs none."""
    if len(body) > LARGEST_TASK or not body.startswith(b"{"):
        return ""
    try:
        found = payload.read(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return (found.displayName or found.name)[:100]


class FailedJob(msgspec.Struct, frozen=True, order=True, gc=False):
    """There may be a million of these: the garbage collector, for which the API waits, must not visit them."""

    dead_at: int
    id: str
    group: str


class GroupKey(NamedTuple):
    name: ErrorName
    reason: str

    @property
    def key(self) -> str:
        return hashlib.sha256("\0".join((*self.name, self.reason)).encode()).hexdigest()[:16]


class GroupPart:
    """The dead letters of one group in one queue. `hours` has how many died in each hour since the epoch."""

    __slots__ = ("count", "first", "hours", "last", "sample", "tasks")

    def __init__(self) -> None:
        self.count = 0
        self.first = self.last = 0
        self.sample = ""
        self.hours: Counter[int] = Counter()
        self.tasks: Counter[str] = Counter()

    def add(self, job: Job) -> None:
        self.count += 1
        self.first = min(self.first or job.dead_at, job.dead_at)
        if job.dead_at >= self.last:
            self.last, self.sample = job.dead_at, job.error[-SAMPLE:]
        self.hours[job.dead_at // HOUR_MS] += 1
        if len(self.tasks) < MOST_TASKS and (task := task_of(job.body)):
            self.tasks[task] += 1


class QueueFailures:
    """What was read of one queue. `chunks` are stretches of time, newest first, each in the order of time."""

    def __init__(self) -> None:
        self.chunks: list[list[FailedJob]] = []
        self.parts: dict[str, GroupPart] = {}
        self.count = 0
        self.is_complete = False
        self.read_at = 0.0
        self.took_s = 0.0
        self.last: tuple[int, str] = (0, "")

    def add(self, chunk: list[FailedJob], job: Job, names: dict[str, GroupKey]) -> None:
        group = GroupKey(name_error(job.error), job.reason)
        key = group.key
        names.setdefault(key, group)
        chunk.append(FailedJob(job.dead_at, job.id, key))
        self.parts.setdefault(key, GroupPart()).add(job)
        self.count += 1
        self.last = max(self.last, (job.dead_at, job.id))

    def newest_first(self, before: tuple[int, str], group: str) -> Iterator[FailedJob]:
        for chunk in self.chunks:
            for place in range(bisect_right(chunk, FailedJob(*before, "\U0010ffff")) - 1, -1, -1):
                job = chunk[place]
                if (job.dead_at, job.id) < before and group in ("", job.group):
                    yield job


@dataclass(frozen=True)
class FailureGroup:
    """Dead letters with the same error, apart from what varies, and for the same reason. Times are epoch ms.

    `places` has the queues they are in with their number, most first; `tasks` the names of their tasks, as far as they
    are tasks; `hours` how many died in each of the last 24 hours, now last.
    """

    key: str
    name: ErrorName
    reason: str
    count: int
    first: int
    last: int
    sample: str
    places: Sequence[tuple[Place, int]]
    tasks: Sequence[str]
    hours: Sequence[int]


class FailuresSeen(NamedTuple):
    """`read` of `total` dead letters have been read."""

    groups: Sequence[FailureGroup]
    read: int
    total: int

    @property
    def is_complete(self) -> bool:
        return self.read >= self.total


class Failures:
    def __init__(self, pools: Pools, snapshots: QueueSnapshots) -> None:
        self._pools = pools
        self._snapshots = snapshots
        self._queues: dict[Place, QueueFailures] = {}
        self._names: dict[str, GroupKey] = {}
        self._totals: dict[Place, int] = {}
        self._reading: asyncio.Task[None] | None = None
        self._asked_at = 0.0
        self._forgetting: asyncio.TimerHandle | None = None

    async def close(self) -> None:
        if self._forgetting is not None:
            self._forgetting.cancel()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def refresh(self, *, within_s: float, fresh: bool = False) -> None:
        """Read what is new, and wait for that for a moment. Goes on in the background if there is more."""
        snapshot = await self._snapshots.read(fresh=fresh)
        self._totals = {(line.pool, line.queue): line.counts.dead for line in snapshot.lines if line.counts.dead}
        self._asked_at = time.monotonic()
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = asyncio.get_running_loop().call_later(FORGET_S, self._forget_all)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_all())
        await asyncio.wait({self._reading}, timeout=within_s)

    def _forget_all(self) -> None:
        self._queues.clear()
        self._names.clear()

    async def _read_all(self) -> None:
        for place in [place for place in self._queues if place not in self._totals]:
            del self._queues[place]
        for place in sorted(self._totals, key=lambda one: self._totals[one]):
            if time.monotonic() - self._asked_at > FORGET_S:
                return
            try:
                await self._read_queue(place, self._totals[place])
            except DuetimeError as error:
                log.info("console_failures_unread", extra={"queue": str(place[1]), "error": error.message})

    async def _read_queue(self, place: Place, total: int) -> None:
        known = self._queues.get(place)
        if known is not None and known.is_complete:
            await self._read_stretch(place, known, _after(known.last), 0, front=True)
            if known.count == total or time.monotonic() - known.read_at < max(REREAD_S, known.took_s * REREAD_SHARE):
                return
        fresh, began = QueueFailures(), time.monotonic()
        if known is None or not known.is_complete:
            self._queues[place] = fresh  # what was read so far is shown
        edges = [0]
        if total > MANY:
            now = int(time.time() * 1000)
            edges = [now - window for window in WINDOWS_MS] + [0]
        until = 0
        for edge in edges:
            cursor = str(Cursor(0, edge, "")) if edge else None
            await self._read_stretch(place, fresh, cursor, until)
            until = edge
        fresh.is_complete, fresh.read_at, fresh.took_s = True, time.monotonic(), time.monotonic() - began
        self._queues[place] = fresh

    async def _read_stretch(
        self, place: Place, into: QueueFailures, cursor: str | None, until: int, *, front: bool = False
    ) -> None:
        """Read the dead letters from the cursor to `until`, 0 for the end. `front`: they are newer than all known."""
        store = self._pools.engine(place[0]).store
        chunk: list[FailedJob] = []
        into.chunks.insert(0 if front else len(into.chunks), chunk)
        while True:
            page = await store.list_jobs(place[1], State.DEAD, cursor=cursor, limit=STEP)
            began = time.monotonic()
            for job in page.jobs:
                if until and job.dead_at >= until:
                    return
                into.add(chunk, job, self._names)
            cursor = page.cursor
            if cursor is None:
                if front and not chunk:
                    into.chunks.remove(chunk)
                return
            await asyncio.sleep(time.monotonic() - began)  # half of the time is for the API

    # --- what is known

    def seen(self, sees: Callable[[str, str], bool], *, only: Place | None = None) -> FailuresSeen:
        """The groups that were read, largest first, of the queues that the visitor sees, or of one."""
        places = [place for place in self._totals if sees(place[0], place[1].namespace) and only in (None, place)]
        parts: dict[str, list[tuple[Place, GroupPart]]] = {}
        for place in places:
            if place in self._queues:
                for key, part in self._queues[place].parts.items():
                    parts.setdefault(key, []).append((place, part))
        groups = sorted((self._group(key, found) for key, found in parts.items()), key=lambda one: -one.last)
        read = sum(self._queues[place].count for place in places if place in self._queues)
        return FailuresSeen(groups, read, sum(self._totals[place] for place in places))

    def _group(self, key: str, found: Sequence[tuple[Place, GroupPart]]) -> FailureGroup:
        this_hour = int(time.time() * 1000) // HOUR_MS
        newest = max((part for _, part in found), key=lambda part: part.last)
        tasks = Counter[str]()
        for _, part in found:
            tasks.update(part.tasks)
        name = self._names[key]
        return FailureGroup(
            key,
            name.name,
            name.reason,
            sum(part.count for _, part in found),
            min(part.first for _, part in found),
            newest.last,
            newest.sample,
            sorted(((place, part.count) for place, part in found), key=lambda one: -one[1]),
            [task for task, _ in tasks.most_common(3)],
            [sum(part.hours[this_hour - back] for _, part in found) for back in range(23, -1, -1)],
        )

    def newest(
        self,
        sees: Callable[[str, str], bool],
        *,
        group: str = "",
        only: Place | None = None,
        before: tuple[int, str] = (1 << 62, ""),
    ) -> Iterator[tuple[Place, FailedJob]]:
        """Dead letters, newest first, from `before` (dead_at, id) on."""

        def of(place: Place, queue: QueueFailures) -> Iterator[tuple[int, str, Place, FailedJob]]:
            for job in queue.newest_first(before, group):
                yield -job.dead_at, job.id, place, job

        streams = [
            of(place, queue)
            for place, queue in self._queues.items()
            if sees(place[0], place[1].namespace) and only in (None, place)
        ]
        for _, _, place, job in heapq.merge(*streams, key=lambda one: (one[0], one[1])):
            yield place, job

    async def jobs_of(self, wanted: Mapping[Place, Sequence[str]], group: str = "") -> dict[Place, list[Job]]:
        """Those of these jobs that are dead now and, if a group is named, still have its error; without bodies."""
        found: dict[Place, list[Job]] = {}
        for (pool, queue), named in wanted.items():
            store, ids = self._pools.engine(pool).store, list(named)
            while ids:
                jobs = await store.get(queue, ids[:STEP])
                ids = ids[len(jobs) :]
                for job in jobs:
                    if job is None or job.state is not State.DEAD:
                        continue
                    if not group or GroupKey(name_error(job.error), job.reason).key == group:
                        light = msgspec.structs.replace(job, body=b"", attributes={}, error="")
                        found.setdefault((pool, queue), []).append(light)
                await asyncio.sleep(0)
        return found

    async def forget(self, places: Sequence[Place]) -> None:
        """Read these queues again for the next page: their dead letters were retried or deleted."""
        for place in places:
            self._queues.pop(place, None)
        with suppress(DuetimeError):
            await self._snapshots.read(fresh=True)


def _after(last: tuple[int, str]) -> str | None:
    return str(Cursor(0, *last)) if last[0] else None
