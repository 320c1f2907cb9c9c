"""lmstfy's public API: every route on one screen, and the order in which a request is checked.

name -> pool -> token -> throttle -> handler. A plain ASGI application without a framework: publish, consume and
acknowledge are the hot path of a server, and the other routes are few.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from starlette.types import Receive, Scope, Send

from duetime.http.exchange import ClientGone
from duetime.model.errors import (
    DuetimeError,
    Forbidden,
    PoolNotFound,
    TooManyRequests,
)
from duetime.model.names import Queue
from duetime.protocols.access_log import POOL
from duetime.protocols.asgi import exchange_of, header, send_answer
from duetime.protocols.fast_path import RequestFastPath
from duetime.protocols.lmstfy import consumers, inspection, producers
from duetime.protocols.lmstfy.call import LmstfyCall, LmstfyOperation, LmstfyTools
from duetime.protocols.lmstfy.metrics import METHODS
from duetime.protocols.lmstfy.options import LmstfyParts
from duetime.protocols.lmstfy.wire import (
    JSON,
    LmstfyAnswer,
    Refused,
    answer_to,
    check_consumed_names,
    check_names,
    consumed_queues,
    error,
    parse_query,
    read_consuming,
    read_publishing,
    to_json,
    without_slash,
)
from duetime.protocols.rate_limits import Side, Slot
from duetime.protocols.tokens import Access, Token, split, token_in_query, token_text

log = logging.getLogger("duetime.lmstfy")

Handler = Callable[[LmstfyTools, LmstfyCall], Awaitable[LmstfyAnswer]]

NOT_FOUND = error(404, "api not found")
GONE = LmstfyAnswer(499, b"", ())
"""The client disconnected; only the metrics see this answer."""
PREFIX = "/api/:namespace/:queue"
ERRORS = 300
"""From this status on an answer is not one of success."""
ACTIONS = {Side.READ: "consume", Side.WRITE: "produce"}


class LmstfyRoute(NamedTuple):
    """A token needs one of `access`; `side` is the limit that the request counts against; `public` needs no token;
    `operation` serves requests like one that was served on the fast path.
    """

    handler: Handler
    access: tuple[Access, ...] = (Access.READ,)
    side: Side | None = None
    public: bool = False
    consumes: bool = False
    operation: type[LmstfyOperation[Any]] | None = None


READ, WRITE, ADMIN = Access.READ, Access.WRITE, Access.ADMIN

ROUTES: Mapping[tuple[str, str], LmstfyRoute] = {
    ("PUT", ""): LmstfyRoute(producers.publish, (WRITE,), Side.WRITE, operation=producers.Publish),
    ("PUT", "/bulk"): LmstfyRoute(producers.bulk_publish, (WRITE,), Side.WRITE),
    ("PUT", "/job/:job_id"): LmstfyRoute(producers.republish, (WRITE,), Side.WRITE),
    ("GET", ""): LmstfyRoute(consumers.consume, (READ,), Side.READ, consumes=True, operation=consumers.Consume),
    ("GET", "/peek"): LmstfyRoute(inspection.peek_head),
    ("GET", "/job/:job_id"): LmstfyRoute(inspection.peek_job),
    ("DELETE", "/job/:job_id"): LmstfyRoute(consumers.acknowledge, (READ, WRITE), operation=consumers.Acknowledge),
    ("DELETE", ""): LmstfyRoute(inspection.destroy, (ADMIN,)),
    ("GET", "/size"): LmstfyRoute(inspection.size, public=True),
    ("GET", "/deadletter"): LmstfyRoute(inspection.peek_dead),
    ("PUT", "/deadletter"): LmstfyRoute(inspection.respawn, (ADMIN,)),
    ("DELETE", "/deadletter"): LmstfyRoute(inspection.delete_dead, (ADMIN,)),
    ("GET", "/deadletter/size"): LmstfyRoute(inspection.dead_size, public=True),
}


class LmstfyApp:
    """An ASGI application for the API listener."""

    def __init__(self, parts: LmstfyParts, *, fast_path: RequestFastPath | None = None) -> None:
        self._pools = parts.pools
        self._tokens = parts.tokens
        self._limits = parts.limits
        self._metrics = parts.metrics
        self._public_sizes = parts.settings.lmstfy_public_sizes
        self._tools = LmstfyTools(parts.metrics, parts.defaults, parts.settings.max_body)
        self._fast_path = fast_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started = time.perf_counter()
        call = LmstfyCall(scope, receive)
        answer = await self._answer(call)
        try:
            await send_answer(scope, send, answer.status, answer.headers, answer.body)
        except OSError:
            if call.delivered:
                await call.engine.give_back_all(call.delivered)
        elapsed_s = time.perf_counter() - started
        pool, namespace = (call.pool, call.namespace) if call.admitted else ("", "")
        method = scope["method"] if scope["method"] in METHODS else ""
        self._metrics.finished((pool, namespace, call.api, method), answer.status, elapsed_s)

    async def _answer(self, call: LmstfyCall) -> LmstfyAnswer:
        """Every error becomes an answer here; the answer says nothing about the inside of the server."""
        try:
            route = self._read(call)
            return await self._serve(route, call) if route else _no_route(call)
        except Refused as refusal:
            return refusal.answer
        except ClientGone:
            return GONE
        except Exception as failure:
            return answer_to(failure)

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

    async def _serve(self, route: LmstfyRoute, call: LmstfyCall) -> LmstfyAnswer:
        generation = self._fast_path.generation if self._fast_path else 0
        token = await self._admit(route, call)
        slot = await self._spend(token, route.side) if token and route.side else None
        status = 0
        try:
            call.engine = self._pools.engine(call.pool)
            answer = await route.handler(self._tools, call)
            status = answer.status
        finally:
            if slot and status not in (200, 201):
                await self._limits.refund(slot)
        if token and not slot and route.operation and (status < ERRORS or answer is consumers.NO_JOB):
            self._remember(call, generation, route.operation)
        return answer

    def _remember(self, call: LmstfyCall, generation: int, operation: type[LmstfyOperation[Any]]) -> None:
        """Let requests like this one, which was served, take the fast path."""
        if self._fast_path is None:
            return
        queues = consumed_queues(call.namespace, call.queues)
        asked: Any = None
        if operation is producers.Publish:
            asked = read_publishing(call.query, self._tools.defaults)
        elif operation is consumers.Consume:
            asked = read_consuming(call.query, self._tools.defaults)
            if len(queues) != 1 or asked.count != 1:
                return
        route = (call.pool, call.namespace, call.api, call.scope["method"])
        known = operation(self._pools, self._tools, queues[0], asked, route)
        self._fast_path.remember(exchange_of(call.scope), generation, known)

    async def _admit(self, route: LmstfyRoute, call: LmstfyCall) -> Token | None:
        """Checks the token and returns it; None on a route that asks for none."""
        if route.public and self._public_sizes:
            return None
        token = await self._tokens.check(call.pool, call.namespace, call.secret)
        if token.scopes.isdisjoint(route.access):
            raise Forbidden
        call.admitted = True
        call.scope[POOL] = call.pool
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
