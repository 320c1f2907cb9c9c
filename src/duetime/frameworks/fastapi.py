"""FastAPI: a replacement for `BackgroundTasks` that survives a restart.

    @web.post("/orders")
    async def order(number: int, background: Annotated[BackgroundJobs, background_jobs()]) -> str:
        background.add_task(send_receipt, number)
        background.add_task_later("5m", check_payment, number)
        return "accepted"

FastAPI's own background tasks run in the web server after the response, and are lost if it stops. These are jobs: they
are pushed when the function has returned and before the response is sent, so that a client that got its response can
rely on them, and workers run them. If the function raises, nothing is pushed; if the push fails, the response is an
error. Needs FastAPI 0.121.
"""

from collections.abc import AsyncGenerator
from typing import Any, ParamSpec

from fastapi import Depends

from duetime.model.clock import Duration
from duetime.model.errors import InvalidRequest
from duetime.worker.task import Task

P = ParamSpec("P")


class BackgroundJobs:
    """The jobs of one request."""

    def __init__(self) -> None:
        self._calls: list[tuple[Task[..., Any], Duration, tuple[Any, ...], dict[str, Any]]] = []

    def add_task(self, task: Task[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Push a job for this call when the function has returned."""
        self.add_task_later(0, task, *args, **kwargs)

    def add_task_later(self, delay: Duration, task: Task[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """The same, due after a delay."""
        if not isinstance(task, Task):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidRequest(f"background job must be a task of a duetime.App, got {task!r}; decorate it @app.task")
        self._calls.append((task, delay, args, kwargs))

    async def push(self) -> None:
        for task, delay, args, kwargs in self._calls:
            await task.later_async(delay, *args, **kwargs)


async def _collect() -> AsyncGenerator[BackgroundJobs]:
    jobs = BackgroundJobs()
    yield jobs
    await jobs.push()


def background_jobs() -> Any:
    """The annotation of a parameter that collects the jobs of a request."""
    return Depends(_collect, scope="function")
