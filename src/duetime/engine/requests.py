"""The requests that the batcher groups: one struct per verb, with its check and its weight.

    engine.submit(PushRequest(queue, Push([job])), reply)       # reply.set_result(Pushed)

`check` raises for what is not valid. `weight` is how much of a store call the request takes up: a number of jobs, or
bytes, where STEP_BYTES are at most STEP_JOBS jobs and at most STEP_BYTES bytes of payload.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

from msgspec import Struct

from duetime.engine.admission import check_finish, check_ids, check_jobs, check_lease, check_times, check_ttr
from duetime.model.errors import DuetimeError, LeaseLost
from duetime.model.job import STEP_BYTES, STEP_JOBS, Delivery, Lease, Moved, NewJob, check_text, payload_bytes
from duetime.model.names import Queue
from duetime.stores.base import Push, Pushed
from duetime.stores.finishes import Finish, Finished, KeptResult

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
        check_jobs(self.push.jobs, max_body=max_body)
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


class AckAndReserveRequest(Request[list[Delivery] | None], frozen=True):
    """Finish a job, and lease a ready job of the same queue if that is possible in the same step. Never grouped.

    None: no job was looked for. Raises LeaseLost.
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
    """The results that exist, by id."""


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


def by_weight(items: Sequence[T], weights: Sequence[int]) -> Iterator[tuple[Sequence[T], int]]:
    """Splits the items into lists that each fit into one call, with their weight; one item always fits."""
    chunk, total = list[T](), 0
    for item, weight in zip(items, weights, strict=True):
        if chunk and total + weight > STEP_BYTES:
            yield chunk, total
            chunk, total = [], 0
        chunk.append(item)
        total += weight
    if chunk:
        yield chunk, total
