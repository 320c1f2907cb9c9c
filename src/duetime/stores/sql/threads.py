"""Threads that own one connection each to a database, and run steps for coroutines.

Steps with the same key run one after the other: on a database server those that change one queue, because they would
only wait for its lock there; on SQLite all that write. The steps that have gathered meanwhile share a transaction, and
so a commit. A caller gets its result after the commit. A step that fails undoes only its own changes. A transaction
whose connection was lost before the commit has changed nothing: its steps run again on a new connection.

A dialect derives a `DatabaseLink` and a `Session`.
"""

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from queue import SimpleQueue
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from duetime.model.errors import DuetimeError, StoreDamaged, StoreUnavailable
from duetime.model.job import STEP_JOBS
from duetime.stores.base import ResultSink
from duetime.stores.sql.step import Step

log = logging.getLogger("duetime.stores")

MAX_STEPS = 64
"""Maximum number of steps in one transaction. They change at most about STEP_JOBS jobs."""
BIG_JOBS = 50
"""A step on at least this many jobs is big: it takes long, so that others should not have to wait for it."""
MAX_TRIES = 5
"""How often a transaction is tried that the database aborts in favour of another one."""
REDIAL_S = 1.0
"""A connection to a read-only server is kept for this long, so that a server that stays read only gets few new ones."""

T = TypeVar("T")


class NotCommitted(Exception):
    """A statement failed that was sent together with the commit: the commit did not happen. Its cause says why."""


