"""Calls into an engine of this process."""

import asyncio
from inspect import currentframe
from threading import get_ident
from typing import TypeVar

from duetime.client.call import Call
from duetime.client.embedded_engine import embedded_engine
from duetime.client.event_loop import LoopThread
from duetime.engine import Engine
from duetime.model.errors import InvalidRequest

Answer = TypeVar("Answer")


class AsyncEmbedded:
    """An engine in this event loop, opened at the first call. It lives in a task of its own, so that it may be closed
    from another task than the one that opened it.
    """

    def __init__(self, url: str, journal: str | None = None, *, serves_threads: bool = False) -> None:
        self._url = url
        self._journal = journal
        self._serves_threads = serves_threads
        self.engine: Engine | None = None
        """None while it is not open."""
        self._host: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._opening = asyncio.Lock()

    async def send(self, call: Call[Answer]) -> Answer:
        engine = self.engine
        if engine is None:
            engine = await self._open()
        return await call.run(engine)

    async def _open(self) -> Engine:
        async with self._opening:
            if self.engine is None:
                ready: asyncio.Future[Engine] = asyncio.get_running_loop().create_future()
                self._host = asyncio.create_task(self._serve(ready), name="duetime engine")
                try:
                    self.engine = await ready
                except BaseException:
                    self._host.cancel()
                    raise
            return self.engine

    async def _serve(self, ready: asyncio.Future[Engine]) -> None:
        try:
            async with embedded_engine(self._url, self._journal) as engine:
                if not ready.done():  # the caller may have been cancelled
                    if self._serves_threads:
                        engine.open_blocking()
                    ready.set_result(engine)
                    await self._stop.wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)
        finally:
            self.engine = None

    async def close(self) -> None:
        self._stop.set()
        if self._host:
            await self._host


class SyncEmbedded:
    """An engine in a thread of its own."""

    def __init__(self, url: str, journal: str | None = None) -> None:
        self._loop = LoopThread("duetime engine")
        self._inner = self._loop.run(self._make(url, journal))
        self._calling: set[int] = set()

    async def _make(self, url: str, journal: str | None) -> AsyncEmbedded:
        return AsyncEmbedded(url, journal, serves_threads=True)

    def send(self, call: Call[Answer]) -> Answer:
        """Raises InvalidRequest in a signal handler that interrupted another call of the same thread: that call may
        hold what this one would wait for.
        """
        thread = get_ident()
        if thread in self._calling and self._is_within_send():
            raise InvalidRequest(
                "the client cannot be called from a signal handler that interrupted another call of the same thread: "
                "set a flag in the handler and make the call later, or make it in another thread"
            )
        try:
            self._calling.add(thread)
            engine = self._inner.engine
            if call.run_blocking and engine:
                return call.run_blocking(engine)
            return self._loop.run(self._inner.send(call))
        finally:
            self._calling.discard(thread)

    def _is_within_send(self) -> bool:
        """Returns whether the caller of `send` runs within another `send`. An exception of a handler may have ended
        that one before it could say so.
        """
        frame, found = currentframe(), 0
        while frame is not None:
            found += frame.f_code is SyncEmbedded.send.__code__ and frame.f_locals.get("self") is self
            frame = frame.f_back
        return found > 1

    def close(self) -> None:
        if self._loop.is_running:
            self._loop.run(self._inner.close())
            self._loop.close()
