"""At most one job of a key that has not begun: what `debounce` and `unique_until_start` share.

A job's id ends with the number of its generation, which a counter of the key holds. When a job begins, it raises the
counter, so the next push has another id and no longer meets this job, however long it runs and however often it is
tried again. A push may replace a job that a worker has reserved and not begun; such a job does not run.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from duetime.model.job import DAY_MS
from duetime.model.names import Queue
from duetime.worker.current_job import CurrentJob
from duetime.worker.middleware.keys import ask, is_leased
from duetime.worker.pusher import generation_of
from duetime.worker.shared_counters import count
from duetime.worker.task_exceptions import Cancel


async def begin(job: CurrentJob, call: Callable[[], Awaitable[Any]]) -> Any:
    """Make room for the next job of the key, then run this one, unless a later push has replaced it."""
    found, info = generation_of(job.id), job.info
    if found is not None:
        counter, generation = found
        namespace = info.namespace
        if not await is_leased(job, Queue(namespace, info.queue), info.id, info.born, info.attempt):
            raise Cancel("a later push has replaced this job")
        if await ask(job, count(namespace, counter)) == generation:
            await ask(job, count(namespace, counter, 1, life_ms=DAY_MS))
    return await call()
