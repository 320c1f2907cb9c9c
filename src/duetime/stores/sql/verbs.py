"""The verbs that change jobs, each as one step.

Every verb follows the same course: lock and read the queue, read the jobs, let `rules.py` decide, write back what
changed, announce if a job became the queue's earliest. Verbs are called in a thread of the store, inside a transaction.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from duetime.model.errors import DuetimeError, LeaseLost, MarkMismatch, StoreDamaged
from duetime.model.job import (
    DAY_MS,
    STEP_JOBS,
    TOTAL_DAYS,
    Event,
    Lease,
    Moved,
    Reason,
    State,
)
from duetime.model.names import Queue
from duetime.stores.base import (
    Ask,
    GiveBack,
    Purged,
    Push,
    Pushed,
    QueueRules,
    Reaped,
    Reserved,
    RulesChange,
    Withdrawal,
)
from duetime.stores.sql import rules
from duetime.stores.sql.rows import DEAD, GONE, WAITING, JobRow, Payload, QueueRow
from duetime.stores.sql.step import (
    TOTALS,
    Step,
    StoredMark,
    announce,
    changing,
    earliest,
    find_jobs,
    job_rows,
    write_jobs,
)
from duetime.stores.sql.views import list_keys

log = logging.getLogger("duetime.stores")

CLOCK_ERROR_MS = 3_600_000
"""How far ahead a clock may have been for a while. Marks are deleted only this long after they expired."""

PURGED_MS = 60_000
"""How long the row of a purged queue stays, so that its floor raises no other queue's borns."""

T = TypeVar("T")

_encode_answer = msgspec.msgpack.Encoder().encode
_decode_answer = msgspec.msgpack.Decoder(Pushed).decode


# --- push


def push(step: Step, queue: Queue, requests: Sequence[Push], *, capped: bool = True) -> Sequence[Pushed | DuetimeError]:
    if capped and (pushed := step.fast_push(queue, requests)):
        return pushed
    ids = [job.id for request in requests for job in request.jobs]
    names = list(dict.fromkeys(request.mark.name for request in requests if request.mark))
    step.expect_push(queue, ids, names)
    with changing(step, queue, create=True) as queue_row:
        head = earliest(step, queue_row)
        found = find_jobs(step, queue, queue_row, ids)
        marks = step.find_marks(queue, names) if names else {}
        plan = rules.PushPlan(queue_row, found, step.now, capped=capped, largest=step.max_body)
        answers = [_push_once(step, queue, plan, request, marks) for request in requests]
        if plan.removed:
            step.execute("delete_jobs", queue=queue_row.id, ids=list(plan.removed))
        step.insert_jobs(list(plan.inserted.values()))
        if not queue_row.paused:
            announce(step, queue, head, plan.earliest)
    return answers


def _push_once(
    step: Step, queue: Queue, plan: rules.PushPlan, request: Push, marks: dict[str, StoredMark]
) -> Pushed | DuetimeError:
    if (mark := request.mark) is None:
        return plan.refusal(request) or plan.accept(request)
    if mark.name in marks:
        digest, answer = marks[mark.name]
        if digest != mark.digest:
            return MarkMismatch.of(mark.name)
        return msgspec.structs.replace(_decode_answer(answer), now=step.now, repeated=True)
    if refusal := plan.refusal(request):
        return refusal
    pushed = plan.accept(request)
    answer = _encode_answer(pushed)
    marks[mark.name] = mark.digest, answer
    names = {"namespace": queue.namespace, "queue": queue.name, "name": mark.name}
    step.execute("set_mark", **names, digest=mark.digest, expires_at=step.now + mark.life_ms, answer=answer)
    return pushed


# --- reserve and ack


