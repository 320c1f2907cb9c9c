"""Calls for one job that take a shorter way than a store's verbs: in the caller's own thread, or without a task.

A caller that is alone pays more for the way to the store and back than for the store. A store may offer these calls for
what is usual about it. Whatever is not goes the general way: the answer is None then, and nothing was done.
`engine/direct_steps.py` and `engine/posted_steps.py` decide when they are used.
"""

from collections.abc import Callable
from time import monotonic
from typing import Protocol, TypeVar, runtime_checkable

from duetime.model.errors import DuetimeError
from duetime.model.job import Delivery, Lease, Moved
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed, Reserved

Orphan = Callable[[Delivery], None]
"""Takes a job that was leased for a caller that was interrupted before it got it."""


class DirectCalls(Protocol):
    """One call at a time, from any thread, while the store is open. Raises StoreUnavailable if the answer was lost."""

    def push(self, queue: Queue, request: Push) -> Pushed | DuetimeError | None:
        """Push a request of one job."""
        ...

    def reserve(self, queue: Queue, ask: Ask, orphan: Orphan) -> Reserved | None:
        """Lease one job if one is ready."""
        ...

    def ack(self, lease: Lease) -> Moved | None:
        """Finish a job whose lease is held."""
        ...

    def ack_and_reserve(self, lease: Lease, ask: Ask, orphan: Orphan) -> Reserved | None:
        """Finish a job whose lease is held, and lease one of the same queue if one is ready: both or none."""
        ...

    def close(self) -> None:
        """Called in the thread of the last call, or when there is none under way."""
        ...


Answer = TypeVar("Answer", contravariant=True)  # noqa: PLC0105


class Done(Protocol[Answer]):
    """Called once, in a later turn of the event loop: with the answer, with an error, or with None twice if nothing was
    done. It does not raise.
    """

    def __call__(self, answer: Answer | None, error: Exception | None, /) -> None: ...


class PostedCalls(Protocol):
    """Calls from the event loop of the store. False: nothing was sent, and `done` is not called."""

    def push(self, queue: Queue, request: Push, done: Done[Pushed]) -> bool:
        """Push a request of one job."""
        ...

    def reserve(self, queue: Queue, ask: Ask, done: Done[Reserved]) -> bool:
        """Lease one job if one is ready."""
        ...

    def ack(self, lease: Lease, done: Done[Moved]) -> bool:
        """Finish a job whose lease is held."""
        ...


@runtime_checkable
class OffersPostedCalls(Protocol):
    """What a store with posted calls has beside the contract."""

    def posted_calls(self) -> PostedCalls: ...


@runtime_checkable
class OffersDirectCalls(Protocol):
    """What a store with direct calls has beside the contract."""

    def direct_calls(self) -> DirectCalls | None:
        """New direct calls to this store; None if the way that it was opened has none."""
        ...


UNUSUAL_S = 1.0
"""How long a verb goes the general way in a queue after it had to once."""
MAX_UNUSUAL = 10_000


class UnusualQueues:
    """The queues that last declined a call of these, by verb. Thread-safe as far as it needs to be: it is a hint."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, Queue], float] = {}

    def has(self, verb: str, queue: Queue) -> bool:
        until = self._until.get((verb, queue))
        return until is not None and until > monotonic()

    def add(self, verb: str, queue: Queue) -> None:
        if len(self._until) >= MAX_UNUSUAL:
            self._until.clear()
        self._until[verb, queue] = monotonic() + UNUSUAL_S

    def clear(self) -> None:
        self._until.clear()
