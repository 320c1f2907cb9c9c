"""Which transport a client gets: HTTP or an embedded engine, traced or not."""

from importlib import import_module
from types import ModuleType
from typing import NamedTuple

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


class Way(NamedTuple):
    """`journal` is for a store URL, `token` for a server's."""

    url: str
    token: str | None
    journal: str | None
    tracing: bool


def open_sync(way: Way) -> SyncTransport:
    if not way.tracing:
        return SyncHttp(way.url, way.token) if is_http(way.url) else SyncEmbedded(way.url, way.journal)
    client = _traced()
    if is_http(way.url):
        return client.SyncTraced(SyncHttp(way.url, way.token, more_headers=client.trace_headers))
    return client.SyncTraced(SyncEmbedded(way.url, way.journal))


def open_async(way: Way) -> AsyncTransport:
    if not way.tracing:
        return AsyncHttp(way.url, way.token) if is_http(way.url) else AsyncEmbedded(way.url, way.journal)
    client = _traced()
    if is_http(way.url):
        return client.AsyncTraced(AsyncHttp(way.url, way.token, more_headers=client.trace_headers))
    return client.AsyncTraced(AsyncEmbedded(way.url, way.journal))


def _traced() -> ModuleType:
    """Imports tracing by its name: it stands above the client, and its packages are optional."""
    try:
        return import_module("duetime.tracing.client")
    except ModuleNotFoundError as missing:
        raise InvalidSettings(f"tracing=True needs the extra duetime[otel] ({missing.name} is missing)") from None