def reserve(step: Step, queue: Queue, asks: Sequence[Ask]) -> Reserved:
    if reserved := step.fast_reserve(queue, asks):
        return reserved
    step.expect_reserve(min(sum(ask.limit for ask in asks), STEP_JOBS))
    with changing(step, queue) as queue_row:
        if queue_row.paused or not queue_row.jobs:
            return Reserved([[] for _ in asks], None, step.now, paused=bool(queue_row.paused))
        picker = rules.Picker(queue_row, step.now, partial(step.ready_jobs, queue, queue_row))
        picked = [picker.serve(ask) for ask in asks]
        write_jobs(step, queue_row, picker.expired)
        payloads, next_at = _lease(step, queue_row, [pick for picks in picked for pick in picks])
        deliveries = [[pick.delivery(queue, payloads[pick.row.id]) for pick in picks] for picks in picked]
        return Reserved(deliveries, next_at, step.now, picker.ended)


def _lease(step: Step, queue_row: QueueRow, picks: Sequence[rules.Pick]) -> tuple[Mapping[str, Payload], int | None]:
    """Write the leases; read the payloads that go with them, and when the next job is due after that."""
    if not picks:
        return {}, earliest(step, queue_row)
    by_end: dict[int, list[str]] = {}
    for pick in picks:
        by_end.setdefault(pick.lease_until, []).append(pick.row.id)
    for lease_until, ids in by_end.items():
        step.execute("lease_jobs", queue=queue_row.id, lease_until=lease_until, ids=ids)
    return step.payloads_and_head(queue_row, [pick.row.id for pick in picks])


def ack(step: Step, queue: Queue, leases: Sequence[Lease]) -> Sequence[Moved | LeaseLost | None]:
    if acked := step.fast_ack(queue, leases):
        return acked
    if leases:
        step.expect_ack(leases)
    with changing(step, queue) as queue_row:
        answers: list[Moved | LeaseLost | None]
        fences = {(lease.id, lease.born, lease.attempt) for lease in leases}
        may_be_held = 0 < len(leases) == len(fences) and queue_row.leased
        if may_be_held and step.count_held(queue_row, leases) == len(leases):
            # The usual case need not read each job: the leases say all there is to know.
            answers = [*rules.ack_held(queue_row, leases)]
        else:
            jobs = find_jobs(step, queue, queue_row, [lease.id for lease in leases])
            answers = [rules.ack(queue_row, jobs.get(lease.id), lease, step.now) for lease in leases]
        if ended := [answer.id for answer in answers if isinstance(answer, Moved)]:
            step.execute("delete_jobs", queue=queue_row.id, ids=ended)
    return answers


def give_back(step: Step, queue: Queue, give_backs: Sequence[GiveBack]) -> Sequence[Moved | LeaseLost]:
    ids = [one.lease.id for one in give_backs]
    step.read_ahead([("find_jobs", {"ids": ids}), ("heads", {})])
    with changing(step, queue) as queue_row:
        jobs, head = find_jobs(step, queue, queue_row, ids), earliest(step, queue_row)
        answers: list[Moved | LeaseLost] = []
        for lease, delay_ms in [(one.lease, one.delay_ms) for one in give_backs]:
            job = jobs.get(lease.id)
            if job is None or not rules.holds(job, lease):
                answers.append(LeaseLost.of(lease))
                continue
            due_at = job.due_at if delay_ms is None else step.now + delay_ms
            answers.append(rules.wait_again(queue_row, job, step.now, due_at, Event.GIVEN_BACK))
        moved = {answer.id for answer in answers if isinstance(answer, Moved)}
        _write_moved(step, queue, queue_row, [jobs[job_id] for job_id in moved], head)
    return answers


# --- verbs on one lease


def release(step: Step, lease: Lease, delay_ms: int, error: str) -> Moved:
    def decide(queue_row: QueueRow, job: JobRow) -> Moved:
        job.error = error or None
        return rules.wait_again(queue_row, job, step.now, step.now + delay_ms, Event.RELEASED)

    return _move_lease(step, lease, decide)


def kill(step: Step, lease: Lease, error: str) -> Moved:
    def decide(queue_row: QueueRow, job: JobRow) -> Moved:
        job.error = error or None
        return rules.die(queue_row, job, step.now, Reason.KILLED)

    return _move_lease(step, lease, decide)


