"""Checks where callbacks may go: only to public addresses, unless `callback_allow` names the network.

Users who may edit topics choose callback URLs, so a URL must not lead to hosts that only this machine can reach:
loopback, private and link-local networks, metadata services. The addresses that a name resolves to are checked, and the
connection uses exactly these addresses, so a name that resolves to another address a moment later causes no harm.
"""

from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from duetime.model.errors import InvalidSettings
from duetime.model.names import is_host

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

MAX_REMEMBERED = 10_000
"""How many hosts that passed the check are remembered."""

_NOT_PUBLIC = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",  # carrier-grade NAT; Alibaba's metadata service is 100.100.100.200
            "127.0.0.0/8",
            "168.63.129.16/32",  # Azure's host
            "169.254.0.0/16",  # link-local; most metadata services are 169.254.169.254
            "172.16.0.0/12",
            "192.0.0.0/24",  # protocol assignments; Oracle's metadata service is 192.0.0.192
            "192.0.2.0/24",
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/3",  # multicast and reserved
            "2001::/23",  # protocol assignments, among them Teredo
            "2001:db8::/32",
            "3fff::/20",
        ),
    )
)
"""Our own table, because `ipaddress` calls some of these global, and which ones depends on the version of Python."""
_UNICAST = ip_network("2000::/3")
"""All public IPv6 addresses; outside are loopback, private, link-local, local NAT64 (64:ff9b:1::/48), multicast."""
_NAT64 = ip_network("64:ff9b::/96")
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)
"""The bits before the IPv4 address in an ISATAP address."""


class ForbiddenTarget(OSError):
    """The callback leads to an address that is not allowed."""


def read_networks(text: str) -> tuple[Network, ...]:
    """The networks in a text such as `127.0.0.0/8, ::1, 10.1.0.0/16`. Raises InvalidSettings."""
    try:
        return tuple(ip_network(part.strip(), strict=False) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise InvalidSettings(f"callback_allow: {error}; write networks such as 127.0.0.0/8, 10.1.0.0/16") from None


class AllowedTargets:
    """`allowed` are networks that may be called although they are not public."""

    def __init__(self, allowed: Iterable[Network] = ()) -> None:
        self._allowed = tuple(allowed)
        self._fine: set[str] = set()

    def check(self, host: str) -> None:
        """Refuse a host that is an address; a name is checked when it is resolved. Raises ForbiddenTarget."""
        if host in self._fine:
            return
        if not is_host(host):
            raise ForbiddenTarget(f"callback host must be a name or an address, got {host!r}")
        with suppress(ValueError):  # not an address but a name
            self.check_address(ip_address(host.strip("[]").partition("%")[0]))
        if len(self._fine) >= MAX_REMEMBERED:
            self._fine.clear()
        self._fine.add(host)

    def check_address(self, address: Address) -> None:
        if not self._is_allowed(address):
            raise ForbiddenTarget(f"callback address must be public, got {address}; callback_allow can allow it")

    def _is_allowed(self, address: Address) -> bool:
        if any(address in network for network in self._allowed if network.version == address.version):
            return True
        inner = _embedded(address)
        if inner is not None:
            return self._is_allowed(inner)
        if isinstance(address, IPv6Address):
            if address not in _UNICAST:
                return False
            if (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP:
                return self._is_allowed(_low_bits(address))
        return not any(address in network for network in _NOT_PUBLIC if network.version == address.version)


def _embedded(address: Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address contains and leads to, None for any other address."""
    if not isinstance(address, IPv6Address):
        return None
    return _low_bits(address) if address in _NAT64 else address.ipv4_mapped or address.sixtofour


def _low_bits(address: IPv6Address) -> IPv4Address:
    return IPv4Address(int(address) & 0xFFFF_FFFF)
