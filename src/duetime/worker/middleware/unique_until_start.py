"""While a job waits, another push of its key does nothing; from the moment it begins, the next push counts."""

from collections.abc import Awaitable, Callable
from typing import Any

from duetime.model.clock import Duration, duration_ms
from duetime.worker.current_job import CurrentJob
from duetime.worker.middleware.keys import JobKey, KeyedJob, key_text
from duetime.worker.middleware.waiting_keys import begin
from duetime.worker.middleware_chain import Middleware, PendingJob, WaitingKey


def by_arguments(job: KeyedJob) -> object:
    return dict(job.arguments)


class UniqueUntilStart:
    def __init__(self, life_ms: int, key: JobKey) -> None:
        self._life_ms = life_ms
        self._key = key

    def pushing(self, job: PendingJob) -> None:
        job.waiting_key = WaitingKey(key_text("unique", job, self._key), self._life_ms)

    async def __call__(self, job: CurrentJob, call: Callable[[], Awaitable[Any]]) -> Any:
        return await begin(job, call)


def unique_until_start(life: Duration, *, key: JobKey = by_arguments) -> Middleware:
    """The answer to a push that does nothing is `kept`, with the id of the job that waits. For one that holds until the
    job is done, see the task's option `unique_for`.
    """
    return UniqueUntilStart(duration_ms(life), key)
