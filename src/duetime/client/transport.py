"""What carries a client's Calls: HTTP, or an engine of this process."""

import os
import threading
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import SplitResult, urlsplit

from duetime.client.call import Call
from duetime.model.errors import ClientClosed, InvalidRequest, InvalidSettings

Answer = TypeVar("Answer")

UNREACHABLE = "the server cannot be reached"
"""How an error begins if no server answered; one that answered says itself what it cannot reach."""


class AsyncTransport(Protocol):
    async def send(self, call: Call[Answer]) -> Answer: ...

    async def close(self) -> None: ...


class SyncTransport(Protocol):
    def send(self, call: Call[Answer]) -> Answer: ...

    def close(self) -> None: ...


def is_http(url: str) -> bool:
    """Raises InvalidSettings if the URL is not a text."""
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidSettings(f"the URL of a store or server must be text, got {url!r}")
    return url[:6].lower().startswith(("http:", "https:"))


def check_url(url: str) -> None:
    """Raises InvalidSettings for a URL that cannot be opened, before it is."""
    if is_http(url):
        server_address(url)
    else:
        import_module("duetime.stores.open").check_url(url)


def server_address(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        if parts.hostname and parts.port != 0:
            return parts
    except ValueError:
        pass
    raise InvalidSettings(f"server URL must be like http://host:port, got {url.rpartition('@')[2]!r}")


def store_url(url: str) -> str | None:
    """Returns the URL if it names a store, None if it names a server."""
    return None if is_http(url) else url


def check_is_store(url: str, refusal: str) -> None:
    """Raises InvalidRequest with `refusal` if the URL is a server's."""
    if is_http(url):
        raise InvalidRequest(refusal)


Transport = TypeVar("Transport", SyncTransport, AsyncTransport)


class ConnectOptions(NamedTuple):
    """How a client is opened. `journal` goes with the URL of a store, `token` with the URL of a server; without one,
    the token of DUETIME_TOKEN is sent.
    """

    url: str
    token: str | None
    journal: str | None
    tracing: bool = False

    def check(self) -> None:
        """Raises InvalidSettings for options that cannot be used, before anything is opened."""
        check_url(self.url)
        for name, value in (("token", self.token), ("journal", self.journal)):
            if value is not None and not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidSettings(f"{name} must be text, got {type(value).__name__}")


class ProcessTransport(Generic[Transport]):
    """A client's transport in this process. After a fork it is opened again: connections, threads and the event loop
    stay with the parent.
    """

    def __init__(self, options: ConnectOptions, opener: Callable[[ConnectOptions], Transport]) -> None:
        self._options, self._opener = options, opener
        self._transport, self._pid = opener(options), os.getpid()
        self._is_closed = False
        self._parents: list[Transport] = []
        # By process: a lock that another thread held during a fork would never be released in the child.
        self._reopening: dict[int, threading.Lock] = {}

    def get(self) -> Transport:
        """Raises ClientClosed."""
        if self._is_closed:
            raise ClientClosed
        if self._pid != os.getpid():
            self._reopen()
        return self._transport

    def _reopen(self) -> None:
        if self._options.url.startswith("memory:"):
            raise InvalidSettings("a memory: store cannot be used in a fork of the process that opened it")
        with self._reopening.setdefault(os.getpid(), threading.Lock()):
            if self._pid == os.getpid():  # another thread was first
                return
            # What is the parent's is kept, because to collect it would close it, for the parent too.
            self._parents.append(self._transport)
            self._transport, self._pid = self._opener(self._options), os.getpid()

    def end(self) -> Transport | None:
        """What is left to close: nothing if that was done before, or by the parent's client only."""
        if self._is_closed:
            return None
        self._is_closed = True
        return self._transport if self._pid == os.getpid() else None


def open_sync(options: ConnectOptions) -> SyncTransport:
    return _open(options, "Sync")


def open_async(options: ConnectOptions) -> AsyncTransport:
    return _open(options, "Async")


def _open(options: ConnectOptions, colour: str) -> Any:
    """Imports what the URL needs and no more: to import an HTTP client takes longer than all else."""
    options.check()
    tracing = _tracing() if options.tracing else None
    if is_http(options.url):
        http = getattr(import_module(f"duetime.client.{colour.lower()}_http"), f"{colour}Http")
        token = options.token or os.environ.get("DUETIME_TOKEN")
        transport = http(options.url, token, more_headers=tracing.trace_headers if tracing else dict)
    else:
        embedded = getattr(import_module("duetime.client.embedded_transport"), f"{colour}Embedded")
        transport = embedded(options.url, options.journal)
    return getattr(tracing, f"{colour}Traced")(transport) if tracing else transport


def _tracing() -> ModuleType:
    """Imports tracing by its name: the client must not depend on it, and its packages are optional."""
    try:
        return import_module("duetime.tracing.client")
    except ModuleNotFoundError as missing:
        raise InvalidSettings.lacks("tracing=True", "otel", missing) from None
