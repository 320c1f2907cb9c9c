"""The channel between a worker process and its supervisor: named requests with bytes in and bytes out, both ways.

Only the two processes hold the socket pair, so it closes when the other process is gone. A frame is its length in four
bytes and a msgpack array (kind, number, name, body). Belongs to one event loop.
"""

import asyncio
import logging
import socket
from enum import IntEnum

import msgspec

from duetime.metrics.siblings import Handler

log = logging.getLogger("duetime.supervision")

ANSWER_S = 5.0
MAX_FRAME = 256 * 1_048_576


class ControlLost(ConnectionError):
    """The other process has gone, or has not been able to answer."""


class FrameKind(IntEnum):
    ASK = 0
    ANSWER = 1
    FAILURE = 2


class ControlFrame(msgspec.Struct, array_like=True, frozen=True):
    """`number` matches an answer to its request."""

    kind: FrameKind
    number: int
    name: str
    body: bytes


_decode = msgspec.msgpack.Decoder(ControlFrame).decode
_encode = msgspec.msgpack.Encoder().encode


class Channel:
    """One end. `gone` is set when the other one has closed."""

    def __init__(self, sock: socket.socket) -> None:
        self.gone = asyncio.Event()
        self._socket = sock
        self._handlers: dict[str, Handler] = {}
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._number = 0
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    async def open(self) -> None:
        reader, self._writer = await asyncio.open_unix_connection(sock=self._socket)
        self._reading = asyncio.create_task(self._read(reader))

    async def close(self) -> None:
        for task in (self._reading, *self._answering):
            if task is not None:
                task.cancel()
        self._end()
        if self._writer is not None:
            self._writer.close()
        else:
            self._socket.close()

    def handle(self, name: str, handler: Handler) -> None:
        """Registers a handler. Its exceptions are logged here and raise ControlLost in the other process."""
        self._handlers[name] = handler

    async def ask(self, name: str, body: bytes = b"", *, within_s: float = ANSWER_S) -> bytes:
        """Raises ControlLost if no answer comes: the other process is gone, slow, or does not know the name."""
        if self.gone.is_set():
            raise ControlLost("the other process has gone")
        self._number += 1
        number = self._number
        self._waiting[number] = answer = asyncio.get_running_loop().create_future()
        self._send(ControlFrame(FrameKind.ASK, number, name, body))
        try:
            async with asyncio.timeout(within_s):
                return await answer
        except TimeoutError:
            raise ControlLost(f"no answer to {name} within {within_s} s") from None
        finally:
            del self._waiting[number]

    def send(self, name: str, body: bytes = b"") -> None:
        """Sends a request without waiting for the answer."""
        self._send(ControlFrame(FrameKind.ASK, 0, name, body))

    def _send(self, frame: ControlFrame) -> None:
        if self._writer is not None and not self.gone.is_set():
            data = _encode(frame)
            self._writer.write(len(data).to_bytes(4, "big") + data)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                if size > MAX_FRAME:
                    raise ControlLost(f"frame must have at most {MAX_FRAME} bytes, got {size}")
                self._received(_decode(await reader.readexactly(size)))
        except (asyncio.IncompleteReadError, OSError, msgspec.MsgspecError):
            self._end()

    def _end(self) -> None:
        self.gone.set()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ControlLost("the other process has gone"))

    def _received(self, frame: ControlFrame) -> None:
        if frame.kind is FrameKind.ASK:
            task = asyncio.create_task(self._answer(frame))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
            return
        answer = self._waiting.get(frame.number)
        if answer is None or answer.done():
            return
        if frame.kind is FrameKind.ANSWER:
            answer.set_result(frame.body)
        else:
            answer.set_exception(ControlLost(frame.body.decode(errors="replace")))

    async def _answer(self, ask: ControlFrame) -> None:
        handler = self._handlers.get(ask.name)
        kind, body = FrameKind.FAILURE, f"there is no handler for {ask.name}".encode()
        if handler is not None:
            try:
                kind, body = FrameKind.ANSWER, await handler(ask.body)
            except Exception as error:
                log.exception("control_failed", extra={"request": ask.name})
                body = type(error).__name__.encode()
        if ask.number:
            self._send(ControlFrame(kind, ask.number, ask.name, body))
