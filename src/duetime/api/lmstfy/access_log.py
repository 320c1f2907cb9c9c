"""The access log: one line per request, off by default, switched for all processes at once by the admin API.

It never holds a secret: `token=` in a query and tokens in admin paths are masked.
"""

import logging
import re
from collections.abc import Callable

from starlette.types import Scope

from duetime.api.lmstfy.wire import mask_query
from duetime.engine.mirror import Mirror
from duetime.stores.registry import Registry

log = logging.getLogger("duetime.access")

KIND = "setting"
KEY = "lmstfy/access_log"
ON, OFF = b"enabled", b"disabled"

_TOKEN_IN_PATH = re.compile(r"^(/token/[^/]*/)[^/]+")


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

    def write(self, scope: Scope, status: int, *, pool: str, elapsed_s: float, request_id: str) -> None:
        client: tuple[str, int] | None = scope.get("client")
        fields = {
            "pool": pool,
            "path": _TOKEN_IN_PATH.sub(r"\1***", scope["path"]),
            "query": mask_query(scope["query_string"]),
            "latency_ms": round(elapsed_s * 1000, 3),
            "ip": client[0] if client else "",
            "method": scope["method"],
            "code": status,
            "req_id": request_id,
        }
        log.log(_level(status), "access", extra=fields)


def _level(status: int) -> int:
    if status >= 500:
        return logging.ERROR
    return logging.WARNING if status >= 400 and status != 404 else logging.INFO
