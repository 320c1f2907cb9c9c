"""lmstfy's public API: every route on one screen, and the order in which a request is checked.

name -> pool -> token -> throttle -> handler. A plain ASGI application without a framework: publish, consume and
acknowledge are the hot path of a server, and the other routes are few.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from starlette.types import Receive, Scope, Send

from duetime.http.exchange import ClientGone
from duetime.model.clock import Clock, SystemClock
from duetime.model.errors import (
    BodyTooLarge,
    DuetimeError,
    Forbidden,
    InvalidRequest,
    Overloaded,
    PoolNotFound,
    QueueFull,
    TooManyRequests,
    TopicOffline,
    Unauthorized,
)
from duetime.model.ids import IdMaker
from duetime.model.names import Queue
from duetime.protocols.access_log import POOL
from duetime.protocols.asgi import exchange_of, header, request_id, send_answer
from duetime.protocols.lmstfy import consumers, inspection, producers
from duetime.protocols.lmstfy.call import LmstfyCall, LmstfyTools
from duetime.protocols.lmstfy.metrics import METHODS
from duetime.protocols.lmstfy.options import LmstfyParts
from duetime.protocols.lmstfy.params import (
    check_consumed_names,
    check_names,
    consumed_queues,
    read_consuming,
    read_publishing,
)
from duetime.protocols.lmstfy.shortcut import KnownLine, LmstfyShortcut
from duetime.protocols.lmstfy.wire import (
    JSON,
    LmstfyAnswer,
    Refused,
    error,
    parse_query,
    to_json,
    without_slash,
)
from duetime.protocols.parking import give_back_all
from duetime.protocols.rate_limits import Side, Slot
from duetime.protocols.tokens import Access, Token, split, token_in_query, token_text

log = logging.getLogger("duetime.lmstfy")

Handler = Callable[[LmstfyTools, LmstfyCall], Awaitable[LmstfyAnswer]]

NOT_FOUND = error(404, "api not found")
INTERNAL = error(500, "internal error")
CRASHED = LmstfyAnswer(500, b"", ())
GONE = LmstfyAnswer(499, b"", ())
"""The client has gone; only the metrics see this answer."""
PREFIX = "/api/:namespace/:queue"
KNOWN_LINES = 1024
LONGEST_LINE = 1024
"""How many request lines are remembered, and the longest one in characters and bytes."""
ERRORS = 300
"""From this status on an answer is not one of success."""
ACTIONS = {Side.READ: "consume", Side.WRITE: "produce"}


class LmstfyRoute(NamedTuple):
    """A token needs one of `access`; `side` is the limit that the request counts against; `public` needs no token;
    `is_short`: a request like one that was served may take the shortcut.
    """

    handler: Handler
    access: tuple[Access, ...] = (Access.READ,)
    side: Side | None = None
    public: bool = False
    consumes: bool = False
    is_short: bool = False


READ, WRITE, ADMIN = Access.READ, Access.WRITE, Access.ADMIN

ROUTES: Mapping[tuple[str, str], LmstfyRoute] = {
    ("PUT", ""): LmstfyRoute(producers.publish, (WRITE,), Side.WRITE, is_short=True),
    ("PUT", "/bulk"): LmstfyRoute(producers.bulk_publish, (WRITE,), Side.WRITE),
    ("PUT", "/job/:job_id"): LmstfyRoute(producers.republish, (WRITE,), Side.WRITE),
    ("GET", ""): LmstfyRoute(consumers.consume, (READ,), Side.READ, consumes=True, is_short=True),
    ("GET", "/peek"): LmstfyRoute(inspection.peek_head),
    ("GET", "/job/:job_id"): LmstfyRoute(inspection.peek_job),
    ("DELETE", "/job/:job_id"): LmstfyRoute(consumers.acknowledge, (READ, WRITE), is_short=True),
    ("DELETE", ""): LmstfyRoute(inspection.destroy, (ADMIN,)),
    ("GET", "/size"): LmstfyRoute(inspection.size, public=True),
    ("GET", "/deadletter"): LmstfyRoute(inspection.peek_dead),
    ("PUT", "/deadletter"): LmstfyRoute(inspection.respawn, (ADMIN,)),
    ("DELETE", "/deadletter"): LmstfyRoute(inspection.delete_dead, (ADMIN,)),
    ("GET", "/deadletter/size"): LmstfyRoute(inspection.dead_size, public=True),
}


class KnownToken(NamedTuple):
    """What the line and the token of an earlier request said."""

    route: LmstfyRoute
    api: str
    namespace: str
    queues: str
    queue: Queue
    query: Mapping[str, str]
    pool: str
    secret: str


Line = tuple[str, str, bytes, bytes]
"""Method, path, query and token of a request."""


def _line(call: LmstfyCall) -> Line:
    scope = call.scope
    return scope["method"], scope["path"], scope["query_string"], header(scope, b"x-token")


class LmstfyApp:
    """An ASGI application for the API listener."""

    def __init__(self, parts: LmstfyParts, *, clock: Clock | None = None) -> None:
        self._pools = parts.pools
        self._tokens = parts.tokens
        self._limits = parts.limits
        self._metrics = parts.metrics
        self._options = parts.options
        clock = clock or SystemClock()
        self._tools = LmstfyTools(parts.metrics, parts.options.defaults, parts.options.max_body, clock, IdMaker(clock))
        self._request_ids = IdMaker(clock)
        self._known: dict[Line, KnownToken] = {}
        self.shortcut = LmstfyShortcut(parts, self._tools, _answer_of)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started = time.perf_counter()
        call = LmstfyCall(scope, receive)
        answer = await self._answer(call)
        _, name_header = request_id(scope, self._request_ids.make)
        try:
            await send_answer(scope, send, answer.status, answer.headers, answer.body, name_header)
        except OSError:
            if call.taken:
                await give_back_all(call.engine, call.taken)
        elapsed_s = time.perf_counter() - started
        pool, namespace = (call.pool, call.namespace) if call.admitted else ("", "")
        method = scope["method"] if scope["method"] in METHODS else ""
        self._metrics.finished((pool, namespace, call.api, method), answer.status, elapsed_s)

    async def _answer(self, call: LmstfyCall) -> LmstfyAnswer:
        """Every error becomes an answer here; the answer says nothing about the inside of the server."""
        try:
            route = self._recall(call) or self._read(call)
            return await self._serve(route, call) if route else _no_route(call)
        except Refused as refusal:
            return refusal.answer
        except DuetimeError as failure:
            return _failed(failure)
        except ClientGone:
            return GONE
        except Exception:
            log.exception("request_crashed")
            return CRASHED

    def _recall(self, call: LmstfyCall) -> LmstfyRoute | None:
        """The route of an equal request before; producers and consumers send the same line over and over."""
        known = self._known.get(_line(call))
        if known is None:
            return None
        call.api, call.namespace, call.queues, call.queue = known.api, known.namespace, known.queues, known.queue
        call.query, call.pool, call.secret = known.query, known.pool, known.secret
        call.is_known = True
        return known.route

    def _read(self, call: LmstfyCall) -> LmstfyRoute | None:
        """Reads the request's line and token into `call`. Raises an error for what is wrong with them."""
        call.query = parse_query(call.scope["query_string"])
        route = _find_route(call)
        if route is None:
            return None
        if route.consumes:
            check_consumed_names(call.namespace, call.queues)
        else:
            check_names(call.namespace, call.queues)
        text = token_text(header(call.scope, b"x-token")) or token_in_query(call.scope["query_string"])
        call.pool, call.secret = split(text)
        if call.pool not in self._pools:
            raise PoolNotFound
        return route

    def _remember(self, route: LmstfyRoute, call: LmstfyCall) -> None:
        """Remembers the line of an admitted request that may come again; lines about one job do not."""
        line = _line(call)
        if not call.job_id and sum(map(len, line)) <= LONGEST_LINE:
            if len(self._known) >= KNOWN_LINES:
                self._known.clear()
            self._known[line] = KnownToken(
                route, call.api, call.namespace, call.queues, call.queue, call.query, call.pool, call.secret
            )

    async def _serve(self, route: LmstfyRoute, call: LmstfyCall) -> LmstfyAnswer:
        version = self.shortcut.version
        token = await self._admit(route, call)
        slot = await self._spend(token, route.side) if token and route.side else None
        if slot is None:
            call.engine = self._pools.engine(call.pool)
            answer = await route.handler(self._tools, call)
            if token and route.is_short and (answer.status < ERRORS or answer is consumers.NO_JOB):
                self._teach(call, version)
            return answer
        status = 0
        try:
            call.engine = self._pools.engine(call.pool)
            answer = await route.handler(self._tools, call)
            status = answer.status
        finally:
            if status not in (200, 201):
                await self._limits.give_back(slot)
        return answer

    def _teach(self, call: LmstfyCall, version: int) -> None:
        """Let the shortcut know a request that was served; `version` is the registry's when it was admitted."""
        exchange = exchange_of(call.scope)
        if exchange is None:
            return
        queues, asked = consumed_queues(call.namespace, call.queues), None
        if exchange.method == b"PUT":
            asked = read_publishing(call.query, self._tools.defaults)
        elif exchange.method == b"GET":
            asked = read_consuming(call.query, self._tools.defaults)
            if len(queues) != 1 or asked.count != 1:
                return
        route = (call.pool, call.namespace, call.api, call.scope["method"])
        self.shortcut.learn(exchange, KnownLine(version, call.pool, queues[0], asked, route))

    async def _admit(self, route: LmstfyRoute, call: LmstfyCall) -> Token | None:
        """Checks the token and returns it; None on a route that asks for none."""
        if route.public and self._options.public_sizes:
            return None
        token = await self._tokens.check(call.pool, call.namespace, call.secret)
        if token.scopes.isdisjoint(route.access):
            raise Forbidden
        call.admitted = True
        call.scope[POOL] = call.pool
        if not call.is_known:
            self._remember(route, call)
        return token

    async def _spend(self, token: Token, side: Side) -> Slot | None:
        try:
            return await self._limits.spend(token, side)
        except TooManyRequests as limited:
            action = ACTIONS[side]
            self._metrics.limited(token.pool, token.namespace, token.label, action)
            text = f"token({token.label}) {action} reach the limit rate, please retry later"
            retry_after = b"%d" % limited.fields["retry_after_s"]
            raise Refused(LmstfyAnswer(429, to_json({"msg": text}), (JSON, (b"retry-after", retry_after)))) from None
        except DuetimeError as failure:
            log.warning("throttle_failed", extra={"error": failure.code})
            raise Refused(LmstfyAnswer(500, b'{"err":"internal error"}')) from failure


