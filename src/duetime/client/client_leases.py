"""The calls about leases through a client, for `consumer/`: over HTTP or to a store, async or from another thread."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from duetime.client import calls
from duetime.client.call import Call
from duetime.client.calls import Result
from duetime.model.errors import DuetimeError
from duetime.model.job import Lease, Moved
from duetime.stores.base import Finish, Finished


class ClientLeases:
    """`send` makes a call; each list is about one queue."""

    def __init__(self, send: Callable[[Call[Any]], Awaitable[Any]]) -> None:
        self._send = send

    async def ack(self, leases: Sequence[Lease]) -> Sequence[Result]:
        return await self._send(calls.ack(leases[0].queue, leases))

    async def finish(self, finishes: Sequence[Finish]) -> Sequence[Finished | DuetimeError | None]:
        return await self._send(calls.finish(finishes[0].lease.queue, finishes))

    async def release(self, lease: Lease, *, delay_ms: int = 0, error: str = "") -> Moved:
        return await self._send(calls.release(lease, f"{delay_ms}ms", error))

    async def give_back(self, lease: Lease, *, delay_ms: int | None = None) -> Moved:
        return await self._send(calls.give_back(lease, None if delay_ms is None else f"{delay_ms}ms"))

    async def kill(self, lease: Lease, *, error: str = "") -> Moved:
        return await self._send(calls.kill(lease, error))

    async def extend(self, lease: Lease, ttr_ms: int) -> int:
        return await self._send(calls.extend(lease, f"{ttr_ms}ms"))
