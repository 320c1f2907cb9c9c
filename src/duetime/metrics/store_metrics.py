"""Metrics that are read from the stores when the server is scraped: jobs per state, and exact totals of jobs.

Only the process that is scraped reads them, because all processes use the same stores. A pool that does not answer in
time shows no numbers, which is better than old ones.

The totals replace what the processes counted. A process counts what passes through it from its start to its end. The
totals of a store are exact, outlive every process, and are the same whichever server reads them; so they are shown for
every queue that is shown by name. Queues that are shown together as `other` come and go, and a sum of their totals
would go backwards: for these the counts of the server's own processes are shown.
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from duetime.engine.pools import Pools
from duetime.metrics.meters import OTHER, PER_QUEUE, Labels, Meters, Names, Snapshot
from duetime.model.errors import DuetimeError
from duetime.model.job import Counts, Totals, chunks
from duetime.model.names import Queue
from duetime.stores.base import Store
from duetime.wire.payload import UNKNOWN_TASKS, counter_name

READ_EVERY_S = 5.0
WITHIN_S = 3.0
MAX_READ = 10_000
"""How many queues of a pool are read; the others of a larger pool are not shown."""
MAX_NAMESPACES = 100
"""How many namespaces of a pool are asked for unknown tasks."""
STEP = 100
"""How many queues one call asks about; between two calls the store can serve other requests."""

TOTALS_BY_COUNTER = {
    "duetime_jobs_pushed_total": "accepted",
    "duetime_jobs_delivered_total": "delivered",
    "duetime_jobs_acked_total": "acked",
    "duetime_jobs_released_total": "released",
    "duetime_jobs_lapsed_total": "lapsed",
    "duetime_jobs_dead_total": "dead",
    "duetime_jobs_cancelled_total": "cancelled",
    "duetime_jobs_expired_total": "expired",
    "duetime_jobs_respawned_total": "respawned",
}

Shown = tuple[str, str, str]


class QueueLevels(NamedTuple):
    """The numbers of one queue. `shown` are its values of PER_QUEUE, which several queues may have in common."""

    shown: Shown
    counts: Counts
    oldest_s: float


class PoolLevels(NamedTuple):
    """The numbers of one pool. `unknown` has the namespaces whose workers met unknown tasks lately."""

    queues: list[QueueLevels]
    unknown: dict[str, int]


class LevelsFollower(Protocol):
    """Gets each reading, too, and shows it under other names."""

    def clear(self) -> None: ...

    def pool(self, name: str, levels: Sequence[QueueLevels]) -> None: ...


class StoreLevels:
    """Keeps the last reading. Belongs to one event loop."""

    def __init__(self, pools: Pools, names: Names) -> None:
        self.meters = Meters()
        self._pools = pools
        self._names = names
        self._jobs = self.meters.level("duetime_jobs", "Jobs by state.", (*PER_QUEUE, "state"), shared=True)
        self._cold = self.meters.level(
            "duetime_cold_jobs",
            "Jobs in the cold tier of a tiered pool, of those in duetime_jobs.",
            PER_QUEUE,
            shared=True,
        )
        self._oldest = self.meters.level(
            "duetime_oldest_ready_seconds", "How long ago the first job in line fell due.", PER_QUEUE, shared=True
        )
        self._up = self.meters.level("duetime_pool_up", "1 while the pool's store answers.", ("pool",), shared=True)
        self._unknown = self.meters.level(
            "duetime_unknown_task_deliveries",
            "Deliveries in the last ten minutes to workers that do not know the task.",
            ("pool", "namespace"),
            shared=True,
        )
        self._followers: list[LevelsFollower] = []
        self.shown: set[Shown] = set()
        """The labels of the queues in the last reading."""
        self._reading = asyncio.Lock()
        self._read_at = -READ_EVERY_S

    def follow(self, follower: LevelsFollower) -> None:
        self._followers.append(follower)

    def forget(self) -> None:
        """Let the next `read` ask the stores again."""
        self._read_at = -READ_EVERY_S

    async def read(self) -> Snapshot:
        async with self._reading:
            if time.monotonic() - self._read_at >= READ_EVERY_S:
                found = await asyncio.gather(*(self._read_pool(name) for name in self._pools.names))
                self._show(dict(zip(self._pools.names, found, strict=True)))
                self._read_at = time.monotonic()
        return self.meters.snapshot()

    async def _read_pool(self, pool: str) -> PoolLevels | None:
        try:
            async with asyncio.timeout(WITHIN_S):
                return await self._read_store(pool, self._pools.engine(pool).store)
        except (DuetimeError, TimeoutError):
            return None

    async def _read_store(self, pool: str, store: Store) -> PoolLevels:
        queues = (await store.queues())[:MAX_READ]
        levels: list[QueueLevels] = []
        for chunk in chunks(queues):
            counted, heads = await store.counts(chunk), await store.heads(chunk)
            for queue, counts, head in zip(chunk, counted, heads, strict=True):
                oldest_s = max(counts.now - head, 0) / 1000 if head is not None and counts.ready else 0.0
                levels.append(QueueLevels(self._names.shown(pool, *queue), counts, oldest_s))
        namespaces = sorted({queue.namespace for queue in queues})[:MAX_NAMESPACES]
        counters = [await store.registry.increment(counter_name(one, UNKNOWN_TASKS), 0) for one in namespaces]
        unknown = {name: counter.value for name, counter in zip(namespaces, counters, strict=True) if counter.value}
        return PoolLevels(levels, unknown)

    def _show(self, pools: dict[str, PoolLevels | None]) -> None:
        for family in (self._jobs, self._cold, self._oldest, self._up, self._unknown, *self._followers):
            family.clear()
        self.shown = {level.shown for levels in pools.values() if levels for level in levels.queues}
        for pool, levels in pools.items():
            self._up.of(pool).value = levels is not None
            if levels is not None:
                self._show_pool(pool, levels.queues)
                for namespace, deliveries in levels.unknown.items():
                    self._unknown.of(pool, self._names.shown_namespace(namespace)).value += deliveries

    def _show_pool(self, pool: str, levels: Sequence[QueueLevels]) -> None:
        for level in levels:
            for state in ("delayed", "ready", "leased", "dead"):
                self._jobs.of(*level.shown, state).value += getattr(level.counts, state)
            if level.counts.damaged:
                self._jobs.of(*level.shown, "damaged").value += level.counts.damaged
            if level.counts.cold:
                self._cold.of(*level.shown).value += level.counts.cold
            oldest = self._oldest.of(*level.shown)
            oldest.value = max(oldest.value, level.oldest_s)
        for follower in self._followers:
            follower.pool(pool, levels)


class StoreTotals:
    """Reads the totals of the queues that are shown by name."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    async def put_into(self, counted: Snapshot, queues: Iterable[Labels]) -> None:
        """Replace the counters in `counted`, which is the sum of all processes. `queues` are the labels of further
        queues to show, of which no process may have counted anything; those that are shown as `other` are left out.
        """
        readings = [one for one in counted.readings if one.description.name in TOTALS_BY_COUNTER]
        named = {labels for reading in readings for labels in reading.series if _is_named(labels)}
        named |= set(filter(_is_named, queues))
        pools = {pool: [labels for labels in named if labels[0] == pool] for pool in self._pools.names}
        found = await asyncio.gather(*(self._read(pool, queues) for pool, queues in pools.items()))
        totals = {labels: one for answer in found for labels, one in answer.items()}
        for reading in readings:
            field = TOTALS_BY_COUNTER[reading.description.name]
            reading.series = {labels: value for labels, value in reading.series.items() if not _is_named(labels)}
            reading.series |= {labels: [getattr(one, field)] for labels, one in totals.items()}

    async def _read(self, pool: str, queues: Collection[Labels]) -> Mapping[Labels, Totals]:
        found: dict[Labels, Totals] = {}
        try:
            async with asyncio.timeout(WITHIN_S):
                store = self._pools.engine(pool).store
                for some in chunks(list(queues), STEP):
                    answers = await store.totals([Queue(namespace, name) for _, namespace, name in some])
                    found |= {labels: one.running for labels, one in zip(some, answers, strict=True)}
        except (DuetimeError, TimeoutError):
            return {}
        return found


def _is_named(labels: Labels) -> bool:
    return labels[1:] != (OTHER, OTHER)
