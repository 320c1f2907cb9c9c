"""Runs a server: one process without a supervisor, or a supervisor with several.

A server of one process reloads settings in the same process: it drains, closes and rebuilds everything but the sockets.
Clients that connect meanwhile wait in the sockets' queues.
"""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from duetime.metrics.snapshots import EndedProcesses
from duetime.model.errors import InvalidSettings
from duetime.model.masking import mask
from duetime.model.settings import Settings
from duetime.server.apps import Runtime
from duetime.server.listeners import addresses, bind_all, close_all, leave_all, rebind
from duetime.server.process import LISTENERS, run, serve
from duetime.server.supervision.program import (
    Notifier,
    Orders,
    Program,
    SettingsFile,
    Signals,
    Started,
    count_workers,
    differ,
)
from duetime.server.supervision.siblings import Alone
from duetime.server.supervision.supervisor import Supervisor

log = logging.getLogger("duetime.supervision")

JOIN_S = 1.0


def run_server(settings: Settings, program: Program) -> None:
    """Serves until it is stopped. Raises InvalidSettings if it cannot start with these settings."""
    notifier = Notifier(os.environ)
    workers = count_workers(settings)
    with pid_file(settings.pid_file):
        if workers == 1:
            run(_started(lambda: SingleProcess(settings, program, notifier)))
        else:
            asyncio.run(_started(lambda: Supervisor(settings, workers, program, notifier)))
            # asyncio waits for each worker in a thread. One that still runs when Python ends is ended with the help of
            # a library, and the process is aborted if it has no file left to open that library.
            for thread in threading.enumerate():
                if thread is not threading.current_thread():
                    thread.join(JOIN_S)


async def _started(make: "Callable[[], SingleProcess | Supervisor]") -> None:
    """Constructs the server inside the event loop, because its constructor installs signal handlers."""
    await make().run()


@contextmanager
def pid_file(path: str) -> Generator[None]:
    """Keeps the file while the block runs; replaces one that a dead process left behind. Raises InvalidSettings."""
    if not path:
        yield
        return
    pid_file, mine = Path(path), f"{os.getpid()}\n"
    fresh = pid_file.with_name(f".{pid_file.name}.{os.getpid()}")
    try:
        fresh.write_text(mine)
        fresh.replace(pid_file)
    except OSError as error:
        raise InvalidSettings(f"cannot write the pid file {path}: {error.strerror}") from None
    try:
        yield
    finally:
        with suppress(OSError):
            if pid_file.read_text() == mine:
                pid_file.unlink()


class SingleProcess:
    """`run` returns after a stop signal, when everything is closed."""

    def __init__(self, settings: Settings, program: Program, notifier: Notifier) -> None:
        self._settings = settings
        self._program = program
        self._notifier = notifier
        self._sockets = bind_all(LISTENERS, settings)
        self._signals = Signals(program.reopen_logs)
        self._file = SettingsFile(program.file_version, self._signals.reload)
        self._ledger = EndedProcesses(settings.metrics_queues)
        self._is_announced = False
        self._fallback: tuple[Settings, dict[str, socket.socket]] | None = None

    async def run(self) -> None:
        """Raises InvalidSettings when it cannot serve with these settings from the start."""
        tasks = [asyncio.create_task(self._notifier.keep_alive()), asyncio.create_task(self._file.follow())]
        try:
            while not self._signals.stop.is_set():
                orders = Orders()
                sockets = {name: sock.dup() for name, sock in self._sockets.items()}
                alone = Alone(self._ledger)
                serving = asyncio.create_task(serve(self._settings, sockets, orders, siblings=alone, ready=self._ready))
                try:
                    await self._watch(serving, orders)
                    await alone.send_final_report()
                except InvalidSettings as error:
                    self._fall_back(error)
        finally:
            close_all(self._sockets)
            for task in tasks:
                task.cancel()

    def _ready(self, runtime: Runtime) -> None:
        if self._fallback is not None:
            self._forget(self._fallback[1])
            self._fallback = None
            log.info("settings_reloaded")
        if not self._is_announced:
            self._is_announced = True
            problems = {name: mask(error.message) for name, error in runtime.pools.errors().items()}
            self._program.announce(Started(self._settings, addresses(LISTENERS, self._sockets), problems))
        self._notifier.ready("serving")

    async def _watch(self, serving: "asyncio.Task[None]", orders: Orders) -> None:
        """Waits until the serving task ends: by itself, by a signal, or to reload settings."""
        while not serving.done():
            events = {asyncio.create_task(event.wait()) for event in (self._signals.stop, self._signals.reload)}
            await asyncio.wait({serving, *events}, return_when=asyncio.FIRST_COMPLETED)
            for task in events:
                task.cancel()
            if self._signals.stop.is_set():
                self._notifier.stopping()
                leave_all(LISTENERS, self._sockets)
                await self._end(serving, orders)
            elif self._signals.reload.is_set():
                self._signals.reload.clear()
                await self._reload(serving, orders)
        serving.result()

    async def _end(self, serving: "asyncio.Task[None]", orders: Orders) -> None:
        orders.stop.set()
        abort = asyncio.create_task(self._signals.abort.wait())
        await asyncio.wait({serving, abort}, return_when=asyncio.FIRST_COMPLETED)
        if self._signals.abort.is_set():
            orders.abort.set()
        abort.cancel()
        with suppress(Exception):  # the caller asks the task
            await serving

    async def _reload(self, serving: "asyncio.Task[None]", orders: Orders) -> None:
        self._notifier.reloading()
        self._file.mark_read()
        try:
            change = self._read_change()
        except InvalidSettings as error:
            log.error("settings_refused", extra={"error": error.message})
            change = None
        if change is None:
            self._notifier.ready("serving")
            return
        self._fallback = (self._settings, self._sockets)
        self._settings, self._sockets = change
        self._program.set_up_logging(self._settings)
        await self._end(serving, orders)

    def _read_change(self) -> tuple[Settings, dict[str, socket.socket]] | None:
        settings = self._program.read()
        if not differ(settings, self._settings):
            log.info("settings_unchanged")
            return None
        if settings.workers != self._settings.workers:
            raise InvalidSettings("workers cannot change between one and several by a reload; restart the server")
        if any(url.startswith("memory:") for url in (*self._settings.pools.values(), self._settings.registry_store)):
            raise InvalidSettings("a server with a memory store cannot reload: its jobs would be lost; restart it")
        return settings, rebind(LISTENERS, self._sockets, self._settings, settings)

    def _fall_back(self, error: InvalidSettings) -> None:
        if self._fallback is None:
            raise error
        log.error("settings_refused", extra={"error": error.message})
        refused, (self._settings, self._sockets) = self._sockets, self._fallback
        self._fallback = None
        self._forget(refused)
        self._program.set_up_logging(self._settings)

    def _forget(self, sockets: dict[str, socket.socket]) -> None:
        close_all({name: sock for name, sock in sockets.items() if self._sockets.get(name) is not sock})
