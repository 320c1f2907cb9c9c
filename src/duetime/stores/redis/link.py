"""Connections to Redis: sending packed commands to the right node, and knowing what became of them.

redis-py makes the connections (handshake, TLS, parsing by hiredis); this module lends them out, puts a deadline on
every wait, follows a Cluster's or a Sentinel's redirections, and tells a command that was never sent from one whose
answer was lost. Only the first may be repeated without asking; the second only where the caller says that a repetition
does no harm.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, cast

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as DriverConnectionError

from duetime.errors import StoreUnavailable

Argument = str | bytes | int
Command = tuple[Argument, ...]

PAUSES_S = (0.0, 0.05, 0.2)
"""Before each repetition of a command; then the caller is told."""
RESUBSCRIBE_PAUSES_S = (0.02, 0.1, 0.3, 1.0)
IDLE_S = 5.0
"""A subscription that hears nothing for this long asks whether anybody is there."""


class Wire(Protocol):
    """What is used of redis-py's connection."""

    async def connect(self) -> None: ...
    async def disconnect(self, nowait: bool = False) -> None: ...
    async def send_packed_command(self, command: list[bytes], check_health: bool = True) -> None: ...
    async def read_response(
        self, disable_decoding: bool = False, timeout: float | None = None, *, disconnect_on_error: bool = True
    ) -> Any: ...
    @property
    def is_connected(self) -> bool: ...


Dial = Callable[[str, int], Wire]
_has_unread = cast(
    Callable[[Wire], Any], getattr(AbstractConnection, "can_read", None) or AbstractConnection.can_read_destructive
)


class Unsent(Exception):
    """Nothing reached Redis."""


class Lost(Exception):
    """The command was sent, or partly; its answer did not come."""


_LENGTHS = tuple(b"\r\n$%d\r\n" % length for length in range(4096))


def pack(command: Command) -> bytes:
    """A command as it goes over the wire. Several times faster than the drivers' own for hundreds of arguments."""
    encoded = [argument if type(argument) is bytes else str(argument).encode() for argument in command]
    lengths = [_LENGTHS[n] if (n := len(part)) < 4096 else b"\r\n$%d\r\n" % n for part in encoded]
    parts = [b""] * (2 * len(encoded))
    parts[0::2] = lengths
    parts[1::2] = encoded
    return b"*%d%b\r\n" % (len(encoded), b"".join(parts))


