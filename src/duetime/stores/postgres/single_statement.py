"""The usual push, reserve and ack in one round trip: the whole verb is one statement (`sql/single_statement.sql`).

A statement does the same as the verb in `sql/verbs.py`, or nothing. Then the answer here is None, and the verb runs
step by step. What can be known without the database is checked here.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from duetime.model.errors import StoreDamaged
from duetime.model.ids import made_in_one_moment
from duetime.model.job import STEP_BYTES, STEP_JOBS, Delivery, Event, Lease, Moved, NewJob, Priority
from duetime.model.names import Queue
from duetime.stores.base import IDLE_MS, Ask, Push, Pushed, Reserved, Wake
from duetime.stores.sql.rows import as_json, attributes
from duetime.stores.sql.server_step import ServerStep

T = TypeVar("T")

PUSH_ONE = "push_one_single_statement"
_PRIORITIES = {int(priority): priority for priority in Priority}
"""Looking a member up by its value is slower, and a reserve does it for every job."""


def push(step: ServerStep, queue: Queue, requests: Sequence[Push]) -> list[Pushed] | None:
    if not is_usual_push(requests):
        return None
    jobs = [job for request in requests for job in request.jobs]
    if len(jobs) == 1:
        answers = step.run_in_one_round_trip(queue, [(PUSH_ONE, one_job_values(jobs[0]))])
        read = read_pushed_one
    else:
        answers = step.run_in_one_round_trip(queue, [("push_single_statement", _many_jobs_values(jobs))])
        read = _read_pushed
    if not answers or not answers[0]:
        return None
    pushed, wakes = read(queue, requests, answers[0][0])
    step.wakes += wakes
    return pushed


def is_usual_push(requests: Sequence[Push]) -> bool:
    """Returns whether the statements can serve these requests, as far as that is known without the database."""
    if any(request.mark for request in requests):
        return False
    jobs = [job for request in requests for job in request.jobs]
    if len(jobs) == 1:
        return _is_usual(jobs[0])
    return bool(jobs) and len({job.id for job in jobs}) == len(jobs) and all(_is_usual(job) for job in jobs)


def one_job_values(job: NewJob) -> dict[str, object]:
    """The parameters of `push_one_single_statement`, without queue and now."""
    packed = as_json(job.attributes) if job.attributes else None
    is_relative = job.due_at is None
    return {
        "ttl": job.ttl_ms,
        "largest": len(job.body),
        "job_id": job.id,
        "priority": int(job.priority),
        "due_at": job.delay_ms if is_relative else job.due_at,
        "relative": int(is_relative),
        "tries": job.tries,
        "attempt": job.attempt,
        "size": len(job.body) + (len(packed.encode()) if packed else 0),
        "attributes": packed,
        "body": job.body,
    }


def _many_jobs_values(jobs: Sequence[NewJob]) -> dict[str, object]:
    """The parameters of `push_single_statement`, without queue and now."""
    packed = [as_json(job.attributes) if job.attributes else None for job in jobs]
    ids, lengths = [job.id for job in jobs], [len(job.body) for job in jobs]
    sizes = [length + (len(text.encode()) if text else 0) for length, text in zip(lengths, packed, strict=True)]
    least, greatest = min(ids), max(ids)
    return {
        "count": len(jobs),
        "ttl": min((job.ttl_ms for job in jobs if job.ttl_ms), default=0),
        "largest": max(lengths),
        "least": least,
        "greatest": greatest,
        "of_one_moment": int(made_in_one_moment(least, greatest)),
        "ids": ids,
        "priorities": _shortened([int(job.priority) for job in jobs]),
        "due_ats": _shortened([job.delay_ms if job.due_at is None else job.due_at for job in jobs]),
        "relatives": _shortened([int(job.due_at is None) for job in jobs]),
        "ttls": _shortened([job.ttl_ms for job in jobs]),
        "tries": _shortened([job.tries for job in jobs]),
        "attempts": _shortened([job.attempt for job in jobs]),
        "sizes": _shortened(sizes),
        "attributes": _shortened(packed),
        "bodies": [job.body for job in jobs],
    }


def _shortened(values: list[T]) -> list[T]:
    """Only the first value if all are the same, which most options of a batch are."""
    return values[:1] if values.count(values[0]) == len(values) else values


def read_pushed_one(queue: Queue, requests: Sequence[Push], row: Sequence[Any]) -> tuple[list[Pushed], list[Wake]]:
    """The answers to the requests, and the wakes to announce, from the row of `push_one_single_statement`."""
    now, paused, has_earlier = row
    pushed = [Pushed([_accepted(job, now) for job in request.jobs], now) for request in requests]
    if paused or has_earlier:
        return pushed, []
    return pushed, [Wake(queue, moved.due_at) for answer in pushed for moved in answer.jobs]


def _read_pushed(queue: Queue, requests: Sequence[Push], row: Sequence[Any]) -> tuple[list[Pushed], list[Wake]]:
    now, paused, *heads = row
    pushed = [Pushed([_accepted(job, now) for job in request.jobs], now) for request in requests]
    due_at = min(moved.due_at for answer in pushed for moved in answer.jobs)
    head = min((head for head in heads if head is not None), default=None)
    is_earliest = not paused and (head is None or due_at < head)
    return pushed, [Wake(queue, due_at)] if is_earliest else []


def _accepted(job: NewJob, now: int) -> Moved:
    return Moved(Event.ACCEPTED, job.id, now, job.attempt, job.due(now))


def _is_usual(job: NewJob) -> bool:
    """Returns whether the job's times are valid by themselves and it has no born yet."""
    return not job.born and (not job.ttl_ms or (job.due_at is None and job.delay_ms <= job.ttl_ms))


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
    answers = step.run_in_one_round_trip(queue, [("reserve_single_statement", given)])
    if not answers or not answers[0]:
        return None
    [rows] = answers
    now, paused, next_at = rows[0][:3]
    if paused:
        return Reserved([[]], None, now, paused=True)
    lease_until = now + ask.ttr_ms
    deliveries = [
        Delivery(
            Lease(queue, job_id, born, attempt + 1),
            body,
            due_at,
            lease_until,
            _PRIORITIES[priority],
            tries,
            used + 1,
            expires_at,
            attributes(packed),
            error,
        )
        for _, _, _, body, packed, priority, job_id, born, due_at, expires_at, tries, used, attempt, error in rows
        if job_id is not None
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
    answers = step.run_in_one_round_trip(queue, [("ack_single_statement", given)])
    if not answers or not answers[0]:
        return None
    return [lease.acked() for lease in leases]
