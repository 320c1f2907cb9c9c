"""Counting on the hot path: numbers now, metrics when somebody asks.

prometheus_client's own counters lock and check on every call, several of which each request makes; these belong to one
event loop and need neither.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

Labels = tuple[str, ...]


class Tally:
    """Only ever grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Spread:
    """How many values fell below each edge."""

    __slots__ = ("_edges", "counts", "total")

    def __init__(self, edges: Sequence[float]) -> None:
        self._edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._edges, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        names = [*(str(float(edge)) for edge in self._edges), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))


Kind = TypeVar("Kind", Tally, Spread)


class Family(Generic[Kind]):
    """All series of one metric."""

    def __init__(self, name: str, labels: Sequence[str]) -> None:
        self.name = name
        self.about = f"lmstfy: {name}"
        self.labels = labels
        self.series: dict[Labels, Kind] = {}


class Tallies(Family[Tally]):
    def of(self, *labels: str) -> Tally:
        return self.series.get(labels) or self.series.setdefault(labels, Tally())

    def metric(self) -> Metric:
        metric = CounterMetricFamily(self.name, self.about, labels=self.labels)
        for labels, tally in self.series.items():
            metric.add_metric(labels, tally.value)
        return metric


class Spreads(Family[Spread]):
    def __init__(self, name: str, labels: Sequence[str], edges: Sequence[float]) -> None:
        super().__init__(name, labels)
        self._edges = edges

    def of(self, *labels: str) -> Spread:
        return self.series.get(labels) or self.series.setdefault(labels, Spread(self._edges))

    def metric(self) -> Metric:
        metric = HistogramMetricFamily(self.name, self.about, labels=self.labels)
        for labels, spread in self.series.items():
            metric.add_metric(labels, buckets=spread.buckets(), sum_value=spread.total)
        return metric


class Collected(Collector):
    """Shows families to a registry."""

    def __init__(self, families: Iterable[Tallies | Spreads]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return [family.metric() for family in self._families]
