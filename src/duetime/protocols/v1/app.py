"""The native API, an ASGI application.

It uses no framework. There is a table of routes, a decoder for each, and the same steps for every request: find the
route, check the names, check the token and its limit, read and decode the body, call the handler, send the answer.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from msgspec import UNSET
from starlette.types import Receive, Scope, Send

from duetime.callbacks.topic_service import TopicService
from duetime.engine.pools import Pools
from duetime.http.exchange import ClientGone
from duetime.model.errors import DuetimeError, Forbidden, InvalidRequest, MethodNotAllowed, NotFound, Unauthorized
from duetime.model.ids import IdMaker
from duetime.model.names import DEFAULT_POOL, Queue, check_id, check_namespace, check_queue
from duetime.protocols.access_log import POOL
from duetime.protocols.asgi import exchange_of, send_answer
from duetime.protocols.fast_path import RequestFastPath
from duetime.protocols.rate_limits import RateLimits, Side, Slot
from duetime.protocols.tokens import EVERYTHING, Access, Tokens, split
from duetime.protocols.v1.openapi import PAGES, MakePage
from duetime.protocols.v1.request import (
    AnyRequest,
    NativeRequest,
    QueuePath,
    QueuesQuery,
    Response,
    encode,
    error_response,
    internal_error,
    not_valid,
    token_of,
)
from duetime.protocols.v1.routes import ROUTES, Route
from duetime.wire.messages import MAX_REQUEST, BatchIn

log = logging.getLogger("duetime.server")

MAX_PARAMETERS = 20
MAX_KNOWN = 10_000
T = TypeVar("T")

NO_TOKEN = (
    "this server requires a token: `Authorization: Bearer TOKEN`; "
    "the SDK and the duetime command read it from DUETIME_TOKEN"
)
NOWHERE = QueuePath(Queue("", ""))


class Admitted(NamedTuple):
    """The pool that the request goes to, its slot of the token's limit, if it has one, and the token's scopes."""

    pool: str
    slot: Slot | None = None
    scopes: frozenset[Access] = EVERYTHING


class TokenGate:
    """The server's own tokens and limits."""

    def __init__(self, tokens: Tokens, limits: RateLimits) -> None:
        self._tokens = tokens
        self.limits = limits

    async def admit(self, token: str, namespace: str | None, needs: Sequence[Access], side: Side | None) -> Admitted:
        """`token` is its text with the pool in front, empty if none was sent; it must allow all of `needs`.

        Without a namespace the request is about all of them. Raises Unauthorized, Forbidden, PoolNotFound,
        TooManyRequests.
        """
        pool, secret = split(token)
        try:
            self._tokens.require_pool(pool)
            if namespace is None:
                self._tokens.require_dev()
                return Admitted(pool)
            known = await self._tokens.check(pool, namespace, secret)
        except (Unauthorized, Forbidden) as error:
            if not secret:
                raise Unauthorized(NO_TOKEN) from None
            if isinstance(error, Unauthorized):
                raise Unauthorized(f"the token is not valid for the namespace {namespace!r}") from None
            raise
        for access in needs:
            known.require(access)
        return Admitted(pool, await self.limits.spend(known, side) if side else None, known.scopes)


@dataclass
class RouteNode(Generic[T]):
    literals: dict[bytes, "RouteNode[T]"] = field(default_factory=dict[bytes, "RouteNode[T]"])
    name: "RouteNode[T] | None" = None
    methods: dict[str, T] = field(default_factory=dict[str, T])


