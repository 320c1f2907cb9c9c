"""How complete the journal is: per node, which entries have been read, and whether more may come.

A node numbers its entries from 1 without gaps, so missing entries can be counted. It writes a heartbeat every five
seconds and `closed` when it stops, so a node whose entries do not arrive can be distinguished from an idle one.
Pure; the ranges are kept in the manifest of `events`.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

Range = tuple[int, int]
"""First and last seq, both inclusive."""


class NodeState(Struct, frozen=True):
    """`ranges` are sorted and do not touch.

    `beats` has, by pool, the store's time of the latest heartbeat: entries of the node about what happened in the pool
    before that time come before it. `first_at` is the earliest time of any entry, 0 if there is none.
    """

    ranges: Sequence[Range] = ()
    beats: Mapping[str, int] = {}
    closed: bool = False
    first_at: int = 0

    @property
    def entries(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)

    @property
    def last(self) -> int:
        return self.ranges[-1][1] if self.ranges else 0

    def has(self, seq: int) -> bool:
        return any(first <= seq <= last for first, last in self.ranges)

    def gaps(self, up_to: int = 0) -> list[Range]:
        """The entries that are missing before the last one read, or up to `up_to` if that is known to exist."""
        missing: list[Range] = []
        expected = 1
        for first, last in self.ranges:
            if first > expected:
                missing.append((expected, first - 1))
            expected = last + 1
        return [*missing, (expected, up_to)] if up_to >= expected else missing

    def is_silent(self, pool: str, after: int) -> bool:
        """Returns True if entries about what happened in the pool before `after` may still come."""
        return not self.closed and pool in self.beats and not self.has_beat(pool, after)

    def has_beat(self, pool: str, after: int) -> bool:
        """Returns True if all entries about what happened in the pool before `after` have come."""
        return self.beats.get(pool, after) > after

    def overlaps(self, other: "NodeState") -> bool:
        return any(mine[0] <= its[1] and its[0] <= mine[1] for mine in self.ranges for its in other.ranges)

    def joined(self, other: "NodeState") -> "NodeState":
        return NodeState(
            ranges=join_ranges([*self.ranges, *other.ranges]),
            beats={
                pool: max(self.beats.get(pool, 0), other.beats.get(pool, 0)) for pool in {**self.beats, **other.beats}
            },
            closed=self.closed or other.closed,
            first_at=min((at for at in (self.first_at, other.first_at) if at), default=0),
        )


Nodes = Mapping[str, NodeState]


def join_ranges(ranges: Iterable[Range]) -> list[Range]:
    joined: list[Range] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return joined


def join_nodes(some: Nodes, others: Nodes) -> dict[str, NodeState]:
    return {name: some.get(name, NodeState()).joined(others.get(name, NodeState())) for name in {**some, **others}}


def without(gaps: Iterable[Range], known: set[int]) -> list[Range]:
    """The gaps that are left when the seqs in `known` are explained otherwise."""
    left: list[Range] = []
    for first, last in gaps:
        start = first
        for seq in sorted(one for one in known if first <= one <= last):
            if seq > start:
                left.append((start, seq - 1))
            start = seq + 1
        if start <= last:
            left.append((start, last))
    return left
