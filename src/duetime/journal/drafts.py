"""The journal's entries for every verb but push, made from the answers of the store."""

from collections.abc import Sequence

from msgspec import UNSET, structs

from duetime.engine.recorder import Notified
from duetime.journal.events import MAX_ERROR, REPEATED, Draft
from duetime.model.job import Event, Lease, Moved, State
from duetime.model.names import Queue
from duetime.stores.base import Reserved
from duetime.stores.finishes import SeenJoin


def delivered(pool: str, queue: Queue, reserved: Reserved) -> list[Draft]:
    """The deliveries of a reserve, and the expired jobs that it ended on its way."""
    given = [
        Moved(Event.DELIVERED, delivery.lease.id, delivery.lease.born, delivery.lease.attempt, delivery.due_at)
        for deliveries in reserved.deliveries
        for delivery in deliveries
    ]
    return [_draft(pool, queue, one, reserved.now) for one in (*reserved.expired, *given)]


def notified(pool: str, lease: Lease, ts: int, answer: Notified) -> Draft:
    """A callback's answer."""
    one = Moved(Event.NOTIFIED, lease.id, lease.born, lease.attempt)
    return structs.replace(_draft(pool, lease.queue, one, ts), status=answer.status, ms=answer.ms)


def moved(pool: str, queue: Queue, answers: Sequence[object], ts: int, error: str = "") -> list[Draft]:
    """One draft for each of a verb's answers that moved a job. `error` is what the consumer reported of its try."""
    return [_draft(pool, queue, answer, ts, error=error) for answer in answers if isinstance(answer, Moved)]


def acked(
    pool: str,
    queue: Queue,
    leases: Sequence[Lease],
    answers: Sequence[object],
    ts: int,
    joins: Sequence[SeenJoin | None] = (),
) -> list[Draft]:
    """Also for jobs that were gone already, as "repeated": the consumer says that the job is done, and the process
    that removed it may have died before it wrote that down. `joins` has the join of each job, if any has one.
    """
    again = [
        Moved(Event.ACKED, lease.id, lease.born, lease.attempt, reason=REPEATED) if answer is None else answer
        for lease, answer in zip(leases, answers, strict=True)
    ]
    if not any(joins):
        return moved(pool, queue, again, ts)
    ended = zip(again, joins, strict=True)
    return [_draft(pool, queue, one, ts, join) for one, join in ended if isinstance(one, Moved)]


def acked_by_id(pool: str, queue: Queue, ids: Sequence[str], answers: Sequence[object], ts: int) -> list[Draft]:
    """As `acked`, but the born of a job that was gone already is not known."""
    again = [
        Moved(Event.ACKED, job_id, born=0, reason=REPEATED) if answer is None else answer
        for job_id, answer in zip(ids, answers, strict=True)
    ]
    return moved(pool, queue, again, ts)


def purged(pool: str, queue: Queue, states: Sequence[State], ts: int) -> Draft:
    return _draft(pool, queue, Moved(Event.PURGED, "", 0, reason=",".join(sorted(states))), ts)


def _draft(pool: str, queue: Queue, moved: Moved, ts: int, join: SeenJoin | None = None, error: str = "") -> Draft:
    return Draft(
        ts=ts,
        event=moved.event,
        pool=pool,
        namespace=queue.namespace,
        queue=queue.name,
        id=moved.id,
        born=moved.born,
        attempt=moved.attempt,
        due_at=moved.due_at,
        reason=moved.reason,
        was=moved.was,
        # The last lines of a traceback say what happened.
        error=error.encode()[-MAX_ERROR:].decode(errors="ignore"),
        join=join or UNSET,
    )
