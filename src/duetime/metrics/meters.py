"""Meters for the hot path: plain numbers, which become metrics when they are read.

A meter belongs to one event loop and takes no lock. Code that counts often keeps the meter itself
(`pushed = family.of("q")`, then `pushed.value += 1`), because finding it by its labels costs more than counting.
`Meters.snapshot` answers all numbers of one process as data that can be sent to another one; `metrics/snapshots.py`
adds several snapshots up, `metrics/snapshots.py` writes one as text.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Generic, TypeVar

from msgspec import Struct, field

Labels = tuple[str, ...]

MAX_QUEUES = 1_000
OTHER = "other"
"""The namespace and queue under which all queues after the first MAX_QUEUES are counted."""
PER_QUEUE = ("pool", "namespace", "queue")
"""The first labels of every metric that has one series per queue."""


class MeterKind(IntEnum):
    """How the values of several processes become one: counters and spreads are added up; so is a level, unless all
    processes measure the same thing, in which case the largest value counts.
    """

    COUNTER = 0
    SPREAD = 1
    LEVEL_SUM = 2
    LEVEL_MAX = 3


class Description(Struct, frozen=True, array_like=True):
    """A metric's name, help text and kind. `edges` are the upper bounds of a spread's buckets except infinity."""

    name: str
    about: str
    kind: MeterKind
    labels: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()


class Reading(Struct, array_like=True):
    """A metric with all its series. A spread's value is its counts per bucket (not cumulative) and then its sum."""

    description: Description
    series: dict[Labels, list[float]]


class Snapshot(Struct, array_like=True):
    readings: list[Reading] = field(default_factory=list[Reading])


class CounterMeter:
    """A number that only grows, or a level that is set."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def read(self) -> list[float]:
        return [self.value]


class Spread:
    """A histogram: how many values fell between each two edges."""

    __slots__ = ("_edges", "counts", "total")

    def __init__(self, edges: Sequence[float] = ()) -> None:
        self._edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._edges, value)] += 1
        self.total += value

    def read(self) -> list[float]:
        return [*self.counts, self.total]


Meter = TypeVar("Meter", CounterMeter, Spread)


class Family(Generic[Meter]):
    """All series of one metric."""

    def __init__(self, description: Description, make: Callable[[], Meter]) -> None:
        self.description = description
        self._make = make
        self._series: dict[Labels, Meter] = {}

    def of(self, *labels: str) -> Meter:
        """The series with these label values, in the order of the description."""
        meter = self._series.get(labels)
        if meter is None:
            meter = self._series[labels] = self._make()
        return meter

    def clear(self) -> None:
        self._series.clear()

    def read(self) -> Reading:
        return Reading(self.description, {labels: meter.read() for labels, meter in self._series.items()})


class Names:
    """Decides which queues and namespaces are shown by name: the first `limit` of each that it meets."""

    def __init__(self, limit: int = MAX_QUEUES) -> None:
        self._limit = limit
        self._known: set[Labels] = set()
        self._namespaces: set[str] = set()

    def shown(self, pool: str, namespace: str, queue: str) -> tuple[str, str, str]:
        """The values of PER_QUEUE for this queue: its own names, or OTHER for a queue that is not shown by name."""
        labels = (pool, namespace, queue)
        if labels not in self._known:
            if len(self._known) >= self._limit:
                return pool, OTHER, OTHER
            self._known.add(labels)
        return labels

    def shown_namespace(self, namespace: str) -> str:
        """The namespace to show in metrics without a queue: its own name for the first `limit` of them, else OTHER."""
        if namespace and namespace not in self._namespaces:
            if len(self._namespaces) >= self._limit:
                return OTHER
            self._namespaces.add(namespace)
        return namespace


class Meters:
    """All metrics of a process. A name belongs to one metric; asking for it again gives the same family."""

    def __init__(self, max_queues: int = MAX_QUEUES) -> None:
        self.names = Names(max_queues)
        self._families: dict[str, Family[CounterMeter] | Family[Spread]] = {}
        self._before: list[Callable[[], None]] = []

    def counter(self, name: str, about: str, labels: Sequence[str] = ()) -> Family[CounterMeter]:
        return self._numbers(Description(name, about, MeterKind.COUNTER, tuple(labels)))

    def level(self, name: str, about: str, labels: Sequence[str] = (), *, shared: bool = False) -> Family[CounterMeter]:
        """`shared`: all processes measure the same thing, so their values are not added up."""
        return self._numbers(
            Description(name, about, MeterKind.LEVEL_MAX if shared else MeterKind.LEVEL_SUM, tuple(labels))
        )

    def spread(
        self, name: str, about: str, labels: Sequence[str] = (), *, edges: Sequence[float] = ()
    ) -> Family[Spread]:
        known = self._families.get(name)
        if known is None:
            bounds = tuple(edges)
            description = Description(name, about, MeterKind.SPREAD, tuple(labels), bounds)
            known = self._families[name] = Family[Spread](description, lambda: Spread(bounds))
        return known  # pyright: ignore[reportReturnType]  # the name decides the kind

    def _numbers(self, description: Description) -> Family[CounterMeter]:
        known = self._families.get(description.name)
        if known is None:
            known = self._families[description.name] = Family[CounterMeter](description, CounterMeter)
        return known  # pyright: ignore[reportReturnType]  # the name decides the kind

    def before_snapshot(self, update: Callable[[], None]) -> None:
        """Have `update` called before each snapshot, to set meters that are not updated as things happen."""
        self._before.append(update)

    def snapshot(self) -> Snapshot:
        for update in self._before:
            update()
        return Snapshot([family.read() for family in self._families.values()])
