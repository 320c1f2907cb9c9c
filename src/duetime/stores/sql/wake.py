"""The hub that hands wakes and versions of the registry to the listeners in this process.

How news come from other processes is a matter of the dialect, which derives its hub from `WakeHub`. Where they are
polled for, that happens often only while somebody waits. The engine asks for the heads of queues with waiting consumers
every second, and so do those who wait for results: by these calls the store knows that somebody waits.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress

from duetime.model.ticks import to_tick
from duetime.stores.base import Wake

MAX_PENDING = 10_000
AWAKE_S = 5.0
"""How long after the last such call somebody is taken to wait."""
IDLE_POLL_S = 1.0


class WakeHub(ABC):
    """Hands news to every listener in this process. Belongs to one event loop; idle while nobody listens."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._listeners: set[asyncio.Queue[Wake | None]] = set()
        self._guests = 0
        self._entrance = asyncio.Lock()
        self._registry_version = 0
        self._changed = asyncio.Event()
        self._closed = False
        self._awake_until = 0.0
        self._look_now = asyncio.Event()

    def keep_awake(self) -> None:
        """Somebody waits, or begins to."""
        self._awake_until = self._loop.time() + AWAKE_S
        self._look_now.set()

    async def _rest(self, pause_s: float) -> None:
        """Pause before the next poll: for `pause_s` while somebody waits, else until somebody does or a second."""
        if self._loop.time() < self._awake_until:
            await asyncio.sleep(pause_s)
            return
        self._look_now.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(to_tick(IDLE_POLL_S, self._loop)):
                await self._look_now.wait()

    @abstractmethod
    async def _join(self) -> None:
        """Called for each new listener: begin to receive news if that has not begun, and catch up with the store."""

    @abstractmethod
    def _stop(self) -> None:
        """Called when nobody listens any more. Idempotent."""

    async def wakes(self) -> AsyncIterator[Wake]:
        async with self._listening():
            listener: asyncio.Queue[Wake | None] = asyncio.Queue(MAX_PENDING)
            self._listeners.add(listener)
            try:
                yield Wake()
                while not self._closed and (wake := await listener.get()) is not None:
                    yield wake
            finally:
                self._listeners.discard(listener)

    async def registry_versions(self) -> AsyncIterator[int]:
        async with self._listening():
            seen = -1
            while not self._closed:
                changed = self._changed
                if self._registry_version == seen:
                    await changed.wait()
                else:
                    seen = self._registry_version
                    yield seen

    def close(self) -> None:
        """End the iteration of every listener."""
        self._closed = True
        for listener in self._listeners:
            _offer(listener, None)
        self._changed.set()
        self._stop()

    @asynccontextmanager
    async def _listening(self) -> AsyncGenerator[None, None]:
        self._guests += 1
        try:
            async with self._entrance:
                await self._join()
            yield
        finally:
            self._guests -= 1
            if self._guests == 0:
                self._stop()

    def _see_version(self, version: int) -> None:
        if version > self._registry_version:
            self._registry_version = version
            self._changed.set()
            self._changed = asyncio.Event()

    def _deliver(self, wake: Wake) -> None:
        for listener in self._listeners:
            _offer(listener, wake)


def _offer(listener: "asyncio.Queue[Wake | None]", wake: Wake | None) -> None:
    """A listener that does not keep up gets one "look everywhere" for all that it missed."""
    if listener.full():
        while not listener.empty():
            listener.get_nowait()
        wake = wake and Wake()
    listener.put_nowait(wake)
