"""The mark under which a lost job is put back: once for each incarnation and attempt, however many try."""

from duetime.job import NewJob
from duetime.stores.base import Mark

REPAIR_LIFE_MS = 86_400_000
"""Whoever wants to put a job back must have looked at the store within this time."""


def repair_mark(job: NewJob) -> Mark | None:
    """None for a job that is new. The name begins with a slash: what stands before it would be a batch's name."""
    if not job.born:
        return None
    return Mark(f"/repair/{job.born}/{job.attempt}/{job.id}", b"", REPAIR_LIFE_MS)
