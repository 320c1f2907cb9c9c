"""Calls into an engine of this process, on the store that a URL names.

The engine journals if the pool does when it opens, or if `journal` says so; nothing changes that while it runs. The
journal's node is made with the first change, so that a program that only reads writes nothing.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from inspect import currentframe
from threading import get_ident
from typing import TypeVar

from duetime.client.call import Call
from duetime.client.event_loop import LoopThread
from duetime.engine import Engine
from duetime.engine.recorder import Recorder
from duetime.journal import registration
from duetime.journal.journal import Journal
from duetime.journal.options import embedded_options, is_off
from duetime.journal.recorder import NodeWithoutJournal, open_journal_recorder
from duetime.journal.registration import registered
from duetime.model.errors import InvalidRequest
from duetime.model.names import DEFAULT_POOL
from duetime.stores.base import Store
from duetime.stores.open import open_store

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


log = logging.getLogger("duetime.journal")


@asynccontextmanager
async def embedded_engine(url: str, journal: str | None = None) -> AsyncGenerator[Engine]:
    """`journal` is the folder of the engine's journal, or "off". None: it journals if the pool does."""
    async with AsyncExitStack() as stack:
        store = await open_store(url)
        stack.push_async_callback(store.close)
        recorders = await _recorders(store, url, journal, stack)
        yield await stack.enter_async_context(Engine(store, recorders=recorders))


async def _recorders(store: Store, url: str, journal: str | None, stack: AsyncExitStack) -> Sequence[Recorder]:
    if url.startswith("memory:") and not journal:  # no other process can make it a pool that journals
        return ()
    found = None if is_off(url, journal) else await registration.find_journaling(store)
    if is_off(url, journal) or not (found or journal):
        return [NodeWithoutJournal(store)]
    options = embedded_options(url, journal, nodes=await registered(store))
    if options is None:
        return [NodeWithoutJournal(store)]
    pool = found.pool if found else DEFAULT_POOL
    log.info("journal_joined", extra={"pool": pool, "folder": str(options.folder)})
    opened = await stack.enter_async_context(Journal(options, lazy=True))
    return await open_journal_recorder(store, opened, pool)
