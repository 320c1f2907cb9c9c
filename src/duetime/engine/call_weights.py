"""How much of a store call a request takes up, in bytes: STEP_BYTES are at most STEP_JOBS jobs and at most STEP_BYTES
bytes of payload.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from duetime.model.job import STEP_BYTES, STEP_JOBS, NewJob, payload_bytes
from duetime.stores.finishes import Finish

T = TypeVar("T")

LEAST_WEIGHT = STEP_BYTES // STEP_JOBS


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
    """The items in lists that each fit into one call, with their weight; one item always fits."""
    chunk, total = list[T](), 0
    for item, weight in zip(items, weights, strict=True):
        if chunk and total + weight > STEP_BYTES:
            yield chunk, total
            chunk, total = [], 0
        chunk.append(item)
        total += weight
    if chunk:
        yield chunk, total
