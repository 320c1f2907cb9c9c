"""A connection to Redis that many callers share.

Commands are sent as they come and answers come back in the same order, so that no caller waits for a free connection.
When a caller gives up, its answer is dropped on arrival. One timer watches the oldest answer that is missing; when its
deadline passes, or the connection ends, every waiting caller learns that the outcome is unknown.

hiredis parses the answers; the event loop's own transport does the rest. A driver's connection costs two to three times
as much per call, in layers that this store does not use.
"""

import asyncio
import re
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, cast

import hiredis
from redis._parsers import BaseParser
from redis.exceptions import ReadOnlyError, ResponseError

from duetime.stores.base import ResultSink

MAX_UNSENT = 64 * 1024 * 1024
AWAKE_S = 0.000_2
"""How long an event loop stays awake for the answer to a lone command. To wake it takes longer than Redis takes for a
short script, above all on a virtual machine whose processor halts meanwhile.
"""
ASLEEP = 31
"""After an answer that took longer, the loop sleeps while it waits for this many answers."""


Argument = str | bytes | int
Command = tuple[Argument, ...]

_LENGTHS = tuple(b"\r\n$%d\r\n" % length for length in range(4096))


def pack(command: Command) -> bytes:
    """A command in Redis's protocol. For hundreds of arguments this is several times faster than the drivers' own."""
    return b"*%d%b\r\n" % (len(command), pack_arguments(command))


def pack_arguments(arguments: Command) -> bytes:
    """A part of a packed command: each argument with its length before it."""
    encoded = [argument if type(argument) is bytes else str(argument).encode() for argument in arguments]
    lengths = [_LENGTHS[n] if (n := len(part)) < len(_LENGTHS) else b"\r\n$%d\r\n" % n for part in encoded]
    parts = [b""] * (2 * len(encoded))
    parts[0::2] = lengths
    parts[1::2] = encoded
    return b"".join(parts)


class Unsent(Exception):
    """Nothing reached Redis."""


class Lost(Exception):
    """The command was sent, or partly; its answer did not come."""


@dataclass(frozen=True)
class Login:
    """What a connection needs to be let in."""

    username: str | None = None
    password: str | None = None
    db: int = 0
    tls: ssl.SSLContext | None = None

    def commands(self) -> list[Command]:
        commands: list[Command] = []
        if self.password:
            commands.append(("AUTH", self.username, self.password) if self.username else ("AUTH", self.password))
        if self.db:
            commands.append(("SELECT", self.db))
        return commands


class Expected:
    """The answers that one caller waits for."""

    __slots__ = ("deadline", "future", "received", "wanted")

    def __init__(self, wanted: int, deadline: float, future: ResultSink[list[Any]]) -> None:
        self.wanted, self.deadline, self.future = wanted, deadline, future
        self.received: list[Any] = []


def read_error(text: str) -> Exception:
    """An error that Redis answers, as one of redis-py's classes; never raised, because it is one caller's answer."""
    error = cast(Callable[[str], Exception], BaseParser.parse_error)(text)  # pyright: ignore[reportUnknownMemberType]
    return error if isinstance(error, ResponseError) else ResponseError(text)


_WRAPPING_OF_REDIS_6 = re.compile(r"Error running script \(call to f_\w+\): (?:@?user_script: ?\d+: )*-?")


def first_word(error: ResponseError) -> str:
    """The code of an error, such as MISCONF; empty where redis-py has a class for it or Redis gives no code.

    Redis 6 wraps an error inside a script in text of its own. Only the first word counts, because names of queues and
    ids may follow it.
    """
    text = str(error)
    wrapping = _WRAPPING_OF_REDIS_6.match(text)
    word = text[wrapping.end() if wrapping else 0 :].partition(" ")[0]
    return word if word.isupper() else ""


def is_read_only(answer: object) -> bool:
    """Returns whether Redis refuses a write because it is a replica."""
    return isinstance(answer, ResponseError) and (isinstance(answer, ReadOnlyError) or first_word(answer) == "READONLY")


