"""The client's address and scheme behind trusted proxies.

Trusted proxies (setting `trusted_proxies`) append the address that they were called from to X-Forwarded-For, which is
read from its end. Everything before the first address that is not a trusted proxy may be forged, and is ignored.
X-Forwarded-Proto says whether the client used TLS.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from duetime.model.errors import InvalidSettings

HeaderList = Sequence[tuple[bytes, bytes]]
Address = tuple[str, int]

UNIX = "unix"
"""In the setting: all clients of a Unix socket."""
MOST_HOPS = 16


@dataclass(frozen=True)
class TrustedProxies:
    networks: Sequence[IPv4Network | IPv6Network]
    has_unix: bool = False

    def trusts(self, peer: Address | None) -> bool:
        """Returns whether this peer is a trusted proxy. None is the peer of a Unix socket."""
        if peer is None:
            return self.has_unix
        found = _read_hop(peer[0])
        return found is not None and self._is_ours(found)

    def client_of(self, headers: HeaderList, peer: Address | None) -> Address | None:
        """The client for which a trusted proxy forwards the request; the proxy itself if it does not say."""
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
        """The scheme that the client used, http or https, as a trusted proxy reports it (X-Forwarded-Proto)."""
        said = next((value for name, value in headers if name == b"x-forwarded-proto"), b"")
        return "https" if said.partition(b",")[0].strip().lower() == b"https" else "http"

    def _is_ours(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self.networks)


def read_proxies(text: str) -> TrustedProxies | None:
    """Returns None without trusted proxies. Raises InvalidSettings."""
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
