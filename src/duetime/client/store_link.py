"""A link to a server, or to a store without an engine, for tools that inspect and repair.

A store is opened as it is: no reaper runs, nothing is registered and nothing is journaled, so that inspecting moves
nothing. Calls that need a running engine (push, reserve, ack) are refused with StoreUnavailable; a tool that writes
says so with `on_store`.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TypeVar

from duetime.client import event_loop
from duetime.client.call import Call
from duetime.client.transport import AsyncTransport, is_http
from duetime.engine import Engine
from duetime.model.errors import InvalidRequest
from duetime.stores.base import Store
from duetime.stores.open import open_store

Answer = TypeVar("Answer")
StoreWork = Callable[[Store], Awaitable[Answer]]

STORE_ONLY = "give the store's own URL with --url: sqlite:///..., redis://..., postgresql://..., mysql://..."


@asynccontextmanager
async def opened_store(url: str) -> AsyncGenerator[Store]:
    """The store that a URL names, without an engine."""
    store = await open_store(url)
    try:
        yield store
    finally:
        await store.close()


def on_store(url: str, work: StoreWork[Answer], refusal: str = STORE_ONLY) -> Answer:
    """Do the work on the store, blocking. Raises InvalidRequest with `refusal` if the URL is a server's."""

    async def run() -> Answer:
        async with opened_store(url) as store:
            return await work(store)

    if is_http(url):
        raise InvalidRequest(refusal)
    return event_loop.run(run())


class AsyncStoreLink:
    """A transport of Calls, for one event loop."""

    def __init__(self, server: AsyncTransport | None, store: Store | None) -> None:
        self._server, self._store = server, store

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, token: str | None = None) -> AsyncGenerator["AsyncStoreLink"]:
        link = await cls.connect(url, token)
        try:
            yield link
        finally:
            await link.close()

    @classmethod
    async def connect(cls, url: str, token: str | None = None) -> "AsyncStoreLink":
        if is_http(url):
            # Imported here because it takes longer than all else, and a link to a store does not need it.
            return cls(import_module("duetime.client.async_http").AsyncHttp(url, token), None)
        return cls(None, await open_store(url))

    @property
    def is_server(self) -> bool:
        return self._server is not None

    async def send(self, call: Call[Answer]) -> Answer:
        if self._server:
            return await self._server.send(call)
        assert self._store
        return await call.run(Engine(self._store))

    async def on_store(self, work: StoreWork[Answer]) -> Answer | None:
        """Do the work on the store itself. Returns None, and does nothing, if the link is to a server."""
        return await work(self._store) if self._store else None

    async def close(self) -> None:
        await (self._server or self._store).close()  # pyright: ignore[reportOptionalMemberAccess]


class StoreLink:
    """The same for blocking code."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._loop = event_loop.LoopThread()
        try:
            self._link = self._loop.run(AsyncStoreLink.connect(url, token))
        except BaseException:
            self._loop.close()
            raise

    @property
    def is_server(self) -> bool:
        return self._link.is_server

    def send(self, call: Call[Answer]) -> Answer:
        return self._loop.run(self._link.send(call))

    def on_store(self, work: StoreWork[Answer]) -> Answer | None:
        return self._loop.run(self._link.on_store(work))

    def close(self) -> None:
        if self._loop.is_running:
            self._loop.run(self._link.close())
            self._loop.close()
