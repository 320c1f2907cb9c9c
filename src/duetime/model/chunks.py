"""Cuts work into calls that keep the bounds of a store call: STEP_JOBS jobs and STEP_BYTES bytes (`model.job`).

Every layer that sends jobs or reads them in portions cuts here, so that all of them agree about the bounds.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

from duetime.model.job import STEP_BYTES, STEP_JOBS

T = TypeVar("T")


def chunks(
    items: Iterable[T],
    *,
    size: Callable[[T], int] | None = None,
    count: Callable[[T], int] | None = None,
    key: Callable[[T], object] | None = None,
    distinct: Callable[[T], Iterable[Hashable]] | None = None,
    max_count: int = STEP_JOBS,
) -> Iterator[list[T]]:
    """Yields runs of neighbours. An item is never split, so one that is larger than the bounds is a chunk by itself.

    `size` is the bytes of an item (default 0) and `count` its number of jobs (default 1). All items of a chunk have the
    same `key`, and none of them shares one of its `distinct` values with another.
    """
    chunk: list[T] = []
    jobs = weight = 0
    current: object = None
    seen: set[Hashable] = set()
    for item in items:
        more_jobs = count(item) if count else 1
        more_weight = size(item) if size else 0
        item_key = key(item) if key else None
        values: set[Hashable] = set(distinct(item)) if distinct else set()
        if chunk and (
            jobs + more_jobs > max_count
            or weight + more_weight > STEP_BYTES
            or item_key != current
            or (distinct and not seen.isdisjoint(values))
        ):
            yield chunk
            chunk, jobs, weight = [], 0, 0
            seen.clear()
        chunk.append(item)
        jobs, weight, current = jobs + more_jobs, weight + more_weight, item_key
        if distinct:
            seen |= values
    if chunk:
        yield chunk
