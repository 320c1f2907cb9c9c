"""The admin API of a server, for the commands that manage the server itself: tokens, limits and alerts.

These commands go to --url, else to DUETIME_ADMIN_URL, else to the admin port of DUETIME_URL, else to the admin port of
this machine. The API's usual port stands for the admin port, so `--url http://host:7777` works for every command. A
server with accounts wants a user and password, as in http://user:password@host:7778.
"""

import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from duetime.cli.options import Target
from duetime.model.errors import InvalidRequest, NotFound, StoreUnavailable, Unauthorized
from duetime.model.masking import mask

DEADLINE_S = 30.0
"""Longer than a test alert may take to reach a mail server."""
API_PORT = 7777
ADMIN_PORT = 7778
"""The ports that `duetime serve` uses if no others are set."""
UNKNOWN_PATH = "api not found"
"""What the API of a server answers to a path of the admin API."""


def admin_address(target: Target) -> str:
    """The URL of the admin API, or of a store if one was given."""
    url = target.url or os.environ.get("DUETIME_ADMIN_URL") or target.address
    parts = urlsplit(url)
    if not parts.scheme.startswith("http") or parts.port != API_PORT:
        return url
    return parts._replace(netloc=f"{parts.netloc.removesuffix(str(API_PORT))}{ADMIN_PORT}").geturl()


@dataclass(frozen=True)
class AdminApi:
    url: str

    def send(self, method: str, path: str, **sent: Any) -> Any:
        shown = mask(self.url)
        try:
            reply = httpx.request(method, self.url.rstrip("/") + path, timeout=DEADLINE_S, **sent)
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
