"""Pushes portions of rows to a store or a server: waits out outages, keeps a pace, counts what became of the rows.

`push_portions` runs in one task on an executor. A store that does not answer is tried again for about a minute before
the task fails: every step may be repeated, and with marks a repetition adds nothing. Any other refusal ends the load
with the store's own words.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from duetime.client.store_link import open_bulk_load
from duetime.journal.events import REPEATED
from duetime.model.backoff import Exponential, Outage
from duetime.model.errors import DuetimeError, StoreUnavailable
from duetime.model.job import Event, Moved
from duetime.spark.load.chunks import Portion
from duetime.spark.load.options import Action, LoadOptions
from duetime.stores.base import Mark, StoreInfo
from duetime.stores.bulk import Bulk, Loaded, LoadStep, Pace, Pacer

TRIES = 12
PAUSE = Exponential(base_ms=100, cap_ms=10_000)

T = TypeVar("T")
OnLoaded = Callable[[Portion, Loaded], Awaitable[None]]


@dataclass
class PushCounts:
    """What became of the rows. Repeated steps are included: their marks remember the answer.

    `replaced` counts rescheduled jobs as well. `cancelled` does not count jobs that were gone already.
    """

    rows: int = 0
    accepted: int = 0
    kept: int = 0
    repeated: int = 0
    replaced: int = 0
    cancelled: int = 0

    def count(self, answer: Loaded) -> None:
        size = answer.step.last - answer.step.first
        self.rows += size
        self.kept += answer.count(Event.KEPT)
        self.accepted += answer.count(Event.ACCEPTED)
        self.replaced += answer.count(Event.REPLACED, Event.RESCHEDULED)
        self.cancelled += answer.count(Event.CANCELLED, Event.DELETED)
        self.repeated += size if answer.repeated else 0


class LoadFailed(DuetimeError):
    """A part of the load was refused."""

    code = "load_failed"
    status = 409


async def open_destination(options: LoadOptions) -> Bulk:
    """The store, or the server in front of it."""
    return await open_bulk_load(options.store_url, namespace=options.namespace, token=options.token)


async def ask_store(options: LoadOptions) -> StoreInfo:
    """The time and the epoch of the destination. Raises if it does not answer or reports a problem."""
    destination = await open_destination(options)
    try:
        info = await destination.ping()
    finally:
        await destination.close()
    for problem in info.problems.values():
        raise problem  # its epoch may not be known: that must not look like a store that was wiped
    return info


async def patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Do the work, and repeat it for about a minute while the store does not answer."""
    outage = Outage(PAUSE)
    while True:
        try:
            return await work()
        except StoreUnavailable:
            outage.failed()
            if outage.failures == TRIES:
                raise
        await asyncio.sleep(outage.pause_s)


async def push_portions(
    portions: Iterable[Portion],
    options: LoadOptions,
    *,
    writers: int,
    on_loaded: OnLoaded | None = None,
    on_step: Callable[[Loaded], None] | None = None,
) -> PushCounts:
    """Push all portions. `writers` tasks share the pace. Raises LoadFailed, or StoreUnavailable after the retries.

    `on_loaded` gets every step that was pushed, with its portion; `on_step` then counts it.
    """
    tally, destination = PushCounts(), await patiently(lambda: open_destination(options))
    pace = Pacer(options.max_jobs_per_second / max(writers, 1)).wait if options.max_jobs_per_second else None
    try:
        for portion in portions:
            by_id = portion.action in (Action.CANCEL, Action.RESCHEDULE)
            async for answer in (_change_steps if by_id else _push)(destination, portion, pace):
                tally.count(answer)
                if on_loaded:
                    await on_loaded(portion, answer)
                if on_step:
                    on_step(answer)
    except DuetimeError as error:
        fields = {**error.fields, "pushed": tally.rows}
        raise type(error)(f"{error.message}; this task had pushed {tally.rows} rows before", **fields) from error
    finally:
        await destination.close()
    return tally


