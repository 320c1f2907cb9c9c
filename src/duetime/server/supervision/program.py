"""How a server meets its surroundings: the command that starts it, its signals, systemd, and the start of a worker.

TERM, INT and USR2 stop a server, HUP reloads its settings, USR1 reopens its logs.
"""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from duetime.duties import Rounds, run_duty
from duetime.http.balance import MOST_WORKERS
from duetime.model.errors import InvalidSettings
from duetime.model.settings import Settings

STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
SYSTEMD_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""For the process that systemd started, not for its children."""

SEND_TIMEOUT_S = 0.5
CHECK_FILE_S = 1.0


@dataclass(frozen=True)
class Started:
    """`addresses` by the names of the listeners; `problems` says which pools are not open yet and why."""

    settings: Settings
    addresses: Mapping[str, str]
    problems: Mapping[str, str]
    workers: int = 1


@dataclass(frozen=True)
class Program:
    """`read` reads the settings anew and raises InvalidSettings; `announce` is called once, when everything is up.

    `file_version` changes when the settings file does. `worker_command` starts a worker process; the number of its end
    of the control channel is appended.
    """

    read: Callable[[], Settings]
    file_version: Callable[[], object]
    announce: Callable[[Started], None]
    set_up_logging: Callable[[Settings], None]
    reopen_logs: Callable[[], None]
    worker_command: Sequence[str]


class Start(msgspec.Struct, frozen=True):
    """The start message of a worker: name, settings, and the numbers of inherited files. `balance` is the file of the
    connection counts, 0 if there is none, and `slot` the worker's position in it.
    """

    name: str
    settings: Settings
    sockets: dict[str, int]
    balance: int = 0
    slot: int = 0

    @property
    def files(self) -> list[int]:
        return [*self.sockets.values(), *([self.balance] if self.balance else [])]


def differ(one: Settings, other: Settings) -> bool:
    """Compares the values, ignoring their sources."""
    return replace(one, sources={}) != replace(other, sources={})


def count_workers(settings: Settings) -> int:
    """Number of workers to start: the setting, or one per available core if it is 0."""
    return settings.workers or len(os.sched_getaffinity(0))


def check_shared(settings: Settings) -> None:
    """Raises InvalidSettings if several processes cannot use these settings."""
    if count_workers(settings) > MOST_WORKERS:
        raise InvalidSettings(f"workers must be at most {MOST_WORKERS}, got {count_workers(settings)}")
    for name, url in {**settings.pools, "registry": settings.registry_store}.items():
        if url.startswith("memory:"):
            raise InvalidSettings(
                f"several workers cannot share a memory store ({name}): use --workers 1, or a SQLite file or Redis"
            )


# --- signals


class Orders:
    """`stop` starts a drain; `abort` aborts the remaining requests."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.abort = asyncio.Event()


class Signals(Orders):
    """Sets `stop` at the first stop signal and `abort` at the second. The code that reloads clears `reload`."""

    def __init__(self, reopen_logs: Callable[[], None]) -> None:
        super().__init__()
        self.reload = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in STOP:
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self.reload.set)
        loop.add_signal_handler(signal.SIGUSR1, reopen_logs)

    def _stop(self) -> None:
        (self.abort if self.stop.is_set() else self.stop).set()


class SettingsFile:
    """Sets `reload` when the settings file has changed. The change must be a second old, because an editor may write a
    file in several steps.
    """

    def __init__(self, version: Callable[[], object], reload: asyncio.Event) -> None:
        self._version, self._reload = version, reload
        self._read = self._seen = version()

    def mark_read(self) -> None:
        """Call this before the settings are read."""
        self._read = self._version()

    async def follow(self) -> None:
        await run_duty(Rounds("settings file", self._check), first_after_s=CHECK_FILE_S)

    async def _check(self) -> float:
        last, self._seen = self._seen, self._version()
        if last == self._seen != self._read:
            self._reload.set()
        return CHECK_FILE_S


def obey_as_worker(orders: Orders, reopen_logs: Callable[[], None]) -> None:
    """In a worker, every stop signal means drain. A second one does not mean abort, because service managers signal all
    processes of a service.
    """
    loop = asyncio.get_running_loop()
    for number in STOP:
        loop.add_signal_handler(number, orders.stop.set)
    loop.add_signal_handler(signal.SIGUSR1, reopen_logs)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


# --- systemd


class Notifier:
    """Notifies systemd (Type=notify, WatchdogSec=) by sd_notify(3) through the socket in NOTIFY_SOCKET, if that is set.
    A change of state waits a moment for room in the socket and is dropped then, because serving is more important.

    `watchdog_s`: systemd kills the process after this time without a ping; 0: never.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        mine = environment.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        period = environment.get("WATCHDOG_USEC", "")
        self.watchdog_s = int(period) / 1e6 if self._address and mine and period.isdigit() else 0.0

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=draining")

    async def keep_alive(self) -> None:
        """Pings the watchdog twice in each period while the event loop runs."""
        if self.watchdog_s:
            await run_duty(Rounds("pings to systemd", self._ping))

    async def _ping(self) -> float:
        self._send("WATCHDOG=1", timeout_s=0.0)
        return self.watchdog_s / 2

    def _send(self, state: str, timeout_s: float = SEND_TIMEOUT_S) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(timeout_s)
            try:
                sock.sendto(state.encode(), self._address)
            except OSError:
                return
