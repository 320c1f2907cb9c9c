"""A task: a function that can be called now or run later by a worker.

`send(...)` calls the function; `send.delay(...)`, `send.later("10m", ...)` and `send.at(when, ...)` push a job that
calls it in a worker. The three block for one round trip; inside a running event loop use their twins
`delay_async`, `later_async` and `at_async`. `send.options(queue="urgent").delay(...)` has options for one call.
"""

import copy
import inspect
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypedDict, TypeVar, Unpack, cast, get_type_hints

from msgspec import Raw

from duetime.client import checks
from duetime.client.job_building import IfExistsWord, PriorityWord
from duetime.model.backoff import Backoff, Fixed, Listed, parse, wait_ms
from duetime.model.clock import Duration, Instant, delay_ms, duration_ms, instant_ms
from duetime.model.errors import InvalidRequest
from duetime.model.ids import LENGTH, decode
from duetime.model.job import (
    DAY_MS,
    DEFAULT_TRIES,
    MAX_RESULT_MS,
    MAX_TRIES,
    Event,
    IfExists,
    Moved,
    NewJob,
    Priority,
    check_tries,
    check_whole,
)
from duetime.model.names import Queue, check_attributes, check_id, check_queue
from duetime.wire.payload import Payload, write
from duetime.worker.arguments import PREVIOUS, Arguments
from duetime.worker.chains import TaskStep
from duetime.worker.events import TaskEvent
from duetime.worker.handle import TaskHandle
from duetime.worker.middleware_chain import Middleware, PendingJob, hash_key_of, push_through
from duetime.worker.pusher import Outgoing, Work, both, unique_id
from duetime.worker.runs import Failure, JobInfo

if TYPE_CHECKING:
    from duetime.worker.app import App

P = ParamSpec("P")
R = TypeVar("R")
CallArguments = tuple[Any, ...] | Mapping[str, Any]
FailedHook = Callable[[JobInfo, Failure], object]


