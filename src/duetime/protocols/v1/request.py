"""One request and its reply, between ASGI and the handlers.

A handler gets a NativeRequest, which is admitted, decoded and checked. It returns a Reply, which the application
encodes and sends.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from starlette.types import Receive, Scope

from duetime.callbacks.topic_service import TopicService
from duetime.engine import Engine
from duetime.model.errors import InvalidRequest
from duetime.model.names import Queue
from duetime.protocols.asgi import Header, exchange_of, read_body
from duetime.protocols.parking import park
from duetime.protocols.rate_limits import Slot
from duetime.protocols.tokens import Access, bearer, token_text

In = TypeVar("In")
Query = TypeVar("Query")
T = TypeVar("T")

MakeId = Callable[[], str]
Headers = Sequence[Header]

JSON = b"application/json"


class Reply(msgspec.Struct, frozen=True):
    """`content` is sent as it is, a message as JSON. `undo` takes back what the reply would have handed over, should it
    not reach the client. `settle` is called once, with whether the client has the reply, which shows after it was sent.
    """

    status: int
    message: msgspec.Struct | None = None
    headers: Headers = ()
    content: bytes = b""
    content_type: bytes = JSON
    undo: Callable[[], Awaitable[None]] | None = None
    settle: Callable[[bool], Awaitable[None]] | None = None


class QueuePath(NamedTuple):
    """What the path says: the queue and the job's id; what is not in it is empty."""

    queue: Queue
    job_id: str = ""


class NativeRequest(Generic[In, Query]):
    """`message` is the decoded body, `raw` the body as it came. The application sets engine, pool, scopes, topics,
    query and message when it has let the request in.
    """

    __slots__ = (
        "_receive",
        "_scope",
        "engine",
        "headers",
        "job_id",
        "make_id",
        "message",
        "pool",
        "query",
        "queue",
        "raw",
        "scopes",
        "slot",
        "topics",
    )

    engine: Engine
    pool: str
    scopes: frozenset[Access]
    topics: TopicService
    query: Query
    message: In

    def __init__(self, scope: Scope, receive: Receive, queue_path: QueuePath, make_id: MakeId) -> None:
        self.queue, self.job_id = queue_path
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        self.make_id = make_id
        self.raw = b""
        self.slot: Slot | None = None
        self._scope = scope
        self._receive = receive

    @property
    def query_string(self) -> bytes:
        return bytes(self._scope["query_string"])

    async def read(self, limit: int) -> bytes:
        """The whole body, at most `limit` bytes. Raises BodyTooLarge, ClientGone."""
        self.raw = await read_body(self._scope, self._receive, limit)
        return self.raw

    @property
    def unwatched(self) -> bool:
        """Another HTTP server than ours is in front, which drops answers to clients that have gone in silence."""
        return exchange_of(self._scope) is None

    async def park(self, waiting: Awaitable[T], otherwise: T) -> T:
        """Wait for as long as the client does; a draining server ends it early with `otherwise`."""
        return await park(self._scope, self._receive, waiting, otherwise)


def token_of(headers: Mapping[bytes, bytes]) -> str:
    """The token's text from `Authorization: Bearer` or `X-Token`; empty if there is none."""
    return bearer(headers) or token_text(headers.get(b"x-token", b""))


def idempotency_key(headers: Mapping[bytes, bytes]) -> str:
    """The Idempotency-Key header, empty if it was not sent."""
    raw = headers.get(b"idempotency-key")
    if raw is None:
        return ""
    key = raw.decode("latin-1")
    if not 1 <= len(key) <= MAX_KEY or not key.isascii() or not key.isprintable():
        raise InvalidRequest(f"an Idempotency-Key is 1 to {MAX_KEY} printable ASCII characters")
    return key


MAX_KEY = 200
"""A batch of single results appends a number to it, and a mark's name ends at 255."""

AnyRequest = NativeRequest[Any, Any]
Handler = Callable[[AnyRequest], Awaitable[Reply]]
