"""The signals of a server: TERM, INT and USR2 stop it, HUP reloads its settings, USR1 reopens its logs."""

import asyncio
import signal
from collections.abc import Callable

STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)


class Orders:
    """`stop` begins a drain; `hurry` cuts the requests that are left."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()


class Signals(Orders):
    """`stop` after the first signal, `hurry` after the second; the code that reloads clears `reload`."""

    def __init__(self, reopen_logs: Callable[[], None]) -> None:
        super().__init__()
        self.reload = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in STOP:
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self.reload.set)
        loop.add_signal_handler(signal.SIGUSR1, reopen_logs)

    def _stop(self) -> None:
        (self.hurry if self.stop.is_set() else self.stop).set()


def obey_as_worker(orders: Orders, reopen_logs: Callable[[], None]) -> None:
    """A worker drains when it is told to, however often, and leaves the rest to its supervisor.

    Service managers signal every process of a service at once: a second TERM means no hurry here.
    """
    loop = asyncio.get_running_loop()
    for number in STOP:
        loop.add_signal_handler(number, orders.stop.set)
    loop.add_signal_handler(signal.SIGUSR1, reopen_logs)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