def extend(step: Step, lease: Lease, ttr_ms: int) -> int:
    def decide(queue_row: QueueRow, job: JobRow) -> int:
        rules.leave(queue_row, job)
        rules.hold(queue_row, job, step.now + ttr_ms)
        return job.lease_until

    return _move_lease(step, lease, decide)


def _move_lease(step: Step, lease: Lease, decide: Callable[[QueueRow, JobRow], T]) -> T:
    step.read_ahead([("find_jobs", {"ids": [lease.id]}), ("heads", {})])
    with changing(step, lease.queue) as queue_row:
        job = find_jobs(step, lease.queue, queue_row, [lease.id]).get(lease.id)
        if job is None or not rules.holds(job, lease):
            raise LeaseLost.of(lease)
        head = earliest(step, queue_row)
        answer = decide(queue_row, job)
        _write_moved(step, lease.queue, queue_row, [job], head)
    return answer


def _write_moved(step: Step, queue: Queue, queue_row: QueueRow, jobs: Sequence[JobRow], head: int | None) -> None:
    """Write jobs that have moved, and announce the earliest of those that wait now."""
    write_jobs(step, queue_row, jobs)
    if not queue_row.paused:
        announce(step, queue, head, min((job.due_at for job in jobs if job.place == WAITING), default=None))


# --- verbs on ids


def cancel(step: Step, queue: Queue, ids: Sequence[str], *, finished: bool) -> list[Moved | None]:
    step.read_ahead([("find_jobs", {"ids": list(ids)})])
    with changing(step, queue) as queue_row:
        jobs = find_jobs(step, queue, queue_row, ids)
        found = [jobs.get(job_id) for job_id in ids]
        answers = [rules.cancel(queue_row, job, step.now, finished=finished) if job else None for job in found]
        write_jobs(step, queue_row, [job for job in jobs.values() if job.place == GONE])
    return answers


def withdraw(step: Step, queue: Queue, withdrawals: Sequence[Withdrawal]) -> list[Moved | None]:
    ids = [one.id for one in withdrawals]
    step.read_ahead([("find_jobs", {"ids": ids})])
    with changing(step, queue) as queue_row:
        jobs = find_jobs(step, queue, queue_row, ids)
        answers = [
            rules.withdraw(queue_row, jobs[one.id], step.now, one) if one.id in jobs else None for one in withdrawals
        ]
        moved = {answer.id for answer in answers if answer}
        write_jobs(step, queue_row, [job for job in jobs.values() if job.id in moved])
    return answers


def reschedule(
    step: Step, queue: Queue, ids: Sequence[str], delay_ms: int, due_at: int | None
) -> list[Moved | DuetimeError | None]:
    step.read_ahead([("heads", {}), ("find_jobs", {"ids": list(ids)})])
    with changing(step, queue) as queue_row:
        head, jobs = earliest(step, queue_row), find_jobs(step, queue, queue_row, ids)
        at = step.now + delay_ms if due_at is None else due_at
        answers = [rules.reschedule(queue_row, jobs[key], step.now, at) if key in jobs else None for key in ids]
        moved = {answer.id for answer in answers if isinstance(answer, Moved)}
        _write_moved(step, queue, queue_row, [jobs[job_id] for job_id in moved], head)
    return answers


def respawn(
    step: Step, queue: Queue, ids: Sequence[str] | None, limit: int, ttl_ms: int, tries: int | None
) -> list[Moved]:
    with changing(step, queue) as queue_row:
        head = earliest(step, queue_row)
        if ids is None:
            chosen = job_rows(
                step, queue, queue_row, step.fetch("longest_dead", queue=queue_row.id, limit=min(limit, STEP_JOBS))
            )
        else:
            chosen = find_jobs(step, queue, queue_row, ids[:STEP_JOBS])
        dead = [job for job in chosen.values() if job.place == DEAD]
        moved = [rules.respawn(queue_row, job, step.now, step.now + ttl_ms if ttl_ms else 0, tries) for job in dead]
        _write_moved(step, queue, queue_row, dead, head)
    return moved


