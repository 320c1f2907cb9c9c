"""The TCP server: connections, limits and the end of a conversation.

Requests of one connection are answered in their order, one at a time; those of different connections share store calls
by group commit. Bad lengths and bad JSON close the connection, after the replies to what came before. Only an idle
connection is closed for its age; the original cuts every one after 300 s.
"""

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from duetime.model.ids import IdMaker
from duetime.model.logs import REQUEST_ID
from duetime.protocols.tcp.commands import FAILED, Commands
from duetime.protocols.tcp.frames import BadFrame, Frames, frame

log = logging.getLogger("duetime.protocols.tcp")

CHUNK = 65_536
BACKLOG = 5000


class CommandLog(Protocol):
    """Where a line per request goes, if anywhere."""

    def command(self, name: str, *, ip: str, done: bool, elapsed_s: float) -> None: ...


@dataclass(frozen=True)
class TcpOptions:
    connections: int = 2000
    idle_s: float = 300.0
    tls: ssl.SSLContext | None = None
    access_log: CommandLog | None = None


class TcpServer:
    """Serves the sockets that it was made with, between `start` and `stop`."""

    def __init__(self, commands: Commands, sockets: Sequence[socket.socket], options: TcpOptions | None = None) -> None:
        self._commands = commands
        self._sockets = sockets
        self._options = options or TcpOptions()
        self._servers: list[asyncio.Server] = []
        self._talks: dict[asyncio.Task[None], asyncio.Event] = {}
        """The conversations under way; the event is set while one waits for a request."""
        self._draining = False
        self._make_id = IdMaker().make

    async def start(self) -> None:
        self._servers = [
            await asyncio.start_server(self._talk, sock=sock, ssl=self._options.tls, limit=CHUNK, backlog=BACKLOG)
            for sock in self._sockets
        ]

    async def stop(self, grace_s: float) -> None:
        """Requests that have arrived are answered; then, or when the time is up, connections are closed."""
        self._draining = True
        for server in self._servers:
            server.close()
        for talk, is_idle in list(self._talks.items()):
            if is_idle.is_set():
                talk.cancel()
        if self._talks:
            _, late = await asyncio.wait(self._talks, timeout=grace_s)
            for talk in late:
                talk.cancel()
            if late:
                await asyncio.wait(late)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        is_idle = asyncio.Event()
        REQUEST_ID.set(self._make_id())  # the protocol has no ids: the lines of one conversation belong together
        try:
            if len(self._talks) >= self._options.connections or self._draining:
                log.warning("too_many_connections", extra={"limit": self._options.connections})
                return
            self._talks[task] = is_idle
            await self._converse(reader, writer, is_idle)
        except TimeoutError:
            log.info("conversation_ended", extra={"error": "idle"})
            writer.transport.abort()  # a close would wait for a client that does not read
        except (BadFrame, OSError) as error:
            log.info("conversation_ended", extra={"error": str(error) or type(error).__name__})
        except asyncio.CancelledError:
            if not self._draining:
                raise
        finally:
            self._talks.pop(task, None)
            writer.close()

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_idle: asyncio.Event
    ) -> None:
        frames = Frames()
        while not self._draining:
            is_idle.set()
            async with asyncio.timeout(self._options.idle_s):
                data = await reader.read(CHUNK)
            is_idle.clear()
            if not data:
                return
            for text in frames.feed(data):
                began = time.perf_counter()
                request = _decode(text)
                answer = await self._commands.answer(request)
                self._note(request, answer, writer, time.perf_counter() - began)
                if answer is not None:
                    writer.write(_framed(answer))
                    async with asyncio.timeout(
                        self._options.idle_s
                    ):  # a client that sends and never reads counts as idle
                        await writer.drain()

    def _note(
        self, request: dict[str, Any], answer: dict[str, Any] | None, writer: asyncio.StreamWriter, elapsed_s: float
    ) -> None:
        if self._options.access_log is not None:
            peer: tuple[str, int] | None = writer.get_extra_info("peername")
            done = answer is not None and bool(answer["code"])
            name = str(request.get("cmd"))[:40]
            self._options.access_log.command(name, ip=peer[0] if peer else "", done=done, elapsed_s=elapsed_s)


def _decode(text: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(f"not a JSON object: {error}") from None


def _framed(answer: dict[str, Any]) -> bytes:
    """A body that another protocol took may not fit into a frame."""
    try:
        return frame(answer)
    except OverflowError as error:
        log.warning("reply_does_not_fit", extra={"error": str(error)})
        return frame(FAILED)
