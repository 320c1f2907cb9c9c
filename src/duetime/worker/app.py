"""An App: the tasks of a program, where their jobs go, and its listeners.

    app = duetime.App("sqlite:///jobs.db")

    @app.task(queue="mail", tries=3, backoff="10s,1m", timeout="30s")
    def send(to: str, text: str) -> None: ...

    send.delay("ann", "hello")

`duetime work module:app` runs the jobs. Making an App connects to nothing; the first push does.
"""

import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast, overload

from duetime.client import AsyncClient, Client
from duetime.client.call import Call
from duetime.client.checks import check_callable, check_options
from duetime.client.client import QueueClient
from duetime.client.transport import ConnectOptions
from duetime.model.backoff import Backoff
from duetime.model.clock import Clock, Duration, SystemClock
from duetime.model.errors import InvalidRequest, InvalidSettings
from duetime.model.ids import IdMaker
from duetime.model.masking import mask
from duetime.model.names import DEFAULT_NAMESPACE, check_id, check_namespace, check_queue
from duetime.model.schedules import Missed, Schedule, cron, every
from duetime.worker.after_commit import AfterCommit, Hook
from duetime.worker.batches import BatchPlan, TaskBatch, plan_batch
from duetime.worker.chains import FORWARD, ChainedStep, TaskStep, forward
from duetime.worker.events import L, Listeners
from duetime.worker.groups import GroupMembers, gather
from duetime.worker.middleware_chain import Middleware
from duetime.worker.pusher import Answer, ClientPusher, Pusher, StoreCaller
from duetime.worker.recurring import Recurring, Scheduler
from duetime.worker.shared_counters import count, job_output, progress_name
from duetime.worker.task import P, R, Task, TaskOptions, check_function

Companion = Callable[["App", AsyncClient], AbstractAsyncContextManager[Any]]
"""Something that runs in a worker for as long as that does, such as a scheduler of recurring tasks."""


class TaskFields(TypedDict, total=False):
    """The options of a task; docs/tasks.md explains them."""

    name: str
    queue: str
    tries: int
    backoff: Duration | Backoff
    timeout: Duration
    retry_until: Duration | datetime
    unique_for: Duration
    max_exceptions: int
    fail_on_timeout: bool
    middleware: Sequence[Middleware]
    result_ttl: Duration


