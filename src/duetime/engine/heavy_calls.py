"""Store calls for hundreds of jobs take turns, so that a call for a few jobs never stands behind many of them.

A store serves its calls one after the other. One flooded queue has seven under way at its worst: two pushes, two acks,
two reserves, one for those who wait. Two keep a store busy; with more, a job of another queue only waits longer.
"""

import asyncio
from collections import deque
from contextlib import AbstractAsyncContextManager, nullcontext
from types import TracebackType

HEAVY_JOBS = 50
"""A call for fewer jobs goes out at once."""
HEAVY_CALLS = 2
PATIENCE_S = 0.05
"""A call waits this long at most: a store that hangs is to be met by all at the same time, not by two after two."""

_AT_ONCE = nullcontext()


class HeavyCalls:
    """`async with calls.turn(jobs):` around a store call."""

    def __init__(self) -> None:
        self._under_way = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def turn(self, jobs: int) -> AbstractAsyncContextManager[None]:
        return self if jobs >= HEAVY_JOBS else _AT_ONCE

    async def __aenter__(self) -> None:
        if self._under_way >= HEAVY_CALLS:
            mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(mine)
            try:
                await asyncio.wait([mine], timeout=PATIENCE_S)
            except asyncio.CancelledError:
                if mine.done():
                    self._wake_next()  # the turn was mine
                raise
            finally:
                mine.cancel()
        self._under_way += 1

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._under_way -= 1
        self._wake_next()

    def _wake_next(self) -> None:
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():
                first.set_result(None)
                return
