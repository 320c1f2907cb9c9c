"""What a push of a task answers: a handle on the job that was pushed.

It has what happened (`id`, `event`, `due_at` ...), and asks and changes the job through the App it came from. The
methods block; inside a running event loop use their twins, and `await handle` for the result.
"""

import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from enum import StrEnum
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

import msgspec

from duetime.client.call import Call
from duetime.client.calls import cancel, get, reschedule, results
from duetime.model.clock import Duration, Instant, duration_ms, rfc3339
from duetime.model.errors import DuetimeError, InvalidRequest, JobNotFound
from duetime.model.job import Event, Job, Moved, State
from duetime.model.names import Queue
from duetime.stores.base import KeptResult
from duetime.worker.pusher import UncommittedPush

if TYPE_CHECKING:
    from duetime.worker.app import App
    from duetime.worker.task import Task

R = TypeVar("R")
P = ParamSpec("P")
Other = TypeVar("Other")

SAME_MS = 1_000
PARK_S = 2.0
"""One wait for a result; between two of them a look whether the job has failed."""


Place = tuple[Queue, str]
"""A job by its queue and id."""
Work = Generator[Call[Any], Any, R]
"""What is asked of the store, one call after the other; it is sent by blocking code and by coroutines alike."""


class BlockingCaller(Protocol):
    """Sends a call to the store or server: an App, a Client."""

    def send(self, call: Call[Other], /) -> Other: ...


