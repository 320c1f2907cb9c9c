"""Converts messages to the engine's data types and back."""

import base64
import binascii
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from duetime.model.clock import SECONDS, duration_ms, instant_ms, rfc3339
from duetime.model.errors import BY_CODE, DuetimeError, InvalidRequest
from duetime.model.job import Counts, Delivery, IfExists, Job, Lease, Moved, NewJob, Priority
from duetime.model.names import Queue
from duetime.model.topic import NEW_METHOD, NEW_PHP_FIELDS, NEW_SUCCESS, Topic
from duetime.stores.base import Mark, Page, Pushed
from duetime.stores.finishes import Finish, Finished, Join, KeptResult
from duetime.wire.messages import (
    CountsOut,
    DeliveryOut,
    ErrorOut,
    FinishedOut,
    FinishIn,
    JobIn,
    JobOut,
    JoinIn,
    KeptResultOut,
    LeaseRef,
    MarkIn,
    PageOut,
    PushedOut,
    PushIn,
    ResultOut,
    TopicFields,
    TopicIn,
)

# --- bodies and results
#
# One rule for every message, both ways. A JSON object or array is sent as JSON, byte for byte; any other text as a
# string; any other bytes as base64 in a field of its own. So `{"to": "ann"}` comes back as it was sent, and so does
# text, unless the text itself is an object or an array. A number, true, false and null are refused as a body, because
# the stored bytes could not be distinguished from the same text. The cost is a fixed number of passes over the bytes.

MAX_DEPTH = 60
"""JSON that is nested deeper is sent as text: many readers stop at 64 levels and would lose the whole message."""

_any_json = msgspec.json.Decoder(Raw)
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_LEVELS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))