# --- queues


def purge(step: Step, queue: Queue, states: Sequence[State], limit: int | None) -> Purged:
    forgets = limit is None and set(states) == set(State)
    with changing(step, queue, create=True, forgets=forgets) as queue_row:
        queue_row.floor = max(queue_row.floor, step.now)
        if forgets:
            if not queue_row.rules().kept:
                step.delete_totals(queue)
            return _forget(step, queue_row)
        bound = STEP_JOBS if limit is None else min(limit, STEP_JOBS)
        found = list[str]()
        for state in dict.fromkeys(states):
            keys = list_keys(step, queue_row, state, limit=bound + 1 - len(found), expired=True)
            found.extend(key.id for key in keys)
        jobs = find_jobs(step, queue, queue_row, found[:bound])
        for job in jobs.values():
            rules.end(queue_row, job)
        write_jobs(step, queue_row, jobs.values())
        more = len(found) > bound and (limit is None or limit > bound)
        return Purged(len(jobs), step.now, more=more)


def _forget(step: Step, queue_row: QueueRow) -> Purged:
    removed = queue_row.jobs
    step.execute("delete_queue_jobs", queue=-queue_row.id)
    if removed and queue_row.last_born >= step.now:
        # This is rare: a job was born in this millisecond, or the clock has stepped back.
        (last_born,) = step.fetch_one("last_born", queue=queue_row.id)
        queue_row.floor = max(queue_row.floor, last_born)
    if removed <= STEP_JOBS:
        step.execute("delete_queue_jobs", queue=queue_row.id)
    else:
        new = step.new_queue_id()
        step.execute("discard", queue=queue_row.id)
        step.execute("change_queue_id", old=queue_row.id, new=new)
        queue_row.id = new
    queue_row.known = int(queue_row.rules() != QueueRules())
    queue_row.expired = queue_row.jobs = queue_row.leased = queue_row.dead = queue_row.reap_at = queue_row.last_born = 0
    return Purged(removed, step.now)


def configure(step: Step, queue: Queue, change: RulesChange) -> QueueRules:
    with changing(step, queue, create=True) as queue_row:
        was_paused, queue_row.known = queue_row.paused, 1
        queue_row.change_rules(change)
        if was_paused and not queue_row.paused:
            announce(step, queue, None, earliest(step, queue_row))
    return queue_row.rules()


# --- the reaper


def reap(step: Step, limit: int) -> Reaped:
    """A round of the reaper in one step, for a database that has one writer at a time anyway."""
    moved: dict[Queue, Sequence[Moved]] = {}
    left = limit
    visited_until = 0
    queues = queues_to_reap(step, limit)
    for queue in queues:
        try:
            happened = reap_queue(step, queue, left)
        except StoreDamaged as error:
            log.error("reaper_skips_queue", extra={"queue": str(queue), "error": error.message})
            visited_until = step.now  # it stays in the agenda, and must not bring the next round forward
            continue
        if happened:
            moved[queue] = happened
            left -= len(happened)
        if left <= 0:
            break
    has_more_ended = sweep_what_has_ended(step)
    forget_queues(step)
    for queue in queues_with_old_totals(step):
        fold_totals(step, queue)
    more = sweep_discarded(step) or has_more_ended
    if moved and (left <= 0 or len(queues) == limit):
        visited_until = 0  # other queues of the agenda were not visited
    return Reaped(moved, step.now if more else next_reap(step, after=visited_until), step.now)


def queues_to_reap(step: Step, limit: int) -> list[Queue]:
    return [Queue(*row) for row in step.fetch("queues_to_reap", now=step.now, limit=limit)]


def next_reap(step: Step, after: int = 0) -> int | None:
    (at,) = step.fetch_one("next_reap", after=after)
    return at if type(at) is int else None  # SQLite can hold anything


