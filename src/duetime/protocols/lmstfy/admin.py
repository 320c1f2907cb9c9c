"""lmstfy's admin API: tokens, limits, pools, metrics, the access log; and alerts, which lmstfy does not have.

Where lmstfy shows a token, its label is shown here; routes with a token in their path take the token or its label.
"""

import base64
import binascii
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.types import Receive, Scope, Send

from duetime import __version__
from duetime.alerts import problems as alerts
from duetime.alerts.senders import MailServer
from duetime.engine.pools import registered_pools, unregister_pool
from duetime.metrics.snapshots import CONTENT_TYPE
from duetime.model.errors import NOT_JSON, DuetimeError, PoolNotFound, TooManyRequests, Unauthorized, VersionConflict
from duetime.model.names import DEFAULT_POOL, MAX_NAME
from duetime.model.settings import is_loopback
from duetime.protocols.asgi import header, send_answer
from duetime.protocols.lmstfy.options import LmstfyParts
from duetime.protocols.lmstfy.wire import (
    CRASHED,
    INTERNAL,
    JSON,
    TEXT,
    Header,
    LmstfyAnswer,
    Refused,
    is_namespace,
    parse_query,
    read_all,
    refused,
    to_json,
    to_pretty_json,
    without_slash,
)
from duetime.protocols.local_guard import why_foreign
from duetime.protocols.rate_limits import Limit
from duetime.protocols.tokens import EVERYTHING, Access, Token, split, token_text

MAX_BODY = 65_536


class AdminCall:
    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._scope = scope
        self._receive = receive
        self.query = parse_query(scope["query_string"])
        self.namespace = self.token = ""

    async def body(self) -> bytes:
        return await read_all(self._scope, self._receive, MAX_BODY, "body too large")

    async def form(self) -> dict[str, str]:
        """The values of the query and of a form in the body; the form wins. A body of another type is no form."""
        body = await self.body()
        kind = header(self._scope, b"content-type").decode("latin-1").partition(";")[0].strip().lower()
        sent: dict[str, str] = {}
        if kind == "application/x-www-form-urlencoded":
            pairs = parse_qsl(body.decode(errors="replace"), keep_blank_values=True)
            sent = dict(reversed(pairs))
        elif kind == "multipart/form-data":
            sent = await self._multipart(body)
        return {**self.query, **sent}

    async def _multipart(self, body: bytes) -> dict[str, str]:
        async def stream() -> AsyncGenerator[bytes, None]:
            yield body

        parser = MultiPartParser(Headers(scope=self._scope), stream(), max_files=0, max_fields=20)
        try:
            form = await parser.parse()
        except (MultiPartException, KeyError, ValueError):
            return {}
        return {name: value for name, value in form.items() if isinstance(value, str)}


MIN_TOKEN = 20
NO_POOL = "the pool was not exists"
YES = frozenset({"1", "t", "T", "TRUE", "true", "True"})


