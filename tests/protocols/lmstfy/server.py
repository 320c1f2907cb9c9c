"""A whole server in a thread of its own: pools, both lmstfy listeners, real sockets."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace, TracebackType
from typing import Any, TypeVar

import msgspec
import uvloop
from starlette.types import Message, Scope

from duetime.engine.pools import Pools
from duetime.engine.registry_copy import RegistryCopy
from duetime.http.exchange import ClientGone, Exchange
from duetime.http.listener import Listener
from duetime.metrics.meters import Meters
from duetime.model.job import Counts, NewJob
from duetime.model.names import Queue
from duetime.model.settings import Settings, load
from duetime.protocols.fast_path import RequestFastPath
from duetime.protocols.lmstfy import LmstfyApp, LmstfyParts
from duetime.server.apps import Runtime, admin_app, api_app
from duetime.server.process import PoolRecorders
from duetime.stores.open import open_store
from tests.protocols.lmstfy.client import Lmstfy
from tests.protocols.lmstfy.wire import Address

GRACE_S = 5.0

T = TypeVar("T")


@asynccontextmanager
async def open_runtime(settings: Settings) -> AsyncIterator[Runtime]:
    meters = Meters(settings.metrics_queues)
    watch = PoolRecorders(meters).watch
    async with (
        Pools(settings.pools, open_store=open_store, max_body=settings.max_body, watch=watch) as pools,
        RegistryCopy(lambda: pools.registry) as registry_copy,
    ):
        yield Runtime(settings, pools, registry_copy, meters=meters)


def poll_scope(lmstfy: Lmstfy, queue: str, count: int) -> Scope:
    return {
        "type": "http",
        "method": "GET",
        "path": f"/api/{lmstfy.namespace}/{queue}",
        "query_string": b"count=%d" % count,
        "headers": [(b"x-token", lmstfy.token.encode())],
        "extensions": {"duetime.exchange": SimpleNamespace(send=None)},
    }


class CountedFastPath:
    """The server's fast path, which counts the requests that it accepted."""

    def __init__(self, fast_path: RequestFastPath) -> None:
        self._fast_path = fast_path
        self.count = 0
        self.knows = fast_path.knows

    def accept(self, exchange: Exchange) -> bool:
        accepted = self._fast_path.accept(exchange)
        self.count += accepted
        return accepted


class Server:
    """A context manager: inside it `api` and `admin` are listening."""

    api: Address
    admin: Address

    def __init__(self, urls: Mapping[str, str], *, dev: bool = False, **settings: object) -> None:
        """Pools by name, and settings as they would stand in duetime.toml."""
        pools = {name: {"store": url} for name, url in urls.items()}
        self._settings = load(flags={"dev": dev or None}, environment={}, file={**settings, "pool": pools})
        self._thread = threading.Thread(target=self._run, name="lmstfy server")
        self._started = threading.Event()
        self._error: BaseException | None = None
        self.parts: LmstfyParts
        self.fast_path: RequestFastPath | None
        self._counted: CountedFastPath | None = None

    def __enter__(self) -> "Server":
        self._thread.start()
        self._started.wait()
        if self._error:
            raise self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.is_alive():
            self.stop()
        if self._error:
            raise self._error

    async def push(self, namespace: str, queue: str, job_id: str, *, tries: int) -> None:
        """As another protocol would."""
        engine = self.parts.pools.engine("default")
        await self._inside(engine.push(Queue(namespace, queue), [NewJob(job_id, b"x", tries=tries)]))

    async def parked(self) -> int:
        """How many polls wait in the server, all pools together."""

        async def count() -> int:
            pools = self.parts.pools
            return sum(pools.engine(name).parked for name in pools.names)

        return await self._inside(count())

    async def only_waits(self) -> bool:
        """Whether no parked poll is in a call of the store: an outage in the middle of a call ends a poll."""

        async def look() -> bool:
            engines = [self.parts.pools.engine(name) for name in self.parts.pools.names]
            return not any(
                waiter.busy for engine in engines for one in engine._waiters.lists.values() for waiter in one.parked
            )

        return await self._inside(look())

    async def counts(self, namespace: str) -> dict[str, Counts]:
        """Of every queue in the namespace; without the time of counting, so that two of them can be compared."""
        store = self.parts.pools.engine("default").store

        async def count() -> dict[str, Counts]:
            queues = await store.queues(namespace)
            found = await store.counts(queues)
            return {queue.name: msgspec.structs.replace(one, now=0) for queue, one in zip(queues, found, strict=True)}

        return await self._inside(count())

    async def _inside(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def consume_for_nobody(self, lmstfy: Lmstfy, queue: str, *, count: int) -> None:
        """A request whose client goes when its answer is ready."""
        request = poll_scope(lmstfy, queue, count)

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            raise ClientGone

        await self._inside(LmstfyApp(self.parts)(request, receive, send))

    async def accept(self, request: Exchange) -> bool:
        async def accept() -> bool:
            assert self._counted is not None
            return self._counted.accept(request)

        return await self._inside(accept())

    @property
    def fast_requests(self) -> int:
        """How many requests took the fast path."""
        return self._counted.count if self._counted else 0

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            uvloop.run(self._serve())
        except BaseException as error:  # shown by the test's own thread
            self._error = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with open_runtime(self._settings) as runtime:
            self.parts, self.fast_path = runtime.lmstfy, runtime.fast_path
            self._counted = CountedFastPath(runtime.fast_path) if runtime.fast_path else None
            sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
            apps = (api_app(runtime), admin_app(runtime))
            listeners = [Listener(app, [sock]) for app, sock in zip(apps, sockets, strict=True)]
            listeners[0].service.fast_path = self._counted
            for listener in listeners:
                await listener.start()
            self.api, self.admin = (Address(*sock.getsockname()) for sock in sockets)
            self._started.set()
            await self._stop.wait()
            await asyncio.gather(*(listener.stop(GRACE_S) for listener in listeners))
