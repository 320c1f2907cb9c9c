"""Checks a job before it is stored. Every store can write a job that passes."""

from typing import Any

from duetime.model.clock import MAX_DURATION, MAX_INSTANT
from duetime.model.errors import BodyTooLarge, InvalidRequest, InvalidTime
from duetime.model.job import MAX_TRIES, NewJob, Priority
from duetime.model.names import check_attributes, check_id

MAX_ATTEMPT = 4_294_967_295

_HIGHEST, _LOWEST = int(min(Priority)), int(max(Priority))


def check_job(job: NewJob, *, max_body: int) -> None:
    check_id(job.id)
    if not isinstance(job.body, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequest(f"body of job {job.id!r} must be bytes, got {type(job.body).__name__}", id=job.id)
    if len(job.body) > max_body:
        raise BodyTooLarge(f"body of job {job.id!r} must have at most {max_body} bytes, got {len(job.body)}", id=job.id)
    check_tries(job.tries, id=job.id)
    if not _is_whole(job.delay_ms, MAX_DURATION) or not _is_whole(job.ttl_ms, MAX_DURATION):
        given = f"{job.delay_ms!r} and {job.ttl_ms!r}"
        raise InvalidTime(f"delay_ms and ttl_ms must be whole numbers from 0 to {MAX_DURATION}, got {given}", id=job.id)
    if job.due_at is not None and not _is_whole(job.due_at, MAX_INSTANT):
        raise InvalidTime(f"due_at must be a whole number from 0 to {MAX_INSTANT}, got {job.due_at!r}", id=job.id)
    if not isinstance(job.priority, int) or not _HIGHEST <= job.priority <= _LOWEST:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequest(f"priority must be 1, 2 or 3, got {job.priority!r}", id=job.id)
    if job.born or job.attempt:
        check_incarnation(job.born, job.attempt)
    if job.attributes:
        check_attributes(job.attributes)
        check_text(*job.attributes.values())


def check_tries(tries: Any, **fields: Any) -> int:
    """0 is unlimited."""
    return check_whole("tries", tries, 0, MAX_TRIES, **fields)


def check_whole(name: str, value: Any, least: int, most: int, **fields: Any) -> int:
    if not _is_whole(value, most) or value < least:
        raise InvalidRequest(f"{name} must be a whole number from {least} to {most}, got {value!r}", **fields)
    return value


def _is_whole(value: Any, most: int) -> bool:
    """Refuses booleans, which are numbers in Python: some drivers cannot write them."""
    return type(value) is int and 0 <= value <= most


def check_incarnation(born: int, attempt: int) -> None:
    if not 0 <= born <= MAX_INSTANT or not 0 <= attempt <= MAX_ATTEMPT:
        raise InvalidRequest(f"born and attempt of a job are out of range: {born}, {attempt}")


def check_text(*texts: str) -> None:
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"text must be valid Unicode, got {error.object!r}") from None
