"""The interface through which an engine records its store calls. The journal and the metrics are recorders.

    before(call)            the store is about to be called; may raise to refuse the call
    the store does it
    after(call, outcome)    what the store answered, or the error that it raised
    flushed()               awaited before the caller gets its answer

The engine makes every store call that moves jobs through `Recorders.run`, or between `before` and `after` where there
is no task, so no verb can bypass a recorder. A verb that is called alone (release, kill, purge ...) also waits for
`flushed` there. For verbs that the batcher groups, the batcher waits, so that the next store call need not.
"""

import asyncio
import logging
from asyncio import Future
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from inspect import iscoroutine
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct

from duetime.model.errors import DuetimeError, StoreUnavailable
from duetime.model.job import Event, Lease, Moved
from duetime.model.names import Queue
from duetime.stores.base import Purged, Reaped, Store

log = logging.getLogger("duetime.engine")

T = TypeVar("T")

UNFLUSHED_EVENTS = frozenset(
    {Event.DELIVERED, Event.RELEASED, Event.GIVEN_BACK, Event.LEASE_EXPIRED, Event.NOTIFIED},
)
"""Events that may be answered before they are flushed: losing such an entry breaks no guarantee."""


def needs_flush(events: Iterable[Event]) -> bool:
    """Returns whether an answer must wait until the entries of these events are flushed."""
    return any([event not in UNFLUSHED_EVENTS for event in events])


class StoreCall(Struct, eq=False):
    """One store call. Compared by identity, so that a recorder can remember the calls under way.

    `asked` and the outcome of each verb:

    | verb | asked | outcome |
    |---|---|---|
    | push | `Push` | `Pushed` or an error for each |
    | reserve | `Ask` | `Reserved` |
    | ack | `Lease` | `Moved`, an error or None for each |
    | finish | `Finish` | `Finished`, an error or None for each |
    | cancel, ack_by_id | ids | `Moved`, an error or None for each |
    | give_back | `GiveBack` | `Moved` or an error for each |
    | release, kill | one `Lease` | `Moved` |
    | reschedule, respawn | ids | `Moved`, an error or None for each |
    | purge | states | `Purged` |
    | reap | nothing | `Reaped` |
    | results | ids | `KeptResult` or None for each |
    | notify | one `Lease` | `Notified`: the callback's answer, without a store call |

    `callers` says how many requests share the call. `error` is what the consumer reports with release and kill.
    `began_s` is `perf_counter` when the store was called, None if it was not. `version` is that of the engine's waiters
    when a reserve was sent (`waiters.py`).
    """

    verb: str
    queue: Queue
    asked: Sequence[Any] = ()
    callers: int = 1
    error: str = ""
    version: int = 0
    began_s: float | None = None


class Notified(NamedTuple):
    """The HTTP status of a callback's answer, 0 without an answer, and how many milliseconds it took."""

    status: int
    ms: int


ALL_QUEUES = Queue("", "")
"""The queue of a call that is about all queues: reap."""


class Recorder:
    """Every method does nothing by default. An error that is not a DuetimeError is a bug: it reaches the caller of the
    call, but never ends the reaper.
    """

    is_needed: bool = True
    """False while the recorder has nothing to record. Then a single-job call may be made without it."""
    is_ready: bool = True
    """False until `prepare` has done its work; then it stays True."""

    async def prepare(self, call: StoreCall) -> None:
        """Do what `before` would have to wait for: register a node. Raise a DuetimeError to refuse the call."""

    def before(self, call: StoreCall) -> None:
        """The store is about to be called. Raise a DuetimeError to refuse the call."""

    def after(self, call: StoreCall, outcome: Any) -> Any:
        """Called once for each call that this recorder did not refuse. Returns what the callers get: `outcome`, the
        same with errors in place of some answers, or a coroutine of that. `outcome` is an exception if the call failed
        or another recorder refused the call; then it is returned.
        """
        return outcome

    def flushed(self) -> Future[None] | None:
        """Completes when every entry that an answer depends on is written. None if nothing is pending."""
        return None

    async def close(self) -> None:
        """The engine has stopped; its store is still open."""


class Recorded(NamedTuple):
    """A store as an engine is to use it, and the recorders of that engine."""

    store: Store
    recorders: Sequence[Recorder] = ()


