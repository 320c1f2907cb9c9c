"""What a Call is about, for tracing. Calls that are not traced by jobs have no subject."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from duetime.model.job import Delivery, Lease, NewJob
from duetime.model.names import Queue


class Pushing(Struct, frozen=True):
    """`again` makes the same call with other jobs instead of these."""

    queue: Queue
    jobs: Sequence[NewJob]
    again: Callable[[Sequence[NewJob]], Any]


class Reserving(Struct, frozen=True):
    """The call answers deliveries."""


class Settling(Struct, frozen=True):
    """The call ends the leases of these jobs by `verb`."""

    verb: str
    leased: Sequence[Lease | Delivery]


Subject = Pushing | Reserving | Settling | None
