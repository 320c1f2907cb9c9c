"""Looking without touching: each view is one step of the reader, on one snapshot."""

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
    payload_bytes,
    utc_date,
)
from duetime.names import Queue
from duetime.stores.base import Page
from duetime.stores.sql.rows import PRIORITIES, QueueRow, as_json, view
from duetime.stores.sqlite.rows import earliest, fetch, fetch_one, load_queue
from duetime.stores.sqlite.threads import Step


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
    """The next jobs of a state in its order; on demand with those that have expired and were not yet ended."""
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
    rows = fetch(step, query, queue=line.id, after_at=after.at, after_id=after.id, limit=limit)
    return (Key(0, at, job_id) for at, job_id in rows)


def _delayed(step: Step, line: QueueRow, after: Key, limit: int) -> Iterator[Key]:
    after_at, after_id = max((after.at, after.id), (step.now + 1, ""))
    window = {"after_at": after_at, "after_id": after_id, "last": MAX_INSTANT, "alive_at": 0, "limit": limit}
    readings = (fetch(step, "list_waiting", queue=line.id, priority=int(each), **window) for each in PRIORITIES)
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
            for at, job_id in fetch(step, "list_waiting", queue=line.id, priority=priority, **window):
                yield Key(priority, at, job_id)


def list_jobs(step: Step, queue: Queue, state: State, cursor: str | None, limit: int) -> Page:
    line = load_queue(step, queue)
    after = Key.parse(cursor) if cursor else _START
    keys = list_keys(step, line, state, after=after, limit=limit + 1)
    jobs, size = list[Job](), 0
    seen = 0
    for (row,) in (fetch(step, "get_jobs", queue=line.id, ids=as_json([key.id])) for key in keys[:limit]):
        job = view(queue, row, step.now)
        size += payload_bytes(job) if job else 0
        if jobs and size > STEP_BYTES:
            break
        seen += 1
        if job:
            jobs.append(job)
    return Page(jobs, str(keys[seen - 1]) if seen < len(keys) else None)


def get(step: Step, queue: Queue, ids: Sequence[str]) -> list[Job | None]:
    line = load_queue(step, queue)
    jobs, room = list[Job | None](), STEP_BYTES
    for job_id in ids[:STEP_JOBS]:
        found = [view(queue, row, step.now) for row in fetch(step, "get_jobs", queue=line.id, ids=as_json([job_id]))]
        job = found[0] if found and found[0] and not _expired(found[0], step.now) else None
        room -= payload_bytes(job) if job else 0
        if jobs and room < 0:
            break
        jobs.append(job)
    return jobs


def _expired(job: Job, now: int) -> bool:
    return job.state is State.READY and 0 < job.expires_at < now


def heads(step: Step, queues: Sequence[Queue]) -> list[int | None]:
    lines = (load_queue(step, queue) for queue in queues)
    return [None if line.paused else earliest(step, line) for line in lines]


def counts(step: Step, queues: Sequence[Queue]) -> list[Counts]:
    return [_counts(step, load_queue(step, queue)) for queue in queues]


def _counts(step: Step, line: QueueRow) -> Counts:
    """Delayed is what remains: the reading is over what is ready, which a healthy queue has little of."""
    waiting = line.jobs - line.leased - line.dead
    due = _count(step, line, 0, step.now + 1) if waiting else 0
    (gone,) = fetch_one(step, "count_expired", queue=line.id, now=step.now)
    return Counts(
        delayed=waiting - due,
        ready=due - gone,
        leased=line.leased,
        dead=line.dead + (gone if line.expired_to_dead else 0),
        expired=line.expired + gone,
        now=step.now,
        damaged=fetch_one(step, "count_jobs", queue=-line.id)[0] if line.id else 0,
    )


def totals(step: Step, queue: Queue) -> QueueTotals:
    first = step.now // DAY_MS - TOTAL_DAYS + 1
    rows = fetch(step, "get_totals", namespace=queue.namespace, queue=queue.name)
    running = Totals(*map(sum, zip(*(numbers for _, *numbers in rows), strict=True)))
    return QueueTotals(running, {utc_date(day): Totals(*numbers) for day, *numbers in rows if day >= first})


def due_histogram(step: Step, queue: Queue, edges: Sequence[int]) -> list[int]:
    line = load_queue(step, queue)
    return [_count(step, line, first, last) for first, last in pairwise(edges)]


def _count(step: Step, line: QueueRow, first: int, last: int) -> int:
    return sum(
        fetch_one(step, "count_waiting", queue=line.id, priority=int(priority), first=first, last=last)[0]
        for priority in PRIORITIES
    )


def queues(step: Step, namespace: str | None) -> list[Queue]:
    if namespace is None:
        return [Queue(*row) for row in fetch(step, "list_queues")]
    return [Queue(*row) for row in fetch(step, "list_namespace", namespace=namespace)]


def check(step: Step) -> list[str]:
    """What the rows say means something only in a file that is whole."""
    broken = [f"the file: {finding}" for (finding,) in fetch(step, "check_file") if finding != "ok"]
    return broken or list(_problems(step))


def _problems(step: Step) -> Iterator[str]:
    for name, jobs, leased, dead, *walked in fetch(step, "check_counts"):
        yield f"{name}: counts {jobs} jobs, {leased} leased, {dead} dead, but a walk finds {walked}"
    for queue, job_id, place in fetch(step, "check_places"):
        yield f"queue {queue}: the fields of {job_id!r} do not fit place {place}"
    for queue, job_id in fetch(step, "check_owners"):
        what = "was set aside, because it cannot be read as a job" if queue < 0 else "belongs to no queue"
        yield f"queue {queue}: {job_id!r} {what}"
    for name, reap_at, needed_at in fetch(step, "check_agenda"):
        yield f"{name}: the reaper comes at {reap_at} and is needed at {needed_at}"
    for queue in queues(step, None):
        line = load_queue(step, queue)
        running = totals(step, queue).running
        for problem in broken_totals(running, jobs=line.jobs, leased=line.leased, dead=line.dead):
            yield f"{queue}: {problem}"
