"""A Call: one verb of the SDK, without any I/O.

A Call knows how to be done in two ways: as an HTTP request and its answer, and as a coroutine on an embedded engine.
Both clients, sync and async, only hand Calls to a transport, so all four combinations answer alike. The engine is
imported for its type only: a program that talks to a server does not wait for it.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from duetime.model.job import Delivery, Lease, NewJob
from duetime.model.names import Queue

if TYPE_CHECKING:
    from duetime.engine import Engine

Answer = TypeVar("Answer")
Other = TypeVar("Other")


class Request(msgspec.Struct, frozen=True):
    method: str
    path: str
    body: bytes = b""


# --- what a call is about, for tracing


class Pushing(msgspec.Struct, frozen=True):
    """`again` makes the same call with other jobs instead of these."""

    queue: Queue
    jobs: Sequence[NewJob]
    again: Callable[[Sequence[NewJob]], Any]


class Reserving(msgspec.Struct, frozen=True):
    """The call answers deliveries."""


class Settling(msgspec.Struct, frozen=True):
    """The call ends the leases of these jobs by `verb`."""

    verb: str
    leased: Sequence[Lease | Delivery]


Subject = Pushing | Reserving | Settling | None


class Call(msgspec.Struct, Generic[Answer], frozen=True):
    """`repeatable`: doing it twice is as good as once, so a lost answer is asked for again. `request` is made once,
    however often it is sent. `run_blocking` is `run` for a caller in another thread than the engine's; without it the
    client runs `run` in the engine's event loop.
    """

    request: Callable[[], Request]
    parse: Callable[[bytes], Answer]
    run: Callable[["Engine"], Awaitable[Answer]]
    repeatable: bool = False
    wait_ms: int = 0
    subject: Subject = None
    run_blocking: Callable[["Engine"], Answer] | None = None


def then(call: Call[Answer], finish: Callable[[Answer], Other]) -> Call[Other]:
    """The same call with its answer turned into something else."""

    async def run(engine: "Engine") -> Other:
        return finish(await call.run(engine))

    inner = call.run_blocking
    subject = call.subject
    if isinstance(subject, Pushing):
        again = subject.again
        subject = Pushing(subject.queue, subject.jobs, lambda jobs: then(again(jobs), finish))
    elif isinstance(subject, Reserving):
        subject = None  # the new answer holds no deliveries
    return Call(
        call.request,
        lambda reply: finish(call.parse(reply)),
        run,
        call.repeatable,
        call.wait_ms,
        subject,
        (lambda engine: finish(inner(engine))) if inner else None,
    )


# --- requests and replies


def queue_path(queue: Queue, *rest: str) -> str:
    """The address of a queue, or of something in it."""
    return "/".join(["/v1/queues", *(quote(part, safe="") for part in (*queue, *rest))])


def post_request(queue: Queue, verb: str, message: msgspec.Struct) -> Request:
    return Request("POST", queue_path(queue, verb), msgspec.json.encode(message))


def get_request(address: str, **query: object) -> Request:
    """A GET with those parts of the query that are not None."""
    given = {name: value for name, value in query.items() if value is not None}
    return Request("GET", f"{address}?{urlencode(given)}" if given else address)


def decode(reply: bytes, kind: type[Other]) -> Other:
    return msgspec.json.decode(reply, type=kind)
