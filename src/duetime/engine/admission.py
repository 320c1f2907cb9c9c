"""Checks of jobs, ids, leases, times and tries, before anything is stored.

Everything behind these checks takes its input as valid. A value that a driver cannot write would fail a whole store
call with all requests in it; so every value that passes here can be written by every store.
"""

from collections.abc import Sequence

from duetime.clock import MAX_DURATION, MAX_INSTANT
from duetime.errors import BodyTooLarge, InvalidRequest, InvalidTime
from duetime.job import MAX_TRIES, Lease, NewJob, Priority
from duetime.names import check_attributes, check_id

MAX_ATTEMPT = 4_294_967_295

_HIGHEST, _LOWEST = int(min(Priority)), int(max(Priority))


def check_jobs(jobs: Sequence[NewJob], *, max_body: int) -> None:
    if not jobs:
        raise InvalidRequest("there are no jobs in this push")
    for job in jobs:
        check_job(job, max_body=max_body)


def check_job(job: NewJob, *, max_body: int) -> None:
    check_id(job.id)
    if not isinstance(job.body, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequest(f"the body of {job.id!r} is not bytes but {type(job.body).__name__}", id=job.id)
    if len(job.body) > max_body:
        raise BodyTooLarge(f"the body of {job.id!r} has {len(job.body)} bytes; at most {max_body} are taken", id=job.id)
    if not 0 <= job.tries <= MAX_TRIES:
        raise InvalidRequest.of_tries(job.tries, MAX_TRIES, id=job.id)
    if not 0 <= job.delay_ms <= MAX_DURATION or not 0 <= job.ttl_ms <= MAX_DURATION:
        raise InvalidTime(f"delay and ttl of {job.id!r} lie between 0 and {MAX_DURATION} ms", id=job.id)
    if job.due_at is not None and not 0 <= job.due_at <= MAX_INSTANT:
        raise InvalidTime(f"due_at of {job.id!r} lies between 1970 and 9999", id=job.id)
    if not _HIGHEST <= job.priority <= _LOWEST:
        raise InvalidRequest(f"a priority is 1, 2 or 3: {job.priority!r}", id=job.id)
    if job.born or job.attempt:
        check_incarnation(job.born, job.attempt)
    if job.attributes:
        check_attributes(job.attributes)
        check_text(*job.attributes.values())


def check_ids(ids: Sequence[str]) -> None:
    for job_id in ids:
        check_id(job_id)


def check_lease(lease: Lease) -> None:
    check_id(lease.id)
    check_incarnation(lease.born, lease.attempt)


def check_incarnation(born: int, attempt: int) -> None:
    if not 0 <= born <= MAX_INSTANT or not 0 <= attempt <= MAX_ATTEMPT:
        raise InvalidRequest(f"no job has the born {born} and the attempt {attempt}")


def check_text(*texts: str) -> None:
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"not a text that can be written: {error.object!r}") from None


def check_tries(tries: int) -> None:
    if not 0 <= tries <= MAX_TRIES:
        raise InvalidRequest.of_tries(tries, MAX_TRIES)


def check_times(*, delay_ms: int = 0, ttl_ms: int = 0, due_at: int | None = None) -> None:
    if not 0 <= delay_ms <= MAX_DURATION or not 0 <= ttl_ms <= MAX_DURATION:
        raise InvalidTime(f"delay and ttl lie between 0 and {MAX_DURATION} ms: {delay_ms}, {ttl_ms}")
    if due_at is not None and not 0 <= due_at <= MAX_INSTANT:
        raise InvalidTime(f"due_at lies between 1970 and 9999: {due_at}")
