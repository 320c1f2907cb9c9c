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
    """Open a client for blocking code. An `http(s)://` URL connects to a server; a store URL runs the engine in a
    thread of this process. `token` is for a server; the default is DUETIME_TOKEN. `journal` is for a store URL: the
    folder of its journal. `tracing` sends OpenTelemetry spans (extra `otel`).
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
    """Open a client for asyncio. An `http(s)://` URL connects to a server; a store URL runs the engine in this event
    loop. `token` is for a server; the default is DUETIME_TOKEN. `journal` is for a store URL: the folder of its
    journal. `tracing` sends OpenTelemetry spans (extra `otel`).
    """
    return AsyncClient(url, namespace=namespace, token=token, journal=journal, tracing=tracing)
