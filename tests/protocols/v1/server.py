"""The native API on a given store, on a real socket.

    async with serve(store) as served:
        httpx.get(f"{served.url}/v1/queues")

The store keeps its own clock, so a test that turns a ManualClock turns the server's time too. `reaping=False` leaves
the reaper to the test: the contract suite calls `reap` itself and counts what it moves.

`python -m tests.protocols.v1.server TOKEN STORE` serves a store to that token until its input ends, and prints the URL.
"""

import asyncio
import math
import socket
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

from duetime.engine import Engine
from duetime.http.listener import Listener
from duetime.model.errors import PoolNotFound, Unauthorized
from duetime.model.names import DEFAULT_POOL
from duetime.protocols.fast_path import RequestFastPath
from duetime.protocols.rate_limits import Side
from duetime.protocols.tokens import Access, split
from duetime.protocols.v1 import V1App
from duetime.protocols.v1.app import Admitted
from duetime.stores.base import Reaped, Store
from duetime.stores.open import open_store

GRACE_S = 2.0


class OpenGate:
    """Lets everybody in; the pool is the token's prefix."""

    async def admit(self, token: str, namespace: str | None, needs: Sequence[Access], side: Side | None) -> Admitted:
        return Admitted(split(token)[0])


class StaticRegistry:
    """A copy of a registry that never changes."""

    def __init__(self) -> None:
        self.generations: defaultdict[str, int] = defaultdict(int)
        self.seen_at = math.inf


class NoAccessLog:
    enabled = False


class OneEngine:
    """Pools with a single one, called default."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def engine(self, name: str) -> Engine:
        if name != DEFAULT_POOL:
            raise PoolNotFound.of(name)
        return self._engine


@dataclass(frozen=True)
class Listening:
    """`stop` drains the HTTP server; leaving the block does it too. `connections` is how many there are now."""

    url: str
    stop: Callable[[], Awaitable[None]]
    connections: Callable[[], int]


@dataclass(frozen=True)
class Served(Listening):
    engine: Engine


@asynccontextmanager
async def serve(
    store: Store, *, gate: "OpenGate | None" = None, reaping: bool = True, **options: Any
) -> AsyncIterator[Served]:
    """`options` go to the application. Repeated requests take the fast path."""
    fast_path = RequestFastPath(StaticRegistry(), NoAccessLog(), grace_s=60)
    async with Engine(store if reaping else _Unreaped(store)) as engine:
        app = V1App(OneEngine(engine), gate or OpenGate(), fast_path=fast_path, **options)
        async with listen(app, fast_path) as at:
            yield Served(at.url, at.stop, at.connections, engine)


@asynccontextmanager
async def listen(app: ASGIApp, fast_path: RequestFastPath | None = None) -> AsyncIterator[Listening]:
    """Any ASGI application on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        listener = Listener(app, [sock])
        listener.service.fast_path = fast_path
        await listener.start()
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        try:
            yield Listening(url, lambda: listener.stop(GRACE_S), lambda: len(listener.service.connections))
        finally:
            await listener.stop(GRACE_S)


class OneToken:
    """A gate that one token opens, for every namespace."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def admit(self, token: str, namespace: str | None, needs: Sequence[Access], side: Side | None) -> Admitted:
        if token != self._token:
            raise Unauthorized
        return Admitted("default")


class _Unreaped:
    """A store whose engine finds nothing to reap."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def reap(self, limit: int = 500, *, recorded: Sequence[str] = ()) -> Reaped:
        return Reaped({}, None, (await self._store.ping()).now)


async def main(token: str, store_url: str) -> None:
    store = await open_store(store_url)
    async with serve(store, gate=OneToken(token)) as served:
        print(served.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
