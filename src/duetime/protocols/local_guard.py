"""Keeps web pages of other sites, and proxies, away from the ports of this server.

A port without a password listens on loopback only, but a browser on the same machine can be made to call it: by a page
of another site, or through a name that is made to point to 127.0.0.1 (DNS rebinding). Such pages are recognized by
headers that browsers always send: the Host that was asked for, the page's Origin, and Sec-Fetch-Site. A proxy that
forwards requests of other machines is recognized by its headers.

A browser sends the password that it remembers also for pages of other sites, so a port with a password refuses writes
from them (CSRF).
"""

from collections.abc import Awaitable, Callable
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from duetime.http.proxies import HeaderList
from duetime.model.settings import is_loopback
from duetime.protocols.access_log import FOREIGN
from duetime.protocols.asgi import header, refusal_body

STATUS = 403
WATCHED = frozenset({b"host", b"origin", b"sec-fetch-site"})
READS = frozenset({"GET", "HEAD", "OPTIONS"})
OTHER_SITE = "this request comes from another site"


def local_only(app: ASGIApp) -> ASGIApp:
    """The same application for loopback Hosts and pages of this machine only, and not for proxies."""
    return _guarded(app, lambda scope: why_foreign(scope["headers"], scope.get("server") is None))


def same_origin_writes(app: ASGIApp) -> ASGIApp:
    """The same application, which refuses writes from pages of other sites."""
    return _guarded(app, lambda scope: "" if scope["method"] in READS or is_same_origin(scope) else OTHER_SITE)


def _guarded(app: ASGIApp, why_refused: Callable[[Scope], str]) -> ASGIApp:
    async def refuse(scope: Scope, send: Send, reason: str) -> None:
        scope[FOREIGN] = True
        kind, body = refusal_body(scope["path"].encode(), STATUS, reason)
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": STATUS, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def serve(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http" and (reason := why_refused(scope)):
            return refuse(scope, send, reason)
        return app(scope, receive, send)

    return serve


def is_same_origin(scope: Scope) -> bool:
    """True for a page of this origin, and for a program, which sends neither Origin nor Sec-Fetch-Site."""
    if site := header(scope, b"sec-fetch-site"):
        return site in (b"same-origin", b"none")
    origin = header(scope, b"origin")
    return not origin or origin.rpartition(b"://")[2] == header(scope, b"host")


def why_foreign(headers: HeaderList, is_socket: bool) -> str:
    """Why the request may come from elsewhere; empty for a program or a page of this machine.

    No browser connects to a Unix socket, but proxies do.
    """
    for name, value in headers:
        if name in (b"forwarded", b"via") or name.startswith(b"x-forwarded-"):
            return "this port asks for no password and refuses requests that a proxy forwards: set [accounts]"
        if name in WATCHED and not is_socket and (reason := _judge(name, value)):
            return reason
    return ""


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
