"""Notifies systemd (Type=notify, WatchdogSec=) by sd_notify(3) through the socket in NOTIFY_SOCKET, if that is set.

A change of state waits a moment for room in the socket and is dropped then, because serving is more important.
"""

import asyncio
import os
import socket
import time
from collections.abc import Mapping

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""For the process that systemd started, not for its children."""

SEND_TIMEOUT_S = 0.5


class Notifier:
    """`watchdog_s`: systemd kills the process after this time without a ping; 0: never."""

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
        while self.watchdog_s:
            self._send("WATCHDOG=1", timeout_s=0.0)
            await asyncio.sleep(self.watchdog_s / 2)

    def _send(self, state: str, timeout_s: float = SEND_TIMEOUT_S) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(timeout_s)
            try:
                sock.sendto(state.encode(), self._address)
            except OSError:
                return
