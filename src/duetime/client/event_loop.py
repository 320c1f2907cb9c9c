"""Runs coroutines for blocking code. No other module of the client, the commands or the pipelines makes a loop.

`run` is for one coroutine, `iterate` for the items of an async generator, and `LoopThread` for objects that live in a
loop between calls. All three work in a thread that runs a loop already, as the threads of notebooks do.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

try:
    import uvloop
except ImportError:  # not on every platform
    uvloop = None

Result = TypeVar("Result")


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in a new event loop; in another thread if this one runs a loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(copy_context().run, asyncio.run, work).result()


def iterate(items: AsyncGenerator[Result]) -> Generator[Result]:
    """Yield the items of an async generator, and close it at the end."""
    missing = object()

    async def next_item() -> Any:
        return await anext(items, missing)

    with LoopThread() as loop:
        try:
            while (item := loop.run(next_item())) is not missing:
                yield item
        finally:
            loop.run(items.aclose())


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self, name: str = "duetime loop") -> None:
        self._loop = asyncio.new_event_loop() if uvloop is None else uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def __enter__(self) -> "LoopThread":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_running(self) -> bool:
        """False after `close`, and in a fork."""
        return self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine to its end. It is cancelled if the caller is interrupted while it waits."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        if self.is_running:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
