"""Builds jobs from a body of any type and options with readable times."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict

from duetime.client import checks
from duetime.model.clock import Duration, Instant, delay_ms, duration_ms, instant_ms
from duetime.model.errors import InvalidRequest
from duetime.model.job import DEFAULT_TRIES, IfExists, NewJob, Priority, check_tries
from duetime.model.names import check_id

Body = bytes | str | int | float | bool | None | Mapping[str, Any] | Sequence[Any]
"""Bytes as they are, text as UTF-8, anything else as JSON."""


def encode_body(body: Body) -> bytes:
    match body:
        case bytes():
            return body
        case str():
            return checks.utf8("the body", body)
        case _:
            return encode_json(body, "the body")


def encode_json(value: Any, what: str = "the value", *, sort_keys: bool = False) -> bytes:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=sort_keys, separators=(",", ":"))
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{what} cannot be written as JSON: {error}") from None


PriorityWord = Literal["high", "normal", "low"]
IfExistsWord = Literal["keep", "replace", "error"]


class JobFields(TypedDict, total=False):
    """Options of a job. Due after `delay` or at `due_at`, immediately if neither is given; ttl 0 is forever."""

    id: str
    delay: Duration | None
    due_at: Instant | None
    ttl: Duration
    tries: int
    priority: Priority | PriorityWord
    attributes: Mapping[str, str]


class PushFields(JobFields, total=False):
    """The options of a job, and what happens if its id is taken: by default the existing job is kept."""

    if_exists: IfExists | IfExistsWord


_JOB_FIELDS = JobFields.__annotations__.keys()
_PUSH_FIELDS = PushFields.__annotations__.keys()


def new_job(body: Body, options: JobFields, make_id: Callable[[], str]) -> NewJob:
    """Raises TypeError for an unknown option, InvalidRequest for a value that does not fit."""
    checks.check_options(options, _JOB_FIELDS)
    return _new_job(body, options, make_id)


def _new_job(body: Body, options: JobFields, make_id: Callable[[], str]) -> NewJob:
    if not options:
        return NewJob(make_id(), encode_body(body))
    delay, due_at = options.get("delay"), options.get("due_at")
    if delay is not None and len(options) == 1:
        return NewJob(make_id(), encode_body(body), delay_ms=delay_ms(delay))
    if delay is not None and due_at is not None:
        raise InvalidRequest.not_both("delay", "due_at")
    return NewJob(
        check_id(options["id"]) if "id" in options else make_id(),
        encode_body(body),
        delay_ms=0 if delay is None else delay_ms(delay),
        due_at=None if due_at is None else instant_ms(due_at),
        ttl_ms=duration_ms(options["ttl"]) if "ttl" in options else 0,
        tries=check_tries(options["tries"]) if "tries" in options else DEFAULT_TRIES,
        priority=checks.priority(options["priority"]) if "priority" in options else Priority.NORMAL,
        attributes=checks.attributes(options["attributes"]) if "attributes" in options else {},
    )


def new_push(body: Body, options: PushFields, make_id: Callable[[], str]) -> tuple[NewJob, IfExists]:
    """Like `new_job`, with what to do if the id exists."""
    checks.check_options(options, _PUSH_FIELDS)
    if_exists = checks.if_exists(options.pop("if_exists")) if "if_exists" in options else IfExists.KEEP
    return _new_job(body, options, make_id), if_exists


def delayed(options: PushFields, delay: Duration | datetime) -> PushFields:
    """The options of a job that is due after a delay, or at an instant. Raises InvalidTime for None."""
    if "delay" in options or "due_at" in options:
        raise InvalidRequest("delay cannot be given twice")
    if isinstance(delay, datetime):
        return {**options, "due_at": delay}
    if delay is None:  # pyright: ignore[reportUnnecessaryComparison]
        duration_ms(delay)  # raises
    return {**options, "delay": delay}


def as_jobs(jobs: Iterable[Body | NewJob], options: JobFields, make_id: Callable[[], str]) -> Iterator[NewJob]:
    """Jobs from a list of bodies and NewJobs; a plain body gets the options. Raises InvalidRequest if `jobs` is not a
    list, or if several jobs would get the same id.
    """
    jobs = checks.items("jobs", jobs)
    if "id" in options:
        jobs = list(jobs)
        if (bare := sum(not isinstance(job, NewJob) for job in jobs)) > 1:
            raise InvalidRequest(f"{options['id']!r:.40} can be the id of one job, not of {bare}")
    return (checks.new_job(job) if isinstance(job, NewJob) else new_job(job, options, make_id) for job in jobs)
