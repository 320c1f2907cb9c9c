"""A slot of the supervisor: there is always a worker process in it, or one on its way.

A worker that ends without being told to is followed by the next, more and more slowly if they keep ending, but at once
if no other slot has one that serves. A worker that cannot even be launched (no file, no memory, no program) is tried
again. A replacement serves before its predecessor is drained, so that a change of settings never empties a slot.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from duetime.metrics.siblings import WorkerInfo
from duetime.model.backoff import Backoff, Exponential
from duetime.model.errors import InvalidSettings
from duetime.server.supervision.control_channel import Handler
from duetime.server.supervision.program import Start
from duetime.server.supervision.worker_process import WorkerProcess

log = logging.getLogger("duetime.supervision")

RESTART = Exponential(base_ms=100, cap_ms=30_000, jitter=0.3)
STABLE_S = 30.0
"""A worker that lived so long was not ended by what ended the one before it."""
UNSERVED_MS = 1_000
"""While nobody serves, a worker that did not become ready is followed by the next after no more than this."""
READY_S = 60.0
"""What a replacement has to become ready; until then its predecessor serves."""


class WorkerSlot:
    """`up` is set once its first worker serves, or cannot; then `refusal` says why."""

    def __init__(
        self,
        start: Start,
        command: Sequence[str],
        handlers: Mapping[str, Handler],
        *,
        ended: Callable[[WorkerProcess], None],
        others_serve: Callable[[], bool],
        restart: Backoff = RESTART,
    ) -> None:
        self.start = start
        self.child: WorkerProcess | None = None
        self.restarts = 0
        self.up = asyncio.Event()
        self.refusal = ""
        self._command = command
        self._handlers = handlers
        self._restart = restart
        self._ended = ended
        self._others_serve = others_serve
        self._leaving = asyncio.Event()
        self._generation = 0
        self._outgoing: set[WorkerProcess] = set()

    @property
    def pids(self) -> list[int]:
        """The pids of all worker processes in this slot, also of one that is being drained."""
        return [child.pid for child in (self.child, *self._outgoing) if child is not None and child.code is None]

    def describe(self) -> WorkerInfo:
        child = self.child
        if child is None:
            return WorkerInfo(self.start.name, 0, "restarting", self.restarts, 0)
        return WorkerInfo(self.start.name, child.pid, child.state, self.restarts, child.started_at)

    async def keep(self) -> None:
        """Keep a worker in this slot, until the slot is left or its first worker refuses its settings."""
        failures = 0
        while not self._leaving.is_set():
            child = self.child = self._child(self.start)
            error = await self._launch(child)
            await child.settled.wait()
            if child.refusal and not self.up.is_set():
                self.refusal = child.refusal
                self.up.set()
                return
            if child.state == "ready":
                self.up.set()
            launched, child = child, await self._last_end(child)
            if self._leaving.is_set():
                return
            self.child = None
            self._ended(child)
            self.restarts += 1
            failures = 1 if child.lived_s >= STABLE_S else failures + 1
            await self._pause(child, error if child is launched else "", self._wait_ms(child, failures))

    async def _launch(self, child: WorkerProcess) -> str:
        """Launch a worker. Answers why that was not possible; empty if it was."""
        try:
            await child.launch(self._command, self._handlers)
        except OSError as error:
            return f"cannot start a worker process: {error.strerror or error}"
        return ""

    def _wait_ms(self, child: WorkerProcess, failures: int) -> int:
        wait_ms = self._restart.delay_ms(failures)
        if self._others_serve():
            return wait_ms
        return 0 if child.served else min(wait_ms, UNSERVED_MS)

    def _child(self, start: Start) -> WorkerProcess:
        """A new worker, with another slot for its connection count than its predecessor, which may still drain."""
        self._generation += 1
        return WorkerProcess(msgspec.structs.replace(start, slot=2 * (int(start.name) - 1) + self._generation % 2))

    async def _last_end(self, child: WorkerProcess) -> WorkerProcess:
        """Wait for the end of the present worker, also if it is replaced meanwhile."""
        while True:
            await child.ended.wait()
            if self.child is child or self.child is None:
                return child
            child = self.child

    async def _pause(self, child: WorkerProcess, error: str, wait_ms: int) -> None:
        if error:
            log.error("worker_not_started", extra={"worker": self.start.name, "error": error, "wait_ms": wait_ms})
        else:
            self._tell_end(child, wait_ms)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1000):
                await self._leaving.wait()

    def _tell_end(self, child: WorkerProcess, wait_ms: int) -> None:
        code = child.code or 0
        how = {"signal": signal.Signals(-code).name} if code < 0 else {"code": code}
        about = {"worker": self.start.name, "pid": child.pid, **how, "reason": child.refusal, "wait_ms": wait_ms}
        log.error("worker_ended", extra={name: value for name, value in about.items() if value != ""})

    async def replace(self, start: Start, *, hurry: asyncio.Event) -> None:
        """Let a worker with this start take over. Raises InvalidSettings, and all is as before, if it cannot serve."""
        before = self.child
        if before is None:  # the next one is on its way, and comes with the new start
            self.start = start
            return
        child = self._child(start)
        if error := await self._launch(child):
            raise InvalidSettings(error)
        try:
            async with asyncio.timeout(READY_S):
                await child.settled.wait()
            if child.state != "ready":
                raise InvalidSettings(child.refusal or f"the new worker ended with {child.code}")
        except BaseException as error:
            child.kill()
            if isinstance(error, TimeoutError):
                raise InvalidSettings(f"the new worker was not ready within {READY_S} s") from None
            raise
        self.start, self.child = start, child
        self._outgoing.add(before)
        await before.finish(hurry)
        self._outgoing.discard(before)
        self._ended(before)

    async def leave(self, hurry: asyncio.Event) -> None:
        """Drains the present worker; no other follows."""
        self._leaving.set()
        here = [child for child in (self.child, *self._outgoing) if child is not None]
        await asyncio.gather(*(child.finish(hurry) for child in here))
