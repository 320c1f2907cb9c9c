"""lmstfy's metric names, so that its public dashboard works: what this door can count by itself.

Labels cost memory for ever, so they come from what is known to be real: a namespace is named once its token was
accepted, a token by its label, and beyond MAX_QUEUES queues the rest are counted together as "(others)". Gauges are
read when somebody asks for them, at most every five seconds.
"""

import asyncio
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Gauge, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from duetime.api.lmstfy.tallies import Collected, Labels, Spread, Spreads, Tallies, Tally
from duetime.engine.pools import Pools
from duetime.errors import DuetimeError
from duetime.names import Queue

MAX_QUEUES = 1_000
MAX_GAUGES = 10_000
OTHERS = "(others)"
GAUGES_EVERY_S = 5.0
GAUGES_WITHIN_S = 3.0
"""A pool that does not answer for its sizes must not hold up the others' numbers."""

HTTP = "infra_lmstfy_http_"
REDIS = "infra_lmstfy_redis_"
METHODS = frozenset({"GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH"})
LATENCY_MS = tuple(15 * 2.5**power for power in range(9))
ELAPSED_MS = tuple(15 * 3.5**power for power in range(7))

PER_POOL = ("pool",)
PER_QUEUE = ("pool", "namespace", "queue")
PER_ROUTE = ("pool", "namespace", "api", "method")

# The client library writes counters as `name_total`; lmstfy's have their bare names.
_BARE = re.compile(rb"^((?:# (?:HELP|TYPE) )?infra_lmstfy_\w+?)_total(?=[ {])", re.MULTILINE)


@dataclass
class PoolTotals:
    """What one pool did; lmstfy's twelve counters per pool are these few, seen from its several parts."""

    direct: int = 0
    delayed: int = 0
    consumed: int = 0
    deleted: int = 0
    respawned: int = 0

    def counters(self) -> Mapping[str, int]:
        published = self.direct + self.delayed
        return {
            "publish_jobs": published,
            "pool_add_jobs": published,
            "timer_add_jobs": self.delayed,
            "queue_direct_push_jobs": self.direct,
            "consume_jobs": self.consumed,
            "consume_multi_jobs": self.consumed,
            "pool_get_jobs": self.consumed,
            "queue_pop_jobs": self.consumed,
            "pool_delete_jobs": self.deleted,
            "deadletter_respawn_jobs": self.respawned,
        }


class QueueSeries(NamedTuple):
    """What is counted per queue."""

    published: Tally
    consumed: Tally
    elapsed: Spread
    ack_elapsed: Spread


class _PoolCounters(Collector):
    """Turns totals into metrics when they are asked for."""

    def __init__(self, totals: Mapping[str, PoolTotals]) -> None:
        self._totals = totals

    def collect(self) -> Iterable[Metric]:
        by_pool = {pool: totals.counters() for pool, totals in self._totals.items()}
        for name in PoolTotals().counters():
            metric = CounterMetricFamily(REDIS + name, f"lmstfy: {REDIS}{name}", labels=PER_POOL)
            for pool, counters in by_pool.items():
                metric.add_metric((pool,), counters[name])
            yield metric


