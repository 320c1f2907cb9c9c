"""Which transport a client gets: HTTP or an embedded engine, traced or not."""

from typing import TYPE_CHECKING, NamedTuple

from duetime.client.transport import (
    AsyncEmbedded,
    AsyncHttp,
    AsyncTransport,
    SyncEmbedded,
    SyncHttp,
    SyncTransport,
    is_http,
)
from duetime.errors import InvalidSettings

if TYPE_CHECKING:
    from types import ModuleType


class Way(NamedTuple):
    """`journal` is for a store URL, `token` for a server's."""

    url: str
    token: str | None
    journal: str | None
    tracing: bool


def open_sync(way: Way) -> SyncTransport:
    if not way.tracing:
        return SyncHttp(way.url, way.token) if is_http(way.url) else SyncEmbedded(way.url, way.journal)
    traced = _traced()
    if is_http(way.url):
        return traced.SyncTraced(SyncHttp(way.url, way.token, more_headers=traced.trace_headers))
    return traced.SyncTraced(SyncEmbedded(way.url, way.journal))


def open_async(way: Way) -> AsyncTransport:
    if not way.tracing:
        return AsyncHttp(way.url, way.token) if is_http(way.url) else AsyncEmbedded(way.url, way.journal)
    traced = _traced()
    if is_http(way.url):
        return traced.AsyncTraced(AsyncHttp(way.url, way.token, more_headers=traced.trace_headers))
    return traced.AsyncTraced(AsyncEmbedded(way.url, way.journal))


def _traced() -> "ModuleType":
    try:
        from duetime.client import traced  # noqa: PLC0415 - the extra [otel] is optional
    except ModuleNotFoundError as missing:
        raise InvalidSettings(f"tracing=True needs the extra duetime[otel] ({missing.name} is missing)") from None
    return traced
