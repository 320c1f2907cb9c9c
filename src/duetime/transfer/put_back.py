"""Puts jobs into a store as they were in another one: same id, born, due time, attempt, remaining tries.

Each push carries a mark that names the run and the job as it was seen, so that a run that is repeated after a crash
puts no job back twice, also if the job was delivered and acked meanwhile. A copy that the run has put there and nobody
has touched since gives way to a later state of the same job, or to a later job with the same id. A dead letter is
pushed with a due time that never comes, so that no consumer can get it, and sent to the dead letters in a second step.
Used by move and restore.
"""

from collections.abc import Sequence

from duetime.model.clock import MAX_INSTANT
from duetime.model.errors import DuetimeError, StoreUnavailable
from duetime.model.job import DAY_MS, STEP_JOBS, Event, Job, NewJob, Reason, State, chunks
from duetime.model.names import Queue
from duetime.stores.base import Mark, Push, Pushed, Store, Withdrawal, get_all
from duetime.stores.finishes import JoinCount

MARK_LIFE_MS = 2 * DAY_MS
"""How long after a crash a run can be repeated and puts nothing back twice."""
NEVER = MAX_INSTANT
STEP_REQUESTS = 100
"""The most jobs of one call: each has a mark, and producers of the same queue wait for the call to end."""


def seen_due(job: Job) -> int:
    """The due time by which `withdraw` knows the job again."""
    return 0 if job.state is State.DEAD else job.due_at


async def put_back(store: Store, queue: Queue, jobs: Sequence[Job], run: str) -> list[str]:
    """Why each job could not be put back; empty where the store has it, or had it already in this run.

    At most one step's worth of jobs. Raises StoreUnavailable; then nothing is known, and the same call may be repeated.
    """
    now = (await store.ping()).now
    answers = await _push(store, queue, jobs, [_mark(job, run) for job in jobs], now)
    for place, job in enumerate(jobs):
        if _is_in_the_way(job, answers[place]):
            answers[place] = await _push_after_conflict(store, queue, job, run, answers[place])
    problems = [_problem(job, answer) for job, answer in zip(jobs, answers, strict=True)]
    dead = [job for job, problem in zip(jobs, problems, strict=True) if job.state is State.DEAD and not problem]
    if dead:
        await _bury(store, queue, dead)
    return problems


async def _push_after_conflict(
    store: Store, queue: Queue, job: Job, run: str, answer: Pushed | DuetimeError
) -> Pushed | DuetimeError:
    """Remove an outdated copy that this run has made. If nothing is in the way any more, push under another mark,
    because the first mark remembers the conflict.
    """
    turn = 0
    while _is_in_the_way(job, answer):
        [there] = await get_all(store, queue, [job.id])
        if there:
            if not await _is_outdated_copy(store, queue, there, job, run):
                break
            [removed] = await store.withdraw(queue, [Withdrawal(there.id, there.born, seen_due(there))])
            if isinstance(removed, StoreUnavailable):
                raise removed
            continue
        turn += 1
        [answer] = await _push(store, queue, [job], [_mark(job, f"{run}/{turn}")], (await store.ping()).now)
    return answer


async def _is_outdated_copy(store: Store, queue: Queue, there: Job, job: Job, run: str) -> bool:
    """Whether `there` is an earlier state of the job, or an earlier job with its id, exactly as this run has put it
    there: then its mark is known. This push changes nothing, because the id is taken.
    """
    if there.born > job.born or (there.born == job.born and _put_due(there) == _put_due(job)):
        return False
    mark = Mark(_mark(there, run).name, b"", life_ms=1)
    [answer] = await _push(store, queue, [there], [mark], (await store.ping()).now)
    return isinstance(answer, Pushed) and answer.repeated and answer.jobs[0].event is not Event.KEPT


async def _push(
    store: Store, queue: Queue, jobs: Sequence[Job], marks: Sequence[Mark], now: int
) -> list[Pushed | DuetimeError]:
    requests = [Push([new_job(job, now)], mark=mark) for job, mark in zip(jobs, marks, strict=True)]
    answers: list[Pushed | DuetimeError] = []
    for some in chunks(requests, STEP_REQUESTS):
        answers += await store.push(queue, some)
    for answer in answers:
        if isinstance(answer, StoreUnavailable):
            raise answer
    return answers


def new_job(job: Job, now: int) -> NewJob:
    """The tries that were used are subtracted, because a push always begins with none used."""
    is_dead = job.state is State.DEAD
    return NewJob(
        job.id,
        job.body,
        due_at=_put_due(job),
        ttl_ms=max(job.expires_at - now, 1) if job.expires_at and not is_dead else 0,
        tries=max(job.tries - job.used, 1) if job.tries and not is_dead else job.tries,
        priority=job.priority,
        attributes=job.attributes,
        born=job.born,
        attempt=job.attempt,
    )


def _put_due(job: Job) -> int:
    """The due time with which the job is put back."""
    if job.state is State.DEAD:
        return NEVER
    # A job that some consumer holds in a backup waits until that lease would have ended.
    due_at = max(job.due_at, job.lease_until) if job.state is State.LEASED else job.due_at
    return min(due_at, job.expires_at or due_at)


def _mark(job: Job, run: str) -> Mark:
    """The name begins with a slash, so that it never equals the mark of a batch."""
    return Mark(f"/move/{run}/{job.born}/{job.attempt}/{_put_due(job)}/{job.id}", b"", MARK_LIFE_MS)


def _is_in_the_way(job: Job, answer: Pushed | DuetimeError) -> bool:
    """Returns whether the push met another job with this id, or this job with another due time."""
    if not isinstance(answer, Pushed) or answer.jobs[0].event is not Event.KEPT:
        return False
    kept = answer.jobs[0]
    return kept.born != job.born or (kept.reason == "waiting" and kept.due_at != _put_due(job))


def _problem(job: Job, answer: Pushed | DuetimeError) -> str:
    if not isinstance(answer, Pushed):
        return answer.message
    moved = answer.jobs[0]
    if moved.event is Event.KEPT and moved.born != job.born:
        return f"another job with this id is there ({moved.reason}, born {moved.born})"
    return ""


async def _bury(store: Store, queue: Queue, dead: Sequence[Job]) -> None:
    """Raises StoreUnavailable. A job that is dead already, or deleted since, is left as it is."""
    buried = await store.withdraw(
        queue, [Withdrawal(job.id, job.born, NEVER, Reason(job.reason or Reason.KILLED), job.error) for job in dead]
    )
    for answer in buried:
        if isinstance(answer, StoreUnavailable):
            raise answer
    missed = [job for job, answer in zip(dead, buried, strict=True) if answer is None]
    for job, there in zip(missed, await get_all(store, queue, [job.id for job in missed]), strict=True):
        if there and there.born == job.born and there.due_at == NEVER and there.state is State.DELAYED:
            raise StoreUnavailable(f"the dead letter {job.id!r} could not be put back: run this again")


async def read_joins(store: Store, queue: Queue) -> list[JoinCount]:
    """All joins of the queue that have seen some of their finishes: how many members of a task group are done."""
    found: list[JoinCount] = []
    while True:
        some = await store.joins(queue, after=found[-1].name if found else "")
        found += some
        if len(some) < STEP_JOBS:
            return found
