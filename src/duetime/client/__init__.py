"""The SDK: `connect(url)` for ordinary code, `connect_async(url)` for asyncio."""

from duetime.client.async_client import AsyncClient
from duetime.client.client import Client
from duetime.model.names import DEFAULT_NAMESPACE

__all__ = ["AsyncClient", "Client", "connect", "connect_async"]


def connect(
    url: str,
    *,
    namespace: str = DEFAULT_NAMESPACE,
    token: str | None = None,
    journal: str | None = None,
    tracing: bool = False,
) -> Client:
    """A client for blocking code. `http(s)://` talks to a server; a store URL runs the engine in a thread of this
    process. `token` is for a server, DUETIME_TOKEN by default. `journal` is for a store URL: the folder of its journal.
    `tracing` needs the extra [otel].
    """
    return Client(url, namespace=namespace, token=token, journal=journal, tracing=tracing)


def connect_async(
    url: str,
    *,
    namespace: str = DEFAULT_NAMESPACE,
    token: str | None = None,
    journal: str | None = None,
    tracing: bool = False,
) -> AsyncClient:
    """A client for asyncio. `http(s)://` talks to a server; a store URL runs the engine in this event loop. `token` is
    for a server, DUETIME_TOKEN by default. `journal` is for a store URL: the folder of its journal. `tracing` needs
    the extra [otel].
    """
    return AsyncClient(url, namespace=namespace, token=token, journal=journal, tracing=tracing)
