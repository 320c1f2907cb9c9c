"""The engine: the verbs that every door calls.

It adds to a store what no store should know: the check at the door, group commit, waiting, shares between priorities,
and the duties that keep time (reaper, safety net, wake listener). Several engines on one store are safe: every state
change is one atomic step in the store, and everything here can be rebuilt from it.

    async with Engine(store) as engine:
        await engine.push(queue, [NewJob(id, body, delay_ms=5000)])
        [delivery] = await engine.reserve([queue], wait_ms=10_000)
        await engine.ack([delivery.lease])
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence, Sized
from contextlib import contextmanager
from contextvars import Context
from dataclasses import replace
from functools import partial
from itertools import repeat
from types import TracebackType
from typing import Any, TypeVar

from duetime.backoff import OUTAGE, Outage, chance
from duetime.clock import MAX_DURATION
from duetime.engine.admission import check_ids, check_jobs, check_lease, check_text, check_times, check_tries
from duetime.engine.duties import Pulse, run_duty
from duetime.engine.group_commit import GroupCommit
from duetime.engine.heavy_calls import HeavyCalls
from duetime.engine.observed_store import ObservedStore
from duetime.engine.observers import Observer, Observers
from duetime.engine.reaper import Reaper
from duetime.engine.waiting import Waiter, WaitingRoom
from duetime.engine.wheel import Wheel
from duetime.errors import DuetimeError, InvalidRequest, LeaseLost, StoreUnavailable, done_in_part
from duetime.job import (
    DEFAULT_TTR_MS,
    MAX_BODY,
    MAX_ERROR,
    STEP_BYTES,
    STEP_JOBS,
    Delivery,
    IfExists,
    Lease,
    Moved,
    NewJob,
    State,
    payload_bytes,
)
from duetime.names import Queue
from duetime.stores.base import Ask, Mark, Purged, Push, Pushed, QueueRules, Reaped, RulesChange, Store
from duetime.stores.pushed_parts import pushed_parts

T = TypeVar("T")

log = logging.getLogger("duetime.engine")

MAX_WHEELS = 10_000
MANY_QUEUES = 8
"""From here on it is cheaper to ask for all heads at first than to try one queue after the other."""
LEAST_WEIGHT = STEP_BYTES // STEP_JOBS


class Engine:
    """An async context manager: inside it the duties run; leaving it stops them and waits for calls under way."""

    def __init__(
        self,
        store: Store,
        *,
        max_body: int = MAX_BODY,
        chance: Callable[[], float] = chance,
        observers: Sequence[Observer] = (),
    ) -> None:
        """`chance` (0 to 1) spreads what several engines would do in the same instant."""
        self.store = store
        self.observers = Observers(observers)
        self._steps = ObservedStore(store, self.observers)
        self._max_body = max_body
        self._tasks = asyncio.TaskGroup()
        self._context = Context()
        self._duties: list[asyncio.Task[None]] = []
        self._wheels: dict[Queue, Wheel] = {}
        self._heavy = HeavyCalls()
        grouped, promise = self.observers.grouped, self.observers.promise
        self._pushes = GroupCommit(
            self._call_push, self._spawn, grouped=partial(grouped, "push"), promise=promise, max_weight=STEP_BYTES
        )
        self._acks = GroupCommit(
            self._call_ack, self._spawn, grouped=partial(grouped, "ack"), promise=promise, max_weight=STEP_JOBS
        )
        self._cancels = GroupCommit(
            self._call_cancel, self._spawn, grouped=partial(grouped, "cancel"), promise=promise, max_weight=STEP_JOBS
        )
        self._acks_by_id = GroupCommit(
            self._call_ack_by_id, self._spawn, grouped=partial(grouped, "cancel"), promise=promise, max_weight=STEP_JOBS
        )
        self._reserves = GroupCommit(
            self._call_reserve,
            self._spawn,
            grouped=partial(grouped, "reserve"),
            max_weight=STEP_JOBS,
            orphan=self._give_back_later,
        )
        self._outage = replace(OUTAGE, chance=chance)
        self._reaper = Reaper(self._reap, chance)
        self._pulses = {duty.name: Pulse() for duty in (Reaper, WaitingRoom)}
        self._room = WaitingRoom(store, self._spawn, reserve=self._call_reserve, give_back=self._give_back_later)

    async def __aenter__(self) -> "Engine":
        await self._tasks.__aenter__()
        duties = [run_duty(duty, self._outage, self._pulses[duty.name]) for duty in (self._reaper, self._room)]
        duties.append(self._listen())
        self._duties = [self._tasks.create_task(duty) for duty in duties]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._room.close()
        for batch in (self._pushes, self._acks, self._acks_by_id, self._cancels, self._reserves):
            batch.close()
        for duty in self._duties:
            duty.cancel()
        # The caller's own error is not the group's: it passes as it is, after the calls under way.
        try:
            await self._tasks.__aexit__(None, None, None)
        finally:
            await self.observers.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        try:
            # A store call serves many: it belongs to none of the requests (their ids, their traces) that it serves.
            return self._tasks.create_task(work, context=self._context)
        except RuntimeError as stopped:
            work.close()
            raise StoreUnavailable("the engine is not running") from stopped

    @property
    def stuck(self) -> list[str]:
        """The duties that do not come back from a round; a duty that failed ends the engine."""
        return [name for name, pulse in self._pulses.items() if pulse.is_stuck()]

    @property
    def parked(self) -> int:
        """How many consumers wait for a job."""
        return self._room.parked

    # --- producers

    async def push(
        self,
        queue: Queue,
        jobs: Sequence[NewJob],
        *,
        if_exists: IfExists = IfExists.KEEP,
        mark: Mark | None = None,
        made_ids: bool = False,
    ) -> Pushed:
        """Add jobs, all or none. Raises what the store answers for this request. `made_ids`: see `Push`."""
        check_jobs(jobs, max_body=self._max_body)
        if mark:
            check_text(mark.name)
            check_times(ttl_ms=mark.life_ms)
        return await self._pushes.submit(queue, Push(jobs, if_exists, mark, made_ids), _weight(jobs))

    async def cancel(self, queue: Queue, ids: Sequence[str]) -> Sequence[Moved | None]:
        """Remove jobs by id, wherever they are, in bounded steps; None where there is none."""
        check_ids(ids)
        answers: list[Moved | None] = []
        for chunk in _chunks(ids):
            with _partly_done(answers):
                answers += await self._cancels.submit(queue, chunk, len(chunk))
        return answers

    async def ack_by_id(self, queue: Queue, ids: Sequence[str]) -> Sequence[Moved | None]:
        """Finish jobs by id alone, wherever they are, whoever holds them: as cancel, but on record as acked.

        lmstfy's acknowledgement; the answers are those of cancel.
        """
        check_ids(ids)
        answers: list[Moved | None] = []
        for chunk in _chunks(ids):
            with _partly_done(answers):
                answers += await self._acks_by_id.submit(queue, chunk, len(chunk))
        return answers

    async def reschedule(
        self, queue: Queue, ids: Sequence[str], *, delay_ms: int = 0, due_at: int | None = None
    ) -> Sequence[Moved | DuetimeError | None]:
        """Change when waiting jobs are due, in bounded steps."""
        check_ids(ids)
        check_times(delay_ms=delay_ms, due_at=due_at)
        answers: list[Moved | DuetimeError | None] = []
        for chunk in _chunks(ids):
            with _partly_done(answers):
                step = await self._steps.reschedule(queue, chunk, delay_ms=delay_ms, due_at=due_at)
            self._moved(queue, [moved for moved in step if isinstance(moved, Moved)])
            answers += step
        return answers

    # --- consumers

    async def reserve(
        self, queues: Sequence[Queue], *, limit: int = 1, ttr_ms: int = DEFAULT_TTR_MS, wait_ms: int = 0
    ) -> list[Delivery]:
        """Lease up to `limit` jobs, queues in the given order; wait up to `wait_ms` for the first one.

        Never answers empty before the wait is over. A cancelled call keeps no lease. While parked it survives an outage
        of the store; it raises StoreUnavailable if it finds the store down at first, or still down at its end.
        """
        if not queues or not 1 <= limit <= STEP_JOBS:
            raise InvalidRequest(f"reserve takes at least one queue and a limit of 1 to {STEP_JOBS}")
        _check_ttr(ttr_ms)
        if wait_ms <= 0:
            return await self._look(queues, limit, ttr_ms)
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        waiter = Waiter(limit, ttr_ms)
        return await self._room.wait(queues, waiter, deadline, first=lambda: self._look(queues, limit, ttr_ms))

    async def _look(self, queues: Sequence[Queue], limit: int, ttr_ms: int) -> list[Delivery]:
        """One call per queue until there is enough."""
        found: list[Delivery] = []
        if len(queues) >= MANY_QUEUES:
            queues = await self._room.due(queues)
        try:
            for queue in queues:
                found += await self._reserves.submit(queue, (limit - len(found), ttr_ms), limit - len(found))
                if len(found) == limit:
                    break
        except BaseException:
            self._give_back_later(found)
            raise
        return found

    async def ack(self, leases: Sequence[Lease]) -> list[Moved | LeaseLost | None]:
        """Finish jobs, also of several queues, in bounded steps; one answer per lease. None: it was gone already."""
        by_queue: dict[Queue, list[int]] = {}
        for place, lease in enumerate(leases):
            check_lease(lease)
            by_queue.setdefault(lease.queue, []).append(place)
        answers: dict[int, Moved | LeaseLost | None] = {}
        for queue, all_places in by_queue.items():
            for places in _chunks(all_places):
                with _partly_done(answers):
                    found = await self._acks.submit(queue, [leases[place] for place in places], len(places))
                answers.update(zip(places, found, strict=True))
        return [answers[place] for place in range(len(leases))]

    async def release(self, lease: Lease, *, delay_ms: int = 0, error: str = "") -> Moved:
        """Give a job back to be tried again after a delay."""
        check_lease(lease)
        check_times(delay_ms=delay_ms)
        moved = await self._steps.release(lease, delay_ms, _cut(error))
        self._moved(lease.queue, [moved])
        return moved

    async def give_back(self, lease: Lease) -> Moved:
        """Undo a delivery that did not reach its consumer."""
        check_lease(lease)
        moved = await self._steps.give_back(lease)
        self._moved(lease.queue, [moved])
        return moved

    async def kill(self, lease: Lease, *, error: str = "") -> Moved:
        """Send a job to the dead letters."""
        check_lease(lease)
        return await self._steps.kill(lease, _cut(error))

    async def extend(self, lease: Lease, ttr_ms: int = DEFAULT_TTR_MS) -> int:
        """Renew a lease; answers its new end."""
        check_lease(lease)
        _check_ttr(ttr_ms)
        until = await self.store.extend(lease, ttr_ms)
        self._reaper.expect(ttr_ms / 1000)
        return until

    # --- administration

    async def respawn(
        self,
        queue: Queue,
        *,
        ids: Sequence[str] | None = None,
        limit: int = 1,
        ttl_ms: int = 0,
        tries: int | None = None,
    ) -> list[Moved]:
        """Bring dead jobs back, by id or the longest dead first, in bounded steps."""
        check_ids(ids or [])
        check_times(ttl_ms=ttl_ms)
        check_tries(tries or 0)
        moved: list[Moved] = []
        problem: StoreUnavailable | None = None
        steps = _chunks(ids) if ids is not None else repeat(None, -(-limit // STEP_JOBS))
        for chunk in steps:
            want = min(limit - len(moved), STEP_JOBS) if chunk is None else len(chunk)
            with _partly_done(moved):
                answers = await self._steps.respawn(queue, ids=chunk, limit=want, ttl_ms=ttl_ms, tries=tries)
            step = [answer for answer in answers if isinstance(answer, Moved)]
            problem = next((answer for answer in answers if isinstance(answer, StoreUnavailable)), problem)
            self._moved(queue, step)
            moved += step
            if chunk is None and len(step) < want:
                break
        if problem:
            raise done_in_part(problem, len(moved), "respawned")
        return moved

    async def purge(self, queue: Queue, states: Sequence[State], *, limit: int | None = None) -> int:
        """Remove jobs by state in bounded steps; answers how many."""
        removed = 0
        step = Purged(0, 0, more=True)
        while step.more:
            with _partly_done(range(removed)):
                step = await self._steps.purge(queue, states, limit=None if limit is None else limit - removed)
            removed += step.removed
        for problem in step.problems:
            raise done_in_part(problem, removed, "removed")
        return removed

    async def configure(self, queue: Queue, change: RulesChange | None = None) -> QueueRules:
        """Change or read the queue's rules."""
        return await self.store.configure(queue, change)

    # --- what the parts call

    async def _call_push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed | DuetimeError]:
        """The jobs are noticed here and not by the callers: one that went away has pushed all the same."""
        async with self._heavy.turn(sum([len(request.jobs) for request in requests])):
            answers = await self._steps.push(queue, requests)
        _, parts = pushed_parts(requests, answers)
        done = (answer for answer in parts if isinstance(answer, Pushed) and not answer.repeated)
        happened = [moved for pushed in done for moved in pushed.jobs]
        self._moved(queue, happened)
        return answers

    async def _call_reserve(self, queue: Queue, wants: Sequence[tuple[int, int]]) -> Sequence[list[Delivery]]:
        """One store call for several consumers; neighbours with the same ttr share an ask."""
        wheel = self._wheel(queue)
        groups = _merge(wants)
        asks = [Ask(sum(limits), ttr_ms, wheel.take(sum(limits))) for ttr_ms, limits in groups]
        unused = sum(ask.limit for ask in asks)
        try:
            async with self._heavy.turn(unused):
                known = self._room.news
                reserved = await self._steps.reserve(queue, asks)
            unused -= sum(map(len, reserved.deliveries))
        finally:
            wheel.put_back(unused)
        self._room.learn(queue, reserved, since=known)
        shares: list[list[Delivery]] = []
        for (ttr_ms, limits), deliveries in zip(groups, reserved.deliveries, strict=True):
            if deliveries:
                self._reaper.expect(ttr_ms / 1000)
            at = 0
            for limit in limits:
                shares.append(list(deliveries[at : at + limit]))
                at += limit
        return shares

    def _wheel(self, queue: Queue) -> Wheel:
        wheel = self._wheels.get(queue)
        if wheel is None:
            if len(self._wheels) >= MAX_WHEELS:
                self._wheels.clear()
            wheel = self._wheels[queue] = Wheel()
        return wheel

    async def _call_ack(
        self, queue: Queue, requests: Sequence[Sequence[Lease]]
    ) -> Sequence[Sequence[Moved | LeaseLost | None]]:
        leases = [lease for some in requests for lease in some]
        async with self._heavy.turn(len(leases)):
            answers = await self._steps.ack(queue, leases)
        return _split(answers, requests)

    async def _call_cancel(self, queue: Queue, requests: Sequence[Sequence[str]]) -> Sequence[Sequence[Moved | None]]:
        answers = await self._steps.cancel(queue, [job_id for ids in requests for job_id in ids])
        return _split(answers, requests)

    async def _call_ack_by_id(
        self, queue: Queue, requests: Sequence[Sequence[str]]
    ) -> Sequence[Sequence[Moved | None]]:
        answers = await self._steps.ack_by_id(queue, [job_id for ids in requests for job_id in ids])
        return _split(answers, requests)

    def _moved(self, queue: Queue, moved: Sequence[Moved]) -> None:
        """Jobs were put into waiting by this process: its own consumers need no wake from the store."""
        if earliest := min((one.due_at for one in moved if one.due_at), default=0):
            self._room.notice(queue, earliest)

    async def _reap(self, limit: int) -> Reaped:
        reaped = await self._steps.reap(limit)
        for queue, moved in reaped.moved.items():
            self._moved(queue, moved)
        return reaped

    def _give_back_later(self, deliveries: Sequence[Delivery]) -> None:
        """Never raises: it is called where a consumer is on its way out with an error of its own."""
        for delivery in deliveries:
            try:
                self._spawn(self._try_give_back(delivery.lease))
            except StoreUnavailable as error:
                _log_lapsing(delivery.lease, error)

    async def _try_give_back(self, lease: Lease) -> None:
        try:
            await self.give_back(lease)
        except LeaseLost:
            return
        except DuetimeError as error:
            _log_lapsing(lease, error)

    async def _listen(self) -> None:
        """Turn the store's wakes into noticed jobs, for as long as the engine lives."""
        outage = Outage(self._outage)
        loop = asyncio.get_running_loop()
        while True:
            started, why = loop.time(), "the store ended them"
            try:
                async for wake in self.store.wakeups():
                    if wake.queue is None:
                        self._room.check_now()
                    else:
                        self._room.notice(wake.queue, wake.due_at)
            except DuetimeError as error:
                why = error.message
            if loop.time() - started > OUTAGE.cap_ms / 1000:
                outage.worked()  # a connection that lasted; shorter ones belong to one outage
            if outage.failed():
                log.warning("wakeups_lost", extra={"error": why})
            await asyncio.sleep(outage.pause_s)


