"""Threads that own one connection each to a database server, and run steps for coroutines.

Steps that change a queue run one after the other, because they would only wait for its lock in the database; the steps
that have gathered meanwhile share a transaction, and so a commit. Steps that only read run side by side, each on a
snapshot of its own. A caller gets its result after the commit. A transaction whose connection was lost before the
commit has changed nothing: its steps run again on a new connection.
"""

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar

from duetime.model.errors import DuetimeError, StoreUnavailable
from duetime.stores.sql.session import DatabaseSession, NotCommitted
from duetime.stores.sql.step import Step
from duetime.stores.sql.store import BIG_JOBS

log = logging.getLogger("duetime.stores")

MAX_STEPS = 64
"""The most steps that share a transaction."""
MAX_TRIES = 5
"""How often a transaction is tried that the database aborts in favour of another one."""
REDIAL_S = 1.0
"""A connection to a read-only server is kept for this long, so that a server that stays read only gets few new ones."""

T = TypeVar("T")


class DatabaseLink(ABC):
    """How a dialect makes its sessions and reads its errors. Every method blocks and runs in the threads."""

    errors: tuple[type[Exception], ...]
    """The exceptions that the driver raises."""
    failed_over_at = float("-inf")
    """When a server was last found to be read only. Connections made before that are replaced: they may lead to the
    old primary of a failover, and new ones to the new primary.
    """

    @abstractmethod
    def connect(self) -> DatabaseSession: ...

    @abstractmethod
    def step(self, session: Any) -> Step: ...

    @abstractmethod
    def is_transient(self, error: Exception) -> bool:
        """Whether the transaction may succeed if it is simply run again (a deadlock, a serialisation failure)."""

    @abstractmethod
    def is_read_only(self, error: Exception) -> bool:
        """Whether the server accepts no writes from anybody."""

    def is_outdated(self, session: DatabaseSession) -> bool:
        return session.opened_at < self.failed_over_at

    @abstractmethod
    def translate(self, error: Exception, *, committing: bool = False) -> DuetimeError:
        """The contract's error for a driver's error."""


