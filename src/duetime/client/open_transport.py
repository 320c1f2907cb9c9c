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


class ConnectOptions(NamedTuple):
    """How a client is opened. `journal` goes with the URL of a store, `token` with the URL of a server."""

    url: str
    token: str | None
    journal: str | None
    tracing: bool


def open_sync(options: ConnectOptions) -> SyncTransport:
    if not options.tracing:
        return (
            SyncHttp(options.url, options.token) if is_http(options.url) else SyncEmbedded(options.url, options.journal)
        )
    client = _traced()
    if is_http(options.url):
        return client.SyncTraced(SyncHttp(options.url, options.token, more_headers=client.trace_headers))
    return client.SyncTraced(SyncEmbedded(options.url, options.journal))


def open_async(options: ConnectOptions) -> AsyncTransport:
    if not options.tracing:
        return (
            AsyncHttp(options.url, options.token)
            if is_http(options.url)
            else AsyncEmbedded(options.url, options.journal)
        )
    client = _traced()
    if is_http(options.url):
        return client.AsyncTraced(AsyncHttp(options.url, options.token, more_headers=client.trace_headers))
    return client.AsyncTraced(AsyncEmbedded(options.url, options.journal))


def _traced() -> ModuleType:
    """Imports tracing by its name: it stands above the client, and its packages are optional."""
    try:
        return import_module("duetime.tracing.client")
    except ModuleNotFoundError as missing:
        raise InvalidSettings(f"tracing=True needs the extra duetime[otel] ({missing.name} is missing)") from None
