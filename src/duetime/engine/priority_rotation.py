"""Shares between priorities: 5 : 3 : 2 by default, spread evenly and remembered from call to call.

Each queue has a rotation of turns. `next_turns(n)` says how many jobs of each priority the next n turns are for, and
moves on. So requests in the same call, or in a call that is still under way, do not use the same turns.
`return_turns(n)` returns turns that brought no job. Consumers that reserve one job at a time see the same shares as
those that reserve many.
"""

from functools import cache

from duetime.model.priority_shares import DEFAULT_SHARES, Shares

_SINGLE = ((1, 0, 0), (0, 1, 0), (0, 0, 1))


@cache
def spread(shares: Shares) -> tuple[int, ...]:
    """One round of turns: the index of each priority as often as its share says, spread as evenly as possible."""
    total = sum(shares)
    credit = [0] * len(shares)
    order: list[int] = []
    for _ in range(total):
        credit = [have + share for have, share in zip(credit, shares, strict=True)]
        chosen = credit.index(max(credit))
        credit[chosen] -= total
        order.append(chosen)
    return tuple(order)


class PriorityRotation:
    def __init__(self, shares: Shares = DEFAULT_SHARES) -> None:
        self._shares, self._turns = shares, spread(shares)
        self._at = 0

    def next_turns(self, turns: int) -> tuple[int, int, int]:
        at, order = self._at, self._turns
        self._at = (at + turns) % len(order)
        if turns == 1:
            return _SINGLE[order[at]]
        rounds, rest = divmod(turns, len(order))
        counts = [share * rounds for share in self._shares]
        for step in range(rest):
            counts[order[(at + step) % len(order)]] += 1
        return counts[0], counts[1], counts[2]

    def return_turns(self, turns: int) -> None:
        self._at = (self._at - turns) % len(self._turns)
