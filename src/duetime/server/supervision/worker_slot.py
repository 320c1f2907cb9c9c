"""A slot of the supervisor: keeps one worker process running.

A worker that ends unexpectedly is replaced, with growing pauses if this repeats, but immediately if no other slot
serves. A worker that cannot be launched (no file, no memory, no program) is retried. On a reload, the replacement
serves before its predecessor drains, so that a slot is never empty.
"""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from duetime.metrics.siblings import WorkerInfo
from duetime.model.backoff import Backoff, Exponential
from duetime.model.errors import InvalidSettings
from duetime.server.supervision.control_channel import Channel, ControlLost, Handler
from duetime.server.supervision.program import SYSTEMD_VARIABLES, Start

log = logging.getLogger("duetime.supervision")

RESTART = Exponential(base_ms=100, cap_ms=30_000, jitter=0.3)
STABLE_S = 30.0
"""After a worker has lived this long, the count of failures in a row starts again."""
UNSERVED_MS = 1_000
"""The longest pause after a worker that never became ready, while no worker serves."""
READY_S = 60.0
"""Time for a replacement to become ready; until then its predecessor serves."""
PING_EVERY_S = 5.0
HUNG_S = 60.0
"""A worker whose event loop is blocked for this long is killed."""
KILL_S = 5.0
"""Time for a worker to end after the command `abort`."""


