"""After so many exceptions in a period, no run of the key begins until the period is over.

For services that are down: instead of each job using up its tries, the jobs wait, and use none.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from duetime.model.clock import Duration, duration_ms
from duetime.worker.current_job import CurrentJob
from duetime.worker.middleware.keys import JobKey, ask, by_task, key_text
from duetime.worker.middleware_chain import Middleware
from duetime.worker.shared_counters import count_with_life
from duetime.worker.task_exceptions import Cancel, Fail, Postpone, Retry


def throttle_exceptions(limit: int, *, per: Duration, key: JobKey = by_task) -> Middleware:
    """The period begins with its first exception. An exception is raised as ever, and its job is tried again by the
    task's backoff; what a task raises by intention (Retry, Postpone, Cancel, Fail) does not count.
    """
    per_ms = duration_ms(per)

    async def throttled(job: CurrentJob, call: Callable[[], Awaitable[Any]]) -> Any:
        namespace, name = job.info.namespace, key_text("exceptions", job, key)
        window = await ask(job, count_with_life(namespace, name))
        if window.value >= limit:
            raise Postpone(f"{limit} exceptions in {per_ms}ms", after=f"{max(1, window.left_ms)}ms")
        try:
            return await call()
        except (Retry, Postpone, Cancel, Fail):
            raise
        except Exception:
            await ask(job, count_with_life(namespace, name, 1, life_ms=per_ms))
            raise

    return throttled
