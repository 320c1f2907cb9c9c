"""lmstfy's admin API: tokens, limits, pools, metrics, the access log.

Where lmstfy shows a token, the label stands here; routes with a token in their path take the token or its label.
"""

import base64
import binascii
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from starlette.types import Receive, Scope, Send

from duetime import __version__
from duetime.metrics.snapshots import CONTENT_TYPE
from duetime.model.errors import DuetimeError, TooManyRequests, Unauthorized
from duetime.model.ids import IdMaker
from duetime.model.names import DEFAULT_POOL
from duetime.protocols.asgi import header, request_id, send_answer
from duetime.protocols.lmstfy import admin_alerts, admin_tokens
from duetime.protocols.lmstfy.admin_call import AdminCall
from duetime.protocols.lmstfy.options import LmstfyParts
from duetime.protocols.lmstfy.wire import (
    CRASHED,
    INTERNAL,
    JSON,
    TEXT,
    Header,
    LmstfyAnswer,
    Refused,
    refused,
    to_json,
    to_pretty_json,
    without_slash,
)
from duetime.protocols.local_guard import why_foreign
from duetime.protocols.tokens import token_text

log = logging.getLogger("duetime.lmstfy")

Handler = Callable[[LmstfyParts, AdminCall], Awaitable[LmstfyAnswer]]

NOT_FOUND = LmstfyAnswer(404, b"404 page not found", ((b"content-type", b"text/plain"),))
UNAUTHORIZED = LmstfyAnswer(401, b"", ((b"www-authenticate", b'Basic realm="Authorization Required"'),))
PROMETHEUS: Header = (b"content-type", CONTENT_TYPE.encode())


