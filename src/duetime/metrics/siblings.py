"""The worker processes of one server, as one of them sees them all.

A part of a worker that has something to say about its process (its metrics, its health) registers a handler; whichever
worker is asked by a client then asks all of them:

    runtime.siblings.handle("metrics", show_metrics)
    for reply in await runtime.siblings.ask_all("metrics"): ...

A server of one process has no other siblings, and the same code serves it. `server/supervision/` holds what
implements this protocol.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from duetime.http.balance import ConnectionBalance

Handler = Callable[[bytes], Awaitable[bytes]]
"""Answers a named request of another process."""


class WorkerReply(msgspec.Struct, array_like=True, frozen=True):
    """`worker` is the worker's name, "1" to "N": the name of its place, which its replacement takes over."""

    worker: str
    body: bytes


class WorkerInfo(msgspec.Struct, array_like=True, frozen=True):
    """`restarts` counts unexpected ends in this place since the server's start; `started_at` is epoch milliseconds."""

    name: str
    pid: int
    state: str
    restarts: int
    started_at: int


class Siblings(Protocol):
    name: str
    """This worker's own name."""
    balance: ConnectionBalance | None
    """With whom it shares its clients; None if it has them all."""

    def handle(self, name: str, handler: Handler) -> None:
        """Answer requests of this name in this process."""
        ...

    async def ask_all(self, name: str, body: bytes = b"") -> Sequence[WorkerReply]:
        """The answers of all workers that have one, this one included, in the order of their names."""
        ...

    async def workers(self) -> Sequence[WorkerInfo]: ...
