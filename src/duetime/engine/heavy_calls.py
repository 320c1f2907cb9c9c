"""Store calls for hundreds of jobs take turns, so that a call for a few jobs never stands behind many of them.

A store serves its calls one after the other. One flooded queue has up to seven calls under way: two pushes, two acks,
two reserves, and one for its waiting consumers. Two calls keep a store busy; with more, a job of another queue only
waits longer.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

HEAVY_JOBS = 50
"""A call for fewer jobs goes out at once."""
HEAVY_CALLS = 2
PATIENCE_S = 0.05
"""A call waits this long at most. Otherwise the calls to a store that hangs would time out two by two."""


class HeavyCalls:
    """`await calls.make(jobs, store.push, queue, requests)`: the call, in its turn if it is for many jobs."""

    def __init__(self) -> None:
        self._under_way = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def make(self, jobs: int, call: Callable[P, Awaitable[T]], /, *args: P.args, **options: P.kwargs) -> Awaitable[T]:
        if jobs < HEAVY_JOBS:
            return call(*args, **options)
        return self._in_turn(call, *args, **options)

    async def _in_turn(self, call: Callable[P, Awaitable[T]], /, *args: P.args, **options: P.kwargs) -> T:
        if self._under_way >= HEAVY_CALLS:
            await self._wait()
        self._under_way += 1
        try:
            return await call(*args, **options)
        finally:
            self._under_way -= 1
            self._wake_next()

    async def _wait(self) -> None:
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

    def _wake_next(self) -> None:
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():
                first.set_result(None)
                return
