"""Queues of another system, as the relay and the command line see it.

A job leaves the other system in two steps, so that a crash in between loses and doubles nothing. `hold` moves jobs
out of the reach of the other system's workers into a batch that is stored next to the queue. After Duetime has
accepted the batch under its name as push mark, `forget` deletes it. A batch that a killed relay left behind is the
first that the next `hold` returns, with the same name and jobs.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from duetime.model.errors import InvalidSettings
from duetime.model.job import Delivery, NewJob
from duetime.model.names import MAX_ID

HELD_BYTES = 1 << 20
"""Of a batch, so that the other system is blocked for a few milliseconds only, however large its jobs are."""


class Sizes(Struct, frozen=True):
    """Jobs of one foreign queue. `oldest_due_at` is when its earliest waiting job was or is due, if that is known."""

    ready: int
    delayed: int
    reserved: int = 0
    quarantined: int = 0
    oldest_due_at: int | None = None

    @property
    def total(self) -> int:
        return self.ready + self.delayed + self.reserved


class HeldBatch(Struct, frozen=True):
    """Jobs that left the other system's queue. Their ids and due times are the same each time the batch is read."""

    name: str
    jobs: Sequence[NewJob]
    stored: Sequence[Sequence[Any]]
    """Each job as the batch stores it, with which `forget` can give it back."""


class ForeignQueues(Protocol):
    """The queues of another system. Blocking; every method is atomic on the other side."""

    system: str

    def names(self) -> Sequence[str]:
        """The queues that exist there now."""
        ...

    def sizes(self, queue: str) -> Sizes: ...

    def hold(self, queue: str, limit: int, size: int = HELD_BYTES) -> HeldBatch | None:
        """A batch that was left behind, else up to `limit` jobs, delayed ones included; None if none is left. No job is
        added to the batch once it has `size` bytes.
        """
        ...

    def forget(self, queue: str, batch: HeldBatch, back: Sequence[int] = ()) -> None:
        """Delete a held batch, and put those jobs of it back into the queue, with their due times. Does nothing if the
        batch is gone.
        """
        ...

    def accept(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        """Add our jobs, ready to run there. A job that was accepted in the last week is not added again.

        Raises InvalidRequest, and adds nothing, if a job cannot be written in the form that the other system requires.
        """
        ...

    def close(self) -> None: ...


def relayed_id(system: str, theirs: str) -> str:
    """The id that a foreign job has here. Long or unprintable ids are replaced by their hash."""
    plain = f"{system}-{theirs}"
    if len(plain) <= MAX_ID and plain.isprintable():
        return plain
    return f"{system}-{hashlib.blake2b(theirs.encode(errors='surrogateescape'), digest_size=16).hexdigest()}"


class BridgeOptions(Struct, frozen=True):
    """What only some of the systems have: the prefix of their keys; Laravel's retry_after and handler of our jobs."""

    prefix: str | None = None
    retry_after: str = "90s"
    handler: str | None = None


def open_foreign(system: str, url: str, options: BridgeOptions) -> ForeignQueues:
    """`system` is laravel, redisson, lmstfy or delayqueue. Modules are imported here: each needs drivers of its own."""
    match system:
        case "laravel":
            from duetime.bridges.laravel import connect  # noqa: PLC0415

            given = {"retry_after": options.retry_after, "handler": options.handler}
            return connect(url, prefix=options.prefix or "", **given)  # pyright: ignore[reportArgumentType]
        case "redisson":
            from duetime.bridges.redisson import Redisson  # noqa: PLC0415

            return Redisson(url)
        case "lmstfy":
            from duetime.bridges.lmstfy import Lmstfy  # noqa: PLC0415

            return Lmstfy(url)
        case "delayqueue":
            from duetime.bridges.delayqueue import DelayQueue  # noqa: PLC0415

            return DelayQueue(url, prefix="dq_" if options.prefix is None else options.prefix)
        case _:
            raise InvalidSettings(f"bridge must be to laravel, redisson, lmstfy or delayqueue, got {system!r}")


def open_bridge(address: str) -> tuple[str, ForeignQueues]:
    """Name and queues of an address like `laravel+redis://localhost/0?prefix=laravel_database_#shop`. The name is the
    fragment, or the system.
    """
    system, plus, url = address.partition("+")
    if not plus:
        raise InvalidSettings("bridge must be given as SYSTEM+URL, like laravel+redis://localhost?prefix=laravel_")
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    options = BridgeOptions(query.pop("prefix", None), query.pop("retry_after", "90s"))
    plain = urlunsplit(parts._replace(query=urlencode(query), fragment=""))
    return parts.fragment or system, open_foreign(system, plain, options)