@dataclass(frozen=True)
class TaskOptions:
    """`backoff` is a policy or its text; `retry_until` a duration from when the job is due, or an instant; None leaves
    `backoff` and `timeout` to the worker. docs/tasks.md has the table.
    """

    queue: str
    tries: int = DEFAULT_TRIES
    backoff: Duration | Backoff | None = None
    timeout: Duration | None = None
    retry_until: Duration | datetime | None = None
    unique_for: Duration | None = None
    max_exceptions: int | None = None
    fail_on_timeout: bool = False
    middleware: Sequence[Middleware] = ()
    result_ttl: Duration | None = None

    def check(self, namespace: str) -> None:
        check_queue(namespace, self.queue)
        check_tries(self.tries)
        if self.max_exceptions is not None:
            check_whole("max_exceptions", self.max_exceptions, 0, MAX_TRIES)
        if not isinstance(self.fail_on_timeout, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidRequest(f"fail_on_timeout must be True or False, got {self.fail_on_timeout!r}")
        middleware = cast("object", self.middleware)
        if not isinstance(middleware, Sequence) or not all(map(callable, cast("Sequence[object]", middleware))):
            raise InvalidRequest(f"middleware must be a list of functions or other callables, got {middleware!r}")


class CallFields(TypedDict, total=False):
    """The options of a call; docs/tasks.md explains them."""

    queue: str
    priority: Priority | PriorityWord
    ttl: Duration
    id: str
    if_exists: IfExists | IfExistsWord
    tries: int
    delay: Duration
    headers: Mapping[str, str]


@dataclass(frozen=True)
class CallOptions:
    """None leaves it to the task. `headers` become the attributes of the job."""

    queue: Queue | None = None
    priority: Priority = Priority.NORMAL
    ttl_ms: int = 0
    id: str | None = None
    if_exists: IfExists = IfExists.KEEP
    tries: int | None = None
    delay_ms: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


def change_options(options: CallOptions, namespace: str, given: CallFields) -> CallOptions:
    """The options with those that are given; headers are added to those that are there. Raises TypeError for an
    unknown name, InvalidRequest for a value that does not fit.
    """
    checks.check_options(given, CallFields.__annotations__.keys())
    changed: dict[str, Any] = {}
    for name, value in dict[str, Any](given).items():
        match name:
            case "queue":
                changed[name] = check_queue(namespace, value)
            case "priority":
                changed[name] = checks.priority(value)
            case "ttl":
                changed["ttl_ms"] = duration_ms(value)
            case "id":
                changed[name] = check_id(value)
            case "if_exists":
                changed[name] = checks.if_exists(value)
            case "tries":
                changed[name] = check_tries(value)
            case "delay":
                changed["delay_ms"] = delay_ms(value)
            case _:
                headers = {**options.headers, **checks.attributes(value)}
                check_attributes(headers)
                changed["headers"] = headers
    return replace(options, **changed)


class Task(Generic[P, R]):
    """A function that workers run. Calling it runs it here, like any function; `delay`, `later` and `at` push a job."""

    is_internal = False  # no middleware runs around an internal task

    def __init__(self, app: "App", name: str, function: Callable[P, R], options: TaskOptions) -> None:
        options.check(app.namespace)
        self.app = app
        self.name = name
        self.function = function
        self.defaults = options
        self.arguments = Arguments(name, function)
        self.is_async = inspect.iscoroutinefunction(function)
        self.backoff = _policy(options.backoff)
        self._backoff_text = _backoff_text(options.backoff, self.backoff)
        self.timeout_s = None if options.timeout is None else duration_ms(options.timeout) / 1000
        self.unique_ms = 0 if options.unique_for is None else duration_ms(options.unique_for)
        self.result_ms = 0 if options.result_ttl is None else duration_ms(options.result_ttl)
        if self.result_ms > MAX_RESULT_MS:
            raise InvalidRequest(
                f"result_ttl must be at most {MAX_RESULT_MS // DAY_MS} days, got {options.result_ttl!r}"
            )
        self.failed_hook: FailedHook | None = None
        self._call = CallOptions()
        self._retry_until = options.retry_until
        if isinstance(self._retry_until, datetime):
            instant_ms(self._retry_until)
        elif self._retry_until is not None:
            duration_ms(self._retry_until)
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    @property
    def return_type(self) -> Any:
        """The declared return type of the function, for decoding results."""
        try:
            return get_type_hints(self.function, include_extras=True).get("return", Any)
        except NameError:
            return Any

    @property
    def all_middleware(self) -> Sequence[Middleware]:
        """The App's middleware, then the task's: the first goes around all others."""
        return () if self.is_internal else (*self.app.middleware, *self.defaults.middleware)

    @property
    def hash_key(self) -> bytes:
        """Keys the hashes of arguments that jobs are named by; empty if nothing encrypts the arguments."""
        return hash_key_of(self.all_middleware)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function itself, here and now."""
        return self.function(*args, **kwargs)

    def options(self, **options: Unpack[CallFields]) -> Self:
        """Return the task with other options for its next calls: `send.options(tries=1).delay("ann")`.

        Raises TypeError for an unknown option, InvalidRequest for a value that does not fit.
        """
        changed = change_options(self._call, self.app.namespace, options)
        if (changed.id is not None or "if_exists" in options) and self.unique_ms:
            raise InvalidRequest(f"options of {self.name} cannot set id or if_exists: it is unique by its arguments")
        if changed.tries is not None and self._retry_until is not None:
            raise InvalidRequest(f"options of {self.name} cannot set tries: the task has retry_until instead")
        task = copy.copy(self)
        task._call = changed
        return task

    def _delay(self, *args: P.args, **kwargs: P.kwargs) -> Work[TaskHandle[R]]:
        """Push a job that is due immediately. Raises InvalidRequest for arguments that do not fit."""
        return self._push(None, None, args, kwargs)

    def _later(self, delay: Duration, /, *args: P.args, **kwargs: P.kwargs) -> Work[TaskHandle[R]]:
        """Push a job that is due after a delay. With a negative delay it is due immediately."""
        return self._push(delay_ms(delay), None, args, kwargs)

    def _at(self, due: Instant, /, *args: P.args, **kwargs: P.kwargs) -> Work[TaskHandle[R]]:
        """Push a job that is due at an instant. With an instant in the past it is due immediately."""
        return self._push(None, instant_ms(due), args, kwargs)

    def _bulk(self, calls: Iterable[CallArguments], *, delay: Duration | None = None) -> Work[list[TaskHandle[R]]]:
        """Push one job per item of `calls`, up to 500 at a time: each of these steps is stored completely or not at
        all. An item is a tuple of arguments or a mapping of keyword arguments. All are checked before the first is
        pushed.
        """
        wait_ms = None if delay is None else delay_ms(delay)
        many = [self.prepare(wait_ms, None, *_split(call)) for call in checks.items("calls", calls)]
        if self._call.id is not None and len(many) > 1:
            raise InvalidRequest(f"cannot use id={self._call.id!r} for {len(many)} calls: ids must be unique")
        moved = yield from self.app.pusher.push(many)
        return [self._pushed(*one) for one in zip(many, moved, strict=True)]

    def _cancel(self, job_id: str) -> Work[bool]:
        """Remove a job of this task's queue, or of the queue of `options`, by its id. Returns False if there is none. A
        running job loses its lease.
        """
        return self._by_id(job_id).cancel_work()

    def _reschedule(self, job_id: str, delay: Duration | None = None, *, due_at: Instant | None = None) -> Work[Moved]:
        """Change the due time of a job, by its id, to a delay from now or to an instant. Raises JobNotFound,
        JobRunning, JobDead.
        """
        return self._by_id(job_id).reschedule_work(delay, due_at=due_at)

    delay, delay_async = both(_delay)
    later, later_async = both(_later)
    at, at_async = both(_at)
    bulk, bulk_async = both(_bulk)
    cancel, cancel_async = both(_cancel)
    reschedule, reschedule_async = both(_reschedule)

    def _by_id(self, job_id: str) -> TaskHandle[R]:
        queue = self._call.queue or check_queue(self.app.namespace, self.defaults.queue)
        return TaskHandle(self, queue, Moved(Event.KEPT, check_id(job_id), 0))

    def step(self, *args: Any, **kwargs: Any) -> TaskStep[R]:
        """Return the call as a step of a chain, group or batch. As an argument, PREVIOUS represents the result of the
        previous step.
        """
        given = self.arguments.bind(args, kwargs)
        previous = [name for name, value in given.items() if value is PREVIOUS]
        if len(previous) > 1 or self.unique_ms or self._call.id is not None:
            raise InvalidRequest(f"step cannot have two PREVIOUS, an id, or a task that is unique: {self.name}")
        outgoing = self.prepare(None, None, args, kwargs)
        if outgoing.counter or (previous and outgoing.seal):
            raise InvalidRequest(f"step cannot be debounced, or encrypted with PREVIOUS: {self.name}")
        return TaskStep(self, outgoing, *previous)

    def failed(self, hook: FailedHook) -> FailedHook:
        """Decorator of a function that the worker calls, in a thread, when a job of this task has failed for good."""
        checks.check_callable("hook of failed", hook)
        self.failed_hook = hook
        return hook

    def prepare(
        self, delay_ms: int | None, due_at: int | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Outgoing:
        """The job that a call becomes, not yet pushed. Without a time it is due after the delay of `options`."""
        defaults, call, app = self.defaults, self._call, self.app
        if delay_ms is None and due_at is None:
            delay_ms = call.delay_ms
        data = self.arguments.pack(args, kwargs)
        queue = call.queue or check_queue(app.namespace, defaults.queue)
        pending = PendingJob(app, self.name, queue, data, dict(call.headers), self.hash_key)
        push_through(self.all_middleware, pending)
        if pending.delay_ms is not None:
            delay_ms, due_at = pending.delay_ms, None
        made_id, unique_ms, seal = app.make_id(), self.unique_ms, pending.seal
        job_id = unique_id(self.name, data, self.hash_key) if unique_ms else call.id or made_id
        now = app.clock.now_ms()
        due = due_at if due_at is not None else now + (delay_ms or 0)
        until = self._until(due)
        tries = defaults.tries if call.tries is None else call.tries
        payload = Payload(
            displayName=self.name,
            name=self.name,
            data=Raw(seal(queue, job_id) if seal else data),
            uuid=str(uuid.UUID(int=decode(made_id))) if len(made_id) == LENGTH else made_id,
            maxTries=tries,
            maxExceptions=defaults.max_exceptions,
            failOnTimeout=defaults.fail_on_timeout,
            backoff=self._backoff_text,
            timeout=self.timeout_s,
            retryUntil=until,
            createdAt=now // 1000,
            delay=max(0, due - now) / 1000 or None,
        )
        extra = self._extra(payload, queue.name)
        key = pending.waiting_key
        job = NewJob(
            job_id,
            write(payload, extra),
            delay_ms=delay_ms or 0,
            due_at=due_at,
            ttl_ms=call.ttl_ms,
            tries=0 if until is not None else tries,
            priority=call.priority,
            attributes=pending.headers,
        )
        if key is None:
            return Outgoing(queue, job, self.name, data, unique_ms, if_exists=call.if_exists, seal=seal)
        if_exists = IfExists.REPLACE if key.replaces else IfExists.KEEP
        return Outgoing(queue, job, self.name, data, key.life_ms, key.key, if_exists, seal)

    def _until(self, due: int) -> int | None:
        """`retry_until` in whole seconds as in Laravel, rounded up so that no job is given up early."""
        match self._retry_until:
            case None:
                return None
            case datetime() as instant:
                return -(-instant_ms(instant) // 1000)
            case duration:
                return -(-(due + duration_ms(duration)) // 1000)

    def _extra(self, payload: Payload, queue: str) -> dict[str, Any]:
        listeners = self.app.listeners
        if not listeners.wanted("queueing"):
            return {}
        event = TaskEvent("queueing", job=self._info(payload, queue))
        listeners.notify(event)
        return event.extra

    def _info(self, payload: Payload, queue: str, job_id: str = "") -> JobInfo:
        namespace, timeout = self.app.namespace, self.timeout_s or 0.0
        tries = payload.maxTries or 0
        return JobInfo(job_id, payload.uuid, queue, namespace, self.name, 0, 0, tries, timeout, bytes(payload.data))

    def _push(
        self, delay_ms: int | None, due_at: int | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Work[TaskHandle[R]]:
        outgoing = self.prepare(delay_ms, due_at, args, kwargs)
        [moved] = yield from self.app.pusher.push([outgoing])
        return self._pushed(outgoing, moved)

    def _pushed(self, outgoing: Outgoing, moved: Moved) -> TaskHandle[R]:
        name = "unique_skipped" if moved.event is Event.KEPT and self.unique_ms else "queued"
        if self.app.listeners.wanted(name):
            queue = outgoing.queue
            info = JobInfo(
                moved.id, "", queue.name, queue.namespace, self.name, 0, 0, outgoing.job.tries, 0.0, outgoing.job.body
            )
            self.app.listeners.notify(TaskEvent(name, job=info))
        job, now = outgoing.job, self.app.clock.now_ms()
        asked_at = now + job.delay_ms if job.due_at is None else job.due_at
        return TaskHandle(self, outgoing.queue, moved, asked_at=asked_at if asked_at > now else 0)


def _split(call: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Checks calls of untyped code: a string would pass for a tuple of its letters."""
    match call:
        case tuple():
            return cast("tuple[Any, ...]", call), {}
        case Mapping():
            return (), dict(cast("Mapping[str, Any]", call))
        case _:
            raise InvalidRequest(f"call must be a tuple of arguments or a mapping of them by name, got {call!r}")


def check_function(function: object) -> None:
    """Calling a class or a generator function runs nothing of it."""
    if isinstance(function, Task):
        raise InvalidRequest(
            f"task must be made once: put @app.task below other decorators of the App, got {function!r}"
        )
    runs_nothing = inspect.isclass(function) or inspect.isgeneratorfunction(function)
    if not callable(function) or runs_nothing or inspect.isasyncgenfunction(function):
        raise InvalidRequest(f"task must be a function that does its work when it is called, got {function!r}")


def _policy(backoff: Duration | Backoff | None) -> Backoff | None:
    if isinstance(backoff, int | float | str | timedelta):
        return parse(backoff)
    if backoff is not None:
        if not callable(getattr(backoff, "delay_ms", None)):
            ways = 'a duration, a text like "1s,5s,1m" or "exponential:1s:1h", or a policy with delay_ms'
            raise InvalidRequest(f"backoff must be {ways}, got {backoff!r}")
        wait_ms(backoff, 1)
    return backoff


def _backoff_text(backoff: Duration | Backoff | None, policy: Backoff | None) -> str | None:
    """The policy as text: seconds joined by commas, as Laravel writes it, where that can say it."""
    match policy:
        case None:
            return None
        case Fixed(wait_ms):
            return f"{wait_ms / 1000:g}"
        case Listed(waits_ms):
            return ",".join(f"{wait / 1000:g}" for wait in waits_ms)
        case _:
            return backoff if isinstance(backoff, str) else None