class WorkerProcess:
    """One worker process, from start to end. It is a new interpreter that inherits the listening sockets, not a fork:
    it shares no locks, threads, random state or open stores with the supervisor, and a replacement runs the code that
    is currently installed.

    `start_decided` is set when it is ready or has failed. `served`: it was ready once. `refusal` says why it cannot
    serve with its settings, or is empty.
    """

    def __init__(self, start: Start) -> None:
        self.start = start
        self.state = "starting"
        self.start_decided = asyncio.Event()
        self.ended = asyncio.Event()
        self.served = False
        self.refusal = ""
        self.problems: Mapping[str, str] = {}
        self.pid = 0
        self.code: int | None = None
        self.started_at = time.time_ns() // 1_000_000
        self._began = time.monotonic()
        self._channel: Channel | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def lived_s(self) -> float:
        return time.monotonic() - self._began

    async def launch(self, command: Sequence[str], handlers: Mapping[str, Handler]) -> None:
        """Raises OSError if the process cannot be created; then it counts as ended."""
        try:
            await self._launch(command, handlers)
        except BaseException:
            await self._end()
            raise
        if self.state == "draining":  # `drain` was called before the channel was open
            self.send("drain")

    async def _launch(self, command: Sequence[str], handlers: Mapping[str, Handler]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._channel = channel = Channel(ours)
            own = {"start": self._start, "ready": self._ready, "refused": self._refused}
            for name, handler in {**handlers, **own}.items():
                channel.handle(name, handler)
            await channel.open()
            self._process = await asyncio.create_subprocess_exec(
                *command,
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), *self.start.files],
                env={name: value for name, value in os.environ.items() if name not in SYSTEMD_VARIABLES},
                process_group=0,  # Ctrl-C is for the supervisor
            )
        self.pid = self._process.pid
        self._tasks = [asyncio.create_task(self._wait(self._process)), asyncio.create_task(self._watch(channel))]

    async def ask(self, name: str, body: bytes = b"") -> bytes:
        """Raises ControlLost."""
        if self._channel is None:
            raise ControlLost("not started yet")
        return await self._channel.ask(name, body)

    def send(self, name: str) -> None:
        if self._channel is not None:
            self._channel.send(name)

    def drain(self) -> None:
        if self.state != "ended":
            self.state = "draining"
            self.send("drain")

    def kill(self) -> None:
        if self._process is not None and not self.ended.is_set():
            self._process.kill()

    async def finish(self, abort: asyncio.Event) -> None:
        """Drains it for at most `drain_timeout`, or until `abort`; then aborts its requests, and finally kills it."""
        self.drain()
        grace_s = self.start.settings.drain_timeout.total_seconds() + KILL_S
        waits = [asyncio.create_task(self.ended.wait()), asyncio.create_task(abort.wait())]
        try:
            await asyncio.wait(waits, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
            if not self.ended.is_set():
                self.send("abort")
                await asyncio.wait(waits[:1], timeout=KILL_S)
            if not self.ended.is_set():
                log.error("worker_killed", extra={"worker": self.start.name, "pid": self.pid})
                self.kill()
                await self.ended.wait()
        finally:
            for wait in waits:
                wait.cancel()

    async def _wait(self, process: asyncio.subprocess.Process) -> None:
        self.code = await process.wait()
        await self._end()
        self._tasks[1].cancel()

    async def _end(self) -> None:
        self.state = "ended"
        self.start_decided.set()
        self.ended.set()
        if self._channel is not None:
            await self._channel.close()

    async def _watch(self, channel: Channel) -> None:
        """Kills the worker if its event loop is blocked."""
        while not channel.gone.is_set():
            try:
                await channel.ask("ping", within_s=HUNG_S)
            except ControlLost:
                if not channel.gone.is_set():
                    log.error("worker_hung", extra={"worker": self.start.name, "pid": self.pid})
                    self.kill()
                return
            await asyncio.sleep(PING_EVERY_S)

    async def _start(self, body: bytes) -> bytes:
        return msgspec.msgpack.encode(self.start)

    async def _ready(self, body: bytes) -> bytes:
        self.problems = msgspec.msgpack.decode(body, type=dict[str, str])
        self.served = True
        if self.state == "starting":
            self.state = "ready"
        self.start_decided.set()
        return b""

    async def _refused(self, body: bytes) -> bytes:
        self.refusal = body.decode(errors="replace")
        return b""


class WorkerSlot:
    """`up` is set when its first worker serves, or has refused its settings with the reason `refusal`."""

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
        """The pids of all worker processes in this slot, including draining ones."""
        return [child.pid for child in (self.child, *self._outgoing) if child is not None and child.code is None]

    def describe(self) -> WorkerInfo:
        child = self.child
        if child is None:
            return WorkerInfo(self.start.name, 0, "restarting", self.restarts, 0)
        return WorkerInfo(self.start.name, child.pid, child.state, self.restarts, child.started_at)

    async def keep(self) -> None:
        """Keeps a worker running until `leave`, or until the first worker refuses its settings."""
        failures = 0
        while not self._leaving.is_set():
            child = self.child = self._child(self.start)
            error = await self._launch(child)
            await child.start_decided.wait()
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
        """Launches a worker. Returns the reason if that fails, else an empty text."""
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
        """A new worker. Its connection count is apart from that of its predecessor, which may still drain."""
        self._generation += 1
        return WorkerProcess(msgspec.structs.replace(start, slot=2 * (int(start.name) - 1) + self._generation % 2))

    async def _last_end(self, child: WorkerProcess) -> WorkerProcess:
        """Waits until the current worker ends, even if it is replaced meanwhile."""
        while True:
            await child.ended.wait()
            if self.child is child or self.child is None:
                return child
            child = self.child

    async def _pause(self, child: WorkerProcess, error: str, wait_ms: int) -> None:
        if error:
            log.error("worker_not_started", extra={"worker": self.start.name, "error": error, "wait_ms": wait_ms})
        else:
            code = child.code or 0
            how = {"signal": signal.Signals(-code).name} if code < 0 else {"code": code}
            about = {"worker": self.start.name, "pid": child.pid, **how, "reason": child.refusal, "wait_ms": wait_ms}
            log.error("worker_ended", extra={name: value for name, value in about.items() if value != ""})
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1000):
                await self._leaving.wait()

    async def replace(self, start: Start, *, abort: asyncio.Event) -> None:
        """Replaces the worker. Raises InvalidSettings, and changes nothing, if the new one cannot serve."""
        before = self.child
        if before is None:  # the next worker will use the new start
            self.start = start
            return
        child = self._child(start)
        if error := await self._launch(child):
            raise InvalidSettings(error)
        try:
            async with asyncio.timeout(READY_S):
                await child.start_decided.wait()
            if child.state != "ready":
                raise InvalidSettings(child.refusal or f"the new worker ended with {child.code}")
        except BaseException as error:
            child.kill()
            if isinstance(error, TimeoutError):
                raise InvalidSettings(f"the new worker was not ready within {READY_S} s") from None
            raise
        self.start, self.child = start, child
        self._outgoing.add(before)
        await before.finish(abort)
        self._outgoing.discard(before)
        self._ended(before)

    async def leave(self, abort: asyncio.Event) -> None:
        """Drains the current worker and starts no other."""
        self._leaving.set()
        here = [child for child in (self.child, *self._outgoing) if child is not None]
        await asyncio.gather(*(child.finish(abort) for child in here))
