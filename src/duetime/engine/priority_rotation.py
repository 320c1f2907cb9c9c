"""Shares between priorities: 5 : 3 : 2 by default, spread evenly and remembered from call to call.

Each queue has a wheel of turns. `take(n)` says how many jobs of each priority the next n turns are for, and moves on.
So asks in the same call, or in a call that is still under way, do not use the same turns. `put_back(n)` returns turns
that brought no job. Consumers that take one job at a time see the same shares as those that take many.
"""

from collections.abc import Sequence

SHARES = (5, 3, 2)
_SINGLE = ((1, 0, 0), (0, 1, 0), (0, 0, 1))


def turns(shares: Sequence[int]) -> tuple[int, ...]:
    """One round of the wheel: each priority's index as often as its share, as evenly spread as can be."""
    total = sum(shares)
    credit = [0] * len(shares)
    order: list[int] = []
    for _ in range(total):
        credit = [have + share for have, share in zip(credit, shares, strict=True)]
        chosen = credit.index(max(credit))
        credit[chosen] -= total
        order.append(chosen)
    return tuple(order)


class Wheel:
    def __init__(self) -> None:
        self._turns = turns(SHARES)
        self._at = 0

    def take(self, turns: int) -> tuple[int, int, int]:
        if turns == 1:
            at = self._at
            self._at = (at + 1) % len(self._turns)
            return _SINGLE[self._turns[at]]
        rounds, rest = divmod(turns, len(self._turns))
        counts = [share * rounds for share in SHARES]
        for step in range(rest):
            counts[self._turns[(self._at + step) % len(self._turns)]] += 1
        self._move(turns)
        return counts[0], counts[1], counts[2]

    def put_back(self, turns: int) -> None:
        self._move(-turns)

    def _move(self, by: int) -> None:
        self._at = (self._at + by) % len(self._turns)
