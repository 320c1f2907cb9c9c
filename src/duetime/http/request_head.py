"""The head of a request: RFC 9112's rules that the parser leaves to us, and the client's address behind proxies.

Trusted proxies (setting `trusted_proxies`) append the address that they were called from to X-Forwarded-For, which is
read from its end. Everything before the first address that is not a trusted proxy was written by somebody who may lie,
and is ignored. X-Forwarded-Proto says whether the client used TLS.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from duetime.model.errors import InvalidSettings

HeaderList = Sequence[tuple[bytes, bytes]]
RequestHead = tuple[bytes, bytes, str, list[tuple[bytes, bytes]]]
"""Method, target, version and headers."""
Address = tuple[str, int]

UNIX = "unix"
"""Stands for every client of a Unix socket."""
MOST_HOPS = 16

_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")


class RequestRefused(Exception):
    """Raised inside a parser callback: the request ends here with this status."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        self.reason = reason


def check_head(headers: HeaderList, version: str) -> None:
    """Raises RequestRefused: 400 for a Host that is missing, doubled or invalid, 501 for a coding we cannot undo.

    The parser decodes only the chunks of `gzip, chunked`, and would pass on the compressed bytes as the body.
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
                raise RequestRefused(501, "the transfer coding must be chunked")
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise RequestRefused(400, "the request must have exactly one Host header")


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
        raise RequestRefused(400, "the request target is not a valid URL") from None
    return parts.path or b"/", parts.query


@dataclass(frozen=True)
class TrustedProxies:
    networks: Sequence[IPv4Network | IPv6Network]
    has_unix: bool = False

    def trusts(self, peer: Address | None) -> bool:
        """Whether this peer (None: of a Unix socket) may say whom it speaks for."""
        if peer is None:
            return self.has_unix
        found = _read_hop(peer[0])
        return found is not None and self._is_ours(found)

    def client_of(self, headers: HeaderList, peer: Address | None) -> Address | None:
        """Whom a trusted peer speaks for; itself, if it does not say."""
        hops = b",".join([value for name, value in headers if name == b"x-forwarded-for"]).decode("latin-1").split(",")
        client = peer
        for hop in reversed(hops[-MOST_HOPS:]):
            found = _read_hop(hop)
            if found is None:
                break
            client = (str(found), 0)
            if not self._is_ours(found):
                break
        return client

    def scheme_of(self, headers: HeaderList) -> str:
        """Whether the client used http or https, as a trusted peer says (X-Forwarded-Proto)."""
        said = next((value for name, value in headers if name == b"x-forwarded-proto"), b"")
        return "https" if said.partition(b",")[0].strip().lower() == b"https" else "http"

    def _is_ours(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self.networks)


def read_proxies(text: str) -> TrustedProxies | None:
    """None if there are none. Raises InvalidSettings."""
    words = text.replace(",", " ").split()
    if not words:
        return None
    try:
        networks = [ip_network(word) for word in words if word != UNIX]
    except ValueError as error:
        raise InvalidSettings(f"trusted_proxies: {error}; write 127.0.0.1, 10.0.0.0/8 or {UNIX}") from None
    return TrustedProxies(networks, UNIX in words)


def _read_hop(text: str) -> IPv4Address | IPv6Address | None:
    """`1.2.3.4`, `1.2.3.4:567`, `::1`, `[::1]:567`; an IPv4 address that came over IPv6 is one of IPv4."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return (isinstance(found, IPv6Address) and found.ipv4_mapped) or found
