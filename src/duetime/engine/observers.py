"""The one seam through which journal and metrics learn what an engine did.

The engine calls the store in one place per verb (`observed_store.py`) and tells its observers there, before anybody
gets an answer. An observer that wants to know how long the store took wraps it (`stores/forwarding.py`), because doors
read from the store, too.
"""

import asyncio
from asyncio import Future
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeVar

from duetime.model.errors import DuetimeError
from duetime.model.job import Event, Lease, Moved, State
from duetime.model.names import Queue
from duetime.stores.base import Purged, Push, Pushed, Reaped, Reserved, Store
from duetime.stores.finishes import SeenJoin

T = TypeVar("T")

MAY_HAPPEN_AGAIN = frozenset({Event.RELEASED, Event.GIVEN_BACK, Event.LEASE_EXPIRED})
"""Events that need not be on record before they are answered: losing one loses no promise."""


class Observer:
    """Is told what an engine does. Each method does nothing by default; an observer overrides what it needs.

    Answers are passed on as the store gave them; an error or None among them says that this request moved nothing. The
    methods are quick and do not raise; only `admit`, `pushed` and `acked_by_id` may raise a DuetimeError, which the
    callers get as answer.
    """

    must_hear_all = False
    """Whether a step that has begun is finished and told even if its caller goes away."""

    @property
    def must_prepare(self) -> bool:
        """Whether `prepare` is to be called before the next step of the store."""
        return False

    async def prepare(self, verb: str) -> None:
        """The store is about to be asked. Raise a DuetimeError to prevent that; then the next step asks again."""

    def admit(self, verb: str) -> None:
        """The store is about to be asked. Raise a DuetimeError to prevent that."""

    def began(self, call: int) -> None:
        """A call of this number, admitted by all observers, goes to the store."""

    def ended(self, call: int) -> None:
        """The call of this number is over, and what it did has been told."""

    def begin_apart(self, call: int) -> bool:
        """A step of this number is about to be made in the calling thread, which is not the engine's; its outcome is
        not told. False: it must be told, so the engine has to make the step.
        """
        return False

    def end_apart(self, call: int) -> bool:
        """The step of this number is over, in the same thread. False: since it began it must be told after all. Then
        the event loop tells it, and `ended` follows.
        """
        return True

    async def pushed(
        self, queue: Queue, requests: Sequence[Push], answers: Sequence[Pushed | DuetimeError]
    ) -> Sequence[Pushed | DuetimeError]:
        """Answers what the callers are to be told: the same answers, or errors in place of some."""
        return answers

    def reserved(self, queue: Queue, reserved: Reserved) -> None:
        """Jobs were delivered, and expired ones ended on the way."""

    def acked(
        self,
        queue: Queue,
        leases: Sequence[Lease],
        answers: Sequence[object],
        joins: Sequence[SeenJoin | None] = (),
    ) -> None:
        """One answer per lease, and one join or None if the jobs were finished and not only acked."""

    async def acked_by_id(self, queue: Queue, ids: Sequence[str], answers: Sequence[object]) -> None:
        """One answer per id: a consumer has finished without a lease."""

    def settled(self, verb: str, lease: Lease, moved: Moved) -> None:
        """A delivery ended by release, give_back or kill."""

    def moved(self, queue: Queue, answers: Sequence[object]) -> None:
        """Any other verb moved jobs: cancel, reschedule, respawn."""

    def reaped(self, reaped: Reaped) -> None:
        """The reaper came round."""

    def purged(self, queue: Queue, states: Sequence[State], purged: Purged) -> None:
        """One step of a purge."""

    def notified(self, lease: Lease, *, status: int, ms: int) -> None:
        """The callback of a leased job answered with this HTTP status (0: not at all)."""

    def grouped(self, verb: str, requests: int) -> None:
        """That many requests share one store call."""

    def promise(self) -> Future[None] | None:
        """Done when everything that was told, and must be on record before an answer, is so; None if it is."""
        return None

    async def close(self) -> None:
        """The engine has stopped; its store is still open."""


class Watched(NamedTuple):
    """A store as an engine is to use it, and the observers of that engine."""

    store: Store
    observers: Sequence[Observer] = ()


