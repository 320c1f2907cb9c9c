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

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from duetime.engine.pools import Pools
from duetime.errors import DuetimeError
from duetime.names import Queue

MAX_QUEUES = 10_000
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

# The client library writes counters as `name_total` and adds a `name_created`; lmstfy's have their bare names.
_BARE = re.compile(rb"^((?:# (?:HELP|TYPE) )?infra_lmstfy_\w+?)_total(?=[ {])", re.MULTILINE)
_CREATED = re.compile(rb"^(?:# (?:HELP|TYPE) )?infra_lmstfy_\w+_created[ {].*\n", re.MULTILINE)


class Seen(NamedTuple):
    """A finished request, as it is counted."""

    pool: str
    namespace: str
    api: str
    method: str


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
        self._latency = self._histogram(HTTP + "latency_milliseconds", PER_ROUTE, LATENCY_MS)
        self._codes = self._counter(HTTP + "http_codes", (*PER_ROUTE, "code"))
        self._limited = self._counter(HTTP + "rate_limit", ("pool", "namespace", "token", "action"))
        self._published = self._counter(REDIS + "publish_queue_jobs", PER_QUEUE)
        self._consumed = self._counter(REDIS + "consume_queue_jobs", PER_QUEUE)
        self._elapsed = self._histogram(REDIS + "job_elapsed_ms", PER_QUEUE, ELAPSED_MS)
        self._ack_elapsed = self._histogram(REDIS + "job_ack_elapsed_ms", PER_QUEUE, ELAPSED_MS)
        self._timer_sizes = self._gauge("timer_sizes", PER_POOL)
        self._queue_sizes = self._gauge("queue_sizes", PER_QUEUE)
        self._dead_sizes = self._gauge("deadletter_sizes", PER_QUEUE)
        self._totals: dict[str, PoolTotals] = {}
        self.registry.register(_PoolCounters(self._totals))
        self._children: dict[tuple[object, ...], Counter | Histogram] = {}
        self._queues: set[tuple[str, Queue]] = set()
        self._read_at = -GAUGES_EVERY_S
        self._reading = asyncio.Lock()

    def _counter(self, name: str, labels: Sequence[str]) -> Counter:
        return Counter(name, f"lmstfy: {name}", labels, registry=self.registry)

    def _histogram(self, name: str, labels: Sequence[str], buckets: Sequence[float]) -> Histogram:
        return Histogram(name, f"lmstfy: {name}", labels, buckets=buckets, registry=self.registry)

    def _gauge(self, name: str, labels: Sequence[str]) -> Gauge:
        return Gauge(REDIS + name, f"lmstfy: {REDIS}{name}", labels, registry=self.registry)

    # --- what the door reports

    def finished(self, seen: Seen, status: int, elapsed_s: float) -> None:
        seen = seen._replace(method=seen.method if seen.method in METHODS else "")
        self._count(self._codes, (*seen, str(status)))
        if status < 300:
            self._observe(self._latency, seen, elapsed_s * 1000)

    def limited(self, pool: str, namespace: str, label: str, action: str) -> None:
        self._count(self._limited, (pool, namespace, label, action))

    def published(self, pool: str, queue: Queue, jobs: int, *, delayed: bool) -> None:
        totals = self._pool_totals(pool)
        if delayed:
            totals.delayed += jobs
        else:
            totals.direct += jobs
        self._count(self._published, self._labels(pool, queue), jobs)

    def consumed(self, pool: str, queue: Queue, elapsed_ms: int) -> None:
        self._pool_totals(pool).consumed += 1
        labels = self._labels(pool, queue)
        self._count(self._consumed, labels)
        self._observe(self._elapsed, labels, elapsed_ms)

    def acknowledged(self, pool: str, queue: Queue, elapsed_ms: int, *, delivered: bool) -> None:
        self._pool_totals(pool).deleted += 1
        if delivered:
            self._observe(self._ack_elapsed, self._labels(pool, queue), elapsed_ms)

    def respawned(self, pool: str, jobs: int) -> None:
        self._pool_totals(pool).respawned += jobs

    def _pool_totals(self, pool: str) -> "PoolTotals":
        return self._totals.get(pool) or self._totals.setdefault(pool, PoolTotals())

    # --- what is read

    async def text(self, pools: Pools) -> bytes:
        """Everything in Prometheus's text format."""
        async with self._reading:
            if time.monotonic() - self._read_at >= GAUGES_EVERY_S:
                await self._read_gauges(pools)
                self._read_at = time.monotonic()
        return _CREATED.sub(b"", _BARE.sub(rb"\1", generate_latest(self.registry)))

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
                for at in range(0, min(len(queues), MAX_QUEUES), 500):
                    chunk = queues[at : at + 500]
                    for queue, counts in zip(chunk, await store.counts(chunk), strict=True):
                        timed += counts.delayed + counts.leased
                        self._queue_sizes.labels(pool, *queue).set(counts.ready)
                        self._dead_sizes.labels(pool, *queue).set(counts.dead)
        except (DuetimeError, TimeoutError):
            return  # no numbers are better than old ones
        self._timer_sizes.labels(pool).set(timed)

    # --- counting without looking up labels each time

    def _count(self, counter: Counter, labels: Iterable[str], by: int = 1) -> None:
        key = (counter, *labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = counter.labels(*key[1:])
        assert isinstance(child, Counter)
        child.inc(by)

    def _observe(self, histogram: Histogram, labels: Iterable[str], value: float) -> None:
        key = (histogram, *labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = histogram.labels(*key[1:])
        assert isinstance(child, Histogram)
        child.observe(value)

    def _labels(self, pool: str, queue: Queue) -> tuple[str, str, str]:
        known = (pool, queue)
        if known not in self._queues:
            if len(self._queues) >= MAX_QUEUES:
                return pool, queue.namespace, OTHERS
            self._queues.add(known)
        return pool, queue.namespace, queue.name
