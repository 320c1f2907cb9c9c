"""Calls into an engine of this process."""

import asyncio
from typing import TypeVar

from duetime.client.call import Call
from duetime.client.embedded_engine import embedded_engine
from duetime.client.event_loop import LoopThread
from duetime.engine import Engine
from duetime.engine.direct_steps import DirectSteps

Answer = TypeVar("Answer")


class AsyncEmbedded:
    """An engine in this event loop, opened at the first call. It lives in a task of its own, so that it may be closed
    from another task than the one that opened it.
    """

    def __init__(self, url: str, journal: str | None = None, *, has_direct: bool = False) -> None:
        self._url = url
        self._journal = journal
        self._has_direct = has_direct
        self._engine: Engine | None = None
        self.direct: DirectSteps | None = None
        """For callers in other threads, while the engine is open, if there are such callers (`has_direct`)."""
        self._host: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._opening = asyncio.Lock()

    async def send(self, call: Call[Answer]) -> Answer:
        engine = self._engine
        if engine is None:
            engine = await self._open()
        return await call.run(engine)

    async def _open(self) -> Engine:
        async with self._opening:
            if self._engine is None:
                ready: asyncio.Future[Engine] = asyncio.get_running_loop().create_future()
                self._host = asyncio.create_task(self._serve(ready), name="duetime engine")
                try:
                    self._engine = await ready
                except BaseException:
                    self._host.cancel()
                    raise
            return self._engine

    async def _serve(self, ready: asyncio.Future[Engine]) -> None:
        try:
            async with embedded_engine(self._url, self._journal) as engine:
                if not ready.done():  # the caller may have been cancelled
                    self.direct = engine.direct_steps() if self._has_direct else None
                    ready.set_result(engine)
                    try:
                        await self._stop.wait()
                    finally:
                        self._close_direct()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)
        finally:
            self._engine = None

    def _close_direct(self) -> None:
        direct, self.direct = self.direct, None
        if direct:
            direct.close()

    async def close(self) -> None:
        self._stop.set()
        if self._host:
            await self._host


class SyncEmbedded:
    """An engine in a thread of its own. What is usual and about one job is done in the caller's thread."""

    def __init__(self, url: str, journal: str | None = None) -> None:
        self._loop = LoopThread("duetime engine")
        self._inner = self._loop.run(self._make(url, journal))

    async def _make(self, url: str, journal: str | None) -> AsyncEmbedded:
        return AsyncEmbedded(url, journal, has_direct=True)

    def send(self, call: Call[Answer]) -> Answer:
        if call.direct and (steps := self._inner.direct) and (answer := call.direct(steps)) is not None:
            return answer
        return self._loop.run(self._inner.send(call))

    def close(self) -> None:
        if self._loop.is_running:
            self._loop.run(self._inner.close())
            self._loop.close()
