"""What a process may hold in memory for its HTTP clients, in bytes: one account for all listeners.

Request bodies are on it until they are answered, answers while their client does not read them, and so is what
a client sends ahead. When it is spent a request is refused with 503 before its body is read, so that memory stops
growing whatever clients do. Large requests may use three quarters only: a few of them never lock out the many small.
"""

SMALL = 65_536
"""The largest body in bytes that counts as small."""


class Budget:
    """`held` is what is on the account now."""

    __slots__ = ("held", "limit", "limit_for_large", "refused")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.limit_for_large = limit * 3 // 4
        self.held = 0
        self.refused = 0

    def take(self, size: int, *, large: bool = False) -> bool:
        """Put `size` on the account, unless that is more than there is room for."""
        held = self.held + size
        if held > (self.limit_for_large if large else self.limit):
            self.refused += 1
            return False
        self.held = held
        return True

    def force(self, size: int) -> None:
        """Charges bytes that are in memory already, also beyond the budget."""
        self.held += size

    def give(self, size: int) -> None:
        self.held -= size
