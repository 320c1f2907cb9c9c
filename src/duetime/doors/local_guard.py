"""Keeps web pages out of what asks for no password.

A port without a password listens on loopback only, but a browser on the same machine can be made to call it: by a
page of another site, or through a name that is made to point to 127.0.0.1 (DNS rebinding). Programs are told from such
pages by what browsers cannot help sending: the Host that was asked for, the page's Origin, and Sec-Fetch-Site.
"""

from collections.abc import Awaitable
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from duetime.doors.access_log import FOREIGN
from duetime.doors.refusals import refusal_body
from duetime.settings import is_loopback

STATUS = 403
WATCHED = frozenset({b"host", b"origin", b"sec-fetch-site"})


def local_only(app: ASGIApp) -> ASGIApp:
    """The same application for loopback Hosts and pages of this machine only; no browser comes by a Unix socket."""

    async def refuse(scope: Scope, send: Send, reason: str) -> None:
        scope[FOREIGN] = True
        kind, body = refusal_body(scope["path"].encode(), STATUS, reason)
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": STATUS, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def serve(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http" and (reason := why_foreign(scope)):
            return refuse(scope, send, reason)
        return app(scope, receive, send)

    return serve


def why_foreign(scope: Scope) -> str:
    """Why the request may come from a web page of elsewhere; empty for a program or a page of this machine."""
    if scope.get("server") is None:
        return ""
    return next((reason for name, value in scope["headers"] if name in WATCHED and (reason := _judge(name, value))), "")


@lru_cache(maxsize=256)
def _judge(name: bytes, value: bytes) -> str:
    text = value.decode("latin-1")
    if name == b"host" and text and not _is_local(f"http://{text}"):
        return "this port asks for no password and answers to localhost, 127.0.0.1 and [::1] only: check the Host"
    if name == b"origin" and not _is_local(text):
        return "this port asks for no password and refuses web pages of other sites"
    if name == b"sec-fetch-site" and text.strip().lower() == "cross-site":
        return "this port asks for no password and refuses requests from other sites"
    return ""


def _is_local(url: str) -> bool:
    try:
        host = (urlsplit(url).hostname or "").removesuffix(".")
    except ValueError:
        return False
    return is_loopback(host) or host.endswith(".localhost")
