"""Counts of joins on their way to another store: how many members of a task group are done."""

from duetime.model.job import STEP_JOBS
from duetime.model.names import Queue
from duetime.stores.base import Store
from duetime.stores.finishes import JoinCount


async def read_joins(store: Store, queue: Queue) -> list[JoinCount]:
    """All joins of the queue that have seen some of their finishes."""
    found: list[JoinCount] = []
    while True:
        some = await store.joins(queue, after=found[-1].name if found else "")
        found += some
        if len(some) < STEP_JOBS:
            return found
