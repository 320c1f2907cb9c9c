"""How a worker process queries all workers: through its supervisor, or only itself if there is none."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from duetime.http.balance import ConnectionBalance
from duetime.metrics.siblings import Handler, WorkerInfo, WorkerReply
from duetime.metrics.snapshots import METRICS, EndedProcesses
from duetime.server.supervision.control_channel import ANSWER_S, Channel, ControlLost


class AskAll(msgspec.Struct, array_like=True, frozen=True):
    """A request of a worker that the supervisor forwards to all workers."""

    name: str
    body: bytes


class FinalReport(msgspec.Struct, array_like=True, frozen=True):
    """A worker's message to its supervisor after its last request."""

    pid: int
    metrics: bytes


class Alone:
    """A server that is one process."""

    name = "1"
    balance: ConnectionBalance | None = None

    def __init__(self, ledger: EndedProcesses | None = None) -> None:
        """`ledger` holds the counts of this process from before a reload of its settings."""
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

    async def send_final_report(self) -> None:
        """Keeps the counts of a process that has served its last request."""
        if (counted := await self.answer(METRICS)) is not None:
            self._ledger.record(self.name, counted)
            self._ledger.keep(())

    async def workers(self) -> Sequence[WorkerInfo]:
        return [self._me]


class SiblingWorker:
    """A worker under a supervisor. If the supervisor does not answer, it answers for itself only."""

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
            # The supervisor waits ANSWER_S for each worker, so its own answer may take a little longer.
            answer = await self._channel.ask("ask_all", asked, within_s=ANSWER_S + 1)
        except ControlLost:
            return await self._alone.ask_all(name, body)
        return msgspec.msgpack.decode(answer, type=list[WorkerReply])

    async def send_final_report(self) -> None:
        """Sends the final counts of this process to the supervisor, which keeps them."""
        counted = await self._alone.answer(METRICS)
        if counted is not None:
            with suppress(ControlLost):
                await self._channel.ask("final_report", msgspec.msgpack.encode(FinalReport(os.getpid(), counted)))

    async def workers(self) -> Sequence[WorkerInfo]:
        try:
            return msgspec.msgpack.decode(await self._channel.ask("workers"), type=list[WorkerInfo])
        except ControlLost:
            return await self._alone.workers()