async def create_token(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    """Parameters: `description`; `token` to choose the secret; `scopes` (not in lmstfy), such as `read,write`."""
    form = await call.form()
    description, own = form.get("description", ""), form.get("token", "")
    if not description:
        raise refused(400, "invalid description")
    if own and len(own) < MIN_TOKEN:
        raise refused(400, "the user token was too short")
    if len(call.namespace.encode(errors="replace")) > MAX_NAME:
        raise refused(400, "the namespace name was too long")
    if not is_namespace(call.namespace):
        raise refused(400, "namespace name contains forbidden characters")
    pool, secret = call.query.get("pool") or DEFAULT_POOL, own
    if ":" in own:
        pool, secret = split(own)
    scopes = _read_scopes(form.get("scopes", ""))
    try:
        secret = await parts.tokens.create(pool, call.namespace, description, secret=secret, scopes=scopes)
    except PoolNotFound:
        raise refused(400, NO_POOL) from None
    except VersionConflict:
        raise refused(400, "the token has already existed") from None
    return LmstfyAnswer(201, to_pretty_json({"token": _shown(pool, secret)}))


def _read_scopes(text: str) -> frozenset[Access]:
    try:
        return frozenset(Access(word.strip()) for word in text.split(",")) if text else EVERYTHING
    except ValueError:
        raise refused(400, "invalid scopes") from None


def _shown(pool: str, name: str) -> str:
    return name if pool == DEFAULT_POOL else f"{pool}:{name}"


async def list_tokens(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    asked = call.query.get("pool", "")
    prefix = f"{asked}:" if asked else ""
    try:
        known = await parts.tokens.list_tokens(asked or DEFAULT_POOL, call.namespace)
    except PoolNotFound:
        raise refused(400, NO_POOL) from None
    answer: dict[str, object] = {"tokens": {prefix + token.label: token.description for token in known}}
    if "scopes" in call.query:  # not in lmstfy
        answer["scopes"] = {prefix + token.label: sorted(token.scopes) for token in known}
    return LmstfyAnswer(200, to_pretty_json(answer))


async def delete_token(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    token = await _find(parts, call)
    await parts.tokens.delete(token)
    await parts.limits.delete(token)
    return LmstfyAnswer(204)


async def _find(parts: LmstfyParts, call: AdminCall) -> Token:
    try:
        return await parts.tokens.find(call.namespace, call.token)
    except PoolNotFound:
        raise refused(400, NO_POOL) from None


# --- limits


async def list_limits(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    shown: list[dict[str, object]] = []
    for token, limit in await parts.limits.list_limits(refresh=call.query.get("force_update") in YES):
        shown.append({"limiter": limit, "namespace": token.namespace, "token": _shown(token.pool, token.label)})
    return LmstfyAnswer(200, to_json(shown))


async def show_limit(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    limit = await parts.limits.get(await _find(parts, call))
    return LmstfyAnswer(404, b"null") if limit is None else LmstfyAnswer(200, to_json(limit))


async def add_limit(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    limit = await _read_limit(call)
    token = await _find(parts, call)
    try:
        await parts.limits.add(token, limit)
    except VersionConflict:
        raise refused(500, f"throttler token({token.label}) has already exists") from None
    return LmstfyAnswer(201, to_json({"limiter": limit}))


async def put_limit(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    limit = await _read_limit(call)
    await parts.limits.put(await _find(parts, call), limit)
    return LmstfyAnswer(200, to_json({"limiter": limit}))


async def delete_limit(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    await parts.limits.delete(await _find(parts, call))
    return LmstfyAnswer(200, b'{"msg":"success"}')


async def _read_limit(call: AdminCall) -> Limit:
    try:
        limit = msgspec.json.decode(await call.body(), type=Limit)
    except NOT_JSON:
        raise Refused(LmstfyAnswer(400, b'{"error":{}}', (TEXT,))) from None
    if limit.read == 0 and limit.write == 0:
        raise Refused(LmstfyAnswer(400, to_json({"limiter": limit})))
    if limit.interval == 0:
        raise refused(400, "interval should be > 0")
    if limit.interval < 0:
        raise refused(500, "limiter interval should be >= 0")
    return limit


T = TypeVar("T")


class NewAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    address: str
    channel: str = ""


async def show_alerts(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    return LmstfyAnswer(200, to_json(await alerts.describe(parts.pools.registry)))


async def add_alert_address(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    wanted = await _read_json(call, NewAddress)
    return await _change(parts, alerts.add_address(parts.pools.registry, wanted.address, wanted.channel))


async def remove_alert_address(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    """Parameter: `address`, a mail address or URL as listed, or a channel."""
    return await _change(parts, alerts.remove_address(parts.pools.registry, call.query.get("address", "")))


async def set_mail_server(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    return await _change(parts, alerts.set_mail_server(parts.pools.registry, await _read_json(call, MailServer)))


async def send_test_alert(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    sent = await _refusing(alerts.send_test(parts.pools.registry))
    return LmstfyAnswer(200, to_json(sent))


async def _read_json(call: AdminCall, form: type[T]) -> T:
    try:
        return msgspec.json.decode(await call.body(), type=form)
    except msgspec.ValidationError as error:
        raise refused(400, str(error)) from None
    except NOT_JSON as error:
        raise refused(400, f"body must be JSON: {error}") from None


async def _change(parts: LmstfyParts, change: Awaitable[dict[str, Any]]) -> LmstfyAnswer:
    shown = await _refusing(change)
    await parts.registry_copy.refresh()
    return LmstfyAnswer(200, to_json(shown))


async def _refusing(work: Awaitable[T]) -> T:
    """Answer errors of the caller with their status; the admin API handles all other failures."""
    try:
        return await work
    except DuetimeError as error:
        if error.status >= 500:
            raise
        raise refused(error.status, error.message) from None


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
    # lmstfy reports the commit of its binary; a Python package has only its version.
    return LmstfyAnswer(200, to_pretty_json({"build_commit": "", "build_date": "", "version": __version__}))


async def metrics(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    return LmstfyAnswer(200, await parts.scraper.text(), (PROMETHEUS,))


async def pools(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    return LmstfyAnswer(200, to_pretty_json(parts.pools.names))


class NewPool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    url: str


async def show_registered_pools(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    return await _registered(parts)


async def add_pool(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    wanted = await _read_json(call, NewPool)
    await _refusing(parts.pools.register(wanted.name, wanted.url))
    return await _registered(parts)


async def remove_pool(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    """Parameter: `name`."""
    await _refusing(unregister_pool(parts.pools.registry, call.query.get("name", "")))
    return await _registered(parts)


async def _registered(parts: LmstfyParts) -> LmstfyAnswer:
    await parts.registry_copy.refresh()
    return LmstfyAnswer(200, to_json({"pools": await registered_pools(parts.pools.registry)}))


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
    ("GET", "/registered-pools"): AdminRoute(show_registered_pools),
    ("POST", "/registered-pools"): AdminRoute(add_pool),
    ("DELETE", "/registered-pools"): AdminRoute(remove_pool),
    ("GET", "/limits"): AdminRoute(list_limits),
    ("GET", "/token/:namespace"): AdminRoute(list_tokens),
    ("POST", "/token/:namespace"): AdminRoute(create_token),
    ("DELETE", "/token/:namespace/:token"): AdminRoute(delete_token),
    ("GET", "/token/:namespace/:token/limit"): AdminRoute(show_limit),
    ("POST", "/token/:namespace/:token/limit"): AdminRoute(add_limit),
    ("PUT", "/token/:namespace/:token/limit"): AdminRoute(put_limit),
    ("DELETE", "/token/:namespace/:token/limit"): AdminRoute(delete_limit),
    ("GET", "/alerts"): AdminRoute(show_alerts),
    ("POST", "/alerts"): AdminRoute(add_alert_address),
    ("DELETE", "/alerts"): AdminRoute(remove_alert_address),
    ("PUT", "/alerts/mail-server"): AdminRoute(set_mail_server),
    ("POST", "/alerts/test"): AdminRoute(send_test_alert),
    ("GET", "/accesslog"): AdminRoute(show_access_log, protected=False),
    ("POST", "/accesslog"): AdminRoute(switch_access_log),
}


class LmstfyAdmin:
    """An ASGI application for the admin listener."""

    def __init__(self, parts: LmstfyParts) -> None:
        self._parts = parts
        self._is_local = is_loopback(parts.settings.admin_host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = await self._answer(scope, receive)
        try:
            await send_answer(scope, send, answer.status, answer.headers, answer.body)
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
        # A port for programs of this machine asks for an account also where a web page may have sent the request.
        is_watched = (
            route.protected
            or self._parts.settings.admin_protect_all
            or (self._is_local and why_foreign(scope["headers"], scope.get("server") is None))
        )
        if is_watched:
            await self._check_admin(scope)
        return await route.handler(self._parts, call)

    async def _check_admin(self, scope: Scope) -> None:
        """Raises Unauthorized, TooManyRequests."""
        if not self._parts.settings.accounts:
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
