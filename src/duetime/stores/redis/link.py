"""Connections to Redis: sending packed commands to the right node, and knowing what became of them.

Commands go through `pipe.py`, subscriptions over redis-py's connections. This module follows the
redirections of a Cluster or a Sentinel, and repeats what may be repeated: a command that was never sent always, one
whose answer was lost only where the caller says that a repetition does no harm. However many attempts a call makes,
none begins once the call has taken as long as Redis may take for an answer.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from redis.exceptions import (
    AskError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from duetime.model.backoff import Listed, Outage
from duetime.model.errors import StoreUnavailable
from duetime.stores.redis.pipe import Argument, Command, Login, Lost, Pipe, Unsent, first_word, is_read_only, pack

PAUSES_S = (0.0, 0.05, 0.2)
"""The pause before each repetition of a command. When all have failed, the caller gets the error."""
RESUBSCRIBE = Listed((20, 100, 300, 1000))
CLOSE_TIMEOUT_S = 0.5
REDIAL_S = 1.0
"""A connection to a replica is kept for this long, so that a server that stays a replica gets few new ones."""
IDLE_S = 5.0
"""A subscription that receives nothing for this long sends a PING, and ends if nothing comes back."""


class RedisWire(Protocol):
    """The part of redis-py's connection that is used here."""

    async def connect(self) -> None: ...
    async def disconnect(self, nowait: bool = False) -> None: ...
    async def send_packed_command(self, command: list[bytes], check_health: bool = True) -> None: ...
    async def read_response(
        self, disable_decoding: bool = False, timeout: float | None = None, *, disconnect_on_error: bool = True
    ) -> Any: ...
    @property
    def is_connected(self) -> bool: ...


Dial = Callable[[str, int], RedisWire]


class RedisNode:
    """One Redis server: a pipe for commands, and connections of their own for subscriptions."""

    def __init__(self, host: str, port: int, dial: Dial, *, login: Login, timeout_s: float) -> None:
        self.host, self.port = host, port
        self._dial, self._login, self._timeout_s = dial, login, timeout_s
        self._pipe: Pipe | None = None
        self._dialling = asyncio.Lock()
        self.failovers = 0
        """How often this address led to a replica. Subscriptions that were made before the last time are made anew."""

    async def run(self, packed: bytes, answers: int = 1) -> list[Any]:
        """Send packed commands and wait for `answers` answers; errors that Redis answers are values."""
        pipe = self._pipe
        if pipe is not None and not pipe.is_closed:
            try:
                return self._checked(await pipe.send(packed, answers), pipe)
            except Unsent:
                pass  # the connection ended while it was idle
        try:
            async with asyncio.timeout(self._timeout_s):  # many callers may wait here for the same connection
                pipe = await self._connect()
        except TimeoutError as error:
            raise Unsent(f"{self.host}:{self.port}: no answer in time") from error
        return self._checked(await pipe.send(packed, answers), pipe)

    def _checked(self, answers: list[Any], pipe: Pipe) -> list[Any]:
        """Give up the connections to a server that became a replica: new ones may lead to the new primary."""
        is_old = pipe.made_at < asyncio.get_running_loop().time() - REDIAL_S
        if is_old and not pipe.is_closed and any(map(is_read_only, answers)):
            pipe.retire()
            self.failovers += 1
        return answers

    async def _connect(self) -> Pipe:
        async with self._dialling:
            if self._pipe is None or self._pipe.is_closed:
                self._pipe = await Pipe.dial(self.host, self.port, self._login, self._timeout_s)
            return self._pipe

    @property
    def open_pipe(self) -> Pipe | None:
        return None if self._pipe is None or self._pipe.is_closed else self._pipe

    async def open(self) -> RedisWire:
        """Open a connection that only the caller uses."""
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
        if self._pipe is not None:
            self._pipe.close()
            await asyncio.sleep(0)  # the loop closes the socket in its next round


