"""Waiting for a job only for as long as the client waits for the answer.

Our own HTTP server does that in the request's task. Under any other, a second task listens for the disconnect and
cancels the wait, as asyncio.timeout does at a deadline: whether the wait was over or was cancelled is decided in one
step, so a job is never both delivered and given back.
"""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from types import TracebackType
from typing import TypeVar

from starlette.types import Receive, Scope

from duetime.engine import Engine
from duetime.http.exchange import ClientGone
from duetime.model.errors import DuetimeError, LeaseLost
from duetime.model.job import Delivery
from duetime.protocols.asgi import exchange_of

log = logging.getLogger("duetime.server")

T = TypeVar("T")


async def park(scope: Scope, receive: Receive, waiting: Awaitable[T], otherwise: T) -> T:
    """Await; a draining server ends it early with `otherwise`. Raises ClientGone, or is cancelled by the server."""
    exchange = exchange_of(scope)
    if exchange is not None:
        return await exchange.park(waiting, otherwise)
    async with WhileConnected(receive):
        return await waiting


class WhileConnected:
    """Cancels what runs in its block when the client disconnects, and turns that into ClientGone."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "an ASGI application runs in a task"
        self._task = task
        self._cancelling = task.cancelling()
        self._watcher = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watcher.cancel()
        if self._gone and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise ClientGone from None


async def give_back_all(engine: Engine, deliveries: Sequence[Delivery]) -> None:
    """Undo deliveries that reached nobody, as far as that is still possible; otherwise their leases lapse."""
    backs = await asyncio.gather(*(engine.give_back(one.lease) for one in deliveries), return_exceptions=True)
    for one, error in zip(deliveries, backs, strict=True):
        if isinstance(error, DuetimeError):
            if not isinstance(error, LeaseLost):
                log.warning("give_back_failed", extra={"job": one.lease.id, "error": error.code})
        elif isinstance(error, BaseException):
            raise error