def write_body(body: bytes) -> tuple[Raw | UnsetType, str | UnsetType]:
    """The fields `body` and `body_b64`, or `result` and `result_b64`: one of the two."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return UNSET, base64.b64encode(body).decode()
    return Raw(body if _is_sent_as_json(body) else msgspec.json.encode(text)), UNSET


def read_body(value: Raw | UnsetType, b64: str | UnsetType, what: str = "body") -> bytes:
    """The bytes of the two fields, none if neither is given. `what` is the name of the first one, for errors."""
    if value is not UNSET and b64 is not UNSET:
        raise InvalidRequest.not_both(what, f"{what}_b64")
    if b64 is not UNSET:
        return _unbase64(b64, what)
    if value is UNSET:
        return b""
    raw = bytes(value)
    try:
        if raw.startswith(b'"'):
            return msgspec.json.decode(raw, type=str).encode()
        # The decoder passes over a raw value without reading its strings; JSON is UTF-8 throughout.
        text = raw.decode()
    except (msgspec.DecodeError, UnicodeError):
        raise InvalidRequest(f"{what} must be valid UTF-8 text") from None
    if not raw.startswith((b"{", b"[")):
        raise InvalidRequest(f'{what} must be text, an object or an array, got {text:.40}; as text it is "{text:.40}"')
    return raw


def _is_sent_as_json(body: bytes) -> bool:
    """Takes UTF-8 text. A body with white space around its JSON is sent as text, because JSON would lose the space."""
    if (body[:1], body[-1:]) not in ((b"{", b"}"), (b"[", b"]")):
        return False
    try:
        _any_json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return False
    if body.count(b"{") + body.count(b"[") <= MAX_DEPTH:
        return True
    steps = _STRING.sub(b"", body).translate(_LEVELS, _NO_BRACKETS)
    return max(accumulate(array("b", steps))) <= MAX_DEPTH


def _unbase64(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"{what}_b64 must be base64") from None


# --- to the wire


def push_in(job: NewJob, if_exists: IfExists) -> PushIn:
    return PushIn(**msgspec.structs.asdict(job_in(job)), if_exists=if_exists)


def job_in(job: NewJob) -> JobIn:
    body, b64 = write_body(job.body)
    return JobIn(
        body=body,
        body_b64=b64,
        id=job.id,
        delay=_ms(job.delay_ms) if job.delay_ms and job.due_at is None else UNSET,
        due_at=UNSET if job.due_at is None else instant_in(job.due_at),
        ttl=_ms(job.ttl_ms) if job.ttl_ms else 0,
        tries=job.tries,
        priority=PRIORITY_OUT[job.priority],
        attributes=dict(job.attributes),
        born=job.born,
        attempt=job.attempt,
    )


def _ms(duration: int) -> str:
    # Text, because a fraction of seconds would not come back to the millisecond.
    return f"{duration}ms"


def instant_in(at_ms: int) -> int | str:
    """Text where the number would be refused as seconds: a job may be due in 1972."""
    return rfc3339(at_ms) if at_ms in SECONDS else at_ms


PRIORITY_OUT: Mapping[Priority, Literal["high", "normal", "low"]] = {
    Priority.HIGH: "high",
    Priority.NORMAL: "normal",
    Priority.LOW: "low",
}


def lease_ref(lease: Lease) -> LeaseRef:
    return LeaseRef(lease.id, lease.born, lease.attempt)


def result_out(answer: Moved | DuetimeError | None) -> ResultOut:
    match answer:
        case Moved():
            return ResultOut(moved=answer)
        case DuetimeError():
            return ResultOut(error=error_out(answer))
        case None:
            return ResultOut()


def error_out(error: DuetimeError) -> ErrorOut:
    fields = {name: Raw(msgspec.json.encode(value)) for name, value in error.fields.items()}
    title = (type(error).__doc__ or "").split("\n", 1)[0]
    return ErrorOut(error.code, title, error.status, detail=error.message, fields=fields)


def finish_in(one: Finish) -> FinishIn:
    result, b64 = (UNSET, UNSET) if one.result is None else write_body(one.result)
    return FinishIn(
        lease_ref(one.lease),
        [job_in(job) for job in one.then],
        result,
        b64,
        _ms(one.result_ttl_ms) if one.result_ttl_ms else 0,
        join_in(one.join) if one.join else None,
    )


def join_in(join: Join) -> JoinIn:
    return JoinIn(join.name, join.of, [job_in(job) for job in join.then], _ms(join.life_ms))


def finished_out(answer: Finished | DuetimeError | None) -> FinishedOut:
    match answer:
        case Finished():
            return FinishedOut(moved=answer.acked, then=list(answer.then), now=answer.now, joined=answer.joined)
        case DuetimeError():
            return FinishedOut(error=error_out(answer))
        case None:
            return FinishedOut()


def kept_result_out(kept: KeptResult) -> KeptResultOut:
    return KeptResultOut(kept.id, kept.born, kept.kept_until, *write_body(kept.result))


def pushed_out(pushed: Pushed) -> PushedOut:
    return PushedOut([result_out(moved) for moved in pushed.jobs], pushed.now, pushed.repeated)


def delivery_out(delivery: Delivery) -> DeliveryOut:
    body, b64 = write_body(delivery.body)
    return DeliveryOut(
        queue=delivery.lease.queue.name,
        lease=lease_ref(delivery.lease),
        due_at=delivery.due_at,
        lease_until=delivery.lease_until,
        priority=PRIORITY_OUT[delivery.priority],
        tries=delivery.tries,
        used=delivery.used,
        body=body,
        body_b64=b64,
        expires_at=delivery.expires_at,
        attributes=dict(delivery.attributes),
        error=delivery.error,
    )


def job_out(job: Job) -> JobOut:
    fields = msgspec.structs.asdict(job)
    fields["namespace"], fields["queue"] = job.queue
    fields["priority"] = PRIORITY_OUT[job.priority]
    fields["body"], fields["body_b64"] = write_body(job.body)
    fields["attributes"] = dict(job.attributes)
    return JobOut(**fields)


def counts_out(counts: Counts) -> CountsOut:
    return CountsOut(**msgspec.structs.asdict(counts))


def page_out(page: Page) -> PageOut:
    return PageOut([job_out(job) for job in page.jobs], page.cursor)


# --- from the wire

_PRIORITIES: Mapping[str, Priority] = {name: priority for priority, name in PRIORITY_OUT.items()}


def new_job(job: JobIn, make_id: Callable[[], str]) -> NewJob:
    """The job for the engine; raises InvalidRequest or InvalidTime for what does not fit together."""
    if job.delay is not UNSET and job.due_at is not UNSET:
        raise InvalidRequest.not_both("delay", "due_at")
    return NewJob(
        id=make_id() if job.id is UNSET else job.id,
        body=read_body(job.body, job.body_b64),
        delay_ms=0 if job.delay is UNSET else duration_ms(job.delay),
        due_at=None if job.due_at is UNSET else instant_ms(job.due_at),
        ttl_ms=duration_ms(job.ttl) if job.ttl else 0,
        tries=job.tries,
        priority=_PRIORITIES[job.priority],
        attributes=job.attributes,
        born=job.born,
        attempt=job.attempt,
    )


def mark(message: MarkIn) -> Mark:
    try:
        digest = bytes.fromhex(message.digest)
    except ValueError:
        raise InvalidRequest("digest of a mark must be hex") from None
    return Mark(message.name, digest, duration_ms(message.life))


def lease(queue: Queue, message: LeaseRef) -> Lease:
    return Lease(queue, message.id, message.born, message.attempt)


def error(message: ErrorOut) -> DuetimeError:
    """The error that the engine raised, of the same class."""
    fields = {name: msgspec.json.decode(value) for name, value in message.fields.items()}
    return BY_CODE.get(message.code, DuetimeError)(message.detail or message.title, **fields)


def result(message: ResultOut) -> Moved | DuetimeError | None:
    return error(message.error) if message.error else message.moved


def results(messages: Sequence[ResultOut]) -> list[Moved | DuetimeError | None]:
    return [result(message) for message in messages]


def finish(queue: Queue, message: FinishIn, make_id: Callable[[], str]) -> Finish:
    is_given = message.result is not UNSET or message.result_b64 is not UNSET
    return Finish(
        lease(queue, message.lease),
        [new_job(one, make_id) for one in message.then],
        read_body(message.result, message.result_b64, "result") if is_given else None,
        duration_ms(message.result_ttl),
        _join(message.join, make_id) if message.join else None,
    )


def _join(message: JoinIn, make_id: Callable[[], str]) -> Join:
    then = [new_job(one, make_id) for one in message.then]
    return Join(message.name, message.of, then, duration_ms(message.life))


def finished(message: FinishedOut) -> Finished | DuetimeError | None:
    if message.error:
        return error(message.error)
    return Finished(message.moved, message.then, message.now, message.joined) if message.moved else None


def kept_result(message: KeptResultOut) -> KeptResult:
    return KeptResult(message.id, message.born, read_body(message.result, message.result_b64), message.kept_until)


def delivery(namespace: str, message: DeliveryOut) -> Delivery:
    return Delivery(
        lease(Queue(namespace, message.queue), message.lease),
        read_body(message.body, message.body_b64),
        due_at=message.due_at,
        lease_until=message.lease_until,
        priority=_PRIORITIES[message.priority],
        tries=message.tries,
        used=message.used,
        expires_at=message.expires_at,
        attributes=message.attributes,
        error=message.error,
    )


def job(message: JobOut) -> Job:
    fields = msgspec.structs.asdict(message)
    fields["queue"] = Queue(fields.pop("namespace"), message.queue)
    fields["priority"] = _PRIORITIES[message.priority]
    fields["body"] = read_body(message.body, fields.pop("body_b64"))
    return Job(**fields)


def counts(message: CountsOut) -> Counts:
    return Counts(**msgspec.structs.asdict(message))


def page(message: PageOut) -> Page:
    return Page([job(one) for one in message.jobs], message.cursor)


# --- topics


def topic_of(message: TopicIn) -> Topic:
    """The new topic of a message; only its times are checked. Raises InvalidTime."""
    new = {"method": NEW_METHOD, "success": NEW_SUCCESS, "php_fields": NEW_PHP_FIELDS}
    fields: dict[str, Any] = new | change_of(message)
    return Topic(key=message.topic, **fields)


def change_of(message: TopicFields) -> dict[str, Any]:
    """The new values by the names of the topic's fields. Raises InvalidTime."""
    given = {
        name: value for name, value in msgspec.structs.asdict(message).items() if value is not UNSET and name != "topic"
    }
    for name in ("delay", "timeout"):
        if name in given:
            given[f"{name}_ms"] = duration_ms(given.pop(name))
    if "priority" in given:
        given["priority"] = _PRIORITIES[given["priority"]]
    if "alert" in given:
        given["alert"] = tuple(given["alert"])
    return given
