"""A push of a task returns a handle on the job that was pushed.

It has what happened (`id`, `event`, `due_at` ...), and asks and changes the job through the App it came from. The
methods block; inside a running event loop use their twins (`get_async` ...), and `await handle` for the result.
"""

import time
from collections.abc import Generator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import msgspec

from duetime.client.calls import cancel, get, reschedule, results
from duetime.model.clock import Duration, Instant, duration_ms, rfc3339
from duetime.model.errors import NOT_JSON, DuetimeError, InvalidRequest, JobNotFound
from duetime.model.job import Event, Job, Moved, State
from duetime.model.names import Queue
from duetime.stores.base import KeptResult
from duetime.worker.arguments import decode_model
from duetime.worker.pusher import UncommittedPush, Work, both

if TYPE_CHECKING:
    from duetime.worker.app import App
    from duetime.worker.task import Task

R = TypeVar("R")
P = ParamSpec("P")
Other = TypeVar("Other")

SAME_MS = 1_000
PARK_S = 2.0
"""One wait for a result; between two of them the handle checks whether the job has failed."""


Place = tuple[Queue, str]
"""A job by its queue and id."""


class TaskStatus(StrEnum):
    """The state of a job; `uncommitted` if its push waits for a commit or was rolled back; `waiting` for an earlier
    step of its chain; `done` if its result is kept; or `gone`: done without a result, cancelled or expired.
    """

    UNCOMMITTED = "uncommitted"
    WAITING = "waiting"
    DELAYED = "delayed"
    READY = "ready"
    LEASED = "leased"
    DEAD = "dead"
    DONE = "done"
    GONE = "gone"


