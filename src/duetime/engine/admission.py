"""The check at the door: is this a job that we can promise to keep?

Called once per pushed job, before anything is stored. Everything behind it takes jobs as valid.
"""

from collections.abc import Sequence

from duetime.clock import MAX_INSTANT
from duetime.errors import BodyTooLarge, InvalidRequest, InvalidTime
from duetime.job import MAX_TRIES, NewJob
from duetime.names import check_attributes, check_id

MAX_SPAN_MS = 4_294_967_295_000
"""The longest delay and ttl: 2³² - 1 seconds, about 136 years, which is what lmstfy's clients may ask for."""


def check_jobs(jobs: Sequence[NewJob], *, max_body: int) -> None:
    if not jobs:
        raise InvalidRequest("there are no jobs in this push")
    for job in jobs:
        check_job(job, max_body=max_body)


def check_job(job: NewJob, *, max_body: int) -> None:
    check_id(job.id)
    if len(job.body) > max_body:
        raise BodyTooLarge(f"the body of {job.id!r} has {len(job.body)} bytes; at most {max_body} are taken", id=job.id)
    if not 0 <= job.tries <= MAX_TRIES:
        raise InvalidRequest(f"tries lie between 0 (unlimited) and {MAX_TRIES}: {job.tries}", id=job.id)
    if not 0 <= job.delay_ms <= MAX_SPAN_MS or not 0 <= job.ttl_ms <= MAX_SPAN_MS:
        raise InvalidTime(f"delay and ttl of {job.id!r} lie between 0 and {MAX_SPAN_MS} ms", id=job.id)
    if job.due_at is not None and not 0 <= job.due_at <= MAX_INSTANT:
        raise InvalidTime(f"due_at of {job.id!r} lies between 1970 and 9999", id=job.id)
    if job.attributes:
        check_attributes(job.attributes)
