"""One server process: stores, engines, two listeners and signals, in one event loop.

`serve` returns when it was told to stop (TERM, INT or USR2) and everything is closed: nothing new is accepted, parked
polls end, requests under way are answered, for at most `drain_timeout`. A second signal cuts what is left.
"""

import asyncio
import errno
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

from duetime.api.app import Runtime, admin_app, api_app, companions
from duetime.api.listener import Listener
from duetime.engine.mirror import Mirror
from duetime.engine.pools import Pools
from duetime.errors import InvalidSettings
from duetime.settings import FILE, Settings, row, variable
from duetime.stores.open import open_store

try:
    import uvloop
except ImportError:  # not on every platform
    uvloop = None

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
ADMIN_GRACE_S = 1.0
"""The admin listener answers until the API is drained, and then has this long."""


class Addresses(NamedTuple):
    """Where the two listeners are, with the ports that were picked."""

    api: str
    admin: str


Announce = Callable[[Runtime, Addresses], None]


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
        api_socket = stack.enter_context(bind(settings, "host", "port"))
        admin_socket = stack.enter_context(bind(settings, "admin_host", "admin_port"))
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
        api = Listener(api_app(runtime), [api_socket])
        admin = Listener(admin_app(runtime), [admin_socket])
        await api.start()
        await admin.start()
        announce(runtime, Addresses(_url(api_socket), _url(admin_socket)))
        await signals.stop.wait()
        runtime.draining.set()
        await _drain(api, admin, signals, settings.drain_timeout.total_seconds())


async def _drain(api: Listener, admin: Listener, signals: "Signals", grace_s: float) -> None:
    async def gently() -> None:
        await api.stop(grace_s)
        await admin.stop(min(grace_s, ADMIN_GRACE_S))

    drain = asyncio.create_task(gently())
    hurry = asyncio.create_task(signals.hurry.wait())
    await asyncio.wait({drain, hurry}, return_when=asyncio.FIRST_COMPLETED)
    hurry.cancel()
    if not drain.done():
        drain.cancel()
        await asyncio.gather(drain, api.stop(0), admin.stop(0), return_exceptions=True)
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


def bind(settings: Settings, host_setting: str, port_setting: str) -> socket.socket:
    """A listening socket. Without SO_REUSEPORT: two servers on one port by accident must not go unnoticed."""
    host: str = getattr(settings, host_setting)
    port: int = getattr(settings, port_setting)
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen()
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise _cannot_listen(error, host_setting, port_setting, f"{host}:{port}") from None
    return sock


def _cannot_listen(error: OSError, host_setting: str, port_setting: str, address: str) -> InvalidSettings:
    if error.errno == errno.EADDRINUSE:
        return InvalidSettings(f"{address} is taken: choose another port with {_ways_to_set(port_setting)}")
    if error.errno == errno.EACCES:
        return InvalidSettings(
            f"{address} is not allowed for this user: choose another port with {_ways_to_set(port_setting)}"
        )
    reason = os.strerror(error.errno) if isinstance(error.errno, int) and error.errno > 0 else str(error)
    return InvalidSettings(f"cannot listen on {address} ({reason}): set {_ways_to_set(host_setting)}")


def _ways_to_set(name: str) -> str:
    ways = [row(name).flag, variable(name), f"{name} in {FILE}"]
    return " or ".join(way for way in ways if way)


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
