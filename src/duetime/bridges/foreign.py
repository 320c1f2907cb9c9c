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

import msgspec
from msgspec import Struct

from duetime.model.errors import InvalidRequest, InvalidSettings
from duetime.model.job import Delivery, NewJob
from duetime.model.masking import mask
from duetime.model.names import MAX_ID

HELD_BYTES = 1 << 20
"""Of a batch, so that the other system is blocked for a few milliseconds only, however large its jobs are."""
CLOSED_MS = 600_000
"""A closed batch can be held again after this time: no push of it that began before is still under way then."""


class Sizes(Struct, frozen=True):
    """Jobs of one foreign queue. `held` ones are in a batch that a relay moves, or that a killed relay left behind.
    `oldest_due_at` is when the earliest waiting job was or is due, if that is known.
    """

    ready: int
    delayed: int
    reserved: int = 0
    quarantined: int = 0
    held: int = 0
    oldest_due_at: int | None = None

    @property
    def total(self) -> int:
        return self.ready + self.delayed + self.reserved + self.held


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

    def list_sizes(self, queues: Sequence[str]) -> dict[str, Sizes]:
        """Of several queues, which may cost no more than of one."""
        return {queue: self.sizes(queue) for queue in queues}

    def hold(self, queue: str, limit: int, size: int = HELD_BYTES) -> HeldBatch | None:
        """A batch that was left behind, else up to `limit` jobs, delayed ones included; None if none is left. No job is
        added to the batch once it has `size` bytes.
        """

    def forget(self, queue: str, batch: HeldBatch, back: Sequence[int] = (), *, if_unshared: bool = False) -> None:
        """Delete a held batch, and put those jobs of it back into the queue, with their due times. Does nothing if the
        batch is gone. With `if_unshared` a batch that `hold` has returned more than once is closed instead: another
        relay may be pushing it.
        """

    def accept(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        """Add our jobs, ready to run there. A job that was accepted in the last week is not added again.
        Raises InvalidRequest, and adds nothing, if a job cannot be written in the form that the other system requires.
        """
        raise InvalidRequest(f"jobs cannot be relayed to {self.system}: its clients work with Duetime's server")

    def close(self) -> None: ...


def own_id(theirs: bytes, prefix: str = "") -> str:
    """The id that a foreign job has here. One that is too long or not printable is replaced by its hash."""
    plain = prefix + theirs.decode(errors="surrogateescape")
    if len(plain) <= MAX_ID and plain.isprintable():
        return plain
    return prefix + hashlib.blake2b(theirs, digest_size=16).hexdigest()


class BridgeOptions(Struct, frozen=True):
    """What only some of the systems have: the prefix of their keys; Laravel's retry_after and handler of our jobs;
    php-delayqueue's number of buckets.
    """

    prefix: str | None = None
    retry_after: str = "90s"
    handler: str | None = None
    buckets: int = 2


def open_foreign(system: str, url: str, options: BridgeOptions) -> ForeignQueues:
    """`system` is laravel, redisson, lmstfy or delayqueue. Modules are imported here: each needs drivers of its own."""
    match system:
        case "laravel":
            from duetime.bridges.laravel import connect  # noqa: PLC0415

            return connect(url, prefix=options.prefix or "", retry_after=options.retry_after, handler=options.handler)
        case "redisson":
            from duetime.bridges.redisson import Redisson  # noqa: PLC0415

            return Redisson(url)
        case "lmstfy":
            from duetime.bridges.lmstfy import Lmstfy  # noqa: PLC0415

            return Lmstfy(url)
        case "delayqueue":
            from duetime.bridges.delayqueue import DelayQueue  # noqa: PLC0415

            prefix = "dq_" if options.prefix is None else options.prefix
            return DelayQueue(url, prefix=prefix, buckets=options.buckets)
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
    given = {name: query.pop(name) for name in BridgeOptions.__struct_fields__ if name in query}
    try:
        options = msgspec.convert(given, BridgeOptions, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidSettings(f"bridge {mask(address)} has a wrong option: {error}") from None
    plain = urlunsplit(parts._replace(query=urlencode(query), fragment=""))
    return parts.fragment or system, open_foreign(system, plain, options)
