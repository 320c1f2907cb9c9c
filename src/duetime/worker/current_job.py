"""`current_job()`: what a running task can read and report about its job."""

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from duetime.model.clock import Duration, duration_ms
from duetime.model.errors import InvalidRequest
from duetime.wire.job_output import LastLines, clean_lines
from duetime.worker.runs import JobInfo

if TYPE_CHECKING:
    from duetime.worker.app import App
    from duetime.worker.batches import TaskBatch
    from duetime.worker.task import Task

INFIX = ".batch-"
"""Separates the queue from the rest in the name of a batch."""
PROGRESS = "progress"
EXTEND = "extend"
OUTPUT = "output"

Say = Callable[[str, Any], None]
"""Sends a message about the job to its worker: percent, milliseconds, or lines of output."""


@dataclass(frozen=True)
class JobLink:
    """Connects a running job with its worker. `stopping` answers whether the worker wants to stop."""

    say: Say
    stopping: Callable[[], bool] = lambda: False


class CurrentJob:
    """The job that this code runs for. `attempt` is the number of this delivery, counted from 1. `data` are the
    arguments as JSON; a middleware can replace them before the task sees them.
    """

    def __init__(self, info: JobInfo, link: JobLink, task: "Task[..., Any]", data: bytes) -> None:
        self.info = info
        self.app: App = task.app
        self.data = data
        self._task = task
        self._link = link
        self._percent = -1

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def name(self) -> str:
        """The name of the task."""
        return self._task.name

    @property
    def hash_key(self) -> bytes:
        """Keys the hashes of arguments; empty if they are not encrypted."""
        return self._task.hash_key

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments by name, as plain JSON. Arguments that were not given are missing."""
        return msgspec.json.decode(self.data, type=dict[str, Any])

    @property
    def attempt(self) -> int:
        return self.info.attempt

    @property
    def queue(self) -> str:
        return self.info.queue

    @property
    def batch(self) -> "TaskBatch | None":
        """The batch that the job belongs to; the task can add jobs to it."""
        return self.app.find_batch(self.queue) if INFIX in self.queue else None

    @property
    def tries(self) -> int:
        """Deliveries allowed, 0 = unlimited."""
        return self.info.tries

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that the job was pushed with: its attributes in the store."""
        return self.info.headers

    @property
    def last_try(self) -> bool:
        return 0 < self.info.tries <= self.info.used

    @property
    def stopping(self) -> bool:
        """True when the worker is stopping and waits for this job. A long task can save its state and raise Retry."""
        return self._link.stopping()

    def extend(self, timeout: Duration) -> None:
        """Set the timeout to this long from now. (The worker renews the lease in any case.)"""
        self._link.say(EXTEND, duration_ms(timeout))

    def progress(self, done: float, total: float = 100) -> None:
        """Report the progress. `App.progress` and `duetime worker progress` show it within a second."""
        try:
            if total <= 0:
                raise InvalidRequest(f"total of a progress must be more than 0, got {total}")
            percent = max(0, min(100, int(done * 100 / total)))
        except (TypeError, ValueError, OverflowError):
            raise InvalidRequest(f"progress must be finite numbers, got {done!r:.40} of {total!r:.40}") from None
        if percent != self._percent:
            self._percent = percent
            self._link.say(PROGRESS, percent)

    def log(self, *values: object) -> None:
        """Add a line to the job's output, as `print` would write it. `App.output`, `duetime worker output` and the
        console show the last lines, about 2 KB, while the job runs. Passwords in URLs and tokens are masked.
        """
        self._link.say(OUTPUT, LastLines(clean_lines(" ".join(map(str, values)))).read())


class JobLogHandler(logging.Handler):
    """Adds the records of a logger to the output of the job that is running, if one is.

    logging.getLogger("shop").addHandler(duetime.JobLogHandler())
    """

    def emit(self, record: logging.LogRecord) -> None:
        job = _current.get()
        if job is not None:
            try:
                job.log(self.format(record))
            except Exception:
                self.handleError(record)


_current: ContextVar[CurrentJob | None] = ContextVar("duetime_job", default=None)
set_current = _current.set
reset_current = _current.reset


def running_queue() -> str | None:
    """The queue of the job that is running here, if any."""
    job = _current.get()
    return None if job is None else job.queue


def current_job() -> CurrentJob:
    """Return the job that is running here. Raises InvalidRequest outside a task."""
    job = _current.get()
    if job is None:
        raise InvalidRequest("current_job() must be called in a task that a worker runs")
    return job
