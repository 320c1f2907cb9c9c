"""Connections by name, as in Laravel's config/queue.php: described once, opened when they are first used.

    duetime.connections.configure({"default": "sqlite:jobs.db", "eu": {"url": "redis://eu", "namespace": "shop"}})
    duetime.connections["eu"].queue("mail").push({"to": "ann"})

The clients are shared by all threads and closed by `close`, at the latest when the program ends.
"""

import atexit
import threading
from collections.abc import Mapping
from typing import TypedDict

from duetime.client.async_client import AsyncClient
from duetime.client.client import Client
from duetime.model.errors import InvalidSettings


class ConnectionOptions(TypedDict, total=False):
    """The arguments of `duetime.connect`."""

    url: str
    namespace: str
    token: str | None
    journal: str | None
    tracing: bool


class Connections:
    """Clients by name, as in Laravel's config/queue.php. Programs use the object `duetime.connections`."""

    def __init__(self) -> None:
        self._options: dict[str, ConnectionOptions] = {}
        self._clients: dict[str, Client] = {}
        self._default = ""
        self._lock = threading.Lock()
        atexit.register(self.close)

    def configure(self, connections: Mapping[str, str | ConnectionOptions], *, default: str = "default") -> None:
        """Set all connections, each as a URL or as the arguments of `duetime.connect`. An open client is closed if its
        settings change. `default` is the name that `connection()` uses.
        """
        described: dict[str, ConnectionOptions] = {}
        if not isinstance(connections, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidSettings(f"connections must be a mapping by name, got {connections!r:.60}")
        for name, one in connections.items():
            options: ConnectionOptions = {"url": one} if isinstance(one, str) else one
            known = ConnectionOptions.__annotations__.keys()
            if not isinstance(options, Mapping) or options.keys() - known or not options.get("url"):  # pyright: ignore[reportUnnecessaryIsInstance]
                given = sorted(options) if isinstance(options, Mapping) else repr(options)  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidSettings(f"connection {name!r} must have a url and options of connect(), got {given}")
            described[name] = options
        with self._lock:
            changed = [name for name in self._clients if described.get(name) != self._options.get(name)]
            closing = [self._clients.pop(name) for name in changed]
            self._options, self._default = described, default
        for client in closing:
            client.close()

    @property
    def names(self) -> list[str]:
        return sorted(self._options)

    def connection(self, name: str | None = None) -> Client:
        """Return the client of this name, and open it if necessary. Raises InvalidSettings for an unknown name."""
        name = self._default if name is None else name
        with self._lock:
            if name not in self._clients:
                self._clients[name] = Client(**self._described(name))
            return self._clients[name]

    __getitem__ = connection

    def connect_async(self, name: str | None = None) -> AsyncClient:
        """Open a new asyncio client with the settings of this name. The caller closes it."""
        return AsyncClient(**self._described(self._default if name is None else name))

    def _described(self, name: str) -> ConnectionOptions:
        if name not in self._options:
            raise InvalidSettings(f"connection must be one of {self.names}, got {name!r}; call configure() first")
        return self._options[name]

    def close(self) -> None:
        """Close all open clients. The next use opens them again."""
        with self._lock:
            closing, self._clients = self._clients, {}
        for client in closing.values():
            client.close()


connections = Connections()
