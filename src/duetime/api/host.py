"""One server process: stores, engines, listeners and signals, in one event loop.

`serve` returns when it was told to stop (TERM, INT or USR2) and everything is closed: nothing new is accepted, parked
polls end, requests under way are answered, for at most `drain_timeout`. A second signal cuts what is left.
"""

import asyncio
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from starlette.types import ASGIApp

from duetime.api.app import Runtime, admin_app, api_app, companions
from duetime.api.entrances import Entrance, Listening, Make, addresses, bind_all, close_all
from duetime.api.listener import Listener
from duetime.api.service import limits_of
from duetime.engine.mirror import Mirror
from duetime.engine.pools import Pools
from duetime.settings import Settings
from duetime.stores.open import open_store

try:
    import uvloop
except ImportError:  # not on every platform
    uvloop = None

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
LAST_GRACE_S = 1.0
"""The admin listener answers until the others are drained, and then has this long."""


def http(make_app: Callable[[Runtime], ASGIApp]) -> Make:
    """An HTTP listener for an application, within the limits that are set."""

    def make(runtime: Runtime, sockets: Sequence[socket.socket]) -> Listening:
        return Listener(make_app(runtime), sockets, limits=limits_of(runtime.settings), budget=runtime.budget)

    return make


ENTRANCES: Sequence[Entrance] = (
    Entrance("API", "host", "port", http(api_app)),
    Entrance("admin", "admin_host", "admin_port", http(admin_app), last=True),
)
"""Everything that a server can listen on. A further door is a further row, with its settings."""

Announce = Callable[[Runtime, Mapping[str, str]], None]
"""Gets the address of each entrance by its name."""


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run on the fastest event loop there is."""
    factory = None if uvloop is None else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work)


async def serve(settings: Settings, *, announce: Announce) -> None:
    """Serve until told to stop; `announce` is called once, when everything is up.

    Raises InvalidSettings for a port that cannot be had and for stores that no waiting would bring. A store that is
    only down is opened when it comes back.
    """
    async with AsyncExitStack() as stack:
        sockets = bind_all(ENTRANCES, settings)
        stack.callback(close_all, sockets)
        signals = Signals()
        pools = Pools(
            settings.pools,
            open_store=open_store,
            registry_url=settings.registry_store,
            max_body=settings.max_body,
        )
        await stack.enter_async_context(pools)
        mirror = await stack.enter_async_context(Mirror(lambda: pools.registry))
        runtime = Runtime(settings, pools, mirror)
        for companion in companions(runtime):
            await stack.enter_async_context(companion)
        listeners = [(one.make(runtime, [sockets[one.name]]), one.last) for one in ENTRANCES if one.name in sockets]
        for listener, _ in listeners:
            await listener.start()
        announce(runtime, addresses(ENTRANCES, sockets))
        await signals.stop.wait()
        runtime.draining.set()
        await _drain(listeners, signals, settings.drain_timeout.total_seconds())


async def _drain(listeners: Sequence[tuple[Listening, bool]], signals: "Signals", grace_s: float) -> None:
    async def gently() -> None:
        await asyncio.gather(*(listener.stop(grace_s) for listener, last in listeners if not last))
        await asyncio.gather(*(listener.stop(min(grace_s, LAST_GRACE_S)) for listener, last in listeners if last))

    drain = asyncio.create_task(gently())
    hurry = asyncio.create_task(signals.hurry.wait())
    await asyncio.wait({drain, hurry}, return_when=asyncio.FIRST_COMPLETED)
    hurry.cancel()
    if not drain.done():
        drain.cancel()
        await asyncio.gather(drain, *(listener.stop(0) for listener, _ in listeners), return_exceptions=True)
    else:
        drain.result()


class Signals:
    """`stop` after the first signal, `hurry` after the second."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._received)

    def _received(self) -> None:
        (self.hurry if self.stop.is_set() else self.stop).set()
