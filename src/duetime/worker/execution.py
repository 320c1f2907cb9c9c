"""Call the function of a job and say how it ended; used by every pool, wherever that runs it."""

import asyncio
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from duetime.errors import DuetimeError
from duetime.wire.payload import read
from duetime.worker.current_job import CurrentJob, JobLink, reset_current, set_current
from duetime.worker.runs import DONE, Ended, Failure, JobInfo, Outcome
from duetime.worker.task import Task
from duetime.worker.task_exceptions import Cancel, Fail, Retry, TimedOut

try:
    import uvloop
except ImportError:  # not on every platform
    uvloop = None

if TYPE_CHECKING:
    from duetime.worker.app import App

NEW_LOOP = None if uvloop is None else uvloop.new_event_loop
MAX_TRACEBACK = 4096
MAX_MESSAGE = 1024


class UnknownTask(DuetimeError):
    """This worker has no such task."""

    code = "unknown_task"


Call = tuple[Task[..., Any], list[Any], dict[str, Any]]


def find(app: "App", info: JobInfo) -> Call:
    """The task and its arguments. Raises UnknownTask, InvalidRequest."""
    try:
        payload = read(info.body)
    except msgspec.MsgspecError as error:
        raise UnknownTask(f"the body is no task: {error}") from None
    task = app.tasks.get(payload.name)
    if task is None:
        raise UnknownTask(f"this worker has no task {payload.name!r}")
    args, kwargs = task.arguments.unpack(payload.data)
    return task, args, kwargs


def execute(app: "App", info: JobInfo, link: JobLink, run_async: Callable[[Any], object]) -> Outcome:
    """Run a job in a plain thread; `run_async` runs a coroutine to its end. Never raises: a task that exits has
    failed.
    """
    token = set_current(CurrentJob(info, link))
    try:
        task, args, kwargs = find(app, info)
        answer = task.function(*args, **kwargs)
        if task.is_async:
            run_async(answer)
        return DONE
    except BaseException as error:
        return ended_by(error)
    finally:
        reset_current(token)


async def execute_async(app: "App", info: JobInfo, link: JobLink) -> Outcome:
    """The same for an async task on a running loop. A cancelled one raises CancelledError."""
    token = set_current(CurrentJob(info, link))
    try:
        task, args, kwargs = find(app, info)
        await task.function(*args, **kwargs)
        return DONE
    except (Exception, SystemExit) as error:
        return ended_by(error)
    finally:
        reset_current(token)


def ended_by(error: BaseException) -> Outcome:
    match error:
        case Retry():
            return Outcome(Ended.RETRY, describe(error) if error.args and error.args[0] else None, error.after_ms)
        case Cancel():
            return Outcome(Ended.CANCEL, describe(error))
        case Fail():
            return Outcome(Ended.FAIL, describe(error))
        case TimedOut():
            return Outcome(Ended.TIMED_OUT, describe(error))
        case _:
            return Outcome(Ended.RAISED, describe(error))


def describe(error: BaseException) -> Failure:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    lines = "".join(traceback.format_exception(error))
    return Failure(name, _text(error)[:MAX_MESSAGE], lines[-MAX_TRACEBACK:])


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the __str__ of a task's exception may raise
        return ""


class ThreadLoop:
    """An event loop for a plain thread. It runs one coroutine at a time and is kept between them."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def __call__(self, work: Any) -> object:
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=NEW_LOOP)
        return self._runner.run(work)
