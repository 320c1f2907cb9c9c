"""One request and its response, between ASGI and the handlers.

A handler gets a NativeRequest, which is admitted, decoded and checked. It returns a Response, which the application
encodes and sends.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field
from starlette.types import Receive, Scope

from duetime.callbacks.topic_service import TopicService
from duetime.engine import Engine
from duetime.engine.pools import Pools
from duetime.engine.requests import Request
from duetime.http.exchange import Exchange
from duetime.model.errors import (
    DuetimeError,
    InvalidRequest,
    MethodNotAllowed,
    Overloaded,
    StoreUnavailable,
    TooManyRequests,
    Unauthorized,
)
from duetime.model.job import State
from duetime.model.names import Queue
from duetime.protocols.asgi import Header, read_body
from duetime.protocols.rate_limits import Slot
from duetime.protocols.tokens import Access, bearer, token_text
from duetime.wire.convert import error_out
from duetime.wire.messages import MAX_BUCKETS, MAX_LIST, DurationIn, InstantIn

log = logging.getLogger("duetime.server")

encode = msgspec.json.Encoder().encode

In = TypeVar("In")
Query = TypeVar("Query")

MakeId = Callable[[], str]
Headers = Sequence[Header]

JSON = b"application/json"
PROBLEM = b"application/problem+json"
MAX_DETAIL = 1000

DEFAULT_SPAN_MS = 3_600_000
RETRY_AFTER_S = 1
MAX_KEY = 200
"""A batch of single results appends a number to it, and a mark's name ends at 255."""


class Response(msgspec.Struct, frozen=True):
    """`content` is sent as it is, a message as JSON. `undo` gives back the jobs of a response that could not be sent.
    `on_delivery` is called once, after the response was sent, with whether the client received it.
    """

    status: int
    message: msgspec.Struct | None = None
    headers: Headers = ()
    content: bytes = b""
    content_type: bytes = JSON
    undo: Callable[[], Awaitable[None]] | None = None
    on_delivery: Callable[[bool], Awaitable[None]] | None = None


class QueuePath(NamedTuple):
    """The queue and the job's id from the path; a part that is missing there is empty."""

    queue: Queue
    job_id: str = ""


class NativeRequest(Generic[In, Query]):
    """`message` is the decoded body, `raw` the body as it came. The application sets engine, pool, scopes, topics,
    query and message when it has let the request in.
    """

    __slots__ = (
        "engine",
        "headers",
        "job_id",
        "make_id",
        "message",
        "pool",
        "query",
        "queue",
        "raw",
        "receive",
        "scope",
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
        self.scope = scope
        self.receive = receive

    @property
    def query_string(self) -> bytes:
        return bytes(self.scope["query_string"])

    async def read(self, limit: int) -> bytes:
        """The whole body, at most `limit` bytes. Raises BodyTooLarge, ClientGone."""
        self.raw = await read_body(self.scope, self.receive, limit)
        return self.raw


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
        raise InvalidRequest(f"Idempotency-Key must have 1 to {MAX_KEY} printable ASCII characters")
    return key


# --- query parameters of every route that has any; the OpenAPI document lists them from here


class CallQuery(Struct, forbid_unknown_fields=True):
    wait: Annotated[DurationIn, Meta(description="longest wait for the answer, at most an hour; default: 5s")] = "5s"


class ListQuery(Struct, forbid_unknown_fields=True):
    state: Annotated[State, Meta(description="the state of the jobs")]
    cursor: Annotated[str, Meta(description="the cursor of the previous page")] | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=MAX_LIST, description="jobs in a page")] = 100


class QueuesQuery(Struct, forbid_unknown_fields=True):
    namespace: Annotated[str, Meta(description="only this namespace; default: all, for the scope admin")] | (
        UnsetType
    ) = UNSET