class Metrics:
    """Belongs to one process; `registry` may hold the metrics of others too."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._latency = Spreads(HTTP + "latency_milliseconds", PER_ROUTE, LATENCY_MS)
        self._codes = Tallies(HTTP + "http_codes", (*PER_ROUTE, "code"))
        self._limited = Tallies(HTTP + "rate_limit", ("pool", "namespace", "token", "action"))
        self._published = Tallies(REDIS + "publish_queue_jobs", PER_QUEUE)
        self._consumed = Tallies(REDIS + "consume_queue_jobs", PER_QUEUE)
        self._elapsed = Spreads(REDIS + "job_elapsed_ms", PER_QUEUE, ELAPSED_MS)
        self._ack_elapsed = Spreads(REDIS + "job_ack_elapsed_ms", PER_QUEUE, ELAPSED_MS)
        per_route = (self._latency, self._codes, self._limited)
        per_queue = (self._published, self._consumed, self._elapsed, self._ack_elapsed)
        self.registry.register(Collected([*per_route, *per_queue]))
        self._timer_sizes = self._gauge("timer_sizes", PER_POOL)
        self._queue_sizes = self._gauge("queue_sizes", PER_QUEUE)
        self._dead_sizes = self._gauge("deadletter_sizes", PER_QUEUE)
        self._totals: dict[str, PoolTotals] = {}
        self.registry.register(_PoolCounters(self._totals))
        self._routes: dict[tuple[Labels, int], tuple[Tally, Spread]] = {}
        self._queues: dict[tuple[str, Queue], QueueSeries] = {}
        self._read_at = -GAUGES_EVERY_S
        self._reading = asyncio.Lock()

    def _gauge(self, name: str, labels: Sequence[str]) -> Gauge:
        return Gauge(REDIS + name, f"lmstfy: {REDIS}{name}", labels, registry=self.registry)

    # --- what the door reports

    def finished(self, route: Labels, status: int, elapsed_s: float) -> None:
        """`route` is pool, namespace, api and method."""
        series = self._routes.get((route, status))
        if series is None:
            series = self._routes[route, status] = self._codes.of(*route, str(status)), self._latency.of(*route)
        series[0].value += 1
        if status < 300:
            series[1].observe(elapsed_s * 1000)

    def limited(self, pool: str, namespace: str, label: str, action: str) -> None:
        self._limited.of(pool, namespace, label, action).value += 1

    def published(self, pool: str, queue: Queue, jobs: int, *, delayed: bool) -> None:
        totals = self._pool_totals(pool)
        if delayed:
            totals.delayed += jobs
        else:
            totals.direct += jobs
        self._series(pool, queue).published.value += jobs

    def consumed(self, pool: str, queue: Queue, elapsed_ms: int) -> None:
        self._pool_totals(pool).consumed += 1
        series = self._series(pool, queue)
        series.consumed.value += 1
        series.elapsed.observe(elapsed_ms)

    def acknowledged(self, pool: str, queue: Queue, elapsed_ms: int, *, delivered: bool) -> None:
        self._pool_totals(pool).deleted += 1
        if delivered:
            self._series(pool, queue).ack_elapsed.observe(elapsed_ms)

    def respawned(self, pool: str, jobs: int) -> None:
        self._pool_totals(pool).respawned += jobs

    def _series(self, pool: str, queue: Queue) -> QueueSeries:
        """Looked up by labels once; a lookup costs more than the counting."""
        known = self._queues.get((pool, queue))
        if known is None:
            if len(self._queues) >= MAX_QUEUES and queue.name != OTHERS:
                return self._series(pool, Queue(queue.namespace, OTHERS))
            labels = (pool, queue.namespace, queue.name)
            known = self._queues[pool, queue] = QueueSeries(
                self._published.of(*labels),
                self._consumed.of(*labels),
                self._elapsed.of(*labels),
                self._ack_elapsed.of(*labels),
            )
        return known

    def _pool_totals(self, pool: str) -> "PoolTotals":
        return self._totals.get(pool) or self._totals.setdefault(pool, PoolTotals())

    # --- what is read

    async def text(self, pools: Pools) -> bytes:
        """Everything in Prometheus's text format."""
        async with self._reading:
            if time.monotonic() - self._read_at >= GAUGES_EVERY_S:
                await self._read_gauges(pools)
                self._read_at = time.monotonic()
        return _BARE.sub(rb"\1", generate_latest(self.registry))

    def forget_gauges(self) -> None:
        """Read them anew for the next who asks."""
        self._read_at = -GAUGES_EVERY_S

    async def _read_gauges(self, pools: Pools) -> None:
        for gauge in (self._timer_sizes, self._queue_sizes, self._dead_sizes):
            gauge.clear()
        await asyncio.gather(*(self._read_pool(pools, name) for name in pools.names))

    async def _read_pool(self, pools: Pools, pool: str) -> None:
        try:
            async with asyncio.timeout(GAUGES_WITHIN_S):
                store = pools.engine(pool).store
                queues = await store.queues()
                timed = 0
                for at in range(0, min(len(queues), MAX_GAUGES), 500):
                    chunk = queues[at : at + 500]
                    for queue, counts in zip(chunk, await store.counts(chunk), strict=True):
                        timed += counts.delayed + counts.leased
                        self._queue_sizes.labels(pool, *queue).set(counts.ready)
                        self._dead_sizes.labels(pool, *queue).set(counts.dead)
        except (DuetimeError, TimeoutError):
            return  # no numbers are better than old ones
        self._timer_sizes.labels(pool).set(timed)
