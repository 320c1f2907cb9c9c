"""Handlers for producers: push one job or many, cancel, reschedule.

An Idempotency-Key becomes a mark of the queue: the same request again does nothing and answers as before, another one
under the same key is refused.
"""

import asyncio
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from duetime.engine.requests import PushRequest
from duetime.model.clock import duration_ms, instant_ms
from duetime.model.errors import DuetimeError, InvalidRequest, JobNotFound, MarkMismatch, StoreUnavailable
from duetime.model.ids import encode
from duetime.model.job import Event, Moved, NewJob
from duetime.protocols.v1.request import Headers, NativeRequest, Response, V1Operation, idempotency_key
from duetime.stores.base import Mark, Push, Pushed, repair_mark
from duetime.wire import convert
from duetime.wire.messages import (
    BatchIn,
    IdsIn,
    PushedOut,
    PushIn,
    RescheduleIn,
    ResultOut,
    ResultsOut,
    WhenIn,
)

KEY_LIFE_MS = 24 * 3_600_000
MAX_NUMBERED = 250
"""The longest name of a mark in a batch; the rest of its 255 characters is for the number of the job."""
REPLAYED: Headers = [(b"idempotent-replayed", b"true")]


async def push(request: NativeRequest[PushIn, None]) -> Response:
    message = request.message
    job = convert.new_job(message, request.make_id)
    mark = _key_mark(request.headers, request.raw)
    pushed = await request.engine.push(request.queue, [job], if_exists=message.if_exists, mark=mark, made_ids=True)
    return PushOperation.response(message, pushed)


class PushOperation(V1Operation[PushIn]):
    def request(self, message: PushIn) -> PushRequest:
        job = convert.new_job(message, self.make_id)
        return PushRequest(self.queue, Push((job,), message.if_exists, made_ids=True))

    @staticmethod
    def response(message: PushIn, result: Pushed) -> Response:
        [moved] = result.jobs
        status = 200 if moved.event is Event.KEPT else 201
        return Response(status, ResultOut(moved=moved), REPLAYED if result.repeated else ())


async def push_batch(request: NativeRequest[BatchIn, None]) -> Response:
    message = request.message
    mark = _key_mark(request.headers, request.raw)
    if message.mark is not None:
        if mark is not None:
            raise InvalidRequest.not_both("an Idempotency-Key", "a mark")
        mark = convert.mark(message.mark)
        if not mark.name.isprintable():
            raise InvalidRequest(f"name of a mark must have only printable characters, got {mark.name!r}")
    if message.atomic:
        jobs = [convert.new_job(job, request.make_id) for job in message.jobs]
        pushed = await request.engine.push(request.queue, jobs, if_exists=message.if_exists, mark=mark, made_ids=True)
        answer = convert.pushed_out(pushed)
    else:
        answer = await _push_each(request, mark)
    return Response(201, answer, REPLAYED if answer.repeated else ())


def _key_mark(headers: Mapping[bytes, bytes], body: bytes) -> Mark | None:
    if b"idempotency-key" not in headers:
        return None
    return Mark(idempotency_key(headers), hashlib.sha256(body).digest(), KEY_LIFE_MS)


async def cancel(request: NativeRequest[IdsIn, None]) -> Response:
    moved = await request.engine.cancel(request.queue, request.message.ids)
    return Response(200, ResultsOut([convert.result_out(one) for one in moved]))


async def cancel_job(request: NativeRequest[None, None]) -> Response:
    [moved] = await request.engine.cancel(request.queue, [request.job_id])
    return _one(request, moved)


async def reschedule(request: NativeRequest[RescheduleIn, None]) -> Response:
    message = request.message
    delay_ms, due_at = _when(message)
    answers = await request.engine.reschedule(request.queue, message.ids, delay_ms=delay_ms, due_at=due_at)
    return Response(200, ResultsOut([convert.result_out(answer) for answer in answers]))


async def reschedule_job(request: NativeRequest[WhenIn, None]) -> Response:
    delay_ms, due_at = _when(request.message)
    [answer] = await request.engine.reschedule(request.queue, [request.job_id], delay_ms=delay_ms, due_at=due_at)
    return _one(request, answer)


def _one(request: NativeRequest[Any, None], answer: Moved | DuetimeError | None) -> Response:
    """The response about the one job in the path. Raises JobNotFound."""
    if isinstance(answer, DuetimeError):
        raise answer
    if answer is None:
        raise JobNotFound.of(request.job_id, request.queue)
    return Response(200, convert.result_out(answer))


