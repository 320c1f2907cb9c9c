"""Feeds an engine's metrics: which jobs moved, how many requests share a call, and how long the store takes.

`TimedStore` wraps the store and is no part of the engine, because doors read from the store, too. Neither it nor the
observer changes anything; a call costs one reading of the clock before and one after, and a few additions per job.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import ParamSpec, TypeVar

from duetime.engine.observers import Observer
from duetime.metrics.pool_meters import PoolMeters
from duetime.model.errors import DuetimeError, LeaseLost
from duetime.model.job import Lease, Moved, State
from duetime.model.names import Queue
from duetime.stores.base import Purged, Push, Pushed, Reaped, Reserved, Store
from duetime.stores.finishes import SeenJoin
from duetime.stores.forwarding import ForwardingStore

P = ParamSpec("P")
T = TypeVar("T")

VERBS = tuple(name for name in vars(Store) if not name.startswith("_") and name not in ("registry", "wakeups", "close"))
GROUPED_VERBS = ("push", "ack", "finish", "results", "cancel", "reserve")

now_s = time.perf_counter


class TimedStore(ForwardingStore):
    """Measures the time of every call, and counts the calls that failed."""

    def __init__(self, inner: Store, meters: PoolMeters) -> None:
        super().__init__(inner)
        self._meters = meters
        self._calls = {verb: meters.calls(verb) for verb in VERBS}

    async def _call(self, verb: str, call: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        """Every call is timed. A lost lease does not count as an error, because the store did serve that call."""
        began = now_s()
        try:
            return await call(*args, **options)
        except DuetimeError as error:
            if not isinstance(error, LeaseLost):
                self._meters.failed(verb, error.code)
            raise
        finally:
            self._calls[verb].observe(now_s() - began)


class MetricsObserver(Observer):
    """Counts what happens in a pool, per queue."""

    def __init__(self, meters: PoolMeters) -> None:
        self._meters = meters
        self._grouped = {verb: meters.batches(verb) for verb in GROUPED_VERBS}

    async def pushed(
        self, queue: Queue, requests: Sequence[Push], answers: Sequence[Pushed | DuetimeError]
    ) -> Sequence[Pushed | DuetimeError]:
        meters = self._meters.queue(queue)
        for answer in answers:
            if isinstance(answer, Pushed) and not answer.repeated:
                meters.push(answer)
        return answers

    def reserved(self, queue: Queue, reserved: Reserved) -> None:
        for deliveries in reserved.deliveries:
            if deliveries:
                self._meters.queue(queue).deliver(deliveries, reserved.now)
                self._meters.started(deliveries, now_s())
        if reserved.expired:
            self.moved(queue, reserved.expired)

    def acked(
        self,
        queue: Queue,
        leases: Sequence[Lease],
        answers: Sequence[object],
        joins: Sequence[SeenJoin | None] = (),
    ) -> None:
        self.moved(queue, answers)
        at_s, ended = now_s(), self._meters.ended
        for lease, answer in zip(leases, answers, strict=True):
            if isinstance(answer, Moved):
                ended(lease, at_s)

    async def acked_by_id(self, queue: Queue, ids: Sequence[str], answers: Sequence[object]) -> None:
        self.moved(queue, answers)
        at_s = now_s()
        for answer in answers:
            if isinstance(answer, Moved):
                self._meters.ended(Lease(queue, answer.id, answer.born, answer.attempt), at_s)

    def running_s(self, lease: Lease) -> float | None:
        """How long ago this process delivered the job; None if it does not know."""
        return self._meters.running_s(lease, now_s())

    def settled(self, verb: str, lease: Lease, moved: Moved) -> None:
        self.moved(lease.queue, [moved])
        if verb == "give_back":
            self._meters.forget(lease)
        else:
            self._meters.ended(lease, now_s())

    def moved(self, queue: Queue, answers: Sequence[object]) -> None:
        self._meters.queue(queue).moved(answers)

    def reaped(self, reaped: Reaped) -> None:
        self._meters.reaped(reaped.now)
        for queue, moved in reaped.moved.items():
            self.moved(queue, moved)

    def purged(self, queue: Queue, states: Sequence[State], purged: Purged) -> None:
        if purged.removed:
            self._meters.queue(queue).purged.value += purged.removed

    def grouped(self, verb: str, requests: int) -> None:
        self._grouped[verb].observe(requests)
