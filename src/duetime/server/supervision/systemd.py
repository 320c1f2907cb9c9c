"""What systemd is told (Type=notify, WatchdogSec=): datagrams to the socket that NOTIFY_SOCKET names.

Without that variable nothing is sent. The protocol is sd_notify(3). A change of state waits a moment for room in the
socket; what cannot be delivered then is lost, because serving is more important than saying so.
"""

import asyncio
import os
import socket
import time
from collections.abc import Mapping

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Meant for the process that was started, not for its children."""

PATIENCE_S = 0.5


class Notifier:
    """`watchdog_s`: systemd ends us when it hears nothing for that long; 0 is never."""

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
        """Tell systemd that we live, twice in each period, for as long as the event loop gives this task its turns."""
        while self.watchdog_s:
            self._send("WATCHDOG=1", patience_s=0.0)
            await asyncio.sleep(self.watchdog_s / 2)

    def _send(self, state: str, patience_s: float = PATIENCE_S) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(patience_s)
            try:
                sock.sendto(state.encode(), self._address)
            except OSError:
                return
