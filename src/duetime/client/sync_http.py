"""Calls over HTTP for blocking code, by the standard library: a command of the shell must not wait for the import of an
HTTP client that takes longer than its call.

A connection serves one call at a time and then waits for the next one, of any thread.
"""

import base64
import functools
import os
import select
import ssl
import time
from collections import deque
from collections.abc import Callable
from http.client import HTTP_PORT, HTTPS_PORT, HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NamedTuple, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

import certifi
import msgspec

from duetime.client.call import Call, Request
from duetime.client.transport import UNREACHABLE, server_address
from duetime.model.backoff import Outage
from duetime.model.errors import DuetimeError, InvalidSettings, StoreUnavailable
from duetime.wire import convert, messages

Answer = TypeVar("Answer")

IDLE_S = 5
"""A connection that was idle for this many seconds is not used again: a proxy may have dropped it."""
TRIES = 5
CONNECT_S = 5.0
REPLY_S = 30.0
OK_BELOW = 400

MoreHeaders = Callable[[], dict[str, str]]
"""Headers that are added to each request of a client."""


class NotConnected(Exception):
    """No connection could be made, so the request certainly did not arrive."""


class IdleConnection(NamedTuple):
    connection: HTTPConnection
    since: float

    def is_usable(self) -> bool:
        """Whether it is young, and the server has not closed it meanwhile; a close can be read."""
        sock = self.connection.sock
        if sock is None or time.monotonic() - self.since >= IDLE_S:
            return False
        if not hasattr(select, "poll"):  # Windows
            return not select.select([sock], [], [], 0)[0]
        # select() refuses the sockets of a program that has more than 1,024 files open.
        readable = select.poll()
        readable.register(sock, select.POLLIN)
        return not readable.poll(0)


class SyncHttp:
    def __init__(self, url: str, token: str | None, *, more_headers: MoreHeaders = dict) -> None:
        self._server = server_address(url)
        self._headers = {**_basic(self._server, "authorization"), **headers(token)}
        self._more_headers = more_headers
        self._proxy = _proxy(self._server)
        self._prefix = self._server.path.rstrip("/")
        if self._proxy and self._server.scheme == "http":
            self._prefix = f"http://{self._server.netloc.rpartition('@')[2]}{self._prefix}"
            self._headers |= _basic(self._proxy, "proxy-authorization")
        self._idle: deque[IdleConnection] = deque()
        self._is_closed = False

    def send(self, call: Call[Answer]) -> Answer:
        request, attempts = call.request(), Attempts(call)
        while True:
            try:
                status, content = self._exchange(request, REPLY_S + call.wait_ms / 1000)
                if status < OK_BELOW:
                    return call.parse(content)
                pause = attempts.after_refusal(status, content)
            except NotConnected as error:
                pause = attempts.after_error(error, unsent=True)
            except (OSError, HTTPException) as error:
                pause = attempts.after_error(error, unsent=False)
            time.sleep(pause)

    def _exchange(self, request: Request, timeout_s: float) -> tuple[int, bytes]:
        connection = self._connected()
        try:
            connection.sock.settimeout(timeout_s)
            sent = {**self._headers, **self._more_headers()}
            connection.request(request.method, self._prefix + request.path, request.body, sent)
            reply = connection.getresponse()
            content = reply.read()
        except BaseException:
            # Whatever ended it, an interrupt too: the next call must not read this one's answer.
            connection.close()
            raise
        if reply.will_close or self._is_closed:
            connection.close()
        else:
            self._idle.append(IdleConnection(connection, time.monotonic()))
        return reply.status, content

    def _connected(self) -> HTTPConnection:
        while self._idle:
            try:
                idle = self._idle.pop()
            except IndexError:  # another thread has it
                break
            if idle.is_usable():
                return idle.connection
            idle.connection.close()
        connection = self._new()
        try:
            connection.connect()
        except (OSError, HTTPException) as error:
            connection.close()
            raise NotConnected(str(error) or type(error).__name__) from error
        return connection

    def _new(self) -> HTTPConnection:
        through = self._proxy or self._server
        if self._server.scheme == "http":
            return HTTPConnection(through.hostname or "", through.port, timeout=CONNECT_S)
        # A proxy is asked by HTTP, also for a server with TLS, so without a port it is at 80.
        port = through.port or (HTTP_PORT if self._proxy else HTTPS_PORT)
        connection = HTTPSConnection(through.hostname or "", port, timeout=CONNECT_S, context=trust())
        if self._proxy:
            allowed = {name: value.decode() for name, value in _basic(self._proxy, "proxy-authorization").items()}
            connection.set_tunnel(self._server.hostname or "", self._server.port, allowed)
        return connection

    def close(self) -> None:
        self._is_closed = True
        while self._idle:
            self._idle.pop().connection.close()