class Router(Generic[T]):
    """A tree of path segments; a lookup costs one step per segment, however many routes there are.

    The raw path is split before it is decoded, so a job id may hold a slash (%2F). Literal parts win over names.
    """

    def __init__(self) -> None:
        self._root: RouteNode[T] = RouteNode()

    def add(self, method: str, path: str, route: T) -> None:
        node = self._root
        for part in path.encode().split(b"/"):
            if part.startswith(b"{"):
                node.name = node = node.name or RouteNode()
            else:
                node = node.literals.setdefault(part, RouteNode())
        node.methods[method] = route

    def find(self, method: str, raw_path: bytes) -> tuple[T, Sequence[str]]:
        """The route and the names in its path, decoded. Raises NotFound, MethodNotAllowed."""
        node: RouteNode[T] | None = self._root
        names: list[str] = []
        for part in raw_path.split(b"/"):
            literal = node.literals.get(part)
            if literal is not None:
                node = literal
                continue
            node = node.name
            if node is None:
                raise NotFound("there is nothing at this address")
            names.append(_decode_name(part))
        if not node.methods:
            raise NotFound("there is nothing at this address")
        route = node.methods.get(method)
        if route is None:
            allowed = sorted(node.methods)
            raise MethodNotAllowed(f"this address takes {', '.join(allowed)}", allow=allowed)
        return route, names


def _decode_name(part: bytes) -> str:
    raw = unquote_to_bytes(part) if b"%" in part else part
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("path must be UTF-8") from None


@dataclass(frozen=True)
class Endpoint:
    """A route with its decoder."""

    route: Route
    decode: Callable[[bytes], Any] | None


class V1App:
    """Serves /v1. The scope's path is the full one."""

    def __init__(
        self,
        pools: Pools,
        gate: TokenGate,
        *,
        topics: TopicService | None = None,
        make_id: Callable[[], str] | None = None,
        max_request: int = MAX_REQUEST,
        fast_path: RequestFastPath | None = None,
    ) -> None:
        self._pools = pools
        self._gate = gate
        self._topics = topics or TopicService(lambda: pools.engine(DEFAULT_POOL).store.registry, pools.engine)
        self._make_id = make_id or IdMaker().make
        self._max_request = max_request
        self._fast_path = fast_path
        self._known: dict[tuple[str, bytes], tuple[Endpoint, QueuePath]] = {}
        self._router: Router[Endpoint | MakePage] = Router()
        for route in ROUTES:
            decode = msgspec.json.Decoder(route.takes).decode if route.takes else None
            self._router.add(route.method, route.path, Endpoint(route, decode))
        for path, page in PAGES.items():
            self._router.add("GET", path, page)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._answer(scope, receive)
        except DuetimeError as error:
            response = error_response(error)
        except ClientGone:
            return
        except Exception:
            log.exception("request_failed", extra={"path": scope["path"]})
            response = error_response(internal_error())
        try:
            content = response.content if response.message is None else encode(response.message)
            shared = ((b"content-type", response.content_type),)
            await send_answer(scope, send, response.status, shared, content, response.headers)
        except BaseException as error:
            if response.undo is not None:
                await response.undo()
            if response.on_delivery is not None:
                await _report_delivery(response.on_delivery, False)
            if not isinstance(error, OSError):
                raise
        else:
            if on_delivery := response.on_delivery:
                exchange_of(scope).follow_up(lambda is_received: _report_delivery(on_delivery, is_received))

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        key = (scope["method"], scope["raw_path"])
        known = self._known.get(key)
        if known is None:
            endpoint, names = self._router.find(*key)
            if not isinstance(endpoint, Endpoint):
                return await asyncio.to_thread(endpoint)
            queue_path = self._queue_path(endpoint, names, key, scope)
        else:
            endpoint, queue_path = known
        route = endpoint.route
        request: AnyRequest = NativeRequest(scope, receive, queue_path, self._make_id)
        token = token_of(request.headers)
        generation = self._fast_path.generation if self._fast_path else 0
        pool, request.slot, request.scopes = await self._gate.admit(
            token, queue_path.queue.namespace or None, route.needs, route.spends
        )
        scope[POOL] = pool
        try:
            response = await self._serve(endpoint, pool, request)
        except BaseException:
            if request.slot:
                await self._gate.limits.refund(request.slot)
            raise
        if request.slot is None and route.operation is not None:
            self._remember(scope, generation, endpoint, pool, queue_path.queue)
        return response

    def _remember(self, scope: Scope, generation: int, endpoint: Endpoint, pool: str, queue: Queue) -> None:
        """Let requests like this one, which was served, take the fast path."""
        if self._fast_path is None:
            return
        assert endpoint.route.operation is not None
        assert endpoint.decode is not None
        operation = endpoint.route.operation(
            self._pools, pool, queue, endpoint.decode, make_id=self._make_id, max_request=self._max_request
        )
        self._fast_path.remember(exchange_of(scope), generation, operation)

    def _queue_path(self, endpoint: Endpoint, names: Sequence[str], key: tuple[str, bytes], scope: Scope) -> QueuePath:
        if not names:
            return _path_in(_read_query(scope["query_string"], endpoint.route.query))
        is_schedule = "{schedule}" in endpoint.route.path
        queue_path = _schedule_path(*names) if is_schedule else _check_names(names)
        if not queue_path.job_id:
            # Producers and consumers use the same few addresses, so their names are checked once and remembered.
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[key] = endpoint, queue_path
        return queue_path

    async def _serve(self, endpoint: Endpoint, pool: str, request: AnyRequest) -> Response:
        request.engine = self._pools.engine(pool)
        request.pool, request.topics = pool, self._topics
        request.query = _read_query(request.query_string, endpoint.route.query)
        request.message = None
        if endpoint.decode is not None:
            raw = await request.read(self._max_request)
            request.message = _decode(endpoint.decode, b"{}" if endpoint.route.optional and not raw else raw)
            if request.slot and isinstance(request.message, BatchIn):
                request.slot = await self._gate.limits.widen(request.slot, len(request.message.jobs))
        return await endpoint.route.handle(request)


