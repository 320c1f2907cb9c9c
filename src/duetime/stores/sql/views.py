"""The verbs that only read, each as one step on one snapshot."""

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

from duetime.clock import MAX_INSTANT
from duetime.job import (
    DAY_MS,
    STEP_BYTES,
    STEP_JOBS,
    TOTAL_DAYS,
    Counts,
    Job,
    QueueTotals,
    State,
    Totals,
    broken_totals,
    utc_date,
)
from duetime.names import Queue
from duetime.stores.base import Page
from duetime.stores.sql.rows import PRIORITIES, QueueRow, view
from duetime.stores.sql.step import Step


class Key(NamedTuple):
    """Where a job stands in the order of its state. `priority` is 0 where it does not matter."""

    priority: int
    at: int
    id: str

    def __str__(self) -> str:
        return f"{self.priority}:{self.at}:{self.id}"

    @classmethod
    def parse(cls, cursor: str) -> "Key":
        priority, at, job_id = cursor.split(":", 2)
        return cls(int(priority), int(at), job_id)


_START = Key(0, -1, "")


def list_keys(
    step: Step, line: QueueRow, state: State, *, after: Key = _START, limit: int, expired: bool = False
) -> list[Key]:
    """The next jobs of a state in its order. `expired` includes jobs that have expired and were not ended yet."""
    match state:
        case State.LEASED:
            keys = _keys(step, "list_leased", line, after, limit)
        case State.DEAD:
            keys = _keys(step, "list_dead", line, after, limit)
        case State.DELAYED:
            keys = _delayed(step, line, after, limit)
        case State.READY:
            keys = _ready(step, line, after, limit, 0 if expired else step.now)
    return list(islice(keys, limit))


def _keys(step: Step, query: str, line: QueueRow, after: Key, limit: int) -> Iterator[Key]:
    rows = step.fetch(query, queue=line.id, after_at=after.at, after_id=after.id, limit=limit)
    return (Key(0, at, job_id) for at, job_id in rows)


def _delayed(step: Step, line: QueueRow, after: Key, limit: int) -> Iterator[Key]:
    after_at, after_id = max((after.at, after.id), (step.now + 1, ""))
    window = {"after_at": after_at, "after_id": after_id, "last": MAX_INSTANT, "alive_at": 0, "limit": limit}
    readings = (step.fetch("list_waiting", queue=line.id, priority=int(each), **window) for each in PRIORITIES)
    return (Key(0, at, job_id) for at, job_id in heapq.merge(*readings))


def _ready(step: Step, line: QueueRow, after: Key, limit: int, alive_at: int) -> Iterator[Key]:
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
            for at, job_id in step.fetch("list_waiting", queue=line.id, priority=priority, **window):
                yield Key(priority, at, job_id)


def list_jobs(step: Step, queue: Queue, state: State, cursor: str | None, limit: int) -> Page:
    line = step.load_queue(queue)
    after = Key.parse(cursor) if cursor else _START
    keys = list_keys(step, line, state, after=after, limit=limit + 1)
    found = _within_bound(step, queue, line, [key.id for key in keys[:limit]])
    cursor = str(keys[len(found) - 1]) if len(found) < len(keys) else None
    return Page([job for job in found if job], cursor)


def get(step: Step, queue: Queue, ids: Sequence[str]) -> list[Job | None]:
    found = _within_bound(step, queue, step.load_queue(queue), ids[:STEP_JOBS])
    return [None if job is None or _expired(job, step.now) else job for job in found]


def _within_bound(step: Step, queue: Queue, line: QueueRow, ids: Sequence[str]) -> list[Job | None]:
    """The first of these jobs, at least one, whose payloads fit into STEP_BYTES; None for one that cannot be read."""
    sizes = dict(step.fetch("job_sizes", queue=line.id, ids=list(ids)))
    room, first = STEP_BYTES, list[str]()
    for job_id in ids:
        room -= sizes.get(job_id, 0)
        if first and room < 0:
            break
        first.append(job_id)
    rows = step.fetch("get_jobs", queue=line.id, ids=list(set(first)))
    jobs = {row[0]: view(queue, row, step.now) for row in rows}
    return [jobs.get(job_id) for job_id in first]


def _expired(job: Job, now: int) -> bool:
    return job.state is State.READY and 0 < job.expires_at < now


def counts(step: Step, queues: Sequence[Queue]) -> list[Counts]:
    return [_counts(step, step.load_queue(queue)) for queue in queues]


def _counts(step: Step, line: QueueRow) -> Counts:
    """Only the jobs that are due are counted row by row, because a healthy queue has few; delayed jobs are the rest."""
    waiting = line.jobs - line.leased - line.dead
    due = _count(step, line, 0, step.now + 1) if waiting else 0
    (gone,) = step.fetch_one("count_expired", queue=line.id, now=step.now)
    return Counts(
        delayed=waiting - due,
        ready=due - gone,
        leased=line.leased,
        dead=line.dead + (gone if line.expired_to_dead else 0),
        expired=line.expired + gone,
        now=step.now,
        damaged=step.fetch_one("count_jobs", queue=-line.id)[0] if line.id else 0,
    )


def totals(step: Step, queue: Queue) -> QueueTotals:
    first = step.now // DAY_MS - TOTAL_DAYS + 1
    rows = step.fetch("get_totals", namespace=queue.namespace, queue=queue.name)
    running = Totals(*map(sum, zip(*(numbers for _, *numbers in rows), strict=True)))
    return QueueTotals(running, {utc_date(day): Totals(*numbers) for day, *numbers in rows if day >= first})


def due_histogram(step: Step, queue: Queue, edges: Sequence[int]) -> list[int]:
    line = step.load_queue(queue)
    return [_count(step, line, first, last) for first, last in pairwise(edges)]


def _count(step: Step, line: QueueRow, first: int, last: int) -> int:
    return sum(
        step.fetch_one("count_waiting", queue=line.id, priority=int(priority), first=first, last=last)[0]
        for priority in PRIORITIES
    )


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
    for name, reap_at, needed_at in step.fetch("check_agenda"):
        yield f"{name}: the reaper comes at {reap_at} and is needed at {needed_at}"
    for queue in queues(step, None):
        line = step.load_queue(queue)
        running = totals(step, queue).running
        for problem in broken_totals(running, jobs=line.jobs, leased=line.leased, dead=line.dead):
            yield f"{queue}: {problem}"
