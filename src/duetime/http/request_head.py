"""What a request's head must be before any application sees it: RFC 9112's rules that the parser leaves to us."""

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

HeaderList = Sequence[tuple[bytes, bytes]]
RequestHead = tuple[bytes, bytes, str, list[tuple[bytes, bytes]]]
"""Method, target, version and headers."""

_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")


class RequestRefused(Exception):
    """Raised inside a parser callback: the request ends here with this status."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        self.reason = reason


def check_head(headers: HeaderList, version: str) -> None:
    """Raises RequestRefused: 400 for a Host that is missing, doubled or none, 501 for a coding that we cannot undo.

    The parser takes the chunks of `gzip, chunked` apart and would hand the compressed bytes on as the body.
    """
    hosts = codings = 0
    for name, value in headers:
        if name == b"host":
            hosts += 1
            if _HOST.fullmatch(value) is None:
                raise RequestRefused(400, "the Host header is not valid")
        elif name == b"transfer-encoding":
            codings += 1
            if codings > 1 or value.strip().lower() != b"chunked":
                raise RequestRefused(501, "the only transfer coding that is understood is chunked")
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise RequestRefused(400, "a request has exactly one Host header")


def expects_continue(headers: HeaderList) -> bool:
    """The client waits with its body for `100 Continue`."""
    return any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)


def absolute_target(url: bytes) -> tuple[bytes, bytes]:
    """Path and query of `http://host/path?query`, as proxies send it; `*` and `host:port` stay as they are."""
    if b"://" not in url:
        return url, b""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise RequestRefused(400, "this is not HTTP") from None
    return parts.path or b"/", parts.query