class Session(ABC):
    """One connection, which belongs to one thread. Every method may raise the driver's errors."""

    in_use: AbstractContextManager[object] = nullcontext()
    """Entered while a transaction runs."""
    is_lost = False

    def __init__(self) -> None:
        self.opened_at = monotonic()
        self.is_committing = False
        """Whether the last statement was, or had with it, a commit: if it failed, the outcome may be unknown."""

    @abstractmethod
    def begin(self, *, read_only: bool) -> None:
        """Start a transaction. If that fails, it would fail for the next caller as well."""

    @abstractmethod
    def commit(self) -> None:
        """Raises NotCommitted if a statement failed that was sent with the commit."""

    @abstractmethod
    def rollback(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class DatabaseLink(ABC):
    """How a dialect makes its sessions and reads its errors. Every method blocks and runs in the threads."""

    errors: tuple[type[Exception], ...]
    """The exceptions that the driver raises."""
    failed_over_at = float("-inf")
    """When a server was last found to be read only. Connections made before that are replaced: they may lead to the
    old primary of a failover, and new ones to the new primary.
    """

    @abstractmethod
    def connect(self) -> Session:
        """Raises the driver's errors, or a DuetimeError."""

    @abstractmethod
    def step(self, session: Any) -> Step: ...

    @abstractmethod
    def translate(self, error: Exception, *, committing: bool = False) -> DuetimeError:
        """The contract's error for a driver's error."""

    def is_transient(self, error: Exception) -> bool:
        """Returns whether the transaction may succeed if it is simply run again (a deadlock, for example)."""
        return False

    def is_rolled_back(self, error: Exception) -> bool:
        """Returns whether a commit that failed with this error has certainly changed nothing."""
        return self.is_transient(error)

    def is_read_only(self, error: Exception) -> bool:
        """Returns whether the server is read-only."""
        return False

    def is_full(self, error: Exception) -> bool:
        """Returns whether only room is missing, and `make_room` may help."""
        return False

    def make_room(self, session: Any, attempt: int) -> bool:
        """Called after a step that adds no jobs found no room; `attempt` counts from 1. Returns whether to retry."""
        return False

    def before_commit(self, session: Any, steps: Sequence[Step]) -> Any:
        """Called as the last thing inside a transaction. Returns what is announced after the commit, or None."""
        return steps or None


class QueuedStep(Struct, eq=False):
    """A step that a caller waits for, from its request to its result."""

    operation: Callable[[Step], Any]
    future: ResultSink[Any]
    jobs: int = 1
    read_only: bool = False
    adds: bool = False
    result: Any = None
    error: Exception | None = None
    step: Step | None = None


_NO_LINE = object()


class Failure(NamedTuple):
    """Why a transaction was rolled back: the driver's error, or None if one of its steps failed."""

    error: Exception | None
    has_begun: bool = True
    is_usable: bool = True
    """Whether the connection can be used again."""
    may_retry: bool = False


class ConnectionThreads:
    """Up to `size` threads, started as they are needed. `announce` is called in them after a commit, with what
    `DatabaseLink.before_commit` returned.

    Coroutines of one event loop call `run` and `close`. When a caller is cancelled, its step is skipped if it has not
    begun; otherwise it takes effect and its result is dropped.
    """

    def __init__(self, name: str, link: DatabaseLink, *, size: int, announce: Callable[[Any], None]) -> None:
        self._name, self._link, self._size, self._announce = name, link, size, announce
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._resting: list[SimpleQueue[None]] = []
        """Threads that have nothing to do, each with its own bell; the last one to rest is the first to work.

        So a few connections are used all the time, and they have their statements prepared.
        """
        self._waiting: dict[Hashable, dict[Hashable, deque[QueuedStep]]] = {}
        """The steps that wait, by key and line."""
        self._turns: deque[Hashable] = deque()
        self._busy: set[Hashable] = set()
        self._threads: list[threading.Thread] = []
        self._alive, self._all_ended = 0, asyncio.Event()
        self._closing = False

    async def run(
        self,
        operation: Callable[[Step], T],
        *,
        key: Hashable = None,
        line: Hashable = None,
        jobs: int = 1,
        read_only: bool = False,
        adds: bool = False,
    ) -> T:
        """Run a step that changes up to `jobs` jobs. Steps with the same `key` run one after the other; those of
        one `line` of a key in their order. One that `adds` jobs gets none of the room that is kept for the others.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        self.submit(QueuedStep(operation, future, jobs=jobs, read_only=read_only, adds=adds), key=key, line=line)
        return await future

    def submit(self, step: QueuedStep, *, key: Hashable = None, line: Hashable = None) -> None:
        """As `run`, for a caller that has no task. Raises StoreUnavailable."""
        if self._closing:
            raise StoreUnavailable("the store is closed")
        if key is None:
            key = step
        with self._lock:
            if key not in self._waiting and key not in self._busy:
                self._turns.append(key)
                if self._resting:
                    self._resting.pop().put(None)
                elif len(self._threads) < self._size:
                    name = f"{self._name}-{len(self._threads)}" if self._size > 1 else self._name
                    self._threads.append(threading.Thread(target=self._main, name=name, daemon=True))
                    self._threads[-1].start()
                    self._alive += 1
            self._waiting.setdefault(key, {}).setdefault(line, deque()).append(step)

    def _thread_ended(self) -> None:
        self._alive -= 1
        if not self._alive:
            self._all_ended.set()

    async def close(self) -> None:
        """Finish the steps that were asked for so far, then close the connections. Idempotent."""
        with self._lock:
            self._closing = True
            while self._resting:
                self._resting.pop().put(None)
        if self._alive:
            await self._all_ended.wait()
        for thread in self._threads:
            thread.join()

    # --- in the threads

    def _main(self) -> None:
        session: Session | None = None
        bell: SimpleQueue[None] = SimpleQueue()
        while True:
            with self._lock:
                if self._turns:
                    key = self._turns.popleft()
                    self._busy.add(key)
                    calls = self._pop(key)
                elif self._closing:
                    break
                else:
                    self._resting.append(bell)
                    key = calls = None
            if calls is None:
                bell.get()
                continue
            try:
                session = self._serve(session, calls, key)
            except BaseException as error:
                # This is a bug in Duetime: an error is better than callers that wait forever.
                log.exception("store_thread_failed")
                self._fail(StoreUnavailable(f"the store's thread has failed: {error!r}", unknown=True), calls)
                session = self._let_go(session)
            with self._lock:
                self._busy.discard(key)
                if key in self._waiting:
                    self._turns.append(key)  # this thread serves it next, or an earlier one
        self._let_go(session)
        self._post(self._thread_ended)

    def _pop(self, key: Hashable) -> list[QueuedStep]:
        """The steps of a key's next transaction, called with the lock. A big step comes alone, so that the callers of
        others need not wait for it.

        The lines of a key are served in turn: a step of a quiet queue waits for one step of a flooded queue, and not
        for all of them.
        """
        lines, steps, jobs = self._waiting[key], list[QueuedStep](), 0
        while lines and len(steps) < MAX_STEPS and jobs < STEP_JOBS:
            name = next((name for name, line in lines.items() if not steps or line[0].jobs < BIG_JOBS), _NO_LINE)
            if name is _NO_LINE:
                break
            line = lines.pop(name)
            steps.append(line.popleft())
            if line:
                lines[name] = line  # the line goes to the end
            jobs += steps[-1].jobs if steps[-1].jobs < BIG_JOBS else STEP_JOBS
        if not lines:
            del self._waiting[key]
        return [step for step in steps if not step.future.done()]

    def _serve(self, session: Session | None, calls: list[QueuedStep], key: Hashable) -> Session | None:
        """Run steps, and return the connection to go on with; None after it was lost."""
        for attempt in range(1, MAX_TRIES + 1):
            if not calls:
                return session
            try:
                if session is None or session.opened_at < self._link.failed_over_at:
                    self._let_go(session)
                    session = self._link.connect()
            except (*self._link.errors, DuetimeError) as error:
                self._fail(self._translated(error), calls)
                return None
            with session.in_use:
                failure = self._try(session, calls, attempt)
            if failure is None:
                return session
            if not failure.is_usable:
                session = self._let_go(session)
            if not calls or (failure.may_retry and attempt < MAX_TRIES):
                continue
            if not failure.has_begun:
                # The callers that wait have waited just as long: another timeout would not help them.
                calls += self._pop_all(key)
            elif len(calls) > 1 and session is not None:
                # Run each step in its own transaction, so that only those fail that are the reason.
                for call in calls:
                    session = self._serve(session, [call], key)
                return session
            self._fail(failure.error and self._link.translate(failure.error), calls)
            return session
        return session

    def _try(self, session: Session, calls: list[QueuedStep], attempt: int) -> Failure | None:
        """Run steps in one transaction, and roll it back if it fails. Returns None after a commit."""
        has_begun = False
        try:
            session.begin(read_only=calls[0].read_only)
            has_begun = True
            for call in calls:
                step = call.step = self._link.step(session)
                step.is_alone = len(calls) == 1
                try:
                    call.result, call.error = call.operation(step), None
                except (*self._link.errors, NotCommitted):
                    raise
                except Exception as error:
                    call.error = self._translated(error)
                    if step.has_written:
                        session.rollback()
                        return Failure(None)
            steps = [call.step for call in calls if call.step is not None and call.error is None]
            announcement = self._link.before_commit(session, steps)
            session.commit()
        except (*self._link.errors, NotCommitted) as error:
            return self._failed(session, calls, error, attempt, has_begun=has_begun)
        self._post(_resolve_all, calls)
        if announcement is not None:
            self._announce(announcement)
        return None

    def _failed(
        self, session: Session, calls: list[QueuedStep], error: Exception, attempt: int, *, has_begun: bool
    ) -> Failure:
        """Roll back. Callers of a commit whose outcome is unknown get an error that says so, and `calls` is empty."""
        if isinstance(error, NotCommitted):
            error = error.__cause__ if isinstance(error.__cause__, Exception) else error
        elif session.is_committing and not self._link.is_rolled_back(error):
            self._fail(self._link.translate(error, committing=True), [*calls])
            calls.clear()
        if not self._clean(session, error):
            # One reconnect is enough: steps that lose the new connection too would lose a third one as well.
            return Failure(error, has_begun, is_usable=False, may_retry=attempt == 1)
        may_retry = self._link.is_transient(error)
        if len(calls) == 1 and not calls[0].adds and self._link.is_full(error):
            may_retry = self._link.make_room(session, attempt)
        return Failure(error, has_begun, may_retry=may_retry)

    def _translated(self, error: Exception) -> Exception:
        """The error that a caller gets: no error of the driver leaves the store."""
        if isinstance(error, self._link.errors):
            return self._link.translate(error)
        if isinstance(error, msgspec.DecodeError):
            return StoreDamaged(f"database contains a row that Duetime did not write: {error}")
        return error

    def _clean(self, session: Session, error: Exception) -> bool:
        """Roll back after an error. Returns False if the connection must not be used again."""
        try:
            session.rollback()
        except self._link.errors:
            return False
        if self._link.is_read_only(error) and session.opened_at < monotonic() - REDIAL_S:
            self._link.failed_over_at = monotonic()
            return False
        return not session.is_lost

    def _let_go(self, session: Session | None) -> None:
        if session is not None:
            with suppress(*self._link.errors):
                session.close()

    def _pop_all(self, key: Hashable) -> list[QueuedStep]:
        found = list[QueuedStep]()
        with self._lock:
            while key in self._waiting:
                found += self._pop(key)
        return found

    def _fail(self, error: Exception | None, calls: Sequence[QueuedStep]) -> None:
        """Answer callers with an error; None for callers whose steps have an error of their own."""
        for call in calls:
            call.error = error or call.error
        self._post(_resolve_all, calls)

    def _post(self, callback: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed, and with it every caller
            self._loop.call_soon_threadsafe(callback, *arguments)


def _resolve_all(calls: Sequence[QueuedStep]) -> None:
    """Called in the callers' loop. A caller that was cancelled gets no result."""
    for call in calls:
        if call.future.done():
            continue
        if call.error is None:
            call.future.set_result(call.result)
        else:
            call.future.set_exception(call.error)
