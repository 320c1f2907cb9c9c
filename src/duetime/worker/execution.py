"""Call the function of a job and say how it ended; used by every pool, wherever that runs it."""

import asyncio
import inspect
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import msgspec

from duetime.client.checks import error_text
from duetime.model.errors import NOT_JSON, DuetimeError
from duetime.model.job import MAX_RESULT
from duetime.wire.payload import Payload, read
from duetime.worker.arguments import encode_model
from duetime.worker.current_job import CurrentJob, JobLink, reset_current, set_current
from duetime.worker.groups import wants_result
from duetime.worker.middleware_chain import call_async, call_plain, open_through
from duetime.worker.runs import (
    DONE,
    Cancel,
    Ended,
    Fail,
    Failure,
    JobInfo,
    Outcome,
    Postpone,
    Retry,
    TimedOut,
)
from duetime.worker.task import Task

try:
    import uvloop
except ImportError:  # not on every platform
    uvloop = None

if TYPE_CHECKING:
    from duetime.worker.app import App

NEW_LOOP = None if uvloop is None else uvloop.new_event_loop

MAX_TRACEBACK = 4096
MAX_MESSAGE = 1024


class ThreadLoop:
    """An event loop for a plain thread. It runs only while somebody waits for a coroutine, and is kept between them."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def __call__(self, work: Any) -> object:
        # A context of its own for each: a runner would share one among all that it runs.
        return self._ready().run(work, context=copy_context())

    def run_around(
        self, outer: Callable[[Callable[[], Awaitable[Any]]], Coroutine[Any, Any, Any]], inner: Callable[[], Any]
    ) -> Any:
        """Run a coroutine that awaits a plain function. The loop is stopped while the function runs, so the function
        may run a loop of its own.
        """
        loop = self._ready().get_loop()
        wanted: list[asyncio.Future[Any]] = []
        news = asyncio.Event()

        async def call() -> Any:
            wanted.append(loop.create_future())
            news.set()
            return await wanted[-1]

        task = loop.create_task(outer(call))
        task.add_done_callback(lambda _: news.set())
        while not task.done():
            loop.run_until_complete(news.wait())
            news.clear()
            if wanted and not wanted[-1].done():
                try:
                    wanted[-1].set_result(inner())
                except BaseException as error:
                    wanted[-1].set_exception(error)
        return task.result()

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _ready(self) -> asyncio.Runner:
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=NEW_LOOP)
        return self._runner


class UnknownTask(DuetimeError):
    """This worker has no such task."""

    code = "unknown_task"

    @classmethod
    def of(cls, name: str) -> "UnknownTask":
        return cls(f"this worker has no task {name!r}")


def find(app: "App", info: JobInfo, link: JobLink, payload: Payload) -> tuple[Task[..., Any], CurrentJob]:
    """The task of a job, and the job as the task sees it. Raises UnknownTask."""
    task = app.find_task(payload.name)
    if task is None:
        raise UnknownTask.of(payload.name)
    return task, CurrentJob(info, link, task, bytes(payload.data))


def execute(app: "App", info: JobInfo, link: JobLink, loop: ThreadLoop, payload: Payload | None = None) -> Outcome:
    """Run a job in a plain thread; `loop` runs coroutines to their end. Never raises: a task that exits has failed.
    Reads the payload from the body unless it is given.
    """
    try:
        if payload is None:
            try:
                payload = read(info.body)
            except NOT_JSON as error:
                return ended_by(UnknownTask(f"job body must be a task, got something else: {error}"))
        return copy_context().run(_execute, app, info, link, loop, payload)
    except BaseException as error:
        return ended_by(error)


def _execute(app: "App", info: JobInfo, link: JobLink, loop: ThreadLoop, payload: Payload) -> Outcome:
    """In a context of its own: variables that the run sets end with it."""
    task, job = find(app, info, link, payload)
    set_current(job)
    return _done(task, payload, run_task(task, job, loop))


async def execute_async(app: "App", info: JobInfo, link: JobLink, payload: Payload) -> Outcome:
    """The same for an async task on a running loop. A cancelled one raises CancelledError."""
    token = None
    try:
        task, job = find(app, info, link, payload)
        token = set_current(job)
        return _done(task, payload, await run_task_async(task, job))
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return ended_by(error)
    finally:
        if token is not None:
            reset_current(token)


def _done(task: Task[..., Any], payload: Payload, answer: Any) -> Outcome:
    """Includes the return value if it is kept, or if a next step or a callback may use it."""
    if not task.result_ms and not wants_result(payload):
        return DONE
    try:
        result = msgspec.json.encode(answer, enc_hook=encode_model)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Fail(f"result of {task.name} cannot be written as JSON: {error}") from None
    if len(result) > MAX_RESULT:
        raise Fail(f"result of {task.name} must have at most {MAX_RESULT} bytes, got {len(result)}")
    return Outcome(Ended.DONE, result=result)


def run_task(task: Task[..., Any], job: CurrentJob, loop: ThreadLoop) -> Any:
    """Call a task's function with the job's arguments, inside its middleware; returns what the function returns.
    Raises InvalidRequest for arguments that do not fit, and what the task raises.
    """
    if task.is_async:
        return loop(run_task_async(task, job))
    middleware = task.all_middleware
    open_through(middleware, job)

    def innermost() -> Any:
        args, kwargs = task.arguments.unpack(job.data)
        answer = task.function(*args, **kwargs)
        # A plain decorator around an async function answers with its coroutine.
        return loop(answer) if inspect.iscoroutine(answer) else answer

    return call_plain(middleware, job, innermost, loop) if middleware else innermost()


async def run_task_async(task: Task[..., Any], job: CurrentJob) -> Any:
    """The same for an async task, on a running loop."""
    middleware = task.all_middleware
    open_through(middleware, job)

    async def innermost() -> Any:
        args, kwargs = task.arguments.unpack(job.data)
        return await task.function(*args, **kwargs)

    return await (call_async(middleware, job, innermost) if middleware else innermost())


def ended_by(error: BaseException) -> Outcome:
    ended = Ended.RAISED
    match error:
        case Retry() | Postpone():
            ended = Ended.RETRY if isinstance(error, Retry) else Ended.POSTPONED
            return Outcome(ended, describe(error) if error.args and error.args[0] else None, error.after_ms)
        case Cancel():
            ended = Ended.CANCEL
        case Fail():
            ended = Ended.FAIL
        case TimedOut():
            ended = Ended.TIMED_OUT
        case UnknownTask():
            ended = Ended.UNKNOWN
        case _:
            pass
    return Outcome(ended, describe(error))


def describe(error: BaseException) -> Failure:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    lines = "".join(traceback.format_exception(error))
    return Failure(name, error_text(_text(error)[:MAX_MESSAGE]), error_text(lines[-MAX_TRACEBACK:]))


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the __str__ of a task's exception may raise
        return ""
