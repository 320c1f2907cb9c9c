"""Jobs out of what people write: any body, and options with human times."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from duetime.clock import Duration, Instant, duration_ms, instant_ms
from duetime.errors import InvalidRequest
from duetime.job import DEFAULT_TRIES, NewJob, Priority

Body = bytes | str | int | float | bool | None | Mapping[str, Any] | Sequence[Any]
"""Bytes as they are, text as UTF-8, anything else as JSON."""


def encode_body(body: Body) -> bytes:
    match body:
        case bytes():
            return body
        case str():
            return body.encode()
        case _:
            try:
                return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
            except (TypeError, ValueError) as error:
                raise InvalidRequest(f"the body cannot be written as JSON: {error}") from None


class JobFields(TypedDict, total=False):
    """How a job is to be treated. Due after `delay` or at `due_at`, at once if neither is given; ttl 0 = for ever."""

    id: str
    delay: Duration
    due_at: Instant
    ttl: Duration
    tries: int
    priority: Priority
    attributes: Mapping[str, str]


def new_job(body: Body, options: JobFields, make_id: Callable[[], str]) -> NewJob:
    delay, due_at = options.get("delay"), options.get("due_at")
    if delay is not None and due_at is not None:
        raise InvalidRequest.not_both("delay", "due_at")
    return NewJob(
        options.get("id") or make_id(),
        encode_body(body),
        delay_ms=0 if delay is None else duration_ms(delay),
        due_at=None if due_at is None else instant_ms(due_at),
        ttl_ms=duration_ms(options.get("ttl", 0)),
        tries=options.get("tries", DEFAULT_TRIES),
        priority=options.get("priority", Priority.NORMAL),
        attributes=options.get("attributes", {}),
    )


def delayed(options: JobFields, delay: Duration) -> JobFields:
    if "delay" in options or "due_at" in options:
        raise InvalidRequest("the delay is given twice")
    return {**options, "delay": delay}


def as_job(job: Body | NewJob, options: JobFields, make_id: Callable[[], str]) -> NewJob:
    return job if isinstance(job, NewJob) else new_job(job, options, make_id)
