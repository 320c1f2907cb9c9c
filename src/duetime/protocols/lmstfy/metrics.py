"""lmstfy's metric names, so that its public dashboard works: the numbers that this protocol can count itself.

Labels are never removed from memory, so only real names become labels: a namespace is named once its token was
accepted, a token by its label, and queues and namespaces beyond the first thousand are counted together as "other".
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from duetime.metrics.meters import OTHER, PER_QUEUE, CounterMeter, Labels, Meters, Spread
from duetime.metrics.store_metrics import QueueLevels, StoreLevels
from duetime.model.names import Queue

HTTP = "infra_lmstfy_http_"
REDIS = "infra_lmstfy_redis_"
METHODS = frozenset({"GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH"})
LATENCY_MS = tuple(15 * 2.5**power for power in range(9))
ELAPSED_MS = tuple(15 * 3.5**power for power in range(7))

PER_POOL = ("pool",)
PER_ROUTE = ("pool", "namespace", "api", "method")

PARTS: Mapping[str, Sequence[str]] = {
    "direct": ("publish_jobs", "pool_add_jobs", "queue_direct_push_jobs"),
    "delayed": ("publish_jobs", "pool_add_jobs", "timer_add_jobs"),
    "consumed": ("consume_jobs", "consume_multi_jobs", "pool_get_jobs", "queue_pop_jobs"),
    "deleted": ("pool_delete_jobs",),
    "respawned": ("deadletter_respawn_jobs",),
}
"""Events of a pool, each with lmstfy's counters of it: lmstfy counts one event in several of its parts."""


class QueueSeries(NamedTuple):
    """The counters of one queue."""

    published: CounterMeter
    consumed: CounterMeter
    elapsed: Spread
    ack_elapsed: Spread


class Metrics:
    """Counts for one process."""

    def __init__(self, meters: Meters) -> None:
        def about(name: str) -> str:
            return f"lmstfy: {name}"

        def per_queue(name: str) -> tuple[str, str, Sequence[str]]:
            return REDIS + name, about(name), PER_QUEUE

        self._names = meters.names
        self._latency = meters.spread(
            HTTP + "latency_milliseconds", about("latency_milliseconds"), PER_ROUTE, edges=LATENCY_MS
        )
        self._codes = meters.counter(HTTP + "http_codes", about("http_codes"), (*PER_ROUTE, "code"))
        self._limited = meters.counter(
            HTTP + "rate_limit", about("rate_limit"), ("pool", "namespace", "token", "action")
        )
        self._published = meters.counter(*per_queue("publish_queue_jobs"))
        self._consumed = meters.counter(*per_queue("consume_queue_jobs"))
        self._elapsed = meters.spread(*per_queue("job_elapsed_ms"), edges=ELAPSED_MS)
        self._ack_elapsed = meters.spread(*per_queue("job_ack_elapsed_ms"), edges=ELAPSED_MS)
        self._counters = {
            name: meters.counter(REDIS + name, about(name), PER_POOL) for names in PARTS.values() for name in names
        }
        self._pools: dict[str, dict[str, int]] = {}
        self._routes: dict[tuple[Labels, int], tuple[CounterMeter, Spread]] = {}
        self._queues: dict[tuple[str, Queue], QueueSeries] = {}
        meters.before_snapshot(self._add_up)

    # --- what the application reports

    def finished(self, route: Labels, status: int, elapsed_s: float) -> None:
        """`route` is pool, namespace, api and method."""
        series = self._routes.get((route, status))
        if series is None:
            pool, namespace, *rest = route
            shown = (pool, self._names.shown_namespace(namespace), *rest)
            series = self._codes.of(*shown, str(status)), self._latency.of(*shown)
            if shown == route:
                self._routes[route, status] = series
        series[0].value += 1
        if status < 300:
            series[1].observe(elapsed_s * 1000)

    def limited(self, pool: str, namespace: str, label: str, action: str) -> None:
        self._limited.of(pool, namespace, label, action).value += 1

    def published(self, pool: str, queue: Queue, jobs: int, *, delayed: bool) -> None:
        self._pool(pool)["delayed" if delayed else "direct"] += jobs
        self._series(pool, queue).published.value += jobs

    def consumed(self, pool: str, queue: Queue, elapsed_ms: int) -> None:
        self._pool(pool)["consumed"] += 1
        series = self._series(pool, queue)
        series.consumed.value += 1
        series.elapsed.observe(elapsed_ms)

    def acknowledged(self, pool: str, queue: Queue, elapsed_ms: int, *, delivered: bool) -> None:
        self._pool(pool)["deleted"] += 1
        if delivered:
            self._series(pool, queue).ack_elapsed.observe(elapsed_ms)

    def respawned(self, pool: str, jobs: int) -> None:
        self._pool(pool)["respawned"] += jobs

    def _series(self, pool: str, queue: Queue) -> QueueSeries:
        """The counters of a queue, kept because a lookup by labels costs more than the counting."""
        known = self._queues.get((pool, queue))
        if known is None:
            labels = self._names.shown(pool, *queue)
            known = QueueSeries(
                self._published.of(*labels),
                self._consumed.of(*labels),
                self._elapsed.of(*labels),
                self._ack_elapsed.of(*labels),
            )
            if labels[1:] != (OTHER, OTHER):
                self._queues[pool, queue] = known
        return known

    def _pool(self, pool: str) -> dict[str, int]:
        return self._pools.get(pool) or self._pools.setdefault(pool, dict.fromkeys(PARTS, 0))

    def _add_up(self) -> None:
        """Adds the counts to the pool's counters, once per snapshot instead of once per job."""
        for pool, counts in self._pools.items():
            for name, counter in self._counters.items():
                counter.of(pool).value = sum(counts[part] for part, names in PARTS.items() if name in names)


class LmstfyLevels:
    """lmstfy's three sizes, from the queue levels that were read for all metrics."""

    def __init__(self, levels: StoreLevels) -> None:
        meters = levels.meters
        self._timer = meters.level(REDIS + "timer_sizes", "lmstfy: timer_sizes", PER_POOL, shared=True)
        self._ready = meters.level(REDIS + "queue_sizes", "lmstfy: queue_sizes", PER_QUEUE, shared=True)
        self._dead = meters.level(REDIS + "deadletter_sizes", "lmstfy: deadletter_sizes", PER_QUEUE, shared=True)
        levels.follow(self)

    def clear(self) -> None:
        for family in (self._timer, self._ready, self._dead):
            family.clear()

    def pool(self, name: str, levels: Sequence[QueueLevels]) -> None:
        timer = self._timer.of(name)
        for shown, counts, _ in levels:
            timer.value += counts.delayed + counts.leased
            self._ready.of(*shown).value += counts.ready
            self._dead.of(*shown).value += counts.dead
