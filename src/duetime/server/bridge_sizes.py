"""Sizes and lateness of the other systems' queues that the setting `bridges` names, for metrics and the console.

One process per machine reads them every few seconds, in a thread, and writes them into the registry, from which the
console of every process shows them. Nothing is changed in the other systems.
"""

import asyncio
import logging
import time
from typing import Any

import msgspec

from duetime.alerts.problems import DeploymentLock
from duetime.bridges.foreign import ForeignQueues, open_bridge
from duetime.duties import Rounds, run_duty
from duetime.engine.pools import Pools
from duetime.metrics.meters import Meters
from duetime.model.errors import DuetimeError, InvalidSettings
from duetime.model.masking import mask
from duetime.stores.registry import BRIDGE

log = logging.getLogger("duetime.bridges")

READ_EVERY_S = 5.0
IDLE_SHARE = 10
"""Sizes that take long to read, as those of a million timers of lmstfy do, are read less often."""
MOST_QUEUES = 500
"""Each is asked for its size, shown, and a few metrics."""
STATES = ("ready", "delayed", "reserved", "quarantined")


class BridgeSizes:
    """An async context manager. Raises InvalidSettings for an address that is none."""

    def __init__(self, addresses: str, pools: Pools, meters: Meters, *, deployment: str) -> None:
        self._pools = pools
        self._bridges: dict[str, ForeignQueues] = {}
        for name, foreign in map(open_bridge, addresses.split()):
            if name in self._bridges:
                raise InvalidSettings(f"names of bridges must differ, got {name!r} twice: add #NAME to an address")
            self._bridges[name] = foreign
        self._lock = DeploymentLock(f"bridges of {deployment}")
        self._jobs = meters.level(
            "duetime_bridge_jobs", "Jobs in the queues of other systems.", ("bridge", "queue", "state")
        )
        self._late = meters.level(
            "duetime_bridge_late_seconds",
            "How long the earliest waiting job of another system's queue is due.",
            ("bridge", "queue"),
        )
        self.loops: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "BridgeSizes":
        if self._bridges:
            duty = Rounds("sizes of bridges", self._round)
            self.loops = [asyncio.create_task(run_duty(duty, survives_bugs=True))]
        return self

    async def __aexit__(self, *_: object) -> None:
        for loop in self.loops:
            loop.cancel()
        await asyncio.gather(*self.loops, return_exceptions=True)
        for foreign in self._bridges.values():
            await asyncio.to_thread(foreign.close)
        self._lock.close()

    async def _round(self) -> float:
        began = time.monotonic()
        if self._lock.is_leader():
            read = {name: await asyncio.to_thread(read_sizes, foreign) for name, foreign in self._bridges.items()}
            self._show(read)
            for name, one in read.items():
                await self._pools.registry.put(BRIDGE, name, msgspec.json.encode(one))
        return max(READ_EVERY_S, IDLE_SHARE * (time.monotonic() - began))

    def _show(self, read: dict[str, dict[str, Any]]) -> None:
        self._jobs.clear()
        self._late.clear()
        for name, one in read.items():
            for queue in one["queues"]:
                for state in STATES:
                    self._jobs.of(name, queue["queue"], state).value = queue[state]
                self._late.of(name, queue["queue"]).value = queue["late_ms"] / 1000


def read_sizes(foreign: ForeignQueues) -> dict[str, Any]:
    """The queues of one system for the console, or the error why some cannot be read."""
    now = time.time_ns() // 1_000_000
    try:
        names = sorted(foreign.names())
        sizes = foreign.list_sizes(names[:MOST_QUEUES]).items()
    except DuetimeError as error:
        log.warning("bridge_unavailable", extra={"system": foreign.system, "error": error.message})
        return {"system": foreign.system, "read_at": now, "error": mask(error.message), "queues": []}
    queues = [
        {
            "queue": name,
            **{state: getattr(one, state) for state in STATES},
            "late_ms": 0 if one.oldest_due_at is None else max(0, now - one.oldest_due_at),
        }
        for name, one in sizes
    ]
    error = f"only the first {MOST_QUEUES} of {len(names)} queues are read" if len(names) > MOST_QUEUES else ""
    return {"system": foreign.system, "read_at": now, "error": error, "queues": queues}