class Node:
    """One Redis server and the connections to it."""

    def __init__(self, host: str, port: int, dial: Dial, *, limit: int, timeout_s: float) -> None:
        self.host, self.port = host, port
        self._dial, self._timeout_s = dial, timeout_s
        self._free: deque[Wire] = deque()
        self._room = asyncio.Semaphore(limit)

    async def run(self, packed: bytes, answers: int = 1) -> list[Any]:
        """Send commands in one piece and read as many answers; errors that Redis answers are values."""
        wire = await self._take()
        try:
            async with asyncio.timeout(self._timeout_s):
                await wire.send_packed_command([packed], check_health=False)
                received = [await _read(wire) for _ in range(answers)]
        except (RedisError, OSError, TimeoutError) as error:
            await wire.disconnect(nowait=True)
            raise Lost(f"{self.host}:{self.port}: {error or 'no answer in time'}") from error
        except BaseException:
            # Cancelled: the answer may still be on its way, and must not become another command's.
            await wire.disconnect(nowait=True)
            raise
        finally:
            self._room.release()
        self._free.append(wire)
        return received

    async def open(self) -> Wire:
        """A connection of the caller's own."""
        wire = self._dial(self.host, self.port)
        try:
            async with asyncio.timeout(self._timeout_s):
                await wire.connect()
        except (RedisError, OSError, TimeoutError) as error:
            await wire.disconnect(nowait=True)
            raise Unsent(f"{self.host}:{self.port}: {error or 'no answer in time'}") from error
        except BaseException:
            await wire.disconnect(nowait=True)
            raise
        return wire

    async def close(self) -> None:
        while self._free:
            await self._free.pop().disconnect()

    async def _take(self) -> Wire:
        if self._room.locked():
            await self._wait_for_room()
        else:
            await self._room.acquire()
        try:
            while self._free:
                wire = self._free.pop()
                # Redis may have closed it meanwhile, which shows as something to read.
                if wire.is_connected and not await _has_unread(wire):
                    return wire
                await wire.disconnect(nowait=True)
            return await self.open()
        except BaseException:
            self._room.release()
            raise

    async def _wait_for_room(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._room.acquire()
        except TimeoutError as error:
            raise Unsent(f"{self.host}:{self.port}: all connections are busy") from error


async def _read(wire: Wire) -> Any:
    try:
        return await wire.read_response(disable_decoding=True)
    except BusyLoadingError as error:
        return ResponseError(f"LOADING {error}")
    except DriverConnectionError:
        raise
    except ResponseError as error:
        return error


class Topology(Protocol):
    """Which node has a key. `renew` after a failure, `moved` after a redirection."""

    async def node(self, key: Argument) -> Node: ...
    async def any_node(self) -> Node: ...
    async def renew(self, failed: Node | None) -> None: ...
    def moved(self, error: MovedError) -> None: ...
    def at(self, host: str, port: int) -> Node: ...
    async def close(self) -> None: ...


class Link:
    """Commands to wherever their keys are."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    async def call(self, key: Argument, command: Command, *, again: bool) -> Any:
        """One command; answers of Redis that are errors come back as values, except those that are about where it was
        sent.

        `again`: a repetition does no harm, so a lost answer is worth one. Raises StoreUnavailable.
        """
        packed, problem = pack(command), ""
        for pause_s in (*PAUSES_S, None):
            node = None
            try:
                node = await self._topology.node(key)
                answer = (await node.run(packed))[0]
                if isinstance(answer, AskError):
                    answer = await self._ask(answer, packed)
                if not _is_misdirected(answer):
                    return answer
                problem = str(answer)
            except Unsent as error:
                answer, problem = None, str(error)
            except Lost as error:
                if not again:
                    raise StoreUnavailable(f"no answer from Redis at {error}", unknown=True) from error
                answer, problem = None, str(error)
            if pause_s is None:
                break
            await self._redirect(answer, node, pause_s)
        raise StoreUnavailable(f"Redis cannot be reached: {problem}", unknown=False)

    async def many(self, commands: Sequence[tuple[Argument, Command]], *, again: bool = True) -> list[Any]:
        """Commands by key, in one round trip per node. For what may be repeated, unless `again` is False."""
        groups: dict[Node, list[int]] = {}
        try:
            for index, (key, _) in enumerate(commands):
                groups.setdefault(await self._topology.node(key), []).append(index)
        except Unsent:
            return [await self.call(key, command, again=again) for key, command in commands]
        answers: list[Any] = [None] * len(commands)
        runs = [self._run_group(node, commands, indexes, answers, again) for node, indexes in groups.items()]
        if len(runs) == 1:
            await runs[0]
        else:
            await asyncio.gather(*runs)
        return answers

    async def subscribe(self, channel: str) -> AsyncIterator[bytes | None]:
        """Messages of a channel, and None after each (re)subscription: before it some may have been missed."""
        failures = 0
        while True:
            node = None
            try:
                node = await self._topology.any_node()
                wire = await node.open()
                try:
                    await wire.send_packed_command([pack(("SUBSCRIBE", channel))], check_health=False)
                    async for message in _messages(wire):
                        failures = 0
                        yield message
                finally:
                    await wire.disconnect(nowait=True)
            except (Unsent, RedisError, OSError, TimeoutError):
                await asyncio.sleep(RESUBSCRIBE_PAUSES_S[min(failures, len(RESUBSCRIBE_PAUSES_S) - 1)])
                failures += 1
                await self._renew(node)

    async def close(self) -> None:
        await self._topology.close()

    async def _run_group(
        self,
        node: Node,
        commands: Sequence[tuple[Argument, Command]],
        indexes: list[int],
        answers: list[Any],
        again: bool,
    ) -> None:
        try:
            received = await node.run(b"".join([pack(commands[index][1]) for index in indexes]), len(indexes))
        except Lost as error:
            if not again:
                raise StoreUnavailable(f"no answer from Redis at {error}", unknown=True) from error
            received = [None] * len(indexes)
            misdirected = indexes
        except Unsent:
            received = [None] * len(indexes)
            misdirected = indexes
        else:
            misdirected = [index for index, answer in zip(indexes, received, strict=True) if _is_misdirected(answer)]
        for index, answer in zip(indexes, received, strict=True):
            answers[index] = answer
        for index in misdirected:
            answers[index] = await self.call(*commands[index], again=again)

    async def _ask(self, error: AskError, packed: bytes) -> Any:
        """The slot is on its way to another node, and this key is there already."""
        node = self._topology.at(*target(error))
        return (await node.run(pack(("ASKING",)) + packed, 2))[1]

    async def _redirect(self, answer: Any, node: Node | None, pause_s: float) -> None:
        if isinstance(answer, MovedError):
            self._topology.moved(answer)
        else:
            await asyncio.sleep(pause_s)
            await self._renew(node)

    async def _renew(self, failed: Node | None) -> None:
        with suppress(Unsent, Lost):  # the next attempt says what is wrong
            await self._topology.renew(failed)


def target(error: AskError) -> tuple[str, int]:
    """Where a redirection points to."""
    return str(error.host), int(error.port)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def _is_misdirected(answer: Any) -> bool:
    """True for errors that say: nothing was done, try elsewhere or a little later."""
    if not isinstance(answer, ResponseError):
        return False
    if isinstance(answer, (MovedError, AskError, TryAgainError, ClusterDownError, ReadOnlyError, MasterDownError)):
        return True
    text = str(answer)
    return text.startswith("LOADING") or "READONLY" in text


async def _messages(wire: Wire) -> AsyncIterator[bytes | None]:
    asked = False
    while True:
        message = await wire.read_response(disable_decoding=True, timeout=IDLE_S, disconnect_on_error=False)
        if message is None:
            if asked:
                raise TimeoutError
            asked = True
            await wire.send_packed_command([pack(("PING",))], check_health=False)
            continue
        asked = False
        if message[0] == b"subscribe":
            yield None
        elif message[0] == b"message":
            yield message[2]
