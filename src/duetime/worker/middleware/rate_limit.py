"""At most so many runs in a period, per key, over all workers.

The period begins with its first run and is measured by the store's clock: it is the life of a counter. A job that comes
too late in it is postponed to the period in which its turn comes, by how many are in front of it; so a long line is
looked at once or twice per job, and not once per period.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from duetime.model.clock import Duration, duration_ms
from duetime.model.errors import InvalidRequest
from duetime.worker.current_job import CurrentJob
from duetime.worker.middleware.keys import JobKey, ask, by_task, key_text
from duetime.worker.middleware_chain import Middleware
from duetime.worker.shared_counters import count_with_life
from duetime.worker.task_exceptions import Cancel, Postpone


def rate_limit(limit: int, *, per: Duration, key: JobKey = by_task, drop: bool = False) -> Middleware:
    """Let at most `limit` runs of a key begin in each period. What is too much is postponed, or with `drop` removed.

    Runs count when they begin, whatever becomes of them; a job that is postponed has not counted.
    """
    per_ms = duration_ms(per)
    if limit < 1 or per_ms < 1:
        raise InvalidRequest(f"a rate limit is at least one run in at least 1ms, not {limit} in {per_ms}ms")

    async def limited(job: CurrentJob, call: Callable[[], Awaitable[Any]]) -> Any:
        name = key_text("rate", job, key)
        window = await ask(job, count_with_life(job.info.namespace, name, 1, life_ms=per_ms))
        ahead = (window.value - 1) // limit
        if not ahead:
            return await call()
        if drop:
            raise Cancel(f"more than {limit} runs in {per_ms}ms")
        raise Postpone(after=f"{max(1, window.left_ms) + (ahead - 1) * per_ms}ms")

    return limited
