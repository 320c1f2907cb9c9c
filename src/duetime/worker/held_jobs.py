"""The jobs that a worker holds, from the moment they are reserved until the store knows what became of them.

What the pool reports about a run becomes a decision (`retry_rules.py`), the decision a call to the store
(`consumer/held_leases.py`), and the store's answer an event for listeners (`events.py`).
"""

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from duetime.client import AsyncClient
from duetime.client.calls import ClientLeases
from duetime.consumer.held_leases import Answer, HeldLeases, Spawn
from duetime.model.errors import NOT_JSON, DuetimeError, LeaseLost, StoreUnavailable
from duetime.model.job import DAY_MS, Delivery, Event, Moved
from duetime.stores.base import Finish
from duetime.wire.job_output import LIFE_MS, LastLines, output_names
from duetime.wire.payload import (
    PAUSED_TASKS,
    UNKNOWN_LIFE_MS,
    UNKNOWN_TASKS,
    Payload,
    paused_task,
    read,
    unknown_task,
)
from duetime.worker.chains import next_job
from duetime.worker.current_job import EXTEND, OUTPUT, PROGRESS
from duetime.worker.events import JobEvents
from duetime.worker.execution import UnknownTask, ended_by
from duetime.worker.groups import joining_of
from duetime.worker.options import WorkerOptions
from duetime.worker.retry_rules import Decision, Policy, Verb, decide, last, refused
from duetime.worker.runs import DONE, Ended, Failure, Outcome, Run
from duetime.worker.shared_counters import count, exceptions_name, progress_name

if TYPE_CHECKING:
    from duetime.worker.app import App

log = logging.getLogger("duetime.worker")

FINISHED = Decision(Verb.ACK)
NOT_A_TASK = "duetime.NotATask"
NOT_FINISHED = "duetime.NotFinished"
PAUSED_MS = 5_000
"""The delay of a job of a paused task."""
MOST_OUTPUTS = 20
"""Jobs whose output a worker writes in a second."""
MOST_UNKNOWN = 20
"""How many unknown tasks a worker reports by name at a time."""


