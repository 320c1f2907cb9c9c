"""Checks of one job before it is stored, whoever brings it: a value that passes here can be written by every store."""

from duetime.clock import MAX_DURATION, MAX_INSTANT
from duetime.errors import BodyTooLarge, InvalidRequest, InvalidTime
from duetime.job import MAX_TRIES, NewJob, Priority
from duetime.names import check_attributes, check_id

MAX_ATTEMPT = 4_294_967_295

_HIGHEST, _LOWEST = int(min(Priority)), int(max(Priority))


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


def check_incarnation(born: int, attempt: int) -> None:
    if not 0 <= born <= MAX_INSTANT or not 0 <= attempt <= MAX_ATTEMPT:
        raise InvalidRequest(f"no job has the born {born} and the attempt {attempt}")


def check_text(*texts: str) -> None:
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"not a text that can be written: {error.object!r}") from None
