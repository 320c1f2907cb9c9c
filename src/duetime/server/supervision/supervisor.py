"""The supervisor: holds the sockets, keeps N worker processes running, replaces and drains them, and queries them.

It serves no client and opens no store, so little can fail in it. If it ends anyway, its workers notice and drain.
"""

import asyncio
import logging
import socket
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from duetime.http.balance import ConnectionBalance
from duetime.metrics.siblings import WorkerReply
from duetime.metrics.snapshots import METRICS, EndedProcesses
from duetime.model.errors import InvalidSettings
from duetime.model.settings import Settings
from duetime.server.listeners import addresses, bind_all, close_all, leave_all, rebind
from duetime.server.process import LISTENERS
from duetime.server.supervision.control_channel import ControlLost
from duetime.server.supervision.program import (
    Notifier,
    Program,
    SettingsFile,
    Signals,
    Start,
    Started,
    check_shared,
    count_workers,
    differ,
)
from duetime.server.supervision.siblings import AskAll, FinalReport
from duetime.server.supervision.worker_slot import WorkerSlot

log = logging.getLogger("duetime.supervision")


class Supervisor:
    """`run` returns after a stop signal, when all workers have ended."""

    def __init__(self, settings: Settings, workers: int, program: Program, notifier: Notifier) -> None:
        check_shared(settings)
        self._settings = settings
        self._program = program
        self._notifier = notifier
        self._ledger = EndedProcesses(settings.metrics_queues)
        self._sockets = bind_all(LISTENERS, settings)
        self._balance = ConnectionBalance.create()
        self._worker_slots = [self._make_slot(number) for number in range(1, workers + 1)]
        self._slot_tasks: dict[WorkerSlot, asyncio.Task[None]] = {}
        self._signals = Signals(self._reopen_logs)
        self._file = SettingsFile(program.file_version, self._signals.reload)

    def _make_slot(self, number: int) -> WorkerSlot:
        handlers = {"ask_all": self._ask_all, "workers": self._workers, "final_report": self._final_report}
        start = self._start(str(number), self._settings, self._sockets)
        return WorkerSlot(
            start,
            self._program.worker_command,
            handlers,
            ended=lambda child: self._balance.vacate(child.start.slot) if self._balance is not None else None,
            # A slot calls this while it has no worker.
            others_serve=lambda: any(slot.child and slot.child.state == "ready" for slot in self._worker_slots),
        )

    def _start(self, name: str, settings: Settings, sockets: dict[str, socket.socket]) -> Start:
        numbers = {listener: sock.fileno() for listener, sock in sockets.items()}
        return Start(name, settings, numbers, balance=self._balance.file if self._balance else 0)

    async def run(self) -> None:
        """Raises InvalidSettings when the first workers cannot serve with these settings."""
        tasks = [asyncio.create_task(self._notifier.keep_alive()), asyncio.create_task(self._file.follow())]
        try:
            self._keep(self._worker_slots)
            if await self._unless_stopped(self._wait_until_up()):
                self._announce()
                while await self._unless_stopped(self._signals.reload.wait()):
                    self._signals.reload.clear()
                    await self._unless_stopped(self._reload())
        finally:
            self._notifier.stopping()
            # Close ours first: the process that closes a socket last empties its queue, and that must be a worker.
            leave_all(LISTENERS, self._sockets)
            await asyncio.gather(*(worker_slot.leave(self._signals.abort) for worker_slot in self._worker_slots))
            await asyncio.gather(*self._slot_tasks.values())
            for task in tasks:
                task.cancel()

    async def _unless_stopped(self, work: Coroutine[Any, Any, object]) -> bool:
        """Returns False, and cancels the work, if a stop signal comes first."""
        task = asyncio.create_task(work)
        stop = asyncio.create_task(self._signals.stop.wait())
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        if self._signals.stop.is_set():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return False
        stop.cancel()
        task.result()
        return True

    def _keep(self, worker_slots: Sequence[WorkerSlot]) -> None:
        for worker_slot in worker_slots:
            self._slot_tasks[worker_slot] = asyncio.create_task(worker_slot.keep())

    async def _wait_until_up(self) -> None:
        for worker_slot in self._worker_slots:
            await worker_slot.up.wait()
            if worker_slot.refusal:
                raise InvalidSettings(worker_slot.refusal)

    def _announce(self) -> None:
        children = [worker_slot.child for worker_slot in self._worker_slots if worker_slot.child is not None]
        problems = {name: text for child in children for name, text in child.problems.items()}
        where = addresses(LISTENERS, self._sockets)
        self._program.announce(Started(self._settings, where, problems, len(self._worker_slots)))
        self._notifier.ready(f"{len(self._worker_slots)} workers")

    async def _reload(self) -> None:
        self._notifier.reloading()
        self._file.mark_read()
        try:
            await self._roll(self._program.read())
        except InvalidSettings as error:
            log.error("settings_refused", extra={"error": error.message})
        self._notifier.ready(f"{len(self._worker_slots)} workers")

    async def _roll(self, settings: Settings) -> None:
        """Replaces one worker after the other. On InvalidSettings the old settings stay in force everywhere."""
        if not differ(settings, self._settings):
            log.info("settings_unchanged")
            return
        check_shared(settings)
        if not differ(replace(settings, workers=self._settings.workers), self._settings):
            self._settings = settings
            await self._resize(count_workers(settings))
            return
        sockets = rebind(LISTENERS, self._sockets, self._settings, settings)
        rolled: list[tuple[WorkerSlot, Start]] = []
        try:
            for worker_slot in self._worker_slots:
                before = worker_slot.start
                await worker_slot.replace(self._start(before.name, settings, sockets), abort=self._signals.abort)
                rolled.append((worker_slot, before))
                log.info("worker_replaced", extra={"worker": before.name})
        except InvalidSettings:
            for worker_slot, before in rolled:
                try:
                    await worker_slot.replace(before, abort=self._signals.abort)
                except InvalidSettings as error:
                    # This worker keeps the new settings until it ends; its successor gets the old ones.
                    log.error("worker_not_replaced", extra={"worker": before.name, "error": error.message})
                    worker_slot.start = before
            close_all({name: sock for name, sock in sockets.items() if self._sockets.get(name) is not sock})
            raise
        close_all({name: sock for name, sock in self._sockets.items() if sockets.get(name) is not sock})
        self._settings, self._sockets = settings, sockets
        self._program.set_up_logging(settings)
        await self._resize(count_workers(settings))

    async def _resize(self, count: int) -> None:
        more = [self._make_slot(number) for number in range(len(self._worker_slots) + 1, count + 1)]
        fewer = self._worker_slots[count:]
        self._worker_slots = [*self._worker_slots[:count], *more]
        self._keep(more)
        await asyncio.gather(*(worker_slot.leave(self._signals.abort) for worker_slot in fewer))
        log.info("settings_reloaded", extra={"workers": len(self._worker_slots)})

    def _reopen_logs(self) -> None:
        self._program.reopen_logs()
        for worker_slot in self._worker_slots:
            if worker_slot.child is not None:
                worker_slot.child.send("reopen_logs")

    async def _ask_all(self, body: bytes) -> bytes:
        ask = msgspec.msgpack.decode(body, type=AskAll)
        answers = await asyncio.gather(*(self._ask(worker_slot, ask) for worker_slot in self._worker_slots))
        replies = [reply for reply in answers if reply is not None]
        if ask.name == METRICS:
            self._ledger.keep([str(pid) for pid in self._pids()])
            replies = [WorkerReply("", self._ledger.total())]
        return msgspec.msgpack.encode(replies)

    async def _ask(self, worker_slot: WorkerSlot, ask: AskAll) -> WorkerReply | None:
        child = worker_slot.child
        if child is None or child.state not in ("ready", "draining"):
            return None
        try:
            answer = await child.ask(ask.name, ask.body)
        except ControlLost:
            return None
        if ask.name == METRICS:
            self._ledger.record(str(child.pid), answer)
        return WorkerReply(worker_slot.start.name, answer)

    async def _final_report(self, body: bytes) -> bytes:
        report = msgspec.msgpack.decode(body, type=FinalReport)
        if report.pid in self._pids():  # the last report of a worker that has ended is kept already
            self._ledger.record(str(report.pid), report.metrics)
        return b""

    def _pids(self) -> list[int]:
        return [pid for worker_slot in self._worker_slots for pid in worker_slot.pids]

    async def _workers(self, body: bytes) -> bytes:
        return msgspec.msgpack.encode([worker_slot.describe() for worker_slot in self._worker_slots])