def is_locked(step: Step, queue: Queue) -> bool:
    """Returns whether another transaction has locked the queue's row. Does not wait."""
    return step.load_queue(queue).id > 0 and not step.fetch(
        "find_free_queue", namespace=queue.namespace, name=queue.name
    )


def reap_queue(step: Step, queue: Queue, limit: int) -> list[Moved]:
    with changing(step, queue) as queue_row:
        head = earliest(step, queue_row)
        lapsed = job_rows(
            step, queue, queue_row, step.fetch("lapsed_jobs", queue=queue_row.id, now=step.now, limit=limit)
        )
        moved = [rules.wait_again(queue_row, job, step.now, step.now, Event.LEASE_EXPIRED) for job in lapsed.values()]
        left = limit - len(lapsed)
        expired = job_rows(
            step, queue, queue_row, step.fetch("expired_jobs", queue=queue_row.id, now=step.now, limit=left)
        )
        moved += [rules.expire(queue_row, job, step.now) for job in expired.values()]
        _write_moved(step, queue, queue_row, [*lapsed.values(), *expired.values()], head)
        (next_lapse,), (next_expiry,) = (
            step.fetch_one(name, queue=queue_row.id) for name in ("next_lapse", "next_expiry")
        )
        queue_row.reap_at = rules.next_visit(next_lapse, next_expiry)
        if not moved and 0 < queue_row.idle_from() <= step.now:
            queue_row.known = queue_row.expired = 0
    return moved


# --- what the reaper deletes, a bounded number at a time: rows that are no longer needed


def sweep_what_has_ended(step: Step) -> bool:
    """Delete some marks, counters and results whose life is over. Returns True if there are more."""
    marks_before = step.now - CLOCK_ERROR_MS
    step.execute("delete_old_marks", now=marks_before, limit=STEP_JOBS)
    step.execute("delete_old_counters", now=step.now, limit=STEP_JOBS)
    step.execute("delete_old_results", now=step.now, limit=STEP_JOBS)
    return bool(step.fetch_one("has_ended", now=step.now, before=marks_before)[0])


def forget_queues(step: Step) -> None:
    """Remove rows of purged or forgotten queues. The highest of their floors is kept for the store."""
    if removable := step.fetch("removable_queues", before=step.now - PURGED_MS, limit=STEP_JOBS):
        step.remove_queues([queue_id for queue_id, _ in removable])
        step.execute("forget_floor", floor=max(floor for _, floor in removable))


def queues_with_old_totals(step: Step) -> list[Queue]:
    before = step.now // DAY_MS - TOTAL_DAYS
    rows = step.fetch("queues_with_old_totals", before=before, limit=STEP_JOBS)
    return list(dict.fromkeys(Queue(*row) for row in rows))


def fold_totals(step: Step, queue: Queue) -> None:
    """Add totals of days that are no longer shown to day 0. If only day 0 is left of a forgotten queue, delete it."""
    step.lock_name(queue)
    names = {"namespace": queue.namespace, "queue": queue.name}
    for numbers in step.fetch("remove_old_totals", **names, before=step.now // DAY_MS - TOTAL_DAYS):
        step.add_to_totals(queue, 0, dict(zip(TOTALS, numbers, strict=True)))
    step.execute("delete_forgotten_totals", **names)


def sweep_discarded(step: Step) -> bool:
    """Delete some jobs of purged queues. Returns True if there are more."""
    discarded = step.fetch_one("some_discarded")
    if discarded is None:
        return False
    (queue_id,) = discarded
    ids = [job_id for (job_id,) in step.fetch("some_jobs", queue=queue_id, limit=STEP_JOBS)]
    step.execute("delete_jobs", queue=queue_id, ids=ids)
    if len(ids) < STEP_JOBS:
        step.execute("forget_discarded", queue=queue_id)
    return step.fetch_one("some_discarded") is not None
