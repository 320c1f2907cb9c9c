"""Calls about a server itself: tokens, limits and alerts.

An AdminCall is either a request to the admin API of a server, or the same work on the registry of a store. Servers
follow the registry of their store within a second.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

import httpx
from msgspec import Struct

from duetime.client.store_link import on_store
from duetime.client.transport import is_http
from duetime.model.errors import InvalidRequest, NotFound, StoreUnavailable, Unauthorized
from duetime.model.masking import mask
from duetime.stores.registry import Registry

DEADLINE_S = 30.0
"""Longer than a test alert may take to reach a mail server."""
ADMIN_PORT = 7778
"""The admin port of `duetime serve` if no other is set."""
UNKNOWN_PATH = "api not found"
"""What the API of a server answers to a path of the admin API."""

Answer = TypeVar("Answer")


class AdminCall(Struct, Generic[Answer], frozen=True):
    """`sent` has what httpx sends with the request: params, json or data."""

    method: str
    path: str
    run: Callable[[Registry], Awaitable[Answer]]
    parse: Callable[[Any], Answer] = lambda answer: answer
    sent: Mapping[str, Any] = {}


def send_admin(url: str, call: AdminCall[Answer]) -> Answer:
    """Send a call to the admin API at the URL, or do it on the store that the URL names. Blocking."""
    if is_http(url):
        return call.parse(_request(url, call))
    return on_store(url, lambda store: call.run(store.registry))


def _request(url: str, call: AdminCall[Any]) -> Any:
    shown = mask(url)
    try:
        reply = httpx.request(call.method, url.rstrip("/") + call.path, timeout=DEADLINE_S, **call.sent)
    except httpx.TransportError as error:
        raise StoreUnavailable(f"cannot reach the admin API at {shown}: {error}") from error
    reason = _reason(reply)
    match reply.status_code:
        case 200 | 201:
            return reply.json()
        case 204:
            return {}
        case 401:
            raise Unauthorized(f"{shown} needs a user and password: http://user:password@host:{ADMIN_PORT}")
        case 404 if reason and reason != UNKNOWN_PATH:
            raise NotFound(reason)
        case 404 | 405:
            raise NotFound(
                f"{shown} is not an admin API; give its address (port {ADMIN_PORT} by default) with --url or "
                "DUETIME_ADMIN_URL"
            )
        case status:
            raise InvalidRequest(f"the admin API refused the request: {reason or f'status {status}'}")


def _reason(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["error"])
    except (ValueError, KeyError, TypeError):
        return ""
