"""An event loop in which waiting costs nothing.

Time stands still while anything can run and jumps to the next timer when nothing can. With a seed, what is ready runs
in an order drawn by chance instead of first in, first out. `run_virtual` runs a test in it and fails the test for tasks
left behind and for errors that nobody looked at; `virtual_time` does that to an async test function.
"""

import asyncio
import contextvars
import functools
import heapq
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

MAX_STEPS_AT_ONE_INSTANT = 200_000
START_MS = 1_800_000_000_000


class VirtualLoop(asyncio.BaseEventLoop):
    """No sockets, no threads, no real time. `steps` counts the callbacks that have run."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self.steps = 0
        self._chance = None if seed is None else random.Random(seed)
        self._now = 0.0
        self._steps_at_last_jump = 0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timers_made = 0
        self._planned: dict[int, Callable[[], object]] = {}

    def time(self) -> float:
        return self._now

    def after_steps(self, steps: int, action: Callable[[], object]) -> None:
        """Do something between two callbacks, that many callbacks from now."""
        self._planned[self.steps + steps] = action

    # BaseEventLoop's own checks take a third of the time of a simulation, so the two ways to schedule are shorter here.

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers_made += 1
        heapq.heappush(self._timers, (when, self._timers_made, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays in the heap until its time."""

    def _run_once(self) -> None:
        """All that can run at this instant, one callback after the other; then on to the next timer."""
        ready, timers, random = self._ready, self._timers, self._chance and self._chance.random
        while not self._stopping:
            while timers and timers[0][0] <= self._now:
                ready.append(heapq.heappop(timers)[2])
            if not ready:
                self._jump()
                continue
            if random and len(ready) > 1:
                ready.rotate(-int(random() * len(ready)))
            handle = ready.popleft()
            if not handle._cancelled:
                self._step(handle)

    def _step(self, handle: asyncio.Handle) -> None:
        self.steps += 1
        if self.steps - self._steps_at_last_jump > MAX_STEPS_AT_ONE_INSTANT:
            raise RuntimeError("the loop turns without getting anywhere")
        handle._run()
        if self._planned and (action := self._planned.pop(self.steps, None)):
            action()

    def _jump(self) -> None:
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        if not self._timers:
            raise RuntimeError("everybody waits and nothing will ever happen")
        if (when := self._timers[0][0]) > self._now:
            self._now = when
            self._steps_at_last_jump = self.steps

    def _write_to_self(self) -> None:
        """Nothing sleeps in a selector, so nothing has to be woken."""


class LoopClock:
    """The wall clock of stores in virtual time: the running loop's, and what it was turned by."""

    def __init__(self) -> None:
        self.offset_ms = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def now_ms(self) -> int:
        # Forget the noise of binary fractions before cutting: 0.3 s is 300 ms and not 299.
        return START_MS + self.offset_ms + int(round(self.monotonic() * 1000, 3))

    def monotonic(self) -> float:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop.time()


def run_virtual(main: Coroutine[Any, Any, T], *, seed: int | None = None) -> T:
    loop = VirtualLoop(seed)
    complaints: list[str] = []
    loop.set_exception_handler(
        lambda _, context: complaints.append(f"{context['message']}: {context.get('exception')!r}")
    )
    try:
        result = loop.run_until_complete(main)
        complaints += [f"left behind: {task!r}" for task in asyncio.all_tasks(loop)]
    finally:
        _stop(loop)
    assert complaints == []
    return result


def _stop(loop: VirtualLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    try:
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test in virtual time, first in, first out."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_virtual(test(*args, **kwargs))

    return run