def _basic(address: SplitResult, header: str) -> dict[str, bytes]:
    """User and password of a URL."""
    if address.username is None:
        return {}
    pair = f"{unquote(address.username)}:{unquote(address.password or '')}"
    return {header: b"Basic " + base64.b64encode(pair.encode())}


def _proxy(server: SplitResult) -> SplitResult | None:
    """The proxy that the environment names for the server: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY."""
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415 (few have a proxy)

    known = getproxies()
    chosen = known.get(server.scheme) or known.get("all")
    if not chosen or proxy_bypass(server.netloc.rpartition("@")[2]):
        return None
    proxy = urlsplit(chosen if "://" in chosen else f"http://{chosen}")
    if proxy.scheme != "http" or not proxy.hostname:
        raise InvalidSettings(f"proxy of a blocking client must be an http:// URL, got {proxy.scheme}://")
    return proxy


# --- shared with async_http.py: headers, retries, refusals


@functools.cache
def trust() -> ssl.SSLContext:
    """What all clients of this process check servers with. To read the certificates takes ten times as long as all else
    that a new client does. SSL_CERT_FILE and SSL_CERT_DIR name others.
    """
    if os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR"):
        return ssl.create_default_context(
            cafile=os.environ.get("SSL_CERT_FILE") or None, capath=os.environ.get("SSL_CERT_DIR") or None
        )
    return ssl.create_default_context(cafile=certifi.where())


def headers(token: str | None) -> dict[str, bytes]:
    """Raises InvalidSettings for a token that cannot be sent in a header."""
    sent = {"content-type": b"application/json", "accept": b"application/json"}
    if not token:
        return sent
    if not token.isprintable():
        raise InvalidSettings("token must be one line of printable characters")
    # In bytes, because a token may be any UTF-8 and HTTP libraries take text for ASCII or Latin-1.
    return sent | {"authorization": b"Bearer " + token.encode()}


class Attempts:
    """What to do after each try of one call; the same for the sync and the async transport."""

    def __init__(self, call: Call[Any]) -> None:
        self._call = call
        self._outage = Outage()

    def after_error(self, error: Exception, *, unsent: bool) -> float:
        """The pause before the next try, or the error that ends it."""
        if (unsent or self._call.repeatable) and (pause := self._pause()) is not None:
            return pause
        message = f"{UNREACHABLE}: {str(error) or type(error).__name__}"
        raise StoreUnavailable(message, unknown=not unsent) from error

    def after_refusal(self, status: int, content: bytes) -> float:
        """As `after_error`, after a refusal of the server."""
        error = _refusal(status, content)
        passing = isinstance(error, StoreUnavailable) and (self._call.repeatable or not error.outcome_unknown)
        if passing and (pause := self._pause()) is not None:
            return pause
        raise error

    def _pause(self) -> float | None:
        self._outage.failed()
        return self._outage.pause_s if self._outage.failures < TRIES else None


def _refusal(status: int, content: bytes) -> DuetimeError:
    try:
        return convert.error(msgspec.json.decode(content, type=messages.ErrorOut))
    except msgspec.MsgspecError:
        text = content.decode(errors="replace")[:200]
        return DuetimeError(f"the server answered {status}, but not as the API of Duetime does: {text}", status=status)