class Recorders:
    """All recorders of an engine, in the order in which they are called."""

    def __init__(self, recorders: Sequence[Recorder]) -> None:
        self.all = tuple(recorders)
        self.is_ready = all([one.is_ready for one in recorders])
        """Whether `before` may be called without `prepare`."""
        self._running: set[asyncio.Task[Any]] = set()
        # Recorders that do not define a method are not called.
        self._before = [(at, one) for at, one in enumerate(self.all) if type(one).before is not Recorder.before]
        self._flushing = tuple(one for one in self.all if type(one).flushed is not Recorder.flushed)

    @property
    def is_needed(self) -> bool:
        """Returns whether a single-job call must be made with the recorders."""
        return any([one.is_needed for one in self.all])

    def before(self, call: StoreCall) -> None:
        """The store is about to be called. Raises what a recorder raises to refuse the call."""
        for place, one in self._before:
            try:
                one.before(call)
            except BaseException as error:
                for other in self.all[:place]:
                    other.after(call, error)
                raise
        call.began_s = perf_counter()

    def after(self, call: StoreCall, outcome: Any) -> Any:
        """Record what the store answered, or the error that it raised. Returns what the callers get, or a coroutine of
        that.
        """
        for place, one in enumerate(self.all):
            try:
                recorded = one.after(call, outcome)
            except BaseException as error:
                return self._after_rest(call, outcome, place, error)
            if iscoroutine(recorded):
                return self._after_rest(call, outcome, place, recorded)
            outcome = recorded
        return outcome

    async def _after_rest(
        self, call: StoreCall, outcome: Any, place: int, recording: BaseException | Coroutine[Any, Any, Any]
    ) -> Any:
        """The call happened, so the recorders behind `place` record it also if the one at `place` fails."""
        try:
            if isinstance(recording, BaseException):
                raise recording
            outcome = await recording
        finally:
            for other in self.all[place + 1 :]:
                recorded = other.after(call, outcome)
                outcome = await recorded if iscoroutine(recorded) else recorded
        return outcome

    async def run(self, call: StoreCall, send: Callable[[], Awaitable[T]]) -> T:
        """Make one store call and record it. Does not wait for `flushed`."""
        if not self.all:
            return await send()
        if not self.is_ready:
            for one in self.all:
                await one.prepare(call)
            self.is_ready = all([one.is_ready for one in self.all])
        self.before(call)
        try:
            outcome = await send()
        except BaseException as error:
            failed = self.after(call, error)
            if iscoroutine(failed):
                await failed
            raise
        recorded = self.after(call, outcome)
        return await recorded if iscoroutine(recorded) else recorded

    async def run_alone(self, call: StoreCall, send: Callable[[], Awaitable[T]]) -> T:
        """Make one store call, record it, and wait until it is flushed if its answer depends on that. The call runs to
        completion even if the caller is cancelled.
        """
        if not self.all:
            return await send()

        async def recorded() -> T:
            outcome = await self.run(call, send)
            if _waits_for_flush(outcome):
                await self.flush()
            return outcome

        return await self._to_completion(recorded())

    async def run_reap(self, send: Callable[[], Awaitable[Reaped]]) -> Reaped:
        """Record a round of the reaper. A bug of a recorder is logged and raised as StoreUnavailable, so that the
        reaper tries again later; any other error would end the reaper, and with it the engine.
        """
        if not self.all:
            return await send()
        failed: list[Exception] = []

        async def store_call() -> Reaped:
            try:
                return await send()
            except Exception as error:
                failed.append(error)
                raise

        async def recorded() -> Reaped:
            try:
                reaped = await self.run(StoreCall("reap", ALL_QUEUES), store_call)
                if reaped.pushed:
                    await self.flush()
            except DuetimeError:
                raise
            except Exception as error:
                if error in failed:
                    raise
                log.exception("recorder_failed")
                raise StoreUnavailable(f"a recorder of the engine failed: {error!r}") from error
            return reaped

        return await self._to_completion(recorded())

    async def _to_completion(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._completed)
        return await asyncio.shield(task)

    def _completed(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved here, because the caller may have been cancelled

    async def notified(self, lease: Lease, *, status: int, ms: int) -> None:
        """The callback of a leased job answered with this HTTP status (0: not at all)."""
        call = StoreCall("notify", lease.queue, [lease])
        recorded = self.after(call, Notified(status, ms))
        if iscoroutine(recorded):
            await recorded

    @property
    def flushed(self) -> Callable[[], Future[Any] | None] | None:
        """`Recorder.flushed` of all recorders together; None if no recorder ever has anything to flush."""
        if len(self._flushing) == 1:
            return self._flushing[0].flushed
        return self._all_flushed if self._flushing else None

    def _all_flushed(self) -> Future[Any] | None:
        pending = [future for one in self._flushing if (future := one.flushed()) is not None]
        return asyncio.gather(*pending) if pending else None

    async def flush(self) -> None:
        if pending := self._all_flushed():
            await pending

    async def close(self) -> None:
        """The engine has stopped: calls that have begun end, and their entries are written or known to be lost."""
        await asyncio.gather(*self._running, return_exceptions=True)
        if pending := self._all_flushed():
            # Callers that wait for it get its error; here it only has to be over.
            await asyncio.gather(pending, return_exceptions=True)
        for one in self.all:
            await one.close()


def _waits_for_flush(outcome: Any) -> bool:
    if isinstance(outcome, Purged):
        return True
    moved: Sequence[object] = [outcome] if isinstance(outcome, Moved) else outcome
    return needs_flush(one.event for one in moved if isinstance(one, Moved))


# --- the store's clock, as this process knows it between two answers of the store

JUMP_MS = 5
"""Timers are set again when the store's clock is ahead of the known offset by more than this ..."""
SET_BACK_MS = 1000
"""... and kept when the clock seems to be behind by less than this: a timer that ends too early costs one call, and
perhaps only the answer with the reading was slow.
"""


class StoreTime:
    """The store's clock as this process knows it: its distance from the loop's own clock, which never jumps."""

    def __init__(self) -> None:
        self._offset_ms = 0.0
        self._reported_ms = 0.0

    def observe(self, now_ms: int) -> bool:
        """Use a reading; returns whether the clock has run ahead since the last True, in one jump or bit by bit.

        A reading is old by the travel time of its answer. So of two offsets the greater one is nearer the truth, unless
        the clock was set back.
        """
        offset = now_ms - asyncio.get_running_loop().time() * 1000
        if offset > self._offset_ms or offset < self._offset_ms - SET_BACK_MS:
            self._offset_ms = offset
        ahead = self._offset_ms - self._reported_ms
        if ahead > JUMP_MS or ahead < 0:
            self._reported_ms = self._offset_ms
        return ahead > JUMP_MS

    def now_ms(self) -> int:
        """The store's time as far as it is known: behind by the travel time of an answer at most."""
        return int(asyncio.get_running_loop().time() * 1000 + self._offset_ms)

    def seconds_until(self, at_ms: int) -> float:
        return (at_ms - self._offset_ms) / 1000 - asyncio.get_running_loop().time()
