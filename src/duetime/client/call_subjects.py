"""What a Call is about, for tracing. Calls that are not traced by jobs have no subject."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from duetime.job import Delivery, Lease, NewJob
from duetime.names import Queue


@dataclass(frozen=True)
class Pushing:
    """`again` makes the same call with other jobs instead of these."""

    queue: Queue
    jobs: Sequence[NewJob]
    again: Callable[[Sequence[NewJob]], Any]


@dataclass(frozen=True)
class Reserving:
    """The call answers deliveries."""


@dataclass(frozen=True)
class Settling:
    """The call ends the leases of these jobs by `verb`."""

    verb: str
    leased: Sequence[Lease | Delivery]


Subject = Pushing | Reserving | Settling | None
