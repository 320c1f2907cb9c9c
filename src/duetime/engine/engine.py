"""The engine: the verbs that every protocol and the SDK call.

It adds to a store what no store should know: checks of requests, group commit, waiting, shares between priorities, and
the duties that keep time (reaper, safety net, wake listener). Several engines on one store are safe: every state
change is one atomic step in the store, and everything here can be rebuilt from it.

    async with Engine(store) as engine:
        await engine.push(queue, [NewJob(id, body, delay_ms=5000)])
        [delivery] = await engine.reserve([queue], wait_ms=10_000)
        await engine.ack([delivery.lease])
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Sequence, Sized
from contextlib import contextmanager
from contextvars import Context
from dataclasses import replace
from itertools import repeat
from typing import Any, TypeVar

from duetime.duties import RoundTimer, run_duty
from duetime.engine import requests
from duetime.engine.batcher import Batcher
from duetime.engine.blocking import BlockingCalls
from duetime.engine.reaper import Reaper
from duetime.engine.recorder import Recorder, Recorders, StoreCall
from duetime.engine.requests import (
    AckAndReserveRequest,
    AckByIdRequest,
    AckRequest,
    Answer,
    CancelRequest,
    FinishRequest,
    GiveBackRequest,
    PushRequest,
    Request,
    ReserveRequest,
    check_finish,
    check_ids,
    check_lease,
    check_times,
    check_ttr,
    finish_weight,
)
from duetime.engine.waiters import Waiter, Waiters, WakeListener
from duetime.model.backoff import OUTAGE, chance
from duetime.model.errors import DuetimeError, InvalidRequest, LeaseLost, StoreUnavailable, done_in_part
from duetime.model.job import (
    DEFAULT_TTR_MS,
    MAX_BODY,
    MAX_ERROR,
    STEP_JOBS,
    Delivery,
    IfExists,
    Lease,
    Moved,
    NewJob,
    State,
    check_tries,
    chunks,
)
from duetime.model.names import Queue
from duetime.model.priority_shares import PriorityShares
from duetime.stores.base import Mark, Purged, Push, Pushed, Reaped, ResultSink, Store
from duetime.stores.finishes import Finish, Finished, KeptResult

T = TypeVar("T")

log = logging.getLogger("duetime.engine")

MANY_QUEUES = 8
"""With this many queues or more, one call for all heads is cheaper than one reserve per queue."""


class Engine:
    """An async context manager: inside it the duties run; leaving it stops them and waits for calls under way."""

    requests = requests
    """The structs of requests, for callers that import the engine for its type only."""

    def __init__(
        self,
        store: Store,
        *,
        max_body: int = MAX_BODY,
        chance: Callable[[], float] = chance,
        recorders: Sequence[Recorder] = (),
        shares: PriorityShares = PriorityShares(),  # noqa: B008 (frozen)
    ) -> None:
        """`chance` (0 to 1) spreads what several engines would do in the same instant."""
        self.store = store
        self.recorders = Recorders(recorders)
        self._max_body = max_body
        self._tasks = asyncio.TaskGroup()
        self._context = Context()
        self._duties: list[asyncio.Task[None]] = []
        self._receipts: Sequence[str] = ()
        self._outage = replace(OUTAGE, chance=chance)
        self._round_timers = {duty.name: RoundTimer() for duty in (Reaper, Waiters)}
        self._reaper = Reaper(self._reap)
        self._batcher = Batcher(
            store,
            self.recorders,
            spawn=self._spawn,
            reaper=self._reaper,
            give_back=self.give_back_later,
            shares=shares,
        )
        self._waiters, self._results = self._batcher.waiters, self._batcher.results
        self._blocking: BlockingCalls | None = None
        self.set_shares = self._batcher.set_shares

    async def __aenter__(self) -> "Engine":
        self._loop = asyncio.get_running_loop()
        await self._tasks.__aenter__()
        duties = [run_duty(duty, self._outage, self._round_timers[duty.name]) for duty in (self._reaper, self._waiters)]
        listener = WakeListener(self.store, self._waiters, self._results, self._reaper)
        duties.append(run_duty(listener, self._outage))
        if self.store.duty:
            duties.append(run_duty(self.store.duty, self._outage, survives_bugs=True))
        self._duties = [self._tasks.create_task(duty) for duty in duties]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._waiters.close()
        self._results.close()
        for duty in self._duties:
            duty.cancel()
        if self._blocking:
            self._blocking.close()
        # The task group does not get an error of the caller's code; that is raised unchanged after the calls under way.
        try:
            try:
                await self._batcher.close()
            finally:
                await self._tasks.__aexit__(None, None, None)
        finally:
            await self.recorders.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        try:
            # A store call serves many requests, so it carries the id and the trace of none of them.
            return self._tasks.create_task(work, context=self._context)
        except RuntimeError as stopped:
            work.close()
            raise StoreUnavailable("the engine is not running") from stopped

    @property
    def stuck(self) -> list[str]:
        """The duties that do not come back from a round; a duty that failed ends the engine."""
        return [name for name, timer in self._round_timers.items() if timer.is_stuck()]

    @property
    def parked(self) -> int:
        """How many consumers wait for a job."""
        return self._waiters.parked

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
        request = PushRequest(queue, Push(jobs, if_exists, mark, made_ids))
        request.check(self._max_body)
        return await self._batcher.run(request)

    async def cancel(self, queue: Queue, ids: Sequence[str]) -> Sequence[Moved | None]:
        """Remove jobs by id, in every state, in bounded steps. An answer is None if there is no such job."""
        check_ids(ids)
        return await self._in_steps(lambda some: CancelRequest(queue, some), ids)

    async def ack_by_id(self, queue: Queue, ids: Sequence[str]) -> Sequence[Moved | None]:
        """Finish jobs by id alone, in every state and without their lease: as cancel, but recorded as acked.

        This is lmstfy's acknowledgement; the answers are those of cancel.
        """
        check_ids(ids)
        return await self._in_steps(lambda some: AckByIdRequest(queue, some), ids)

    async def reschedule(
        self, queue: Queue, ids: Sequence[str], *, delay_ms: int = 0, due_at: int | None = None
    ) -> Sequence[Moved | DuetimeError | None]:
        """Change when waiting jobs are due, in bounded steps."""
        check_ids(ids)
        check_times(delay_ms=delay_ms, due_at=due_at)
        answers: list[Moved | DuetimeError | None] = []
        for chunk in chunks(ids):
            with _partly_done(answers):
                step = await self.recorders.run_alone(
                    StoreCall("reschedule", queue, chunk),
                    lambda ids=chunk: self.store.reschedule(queue, ids, delay_ms=delay_ms, due_at=due_at),
                )
            self._batcher.moved(queue, step)
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
            raise InvalidRequest(
                f"reserve must have at least one queue and a limit of 1 to {STEP_JOBS}, got {len(queues)} and {limit}"
            )
        check_ttr(ttr_ms)
        if wait_ms <= 0:
            return await self._try_reserve(queues, limit, ttr_ms)
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        first = self._try_reserve(queues, limit, ttr_ms)
        return await self._waiters.wait(queues, Waiter(limit, ttr_ms), deadline, first=first)

    async def _try_reserve(self, queues: Sequence[Queue], limit: int, ttr_ms: int) -> list[Delivery]:
        """One call per queue until there is enough."""
        if len(queues) == 1:
            return await self._batcher.run(ReserveRequest(queues[0], ttr_ms, limit))
        found: list[Delivery] = []
        if len(queues) >= MANY_QUEUES:
            queues = await self._waiters.due_queues(queues)
        try:
            for queue in queues:
                found += await self._batcher.run(ReserveRequest(queue, ttr_ms, limit - len(found)))
                if len(found) == limit:
                    break
        except BaseException:
            self.give_back_later(found)
            raise
        return found

    async def ack(self, leases: Sequence[Lease]) -> list[Moved | LeaseLost | None]:
        """Finish jobs, also of several queues, in bounded steps. An answer is None if its job no longer existed."""
        if len(leases) == 1:
            check_lease(leases[0])
            return [*await self._batcher.run(AckRequest(leases[0].queue, leases))]
        by_queue: dict[Queue, list[int]] = {}
        for index, lease in enumerate(leases):
            check_lease(lease)
            by_queue.setdefault(lease.queue, []).append(index)
        if len(by_queue) == 1:
            return await self._in_steps(lambda some: AckRequest(leases[0].queue, some), leases)
        answers: dict[int, Moved | LeaseLost | None] = {}
        for queue, indexes in by_queue.items():
            with _partly_done(answers):
                found = await self._in_steps(
                    lambda some, queue=queue: AckRequest(queue, some), [leases[index] for index in indexes]
                )
            answers.update(zip(indexes, found, strict=True))
        return [answers[index] for index in range(len(leases))]

    async def finish(self, finishes: Sequence[Finish]) -> list[Finished | DuetimeError | None]:
        """Finish jobs and add their follow-up jobs, also in several queues, in bounded steps. An answer is None if its
        job did not exist any more.
        """
        by_queue: dict[Queue, list[int]] = {}
        for index, one in enumerate(finishes):
            check_finish(one, max_body=self._max_body)
            by_queue.setdefault(one.lease.queue, []).append(index)
        answers: dict[int, Finished | DuetimeError | None] = {}
        for queue, indexes in by_queue.items():
            for chunk in chunks(indexes, size=lambda index: finish_weight(finishes[index])):
                with _partly_done(answers):
                    found = await self._batcher.run(FinishRequest(queue, [finishes[index] for index in chunk]))
                answers.update(zip(chunk, found, strict=True))
        return [answers[index] for index in range(len(finishes))]

    async def results(self, queue: Queue, ids: Sequence[str], *, wait_ms: int = 0) -> list[KeptResult | None]:
        """The kept results of these jobs, None for a job without one. Wait up to `wait_ms` until all have one."""
        check_ids(ids)
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        found = await self._results.wait(queue, ids, deadline)
        return [found.get(job_id) for job_id in ids]

    async def release(self, lease: Lease, *, delay_ms: int = 0, error: str = "") -> Moved:
        """Give a job back to be tried again after a delay."""
        check_lease(lease)
        check_times(delay_ms=delay_ms)
        call = StoreCall("release", lease.queue, [lease], error=_cut(error))
        moved = await self.recorders.run_alone(call, lambda: self.store.release(lease, delay_ms, call.error))
        self._batcher.moved(lease.queue, [moved])
        return moved

    async def give_back(self, leases: Sequence[Lease], *, delay_ms: int | None = None) -> list[Moved | LeaseLost]:
        """Undo deliveries of one queue that their consumer did not get, or cannot work on before a delay, in bounded
        steps.
        """
        for lease in leases:
            check_lease(lease)
        check_times(delay_ms=delay_ms or 0)
        return await self._in_steps(lambda some: GiveBackRequest(some[0].queue, some, delay_ms), leases)

    async def kill(self, lease: Lease, *, error: str = "") -> Moved:
        """Send a job to the dead letters."""
        check_lease(lease)
        call = StoreCall("kill", lease.queue, [lease], error=_cut(error))
        return await self.recorders.run_alone(call, lambda: self.store.kill(lease, call.error))

    async def extend(self, lease: Lease, ttr_ms: int = DEFAULT_TTR_MS) -> int:
        """Renew a lease; answers its new end."""
        check_lease(lease)
        check_ttr(ttr_ms)
        until = await self.store.extend(lease, ttr_ms)
        self._reaper.run_within(ttr_ms / 1000)
        return until

    # --- for callers without a task

    def submit(self, request: Request[Answer], reply: ResultSink[Answer]) -> None:
        """`reply` gets the answer or the error of the verb, in a later turn of the event loop.

        Raises the error of a request that is not valid, and StoreUnavailable when the engine stops; then nothing is
        done and `reply` gets nothing. A caller that no longer wants its deliveries passes them to `give_back_later`.
        """
        request.check(self._max_body)
        self._batcher.lanes[type(request)].submit(request, reply)

    # --- for blocking callers in other threads

    def open_blocking(self) -> None:
        """Open the store's connection for `run_blocking`."""
        self._blocking = BlockingCalls(self._batcher)

    def run_blocking(self, request: Request[Answer]) -> Answer:
        """Do what a request asks for, for a thread that is not the engine's, and return its answer.

        It is done in the caller's own thread under the conditions of `BlockingCalls`, otherwise by the event loop. The
        answer is the same.
        """
        request.check(self._max_body)
        done, is_repeated = None, False
        try:
            done = self._blocking.run(request) if self._blocking else None
        except StoreUnavailable:
            if type(request) is not AckRequest:
                raise
            is_repeated = True  # an ack whose answer was lost is repeated: it is idempotent
        may_wait = isinstance(request, ReserveRequest) and request.wait_ms
        if done is not None and (done or not may_wait):
            return done
        work = self._run(request)
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as stopped:
            work.close()
            raise StoreUnavailable.stopping() from stopped
        try:
            return future.result()
        except StoreUnavailable as error:
            raise (error.after_a_loss() if is_repeated else error) from error
        except BaseException:
            future.cancel()
            raise

    async def _run(self, request: Request[Any]) -> Any:
        if isinstance(request, ReserveRequest):
            options = {"limit": request.limit, "ttr_ms": request.ttr_ms, "wait_ms": request.wait_ms}
            return await self.reserve([request.queue], **options)
        if isinstance(request, AckAndReserveRequest):
            [moved] = await self.ack([request.lease])
            if isinstance(moved, DuetimeError):
                raise moved
            return None
        return await self._batcher.run(request)

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
        check_tries(0 if tries is None else tries)
        moved: list[Moved] = []
        problem: StoreUnavailable | None = None
        steps = chunks(ids) if ids is not None else repeat(None, -(-limit // STEP_JOBS))
        for chunk in steps:
            want = min(limit - len(moved), STEP_JOBS) if chunk is None else len(chunk)
            with _partly_done(moved):
                answers = await self.recorders.run_alone(
                    StoreCall("respawn", queue, chunk or ()),
                    lambda ids=chunk, want=want: self.store.respawn(
                        queue, ids=ids, limit=want, ttl_ms=ttl_ms, tries=tries
                    ),
                )
            step = [answer for answer in answers if isinstance(answer, Moved)]
            problem = next((answer for answer in answers if isinstance(answer, StoreUnavailable)), problem)
            self._batcher.moved(queue, step)
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
                left = None if limit is None else limit - removed
                step = await self.recorders.run_alone(
                    StoreCall("purge", queue, states), lambda left=left: self.store.purge(queue, states, limit=left)
                )
            removed += step.removed
        for problem in step.problems:
            raise done_in_part(problem, removed, "removed")
        return removed

    async def _in_steps(
        self, request: Callable[[Sequence[T]], Request[Sequence[Answer]]], items: Sequence[T]
    ) -> list[Answer]:
        """One answer per item, in as many requests as STEP_JOBS asks for."""
        if 0 < len(items) <= STEP_JOBS:
            return list(await self._batcher.run(request(items)))
        answers: list[Answer] = []
        for chunk in chunks(items):
            with _partly_done(answers):
                answers += await self._batcher.run(request(chunk))
        return answers

    # --- what the parts call

    async def _reap(self, limit: int) -> Reaped:
        reaped = await self.recorders.run_reap(lambda: self._reap_store(limit))
        self._receipts = reaped.receipts
        for queue, moved in reaped.moved.items():
            self._batcher.moved(queue, moved)
        for queue, pushed in reaped.pushed.items():
            self._batcher.moved(queue, [moved for _, answer in pushed for moved in answer.jobs])
        return reaped

    async def _reap_store(self, limit: int) -> Reaped:
        """`_receipts` are of imported jobs that the last round has recorded; the store gets them once."""
        reaped = await self.store.reap(limit, recorded=self._receipts)
        self._receipts = ()
        return reaped

    async def give_back_all(self, deliveries: Sequence[Delivery]) -> None:
        """Undo deliveries that reached no consumer, also if the caller is cancelled meanwhile."""
        if tasks := self.give_back_later(deliveries):
            await asyncio.wait(tasks)

    def give_back_later(self, deliveries: Sequence[Delivery]) -> list[asyncio.Task[None]]:
        """Start to undo deliveries that reached no consumer. Never raises, because the consumer already ends with an
        error of its own. If jobs cannot be given back, their leases expire, which uses one of their tries.
        """
        by_queue: dict[Queue, list[Lease]] = {}
        for delivery in deliveries:
            by_queue.setdefault(delivery.lease.queue, []).append(delivery.lease)
        tasks: list[asyncio.Task[None]] = []
        for leases in by_queue.values():
            try:
                tasks.append(self._spawn(self._try_give_back(leases)))
            except StoreUnavailable as error:
                _log_lapsing(leases, error)
        return tasks

    async def _try_give_back(self, leases: Sequence[Lease]) -> None:
        try:
            await self.give_back(leases)
        except DuetimeError as error:
            _log_lapsing(leases, error)


def _log_lapsing(leases: Sequence[Lease], error: DuetimeError) -> None:
    jobs = [lease.id for lease in leases]
    log.warning("give_back_failed", extra={"queue": str(leases[0].queue), "jobs": jobs, "error": error.message})


def _cut(error: str) -> str:
    """At most MAX_ERROR bytes of UTF-8 that can be written: the end of a traceback says more than its middle."""
    return error.replace("\0", "?").encode(errors="replace")[-MAX_ERROR:].decode(errors="ignore")


@contextmanager
def _partly_done(done: Sized) -> Generator[None]:
    """Use it around one of several steps of a verb. If the step fails after others were `done`, the outcome of the verb
    is unknown, because it has happened in part.
    """
    try:
        yield
    except StoreUnavailable as error:
        if not done or error.outcome_unknown:
            raise
        raise StoreUnavailable(error.message, unknown=True) from error
