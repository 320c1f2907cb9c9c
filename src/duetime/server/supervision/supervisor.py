"""The supervisor: holds the sockets, keeps N worker processes alive, rolls them, drains them, and asks them all.

It serves no client and opens no store, so there is little in it that could fail; should it end all the same, its
workers see that and drain.
"""

import asyncio
import logging
import socket
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from duetime.http.balance import ConnectionBalance
from duetime.metrics.ended_processes import METRICS, EndedProcesses
from duetime.metrics.siblings import WorkerReply
from duetime.model.errors import InvalidSettings
from duetime.model.settings import Settings
from duetime.server.entrances import addresses, bind_all, close_all, leave_all, rebind
from duetime.server.process import ENTRANCES
from duetime.server.supervision.control_channel import ControlLost
from duetime.server.supervision.program import Program, Start, Started, check_shared, count_workers, differ
from duetime.server.supervision.siblings import AskAll, Farewell
from duetime.server.supervision.signals import Signals
from duetime.server.supervision.systemd import Notifier
from duetime.server.supervision.worker_process import WorkerProcess
from duetime.server.supervision.worker_slot import WorkerSlot

log = logging.getLogger("duetime.supervision")


class Supervisor:
    """`run` returns when it was told to stop and all workers have ended."""

    def __init__(self, settings: Settings, workers: int, program: Program, notifier: Notifier) -> None:
        check_shared(settings)
        self._settings = settings
        self._program = program
        self._notifier = notifier
        self._ledger = EndedProcesses(settings.metrics_queues)
        self._sockets = bind_all(ENTRANCES, settings)
        self._balance = ConnectionBalance.create()
        self._worker_slots = [self._make_slot(number) for number in range(1, workers + 1)]
        self._slot_tasks: dict[WorkerSlot, asyncio.Task[None]] = {}
        self._signals = Signals(self._reopen_logs)

    def _make_slot(self, number: int) -> WorkerSlot:
        handlers = {"ask_all": self._ask_all, "workers": self._workers, "farewell": self._farewell}
        start = self._start(str(number), self._settings, self._sockets)
        return WorkerSlot(
            start,
            self._program.worker_command,
            handlers,
            ended=self._vacate,
            # A slot that asks has no worker of its own at that moment.
            others_serve=lambda: any(
                worker_slot.child and worker_slot.child.state == "ready" for worker_slot in self._worker_slots
            ),
        )

    def _vacate(self, child: WorkerProcess) -> None:
        """Forgets a worker that has ended."""
        if self._balance is not None:
            self._balance.vacate(child.start.slot)

    def _start(self, name: str, settings: Settings, sockets: dict[str, socket.socket]) -> Start:
        numbers = {entrance: sock.fileno() for entrance, sock in sockets.items()}
        return Start(name, settings, numbers, balance=self._balance.file if self._balance else 0)

    async def run(self) -> None:
        """Raises InvalidSettings when the first workers cannot serve with these settings."""
        alive = asyncio.create_task(self._notifier.keep_alive())
        try:
            self._keep(self._worker_slots)
            if await self._unless_stopped(self._wait_up()):
                self._tell_up()
                while await self._unless_stopped(self._signals.reload.wait()):
                    self._signals.reload.clear()
                    await self._unless_stopped(self._reload())
        finally:
            self._notifier.stopping()
            # We close ours first: the process that closes a socket last empties its queue, and that must be a worker.
            leave_all(ENTRANCES, self._sockets)
            await asyncio.gather(*(worker_slot.leave(self._signals.hurry) for worker_slot in self._worker_slots))
            await asyncio.gather(*self._slot_tasks.values())
            alive.cancel()

    async def _unless_stopped(self, work: Coroutine[Any, Any, object]) -> bool:
        """False if the signal came first; then the work is cancelled."""
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

    async def _wait_up(self) -> None:
        for worker_slot in self._worker_slots:
            await worker_slot.up.wait()
            if worker_slot.refusal:
                raise InvalidSettings(worker_slot.refusal)

    def _tell_up(self) -> None:
        children = [worker_slot.child for worker_slot in self._worker_slots if worker_slot.child is not None]
        problems = {name: text for child in children for name, text in child.problems.items()}
        where = addresses(ENTRANCES, self._sockets)
        self._program.announce(Started(self._settings, where, problems, len(self._worker_slots)))
        self._notifier.ready(f"{len(self._worker_slots)} workers")

    # --- settings that change

    async def _reload(self) -> None:
        self._notifier.reloading()
        try:
            await self._roll(self._program.read())
        except InvalidSettings as error:
            log.error("settings_refused", extra={"error": error.message})
        self._notifier.ready(f"{len(self._worker_slots)} workers")

    async def _roll(self, settings: Settings) -> None:
        """One worker after the other. Raises InvalidSettings, with the old settings in force everywhere."""
        if not differ(settings, self._settings):
            log.info("settings_unchanged")
            return
        check_shared(settings)
        if not differ(replace(settings, workers=self._settings.workers), self._settings):
            self._settings = settings
            await self._resize(count_workers(settings))
            return
        sockets = rebind(ENTRANCES, self._sockets, self._settings, settings)
        rolled: list[tuple[WorkerSlot, Start]] = []
        try:
            for worker_slot in self._worker_slots:
                before = worker_slot.start
                await worker_slot.replace(self._start(before.name, settings, sockets), hurry=self._signals.hurry)
                rolled.append((worker_slot, before))
                log.info("worker_replaced", extra={"worker": before.name})
        except InvalidSettings:
            for worker_slot, before in rolled:
                await self._put_back(worker_slot, before)
            close_all({name: sock for name, sock in sockets.items() if self._sockets.get(name) is not sock})
            raise
        close_all({name: sock for name, sock in self._sockets.items() if sockets.get(name) is not sock})
        self._settings, self._sockets = settings, sockets
        self._program.set_up_logging(settings)
        await self._resize(count_workers(settings))

    async def _put_back(self, worker_slot: WorkerSlot, start: Start) -> None:
        """A worker that cannot be replaced serves with the new settings until it ends; its successor has the old."""
        try:
            await worker_slot.replace(start, hurry=self._signals.hurry)
        except InvalidSettings as error:
            log.error("worker_not_replaced", extra={"worker": start.name, "error": error.message})
            worker_slot.start = start

    async def _resize(self, count: int) -> None:
        more = [self._make_slot(number) for number in range(len(self._worker_slots) + 1, count + 1)]
        fewer = self._worker_slots[count:]
        self._worker_slots = [*self._worker_slots[:count], *more]
        self._keep(more)
        await asyncio.gather(*(worker_slot.leave(self._signals.hurry) for worker_slot in fewer))
        log.info("settings_reloaded", extra={"workers": len(self._worker_slots)})

    # --- all workers together

    def _reopen_logs(self) -> None:
        self._program.reopen_logs()
        for worker_slot in self._worker_slots:
            if worker_slot.child is not None:
                worker_slot.child.tell("reopen_logs")

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
            self._ledger.heard(str(child.pid), answer)
        return WorkerReply(worker_slot.start.name, answer)

    async def _farewell(self, body: bytes) -> bytes:
        farewell = msgspec.msgpack.decode(body, type=Farewell)
        if farewell.pid in self._pids():  # the last report of a worker that has ended is kept already
            self._ledger.heard(str(farewell.pid), farewell.metrics)
        return b""

    def _pids(self) -> list[int]:
        return [pid for worker_slot in self._worker_slots for pid in worker_slot.pids]

    async def _workers(self, body: bytes) -> bytes:
        return msgspec.msgpack.encode([worker_slot.describe() for worker_slot in self._worker_slots])
