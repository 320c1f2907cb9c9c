"""Duetime behind Django's own tasks: `django.tasks` of Django 6, or its backport `django-tasks` for Django 4.2 to 5.2.

    TASKS = {"default": {"BACKEND": "duetime.frameworks.django.backend.DuetimeBackend", "QUEUES": ["default", "mail"]}}

    # shop/tasks.py
    @task(queue_name="mail", priority=10)
    def ship(order: int) -> str: ...

    result = ship.using(run_after=tomorrow).enqueue(17)
    ship.get_result(result.id).status

`manage.py duetime work` runs them. The store, namespace and token are those of the setting DUETIME. A result is kept
for a day (`RESULT_TTL`), in the store of the job, in the same atomic step that finishes it.
"""

# pyright: basic
# Django has no type hints.

import os
import socket
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from inspect import iscoroutinefunction
from typing import Any
from uuid import uuid4

import msgspec
from django.utils import timezone
from django.utils.module_loading import import_string
from msgspec import Struct

from duetime.client.calls import get, results
from duetime.client.checks import check_options
from duetime.frameworks.django import make_app
from duetime.model.errors import InvalidRequest
from duetime.model.job import Job, State
from duetime.model.names import check_queue
from duetime.wire.payload import read
from duetime.worker.current_job import current_job
from duetime.worker.handle import failure_of

PACKAGE = "django.tasks" if find_spec("django.tasks") else "django_tasks"
base = import_module(f"{PACKAGE}.base")
signals = import_module(f"{PACKAGE}.signals")
BaseTaskBackend: Any = import_module(f"{PACKAGE}.backends.base").BaseTaskBackend
TaskResultDoesNotExist: Any = import_module(f"{PACKAGE}.exceptions").TaskResultDoesNotExist

OPTIONS = {"TRIES": 1, "BACKOFF": None, "TIMEOUT": None, "RESULT_TTL": "1d"}
"""The options and their defaults. One try, because Django's tasks are not repeated unless somebody asks for it."""
MAX_QUEUE = 90
"""The id of a job has the name of its queue in it, and has at most 128 characters."""


class DjangoCall(Struct):
    """The argument of the job: a call of Django's task, and what its result must say about it."""

    args: list[Any]
    kwargs: dict[str, Any]
    backend: str
    priority: int
    enqueued_at: datetime
    run_after: datetime | None = None


class DjangoDone(Struct):
    """The result of the job."""

    path: str
    call: DjangoCall
    value: Any
    started_at: datetime
    finished_at: datetime
    worker_ids: list[str]


class DuetimeBackend(BaseTaskBackend):
    """Every feature that Django's tasks know: delays, async functions, results from any process, priorities. Of the
    priorities, those above 0 are high, 0 is normal, and those below 0 are low.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        check_options(self.options, OPTIONS)
        self._task_options = {
            name.lower(): value for name, value in {**OPTIONS, **self.options}.items() if value is not None
        }

    def validate_task(self, task: Any) -> None:
        """Called where a task is defined; it makes the task known to the worker."""
        super().validate_task(task)
        check_queue(make_app().namespace, task.queue_name)
        if len(task.queue_name) > MAX_QUEUE:
            raise InvalidRequest(f"name of a queue must have at most {MAX_QUEUE} characters, got {task.queue_name!r}")
        path = task.module_path
        if path not in make_app().tasks:
            make_app().task(name=path, queue=task.queue_name, **self._task_options)(_runner(path, task.func))

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        self.validate_task(task)
        now = timezone.now()
        result = _result(task, f"{task.queue_name}:{uuid4().hex}", base.TaskResultStatus.READY, args, kwargs)
        object.__setattr__(result, "enqueued_at", now)
        call = DjangoCall(result.args, result.kwargs, self.alias, task.priority, _aware(now), _aware(task.run_after))
        priority = "high" if task.priority > 0 else "low" if task.priority < 0 else "normal"
        pushed = make_app().tasks[task.module_path].options(id=result.id, queue=task.queue_name, priority=priority)
        if call.run_after is None:
            pushed.delay(call)
        else:
            pushed.at(call.run_after, call)
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Raises TaskResultDoesNotExist, also when the result is older than RESULT_TTL."""
        app = make_app()
        name, colon, _ = str(result_id).partition(":")
        if not colon:
            raise TaskResultDoesNotExist(result_id)
        queue = check_queue(app.namespace, name)
        [job] = app.send(get(queue, [result_id]))
        if job is not None:
            return _of_job(job)
        [kept] = app.send(results(queue, [result_id], 0))
        if kept is None:
            raise TaskResultDoesNotExist(result_id)
        done = msgspec.json.decode(kept.result, type=DjangoDone)
        result = _of_call(done.path, result_id, name, done.call, base.TaskResultStatus.SUCCESSFUL)
        _set(result, started_at=done.started_at, last_attempted_at=done.started_at, finished_at=done.finished_at)
        _set(result, worker_ids=done.worker_ids, _return_value=done.value)
        return result