class Observers:
    """All observers of an engine, in the order in which they are told. A hook that nobody overrides costs nothing."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.all = tuple(observers)
        self._must_hear_all = any(one.must_hear_all for one in self.all)
        self._steps: set[asyncio.Task[Any]] = set()
        self._numbers = count(1)
        self._preparing = self.overriding(Observer.prepare)
        self._admit = self.overriding(Observer.admit)
        self._began = self.overriding(Observer.began)
        self._ended = self.overriding(Observer.ended)
        self._notified = self.overriding(Observer.notified)
        self._grouped = self.overriding(Observer.grouped)
        self._promising = self.overriding(Observer.promise)
        self.may_be_apart = len(self.overriding(Observer.begin_apart)) == len(self.all)
        """Whether a step may ever be made apart: no observer always has to hear of all."""
        self.promise = self._combined_promise()

    @property
    def must_prepare(self) -> bool:
        return any(one.must_prepare for one in self._preparing)

    async def prepare(self, verb: str) -> None:
        """Before a step; raises what an observer refuses it with."""
        for one in self._preparing:
            if one.must_prepare:
                await one.prepare(verb)

    def overriding(self, hook: Callable[..., Any]) -> Sequence[Observer]:
        """The observers that have this method of `Observer` for themselves."""
        return tuple(one for one in self.all if getattr(type(one), hook.__name__) is not hook)

    def begin(self, verb: str) -> int:
        """The number of a store call that is about to be made; `end` is told when it is over and what it did has been
        told. Raises what an observer refuses the call with.
        """
        for one in self._admit:
            one.admit(verb)
        call = next(self._numbers)
        for one in self._began:
            one.began(call)
        return call

    def end(self, call: int) -> None:
        for one in self._ended:
            one.ended(call)

    def begin_apart(self) -> int | None:
        """The number of a step that is made in the calling thread; None if an observer has to hear of it."""
        call = next(self._numbers)
        for index, one in enumerate(self.all):
            if not one.begin_apart(call):
                self._drop_apart(call, self.all[:index])
                return None
        return call

    def drop_apart(self, call: int) -> None:
        """The step was not made after all."""
        self._drop_apart(call, self.all)

    def _drop_apart(self, call: int, begun: Sequence[Observer]) -> None:
        for one in begun:
            if not one.end_apart(call):
                one.ended(call)

    def end_apart(self, call: int) -> bool:
        """False if the step must be told after all, and be ended by `end`."""
        is_over = True
        for one in self.all:
            is_over &= one.end_apart(call)
        return is_over

    async def whole(self, step: Coroutine[Any, Any, T]) -> T:
        """Run the step; where an observer must hear all, it goes on to its end even if the caller is cancelled."""
        if not self._must_hear_all:
            return await step
        task = asyncio.create_task(step)
        self._steps.add(task)
        task.add_done_callback(self._step_ended)
        return await asyncio.shield(task)

    def _step_ended(self, task: asyncio.Task[Any]) -> None:
        self._steps.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, also if the caller has gone

    def notified(self, lease: Lease, *, status: int, ms: int) -> None:
        for one in self._notified:
            one.notified(lease, status=status, ms=ms)

    def group_counter(self, verb: str) -> Callable[[int], None] | None:
        """What is to be called with the number of requests that share a call of this verb; None if nothing is."""
        if len(self._grouped) == 1:
            return partial(self._grouped[0].grouped, verb)
        return partial(self._count_group, verb) if self._grouped else None

    def _count_group(self, verb: str, requests: int) -> None:
        for one in self._grouped:
            one.grouped(verb, requests)

    def _combined_promise(self) -> "Callable[[], Future[Any] | None] | None":
        """`Observer.promise` for all observers at once; None if no observer ever promises anything."""
        if len(self._promising) == 1:
            return self._promising[0].promise
        return self._promise_of_all if self._promising else None

    def _promise_of_all(self) -> Future[Any] | None:
        promised = [future for one in self._promising if (future := one.promise()) is not None]
        return asyncio.gather(*promised) if promised else None

    async def on_record(self, answers: Sequence[object]) -> None:
        """Wait for the promise, unless all answers are about events that may happen again."""
        if any(isinstance(answer, Moved) and answer.event not in MAY_HAPPEN_AGAIN for answer in answers):
            await self.flush()

    async def flush(self) -> None:
        if self.promise and (promised := self.promise()):
            await promised

    async def close(self) -> None:
        """The engine has stopped: steps that have begun end, and what they promised is kept or known to be broken."""
        await asyncio.gather(*self._steps, return_exceptions=True)
        if self.promise and (promised := self.promise()):
            # Callers that wait for the promise get its error; here it only has to be over.
            await asyncio.gather(promised, return_exceptions=True)
        for one in self.all:
            await one.close()
