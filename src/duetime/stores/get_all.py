"""Looking at many jobs: an answer of `get` ends at a bound, and here the rest is asked for."""

from collections.abc import Sequence

from duetime.job import Job
from duetime.names import Queue
from duetime.stores.base import Store


async def get_all(store: Store, queue: Queue, ids: Sequence[str]) -> list[Job | None]:
    """One entry per id, in as many calls as it takes. For callers who know that the jobs fit into memory."""
    jobs: list[Job | None] = []
    while len(jobs) < len(ids):
        jobs += await store.get(queue, ids[len(jobs) :])
    return jobs
