"""The hub that hands wakes and versions of the registry to the listeners in this process.

How news come from other processes is a matter of the dialect, which derives its hub from `WakeHub`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from duetime.stores.base import Wake

MAX_PENDING = 10_000


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
