"""The reaper: ends leases that ran out and jobs past their ttl.

One round is one bounded step over all queues. Between rounds it sleeps until the next lease end that it knows of: the
engine reports the leases of this process with `run_within`, and the reaper finds those of others within a second.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from duetime.model.clock import to_tick
from duetime.stores.base import Reaped

LONGEST_REST_S = 1.0
STEP = 500

Reap = Callable[[int], Awaitable[Reaped]]
"""One reap of the store, for at most this many jobs."""


class Reaper:
    name = "reaper"

    def __init__(self, reap: Reap) -> None:
        self._reap = reap
        self._is_earlier = asyncio.Event()
        self._wake_at = float("inf")

    def run_within(self, seconds: float) -> None:
        """Start the next round at most this many seconds from now."""
        at = asyncio.get_running_loop().time() + seconds
        if at < self._wake_at:
            self._wake_at = at
            self._is_earlier.set()

    async def run_once(self) -> float:
        self._wake_at = float("inf")
        reaped = await self._reap(STEP)
        if reaped.next_at is None:
            return LONGEST_REST_S
        return min(max(reaped.next_at - reaped.now, 0) / 1000, LONGEST_REST_S)

    async def rest(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._wake_at = min(self._wake_at, loop.time() + to_tick(seconds, loop))
        # Let other tasks run between two rounds, even if there is more to do.
        await asyncio.sleep(0)
        while (left := self._wake_at - loop.time()) > 0:
            self._is_earlier.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._is_earlier.wait()
