"""Checks of jobs, ids, leases, times and tries, before anything is stored.

Everything behind these checks takes its input as valid. A value that a driver cannot write would fail a whole store
call with all requests in it; so every value that passes here can be written by every store.
"""

from collections.abc import Sequence

from duetime.model.clock import MAX_DURATION, MAX_INSTANT
from duetime.model.errors import BodyTooLarge, InvalidRequest, InvalidTime
from duetime.model.job import (
    MAX_RESULT,
    MAX_RESULT_MS,
    STEP_BYTES,
    STEP_JOBS,
    Lease,
    NewJob,
    check_incarnation,
    check_job,
    payload_bytes,
)
from duetime.model.names import FOLLOWS, check_id, placing_part
from duetime.stores.finishes import Finish, Join


def check_jobs(jobs: Sequence[NewJob], *, max_body: int) -> None:
    if not jobs:
        raise InvalidRequest("there are no jobs in this push")
    for job in jobs:
        check_job(job, max_body=max_body)


def check_ids(ids: Sequence[str]) -> None:
    for job_id in ids:
        check_id(job_id)


def check_lease(lease: Lease) -> None:
    check_id(lease.id)
    check_incarnation(lease.born, lease.attempt)


def check_finish(one: Finish, *, max_body: int) -> None:
    check_lease(one.lease)
    if one.join:
        check_join(one.join, one.lease.id)
    jobs = [*one.then, *one.join.then] if one.join else one.then
    if len(jobs) >= STEP_JOBS:
        raise InvalidRequest(f"less than {STEP_JOBS} jobs can follow from one, not {len(jobs)}")
    for job in jobs:
        check_job(job, max_body=max_body)
        if job.born or job.attempt:
            raise InvalidRequest(f"{job.id!r} follows from a job, so it has no born and no attempt yet", id=job.id)
    if len({job.id for job in jobs}) < len(jobs):
        raise InvalidRequest("an id stands twice among the jobs that follow")
    if sum(map(payload_bytes, jobs)) > STEP_BYTES:
        raise BodyTooLarge(f"the jobs that follow from one have at most {STEP_BYTES} bytes together", id=one.lease.id)
    if one.result is not None and len(one.result) > MAX_RESULT:
        raise BodyTooLarge(f"a result has at most {MAX_RESULT} bytes, not {len(one.result)}", id=one.lease.id)
    if not 0 <= one.result_ttl_ms <= MAX_RESULT_MS:
        raise InvalidTime(f"a result is kept for 0 to {MAX_RESULT_MS} ms: {one.result_ttl_ms}", id=one.lease.id)


def check_join(join: Join, job_id: str) -> None:
    """A join, its jobs and the jobs that join live on one member of a group of stores: their ids begin alike."""
    check_id(join.name)
    if join.of < 1 or not join.then:
        raise InvalidRequest("a join is of at least one job, and at least one job follows from it")
    if not 0 < join.life_ms <= MAX_RESULT_MS:
        raise InvalidTime(f"a join lives for 1 to {MAX_RESULT_MS} ms: {join.life_ms}", id=job_id)
    for one in (join.name, *(job.id for job in join.then)):
        if placing_part(one) != placing_part(job_id):
            raise InvalidRequest(f"{one!r} and {job_id!r} join, so that they begin alike before {FOLLOWS!r}", id=job_id)


def check_times(*, delay_ms: int = 0, ttl_ms: int = 0, due_at: int | None = None) -> None:
    if not 0 <= delay_ms <= MAX_DURATION or not 0 <= ttl_ms <= MAX_DURATION:
        raise InvalidTime(f"delay and ttl lie between 0 and {MAX_DURATION} ms: {delay_ms}, {ttl_ms}")
    if due_at is not None and not 0 <= due_at <= MAX_INSTANT:
        raise InvalidTime(f"due_at lies between 1970 and 9999: {due_at}")


def check_ttr(ttr_ms: int) -> None:
    if not 0 <= ttr_ms <= MAX_DURATION:
        raise InvalidRequest(f"ttr must be between 0 and {MAX_DURATION} ms, got {ttr_ms}")
