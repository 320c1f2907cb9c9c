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
from typing import Any, Generic, TypeVar

from duetime.errors import DuetimeError, StoreUnavailable
from duetime.stores.sql.step import Step
from duetime.stores.sql.store import BIG_JOBS

log = logging.getLogger("duetime.stores")

MAX_STEPS = 64
"""The most steps that share a transaction."""
MAX_TRIES = 5
"""How often a transaction is tried that the database aborts in favour of another one."""

C = TypeVar("C")
T = TypeVar("T")


class DatabaseLink(ABC, Generic[C]):
    """How a dialect handles its connections. Every method blocks and runs in the threads."""

    errors: tuple[type[Exception], ...]
    """The exceptions that the driver raises."""

    @abstractmethod
    def connect(self) -> C: ...

    @abstractmethod
    def begin(self, connection: C, *, read_only: bool) -> None: ...

    @abstractmethod
    def step(self, connection: C) -> Step: ...

    @abstractmethod
    def commit(self, connection: C) -> None: ...

    @abstractmethod
    def rollback(self, connection: C) -> None: ...

    @abstractmethod
    def close(self, connection: C) -> None: ...

    @abstractmethod
    def is_lost(self, connection: C) -> bool: ...

    @abstractmethod
    def is_transient(self, error: Exception) -> bool:
        """Whether the transaction may succeed if it is simply run again (a deadlock, a serialisation failure)."""

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


class ConnectionThreads(Generic[C]):
    """Up to `size` threads, started as they are needed; `announce` is called in them with the steps of each commit."""

    def __init__(
        self, name: str, link: DatabaseLink[C], *, size: int, announce: Callable[[Sequence[Step]], None]
    ) -> None:
        self._name, self._link, self._size, self._announce = name, link, size, announce
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._lines: dict[Hashable, deque[QueuedStep]] = {}
        self._turns: deque[Hashable] = deque()
        self._busy: set[Hashable] = set()
        self._idle = 0
        self._threads: list[threading.Thread] = []
        self._closing = False

    async def run(
        self, operation: Callable[[Step], T], *, line: Hashable = None, jobs: int = 1, read_only: bool = False
    ) -> T:
        """Run a step; steps of one `line` run one after the other."""
        if self._closing:
            raise StoreUnavailable("the store is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        call = QueuedStep(operation, future, jobs >= BIG_JOBS, read_only)
        self._submit(call, object() if line is None else line)
        return await future

    async def close(self) -> None:
        """Finish the steps that were asked for so far, then close the connections. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    def _submit(self, call: QueuedStep, line: Hashable) -> None:
        with self._changed:
            self._lines.setdefault(line, deque()).append(call)
            if line not in self._busy and len(self._lines[line]) == 1:
                self._turns.append(line)
            if self._idle < len(self._turns) and len(self._threads) < self._size:
                name = f"{self._name}-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._main, name=name, daemon=True))
                self._threads[-1].start()
            self._changed.notify()

    # --- in the threads

    def _main(self) -> None:
        connection: C | None = None
        while (taken := self._take()) is not None:
            line, calls = taken
            try:
                connection = self._serve(connection, calls)
            except BaseException as error:
                # This is a bug of ours: better an error than callers that wait for ever.
                log.exception("store_thread_failed")
                self._fail(StoreUnavailable(f"the store's thread has failed: {error!r}", unknown=True), calls)
                connection = self._let_go(connection)
            finally:
                self._done(line)
        self._let_go(connection)

    def _take(self) -> tuple[Hashable, list[QueuedStep]] | None:
        """The next line and its steps for one transaction; None when the store is closed and nothing is left."""
        with self._changed:
            self._idle += 1
            while not self._turns:
                if self._closing:
                    return None
                self._changed.wait()
            self._idle -= 1
            line = self._turns.popleft()
            self._busy.add(line)
            waiting = self._lines[line]
            calls = [waiting.popleft()]
            while waiting and len(calls) < MAX_STEPS and not calls[0].is_big and not waiting[0].is_big:
                calls.append(waiting.popleft())
            return line, calls

    def _done(self, line: Hashable) -> None:
        with self._changed:
            self._busy.discard(line)
            if self._lines[line]:
                self._turns.append(line)
                self._changed.notify()
            else:
                del self._lines[line]

    def _serve(self, connection: C | None, calls: list[QueuedStep]) -> C | None:
        """Run steps, and return the connection to go on with; None after it was lost."""
        calls = [call for call in calls if not call.future.cancelled()]
        for attempt in range(1, MAX_TRIES + 1):
            if not calls:
                return connection
            try:
                connection = connection or self._link.connect()
            except self._link.errors as error:
                self._fail(self._link.translate(error), calls)
                return None
            try:
                if self._transact(connection, calls):
                    return self._let_go(connection) if self._link.is_lost(connection) else connection
            except self._link.errors as error:
                connection = self._clean(connection)
                # One reconnect is enough: steps that lose the new connection too would lose a third one as well.
                again = attempt == 1 if connection is None else self._link.is_transient(error)
                if again and attempt < MAX_TRIES:
                    continue
                if connection is None or len(calls) == 1:
                    self._fail(self._link.translate(error), calls)
                    return connection
            return self._serve_apart(connection, calls)
        return connection

    def _serve_apart(self, connection: C | None, calls: list[QueuedStep]) -> C | None:
        """One of these steps failed, and the transaction with it. Run each in its own, so that only that step fails."""
        if len(calls) == 1:
            self._resolve(calls)
            return connection
        for call in calls:
            connection = self._serve(connection, [call])
        return connection

    def _transact(self, connection: C, calls: Sequence[QueuedStep]) -> bool:
        """Run steps in one transaction; False if it was rolled back because one of them failed.

        Raises the driver's errors before the commit, and of a commit that the database refused in favour of another
        transaction; nothing has changed then.
        """
        self._link.begin(connection, read_only=calls[0].read_only)
        if not self._operate(connection, calls):
            self._link.rollback(connection)
            return False
        try:
            self._link.commit(connection)
        except self._link.errors as error:
            if self._link.is_transient(error):
                raise
            self._fail(self._link.translate(error, committing=True), calls)
        else:
            self._settle(calls)
        return True

    def _operate(self, connection: C, calls: Sequence[QueuedStep]) -> bool:
        """Run the operations; False if one failed after it had written, and the transaction must not be kept."""
        for call in calls:
            step = call.step = self._link.step(connection)
            try:
                call.result, call.error = call.operation(step), None
                step.finish()
            except self._link.errors:
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

    def _clean(self, connection: C) -> C | None:
        """Roll back after an error; None if the connection can no longer be used."""
        try:
            self._link.rollback(connection)
        except self._link.errors:
            return self._let_go(connection)
        return connection

    def _let_go(self, connection: C | None) -> None:
        if connection is not None:
            with suppress(*self._link.errors):
                self._link.close(connection)

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
