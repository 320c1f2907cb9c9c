"""What both HTTP transports share: headers, patience, and what to do after a try that failed.

Retries are here, once: a call that certainly did not arrive is sent again, one whose answer was lost only if it is
repeatable, and a server that asks for patience gets it.
"""

import functools
import os
import ssl
from collections.abc import Callable
from typing import Any

import certifi
import msgspec

from duetime.client.call import Call
from duetime.client.transport import UNREACHABLE
from duetime.model.backoff import Outage
from duetime.model.errors import DuetimeError, InvalidSettings, StoreUnavailable
from duetime.wire import convert, messages

TRIES = 5
CONNECT_S = 5.0
REPLY_S = 30.0
OK_BELOW = 400

MoreHeaders = Callable[[], dict[str, str]]
"""What each request of a client carries beside its own headers."""


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
    """Raises InvalidSettings for a token that cannot stand in a header."""
    sent = {"content-type": b"application/json", "accept": b"application/json"}
    if not token:
        return sent
    if not token.isprintable():
        raise InvalidSettings("a token is one line of printable characters")
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
        return DuetimeError(f"the server answered {status}: {text}", status=status)