def _when(message: RescheduleIn | WhenIn) -> tuple[int, int | None]:
    """(delay_ms, due_at), as the engine takes them."""
    if (message.delay is UNSET) == (message.due_at is UNSET):
        raise InvalidRequest("request must have delay or due_at, and not both")
    if message.due_at is not UNSET:
        return 0, instant_ms(message.due_at)
    return 0 if message.delay is UNSET else duration_ms(message.delay), None


# --- each job of a batch on its own


async def _push_each(request: NativeRequest[BatchIn, None], mark: Mark | None) -> PushedOut:
    """One result per job. The pushes of all jobs meet in the engine's group commit.

    With a mark: the first job that is accepted sets it, so that another request under its name is refused before it
    changes anything; all other jobs have marks of their own, numbered. A repeated request tries again what was refused
    the first time, and nothing else.
    """
    jobs = _converted(request, mark)
    results: dict[int, Pushed | DuetimeError] = {}
    if mark is not None:
        if len(mark.name) > MAX_NUMBERED:
            raise InvalidRequest(f"mark of a batch that is not atomic must have at most {MAX_NUMBERED} characters")
        results = await _set_mark(request, jobs, mark)
    indexes = [index for index in range(len(jobs)) if index not in results]
    marks = [
        msgspec.structs.replace(mark, name=f"{mark.name}#{index}") if mark else _repair_mark(jobs[index])
        for index in indexes
    ]
    found = await asyncio.gather(
        *(_push_one(request, jobs[index], own) for index, own in zip(indexes, marks, strict=True))
    )
    results.update(zip(indexes, found, strict=True))
    return _joined([results[index] for index in range(len(jobs))])


def _repair_mark(job: NewJob | DuetimeError) -> Mark | None:
    """Restores a lost job once, even if several repairs run."""
    return repair_mark(job) if isinstance(job, NewJob) else None


def _converted(request: NativeRequest[BatchIn, None], mark: Mark | None) -> list[NewJob | DuetimeError]:
    make_id = request.make_id
    if mark is not None:
        # A repeated request must make the same ids again, to find its jobs by them; they keep the order of the batch.
        digest = hashlib.sha256(f"{mark.name}\0".encode() + mark.digest).digest()
        first = int.from_bytes(digest[:11], "big") << 40
        numbers = itertools.count(first)
        make_id = lambda: encode(next(numbers))  # noqa: E731
    jobs: list[NewJob | DuetimeError] = []
    for job in request.message.jobs:
        try:
            jobs.append(convert.new_job(job, make_id))
        except InvalidRequest as error:
            jobs.append(error)
    return jobs


async def _push_one(
    request: NativeRequest[BatchIn, None], job: NewJob | DuetimeError, mark: Mark | None
) -> Pushed | DuetimeError:
    if isinstance(job, DuetimeError):
        return job
    try:
        return await request.engine.push(request.queue, [job], if_exists=request.message.if_exists, mark=mark)
    except DuetimeError as error:
        return error


async def _set_mark(
    request: NativeRequest[BatchIn, None], jobs: Sequence[NewJob | DuetimeError], mark: Mark
) -> dict[int, Pushed | DuetimeError]:
    """Push job after job under the mark itself until one is accepted or the mark turns out to be set.

    Answers the results so far. Nothing was changed if this raises.
    """
    results: dict[int, Pushed | DuetimeError] = {}
    for index, job in enumerate(jobs):
        answer = await _push_one(request, job, mark)
        if isinstance(answer, MarkMismatch | StoreUnavailable):
            raise answer
        if isinstance(answer, Pushed) and answer.repeated:
            return {_setter(jobs, answer, mark): answer}
        results[index] = answer
        if isinstance(answer, Pushed):
            break
    return results


def _setter(jobs: Sequence[NewJob | DuetimeError], pushed: Pushed, mark: Mark) -> int:
    """The index of the job whose push set the mark."""
    ids = [job.id if isinstance(job, NewJob) else "" for job in jobs]
    if len(pushed.jobs) != 1 or pushed.jobs[0].id not in ids:
        raise MarkMismatch.of(mark.name)
    return ids.index(pushed.jobs[0].id)


def _joined(results: Sequence[Pushed | DuetimeError]) -> PushedOut:
    done = [result for result in results if isinstance(result, Pushed)]
    return PushedOut(
        [convert.result_out(result.jobs[0] if isinstance(result, Pushed) else result) for result in results],
        now=max((result.now for result in done), default=0),
        repeated=bool(done) and all(result.repeated for result in done),
    )
