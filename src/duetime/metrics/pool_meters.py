"""The metrics that a process counts for a pool and for each of its queues.

Times are in seconds. Lateness is the time from due to delivered. Wait is the time from accepted to the first delivery,
a delay included. Run is the time from a delivery to its end by ack, release or kill; it is known only if both came
through this process.
"""

from collections.abc import Iterable, Sequence

from duetime.metrics.meters import OTHER, PER_QUEUE, CounterMeter, Family, Meters, Spread
from duetime.model.errors import DuetimeError, LeaseLost
from duetime.model.job import Delivery, Event, Lease, Moved
from duetime.model.names import Queue
from duetime.stores.base import Pushed

PER_POOL = ("pool",)
PER_VERB = ("pool", "verb")

LATENESS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5, 30, 300)
WAIT_S = (0.01, 0.1, 1, 10, 60, 600, 3_600, 21_600, 86_400, 604_800)
RUN_S = (0.005, 0.02, 0.1, 0.5, 1, 5, 15, 60, 300, 1_800)
CALL_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
BATCH_REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

MAX_RUNNING = 10_000
"""How many deliveries of a pool are timed at once; beyond that the oldest is forgotten."""

COUNTERS = {
    "pushed": "Jobs accepted by a push, replacements included.",
    "kept": "Pushed jobs whose id was there already.",
    "delivered": "Deliveries to consumers.",
    "acked": "Jobs finished.",
    "released": "Deliveries given back by consumers, to be tried again.",
    "given_back": "Deliveries undone because they did not reach their consumer.",
    "lapsed": "Leases that ran out and made the job ready again.",
    "dead": "Jobs that ended as dead letters.",
    "expired": "Jobs that outlived their ttl.",
    "cancelled": "Jobs removed by id before they were done.",
    "deleted": "Dead letters removed by id.",
    "rescheduled": "Jobs whose due time was changed.",
    "respawned": "Dead letters brought back.",
    "purged": "Jobs removed with their queue or state.",
}
EVENTS = {
    Event.ACCEPTED: "pushed",
    Event.REPLACED: "pushed",
    Event.KEPT: "kept",
    Event.ACKED: "acked",
    Event.RELEASED: "released",
    Event.GIVEN_BACK: "given_back",
    Event.LEASE_EXPIRED: "lapsed",
    Event.DEAD: "dead",
    Event.EXPIRED: "expired",
    Event.CANCELLED: "cancelled",
    Event.DELETED: "deleted",
    Event.RESCHEDULED: "rescheduled",
    Event.RESPAWNED: "respawned",
}


class QueueMeters:
    """The meters of one queue, or of all queues that are not shown by name together."""

    __slots__ = ("by_event", "delivered", "expired", "lateness", "purged", "pushed", "run", "wait")

    def __init__(self, families: "Families", labels: tuple[str, str, str]) -> None:
        counters = {name: family.of(*labels) for name, family in families.counters.items()}
        self.by_event = {event: counters[name] for event, name in EVENTS.items()}
        self.pushed = counters["pushed"]
        self.delivered = counters["delivered"]
        self.expired = counters["expired"]
        self.purged = counters["purged"]
        self.lateness = families.lateness.of(*labels)
        self.wait = families.wait.of(*labels)
        self.run = families.run.of(*labels)

    def moved(self, moved: Iterable[object]) -> None:
        """Count events; an answer that is no Moved (an error, None) moved nothing."""
        by_event = self.by_event
        for one in moved:
            if isinstance(one, Moved) and (counter := by_event.get(one.event)) is not None:
                counter.value += 1

    def push(self, pushed: Pushed) -> None:
        jobs = pushed.jobs
        plain = [None if one.reason else one.event for one in jobs].count(Event.ACCEPTED)
        self.pushed.value += plain
        if plain < len(jobs):
            self._push_others([one for one in jobs if one.reason or one.event is not Event.ACCEPTED])

    def _push_others(self, jobs: Sequence[Moved]) -> None:
        self.moved(jobs)
        # A job that was accepted with a reason took the place of an expired job.
        self.expired.value += sum(one.event is Event.ACCEPTED for one in jobs)

    def deliver(self, deliveries: Sequence[Delivery], now: int) -> None:
        self.delivered.value += len(deliveries)
        self.lateness.observe_all([(now - delivery.due_at) / 1000 for delivery in deliveries])
        first = [(now - one.lease.born) / 1000 for one in deliveries if one.lease.attempt == 1]
        self.wait.observe_all(first)