class Topology(Protocol):
    """Knows which node has a key. `renew` is called after a failure, `moved` after a redirection. `only` is the node
    that has all keys, None if there may be several.
    """

    @property
    def only(self) -> RedisNode | None: ...
    async def node(self, key: Argument) -> RedisNode: ...
    async def any_node(self) -> RedisNode: ...
    async def renew(self, failed: RedisNode | None) -> None: ...
    def moved(self, error: MovedError) -> None: ...
    def at(self, host: str, port: int) -> RedisNode: ...
    async def close(self) -> None: ...


class Fate:
    """What is known about a request over all its attempts: once an answer `is_lost`, the request may have taken effect,
    whatever the later attempts say.
    """

    __slots__ = ("is_lost",)

    def __init__(self) -> None:
        self.is_lost = False


class Link:
    """Sends commands to the nodes that have their keys."""

    def __init__(self, topology: Topology, timeout_s: float) -> None:
        self._topology, self._timeout_s = topology, timeout_s

    async def call(self, key: Argument, command: Command, *, again: bool) -> Any:
        """Send one command. An error that Redis answers is returned as a value, unless it says that the command went to
        the wrong node or too early; then it is sent again.

        `again` says that a repetition does no harm; only then is the command repeated when its answer was lost. Raises
        StoreUnavailable.
        """
        return await self.call_packed(key, pack(command), again=again)

    async def call_packed(self, key: Argument, packed: bytes, *, again: bool, fate: Fate | None = None) -> Any:
        """As `call`, for a packed command. `fate` notes lost answers over several commands for one request."""
        attempt = _Attempt([(key, packed)], again=again)
        [answer] = await self._finish(attempt)
        if fate is not None and attempt.lost:
            fate.is_lost = True
        if not isinstance(answer, StoreUnavailable):
            return answer
        raise answer.after_a_loss() if fate is not None and fate.is_lost else answer

    async def many(self, commands: Sequence[tuple[Argument, Command]], *, again: bool = True) -> list[Any]:
        """Send commands, each with its key, in one round trip per node. Each has its own answer: that of Redis, even
        if it is an error, or StoreUnavailable.
        """
        return await self._finish(_Attempt([(key, pack(command)) for key, command in commands], again=again))

    async def _finish(self, attempt: "_Attempt") -> list[Any]:
        """Send commands until they have their answers, or for as long as Redis may take for one."""
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        for pause_s in (*PAUSES_S, None):
            await self._run_all(attempt)
            if not attempt.left or pause_s is None:
                break
            for answer in attempt.redirections():
                self._topology.moved(answer)
            if attempt.failed_at:
                await asyncio.sleep(pause_s)
                await self._renew(attempt.failed_at[0])
            if asyncio.get_running_loop().time() >= deadline:
                break
        return attempt.finish()

    async def subscribe(self, channel: str) -> AsyncIterator[bytes | None]:
        """Messages of a channel, and None after each (re)subscription: messages before it may have been missed."""
        outage = Outage(RESUBSCRIBE)
        while True:
            node = None
            try:
                node = await self._topology.any_node()
                wire = await node.open()
                try:
                    await wire.send_packed_command([pack(("SUBSCRIBE", channel))], check_health=False)
                    async for message in _messages(node, wire):
                        outage.worked()
                        yield message
                finally:
                    await _disconnect(wire)
            except (Unsent, RedisError, OSError, TimeoutError):
                outage.failed()
                await asyncio.sleep(outage.pause_s)
                await self._renew(node)

    @property
    def only_pipe(self) -> Pipe | None:
        """The open connection to the one Redis there is; None without one, or if there are several."""
        node = self._topology.only
        return None if node is None else node.open_pipe

    async def close(self) -> None:
        await self._topology.close()

    async def _run_all(self, attempt: "_Attempt") -> None:
        """Send what is left, in one round trip per node at the same time."""
        groups: dict[RedisNode, list[int]] = {}
        left, attempt.left, attempt.failed_at = attempt.left, [], []
        for index in left:
            try:
                node = await self._topology.node(attempt.commands[index][0])
            except Unsent as error:
                attempt.fail(left, error, None)
                return
            groups.setdefault(node, []).append(index)
        runs = [self._run_group(attempt, node, indexes) for node, indexes in groups.items()]
        if len(runs) == 1:
            await runs[0]
        else:
            await asyncio.gather(*runs)

    async def _run_group(self, attempt: "_Attempt", node: RedisNode, indexes: list[int]) -> None:
        packed = {index: attempt.commands[index][1] for index in indexes}
        try:
            received = await node.run(b"".join(packed.values()), len(indexes))
            for index, answer in zip(indexes, received, strict=True):
                asked = await self._ask(answer, packed[index]) if isinstance(answer, AskError) else answer
                attempt.add(index, asked, node)
        except (Unsent, Lost) as error:
            attempt.fail([index for index in indexes if not attempt.has(index)], error, node)

    async def _ask(self, error: AskError, packed: bytes) -> Any:
        """Send a command to the node to which its slot is moving, because its key is there already."""
        node = self._topology.at(*target(error))
        return (await node.run(pack(("ASKING",)) + packed, 2))[1]

    async def _renew(self, failed: RedisNode | None) -> None:
        with suppress(Unsent, Lost):  # the next attempt says what is wrong
            await self._topology.renew(failed)


