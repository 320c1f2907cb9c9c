"""The crew: all worker processes of one server, as one of them sees it.

A part of a worker that has something to say about its process (its metrics, its health) registers a handler; whichever
worker is asked by a client then asks the whole crew:

    runtime.crew.handle("metrics", show_metrics)
    for reply in await runtime.crew.ask_all("metrics"): ...

A server of one process is a crew of one, and the same code serves it.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from duetime.api.balance import Balance
from duetime.api.metrics.ledger import METRICS, Ledger
from duetime.api.supervision.control import ANSWER_S, Channel, ControlLost, Handler


class Reply(msgspec.Struct, array_like=True, frozen=True):
    """`worker` is the worker's name, "1" to "N": the name of its place, which its replacement takes over."""

    worker: str
    body: bytes


class Worker(msgspec.Struct, array_like=True, frozen=True):
    """`restarts` counts unexpected ends in this place since the server's start; `started_at` is epoch milliseconds."""

    name: str
    pid: int
    state: str
    restarts: int
    started_at: int


class AskAll(msgspec.Struct, array_like=True, frozen=True):
    """What a worker asks its supervisor to ask everyone."""

    name: str
    body: bytes


class Farewell(msgspec.Struct, array_like=True, frozen=True):
    """What a worker tells its supervisor when it has served its last request."""

    pid: int
    metrics: bytes


class Crew(Protocol):
    name: str
    """This worker's own name."""
    balance: Balance | None
    """With whom it shares its clients; None if it has them all."""

    def handle(self, name: str, handler: Handler) -> None:
        """Answer requests of this name in this process."""
        ...

    async def ask_all(self, name: str, body: bytes = b"") -> Sequence[Reply]:
        """The answers of all workers that have one, this one included, in the order of their names."""
        ...

    async def workers(self) -> Sequence[Worker]: ...


class Alone:
    """A server that is one process."""

    name = "1"
    balance: Balance | None = None

    def __init__(self, ledger: Ledger | None = None) -> None:
        """`ledger` remembers what this process counted before its settings were reloaded."""
        self._ledger = ledger or Ledger()
        self._handlers: dict[str, Handler] = {}
        self._me = Worker(self.name, os.getpid(), "ready", 0, time.time_ns() // 1_000_000)

    def handle(self, name: str, handler: Handler) -> None:
        self._handlers[name] = handler

    async def ask_all(self, name: str, body: bytes = b"") -> Sequence[Reply]:
        answer = await self.answer(name, body)
        if answer is None:
            return []
        replies = [Reply(self.name, answer)]
        if name == METRICS and (past := self._ledger.past()):
            replies.append(Reply("", past))
        return replies

    async def answer(self, name: str, body: bytes = b"") -> bytes | None:
        handler = self._handlers.get(name)
        return await handler(body) if handler else None

    async def farewell(self) -> None:
        """Nobody is served any more; what was counted stays."""
        if (counted := await self.answer(METRICS)) is not None:
            self._ledger.heard(self.name, counted)
            self._ledger.keep(())

    async def workers(self) -> Sequence[Worker]:
        return [self._me]


class Member:
    """A worker under a supervisor. When that does not answer, a worker still speaks for itself."""

    def __init__(self, name: str, channel: Channel, *, balance: Balance | None = None) -> None:
        self.name = name
        self.balance = balance
        self._channel = channel
        self._alone = Alone()
        self._alone.name = name

    def handle(self, name: str, handler: Handler) -> None:
        self._alone.handle(name, handler)
        self._channel.handle(name, handler)

    async def ask_all(self, name: str, body: bytes = b"") -> Sequence[Reply]:
        asked = msgspec.msgpack.encode(AskAll(name, body))
        try:
            # The supervisor gives each worker its time, so it takes a little longer itself.
            answer = await self._channel.ask("ask_all", asked, within_s=ANSWER_S + 1)
        except ControlLost:
            return await self._alone.ask_all(name, body)
        return msgspec.msgpack.decode(answer, type=list[Reply])

    async def farewell(self) -> None:
        """Tell what this process counted to the end, so that it outlives it."""
        counted = await self._alone.answer(METRICS)
        if counted is not None:
            with suppress(ControlLost):
                await self._channel.ask("farewell", msgspec.msgpack.encode(Farewell(os.getpid(), counted)))

    async def workers(self) -> Sequence[Worker]:
        try:
            return msgspec.msgpack.decode(await self._channel.ask("workers"), type=list[Worker])
        except ControlLost:
            return await self._alone.workers()
