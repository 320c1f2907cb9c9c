"""Feeds an engine's metrics: which jobs moved, how many requests share a call, and how long the store takes.

The recorder times the steps of the engine. `TimedStore` times what is no step: extending leases, reading, changing
rules. Neither changes anything; a call costs one reading of the clock before and one after, and a few additions per
job.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from duetime.engine.recorder import Recorder, Step
from duetime.metrics.pool_meters import PoolMeters
from duetime.model.errors import DuetimeError
from duetime.model.job import Lease, Moved
from duetime.model.names import Queue
from duetime.stores.base import Purged, Pushed, Reaped, Reserved, Store
from duetime.stores.finishes import Finished
from duetime.stores.forwarding import ForwardingStore

P = ParamSpec("P")
T = TypeVar("T")

VERBS = tuple(name for name in vars(Store) if not name.startswith("_") and name not in ("registry", "wakeups", "close"))
STEPS = (
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
GROUPED_VERBS = ("push", "ack", "finish", "results", "cancel", "reserve")

now_s = time.perf_counter


class TimedStore(ForwardingStore):
    """Measures the time of the calls that are no steps, and counts those that failed. Steps pass straight through."""

    def __init__(self, inner: Store, meters: PoolMeters) -> None:
        super().__init__(inner)
        self._meters = meters
        self._calls = {verb: meters.calls(verb) for verb in VERBS if verb not in STEPS}
        for verb in STEPS:
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


class MetricsRecorder(Recorder):
    """Counts what happens in a pool, per queue."""

    def __init__(self, meters: PoolMeters) -> None:
        self._meters = meters
        self._batches = {verb: meters.batches(verb) for verb in GROUPED_VERBS}
        self._batches["ack_by_id"] = self._batches["cancel"]
        self._calls = {verb: meters.calls(verb) for verb in STEPS}
        self._calls["ack_by_id"] = self._calls["cancel"]
        self._counting: Mapping[str, Callable[[Step, Any], None]] = {
            "push": self._pushed,
            "reserve": self._reserved,
            "ack": lambda step, answers: self._ended(step.queue, step.asked, answers),
            "finish": self._finished,
            "ack_by_id": self._acked_by_id,
            "release": lambda step, moved: self._ended(step.queue, step.asked, [moved]),
            "kill": lambda step, moved: self._ended(step.queue, step.asked, [moved]),
            "give_back": self._given_back,
            "cancel": lambda step, answers: self._moved(step.queue, answers),
            "reschedule": lambda step, answers: self._moved(step.queue, answers),
            "respawn": lambda step, answers: self._moved(step.queue, answers),
            "purge": self._purged,
            "reap": self._reaped,
        }

    def running_s(self, lease: Lease) -> float | None:
        """How long ago this process delivered the job; None if it does not know."""
        return self._meters.running_s(lease, now_s())

    def after(self, step: Step, outcome: Any) -> Any:
        verb = step.verb
        if step.began_s is not None:  # otherwise another recorder refused it, or it needs no store
            self._calls[verb].observe(now_s() - step.began_s)
        if batches := self._batches.get(verb):
            batches.observe(step.callers)
        if isinstance(outcome, BaseException):
            if step.began_s is not None and isinstance(outcome, DuetimeError):
                self._meters.failed_call("cancel" if verb == "ack_by_id" else verb, outcome)
        elif count := self._counting.get(verb):
            count(step, outcome)
        return outcome

    def _pushed(self, step: Step, answers: Sequence[Pushed | DuetimeError]) -> None:
        meters = self._meters.queue(step.queue)
        for answer in answers:
            if isinstance(answer, Pushed) and not answer.repeated:
                meters.push(answer)

    def _reserved(self, step: Step, reserved: Reserved) -> None:
        for deliveries in reserved.deliveries:
            if deliveries:
                self._meters.queue(step.queue).deliver(deliveries, reserved.now)
                self._meters.started(deliveries, now_s())
        if reserved.expired:
            self._moved(step.queue, reserved.expired)

    def _finished(self, step: Step, answers: Sequence[Finished | DuetimeError | None]) -> None:
        for answer in answers:
            if isinstance(answer, Finished) and answer.then:
                self._meters.queue(step.queue).push(Pushed(answer.then, answer.now))
        ends = [answer.acked if isinstance(answer, Finished) else answer for answer in answers]
        self._ended(step.queue, [one.lease for one in step.asked], ends)

    def _acked_by_id(self, step: Step, answers: Sequence[object]) -> None:
        moved = [answer for answer in answers if isinstance(answer, Moved)]
        self._ended(step.queue, [Lease(step.queue, one.id, one.born, one.attempt) for one in moved], moved)

    def _given_back(self, step: Step, moved: Moved) -> None:
        self._moved(step.queue, [moved])
        self._meters.forget(step.asked[0])

    def _purged(self, step: Step, purged: Purged) -> None:
        if purged.removed:
            self._meters.queue(step.queue).purged.value += purged.removed

    def _reaped(self, step: Step, reaped: Reaped) -> None:
        self._meters.reaped(reaped.now)
        for queue, moved in reaped.moved.items():
            self._moved(queue, moved)
        for queue, pushed in reaped.pushed.items():
            for _, answer in pushed:
                if not answer.repeated:
                    self._meters.queue(queue).push(answer)

    def _ended(self, queue: Queue, leases: Sequence[Lease], answers: Sequence[object]) -> None:
        self._moved(queue, answers)
        at_s, ended = now_s(), self._meters.ended
        for lease, answer in zip(leases, answers, strict=True):
            if isinstance(answer, Moved):
                ended(lease, at_s)

    def _moved(self, queue: Queue, answers: Sequence[object]) -> None:
        self._meters.queue(queue).moved(answers)
