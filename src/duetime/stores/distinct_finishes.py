"""Finishes in portions in which no id stands twice."""

from collections.abc import Iterator, Sequence

from duetime.stores.finishes import Finish


def distinct_finishes(finishes: Sequence[Finish]) -> Iterator[Sequence[Finish]]:
    """For stores that look at all ids of a portion before they change any: the portions follow each other, so that each
    finish sees what the ones before it did. A job that follows one of its own id does not count as a repetition.
    """
    batch: list[Finish] = []
    seen: set[str] = set()
    for one in finishes:
        ids = {one.lease.id, *(job.id for job in one.then)}
        if batch and not seen.isdisjoint(ids):
            yield batch
            batch, seen = [], set()
        batch.append(one)
        seen |= ids
    if batch:
        yield batch
