"""The access log: one line per request of any protocol. Off by default; the admin API switches it for all processes.

The fields are lmstfy's. It never holds a secret: tokens and the like in a query and tokens in admin paths are masked.
A path that no protocol knows may hold a token in any segment, so only its first segment is shown, if
that is one of ours.
"""

import logging
import re
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duetime.engine.registry_copy import RegistryCopy
from duetime.http.exchange import ClientGone
from duetime.model.logs import ACCESS, REQUEST_ID
from duetime.model.masking import MASK, is_secret
from duetime.stores.registry import Registry

log = logging.getLogger(ACCESS)

KIND = "setting"
KEY = "lmstfy/access_log"
ON, OFF = b"enabled", b"disabled"
POOL = "duetime.pool"
"""The scope key where a protocol stores the pool of an admitted request."""
FOREIGN = "duetime.foreign"
"""Marks the scope of a request that was refused before any application read its path."""
GONE = 499
"""The status of a request whose client disconnected."""
UNKNOWN = 404
"""The status of a path that no protocol has, if the request was admitted to no pool."""
FAILED = 500
"""The status of a request that ended without an answer."""

LISTENER_PATHS = (
    "api",
    "v1",
    "healthz",
    "readyz",
    "token",
    "info",
    "version",
    "metrics",
    "pools",
    "limits",
    "accesslog",
)
OUQIANG_PATHS = ("push", "pop", "finish", "delete", "get")
FIRST_SEGMENTS = frozenset({*LISTENER_PATHS, *OUQIANG_PATHS})
"""The first segments of the paths that some protocol knows."""

_TOKEN_IN_PATH = re.compile(r"^(/token/[^/]*/)[^/]+")


class AccessLog:
    """`default` holds until somebody switches it."""

    def __init__(self, registry_copy: RegistryCopy, registry: Callable[[], Registry], *, default: bool = False) -> None:
        self._registry_copy = registry_copy
        self._registry = registry
        self._default = default

    @property
    def enabled(self) -> bool:
        record = self._registry_copy.get(KIND, KEY)
        return self._default if record is None else record.value == ON

    async def switch(self, *, on: bool) -> None:
        await self._registry().put(KIND, KEY, ON if on else OFF)
        await self._registry_copy.refresh()

    def command(self, name: str, *, ip: str, done: bool, elapsed_s: float) -> None:
        """A request of a protocol other than HTTP, in the same form; its id is the conversation's."""
        if self.enabled:
            _write("", f"/{name}", "", AccessLine(elapsed_s, ip, "TCP", 200 if done else 400, REQUEST_ID.get()))

    def around(self, app: ASGIApp) -> ASGIApp:
        """The same application, with a line for each of its requests while the log is on."""

        def serve(scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
            if scope["type"] == "http" and self.enabled:
                return _serve_logged(app, scope, receive, send)
            return app(scope, receive, send)  # pyright: ignore[reportReturnType]  # an ASGI application is a coroutine function

        return serve


async def _serve_logged(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    began = time.perf_counter()
    status = FAILED

    async def watched(message: Message) -> None:
        nonlocal status
        try:
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)
        except ClientGone:
            status = GONE
            raise

    try:
        await app(scope, receive, watched)
    except ClientGone:
        status = GONE
        raise
    finally:
        _write_http(scope, status, time.perf_counter() - began)


class AccessLine(NamedTuple):
    elapsed_s: float
    ip: str
    method: str
    status: int
    request_id: str


def _write_http(scope: Scope, status: int, elapsed_s: float) -> None:
    client: tuple[str, int] | None = scope.get("client")
    ip, request_id = client[0] if client else "", scope.get("state", {}).get("request_id", "")
    is_unknown = FOREIGN in scope or (status == UNKNOWN and POOL not in scope)
    path = _mask_unknown(scope["path"]) if is_unknown else _TOKEN_IN_PATH.sub(rf"\1{MASK}", scope["path"])
    line = AccessLine(elapsed_s, ip, scope["method"], status, request_id)
    _write(scope.get(POOL, ""), path, mask_query(scope["query_string"]), line)


def _mask_unknown(path: str) -> str:
    first, slash, _ = path[1:].partition("/")
    if first not in FIRST_SEGMENTS:
        return f"/{MASK}"
    return f"/{first}/{MASK}" if slash else path


def _write(pool: str, path: str, query: str, line: AccessLine) -> None:
    fields = {
        "pool": pool,
        "path": path,
        "query": query,
        "latency_ms": round(line.elapsed_s * 1000, 3),
        "ip": line.ip,
        "method": line.method,
        "code": line.status,
        "req_id": line.request_id,
    }
    log.log(_level(line.status), "access", extra=fields)


def mask_query(raw: bytes) -> str:
    """The query without the secrets that it may hold."""
    return "&".join([_mask(pair) for pair in raw.decode("latin-1").split("&")])


def _mask(pair: str) -> str:
    name, equals, _ = pair.partition("=")
    return f"{name}={MASK}" if equals and is_secret(name) else pair


def _level(status: int) -> int:
    if status >= 500:
        return logging.ERROR
    return logging.WARNING if status >= 400 and status != 404 else logging.INFO
