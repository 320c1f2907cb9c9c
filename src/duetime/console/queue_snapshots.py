"""What the stores say about all queues of all pools: jobs by state, and when the next one is due.

Stores are only asked while a page is open, every few seconds at most, and less often the longer their answer takes;
all pages share one answer. Where there are many queues, no page waits for it: it shows the last answer, or says that
the stores are counting.
"""

import asyncio
import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from duetime.engine.pools import Pools
from duetime.model.errors import DuetimeError, NoAnswer
from duetime.model.job import STEP_JOBS, Counts
from duetime.model.names import Queue

SNAPSHOT_S = 2.0
SHARE = 40
"""An answer of the stores is used for at least this many times as long as it took."""
MANY_QUEUES = 2_000
"""With at most this many queues, a page that is opened asks the stores anew and waits for their answer."""
MANY_WAIT_S = 0.03
"""How long a page waits for the first answer about more queues than that."""
STORE_S = 5.0
MOST_QUEUES = 20_000
"""How many queues of a pool are counted."""
NEVER = -1e9
BUSIEST = 8


INTERNAL = "duetime."
"""Queues whose names begin so are Duetime's own."""


class LiveQueue(Struct, frozen=True, gc=False):
    """A queue as its store described it. `head` is when its earliest waiting job is or was due."""

    pool: str
    queue: Queue
    counts: Counts
    head: int | None

    @property
    def is_internal(self) -> bool:
        return self.queue.name.startswith(INTERNAL)

    @property
    def late_ms(self) -> int:
        """How long its earliest ready job is overdue; 0 below a second, in which it may just be delivered."""
        late = self.counts.now - self.head if self.head is not None and self.counts.ready else 0
        return late if late >= 1000 else 0


class QueueSnapshot(NamedTuple):
    """What the stores said about all queues of all pools. `problems` has the pools that did not answer.

    `at` is when it ended, in monotonic seconds; `took_s` is how long the stores took. Snapshots with the same
    `fingerprint` show the same.
    """

    lines: Sequence[LiveQueue]
    problems: Mapping[str, DuetimeError]
    at: float
    took_s: float
    fingerprint: int = 0

    @property
    def is_known(self) -> bool:
        """False until the stores have answered for the first time."""
        return self.at > NEVER

    @property
    def lasts_s(self) -> float:
        """How long this answer is used. A pool that does not answer is asked again soon: waiting for it is no work."""
        return SNAPSHOT_S if self.problems else max(SNAPSHOT_S, self.took_s * SHARE)


class SnapshotSums(NamedTuple):
    """All queues together; `busiest` has those with the most ready, leased and dead jobs, without internal ones."""

    counts: Counts
    queues: int
    latest: LiveQueue | None
    busiest: Sequence[LiveQueue]


class ListedQueues(NamedTuple):
    """The queues of each pool, or why it did not list them; `at` is when, in monotonic seconds."""

    pools: Mapping[str, list[Queue] | DuetimeError]
    at: float = NEVER

    @property
    def total(self) -> int:
        return sum(len(found) for found in self.pools.values() if isinstance(found, list))


