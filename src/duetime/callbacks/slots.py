"""Slots for a bounded number of calls, which many topics share by their priorities.

A topic that wants slots gets those that are free, at least one, or waits. Waiting topics are served by a wheel over
priorities, 5 : 3 : 2, and first come first served within one; a priority that nobody waits for passes its turn on. A
topic holds slots only while it calls, so a topic without jobs holds none.
"""

import asyncio
from collections import deque

from duetime.engine.wheel import SHARES, turns
from duetime.job import Priority


class Slots:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._turns = turns(SHARES)
        self._at = 0
        self._lines: dict[Priority, deque[tuple[int, asyncio.Future[int]]]] = {one: deque() for one in Priority}

    async def take(self, wanted: int, priority: Priority) -> int:
        """Wait for 1 to `wanted` slots; answers how many were taken. A cancelled wait takes none."""
        free = self.capacity - self.used
        if free > 0 and not any(self._lines.values()):
            return self._grant(min(free, wanted))
        granted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._lines[priority].append((wanted, granted))
        self._serve()
        try:
            return await granted
        except asyncio.CancelledError:
            # The slots may have been granted at the same moment as the cancellation.
            if granted.done() and not granted.cancelled():
                self.put_back(granted.result())
            raise

    def take_free(self, wanted: int) -> int:
        """Take 0 to `wanted` slots that are free now, none if others wait; answers how many."""
        if wanted <= 0 or any(self._lines.values()):
            return 0
        return self._grant(min(max(self.capacity - self.used, 0), wanted))

    def put_back(self, count: int) -> None:
        self.used -= count
        if any(self._lines.values()):
            self._serve()

    def _grant(self, count: int) -> int:
        self.used += count
        return count

    def _serve(self) -> None:
        while self.used < self.capacity and (line := self._next_line()) is not None:
            wanted, granted = line.popleft()
            if not granted.done():
                # While others wait, too, each gets one slot; the last one gets as many as are free.
                alone = not any(self._lines.values())
                granted.set_result(self._grant(min(wanted, self.capacity - self.used) if alone else 1))

    def _next_line(self) -> deque[tuple[int, asyncio.Future[int]]] | None:
        for step in range(len(self._turns)):
            place = (self._at + step) % len(self._turns)
            line = self._lines[list(Priority)[self._turns[place]]]
            if line:
                self._at = (place + 1) % len(self._turns)
                return line
        return None
