"""The requests that the batcher groups: one struct per verb, with its check and its weight.

    engine.submit(PushRequest(queue, Push([job])), reply)       # reply.set_result(Pushed)

`check` raises an error if a request is not valid. Later code does not check again: a value that a driver cannot write
would fail a store call for all requests in it, so every value that passes `check` can be written by every store.
`weight` is the request's share of a store call: a number of jobs, or bytes, where STEP_BYTES are at most STEP_JOBS jobs
and at most STEP_BYTES bytes of payload.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

from msgspec import Struct

from duetime.model.clock import MAX_DURATION, MAX_INSTANT
from duetime.model.errors import BodyTooLarge, DuetimeError, InvalidRequest, InvalidTime, LeaseLost
from duetime.model.job import (
    MAX_RESULT,
    MAX_RESULT_MS,
    STEP_BYTES,
    STEP_JOBS,
    Delivery,
    Lease,
    Moved,
    NewJob,
    check_incarnation,
    check_job,
    check_text,
    payload_bytes,
)
from duetime.model.names import FOLLOWS, Queue, check_id, placing_part
from duetime.stores.base import Push, Pushed
from duetime.stores.finishes import Finish, Finished, Join, KeptResult

T = TypeVar("T")
Answer = TypeVar("Answer")

LEAST_WEIGHT = STEP_BYTES // STEP_JOBS


class Request(Struct, Generic[Answer], frozen=True):
    """`max_weight` bounds a store call, but one request always fits."""

    queue: Queue

    max_weight: ClassVar[int] = STEP_JOBS

    def check(self, max_body: int) -> None:
        raise NotImplementedError

    def weight(self) -> int:
        raise NotImplementedError


class PushRequest(Request[Pushed], frozen=True):
    push: Push

    max_weight: ClassVar[int] = STEP_BYTES

    def check(self, max_body: int) -> None:
        if not self.push.jobs:
            raise InvalidRequest("a push must have at least one job, got none")
        for job in self.push.jobs:
            check_job(job, max_body=max_body)
        if mark := self.push.mark:
            check_text(mark.name)
            check_times(ttl_ms=mark.life_ms)

    def weight(self) -> int:
        return push_weight(self.push.jobs)


class ReserveRequest(Request[list[Delivery]], frozen=True):
    """Lease up to `limit` jobs; if none is ready, wait up to `wait_ms` for the first one."""

    ttr_ms: int
    limit: int = 1
    wait_ms: int = 0

    def check(self, max_body: int) -> None:
        check_ttr(self.ttr_ms)

    def weight(self) -> int:
        return self.limit


class AckRequest(Request[Sequence[Moved | LeaseLost | None]], frozen=True):
    leases: Sequence[Lease]

    def check(self, max_body: int) -> None:
        for lease in self.leases:
            check_lease(lease)

    def weight(self) -> int:
        return len(self.leases)


class GiveBackRequest(Request[Sequence[Moved | LeaseLost]], frozen=True):
    """Undo deliveries. Without a delay the jobs keep their old due times."""

    leases: Sequence[Lease]
    delay_ms: int | None = None

    def check(self, max_body: int) -> None:
        check_times(delay_ms=self.delay_ms or 0)
        for lease in self.leases:
            check_lease(lease)

    def weight(self) -> int:
        return len(self.leases)


class AckAndReserveRequest(Request[list[Delivery] | None], frozen=True):
    """Finish a job, and lease a ready job of the same queue if that is possible in the same step. Never grouped.

    None: the step did not try to lease a job. Raises LeaseLost.
    """

    lease: Lease
    ttr_ms: int

    def check(self, max_body: int) -> None:
        check_lease(self.lease)
        check_ttr(self.ttr_ms)


class FinishRequest(Request[Sequence[Finished | DuetimeError | None]], frozen=True):
    finishes: Sequence[Finish]

    max_weight: ClassVar[int] = STEP_BYTES

    def check(self, max_body: int) -> None:
        for one in self.finishes:
            check_finish(one, max_body=max_body)

    def weight(self) -> int:
        return sum([finish_weight(one) for one in self.finishes])


class IdsRequest(Request[Answer], Generic[Answer], frozen=True):
    ids: Sequence[str]

    def check(self, max_body: int) -> None:
        check_ids(self.ids)

    def weight(self) -> int:
        return len(self.ids)


class CancelRequest(IdsRequest[Sequence[Moved | None]], frozen=True):
    """Remove jobs by id, wherever they are."""


class AckByIdRequest(IdsRequest[Sequence[Moved | None]], frozen=True):
    """Cancel in the name of a consumer that has finished: recorded as acked."""


class ResultsRequest(IdsRequest[Mapping[str, KeptResult]], frozen=True):
    """Read the kept results that exist, by id."""


# --- checks of jobs, ids, leases, times and tries


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
        raise InvalidRequest(f"a job must have fewer than {STEP_JOBS} follow-up jobs, got {len(jobs)}")
    for job in jobs:
        check_job(job, max_body=max_body)
        if job.born or job.attempt:
            raise InvalidRequest(f"follow-up job {job.id!r} must not have born or attempt", id=job.id)
    for job_id, count in Counter(job.id for job in jobs).items():
        if count > 1:
            raise InvalidRequest(f"duplicate id among follow-up jobs: {job_id!r}", id=job_id)
    if (size := sum(map(payload_bytes, jobs))) > STEP_BYTES:
        raise BodyTooLarge(f"follow-up jobs must have at most {STEP_BYTES} bytes together, got {size}", id=one.lease.id)
    if one.result is not None and len(one.result) > MAX_RESULT:
        raise BodyTooLarge(f"a result must have at most {MAX_RESULT} bytes, got {len(one.result)}", id=one.lease.id)
    if not 0 <= one.result_ttl_ms <= MAX_RESULT_MS:
        raise InvalidTime(
            f"result ttl must be between 0 and {MAX_RESULT_MS} ms, got {one.result_ttl_ms}", id=one.lease.id
        )


def check_join(join: Join, job_id: str) -> None:
    """A join, its jobs and the jobs that join live on one member of a group of stores: their ids begin alike."""
    check_id(join.name)
    if join.of < 1 or not join.then:
        raise InvalidRequest("a join must have at least one job and at least one follow-up job")
    if not 0 < join.life_ms <= MAX_RESULT_MS:
        raise InvalidTime(f"life of a join must be between 1 and {MAX_RESULT_MS} ms, got {join.life_ms}", id=job_id)
    for one in (join.name, *(job.id for job in join.then)):
        if placing_part(one) != placing_part(job_id):
            raise InvalidRequest(
                f"ids in a join must begin alike before {FOLLOWS!r}, got {one!r} and {job_id!r}", id=job_id
            )


def check_times(*, delay_ms: int = 0, ttl_ms: int = 0, due_at: int | None = None) -> None:
    if not 0 <= delay_ms <= MAX_DURATION or not 0 <= ttl_ms <= MAX_DURATION:
        raise InvalidTime(f"delay and ttl must be between 0 and {MAX_DURATION} ms, got {delay_ms} and {ttl_ms}")
    if due_at is not None and not 0 <= due_at <= MAX_INSTANT:
        raise InvalidTime(f"due_at must be between 1970 and 9999, got {due_at}")


def check_ttr(ttr_ms: int) -> None:
    if not 0 <= ttr_ms <= MAX_DURATION:
        raise InvalidRequest(f"ttr must be between 0 and {MAX_DURATION} ms, got {ttr_ms}")


# --- weights


def push_weight(jobs: Sequence[NewJob]) -> int:
    if len(jobs) == 1:
        size = payload_bytes(jobs[0]) if jobs[0].attributes else len(jobs[0].body)
        return size if size > LEAST_WEIGHT else LEAST_WEIGHT
    return sum([max(payload_bytes(job), LEAST_WEIGHT) for job in jobs])


def finish_weight(one: Finish) -> int:
    return (
        max(len(one.result or b""), LEAST_WEIGHT)
        + push_weight(one.then)
        + push_weight(one.join.then if one.join else ())
    )