class Pipe(asyncio.Protocol):
    """A connection made by `dial`; it cannot be used again once it is closed."""

    def __init__(self, name: str, timeout_s: float) -> None:
        self._name, self._timeout_s = name, timeout_s
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(replyError=cast(Callable[[str], Exception], read_error))
        self._expected: deque[Expected] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self._poll = select.poll()
        self._asleep = 0
        self._transport: asyncio.Transport | None = None
        self.made_at = self._loop.time()
        self.is_closed = False

    @classmethod
    async def dial(cls, host: str, port: int, login: Login, timeout_s: float) -> "Pipe":
        """Connect and log in. Raises Unsent."""
        pipe = cls(f"{host}:{port}", timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.get_running_loop().create_connection(lambda: pipe, host, port, ssl=login.tls)
                await pipe.log_in(login)
        except (OSError, TimeoutError, Lost) as error:
            pipe.close()
            raise Unsent(f"{host}:{port}: {error or 'no answer in time'}") from error
        except BaseException:
            pipe.close()
            raise
        return pipe

    async def log_in(self, login: Login) -> None:
        for command in login.commands():
            [answer] = await self.send(pack(command))
            if isinstance(answer, Exception):
                raise Unsent(f"{self._name}: {answer}")

    async def send(self, packed: bytes, answers: int = 1) -> list[Any]:
        """Send packed commands and wait for the answers; errors that Redis answers are values. Raises Unsent, Lost."""
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        self.post(packed, answers, future)
        return await future

    def post(self, packed: bytes, answers: int, reply: ResultSink[list[Any]]) -> None:
        """Send packed commands; `reply` gets their answers, or Lost. Raises Unsent."""
        transport = self._transport
        if transport is None or self.is_closed or (not self._expected and self._has_ended()):
            raise Unsent(f"{self._name}: the connection has ended")
        if transport.get_write_buffer_size() > MAX_UNSENT:
            raise Unsent(f"{self._name}: Redis does not take what is sent")
        self._expected.append(Expected(answers, self._loop.time() + self._timeout_s, reply))
        transport.write(packed)
        if self._watch is None:
            self._watch = self._loop.call_later(self._timeout_s, self._check)

    def post_lone(self, packed: bytes, reply: ResultSink[list[Any]]) -> None:
        """As `post`, of one command whose caller is alone: the event loop does not sleep for a moment, so that the
        answer finds it awake.
        """
        self.post(packed, 1, reply)
        if self._asleep:
            self._asleep -= 1
        elif len(self._expected) == 1:
            self._loop.call_soon(self._stay_awake, self._expected[0], perf_counter() + AWAKE_S)

    def _stay_awake(self, expected: Expected, until: float) -> None:
        if not self._expected or self._expected[0] is not expected:
            return
        if perf_counter() < until:
            self._loop.call_soon(self._stay_awake, expected, until)
        else:
            self._asleep = ASLEEP

    def close(self) -> None:
        self._end(None)

    def retire(self) -> None:
        """Take no further commands, and close after the answers that are under way."""
        self.is_closed = True
        if not self._expected:
            self._end(None)

    def _has_ended(self) -> bool:
        """An idle connection that has something to read has ended, even if the event loop has not seen it yet."""
        if not self._poll.poll(0):
            return False
        self._end(None)
        return True

    def _check(self) -> None:
        self._watch = None
        if not self._expected:
            return
        left = self._expected[0].deadline - self._loop.time()
        if left <= 0:
            self._end(TimeoutError("no answer in time"))
        else:
            self._watch = self._loop.call_later(left, self._check)

    def _end(self, error: Exception | None) -> None:
        self.is_closed = True
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._transport is not None:
            self._transport.abort()
        while self._expected:
            future = self._expected.popleft().future
            if not future.done():
                future.set_exception(Lost(f"{self._name}: {error or 'the connection has ended'}"))

    # --- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = cast(socket.socket, transport.get_extra_info("socket"))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if transport.get_extra_info("sslcontext") is None:  # TLS sends data of its own on an idle connection
            self._poll.register(sock.fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        try:
            reader.feed(data)
            while (answer := reader.gets()) is not False:
                self._add_answer(answer)
        except (hiredis.ProtocolError, IndexError) as error:
            self._end(error)

    def _add_answer(self, answer: Any) -> None:
        expected = self._expected[0]
        expected.received.append(answer)
        if len(expected.received) == expected.wanted:
            self._expected.popleft()
            if not expected.future.done():
                expected.future.set_result(expected.received)
            if self.is_closed and not self._expected:
                self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)
