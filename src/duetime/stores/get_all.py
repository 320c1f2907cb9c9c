"""Reads any number of jobs by id: `Store.get` ends at a bound, and `get_all` repeats it until every id is answered."""

from collections.abc import Sequence

from duetime.model.job import Job
from duetime.model.names import Queue
from duetime.stores.base import Store


async def get_all(store: Store, queue: Queue, ids: Sequence[str]) -> list[Job | None]:
    """One entry per id, in as many calls as it takes. For callers that know that the jobs fit into memory."""
    jobs: list[Job | None] = []
    while len(jobs) < len(ids):
        jobs += await store.get(queue, ids[len(jobs) :])
    return jobs
