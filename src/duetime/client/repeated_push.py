"""A push over HTTP that may be repeated carries a mark, so that the server knows a repetition from a new push."""

import secrets
import time
from collections.abc import Sequence

from duetime.model.job import NewJob
from duetime.stores.base import Mark

REPEATS_MS = 5 * 60_000
"""The life of a mark: longer than all tries of one call take together, each with its full timeout."""


def mark_for_repeats(jobs: Sequence[NewJob]) -> Mark | None:
    """A new mark. None if no job falls due before the last repetition: as long as they wait, their ids tell; and none
    for lost jobs that are put back, which have marks of their own (`stores.repair_mark`).
    """
    if any(job.born for job in jobs) or all(job.due_at is None and job.delay_ms > REPEATS_MS for job in jobs):
        return None
    token = secrets.token_bytes(8)
    # What stands before the first slash would be the name of a batch. The time comes first, because a SQL store keeps
    # marks in the order of their names: those of one moment are then neighbours, and not spread over the whole index.
    return Mark(f"/sdk/{time.time_ns() // 1_000_000:011x}-{token.hex()}", token, REPEATS_MS)