async def _report_delivery(on_delivery: Callable[[bool], Awaitable[None]], is_received: bool) -> None:
    """The response is written, so an error can only be logged; the leases of the jobs in the response then expire."""
    try:
        await on_delivery(is_received)
    except DuetimeError as error:
        log.warning("delivery_report_failed", extra={"error": error.code, "received": is_received})


def _schedule_path(namespace: str, name: str) -> QueuePath:
    """A schedule may have any name that a job may have as its id."""
    return QueuePath(Queue(check_namespace(namespace), ""), check_id(name, "schedule name"))


def _check_names(names: Sequence[str]) -> QueuePath:
    match names:
        case [namespace, queue]:
            return QueuePath(check_queue(namespace, queue))
        case [namespace, queue, job_id]:
            return QueuePath(check_queue(namespace, queue), check_id(job_id))
        case _:
            return QueuePath(Queue(check_namespace(names[0]), ""))


def _path_in(query: Any) -> QueuePath:
    """The namespace of a request whose path has no names: the query may have one."""
    if isinstance(query, QueuesQuery) and query.namespace is not UNSET:
        return QueuePath(Queue(check_namespace(query.namespace), ""))
    return NOWHERE


def _read_query(raw: bytes, kind: type[msgspec.Struct] | None) -> Any:
    if not raw and kind is None:
        return None
    try:
        pairs = parse_qsl(raw.decode(), keep_blank_values=True, max_num_fields=MAX_PARAMETERS, errors="strict")
    except ValueError:
        raise InvalidRequest("query cannot be read, or has too many parameters") from None
    given = dict(pairs)
    if len(given) < len(pairs):
        raise InvalidRequest("query parameter must not be given twice")
    if kind is None:
        if given:
            raise InvalidRequest(f"path must have no query parameters, got {', '.join(sorted(given))}")
        return None
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise not_valid(error, "query") from None


def _decode(decode: Callable[[bytes], Any], raw: bytes) -> Any:
    try:
        return decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise not_valid(error, "body") from None
