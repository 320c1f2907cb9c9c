"""The verbs that only read, each as one step on one snapshot."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from duetime.model.clock import MAX_INSTANT
from duetime.model.job import (
    DAY_MS,
    STEP_JOBS,
    TOTAL_DAYS,
    Counts,
    Job,
    QueueTotals,
    State,
    Totals,
    broken_totals,
    utc_date,
    within_step,
)
from duetime.model.names import Queue
from duetime.stores.base import Cursor, Page
from duetime.stores.sql.rows import PRIORITIES, QueueRow, view
from duetime.stores.sql.step import QueueNumbers, Step

_START = Cursor(0, -1, "")


def list_keys(
    step: Step, queue_row: QueueRow, state: State, *, after: Cursor = _START, limit: int, expired: bool = False
) -> list[Cursor]:
    """The next jobs of a state in its order. `expired` includes jobs that have expired and were not ended yet."""
    match state:
        case State.LEASED:
            keys = _keys(step, "list_leased", queue_row, after, limit)
        case State.DEAD:
            keys = _keys(step, "list_dead", queue_row, after, limit)
        case State.DELAYED:
            keys = _delayed(step, queue_row, after, limit)
        case State.READY:
            keys = _ready(step, queue_row, after, limit, 0 if expired else step.now)
    return list(islice(keys, limit))


def _keys(step: Step, query: str, queue_row: QueueRow, after: Cursor, limit: int) -> Iterator[Cursor]:
    rows = step.fetch(query, queue=queue_row.id, after_at=after.at, after_id=after.id, limit=limit)
    return (Cursor(0, at, job_id) for at, job_id in rows)


def _delayed(step: Step, queue_row: QueueRow, after: Cursor, limit: int) -> Iterator[Cursor]:
    after_at, after_id = max((after.at, after.id), (step.now + 1, ""))
    window = {"after_at": after_at, "after_id": after_id, "last": MAX_INSTANT, "alive_at": 0, "limit": limit}
    readings = (step.fetch("list_waiting", queue=queue_row.id, priority=int(each), **window) for each in PRIORITIES)
    return (Cursor(0, at, job_id) for at, job_id in heapq.merge(*readings))


def _ready(step: Step, queue_row: QueueRow, after: Cursor, limit: int, alive_at: int) -> Iterator[Cursor]:
    for priority in map(int, PRIORITIES):
        if priority >= after.priority:
            start = after if priority == after.priority else _START
            window = {
                "after_at": start.at,
                "after_id": start.id,
                "last": step.now,
                "alive_at": alive_at,
                "limit": limit,
            }
            for at, job_id in step.fetch("list_waiting", queue=queue_row.id, priority=priority, **window):
                yield Cursor(priority, at, job_id)


def list_jobs(step: Step, queue: Queue, state: State, cursor: str | None, limit: int) -> Page:
    queue_row = step.load_queue(queue)
    after = _START if cursor is None else Cursor.parse(cursor)
    keys = list_keys(step, queue_row, state, after=after, limit=limit + 1)
    found = _within_bound(step, queue, queue_row, [key.id for key in keys[:limit]])
    cursor = str(keys[len(found) - 1]) if len(found) < len(keys) else None
    return Page([job for job in found if job], cursor)


def get(step: Step, queue: Queue, ids: Sequence[str]) -> list[Job | None]:
    found = _within_bound(step, queue, step.load_queue(queue), ids[:STEP_JOBS])
    return [None if job and job.state is State.READY and 0 < job.expires_at < step.now else job for job in found]


def _within_bound(step: Step, queue: Queue, queue_row: QueueRow, ids: Sequence[str]) -> list[Job | None]:
    """The first of these jobs, at least one, whose payloads fit into STEP_BYTES; None for one that cannot be read."""
    sizes = dict(step.fetch("job_sizes", queue=queue_row.id, ids=list(ids)))
    first = list(within_step(ids, lambda job_id: sizes.get(job_id, 0)))
    rows = step.fetch("get_jobs", queue=queue_row.id, ids=list(set(first)))
    jobs = {row[0]: view(queue, row, step.now) for row in rows}
    return [jobs.get(job_id) for job_id in first]


def counts(step: Step, queues: Sequence[Queue]) -> list[Counts]:
    return [_counts(step, numbers) for numbers in step.queue_numbers(queues)]


def _counts(step: Step, numbers: QueueNumbers) -> Counts:
    queue_row, due, gone, damaged = numbers
    return Counts(
        delayed=queue_row.jobs - queue_row.leased - queue_row.dead - due,
        ready=due - gone,
        leased=queue_row.leased,
        dead=queue_row.dead + (gone if queue_row.expired_to_dead else 0),
        expired=queue_row.expired + gone,
        now=step.now,
        damaged=damaged,
    )


def totals(step: Step, queues: Sequence[Queue]) -> list[QueueTotals]:
    return [_totals(step, days) for days in step.totals_by_day(queues)]


def _totals(step: Step, days: Sequence[Sequence[int]]) -> QueueTotals:
    first = step.now // DAY_MS - TOTAL_DAYS + 1
    by_day: dict[int, list[tuple[int, ...]]] = {}
    for day, *numbers in days:
        by_day.setdefault(day, []).append(tuple(numbers))
    running = _sum(numbers for rows in by_day.values() for numbers in rows)
    return QueueTotals(running, {utc_date(day): _sum(by_day[day]) for day in sorted(by_day) if day >= first})


def _sum(rows: Iterable[tuple[int, ...]]) -> Totals:
    return Totals(*map(sum, zip(*rows, strict=True)))


def due_histogram(step: Step, queue: Queue, edges: Sequence[int]) -> list[int]:
    return step.count_between(step.load_queue(queue), edges)


def queues(step: Step, namespace: str | None) -> list[Queue]:
    if namespace is None:
        return [Queue(*row) for row in step.fetch("list_queues")]
    return [Queue(*row) for row in step.fetch("list_namespace", namespace=namespace)]


def check(step: Step) -> Iterator[str]:
    for name, jobs, leased, dead, *walked in step.fetch("check_counts"):
        yield f"{name}: counts {jobs} jobs, {leased} leased, {dead} dead, but a walk finds {walked}"
    for queue, job_id, place in step.fetch("check_places"):
        yield f"queue {queue}: the fields of {job_id!r} do not fit place {place}"
    for queue, job_id in step.fetch("check_owners"):
        what = "was set aside, because it cannot be read as a job" if queue < 0 else "belongs to no queue"
        yield f"queue {queue}: {job_id!r} {what}"
    for queue, job_id, what in step.fetch("check_bodies"):
        yield f"queue {queue}: {job_id!r} {what}"
    for name, reap_at, needed_at in step.fetch("check_agenda"):
        yield f"{name}: the reaper comes at {reap_at} and is needed at {needed_at}"
    for queue in queues(step, None):
        queue_row = step.load_queue(queue)
        [found] = totals(step, [queue])
        running = found.running
        for problem in broken_totals(running, jobs=queue_row.jobs, leased=queue_row.leased, dead=queue_row.dead):
            yield f"{queue}: {problem}"
