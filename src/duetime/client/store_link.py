"""A link to a server, or to a store without an engine, for tools that inspect and repair.

A store is opened as it is: no reaper runs, nothing is registered and nothing is journaled, so that inspecting moves
nothing. Calls that need a running engine (push, reserve, ack) are refused with StoreUnavailable; a tool that writes
says so with `on_store`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from duetime.client import calls, event_loop, store_calls
from duetime.client.call import Call
from duetime.client.transport import AsyncTransport, check_is_store, is_http
from duetime.engine import Engine
from duetime.model.errors import DuetimeError, InvalidRequest, NotFound, StoreUnavailable, Unauthorized
from duetime.model.job import Moved
from duetime.model.masking import mask
from duetime.model.names import DEFAULT_NAMESPACE, Queue
from duetime.stores.base import Push, Pushed, Store, StoreInfo
from duetime.stores.bulk import Bulk, Failed, JobColumns, Loaded, LoadStep, LostColumns, Pace, loaded
from duetime.stores.open import open_bulk, open_store
from duetime.stores.registry import Registry

if TYPE_CHECKING:
    import httpx

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

    check_is_store(url, refusal)
    return event_loop.run(run())


def _http(url: str, token: str | None) -> AsyncTransport:
    """Imports httpx only when it is used: the import takes longer than all others, and a link to a store needs none."""
    return import_module("duetime.client.async_http").AsyncHttp(url, token)


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
            return cls(_http(url, token), None)
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


DEADLINE_S = 30.0
"""Longer than a test alert may take to reach a mail server."""
ADMIN_PORT = 7778
"""The admin port of `duetime serve` if no other is set."""
UNKNOWN_PATH = "api not found"
"""What the API of a server answers to a path of the admin API."""


def send_admin(
    url: str,
    method: str,
    path: str,
    on_registry: Callable[[Registry], Awaitable[Answer]],
    parse: Callable[[Any], Answer] = lambda answer: answer,
    **sent: Any,
) -> Answer:
    """Send a request to the admin API at the URL, or do the same work on the store that the URL names. Blocking.
    `sent` has what httpx sends with the request: params, json or data.
    """
    if is_http(url):
        return parse(_request(url, method, path, sent))
    return on_store(url, lambda store: on_registry(store.registry))


def _request(url: str, method: str, path: str, sent: Mapping[str, Any]) -> Any:
    import httpx  # noqa: PLC0415 (see _http)

    shown = mask(url)
    try:
        reply = httpx.request(method, url.rstrip("/") + path, timeout=DEADLINE_S, **sent)
    except httpx.TransportError as error:
        raise StoreUnavailable(f"cannot reach the admin API at {shown}: {error}") from error
    reason = _reason(reply)
    match reply.status_code:
        case 200 | 201:
            return reply.json()
        case 204:
            return {}
        case 401:
            raise Unauthorized(f"{shown} needs a user and password: http://user:password@host:{ADMIN_PORT}")
        case 404 if reason and reason != UNKNOWN_PATH:
            raise NotFound(reason)
        case 404 | 405:
            raise NotFound(
                f"{shown} is not an admin API; give its address (port {ADMIN_PORT} by default) with --url or "
                "DUETIME_ADMIN_URL"
            )
        case status:
            raise InvalidRequest(f"the admin API refused the request: {reason or f'status {status}'}")


def _reason(reply: "httpx.Response") -> str:
    try:
        return str(reply.json()["error"])
    except (ValueError, KeyError, TypeError):
        return ""


CONCURRENT_REQUESTS = 4


async def open_bulk_load(url: str, *, namespace: str = DEFAULT_NAMESPACE, token: str | None = None) -> Bulk:
    return HttpBulk(url, namespace, token) if is_http(url) else await open_bulk(url)


class HttpBulk:
    """Keeps the contract of `stores.bulk.Bulk` through a server."""

    def __init__(self, url: str, namespace: str, token: str | None) -> None:
        self._server = _http(url, token)
        self._namespace = namespace

    async def load(
        self, queue: Queue, columns: JobColumns, steps: Sequence[LoadStep], *, pace: Pace | None = None
    ) -> AsyncIterator[Loaded | Failed]:
        waiting: list[asyncio.Task[Loaded | Failed]] = []
        try:
            for step in steps:
                if pace:
                    await pace(step.last - step.first)
                if len(waiting) == CONCURRENT_REQUESTS:
                    yield await waiting.pop(0)
                waiting.append(asyncio.create_task(self._send(queue, columns, step)))
            while waiting:
                yield await waiting.pop(0)
        finally:
            for task in waiting:
                task.cancel()

    async def _send(self, queue: Queue, columns: JobColumns, step: LoadStep) -> Loaded | Failed:
        call = calls.push(queue, columns.jobs(step.first, step.last), step.if_exists, step.mark)
        try:
            return loaded(step, await self._server.send(call))
        except DuetimeError as error:
            return Failed(step, error)

    async def put_back(self, queue: Queue, jobs: LostColumns) -> int | Sequence[Pushed | DuetimeError]:
        """A server gives each job its mark by itself."""
        return await self._server.send(store_calls.put_back(queue, [Push([job]) for job in jobs.jobs()]))

    async def cancel(self, queue: Queue, ids: Sequence[str]) -> Sequence[Moved | DuetimeError | None]:
        return await self._server.send(calls.cancel(queue, ids))

    async def reschedule(self, queue: Queue, ids: Sequence[str], due_at: int) -> Sequence[Moved | DuetimeError | None]:
        return await self._server.send(calls.reschedule(queue, ids, None, due_at))

    async def ping(self) -> StoreInfo:
        return await self._server.send(store_calls.store_info(self._namespace))

    async def close(self) -> None:
        await self._server.close()
