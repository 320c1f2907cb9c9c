"""The usual push, reserve and ack in one round trip: the whole verb is one statement (`sql/at_once.sql`).

A statement does the same as the verb in `sql/verbs.py`, or nothing. Then the answer here is None, and the verb runs
step by step. What can be known without the database is checked here.
"""

from collections.abc import Sequence
from typing import Any

from duetime.errors import StoreDamaged
from duetime.job import STEP_BYTES, STEP_JOBS, Event, Lease, Moved, NewJob, Priority
from duetime.names import Queue
from duetime.stores.base import IDLE_MS, Ask, Push, Pushed, Reserved, Wake
from duetime.stores.sql.rows import ReadyRow, as_json
from duetime.stores.sql.rules import Pick
from duetime.stores.sql.server_step import ServerStep


def push(step: ServerStep, queue: Queue, requests: Sequence[Push]) -> list[Pushed] | None:
    given = push_values(requests)
    answers = step.run_at_once(queue, [("push_at_once", given)]) if given else None
    if not answers or not answers[0]:
        return None
    pushed, wakes = read_pushed(queue, requests, answers[0][0])
    step.wakes += wakes
    return pushed


def push_values(requests: Sequence[Push]) -> dict[str, object] | None:
    """What `push_at_once` takes beside queue and now; None if it does not do for these requests."""
    jobs = [job for request in requests for job in request.jobs]
    ids = [job.id for job in jobs]
    if not jobs or any(request.mark for request in requests) or len(set(ids)) < len(ids):
        return None
    if not all(_is_usual(job) for job in jobs):
        return None
    attributes = [as_json(job.attributes) if job.attributes else None for job in jobs]
    return {
        "count": len(jobs),
        "ttl": min((job.ttl_ms for job in jobs if job.ttl_ms), default=0),
        "largest": max(len(job.body) for job in jobs),
        "ids": ids,
        "priorities": [int(job.priority) for job in jobs],
        "due_ats": [job.delay_ms if job.due_at is None else job.due_at for job in jobs],
        "relatives": [int(job.due_at is None) for job in jobs],
        "ttls": [job.ttl_ms for job in jobs],
        "tries": [job.tries for job in jobs],
        "attempts": [job.attempt for job in jobs],
        "sizes": [
            len(job.body) + (len(text.encode()) if text else 0) for job, text in zip(jobs, attributes, strict=True)
        ],
        "attributes": attributes,
        "bodies": [job.body for job in jobs],
    }


def read_pushed(queue: Queue, requests: Sequence[Push], row: Sequence[Any]) -> tuple[list[Pushed], list[Wake]]:
    """The answers to the requests, and what is to be announced, from the row that `push_at_once` answers."""
    now, paused, *heads = row
    pushed = [Pushed([_accepted(job, now) for job in request.jobs], now) for request in requests]
    due_at = min(moved.due_at for answer in pushed for moved in answer.jobs)
    head = min((head for head in heads if head is not None), default=None)
    is_earliest = not paused and (head is None or due_at < head)
    return pushed, [Wake(queue, due_at)] if is_earliest else []


def _is_usual(job: NewJob) -> bool:
    """Whether the job's own times are no reason to refuse it, and the store gives it its born."""
    return not job.born and (not job.ttl_ms or (job.due_at is None and job.delay_ms <= job.ttl_ms))


def _accepted(job: NewJob, now: int) -> Moved:
    return Moved(Event.ACCEPTED, job.id, now, job.attempt, now + job.delay_ms if job.due_at is None else job.due_at)


def reserve(step: ServerStep, queue: Queue, asks: Sequence[Ask]) -> Reserved | None:
    if len(asks) != 1 or not 0 < asks[0].limit <= STEP_JOBS:
        return None
    [ask] = asks
    high, normal, low = ask.quotas
    given = {
        "limit": ask.limit,
        "ttr_ms": ask.ttr_ms,
        "high": high,
        "normal": normal,
        "low": low,
        "bytes": STEP_BYTES,
    }
    answers = step.run_at_once(queue, [("reserve_at_once", given)])
    if not answers or not answers[0]:
        return None
    [rows] = answers
    now, paused, next_at = rows[0][:3]
    if paused:
        return Reserved([[]], None, now, paused=True)
    deliveries = [
        Pick(ReadyRow(*row), Priority(priority), now + ask.ttr_ms).delivery(queue, (body, attributes))
        for _, _, _, body, attributes, priority, *row in rows
        if row[0] is not None
    ]
    if any(delivery.body is None for delivery in deliveries):  # pyright: ignore[reportUnnecessaryComparison]
        raise StoreDamaged(f"jobs of {queue} have lost their bodies")
    return Reserved([deliveries], next_at, now)


def ack(step: ServerStep, queue: Queue, leases: Sequence[Lease]) -> list[Moved] | None:
    ids = [lease.id for lease in leases]
    if not ids or len(set(ids)) < len(ids):
        return None
    borns = [lease.born for lease in leases]
    given = {
        "count": len(ids),
        "floor": max(borns),
        "idle_ms": IDLE_MS,
        "ids": ids,
        "borns": borns,
        "attempts": [lease.attempt for lease in leases],
    }
    answers = step.run_at_once(queue, [("ack_at_once", given)])
    if not answers or not answers[0]:
        return None
    return [Moved(Event.ACKED, lease.id, lease.born, lease.attempt) for lease in leases]