class AsyncCaller(Protocol):
    """The same inside a running loop."""

    async def send_async(self, call: Call[Other], /) -> Other: ...


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
    """`event` is `accepted`, `replaced`, or `kept` if a job with this id was there already. `before` are the steps of
    a chain that run before this job, the first one first; `moved` is then about the first, and `last_id` is the id of
    this job. `asked_at` is when the push asked the job to be due, 0 for at once.
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
        said: str = self.event if self.is_pushed else "not pushed yet"
        if self.reason == "waiting" and not self.is_due_as_asked:
            said += f", due at {rfc3339(self.due_at)}"
        return f"<{self._task.name} {self.queue}/{self.id} {said}>"

    @property
    def moved(self) -> Moved:
        """What the push did; for one that waited for a commit, what it did then."""
        answer = self._answer
        return answer.pushed[0] if isinstance(answer, UncommittedPush) and answer.pushed else answer

    @property
    def is_pushed(self) -> bool:
        """False while the push waits for a commit, and after a rollback."""
        return not isinstance(self.moved, UncommittedPush)

    @property
    def is_due_as_asked(self) -> bool:
        """False if the id was taken, and the job that was kept is due at another time, runs or is dead. `due_at` is
        that job's time. Times less than a second apart count as the same.
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

    def status(self) -> TaskStatus:
        return self._send(self._status())

    async def status_async(self) -> TaskStatus:
        return await self._send_async(self._status())

    def get(self, timeout: Duration | None = None) -> R:
        """What the task returned; waits for it. Needs the task's option `result_ttl`.

        Raises TaskFailed when the job is a dead letter, TimeoutError after the timeout, JobNotFound when the job is
        gone without a result: cancelled, expired, or finished longer ago than `result_ttl`.
        """
        return self._send(self._get(timeout))

    async def get_async(self, timeout: Duration | None = None) -> R:
        """`get`, inside a running loop."""
        return await self._send_async(self._get(timeout))

    def __await__(self) -> Generator[Any, Any, R]:
        return self.get_async().__await__()

    def cancel(self) -> bool:
        """Remove the job, or the step that its chain is at; False if it is gone already. A running one loses its
        lease, and is stopped when its worker next renews that.
        """
        return self._send(self._cancel())

    async def cancel_async(self) -> bool:
        """`cancel`, inside a running loop."""
        return await self._send_async(self._cancel())

    def reschedule(self, delay: Duration | None = None, *, due_at: Instant | None = None) -> Moved:
        """Have the job, or the step that its chain is at, due after a delay, or at an instant. Raises JobNotFound,
        JobRunning, JobDead.
        """
        return self._send(self._reschedule(delay, due_at))

    async def reschedule_async(self, delay: Duration | None = None, *, due_at: Instant | None = None) -> Moved:
        """`reschedule`, inside a running loop."""
        return await self._send_async(self._reschedule(delay, due_at))

    # --- without I/O

    def _find(self) -> Work[Job | None]:
        """The job, or the step that its chain is at. A step that is gone was done before its next one could be looked
        for, so in this order none is missed.
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
            raise InvalidRequest(f"{self!r} is not pushed: it waits for a commit, or was rolled back")

    def _status(self) -> Work[TaskStatus]:
        if not self.is_pushed:
            return TaskStatus.UNCOMMITTED
        job = yield from self._find()
        if job is None:
            kept = yield from self._kept(0)
            return TaskStatus.DONE if kept else TaskStatus.GONE
        if (job.queue, job.id) != self._places[-1] and job.state is not State.DEAD:
            return TaskStatus.WAITING
        return TaskStatus(job.state.value)

    def _get(self, timeout: Duration | None) -> Work[R]:
        self._check_pushed()
        if not self._task.result_ms:
            raise InvalidRequest(f"{self._task.name} keeps no results: give it result_ttl")
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
                raise TimeoutError(f"there is no result of {self!r} yet")
            job = yield from self._find()
            if job is not None and job.state is State.DEAD:
                raise failure_of(job)
            # It may have ended after the look at its result, which is therefore looked at once more.
            was_gone = job is None and self.born > 0

    def _cancel(self) -> Work[bool]:
        self._check_pushed()
        for queue, job_id in self._places:
            [moved] = yield cancel(queue, [job_id])
            if moved is not None:
                return True
        return False

    def _reschedule(self, delay: Duration | None, due_at: Instant | None) -> Work[Moved]:
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

    def _value(self, kept: KeptResult) -> R:
        try:
            return msgspec.json.decode(kept.result, type=self._task.return_type)
        except msgspec.MsgspecError as error:
            raise InvalidRequest(f"the result is not what {self._task.name} says that it returns: {error}") from None

    def _send(self, work: Work[Other]) -> Other:
        return send_work(self._task.app, work)

    async def _send_async(self, work: Work[Other]) -> Other:
        return await send_work_async(self._task.app, work)


def send_work(caller: "BlockingCaller", work: Work[Other]) -> Other:
    """Send the calls of some work, one after the other. A call that fails raises inside the work."""
    try:
        call = next(work)
        while True:
            try:
                answer = caller.send(call)
            except DuetimeError as error:
                call = work.throw(error)
            else:
                call = work.send(answer)
    except StopIteration as done:
        return done.value


async def send_work_async(caller: "AsyncCaller", work: Work[Other]) -> Other:
    """`send_work`, inside a running loop."""
    try:
        call = next(work)
    except StopIteration as done:
        return done.value
    while True:
        try:
            answer, problem = await caller.send_async(call), None
        except DuetimeError as error:
            answer, problem = None, error
        try:
            call = work.send(answer) if problem is None else work.throw(problem)
        except StopIteration as done:
            return done.value


def failure_of(job: Job) -> TaskFailed:
    """The error of a dead letter: its last line names the exception and what it says."""
    lines = job.error.strip().splitlines()
    kind, _, message = (lines[-1] if lines else job.reason).partition(": ")
    return TaskFailed(message or kind, kind=kind, traceback=job.error)


class AppOwner(Protocol):
    """An object whose methods ask the store through an App."""

    @property
    def app(self) -> "App": ...


Owner = TypeVar("Owner", bound=AppOwner)


def both(
    work: Callable[Concatenate[Owner, P], Work[Other]],
) -> tuple[
    Callable[Concatenate[Owner, P], Other],
    Callable[Concatenate[Owner, P], Coroutine[Any, Any, Other]],
]:
    """Make a blocking method and its async twin of one method that yields calls."""

    @wraps(work)
    def blocking(self: Owner, *args: P.args, **kwargs: P.kwargs) -> Other:
        return send_work(self.app, work(self, *args, **kwargs))

    @wraps(work)
    async def in_loop(self: Owner, *args: P.args, **kwargs: P.kwargs) -> Other:
        return await send_work_async(self.app, work(self, *args, **kwargs))

    return blocking, in_loop