class Families:
    """The metrics that have a series per queue."""

    def __init__(self, meters: Meters) -> None:
        self.counters: dict[str, Family[CounterMeter]] = {
            name: meters.counter(f"duetime_jobs_{name}_total", about, PER_QUEUE) for name, about in COUNTERS.items()
        }
        self.lateness = meters.spread(
            "duetime_job_lateness_seconds", "From due to delivered.", PER_QUEUE, edges=LATENESS_S
        )
        self.wait = meters.spread(
            "duetime_job_wait_seconds",
            "From accepted to the first delivery, a delay included.",
            PER_QUEUE,
            edges=WAIT_S,
        )
        self.run = meters.spread(
            "duetime_job_run_seconds", "From a delivery to its ack, release or kill.", PER_QUEUE, edges=RUN_S
        )


class PoolMeters:
    """The meters of one pool. They outlive its engines: when the pool is opened again, the counters go on."""

    def __init__(self, meters: Meters, pool: str) -> None:
        self._pool = pool
        self._names = meters.names
        self._families = Families(meters)
        self._queues: dict[Queue, QueueMeters] = {}
        self._other: QueueMeters | None = None
        self._started: dict[str, tuple[Lease, float]] = {}
        self._calls = meters.spread(
            "duetime_store_call_seconds", "How long the store took for a call.", PER_VERB, edges=CALL_S
        )
        self._errors = meters.counter(
            "duetime_store_call_errors_total", "Calls that the store could not serve.", (*PER_VERB, "code")
        )
        self._batches = meters.spread(
            "duetime_batch_requests", "Requests that shared one store call.", PER_VERB, edges=BATCH_REQUESTS
        )
        self.reaper_passes = meters.counter(
            "duetime_reaper_passes_total", "Rounds of the reaper that the store answered.", PER_POOL
        ).of(pool)
        self._reaped_at = meters.level(
            "duetime_reaper_last_pass_timestamp_seconds", "When the reaper last came round.", PER_POOL, shared=True
        )
        self.parked = meters.level("duetime_parked_polls", "Consumers that wait for a job.", PER_POOL).of(pool)

    def queue(self, queue: Queue) -> QueueMeters:
        known = self._queues.get(queue)
        if known is not None:
            return known
        labels = self._names.shown(self._pool, *queue)
        if labels[1:] == (OTHER, OTHER):
            self._other = self._other or QueueMeters(self._families, labels)
            return self._other
        known = self._queues[queue] = QueueMeters(self._families, labels)
        return known

    def calls(self, verb: str) -> Spread:
        return self._calls.of(self._pool, verb)

    def batches(self, verb: str) -> Spread:
        """The spread of how many requests shared one store call, for a verb with group commit."""
        return self._batches.of(self._pool, verb)

    def failed_call(self, verb: str, error: DuetimeError) -> None:
        """A lost lease does not count as an error, because the store did serve that call."""
        if not isinstance(error, LeaseLost):
            self._errors.of(self._pool, verb, error.code).value += 1

    def reaped(self, now: int) -> None:
        self.reaper_passes.value += 1
        self._reaped_at.of(self._pool).value = now / 1000

    def started(self, deliveries: Iterable[Delivery], at_s: float) -> None:
        started = self._started
        started.update({one.lease.id: (one.lease, at_s) for one in deliveries})
        while len(started) > MAX_RUNNING:
            del started[next(iter(started))]

    def running_s(self, lease: Lease, at_s: float) -> float | None:
        """How long ago this process delivered the job; None if another one did, or it has been settled."""
        found = self._started.get(lease.id)
        return at_s - found[1] if found is not None and found[0] == lease else None

    def ended(self, lease: Lease, at_s: float) -> None:
        found = self._started.pop(lease.id, None)
        if found is not None and found[0] == lease:
            self.queue(lease.queue).run.observe(at_s - found[1])

    def forget(self, lease: Lease) -> None:
        """Stop timing a delivery that was given back, because it was not run."""
        self._started.pop(lease.id, None)
