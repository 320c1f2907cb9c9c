"""One worker process, as its supervisor sees it, from its start to its end.

A fresh interpreter that inherits the listening sockets, and not a fork: it shares no locks, threads, random state or
open stores with the supervisor, and a replacement runs the code that is installed now.
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
"""A worker whose event loop stands still for so long is ended."""
KILL_S = 5.0
"""What a worker that was told to hurry has left."""


class WorkerProcess:
    """`settled`: it serves, or it will not. `served`: it was ready once. `refusal` is why it cannot serve with its
    settings, empty if it can.
    """

    def __init__(self, start: Start) -> None:
        self.start = start
        self.state = "starting"
        self.settled = asyncio.Event()
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
        """Raises OSError when there is no file, process or program for it; then it has ended."""
        try:
            await self._launch(command, handlers)
        except BaseException:
            await self._end()
            raise
        if self.state == "draining":  # it was told so before it could hear it
            self.tell("drain")

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

    def tell(self, name: str) -> None:
        if self._channel is not None:
            self._channel.tell(name)

    def drain(self) -> None:
        if self.state != "ended":
            self.state = "draining"
            self.tell("drain")

    def kill(self) -> None:
        if self._process is not None and not self.ended.is_set():
            self._process.kill()

    async def finish(self, hurry: asyncio.Event) -> None:
        """Drain for as long as its settings say, less if there is hurry; then cut, and killed if that does not help."""
        self.drain()
        grace_s = self.start.settings.drain_timeout.total_seconds() + KILL_S
        waits = [asyncio.create_task(self.ended.wait()), asyncio.create_task(hurry.wait())]
        try:
            await asyncio.wait(waits, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
            if not self.ended.is_set():
                self.tell("cut")
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
        self.settled.set()
        self.ended.set()
        if self._channel is not None:
            await self._channel.close()

    async def _watch(self, channel: Channel) -> None:
        """End the worker if its event loop stands still."""
        while not channel.gone.is_set():
            try:
                await channel.ask("ping", within_s=HUNG_S)
            except ControlLost:
                if not channel.gone.is_set():
                    log.error("worker_hung", extra={"worker": self.start.name, "pid": self.pid})
                    self.kill()
                return
            await asyncio.sleep(PING_EVERY_S)

    # --- what it says

    async def _start(self, body: bytes) -> bytes:
        return msgspec.msgpack.encode(self.start)

    async def _ready(self, body: bytes) -> bytes:
        self.problems = msgspec.msgpack.decode(body, type=dict[str, str])
        self.served = True
        if self.state == "starting":
            self.state = "ready"
        self.settled.set()
        return b""

    async def _refused(self, body: bytes) -> bytes:
        self.refusal = body.decode(errors="replace")
        return b""
