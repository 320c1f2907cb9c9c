"""The access log: one line per request of any door. Off by default; the admin API switches it for all processes.

The fields are lmstfy's. It never holds a secret: tokens and the like in a query and tokens in admin paths are masked.
"""

import logging
import re
import time
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import unquote_plus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duetime.api.exchange import ClientGone
from duetime.engine.mirror import Mirror
from duetime.logs import ACCESS
from duetime.settings import MASK
from duetime.stores.registry import Registry

log = logging.getLogger(ACCESS)

KIND = "setting"
KEY = "lmstfy/access_log"
ON, OFF = b"enabled", b"disabled"
POOL = "duetime.pool"
"""Where in the scope a door leaves the pool that a request was let in to."""
GONE = 499
"""The status of a request whose client went away."""
FAILED = 500
"""... and of one that ended without an answer."""

_TOKEN_IN_PATH = re.compile(r"^(/token/[^/]*/)[^/]+")
_SECRET = re.compile(r"token|passw|secret|signature|api_?key", re.IGNORECASE)


class AccessLog:
    """`default` holds until somebody switches it."""

    def __init__(self, mirror: Mirror, registry: Callable[[], Registry], *, default: bool = False) -> None:
        self._mirror = mirror
        self._registry = registry
        self._default = default

    @property
    def enabled(self) -> bool:
        record = self._mirror.get(KIND, KEY)
        return self._default if record is None else record.value == ON

    async def switch(self, *, on: bool) -> None:
        await self._registry().put(KIND, KEY, ON if on else OFF)
        await self._mirror.refresh()

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
        write(scope, status, elapsed_s=time.perf_counter() - began)


def write(scope: Scope, status: int, *, elapsed_s: float) -> None:
    client: tuple[str, int] | None = scope.get("client")
    fields = {
        "pool": scope.get(POOL, ""),
        "path": _TOKEN_IN_PATH.sub(rf"\1{MASK}", scope["path"]),
        "query": mask_query(scope["query_string"]),
        "latency_ms": round(elapsed_s * 1000, 3),
        "ip": client[0] if client else "",
        "method": scope["method"],
        "code": status,
        "req_id": scope.get("state", {}).get("request_id", ""),
    }
    log.log(_level(status), "access", extra=fields)


def mask_query(raw: bytes) -> str:
    """The query without the secrets that it may hold."""
    return "&".join([_mask(pair) for pair in raw.decode("latin-1").split("&")])


def _mask(pair: str) -> str:
    name, equals, _ = pair.partition("=")
    return f"{name}={MASK}" if equals and _SECRET.search(unquote_plus(name)) else pair


def _level(status: int) -> int:
    if status >= 500:
        return logging.ERROR
    return logging.WARNING if status >= 400 and status != 404 else logging.INFO
