"""Slots for a bounded number of calls, which many topics share by their priorities.

A topic that wants slots gets those that are free, at least one, or waits. Waiting topics are served by a wheel over
priorities, 5 : 3 : 2, and within one the namespaces in turn, each first come first served; a priority that nobody waits
for passes its turn on. While several namespaces share the slots (`share`), one of them has at most half, so that
slow receivers of one leave room for the others. A topic holds slots only while it calls.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from typing import NamedTuple

from duetime.engine.wheel import SHARES, turns
from duetime.model.job import Priority


class Waiter(NamedTuple):
    wanted: int
    granted: asyncio.Future[int]


Line = OrderedDict[str, deque[Waiter]]
"""Those who wait, by namespace; the namespace whose turn is next stands first."""


class Slots:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._is_shared = False
        self._held = Counter[str]()
        self._turns = turns(SHARES)
        self._at = 0
        self._lines: dict[Priority, Line] = {one: OrderedDict() for one in Priority}

    async def acquire(self, wanted: int, priority: Priority, namespace: str) -> int:
        """Wait for 1 to `wanted` slots; answers how many were taken. A cancelled wait takes none."""
        if (free := self._free(namespace)) > 0 and not any(self._lines.values()):
            return self._grant(min(free, wanted), namespace)
        granted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._lines[priority].setdefault(namespace, deque()).append(Waiter(wanted, granted))
        self._serve()
        try:
            return await granted
        except asyncio.CancelledError:
            # The slots may have been granted at the same moment as the cancellation.
            if granted.done() and not granted.cancelled():
                self.release(granted.result(), namespace)
            raise

    def acquire_free(self, wanted: int, namespace: str) -> int:
        """Take 0 to `wanted` slots that are free now, none if others wait; answers how many."""
        if wanted <= 0 or any(self._lines.values()):
            return 0
        return self._grant(min(max(self._free(namespace), 0), wanted), namespace)

    def release(self, count: int, namespace: str) -> None:
        self.used -= count
        self._held[namespace] -= count
        if not self._held[namespace]:
            del self._held[namespace]
        self._serve()

    def share(self, *, is_shared: bool) -> None:
        """Say whether topics of several namespaces use these slots."""
        self._is_shared = is_shared
        self._serve()

    def _free(self, namespace: str) -> int:
        """How many more slots this namespace may have now."""
        most = max(self.capacity // 2, 1) if self._is_shared else self.capacity
        return min(self.capacity - self.used, most - self._held[namespace])

    def _grant(self, count: int, namespace: str) -> int:
        self.used += count
        self._held[namespace] += count
        return count

    def _serve(self) -> None:
        while (found := self._next()) is not None:
            place, line, namespace = found
            waiters = line.pop(namespace)
            wanted, granted = waiters.popleft()
            if waiters:
                line[namespace] = waiters  # at the end: the others of this priority come first
            if granted.done():
                continue
            self._at = (place + 1) % len(self._turns)
            # While others can be served, too, each gets one slot; the last one gets as many as are free.
            count = 1 if self._next() is not None else min(wanted, self._free(namespace))
            granted.set_result(self._grant(count, namespace))

    def _next(self) -> tuple[int, Line, str] | None:
        """The turn, line and namespace that are served next; None if nobody waits who may have a slot now."""
        if self.used >= self.capacity:
            return None
        for step in range(len(self._turns)):
            place = (self._at + step) % len(self._turns)
            line = self._lines[list(Priority)[self._turns[place]]]
            for namespace in line:  # at most two namespaces have their half
                if self._free(namespace) > 0:
                    return place, line, namespace
        return None