class QueuedStep:
    """An operation that a caller waits for, from its request to its result."""

    __slots__ = ("error", "future", "is_big", "operation", "read_only", "result", "step")

    def __init__(
        self, operation: Callable[[Step], Any], future: "asyncio.Future[Any]", is_big: bool, read_only: bool
    ) -> None:
        self.operation, self.future, self.is_big, self.read_only = operation, future, is_big, read_only
        self.result: Any = None
        self.error: BaseException | None = None
        self.step: Step | None = None

    def resolve(self) -> None:
        """Called in the caller's loop. A caller that was cancelled gets no result."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


class ConnectionThreads:
    """Up to `size` threads, started as they are needed; `announce` is called in them with the steps of each commit."""

    def __init__(self, name: str, link: DatabaseLink, *, size: int, announce: Callable[[Sequence[Step]], None]) -> None:
        self._name, self._link, self._size, self._announce = name, link, size, announce
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._resting: list[threading.Condition] = []
        """Threads that have nothing to do, each with its own bell; the last one to rest is the first to work.

        So a few connections are used all the time, and they have their statements prepared.
        """
        self._waiting: dict[Hashable, deque[QueuedStep]] = {}
        self._turns: deque[Hashable] = deque()
        self._busy: set[Hashable] = set()
        self._idle = 0
        self._threads: list[threading.Thread] = []
        self._closing = False

    async def run(
        self, operation: Callable[[Step], T], *, order_key: Hashable = None, jobs: int = 1, read_only: bool = False
    ) -> T:
        """Run a step; steps with the same `order_key` run one after the other."""
        if self._closing:
            raise StoreUnavailable("the store is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        call = QueuedStep(operation, future, jobs >= BIG_JOBS, read_only)
        self._submit(call, object() if order_key is None else order_key)
        return await future

    async def close(self) -> None:
        """Finish the steps that were asked for so far, then close the connections. Idempotent."""
        with self._lock:
            self._closing = True
            while self._resting:
                self._resting.pop().notify()
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    def _submit(self, call: QueuedStep, order_key: Hashable) -> None:
        with self._lock:
            self._waiting.setdefault(order_key, deque()).append(call)
            if order_key in self._busy or len(self._waiting[order_key]) > 1:
                return  # it comes behind a step that has its turn
            self._turns.append(order_key)
            if self._idle < len(self._turns) and len(self._threads) < self._size:
                name = f"{self._name}-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._main, name=name, daemon=True))
                self._threads[-1].start()
            elif self._resting:
                self._resting.pop().notify()

    # --- in the threads

    def _main(self) -> None:
        session: DatabaseSession | None = None
        bell = threading.Condition(self._lock)
        while (taken := self._take(bell)) is not None:
            order_key, calls = taken
            try:
                session = self._serve(session, calls)
            except BaseException as error:
                # This is a bug of ours: better an error than callers that wait for ever.
                log.exception("store_thread_failed")
                self._fail(StoreUnavailable(f"the store's thread has failed: {error!r}", unknown=True), calls)
                session = self._let_go(session)
            finally:
                self._done(order_key)
        self._let_go(session)

    def _take(self, bell: threading.Condition) -> tuple[Hashable, list[QueuedStep]] | None:
        """The next key and its steps for one transaction; None when the store is closed and nothing is left."""
        with self._lock:
            self._idle += 1
            while not self._turns:
                if self._closing:
                    return None
                self._resting.append(bell)
                bell.wait()
            self._idle -= 1
            order_key = self._turns.popleft()
            self._busy.add(order_key)
            waiting = self._waiting[order_key]
            calls = [waiting.popleft()]
            while waiting and len(calls) < MAX_STEPS and not calls[0].is_big and not waiting[0].is_big:
                calls.append(waiting.popleft())
            return order_key, calls

    def _done(self, order_key: Hashable) -> None:
        with self._lock:
            self._busy.discard(order_key)
            if self._waiting[order_key]:
                # This thread takes it, or what was in front of it: then another one is at work already.
                self._turns.append(order_key)
            else:
                del self._waiting[order_key]

    def _serve(self, session: DatabaseSession | None, calls: list[QueuedStep]) -> DatabaseSession | None:
        """Run steps, and return the connection to go on with; None after it was lost."""
        calls = [call for call in calls if not call.future.cancelled()]
        for attempt in range(1, MAX_TRIES + 1):
            if not calls:
                return session
            if session is not None and self._link.is_outdated(session):
                session = self._let_go(session)
            try:
                session = session or self._link.connect()
            except self._link.errors as error:
                self._fail(self._link.translate(error), calls)
                return None
            try:
                if self._transact(session, calls):
                    return session
            except self._link.errors as error:
                session = self._clean(session, error)
                # One reconnect is enough: steps that lose the new connection too would lose a third one as well.
                again = attempt == 1 if session is None else self._link.is_transient(error)
                if not calls or (again and attempt < MAX_TRIES):
                    continue
                if session is None or len(calls) == 1:
                    self._fail(self._link.translate(error), calls)
                    return session
            return self._serve_apart(session, calls)
        return session

    def _serve_apart(self, session: DatabaseSession | None, calls: list[QueuedStep]) -> DatabaseSession | None:
        """One of these steps failed, and the transaction with it. Run each in its own, so that only that step fails."""
        if len(calls) == 1:
            self._resolve(calls)
            return session
        for call in calls:
            session = self._serve(session, [call])
        return session

    def _transact(self, session: DatabaseSession, calls: list[QueuedStep]) -> bool:
        """Run steps in one transaction; False if it was rolled back because one of them failed.

        Raises the driver's errors. Nothing has changed then, except after a commit that failed for another reason than
        a conflict: its callers get an error that says "unknown", and `calls` is empty.
        """
        session.begin(read_only=calls[0].read_only)
        try:
            if not self._operate(session, calls):
                session.rollback()
                return False
            session.commit()
        except NotCommitted as refused:
            raise refused.__cause__ or refused from None
        except self._link.errors as error:
            if not session.is_committing or self._link.is_transient(error):
                raise
            self._fail(self._link.translate(error, committing=True), [*calls])
            calls.clear()
            raise
        self._settle(calls)
        return True

    def _operate(self, session: DatabaseSession, calls: Sequence[QueuedStep]) -> bool:
        """Run the operations; False if one failed after it had written, and the transaction must not be kept."""
        for call in calls:
            step = call.step = self._link.step(session)
            step.is_alone = len(calls) == 1
            try:
                call.result, call.error = call.operation(step), None
            except (*self._link.errors, NotCommitted):
                raise
            except Exception as error:
                call.error = error
                if step.has_written:
                    return False
        return True

    def _settle(self, calls: Sequence[QueuedStep]) -> None:
        self._resolve(calls)
        if steps := [call.step for call in calls if call.step is not None and call.error is None]:
            self._announce(steps)

    def _clean(self, session: DatabaseSession, error: Exception) -> DatabaseSession | None:
        """Roll back after an error; None if the connection must not be used again."""
        try:
            session.rollback()
        except self._link.errors:
            return self._let_go(session)
        if self._link.is_read_only(error) and session.opened_at < monotonic() - REDIAL_S:
            self._link.failed_over_at = monotonic()
            return self._let_go(session)
        return self._let_go(session) if session.is_lost else session

    def _let_go(self, session: DatabaseSession | None) -> None:
        if session is not None:
            with suppress(*self._link.errors):
                session.close()

    def _fail(self, error: DuetimeError, calls: Sequence[QueuedStep]) -> None:
        for call in calls:
            call.error = error
        self._resolve(calls)

    def _resolve(self, calls: Sequence[QueuedStep]) -> None:
        # A closed loop raises RuntimeError; then no caller is left to hear the result.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_resolve_all, calls)


def _resolve_all(calls: Sequence[QueuedStep]) -> None:
    for call in calls:
        call.resolve()
