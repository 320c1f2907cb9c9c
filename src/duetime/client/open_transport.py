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
    tracing = _tracing() if options.tracing else None
    if is_http(options.url):
        transport = SyncHttp(options.url, options.token, more_headers=tracing.trace_headers if tracing else dict)
    else:
        transport = SyncEmbedded(options.url, options.journal)
    return tracing.SyncTraced(transport) if tracing else transport


def open_async(options: ConnectOptions) -> AsyncTransport:
    tracing = _tracing() if options.tracing else None
    if is_http(options.url):
        transport = AsyncHttp(options.url, options.token, more_headers=tracing.trace_headers if tracing else dict)
    else:
        transport = AsyncEmbedded(options.url, options.journal)
    return tracing.AsyncTraced(transport) if tracing else transport


def _tracing() -> ModuleType:
    """Imports tracing by its name: it stands above the client, and its packages are optional."""
    try:
        return import_module("duetime.tracing.client")
    except ModuleNotFoundError as missing:
        raise InvalidSettings(f"tracing=True needs the extra duetime[otel] ({missing.name} is missing)") from None
