"""Requests that share a run of lua/push.lua: how many of them, and as what."""

from collections.abc import Iterator, Sequence

from duetime.model.errors import DuetimeError
from duetime.model.job import STEP_BYTES, STEP_JOBS, IfExists, payload_bytes
from duetime.stores.base import Push, Pushed


def batches(requests: Sequence[Push]) -> Iterator[Sequence[Push]]:
    """Requests in portions that keep one script short. A request is never split."""
    batch: list[Push] = []
    jobs = size = 0
    for request in requests:
        count, weight = len(request.jobs), sum([payload_bytes(job) for job in request.jobs])
        if batch and (jobs + count > STEP_JOBS or size + weight > STEP_BYTES):
            yield batch
            batch, jobs, size = [], 0, 0
        batch.append(request)
        jobs, size = jobs + count, size + weight
    if batch:
        yield batch


def as_one(requests: Sequence[Push]) -> Push | None:
    """One request that does what these do, if it is accepted: its script is shorter, and its answer, too."""
    kind = requests[0].if_exists
    if kind is IfExists.REPLACE or [1 for request in requests if request.mark or request.if_exists is not kind]:
        return None
    return Push([job for request in requests for job in request.jobs], kind)


def split_pushed(requests: Sequence[Push], answer: Pushed) -> list[Pushed | DuetimeError]:
    """Each request's part of the answer to all of them."""
    parts: list[Pushed | DuetimeError] = []
    at = 0
    for request in requests:
        parts.append(Pushed(answer.jobs[at : at + len(request.jobs)], answer.now))
        at += len(request.jobs)
    return parts
