"""The transports of Calls: over HTTP, or into an engine of this process.

Retries are here, once: a call that certainly did not arrive is sent again, one whose answer was lost only if it is
repeatable, and a server that asks for patience gets it.
"""

import asyncio
import functools
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

import httpx
import msgspec

from duetime.backoff import Outage
from duetime.client.calls import Call, Request
from duetime.client.embedded_engine import embedded_engine
from duetime.engine import Engine
from duetime.errors import DuetimeError, StoreUnavailable
from duetime.wire import convert, messages

Answer = TypeVar("Answer")

TRIES = 5
CONNECT_S = 5.0
REPLY_S = 30.0
OK_BELOW = 400

MoreHeaders = Callable[[], dict[str, str]]
"""What each request of a client carries beside its own headers."""


class AsyncTransport(Protocol):
    async def send(self, call: Call[Answer]) -> Answer: ...

    async def close(self) -> None: ...


class SyncTransport(Protocol):
    def send(self, call: Call[Answer]) -> Answer: ...

    def close(self) -> None: ...


@functools.cache
def _trust() -> ssl.SSLContext:
    """What all clients of this process check servers with. To read the certificates takes ten times as long as all else
    that a new client does.
    """
    return httpx.create_ssl_context()


def _headers(token: str | None) -> dict[bytes, bytes]:
    headers = {b"content-type": b"application/json", b"accept": b"application/json"}
    # In bytes, because a token may be any UTF-8 and the client takes text for ASCII.
    return headers | {b"authorization": b"Bearer " + token.encode()} if token else headers


def _built(
    client: httpx.Client | httpx.AsyncClient, request: Request, call: Call[Any], headers: dict[str, str]
) -> httpx.Request:
    timeout = httpx.Timeout(REPLY_S + call.wait_ms / 1000, connect=CONNECT_S)
    return client.build_request(request.method, request.path, content=request.body, headers=headers, timeout=timeout)


class Attempts:
    """What to do after each try of one call; the same for the sync and the async transport."""

    def __init__(self, call: Call[Any]) -> None:
        self._call = call
        self._outage = Outage()

    def after_error(self, error: httpx.TransportError) -> float:
        """The pause before the next try, or the error that ends it."""
        unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
        if (unsent or self._call.repeatable) and (pause := self._pause()) is not None:
            return pause
        raise StoreUnavailable(f"the server cannot be reached: {error or type(error).__name__}", unknown=not unsent)

    def after_refusal(self, error: DuetimeError) -> float:
        """As `after_error`, after a refusal of the server."""
        passing = isinstance(error, StoreUnavailable) and (self._call.repeatable or not error.outcome_unknown)
        if passing and (pause := self._pause()) is not None:
            return pause
        raise error

    def _pause(self) -> float | None:
        self._outage.failed()
        return self._outage.pause_s if self._outage.failures < TRIES else None


def _refusal(reply: httpx.Response) -> DuetimeError:
    try:
        return convert.error(msgspec.json.decode(reply.content, type=messages.ErrorOut))
    except msgspec.MsgspecError:
        return DuetimeError(f"the server answered {reply.status_code}: {reply.text[:200]}", status=reply.status_code)


class AsyncHttp:
    def __init__(self, url: str, token: str | None, *, more_headers: MoreHeaders = dict) -> None:
        self._client = httpx.AsyncClient(base_url=url, headers=_headers(token), verify=_trust())
        self._more_headers = more_headers

    async def send(self, call: Call[Answer]) -> Answer:
        request, attempts = call.request(), Attempts(call)
        while True:
            try:
                reply = await self._client.send(_built(self._client, request, call, self._more_headers()))
                if reply.status_code < OK_BELOW:
                    return call.parse(reply.content)
                pause = attempts.after_refusal(_refusal(reply))
            except httpx.TransportError as error:
                pause = attempts.after_error(error)
            await asyncio.sleep(pause)

    async def close(self) -> None:
        await self._client.aclose()


class SyncHttp:
    def __init__(self, url: str, token: str | None, *, more_headers: MoreHeaders = dict) -> None:
        self._client = httpx.Client(base_url=url, headers=_headers(token), verify=_trust())
        self._more_headers = more_headers

    def send(self, call: Call[Answer]) -> Answer:
        request, attempts = call.request(), Attempts(call)
        while True:
            try:
                reply = self._client.send(_built(self._client, request, call, self._more_headers()))
                if reply.status_code < OK_BELOW:
                    return call.parse(reply.content)
                pause = attempts.after_refusal(_refusal(reply))
            except httpx.TransportError as error:
                pause = attempts.after_error(error)
            time.sleep(pause)

    def close(self) -> None:
        self._client.close()


class AsyncEmbedded:
    """An engine in this event loop, opened at the first call. It lives in a task of its own, so that it may be closed
    from another task than the one that opened it.
    """

    def __init__(self, url: str, journal: str | None = None) -> None:
        self._url = url
        self._journal = journal
        self._engine: Engine | None = None
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
                    ready.set_result(engine)
                    await self._stop.wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)
        finally:
            self._engine = None

    async def close(self) -> None:
        self._stop.set()
        if self._host:
            await self._host


class SyncEmbedded:
    """An engine in a thread of its own."""

    def __init__(self, url: str, journal: str | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="duetime engine", daemon=True)
        self._thread.start()
        self._inner = self._run(self._make(url, journal))

    async def _make(self, url: str, journal: str | None) -> AsyncEmbedded:
        return AsyncEmbedded(url, journal)

    def _run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            # A caller that is interrupted while it waits takes no job with it.
            future.cancel()
            raise

    def send(self, call: Call[Answer]) -> Answer:
        return self._run(self._inner.send(call))

    def close(self) -> None:
        if self._thread.is_alive():
            self._run(self._inner.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


def is_http(url: str) -> bool:
    return url.startswith(("http://", "https://"))