class App:
    """The tasks of a program. `url` is a store (sqlite:, redis:...) or a server (http:, with a token); the defaults are
    DUETIME_URL and DUETIME_TOKEN. `queue` is the default queue of its tasks. `journal` is for a store: the folder of
    its journal, as in `duetime.connect`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        token: str | None = None,
        queue: str = "default",
        journal: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.url = url or os.environ.get("DUETIME_URL") or ""
        if not self.url:
            raise InvalidSettings("App must have the URL of a store or server: set App(url) or DUETIME_URL")
        ConnectOptions(self.url, token, journal).check()
        self.namespace = check_namespace(namespace)
        self.token = token
        self.default_queue = check_queue(namespace, queue).name
        self.journal = journal
        self.clock = clock or SystemClock()
        self.middleware: tuple[Middleware, ...] = ()
        self.tasks: dict[str, Task[..., Any]] = {}
        self._forward = self._make_forward()
        self.listeners = Listeners()
        self.companions: list[Companion] = []
        self.schedules: dict[str, Recurring] = {}
        self.client_pusher = ClientPusher(self.url, self.namespace, self.token, journal)
        self.pusher: Pusher = self.client_pusher
        self.caller: StoreCaller = self.client_pusher
        self._ids = IdMaker(self.clock)
        self._ids_lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {mask(self.url)}, namespace {self.namespace}, {len(self.tasks)} tasks>"

    def __enter__(self) -> "App":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(self, /, **options: Unpack[TaskFields]) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(self, function: Callable[..., Any] | None = None, /, **options: Unpack[TaskFields]) -> Any:
        """Decorator that makes a task of a plain or async function.

        Its name is `module.function` unless `name` is given. Jobs contain the name, so do not change it while jobs are
        waiting.
        """
        if function is not None:
            return self._add(function, options)
        return lambda function: self._add(function, options)  # type: ignore[no-any-return]

    def _add(self, function: Callable[..., Any], options: TaskFields) -> Task[..., Any]:
        check_options(options, TaskFields.__annotations__.keys())
        check_function(function)
        given: dict[str, Any] = {"queue": self.default_queue, **options}
        name: str = given.pop("name", "") or f"{_module(function)}.{getattr(function, '__qualname__', '')}"
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidRequest(f"name must be text, got {name!r}")
        if name in self.tasks:
            raise InvalidRequest(f"task name must be unique, got {name!r} twice: give one of them another name=")
        task = self.tasks[name] = Task(self, name, function, TaskOptions(**given))
        return task

    def find_task(self, name: str) -> Task[..., Any] | None:
        """The task that jobs call by this name, those of Duetime itself included."""
        return self._forward if name == FORWARD else self.tasks.get(name)

    def _make_forward(self) -> Task[..., Any]:
        async def forward_step(step: ChainedStep | None = None, members: GroupMembers | None = None) -> None:
            if step is not None:
                await forward(self, step, await gather(self, members) if members else None)

        task = Task(self, FORWARD, forward_step, TaskOptions(self.default_queue, tries=0))
        task.is_internal = True
        return task

    def every(
        self, interval: Duration, *, missed: Missed = "last", name: str = ""
    ) -> Callable[[Callable[P, R] | Task[P, R]], Task[P, R]]:
        """Decorator that runs a task at whole multiples of the interval. `missed` says which runs happen later if they
        were due while no worker was running. Two schedules of one task need a `name` each.
        """
        return lambda function: self._recur(function, every(interval), missed, name)

    def cron(
        self, expression: str, *, tz: str = "UTC", missed: Missed = "last", name: str = ""
    ) -> Callable[[Callable[P, R] | Task[P, R]], Task[P, R]]:
        """Decorator that runs a task by a cron expression of five fields, in a time zone."""
        return lambda function: self._recur(function, cron(expression, tz), missed, name)

    def _recur(
        self, function: Callable[P, R] | Task[P, R], schedule: Schedule, missed: Missed, name: str
    ) -> Task[P, R]:
        task = cast("Task[P, R]", function) if isinstance(function, Task) else self._add(function, {})
        name = name or task.name
        if name in self.schedules:
            raise InvalidRequest(f"schedule name must be unique, got {name!r} twice: give one of them another name=")
        recurring = Recurring(name, task, schedule, missed)
        if not self.schedules:
            self.companions.append(Scheduler)
        self.schedules[name] = recurring
        return task

    def batch(
        self,
        name: str = "",
        *,
        queue: str | None = None,
        then: TaskStep[Any] | None = None,
        catch: TaskStep[Any] | None = None,
        finally_: TaskStep[Any] | None = None,
        allow_failures: bool = False,
    ) -> BatchPlan:
        """Plan a batch: many jobs that are watched and cancelled together. Call `open()` on the plan. Workers of
        `queue` run the jobs. `then` runs when all are done, `catch` when the first one fails, `finally_` when none is
        left to run; in their arguments, PREVIOUS represents the BatchStatus. Unless failures are allowed, the first one
        cancels the waiting jobs.
        """
        callbacks = {"then": then, "catch": catch, "finally": finally_}
        return plan_batch(self, queue or self.default_queue, name, callbacks, allow_failures=allow_failures)

    def find_batch(self, batch_id: str) -> TaskBatch:
        """Return a batch that was opened elsewhere, by its id."""
        return TaskBatch(self, batch_id)

    def after_commit(self, hook: Hook) -> None:
        """Hold pushes back inside the caller's database transactions; see `duetime.worker.after_commit`."""
        check_callable("hook of after_commit", hook)
        self.pusher = AfterCommit(self.pusher, self, hook)

    def use(self, *middleware: Middleware) -> None:
        """Run every task inside this middleware, which is outside the task's own; see `duetime.worker.middleware`."""
        for one in middleware:
            check_callable("middleware", one)
        self.middleware += middleware

    def on(self, event: str) -> Callable[[L], L]:
        """Decorator that calls a function at each event of this name; docs/tasks.md lists them."""
        return lambda listener: self.listeners.add(event, listener)

    def make_id(self) -> str:
        with self._ids_lock:
            return self._ids.make()

    def queue(self, name: str) -> QueueClient:
        """Return a queue of the namespace, for jobs by id and for jobs that are not tasks. Its calls block. It uses the
        App's connection, and inside `duetime.testing.in_memory` the store of the test.
        """
        return AppClient(self).queue(name)

    def progress(self, queue: str, job_id: str) -> int:
        """Return the percentage that the task of a job last reported, or 0 if it reported none."""
        name = progress_name(check_queue(self.namespace, queue), check_id(job_id))
        return self.send(count(self.namespace, name))

    def output(self, queue: str, job_id: str) -> list[str]:
        """Return the last lines that the task of a running job logged. They are kept for a minute after its end."""
        return self.send(job_output(check_queue(self.namespace, queue), check_id(job_id))).lines

    def send(self, call: Call[Answer]) -> Answer:
        """Send any call of the SDK to the store or server; blocks."""
        return self.caller.send(call)

    async def send_async(self, call: Call[Answer]) -> Answer:
        """The same inside a running loop."""
        return await self.caller.send_async(call)

    def forked(self) -> None:
        """Called in a new process: connections and the id counter belong to the old one."""
        self._ids, self._ids_lock = IdMaker(self.clock), threading.Lock()
        self.client_pusher.forked()

    def close(self) -> None:
        """Close the connection of blocking pushes. The next push opens another."""
        self.client_pusher.close()

    async def close_async(self) -> None:
        """Close the connection of this event loop's pushes."""
        await self.client_pusher.close_async()


class AppClient(Client):
    """The SDK's client on the App's connection, which the App closes."""

    def __init__(self, app: App) -> None:
        super().__init__(app.url, namespace=app.namespace)
        self.make_id = app.make_id
        self.transport = lambda: self
        self._app = app

    def send(self, call: Call[Answer]) -> Answer:
        return self._app.send(call)


def _module(function: Callable[..., Any]) -> str:
    """The module's name as a worker will import it; a script that is run directly calls itself `__main__`."""
    name = function.__module__
    if name != "__main__":
        return name
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else name
