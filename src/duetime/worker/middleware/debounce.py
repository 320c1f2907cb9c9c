"""Of pushes that follow each other quickly, the last one runs, when it has been quiet for a while."""

from collections.abc import Awaitable, Callable
from typing import Any

from duetime.model.clock import Duration, duration_ms
from duetime.model.job import DAY_MS
from duetime.worker.current_job import CurrentJob
from duetime.worker.middleware.keys import JobKey, by_task, key_text
from duetime.worker.middleware.waiting_keys import begin
from duetime.worker.middleware_chain import Middleware, PendingJob, WaitingKey


class Debounce:
    def __init__(self, wait_ms: int, key: JobKey) -> None:
        self._wait_ms = wait_ms
        self._key = key

    def pushing(self, job: PendingJob) -> None:
        job.delay_ms = self._wait_ms
        job.waiting_key = WaitingKey(key_text("debounce", job, self._key), DAY_MS, replaces=True)

    async def __call__(self, job: CurrentJob, call: Callable[[], Awaitable[Any]]) -> Any:
        return await begin(job, call)


def debounce(wait: Duration, *, key: JobKey = by_task) -> Middleware:
    """A push is due after `wait`, and takes the place of an earlier one of its key that has not begun: there is one
    job, with the arguments of the last push. The time of `later`, `at` and `options(delay=)` is not used.
    """
    return Debounce(duration_ms(wait), key)
