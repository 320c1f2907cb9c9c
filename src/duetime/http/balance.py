"""How many connections each worker process has, in memory that all of them share.

Without it, the process that is scheduled first would accept a whole rush of clients from a shared socket. A worker that
has clearly more clients than another leaves the next connections to that one for a moment.
"""

import mmap
import os

SLOTS = 257
"""Two for each worker, so that a replacement and its predecessor have their own, and the supervisor's view."""
MOST_WORKERS = SLOTS // 2
WIDTH = 8
SLACK = 4
NOBODY = -1


class ConnectionBalance:
    """One process's view: `slot` is its own number. Each writes only its own, so there is nothing to lock."""

    def __init__(self, file: int, slot: int) -> None:
        self.file = file
        self._slot = slot
        self._counts = memoryview(mmap.mmap(file, SLOTS * WIDTH)).cast("q")

    @classmethod
    def create(cls) -> "ConnectionBalance | None":
        """Returns None if the system has no anonymous shared memory; then no process waits for another."""
        if not hasattr(os, "memfd_create"):
            return None
        file = os.memfd_create("duetime-balance")
        os.ftruncate(file, SLOTS * WIDTH)
        balance = cls(file, SLOTS - 1)
        for slot in range(SLOTS):
            balance.vacate(slot)
        return balance

    def publish(self, count: int) -> None:
        self._counts[self._slot] = count

    def vacate(self, slot: int | None = None) -> None:
        """Marks the slot as unused."""
        self._counts[self._slot if slot is None else slot] = NOBODY

    def is_ahead(self) -> bool:
        """Returns whether another process has clearly fewer connections."""
        mine = self._counts[self._slot]
        bound = mine - SLACK - mine // 8
        if bound < 0:
            return False
        return any(0 <= count <= bound for count in self._counts.tolist())