class DueQuery(Struct, forbid_unknown_fields=True):
    start: Annotated[InstantIn, Meta(description="the first edge; default: now")] | UnsetType = field(
        default=UNSET, name="from"
    )
    end: Annotated[InstantIn, Meta(description="the last edge; default: an hour after the first")] | UnsetType = field(
        default=UNSET, name="to"
    )
    buckets: Annotated[int, Meta(ge=1, le=MAX_BUCKETS, description="intervals; default: 60")] | UnsetType = UNSET
    edges: (
        Annotated[
            str,
            Meta(
                description="instead: the edges, increasing epoch milliseconds, separated by commas",
                extra_json_schema={"pattern": r"^\d{1,15}(,\d{1,15})+$"},
            ),
        ]
        | UnsetType
    ) = UNSET
    within: Annotated[DurationIn, Meta(description="instead: jobs that are ready or due within this time")] | (
        UnsetType
    ) = UNSET


# --- errors


def error_response(error: DuetimeError) -> Response:
    message = error_out(error)
    if len(message.detail) > MAX_DETAIL:
        # Some details quote the request, which may be long.
        message.detail = f"{message.detail[:MAX_DETAIL]} ..."
    return Response(error.status, message, headers=_headers(error), content_type=PROBLEM)


def _headers(error: DuetimeError) -> list[tuple[bytes, bytes]]:
    match error:
        case MethodNotAllowed():
            return [(b"allow", ", ".join(error.fields["allow"]).encode())]
        case Unauthorized():
            return [(b"www-authenticate", b'Bearer realm="duetime"')]
        case StoreUnavailable() | TooManyRequests() | Overloaded():
            wait = error.fields.get("retry_after_s", RETRY_AFTER_S)
            return [(b"retry-after", str(wait).encode())]
        case _:
            return []


def not_valid(error: Exception, what: str) -> InvalidRequest:
    """The error for a request that the decoder refused; its field `path` says where."""
    if isinstance(error, RecursionError):
        return InvalidRequest(f"the {what} is nested too deeply")
    if not isinstance(error, msgspec.ValidationError):
        return InvalidRequest(f"the {what} is not JSON: {error}")
    problem, at, path = str(error).rpartition(" - at `")
    if not at or not path.endswith("`"):
        return InvalidRequest(f"the {what} is not valid: {error}", path="$")
    path = path.removesuffix("`")
    return InvalidRequest(f"the {what} is not valid at {path}: {problem}", path=path)


def internal_error() -> DuetimeError:
    """The answer to a crash: the traceback is in the log, under the request id that the client gets."""
    return DuetimeError("internal server error; search the server's log for the X-Request-ID of this response")


# --- the fast path


class Submitted(NamedTuple):
    """The decoded body of a request, and the engine's request made of it; the exchange keeps both."""

    message: Any
    request: Request[Any]


class V1Operation(Generic[In]):
    """Serves requests with one head on the fast path (`protocols/fast_path.py`), with the steps of their handler."""

    def __init__(
        self,
        pools: Pools,
        pool: str,
        queue: Queue,
        decode: Callable[[bytes], In],
        *,
        make_id: MakeId,
        max_request: int,
    ) -> None:
        self.pools = pools
        self.pool = pool
        self.queue = queue
        self.make_id = make_id
        self._decode = decode
        self._max_request = max_request

    def submit(self, exchange: Exchange) -> bool:
        if exchange.received > self._max_request:
            return False
        message = self._decode(exchange.body() or b"{}")
        request = self.request(message)
        if request is None:
            return False
        exchange.context = Submitted(message, request)
        self.pools.engine(self.pool).submit(request, exchange)
        return True

    def request(self, message: In) -> Request[Any] | None:
        """The request for the engine. None if the application has to serve it."""
        raise NotImplementedError

    @staticmethod
    def response(message: Any, result: Any) -> Response:
        raise NotImplementedError

    def respond(self, exchange: Exchange, result: Any) -> None:
        submitted: Submitted = exchange.context
        try:
            response = self.response(submitted.message, result)
        except DuetimeError as error:
            response = error_response(error)
        self.finish(exchange, response)

    def fail(self, exchange: Exchange, error: Exception) -> None:
        if not isinstance(error, DuetimeError):
            log.error("request_failed", exc_info=error)
            error = internal_error()
        self.finish(exchange, error_response(error))

    def finish(self, exchange: Exchange, response: Response) -> bool:
        """Returns False if the client disconnected."""
        headers = ((b"content-type", response.content_type), *response.headers)
        return exchange.finish(response.status, headers, encode(response.message))


AnyRequest = NativeRequest[Any, Any]
Handler = Callable[[AnyRequest], Awaitable[Response]]