class QueueSnapshots:
    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._last = QueueSnapshot((), {}, NEVER, 0.0)
        self._counting: asyncio.Task[None] | None = None
        self._listed = ListedQueues({})
        self._listing = asyncio.Lock()
        self._list_lock = asyncio.Lock()
        self._sums: dict[tuple[str, str], tuple[float, SnapshotSums]] = {}

    async def close(self) -> None:
        if self._counting is not None:
            self._counting.cancel()
            await asyncio.gather(self._counting, return_exceptions=True)

    @property
    def _has_many(self) -> bool:
        return self._listed.total > MANY_QUEUES

    @property
    def last(self) -> QueueSnapshot:
        """The last answer of the stores, without asking them."""
        return self._last

    async def for_page(self, *, is_partial: bool) -> QueueSnapshot:
        """A page that is opened asks the stores anew unless there are many queues; a refresh takes what there is."""
        return await self.read(fresh=not is_partial)

    async def read(self, *, fresh: bool = False) -> QueueSnapshot:
        """The last answer of the stores, or a new one if that is too old.

        `fresh` asks them in any case, unless there are many queues. With many queues the last answer is returned if
        the new one is not there soon.
        """
        async with self._listing:
            if not self._has_many and self._counting is not None:
                await asyncio.wait({self._counting})
            is_old = time.monotonic() - self._last.at >= self._last.lasts_s
            if (self._counting is None or self._counting.done()) and (is_old or (fresh and not self._has_many)):
                began = time.monotonic()
                listed = await self._list_all()
                self._counting = asyncio.create_task(self._count(listed.pools, began))
        if self._counting is not None and not (self._has_many and self._last.is_known):
            await asyncio.wait({self._counting}, timeout=MANY_WAIT_S if self._has_many else None)
        return self._last

    async def _list_all(self) -> ListedQueues:
        """Lists the queues of all pools. A long list is shared for a while: a new queue may then appear later."""
        async with self._list_lock:
            if not self._has_many or time.monotonic() - self._listed.at >= SNAPSHOT_S:
                names = self._pools.names
                found = await asyncio.gather(*(self._list_pool(name) for name in names))
                self._listed = ListedQueues(dict(zip(names, found, strict=True)), time.monotonic())
            return self._listed

    async def _list_pool(self, pool: str) -> list[Queue] | DuetimeError:
        try:
            async with asyncio.timeout(STORE_S):
                return list(await self._pools.engine(pool).store.queues())
        except DuetimeError as error:
            return error
        except TimeoutError:
            return _no_answer(pool)

    async def _count(self, queues: Mapping[str, list[Queue] | DuetimeError], began: float) -> None:
        listed = {pool: found[:MOST_QUEUES] for pool, found in queues.items() if isinstance(found, list)}
        answers: dict[str, list[LiveQueue] | DuetimeError] = dict(
            zip(listed, await asyncio.gather(*(self._count_pool(*one) for one in listed.items())), strict=True)
        )
        answers |= {pool: found for pool, found in queues.items() if isinstance(found, DuetimeError)}
        lines = [line for answer in answers.values() if isinstance(answer, list) for line in answer]
        problems = {pool: one for pool, one in answers.items() if isinstance(one, DuetimeError)}
        fingerprint = hash((tuple((one.pool, one.queue, *_shown(one)) for one in lines), tuple(sorted(problems))))
        ended = time.monotonic()
        took_s = (ended - began) / (2 if self._has_many else 1)  # half of it were pauses
        self._last = QueueSnapshot(lines, problems, ended, took_s, fingerprint)

    async def _count_pool(self, pool: str, queues: Sequence[Queue]) -> list[LiveQueue] | DuetimeError:
        lines: list[LiveQueue] = []
        # Many queues take many steps, and each of them may take as long as all of a few.
        patience_s = 2 * STORE_S * max(1, len(queues) / MANY_QUEUES)
        try:
            async with asyncio.timeout(patience_s):
                store = self._pools.engine(pool).store
                for at in range(0, len(queues), STEP_JOBS):
                    began = time.monotonic()
                    chunk = queues[at : at + STEP_JOBS]
                    counted, heads = await store.counts(chunk), await store.heads(chunk)
                    lines += [LiveQueue(pool, *line) for line in zip(chunk, counted, heads, strict=True)]
                    if len(queues) > MANY_QUEUES:
                        # Pages and deliveries ask the same store; they have it for half of the time.
                        await asyncio.sleep(time.monotonic() - began)
        except DuetimeError as error:
            return error
        except TimeoutError:
            return _no_answer(pool)
        return lines

    def sums(
        self, snapshot: QueueSnapshot, pool: str, namespace: str, sees: Callable[[str, str], bool]
    ) -> SnapshotSums:
        """The sums for sessions that see this pool and namespace, added up once per snapshot."""
        known = self._sums.get((pool, namespace))
        if known is None or known[0] != snapshot.at:
            self._sums = {key: one for key, one in self._sums.items() if one[0] == snapshot.at}
            known = self._sums[pool, namespace] = snapshot.at, _add_up(snapshot.lines, sees)
        return known[1]

    async def names(self) -> tuple[list[tuple[str, Queue]], Mapping[str, DuetimeError]]:
        """All queues by pool, without their counts; and the pools that did not answer."""
        listed = (await self._list_all()).pools
        found = [(pool, queue) for pool, queues in listed.items() if isinstance(queues, list) for queue in queues]
        return found, {pool: one for pool, one in listed.items() if isinstance(one, DuetimeError)}

    async def lines_of(self, places: Sequence[tuple[str, Queue]]) -> list[LiveQueue]:
        """These queues as they are now, in this order."""
        by_pool: dict[str, list[Queue]] = {}
        for pool, queue in places:
            by_pool.setdefault(pool, []).append(queue)
        lines: dict[tuple[str, Queue], LiveQueue] = {}
        for pool, queues in by_pool.items():
            store = self._pools.engine(pool).store
            counted, heads = await store.counts(queues), await store.heads(queues)
            for line in zip(queues, counted, heads, strict=True):
                lines[pool, line[0]] = LiveQueue(pool, *line)
        return [lines[place] for place in places]


def _add_up(lines: Sequence[LiveQueue], sees: Callable[[str, str], bool]) -> SnapshotSums:
    """One pass over what may be 20,000 queues, for which the API waits."""
    seen: dict[tuple[str, str], bool] = {}
    delayed = ready = leased = dead = queues = late_ms = 0
    latest: LiveQueue | None = None
    busy: list[tuple[int, int]] = []
    for place, line in enumerate(lines):
        space, counts = (line.pool, line.queue.namespace), line.counts
        if space not in seen:
            seen[space] = sees(*space)
        if not seen[space]:
            continue
        queues += 1
        delayed += counts.delayed
        ready += counts.ready
        leased += counts.leased
        dead += counts.dead
        if latest is None or (counts.ready and line.late_ms > late_ms):
            latest, late_ms = line, line.late_ms
        if not line.queue.name.startswith(INTERNAL):
            busy.append((counts.ready + counts.leased + counts.dead, -place))
    busiest = [lines[-place] for _, place in heapq.nlargest(BUSIEST, busy)]
    return SnapshotSums(Counts(delayed, ready, leased, dead), queues, latest, busiest)


def _no_answer(pool: str) -> NoAnswer:
    return NoAnswer(f"the pool {pool!r} did not answer in time")


def _shown(line: LiveQueue) -> tuple[int, int, int, int, int]:
    counts = line.counts
    return counts.delayed, counts.ready, counts.leased, counts.dead, line.late_ms // 1000
