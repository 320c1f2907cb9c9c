"""An event loop for a plain thread, which runs only while somebody waits for a coroutine."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from typing import Any

try:
    import uvloop
except ImportError:  # not on every platform
    uvloop = None

NEW_LOOP = None if uvloop is None else uvloop.new_event_loop


class ThreadLoop:
    """It runs one coroutine at a time and is kept between them."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def __call__(self, work: Any) -> object:
        # A context of its own for each: a runner would share one among all that it runs.
        return self._ready().run(work, context=copy_context())

    def run_around(
        self, outer: Callable[[Callable[[], Awaitable[Any]]], Coroutine[Any, Any, Any]], inner: Callable[[], Any]
    ) -> Any:
        """Run a coroutine that awaits a plain function. The loop stands still while the function runs, so the function
        may run a loop of its own.
        """
        loop = self._ready().get_loop()
        wanted: list[asyncio.Future[Any]] = []
        news = asyncio.Event()

        async def call() -> Any:
            wanted.append(loop.create_future())
            news.set()
            return await wanted[-1]

        task = loop.create_task(outer(call))
        task.add_done_callback(lambda _: news.set())
        while not task.done():
            loop.run_until_complete(news.wait())
            news.clear()
            if wanted and not wanted[-1].done():
                try:
                    wanted[-1].set_result(inner())
                except BaseException as error:
                    wanted[-1].set_exception(error)
        return task.result()

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _ready(self) -> asyncio.Runner:
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=NEW_LOOP)
        return self._runner
