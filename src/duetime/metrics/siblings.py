"""The protocol by which the worker processes of one server ask each other for their metrics or health.

A part of a worker that can report about its process registers a handler. The worker that a client asks then asks all
workers:

    runtime.siblings.handle("metrics", show_metrics)
    for reply in await runtime.siblings.ask_all("metrics"): ...

In a server of one process, `ask_all` answers for that process alone. `server/supervision/siblings.py` implements this
protocol.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from duetime.http.balance import ConnectionBalance

Handler = Callable[[bytes], Awaitable[bytes]]
"""Answers a named request of another process."""


class WorkerReply(msgspec.Struct, array_like=True, frozen=True):
    """`worker` is the worker's name, "1" to "N"; a process that replaces another one takes over its name."""

    worker: str
    body: bytes


class WorkerInfo(msgspec.Struct, array_like=True, frozen=True):
    """`restarts` counts unexpected ends since the server's start; `started_at` is epoch milliseconds."""

    name: str
    pid: int
    state: str
    restarts: int
    started_at: int


class Siblings(Protocol):
    name: str
    """This worker's own name."""
    balance: ConnectionBalance | None
    """The connection counts of all workers, by which they share new clients evenly; None if nothing is shared."""

    def handle(self, name: str, handler: Handler) -> None:
        """Answer requests of this name in this process."""
        ...

    async def ask_all(self, name: str, body: bytes = b"") -> Sequence[WorkerReply]:
        """The answers of all workers that have one, this one included, in the order of their names."""
        ...

    async def workers(self) -> Sequence[WorkerInfo]: ...
