"""The supervisor's view of one worker process, from start to end.

The process is a new interpreter that inherits the listening sockets, not a fork: it shares no locks, threads, random
state or open stores with the supervisor, and a replacement runs the code that is currently installed.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence

import msgspec

from duetime.server.supervision.control_channel import Channel, ControlLost, Handler
from duetime.server.supervision.program import Start
from duetime.server.supervision.systemd import VARIABLES

log = logging.getLogger("duetime.supervision")

PING_EVERY_S = 5.0
HUNG_S = 60.0
"""A worker whose event loop is blocked for this long is killed."""
KILL_S = 5.0
"""Time for a worker to end after the command `cut`."""


class WorkerProcess:
    """`start_decided` is set when it is ready or has failed. `served`: it was ready once. `refusal` says why it cannot
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
                env={name: value for name, value in os.environ.items() if name not in VARIABLES},
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

    async def finish(self, hurry: asyncio.Event) -> None:
        """Drains it for at most `drain_timeout`, or until `hurry`; then aborts its requests, and finally kills it."""
        self.drain()
        grace_s = self.start.settings.drain_timeout.total_seconds() + KILL_S
        waits = [asyncio.create_task(self.ended.wait()), asyncio.create_task(hurry.wait())]
        try:
            await asyncio.wait(waits, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
            if not self.ended.is_set():
                self.send("cut")
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
