"""Jobs that are not wanted any more when their time comes are removed."""

from collections.abc import Callable
from typing import Any

from duetime.worker.current_job import CurrentJob
from duetime.worker.middleware_chain import Middleware
from duetime.worker.task_exceptions import Cancel


def skip_if(condition: Callable[[CurrentJob], object]) -> Middleware:
    """Remove the job without running it if the condition is true then. The condition is a plain function."""

    def skip(job: CurrentJob, call: Callable[[], Any]) -> Any:
        if condition(job):
            raise Cancel("skipped")
        return call()

    return skip