async def _push(destination: Bulk, portion: Portion, pace: Pace | None) -> AsyncIterator[Loaded]:
    """The portion's answers in the order of its steps, whatever had to be repeated."""
    answers: dict[int, Loaded] = {}
    left, outage = list(portion.steps), Outage(PAUSE)
    while left:
        unanswered: list[LoadStep] = []
        problem: StoreUnavailable | None = None
        async for answer in destination.load(portion.queue, portion.columns, left, pace=pace):
            if isinstance(answer, Loaded):
                answers[answer.step.first] = answer
            elif isinstance(answer.error, StoreUnavailable):
                unanswered.append(answer.step)
                problem = answer.error
            else:
                raise LoadFailed(f"{portion.queue}: {answer.error.message}", code=answer.error.code)
        if problem is not None:
            if len(unanswered) < len(left):
                outage.worked()
            outage.failed()
            if outage.failures == TRIES:
                raise problem
            await asyncio.sleep(outage.pause_s)
        left = unanswered
    for step in portion.steps:
        yield answers[step.first]


async def _change_steps(destination: Bulk, portion: Portion, pace: Pace | None) -> AsyncIterator[Loaded]:
    for step in portion.steps:
        if pace:
            await pace(step.last - step.first)
        yield await patiently(lambda step=step: _change(destination, portion, step))


async def _change(destination: Bulk, portion: Portion, step: LoadStep) -> Loaded:
    """Cancel or reschedule the jobs of a step. Idempotent."""
    if portion.action is Action.RESCHEDULE:
        return await _reschedule(destination, portion, step)
    ids: list[str] = portion.columns.ids.slice(step.first, step.last - step.first).to_pylist()
    answers = await destination.cancel(portion.queue, ids)
    # Where there is no job, an earlier try may have removed it and died before it wrote that to the journal.
    gone = [Moved(Event.ACKED, name, 0, reason=REPEATED) for name in ids]
    moved = [_checked(answer) or none for answer, none in zip(answers, gone, strict=True)]
    return Loaded(step, (await destination.ping()).now, 0, moved)


async def _reschedule(destination: Bulk, portion: Portion, step: LoadStep) -> Loaded:
    """Move the jobs that wait. A job that does not wait (any more) is replaced if its new time is still to come.

    If that time has passed, the job was delivered at the old time or, by an earlier try, at the new one. Either way
    it is left as it is (KEPT), so that nothing is delivered twice.
    """
    queue, columns, _, _ = portion
    jobs = list(zip(range(step.first, step.last), columns.jobs(step.first, step.last), strict=True))
    moved: dict[int, Moved] = {}
    for due_at, group in groupby(jobs, lambda one: one[1].due_at or 0):
        some = list(group)
        answers = await destination.reschedule(queue, [job.id for _, job in some], due_at)
        for (place, _), answer in zip(some, answers, strict=True):
            if isinstance(answer, Moved):
                moved[place] = answer
            elif isinstance(answer, StoreUnavailable):
                raise answer
    now = (await destination.ping()).now
    left = [(place, job) for place, job in jobs if place not in moved]
    steps: list[LoadStep] = []
    for place, job in left:
        mark = step.mark and Mark(f"{step.mark.name}/{place - step.first}", step.mark.digest, step.mark.life_ms)
        if (job.due_at or 0) > now:
            steps.append(LoadStep(place, place + 1, mark, if_exists=step.if_exists))
    async for answer in destination.load(queue, columns, steps):
        if not isinstance(answer, Loaded):
            raise answer.error
        place = answer.step.first
        name, due_at = columns.ids[place].as_py(), columns.due_at[place].as_py()
        moved[place] = answer.moved[0] if answer.moved else Moved(Event.ACCEPTED, name, answer.born, 0, due_at)
    return Loaded(step, now, 0, [moved.get(place) or Moved(Event.KEPT, job.id, 0) for place, job in jobs])


def _checked(answer: Moved | DuetimeError | None) -> Moved | None:
    if isinstance(answer, DuetimeError):
        raise answer
    return answer
