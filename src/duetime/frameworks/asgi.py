"""FastAPI, Starlette and other ASGI frameworks: the connection of an App ends with the web application.

    web = FastAPI(lifespan=lifespan(jobs))

Handlers push with the twins of a task (`await send.delay_async(...)`), which share one connection per process.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from duetime.worker.app import App

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


def lifespan(app: App, inner: Lifespan | None = None) -> Lifespan:
    """A lifespan that closes the App's connections at the end. `inner` is a lifespan of your own: it begins after this
    one, ends before it, and its state is the application's.
    """

    @asynccontextmanager
    async def run(web: Any) -> AsyncGenerator[Any]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(app.close_async)
            stack.callback(app.close)
            yield await stack.enter_async_context(inner(web)) if inner else None

    return run
