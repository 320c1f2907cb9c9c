"""The signals of a server: TERM, INT and USR2 stop it, HUP reloads its settings, USR1 reopens its logs."""

import asyncio
import signal
from collections.abc import Callable

STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)


class Orders:
    """`stop` starts a drain; `hurry` aborts the remaining requests."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()


class Signals(Orders):
    """Sets `stop` at the first stop signal and `hurry` at the second. The code that reloads clears `reload`."""

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
    """In a worker, every stop signal means drain. A second one does not mean hurry, because service managers signal all
    processes of a service.
    """
    loop = asyncio.get_running_loop()
    for number in STOP:
        loop.add_signal_handler(number, orders.stop.set)
    loop.add_signal_handler(signal.SIGUSR1, reopen_logs)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
