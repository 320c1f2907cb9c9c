"""What a Call is about, for those who watch calls go by: tracing. The other calls have no subject."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from duetime.job import Delivery, Lease, NewJob
from duetime.names import Queue


@dataclass(frozen=True)
class Pushing:
    """`again` makes the same call with other jobs in the place of these."""

    queue: Queue
    jobs: Sequence[NewJob]
    again: Callable[[Sequence[NewJob]], Any]


@dataclass(frozen=True)
class Reserving:
    """Answers deliveries."""


@dataclass(frozen=True)
class Settling:
    """`verb` ends the holding of these."""

    verb: str
    leased: Sequence[Lease | Delivery]


Subject = Pushing | Reserving | Settling | None