class HeldJobs:
    """`reserved` counts the jobs that were reserved and not given back; `jobs` those of them that are over."""

    def __init__(self, app: "App", options: WorkerOptions, client: AsyncClient, spawn: Spawn) -> None:
        self.held: dict[int, Run] = {}
        self.reserved = 0
        self.jobs = 0
        self.last_job_at = time.monotonic()
        self.empty = asyncio.Event()
        self.empty.set()
        self.events = JobEvents(app)
        self._app = app
        self._options = options
        self._client = client
        self._spawn = spawn
        store = ClientLeases(client.send)
        self.leases = HeldLeases(lambda: store, round(options.lease_s * 1000), spawn)
        self._policy = Policy(options.tries, options.backoff)
        self._numbers = itertools.count(1)
        self._progress: dict[int, Run] = {}
        self._paused: frozenset[str] = frozenset()
        self._unknown: Counter[tuple[str, str]] = Counter()
        self._changed: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call this whenever a job is over."""
        self._changed.append(listener)

    # --- in

    def add(self, delivery: Delivery) -> Run | None:
        """Hold a reserved job; None if it must not be run, and is being ended."""
        try:
            payload = read(delivery.body)
        except NOT_JSON:
            payload = Payload(displayName=None, name="", data=msgspec.Raw(b"null"), uuid=delivery.lease.id)
        task = self._app.find_task(payload.name)
        timeout_s = payload.timeout if payload.timeout is not None else self._options.timeout_s
        if task is not None and task.timeout_s is not None:
            timeout_s = task.timeout_s  # that of the code counts before those of the job and the worker
        run = Run(next(self._numbers) & 0xFFFFFFFF, delivery, payload, timeout_s=timeout_s)
        self.held[run.number] = run
        self.leases.add(delivery.lease, partial(self.lease_lost, run))
        self.reserved += 1
        self.empty.clear()
        self.events.notify("popped", run)
        if not payload.name:
            failure = Failure(NOT_A_TASK, "the body of the job is no task")
            return self._refuse(run, Decision(Verb.KILL, failure=failure, failed=True))
        if task is None:
            return self.ended(run, ended_by(UnknownTask.of(payload.name)))
        if failure := refused(run, self._policy, self._app.clock.now_ms()):
            return self._refuse(run, last(run, failure))
        return self._put_off(run) if payload.name in self._paused else run

    def _refuse(self, run: Run, decision: Decision) -> None:
        self.events.notify("processing", run)
        run.outcome = Outcome(Ended.RAISED, decision.failure)
        run.ended_at = time.monotonic()
        self._report(run, decision)

    def _put_off(self, run: Run) -> None:
        """The task is paused: its job comes back later, and no try is lost."""
        self.reserved -= 1
        run.ended_at = time.monotonic()
        self._report(run, Decision(Verb.GIVE_BACK, PAUSED_MS, by_task=True))

    async def follow_paused_tasks(self) -> None:
        """Learn which tasks an operator has paused. Raises DuetimeError."""
        namespace = self._app.namespace
        names: list[str] = []
        if await self._client.send(count(namespace, PAUSED_TASKS)) > 0:
            names = [one for one in self._app.tasks if await self._client.send(count(namespace, paused_task(one))) > 0]
        self._paused = frozenset(names)

    def give_back(self, run: Run) -> None:
        """Give the job back: it has not begun, another worker may have it, and no try is lost."""
        self.reserved -= 1
        run.ended_at = run.ended_at or time.monotonic()
        self._report(run, Decision(Verb.GIVE_BACK))

    # --- what the pool says

    def began(self, run: Run) -> None:
        if not run.was_announced:
            run.was_announced = True
            self.events.notify("processing", run)

    def ended(self, run: Run, outcome: Outcome) -> None:
        run.ended_at = time.monotonic()
        run.outcome = outcome
        if outcome is DONE:
            self._report(run, FINISHED)
        elif outcome.ended is Ended.BACK:
            self.give_back(run)
        elif outcome.ended is Ended.RAISED and run.payload.maxExceptions:
            self._spawn(self._count_exception(run))
        else:
            self.reserved -= outcome.ended in (Ended.POSTPONED, Ended.UNKNOWN)
            if outcome.ended is Ended.UNKNOWN:
                self._count_unknown(run)
            self._decide(run)

    def said(self, run: Run, word: str, value: Any) -> None:
        if word == EXTEND:
            run.deadline = time.monotonic() + value / 1000
        elif word == PROGRESS:
            run.progress = value
            self._progress[run.number] = run
        elif word == OUTPUT:
            run.output = run.output or LastLines()
            run.output.add(value)
            run.has_new_output = True

    def _decide(self, run: Run, *, exhausted: bool = False) -> None:
        task = self._app.find_task(run.payload.name)
        backoff = task.backoff if task is not None else None
        now_ms = self._app.clock.now_ms()
        decision = decide(run, run.outcome, policy=self._policy, backoff=backoff, now_ms=now_ms)
        if exhausted and not decision.failed:
            decision = last(run, run.outcome.failure)
        self._report(run, decision)

    def _count_unknown(self, run: Run) -> None:
        """The first of a task since the last report is logged immediately."""
        key = (run.delivery.lease.queue.name, run.payload.name)
        if key not in self._unknown:
            log.warning("unknown_task", extra={"task": key[1], "queue": key[0], "job": run.delivery.lease.id})
        self._unknown[key] += 1

    async def report_unknown_tasks(self) -> None:
        """Count the deliveries of unknown tasks since the last report, for metrics and the console. Raises
        DuetimeError.
        """
        unknown, self._unknown = self._unknown, Counter()
        counters = Counter({unknown_task(*key): by for key, by in unknown.most_common(MOST_UNKNOWN)})
        if unknown:
            counters[UNKNOWN_TASKS] = unknown.total()
        for name, by in counters.items():
            await self._client.send(count(self._app.namespace, name, by, life_ms=UNKNOWN_LIFE_MS))

    async def _count_exception(self, run: Run) -> None:
        lease = run.delivery.lease
        name = exceptions_name(lease.id, lease.born)
        try:
            exceptions = await self._client.send(count(lease.queue.namespace, name, 1, life_ms=DAY_MS))
        except DuetimeError as error:
            log.warning("exception_not_counted", extra={"job": lease.id, "error": error.message})
            exceptions = 1
        self._decide(run, exhausted=exceptions >= (run.payload.maxExceptions or exceptions + 1))

    # --- out

    def _report(self, run: Run, decision: Decision) -> None:
        """Report to the store what became of a job."""
        if decision.verb is Verb.ACK:
            finish = finish_of(self._app, run)
            self.leases.ack(run.delivery.lease, partial(self._reported, run, decision, finish=finish), finish)
        else:
            self._spawn(self._release(run, decision))

    async def _release(self, run: Run, decision: Decision) -> None:
        lease, delay_ms, error = run.delivery.lease, decision.delay_ms, error_text(decision)
        try:
            if decision.verb is Verb.RELEASE:
                answer: Answer = await self.leases.release(lease, delay_ms=delay_ms, error=error)
            elif decision.verb is Verb.KILL:
                answer = await self.leases.kill(lease, error=error)
            else:
                answer = await self.leases.give_back(lease, delay_ms=delay_ms if decision.by_task else None)
        except DuetimeError as refusal:
            answer = refusal
        self._reported(run, decision, answer)

    def _reported(self, run: Run, decision: Decision, answer: Answer, finish: Finish | None = None) -> None:
        if finish and isinstance(answer, DuetimeError) and not isinstance(answer, LeaseLost):
            failure = Failure(NOT_FINISHED, f"job is done, but its follow-up was refused: {answer.message}")
            self._report(run, Decision(Verb.KILL, failure=failure, failed=True))
            return
        if run.lost or isinstance(answer, DuetimeError):
            self._lost(run, answer)
        elif decision.verb is Verb.GIVE_BACK:
            self.events.on_given_back(run, decision)
        elif decision.verb is Verb.ACK:
            self.events.on_acked(run, decision)
        elif answer is not None and answer.event is Event.RELEASED:
            self.events.on_retry(run, decision, run.outcome.ended, decision.delay_ms)
        else:
            self._spawn(self._over(run, decision, answer))
            return
        self._close(run, decision)

    async def _over(self, run: Run, decision: Decision, answer: Moved | None) -> None:
        await self.events.on_failed(run, decision, run.outcome.ended, answer.reason or answer.event if answer else "")
        self._close(run, decision)

    def _lost(self, run: Run, error: Answer) -> None:
        if isinstance(error, DuetimeError) and not isinstance(error, LeaseLost):
            log.error("not_reported", extra={"job": run.delivery.lease.id, "error": error.message})
        if not run.lost:
            self.events.notify("lease_lost", run)
        self.events.notify("attempted", run)

    def lease_lost(self, run: Run) -> None:
        """A running job lost its lease: it was cancelled or replaced, or the store was away for too long. Its
        result is not wanted any more, so its time is over.
        """
        run.lost = True
        self.events.notify("lease_lost", run)
        if run.started_at:
            run.deadline = time.monotonic()

    def _close(self, run: Run, decision: Decision) -> None:
        self.held.pop(run.number, None)
        if decision.verb is not Verb.GIVE_BACK:
            self.jobs += 1
            self.last_job_at = time.monotonic()
        if not self.held:
            self.empty.set()
        for listener in self._changed:
            listener()

    async def write_progress(self) -> None:
        """The progress that tasks reported since the last call; the latest report wins."""
        reports, self._progress = self._progress, {}
        for run in reports.values():
            queue, job_id = run.delivery.lease.queue, run.delivery.lease.id
            name = progress_name(queue, job_id)
            try:
                before = await self._client.send(count(queue.namespace, name))
                if before != run.progress:
                    await self._client.send(count(queue.namespace, name, run.progress - before, life_ms=DAY_MS))
            except StoreUnavailable:
                self._progress = {**reports, **self._progress}
                return  # each call takes seconds then; the next round goes on
            except DuetimeError as error:
                log.warning("progress_not_kept", extra={"job": job_id, "error": error.message})

    async def write_output(self) -> None:
        """The lines that running tasks logged: those that are new, and those that would soon be forgotten."""
        refresh_at = time.monotonic() - LIFE_MS / 2000
        runs = [one for one in self.held.values() if one.output and not one.ended_at]
        due = [one for one in runs if one.has_new_output or one.output_at < refresh_at]
        for run in sorted(due, key=lambda one: one.output_at)[:MOST_OUTPUTS]:
            run.has_new_output, run.output_at = False, time.monotonic()
            lease, lines = run.delivery.lease, run.output.read() if run.output else []
            try:
                for name in output_names(lease.queue, lease.id, int(time.time() * 1000), lines):
                    await self._client.send(count(lease.queue.namespace, name, 1, life_ms=LIFE_MS))
            except StoreUnavailable:
                run.has_new_output = True
                return
            except DuetimeError as error:
                log.warning("output_not_kept", extra={"job": lease.id, "error": error.message})


def finish_of(app: "App", run: Run) -> Finish | None:
    """The data stored together with the ack of a job: its result, the next step of its chain, the join of its group.
    Returns None if a plain ack will do.
    """
    lease, payload, result = run.delivery.lease, run.payload, run.outcome.result
    follows = payload.chained is not msgspec.UNSET or payload.joining is not msgspec.UNSET
    if run.outcome.ended is not Ended.DONE or (result is None and not follows):
        return None
    task = app.find_task(payload.name)
    kept_ms = task.result_ms if task is not None else 0
    following = joining = None
    try:
        joining = joining_of(payload)
        following = next_job(lease.queue, payload, result)
    except NOT_JSON as error:
        log.error("what_follows_not_readable", extra={"job": lease.id, "error": str(error)})
    if joining is not None:
        kept_ms = max(kept_ms, joining.results_ms)
    if following is None and joining is None and (result is None or not kept_ms):
        return None
    join = joining.join if joining is not None else None
    return Finish(lease, [following] if following else (), result if kept_ms else None, kept_ms, join)


def error_text(decision: Decision) -> str:
    return "" if decision.failure is None else decision.failure.traceback or str(decision.failure)