def served_queues() -> list[str]:
    """The queues that the settings name for this backend; a worker serves them, also without a task of their own."""
    handlers = import_module(PACKAGE).task_backends
    return [queue for one in handlers.all() if isinstance(one, DuetimeBackend) for queue in sorted(one.queues)]


def _runner(path: str, function: Any) -> Any:
    """The function of Duetime's task around Django's."""

    def begin(call: DjangoCall) -> tuple[Any, list[Any]]:
        job = current_job()
        result = _of_call(path, job.id, job.queue, call, base.TaskResultStatus.RUNNING)
        worker = f"{socket.gethostname()}-{os.getpid()}"
        now = timezone.now()
        _set(result, started_at=now, last_attempted_at=now, worker_ids=[worker] * job.attempt)
        signals.task_started.send(DuetimeBackend, task_result=result)
        first = [base.TaskContext(task_result=result)] if result.task.takes_context else []
        return result, [*first, *call.args]

    def fail(result: Any, error: BaseException) -> None:
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        _set(result, status=base.TaskResultStatus.FAILED, finished_at=timezone.now())
        result.errors.append(base.TaskError(exception_class_path=kind, traceback=f"{kind}: {error}"))
        if current_job().last_try:
            signals.task_finished.send(DuetimeBackend, task_result=result)

    def end(call: DjangoCall, result: Any, value: Any) -> DjangoDone:
        value = msgspec.json.decode(msgspec.json.encode(value))
        _set(result, status=base.TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)
        signals.task_finished.send(DuetimeBackend, task_result=result)
        times = _aware(result.started_at), _aware(result.finished_at)
        return DjangoDone(path, call, value, *times, result.worker_ids)

    if iscoroutinefunction(function):

        async def run_async(call: DjangoCall) -> DjangoDone:
            result, args = begin(call)
            try:
                return end(call, result, await function(*args, **call.kwargs))
            except BaseException as error:
                fail(result, error)
                raise

        return run_async

    def run(call: DjangoCall) -> DjangoDone:
        result, args = begin(call)
        try:
            return end(call, result, function(*args, **call.kwargs))
        except BaseException as error:
            fail(result, error)
            raise

    return run


def _of_job(job: Job) -> Any:
    """The result of a job that is still in the store: it waits, runs, or has failed."""
    payload = read(job.body)
    call = msgspec.json.decode(payload.data, type=dict[str, DjangoCall])["call"]
    states = {State.LEASED: base.TaskResultStatus.RUNNING, State.DEAD: base.TaskResultStatus.FAILED}
    status = states.get(job.state, base.TaskResultStatus.READY)
    result = _of_call(payload.name, job.id, job.queue.name, call, status)
    _set(result, worker_ids=["unknown"] * job.attempt)
    if job.error:
        kind = failure_of(job).kind
        path = kind if "." in kind else f"builtins.{kind}"
        result.errors.append(base.TaskError(exception_class_path=path, traceback=job.error))
    if job.dead_at:
        _set(result, finished_at=datetime.fromtimestamp(job.dead_at / 1000, UTC))
    return result


def _of_call(path: str, result_id: str, queue: str, call: DjangoCall, status: Any) -> Any:
    make_app().find_task(path)  # imports its module, if that belongs to an installed app
    task = import_string(path).using(
        priority=call.priority, queue_name=queue, run_after=call.run_after, backend=call.backend
    )
    result = _result(task, result_id, status, call.args, call.kwargs)
    _set(result, enqueued_at=call.enqueued_at)
    return result


def _result(task: Any, result_id: str, status: Any, args: Any, kwargs: Any) -> Any:
    return base.TaskResult(
        task=task,
        id=result_id,
        status=status,
        enqueued_at=None,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=list(args),
        kwargs=dict(kwargs),
        backend=task.backend,
        errors=[],
        worker_ids=[],
    )


def _set(result: Any, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(result, name, value)  # frozen, but Django's own backends change it in the same way


def _aware(instant: datetime | None) -> Any:
    return timezone.make_aware(instant) if instant is not None and timezone.is_naive(instant) else instant
