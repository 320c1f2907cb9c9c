"""How a worker process reaches its siblings: alone, or through its supervisor."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from duetime.http.balance import ConnectionBalance
from duetime.metrics.ended_processes import METRICS, EndedProcesses
from duetime.metrics.siblings import Handler, WorkerInfo, WorkerReply
from duetime.server.supervision.control_channel import ANSWER_S, Channel, ControlLost


class AskAll(msgspec.Struct, array_like=True, frozen=True):
    """What a worker asks its supervisor to ask everyone."""

    name: str
    body: bytes


class Farewell(msgspec.Struct, array_like=True, frozen=True):
    """What a worker tells its supervisor when it has served its last request."""

    pid: int
    metrics: bytes


class Alone:
    """A server that is one process."""

    name = "1"
    balance: ConnectionBalance | None = None

    def __init__(self, ledger: EndedProcesses | None = None) -> None:
        """`ledger` remembers what this process counted before its settings were reloaded."""
        self._ledger = ledger or EndedProcesses()
        self._handlers: dict[str, Handler] = {}
        self._me = WorkerInfo(self.name, os.getpid(), "ready", 0, time.time_ns() // 1_000_000)

    def handle(self, name: str, handler: Handler) -> None:
        self._handlers[name] = handler

    async def ask_all(self, name: str, body: bytes = b"") -> Sequence[WorkerReply]:
        answer = await self.answer(name, body)
        if answer is None:
            return []
        replies = [WorkerReply(self.name, answer)]
        if name == METRICS and (past := self._ledger.past()):
            replies.append(WorkerReply("", past))
        return replies

    async def answer(self, name: str, body: bytes = b"") -> bytes | None:
        handler = self._handlers.get(name)
        return await handler(body) if handler else None

    async def farewell(self) -> None:
        """Keeps the counts of a process that has served its last request."""
        if (counted := await self.answer(METRICS)) is not None:
            self._ledger.heard(self.name, counted)
            self._ledger.keep(())

    async def workers(self) -> Sequence[WorkerInfo]:
        return [self._me]


class SiblingWorker:
    """A worker under a supervisor. When that does not answer, a worker still speaks for itself."""

    def __init__(self, name: str, channel: Channel, *, balance: ConnectionBalance | None = None) -> None:
        self.name = name
        self.balance = balance
        self._channel = channel
        self._alone = Alone()
        self._alone.name = name

    def handle(self, name: str, handler: Handler) -> None:
        self._alone.handle(name, handler)
        self._channel.handle(name, handler)

    async def ask_all(self, name: str, body: bytes = b"") -> Sequence[WorkerReply]:
        asked = msgspec.msgpack.encode(AskAll(name, body))
        try:
            # The supervisor gives each worker its time, so it takes a little longer itself.
            answer = await self._channel.ask("ask_all", asked, within_s=ANSWER_S + 1)
        except ControlLost:
            return await self._alone.ask_all(name, body)
        return msgspec.msgpack.decode(answer, type=list[WorkerReply])

    async def farewell(self) -> None:
        """Sends the final counts of this process to the supervisor, which keeps them."""
        counted = await self._alone.answer(METRICS)
        if counted is not None:
            with suppress(ControlLost):
                await self._channel.ask("farewell", msgspec.msgpack.encode(Farewell(os.getpid(), counted)))

    async def workers(self) -> Sequence[WorkerInfo]:
        try:
            return msgspec.msgpack.decode(await self._channel.ask("workers"), type=list[WorkerInfo])
        except ControlLost:
            return await self._alone.workers()