def _find_route(call: LmstfyCall) -> LmstfyRoute | None:
    """The route of a request, with the parts of its path put into `call`."""
    parts = call.scope["path"].split("/")
    match parts:
        case ["", "api", namespace, queues] if namespace and queues:
            tail = ""
        case ["", "api", namespace, queues, "job", job_id] if namespace and queues and job_id:
            tail, call.job_id = "/job/:job_id", job_id
        case ["", "api", namespace, queues, *rest] if namespace and queues:
            tail = "/" + "/".join(rest)
        case _:
            return None
    route = ROUTES.get((call.scope["method"], tail))
    if route is not None:
        call.api, call.namespace, call.queues = PREFIX + tail, namespace, queues
        call.queue = Queue(namespace, queues)
    return route


def _no_route(call: LmstfyCall) -> LmstfyAnswer:
    path: str = call.scope["path"]
    if path.endswith("/"):
        shorter = LmstfyCall({**call.scope, "path": path[:-1]}, call.receive)
        if _find_route(shorter):
            return without_slash(call.scope)
    return NOT_FOUND


REFUSALS: Mapping[type[DuetimeError], LmstfyAnswer] = {
    PoolNotFound: error(404, "pool not found"),
    Forbidden: error(403, "the token does not allow this"),
    BodyTooLarge: error(413, "body too large"),
    Overloaded: LmstfyAnswer(503, to_json({"error": Overloaded().message}), (JSON, (b"retry-after", b"1"))),
    QueueFull: LmstfyAnswer(429, to_json({"msg": "the queue is full"})),
    TopicOffline: error(409, TopicOffline.of_queue().message),
}


def _answer_of(failure: Exception) -> LmstfyAnswer:
    if isinstance(failure, DuetimeError):
        return _failed(failure)
    log.error("request_crashed", exc_info=failure)
    return CRASHED


def _failed(failure: DuetimeError) -> LmstfyAnswer:
    if answer := REFUSALS.get(type(failure)):
        return answer
    if isinstance(failure, Unauthorized):
        return error(401, failure.message)
    if isinstance(failure, InvalidRequest):
        return error(400, "invalid request")
    log.warning("request_failed", extra={"error": failure.code, "detail": failure.message})
    return INTERNAL
