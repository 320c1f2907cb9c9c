"""Calls the middleware around a run, and at a push.

A middleware is a callable `(job, call)`: `call()` runs what is inside it, and its answer is the middleware's to return.
It may raise what a task may raise (Cancel, Postpone, Retry, Fail), and need not call at all. It is plain or async; both
work around plain and async tasks in every pool. Around an async task, a plain one gets an awaitable from `call()` and
returns it; one that wants to do something after the run is async. Around a plain task, an async one is run by a loop
that is stopped while the task runs.

A middleware that is an object may have two more methods. `pushing(job)` sees each job before it is pushed (a
PendingJob) and may change it; `opening(job)` sees it before everything else in a run (a CurrentJob). With a `hash_key`
it keys the hashes of arguments in ids and in the names of locks and counters.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from duetime.model.names import Queue

if TYPE_CHECKING:
    from duetime.worker.app import App
    from duetime.worker.current_job import CurrentJob
    from duetime.worker.execution import ThreadLoop

Middleware = Callable[["CurrentJob", Callable[[], Any]], Any]
Seal = Callable[[Queue, str], bytes]
"""Encrypts the arguments of a job for its queue and id."""


@dataclass
class WaitingKey:
    """Makes a job the only one of its key that has not begun. The key's counter is raised when a job begins, and is
    part of the next job's id. `replaces`: a new job takes the place of the one that waits; otherwise that is kept.
    """

    key: str
    life_ms: int
    replaces: bool = False


@dataclass
class PendingJob:
    """A job before it is pushed. `data` are its arguments as JSON; what `seal`, if set, makes of them is written in
    their place.
    """

    app: "App"
    name: str
    queue: Queue
    data: bytes
    headers: dict[str, str]
    hash_key: bytes = field(default=b"", repr=False)
    seal: Seal | None = None
    delay_ms: int | None = None
    waiting_key: WaitingKey | None = None
    _arguments: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def arguments(self) -> Mapping[str, Any]:
        """By name, as plain JSON; those that were not given are missing."""
        if self._arguments is None:
            self._arguments = msgspec.json.decode(self.data)
        return self._arguments or {}


def hash_key_of(middleware: Sequence[Middleware]) -> bytes:
    """Returns the key for hashes of arguments, which is empty if nothing encrypts them."""
    keys = (getattr(one, "hash_key", b"") for one in middleware)
    return next((key for key in keys if key), b"")


def push_through(middleware: Sequence[Middleware], job: PendingJob) -> None:
    for one in middleware:
        pushing = getattr(one, "pushing", None)
        if pushing is not None:
            pushing(job)


def open_through(middleware: Sequence[Middleware], job: "CurrentJob") -> None:
    for one in middleware:
        opening = getattr(one, "opening", None)
        if opening is not None:
            opening(job)


def call_plain(
    middleware: Sequence[Middleware], job: "CurrentJob", innermost: Callable[[], Any], loop: "ThreadLoop"
) -> Any:
    """Call a plain function inside its middleware, in a thread that runs no event loop."""
    call = innermost
    for one in reversed(middleware):
        call = _plain_step(one, job, call, loop)
    return call()


def _plain_step(one: Middleware, job: "CurrentJob", inner: Callable[[], Any], loop: "ThreadLoop") -> Callable[[], Any]:
    if _is_async(one):
        return lambda: loop.run_around(lambda call: one(job, call), inner)
    return lambda: one(job, inner)


async def call_async(
    middleware: Sequence[Middleware], job: "CurrentJob", innermost: Callable[[], Awaitable[Any]]
) -> Any:
    """Call an async function inside its middleware, on the running event loop."""
    call = innermost
    for one in reversed(middleware):
        call = _async_step(one, job, call)
    return await call()


def _async_step(
    one: Middleware, job: "CurrentJob", inner: Callable[[], Awaitable[Any]]
) -> Callable[[], Awaitable[Any]]:
    async def step() -> Any:
        answer = one(job, inner)
        return await answer if inspect.isawaitable(answer) else answer

    return step


def _is_async(one: Middleware) -> bool:
    return inspect.iscoroutinefunction(one) or inspect.iscoroutinefunction(getattr(one, "__call__", None))  # noqa: B004