class _Attempt:
    """Packed commands that go out together, each with its key: which have their answers, which are to be sent again,
    and what went wrong. `again` says that a command may be repeated when its answer was lost.
    """

    def __init__(self, commands: Sequence[tuple[Argument, bytes]], *, again: bool) -> None:
        self.commands, self._again = commands, again
        self.left = list(range(len(commands)))
        self.failed_at: list[RedisNode | None] = []
        self.problem = ""
        self._answers: dict[int, Any] = {}
        self.lost: set[int] = set()

    def has(self, index: int) -> bool:
        return index in self._answers

    def add(self, index: int, answer: Any, node: RedisNode) -> None:
        self._answers[index] = answer
        if _is_misdirected(answer):
            self.left.append(index)
            self.problem = str(answer)
            if not isinstance(answer, MovedError):
                self.failed_at.append(node)

    def fail(self, indexes: list[int], error: Unsent | Lost, node: RedisNode | None) -> None:
        self.problem = str(error)
        self.failed_at.append(node)
        if isinstance(error, Lost):
            self.lost.update(indexes)
        if isinstance(error, Lost) and not self._again:
            lost = StoreUnavailable(f"no answer from Redis at {error}", unknown=True)
            self._answers.update(dict.fromkeys(indexes, lost))
        else:
            self.left += indexes

    def redirections(self) -> list[MovedError]:
        """The redirections among the answers. Removes the answers of all commands that are to be sent again."""
        answers = [self._answers.pop(index, None) for index in self.left]
        return [answer for answer in answers if isinstance(answer, MovedError)]

    def finish(self) -> list[Any]:
        for index in self.left:
            unknown = index in self.lost
            self._answers[index] = StoreUnavailable(f"Redis cannot be reached: {self.problem}", unknown=unknown)
        return [self._answers[index] for index in range(len(self.commands))]


def target(error: AskError) -> tuple[str, int]:
    """Where a redirection points to."""
    return str(error.host), int(error.port)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def _is_misdirected(answer: Any) -> bool:
    """Returns True for errors that say: nothing was done, try elsewhere or a little later."""
    if not isinstance(answer, ResponseError):
        return False
    if isinstance(answer, (MovedError, AskError, TryAgainError, ClusterDownError, ReadOnlyError, MasterDownError)):
        return True
    return first_word(answer) in {"LOADING", "READONLY"}


async def _disconnect(wire: RedisWire) -> None:
    """Wait for the close: over TLS both sides take part, and a loop that ends before that leaves the socket open."""
    with suppress(TimeoutError, RedisError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await wire.disconnect()


async def _messages(node: RedisNode, wire: RedisWire) -> AsyncIterator[bytes | None]:
    """Ends after a failover of the node."""
    asked, failovers = False, node.failovers
    while node.failovers == failovers:
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