def _weight(jobs: Sequence[NewJob]) -> int:
    """In bytes, such that STEP_BYTES are at most STEP_JOBS jobs and at most STEP_BYTES bytes of payload."""
    if len(jobs) == 1:
        size = payload_bytes(jobs[0])
        return size if size > LEAST_WEIGHT else LEAST_WEIGHT
    return sum([max(payload_bytes(job), LEAST_WEIGHT) for job in jobs])


def _log_lapsing(lease: Lease, error: DuetimeError) -> None:
    """The lease of a job that could not be given back lapses by itself and costs the job one try."""
    log.warning("give_back_failed", extra={"queue": str(lease.queue), "job": lease.id, "error": error.message})


def _check_ttr(ttr_ms: int) -> None:
    if not 0 <= ttr_ms <= MAX_DURATION:
        raise InvalidRequest(f"a ttr lies between 0 and {MAX_DURATION} ms: {ttr_ms}")


def _cut(error: str) -> str:
    """At most MAX_ERROR bytes of UTF-8 that can be written: the end of a traceback says more than its middle."""
    return error.replace("\0", "?").encode(errors="replace")[-MAX_ERROR:].decode(errors="ignore")


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[at : at + STEP_JOBS] for at in range(0, len(items), STEP_JOBS))


def _merge(wants: Sequence[tuple[int, int]]) -> list[tuple[int, list[int]]]:
    """Neighbours with one ttr: (ttr_ms, their limits)."""
    groups: list[tuple[int, list[int]]] = []
    for limit, ttr_ms in wants:
        if groups and groups[-1][0] == ttr_ms:
            groups[-1][1].append(limit)
        else:
            groups.append((ttr_ms, [limit]))
    return groups


@contextmanager
def _partly_done(done: Sized) -> Generator[None]:
    """A step of a verb that takes several: if it fails after others were `done`, the verb has taken effect in part."""
    try:
        yield
    except StoreUnavailable as error:
        if not done or error.outcome_unknown:
            raise
        raise StoreUnavailable(error.message, unknown=True) from error


def _split(answers: Sequence[Any], requests: Sequence[Sequence[Any]]) -> list[Any]:
    """Each request's answers; or the error of a request that was for a part of the store that is down."""
    shares: list[Any] = []
    at = 0
    for request in requests:
        share = answers[at : at + len(request)]
        down = next((answer for answer in share if isinstance(answer, StoreUnavailable)), None)
        if down and any(isinstance(answer, Moved) for answer in share):
            down = StoreUnavailable(down.message, unknown=True)
        shares.append(down or share)
        at += len(request)
    return shares
