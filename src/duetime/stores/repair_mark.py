"""The mark under which a lost job is pushed again: once per born and attempt, however many processes try."""

from duetime.model.job import NewJob
from duetime.stores.base import Mark

REPAIR_LIFE_MS = 86_400_000
"""How long the mark lives. A repair that acts on an older look at the store could push a job a second time."""


def repair_mark(job: NewJob) -> Mark | None:
    """None for a new job. The name begins with a slash, so that it never equals the mark of a batch: that one begins
    with the batch's name. lua/push.lua makes the same name.
    """
    if not job.born:
        return None
    return Mark(f"/repair/{job.born}/{job.attempt}/{job.id}", b"", REPAIR_LIFE_MS)