class TaskFailed(DuetimeError):
    """The job is a dead letter. `kind` is the type of the exception, `traceback` its text in full."""

    code = "task_failed"

    def __init__(self, message: str, *, kind: str, traceback: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.traceback = traceback


class TaskHandle(Generic[R]):
    """A job that was pushed. `event` is `accepted`, `replaced`, or `kept` if a job with this id already existed.

    `before` are the steps of a chain that run before this job, in their order. `moved` then belongs to the first of
    them, and `last_id` is the id of this job. `asked_at` is the due time that the push asked for, 0 for immediately.
    """

    __slots__ = ("_answer", "_asked_at", "_before", "_last_id", "_queue", "_task")

    def __init__(
        self,
        task: "Task[..., R]",
        queue: Queue,
        moved: Moved,
        before: Sequence[Place] = (),
        *,
        last_id: str = "",
        asked_at: int = 0,
    ) -> None:
        self._task = task
        self._queue = queue
        self._answer = moved
        self._before = tuple(before)
        self._last_id = last_id
        self._asked_at = asked_at

    def __repr__(self) -> str:
        state: str = self.event if self.is_pushed else "not pushed yet"
        if self.reason == "waiting" and not self.is_due_as_asked:
            state += f", due at {rfc3339(self.due_at)}"
        return f"<{self._task.name} {self.queue}/{self.id} {state}>"

    @property
    def app(self) -> "App":
        return self._task.app

    @property
    def moved(self) -> Moved:
        """The result of the push. For a push that waited for a commit, the result after the commit."""
        answer = self._answer
        return answer.pushed[0] if isinstance(answer, UncommittedPush) and answer.pushed else answer

    @property
    def is_pushed(self) -> bool:
        """False while the push waits for a commit, and after a rollback."""
        return not isinstance(self.moved, UncommittedPush)

    @property
    def is_due_as_asked(self) -> bool:
        """False if the id was taken, and the existing job is due at another time, runs or is dead. `due_at` is the time
        of that job. Times less than a second apart count as equal.
        """
        if self.event is not Event.KEPT:
            return True
        if self.reason != "waiting":
            return False
        if not self._asked_at:
            return self.due_at <= self._task.app.clock.now_ms()
        return abs(self.due_at - self._asked_at) < SAME_MS

    @property
    def id(self) -> str:
        return self._last_id or self.moved.id

    @property
    def queue(self) -> str:
        return self._queue.name

    @property
    def place(self) -> Place:
        """The job's queue and id."""
        return self._queue, self.id

    @property
    def _places(self) -> Sequence[Place]:
        return (*self._before, self.place)

    @property
    def event(self) -> Event:
        return self.moved.event

    @property
    def born(self) -> int:
        return self.moved.born

    @property
    def due_at(self) -> int:
        return self.moved.due_at

    @property
    def reason(self) -> str:
        return self.moved.reason

    def __await__(self) -> Generator[Any, Any, R]:
        return self.get_async().__await__()

    def _find(self) -> Work[Job | None]:
        """The job, or the step that its chain is at. A step that is gone was done before its next one could be read,
        so in this order none is missed.
        """
        for queue, job_id in self._places:
            [job] = yield get(queue, [job_id])
            if job is not None:
                return job
        return None

    def _kept(self, wait_s: float) -> Work[KeptResult | None]:
        """The result of this job, and not of an earlier one with its id."""
        queue, job_id = self._places[-1]
        [kept] = yield results(queue, [job_id], wait_s)
        return kept if kept is not None and kept.born >= self.born else None

    def _check_pushed(self) -> None:
        if not self.is_pushed:
            raise InvalidRequest(f"{self!r} must be pushed first: it waits for a commit, or was rolled back")

    def _status(self) -> Work[TaskStatus]:
        """Return the state of the job, or how it ended."""
        if not self.is_pushed:
            return TaskStatus.UNCOMMITTED
        job = yield from self._find()
        if job is None:
            kept = yield from self._kept(0)
            return TaskStatus.DONE if kept else TaskStatus.GONE
        if (job.queue, job.id) != self._places[-1] and job.state is not State.DEAD:
            return TaskStatus.WAITING
        return TaskStatus(job.state.value)

    def _get(self, timeout: Duration | None = None) -> Work[R]:
        """Wait for the return value of the task, and return it. Needs the task option `result_ttl`.

        Raises TaskFailed if the job is a dead letter, TimeoutError after the timeout, and JobNotFound if the job is
        gone without a result: cancelled, expired, or finished longer ago than `result_ttl`.
        """
        self._check_pushed()
        if not self._task.result_ms:
            raise InvalidRequest(f"{self._task.name} must have result_ttl to keep results")
        end = None if timeout is None else time.monotonic() + duration_ms(timeout) / 1000
        was_gone = False
        while True:
            left_s = PARK_S if end is None else min(PARK_S, end - time.monotonic())
            kept = yield from self._kept(0 if was_gone else max(0.0, left_s))
            if kept is not None:
                return self._value(kept)
            if was_gone:
                raise JobNotFound.of(self.id, self._places[-1][0])
            if left_s <= 0:
                raise TimeoutError(f"no result of {self!r} in time")
            job = yield from self._find()
            if job is not None and job.state is State.DEAD:
                raise failure_of(job)
            # It may have ended after its result was read, so that is read once more.
            was_gone = job is None and self.born > 0

    def cancel_work(self) -> Work[bool]:
        """Remove the job, or the step that its chain has reached. Returns False if it is already gone. A running job
        loses its lease, and is stopped when its worker next renews it.
        """
        self._check_pushed()
        for queue, job_id in self._places:
            [moved] = yield cancel(queue, [job_id])
            if moved is not None:
                return True
        return False

    def reschedule_work(self, delay: Duration | None = None, *, due_at: Instant | None = None) -> Work[Moved]:
        """Change the due time of the job, or of the step that its chain has reached, to a delay from now or to an
        instant. Raises JobNotFound, JobRunning, JobDead.
        """
        self._check_pushed()
        job = yield from self._find()
        if job is None:
            raise JobNotFound.of(self.id, self._places[-1][0])
        [moved] = yield reschedule(job.queue, [job.id], delay, due_at)
        if isinstance(moved, DuetimeError):
            raise moved
        if moved is None:
            raise JobNotFound.of(job.id, job.queue)
        return moved

    status, status_async = both(_status)
    get, get_async = both(_get)
    cancel, cancel_async = both(cancel_work)
    reschedule, reschedule_async = both(reschedule_work)

    def _value(self, kept: KeptResult) -> R:
        try:
            return msgspec.json.decode(kept.result, type=self._task.return_type, dec_hook=decode_model)
        except NOT_JSON as error:
            raise InvalidRequest(f"result must have the return type of {self._task.name}: {error}") from None


def failure_of(job: Job) -> TaskFailed:
    """The error of a dead letter: its last line names the exception and what it says."""
    lines = job.error.strip().splitlines()
    kind, _, message = (lines[-1] if lines else job.reason).partition(": ")
    return TaskFailed(message or kind, kind=kind, traceback=job.error)
