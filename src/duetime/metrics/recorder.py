"""Records the metrics of an engine: moves of jobs, requests per store call, and the time of store calls.

The recorder times the store calls that the engine records. `TimedStore` times all others: extending leases, reading,
changing rules. Neither changes anything; a call costs one reading of the clock before and one after, and a few
additions per job.

Times are in seconds. Lateness is the time from due to delivered. Wait is the time from accepted to the first delivery,
a delay included. Run is the time from a delivery to its end by ack, release or kill; it is known only if both came
through this process.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

from duetime.engine.recorder import Recorder, StoreCall
from duetime.metrics.meters import OTHER, PER_QUEUE, CounterMeter, Family, Meters, Names, Spread
from duetime.model.errors import DuetimeError, LeaseLost
from duetime.model.job import Delivery, Event, Lease, Moved
from duetime.model.names import Queue
from duetime.stores.base import Purged, Pushed, Reaped, Reserved, Store
from duetime.stores.finishes import Finished
from duetime.stores.forwarding import ForwardingStore
from duetime.wire.payload import task_of

P = ParamSpec("P")
T = TypeVar("T")

NO_CALLS = ("registry", "one_job", "duty", "wakeups", "close")
VERBS = tuple(name for name in vars(Store) if not name.startswith("_") and name not in NO_CALLS)
RECORDED_VERBS = (
    "push",
    "reserve",
    "ack",
    "finish",
    "results",
    "cancel",
    "release",
    "give_back",
    "kill",
    "reschedule",
    "respawn",
    "purge",
    "reap",
)
MEASURED_AS = {"ack_by_id": "cancel"}
"""Verbs of the engine that are another verb of the store."""
GROUPED_VERBS = ("push", "ack", "give_back", "finish", "results", "cancel", "reserve")

now_s = time.perf_counter

PER_POOL = ("pool",)
PER_TASK = ("pool", "namespace", "task")
PER_VERB = ("pool", "verb")

LATENESS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5, 30, 300)
WAIT_S = (0.01, 0.1, 1, 10, 60, 600, 3_600, 21_600, 86_400, 604_800)
RUN_S = (0.005, 0.02, 0.1, 0.5, 1, 5, 15, 60, 300, 1_800)
CALL_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
BATCH_REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

MAX_RUNNING = 10_000
"""How many deliveries of a pool are timed at a time. With more, the oldest is dropped."""

MAX_TASKS = 200
"""How many tasks of a pool are shown by name: the first ones that it meets."""

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

    def push(self, answers: Iterable[Pushed | DuetimeError]) -> None:
        """Count pushed jobs. Repeated answers count as nothing."""
        for answer in answers:
            if isinstance(answer, Pushed) and not answer.repeated:
                jobs = answer.jobs
                plain = [None if one.reason else one.event for one in jobs].count(Event.ACCEPTED)
                self.pushed.value += plain
                if plain < len(jobs):
                    others = [one for one in jobs if one.reason or one.event is not Event.ACCEPTED]
                    self.moved(others)
                    # A job that was accepted with a reason took the place of an expired job.
                    self.expired.value += sum(one.event is Event.ACCEPTED for one in others)

    def deliver(self, deliveries: Sequence[Delivery], now: int) -> None:
        self.delivered.value += len(deliveries)
        for delivery in deliveries:
            self.lateness.observe((now - delivery.due_at) / 1000)
            if delivery.lease.attempt == 1:
                self.wait.observe((now - delivery.lease.born) / 1000)


class TaskMeters(NamedTuple):
    done: CounterMeter
    failed: CounterMeter
    run: Spread


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


class QueueMap(dict[Queue, QueueMeters]):
    """The meters of each queue of a pool, made when they are first asked for."""

    def __init__(self, names: Names, families: Families, pool: str) -> None:
        super().__init__()
        self._names, self._families, self._pool = names, families, pool
        self._other: QueueMeters | None = None

    def __missing__(self, queue: Queue) -> QueueMeters:
        labels = self._names.shown(self._pool, *queue)
        if labels[1:] == (OTHER, OTHER):
            self._other = self._other or QueueMeters(self._families, labels)
            return self._other
        self[queue] = made = QueueMeters(self._families, labels)
        return made


class PoolMeters:
    """The meters of one pool. They outlive its engines: the counters continue when the pool is opened again."""

    def __init__(self, meters: Meters, pool: str) -> None:
        self._pool = pool
        self.queues = QueueMap(meters.names, Families(meters), pool)
        self._started: dict[str, tuple[Lease, float, str]] = {}
        self._tasks: dict[tuple[str, str], TaskMeters] = {}
        self._task_runs = meters.counter(
            "duetime_task_runs_total", "Tries of a task that ended, by outcome: done or failed.", (*PER_TASK, "outcome")
        )
        self._task_run_s = meters.spread(
            "duetime_task_run_seconds",
            "From the delivery of a task to its ack, release or kill.",
            PER_TASK,
            edges=RUN_S,
        )
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
        started.update({one.lease.id: (one.lease, at_s, task_of(one.body)) for one in deliveries})
        while len(started) > MAX_RUNNING:
            del started[next(iter(started))]

    def running_s(self, lease: Lease, at_s: float) -> float | None:
        """How long ago this process delivered the job; None if another process did, or if it has ended."""
        found = self._started.get(lease.id)
        return at_s - found[1] if found is not None and found[0] == lease else None

    def ended(self, lease: Lease, event: Event, at_s: float) -> None:
        found = self._started.pop(lease.id, None)
        if found is not None and found[0] == lease:
            _, began_s, name = found
            self.queues[lease.queue].run.observe(at_s - began_s)
            if name:
                task = self._task(lease.queue.namespace, name)
                (task.done if event is Event.ACKED else task.failed).value += 1
                task.run.observe(at_s - began_s)

    def _task(self, namespace: str, name: str) -> TaskMeters:
        known = self._tasks.get((namespace, name))
        if known is None:
            if len(self._tasks) >= MAX_TASKS and name != OTHER:
                return self._task(OTHER, OTHER)
            labels = (self._pool, namespace, name)
            known = self._tasks[namespace, name] = TaskMeters(
                self._task_runs.of(*labels, "done"), self._task_runs.of(*labels, "failed"), self._task_run_s.of(*labels)
            )
        return known

    def forget(self, lease: Lease) -> None:
        """Stop timing a delivery that was given back, because it was not run."""
        self._started.pop(lease.id, None)


class TimedStore(ForwardingStore):
    """Measures the calls that no recorder sees: their time, and how many failed. The others are passed on unchanged."""

    def __init__(self, inner: Store, meters: PoolMeters) -> None:
        super().__init__(inner)
        self._meters = meters
        self.one_job, self.duty = inner.one_job, inner.duty
        self._calls = {verb: meters.calls(verb) for verb in VERBS if verb not in RECORDED_VERBS}
        for verb in RECORDED_VERBS:
            setattr(self, verb, getattr(inner, verb))

    async def _call(self, verb: str, call: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        began = now_s()
        try:
            return await call(*args, **options)
        except DuetimeError as error:
            self._meters.failed_call(verb, error)
            raise
        finally:
            self._calls[verb].observe(now_s() - began)


COUNTED_BY_ANSWER: Mapping[str, Callable[[QueueMeters, Any], None]] = {
    "push": QueueMeters.push,
    "cancel": QueueMeters.moved,
    "reschedule": QueueMeters.moved,
    "respawn": QueueMeters.moved,
}
"""Verbs of which nothing but the answers is counted."""


class MetricsRecorder(Recorder):
    """Counts what happens in a pool, per queue."""

    def __init__(self, meters: PoolMeters) -> None:
        self._meters = meters
        self._batches = {verb: meters.batches(verb) for verb in GROUPED_VERBS}
        self._calls = {verb: meters.calls(verb) for verb in RECORDED_VERBS}
        self._counting: Mapping[str, Callable[[StoreCall, Any], None]] = {
            "reserve": self._reserved,
            "ack": self._ended,
            "finish": self._finished,
            "ack_by_id": self._acked_by_id,
            "release": lambda call, moved: self._ended(call, [moved]),
            "kill": lambda call, moved: self._ended(call, [moved]),
            "give_back": self._given_back,
            "purge": self._purged,
            "reap": self._reaped,
        }

    def running_s(self, lease: Lease) -> float | None:
        """How long ago this process delivered the job; None if it does not know."""
        return self._meters.running_s(lease, now_s())

    def after(self, call: StoreCall, outcome: Any) -> Any:
        verb = MEASURED_AS.get(call.verb, call.verb)
        if call.began_s is not None:  # otherwise another recorder refused it, or it needs no store
            self._calls[verb].observe(now_s() - call.began_s)
        if batches := self._batches.get(verb):
            batches.observe(call.callers)
        if isinstance(outcome, BaseException):
            if call.began_s is not None and isinstance(outcome, DuetimeError):
                self._meters.failed_call(verb, outcome)
        elif count_answers := COUNTED_BY_ANSWER.get(call.verb):
            count_answers(self._meters.queues[call.queue], outcome)
        elif count := self._counting.get(call.verb):
            count(call, outcome)
        return outcome

    def _reserved(self, call: StoreCall, reserved: Reserved) -> None:
        for deliveries in reserved.deliveries:
            if deliveries:
                self._meters.queues[call.queue].deliver(deliveries, reserved.now)
                self._meters.started(deliveries, now_s())
        if reserved.expired:
            self._meters.queues[call.queue].moved(reserved.expired)

    def _finished(self, call: StoreCall, answers: Sequence[Finished | DuetimeError | None]) -> None:
        followed = [Pushed(one.then, one.now) for one in answers if isinstance(one, Finished) and one.then]
        self._meters.queues[call.queue].push(followed)
        ends = [answer.acked if isinstance(answer, Finished) else answer for answer in answers]
        self._ended(call, ends, [one.lease for one in call.asked])

    def _acked_by_id(self, call: StoreCall, answers: Sequence[object]) -> None:
        moved = [answer for answer in answers if isinstance(answer, Moved)]
        self._ended(call, moved, [Lease(call.queue, one.id, one.born, one.attempt) for one in moved])

    def _given_back(self, call: StoreCall, answers: Sequence[object]) -> None:
        self._meters.queues[call.queue].moved(answers)
        for one, answer in zip(call.asked, answers, strict=True):
            if isinstance(answer, Moved):
                self._meters.forget(one.lease)

    def _purged(self, call: StoreCall, purged: Purged) -> None:
        if purged.removed:
            self._meters.queues[call.queue].purged.value += purged.removed

    def _reaped(self, call: StoreCall, reaped: Reaped) -> None:
        self._meters.reaped(reaped.now)
        for queue, moved in reaped.moved.items():
            self._meters.queues[queue].moved(moved)
        for queue, pushed in reaped.pushed.items():
            self._meters.queues[queue].push([answer for _, answer in pushed])

    def _ended(self, call: StoreCall, answers: Sequence[object], leases: Sequence[Lease] | None = None) -> None:
        """`leases` are those of the call unless given."""
        self._meters.queues[call.queue].moved(answers)
        at_s, ended = now_s(), self._meters.ended
        for lease, answer in zip(call.asked if leases is None else leases, answers, strict=True):
            if isinstance(answer, Moved):
                ended(lease, answer.event, at_s)
