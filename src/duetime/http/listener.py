"""A listener: sockets that accept, and the life of all their connections.

It takes bound sockets, so that a supervisor can hand the same ones to several processes, and it stops in bounded time:
nothing new is accepted, parked waits end, answers under way are finished, and what is left at the deadline is cut.
"""

import asyncio
import socket
from collections.abc import Sequence

from starlette.types import ASGIApp

from duetime.http.acceptor import Acceptor
from duetime.http.balance import ConnectionBalance
from duetime.http.connection import Connection
from duetime.http.memory_budget import Budget
from duetime.http.service import HttpLimits, Service
from duetime.model.ticks import to_tick

BUDGET = 128 * 1_048_576
"""The memory budget in bytes, where none is given."""
IDLE_GRACE_S = 0.5
"""How long a drained connection without a request stays open: a request may be on its way."""


class Listener:
    """Serves between `start` and `stop`. Belongs to one event loop."""

    def __init__(
        self,
        app: ASGIApp,
        sockets: Sequence[socket.socket],
        *,
        limits: HttpLimits | None = None,
        budget: Budget | None = None,
        balance: ConnectionBalance | None = None,
    ) -> None:
        self._service = Service(app, limits or HttpLimits(), budget or Budget(BUDGET), balance)
        self._acceptors = [Acceptor(sock, self) for sock in sockets]
        self._watch: asyncio.Task[None] | None = None

    @property
    def service(self) -> Service:
        """The state that its connections share; metrics read it."""
        return self._service

    async def start(self) -> None:
        self._service.tell_count()
        for acceptor in self._acceptors:
            acceptor.start()
        self._watch = asyncio.create_task(self._watch_time())

    async def stop(self, grace_s: float) -> None:
        """Drain for at most `grace_s` seconds."""
        service = self._service
        service.draining = True
        service.tell_count()
        for acceptor in self._acceptors:
            await acceptor.close()
        for client in list(service.connections):
            client.drain()
        if service.connections or service.requests:
            await self._wait_empty(grace_s)
        if self._watch is not None:
            self._watch.cancel()

    # --- what the acceptors ask

    def is_packed(self) -> bool:
        return self._service.is_packed()

    def is_ahead(self) -> bool:
        return self._service.balance is not None and self._service.balance.is_ahead()

    def connection(self) -> Connection:
        return Connection(self._service)

    # --- the end

    async def _wait_empty(self, grace_s: float) -> None:
        service = self._service
        idle_grace = asyncio.get_running_loop().call_later(min(IDLE_GRACE_S, grace_s / 2), self._close_idle)
        try:
            async with asyncio.timeout(grace_s):
                await service.empty.wait()
        except TimeoutError:
            await service.cut()
        finally:
            idle_grace.cancel()

    def _close_idle(self) -> None:
        for client in list(self._service.connections):
            client.close_if_idle()

    async def _watch_time(self) -> None:
        service = self._service
        while True:
            await asyncio.sleep(to_tick(service.tick_s, asyncio.get_running_loop()))
            service.move_clock()
            for client in list(service.connections):
                client.watch(service.now)