async def info(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    """Namespaces and their queues; nothing at all for a pool that does not exist."""
    pool = call.query.get("pool") or DEFAULT_POOL
    if pool not in parts.pools:
        return LmstfyAnswer(200, b"", (TEXT,))
    shown: dict[str, list[str]] = {}
    for queue in await parts.pools.engine(pool).store.queues():
        shown.setdefault(queue.namespace, []).append(queue.name)
    return LmstfyAnswer(200, to_pretty_json(shown) + b"\n", (TEXT,))


async def version(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    # lmstfy tells where its binary comes from; a Python package has only its version.
    return LmstfyAnswer(200, to_pretty_json({"build_commit": "", "build_date": "", "version": __version__}))


async def metrics(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    return LmstfyAnswer(200, await parts.scraper.text(), (PROMETHEUS,))


async def pools(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    return LmstfyAnswer(200, to_pretty_json(parts.pools.names))


async def show_access_log(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    return LmstfyAnswer(200, to_json({"status": "enabled" if parts.access_log.enabled else "disabled"}))


async def switch_access_log(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    asked = call.query.get("status")
    if asked not in ("enable", "disable"):
        raise refused(400, "invalid status")
    await parts.access_log.switch(on=asked == "enable")
    return await show_access_log(parts, call)


class AdminRoute(NamedTuple):
    """`protected` routes ask for an account, where there are any; the others only if the operator wants that, or if the
    request may come from a web page.
    """

    handler: Handler
    protected: bool = True


ROUTES: Mapping[tuple[str, str], AdminRoute] = {
    ("GET", "/info"): AdminRoute(info, protected=False),
    ("GET", "/version"): AdminRoute(version, protected=False),
    ("GET", "/metrics"): AdminRoute(metrics, protected=False),
    ("GET", "/pools"): AdminRoute(pools, protected=False),
    ("GET", "/limits"): AdminRoute(admin_tokens.list_limits),
    ("GET", "/token/:namespace"): AdminRoute(admin_tokens.list_tokens),
    ("POST", "/token/:namespace"): AdminRoute(admin_tokens.create_token),
    ("DELETE", "/token/:namespace/:token"): AdminRoute(admin_tokens.delete_token),
    ("GET", "/token/:namespace/:token/limit"): AdminRoute(admin_tokens.show_limit),
    ("POST", "/token/:namespace/:token/limit"): AdminRoute(admin_tokens.add_limit),
    ("PUT", "/token/:namespace/:token/limit"): AdminRoute(admin_tokens.put_limit),
    ("DELETE", "/token/:namespace/:token/limit"): AdminRoute(admin_tokens.delete_limit),
    ("GET", "/alerts"): AdminRoute(admin_alerts.show),
    ("POST", "/alerts"): AdminRoute(admin_alerts.add),
    ("DELETE", "/alerts"): AdminRoute(admin_alerts.remove),
    ("PUT", "/alerts/mail-server"): AdminRoute(admin_alerts.set_mail_server),
    ("POST", "/alerts/test"): AdminRoute(admin_alerts.send_test),
    ("GET", "/accesslog"): AdminRoute(show_access_log, protected=False),
    ("POST", "/accesslog"): AdminRoute(switch_access_log),
}


class LmstfyAdmin:
    """An ASGI application for the admin listener."""

    def __init__(self, parts: LmstfyParts) -> None:
        self._parts = parts
        self._request_ids = IdMaker()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = await self._answer(scope, receive)
        _, name_header = request_id(scope, self._request_ids.make)
        try:
            await send_answer(scope, send, answer.status, answer.headers, answer.body, name_header)
        except OSError:
            log.debug("client_gone")

    async def _answer(self, scope: Scope, receive: Receive) -> LmstfyAnswer:
        try:
            return await self._serve(scope, receive)
        except Refused as refusal:
            return refusal.answer
        except Unauthorized:
            return UNAUTHORIZED
        except TooManyRequests as limited:
            retry_after = (b"retry-after", b"%d" % limited.fields["retry_after_s"])
            return LmstfyAnswer(429, to_json({"error": "too many failed logins"}), (JSON, retry_after))
        except DuetimeError as failure:
            log.warning("admin_failed", extra={"error": failure.code, "detail": failure.message})
            return INTERNAL
        except Exception:
            log.exception("admin_crashed")
            return CRASHED

    async def _serve(self, scope: Scope, receive: Receive) -> LmstfyAnswer:
        path: str = scope["path"]
        route, call = _find_route(scope, receive, path)
        if route is None:
            shorter = _find_route(scope, receive, path[:-1])[0] if path.endswith("/") else None
            return without_slash(scope) if shorter else NOT_FOUND
        options = self._parts.options
        is_watched = (
            route.protected
            or options.protect_admin
            or (options.admin_is_local and why_foreign(scope["headers"], scope.get("server") is None))
        )
        if is_watched:
            await self._check_admin(scope)
        return await route.handler(self._parts, call)

    async def _check_admin(self, scope: Scope) -> None:
        """Raises Unauthorized, TooManyRequests."""
        if not self._parts.options.accounts:
            return
        kind, _, encoded = header(scope, b"authorization").partition(b" ")
        try:
            user, colon, password = token_text(base64.b64decode(encoded, validate=True)).partition(":")
        except binascii.Error:
            raise Unauthorized from None
        if kind.lower() != b"basic" or not colon:
            raise Unauthorized
        await self._parts.logins.check_account(scope, user, password)


def _find_route(scope: Scope, receive: Receive, path: str) -> tuple[AdminRoute | None, AdminCall]:
    call = AdminCall(scope, receive)
    match path.split("/"):
        case ["", "token", namespace] if namespace:
            pattern = "/token/:namespace"
        case ["", "token", namespace, token] if namespace and token:
            pattern = "/token/:namespace/:token"
            call.token = token
        case ["", "token", namespace, token, "limit"] if namespace and token:
            pattern = "/token/:namespace/:token/limit"
            call.token = token
        case _:
            pattern, namespace = path, ""
    call.namespace = namespace
    return ROUTES.get((scope["method"], pattern)), call
