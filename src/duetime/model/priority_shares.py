"""The shares of the priorities high, normal and low, for all namespaces and for single ones.

read_shares("5:3:2, shop=8:1:1")
"""

from collections.abc import Mapping

from msgspec import Struct

from duetime.model.errors import InvalidSettings

Shares = tuple[int, int, int]
DEFAULT_SHARES: Shares = (5, 3, 2)
MAX_SHARE = 100


class PriorityShares(Struct, frozen=True):
    default: Shares = DEFAULT_SHARES
    namespaces: Mapping[str, Shares] = {}

    def of(self, namespace: str) -> Shares:
        return self.namespaces.get(namespace, self.default)


def read_shares(text: str) -> PriorityShares:
    """Raises InvalidSettings."""
    default, namespaces = DEFAULT_SHARES, dict[str, Shares]()
    for part in filter(None, (part.strip() for part in text.split(","))):
        namespace, _, ratio = part.rpartition("=")
        shares = read_ratio(ratio)
        if namespace:
            namespaces[namespace.strip()] = shares
        else:
            default = shares
    return PriorityShares(default, namespaces)


def read_ratio(text: str) -> Shares:
    """Raises InvalidSettings."""
    numbers = [int(one[:4]) if one.isdecimal() else 0 for one in map(str.strip, text.split(":"))]
    if len(numbers) != len(DEFAULT_SHARES) or not all(1 <= number <= MAX_SHARE for number in numbers):
        raise InvalidSettings(
            f"priority_shares must be high:normal:low, each from 1 to {MAX_SHARE}, like '5:3:2' or "
            f"'5:3:2, shop=8:1:1'; got {text[:80]!r}"
        )
    return numbers[0], numbers[1], numbers[2]
