"""What a report says, as plain data: collected by `gather.py`, drawn by `charts.py`, written by `write.py`.

Times are epoch milliseconds, durations milliseconds, percentiles None where nothing was delivered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from duetime.model.humanise import SPACED_UNITS, span
from duetime.spark.audit.transform import ENDS, PLACES

# --- numbers and times as text
#
# Numbers as people read them, in reports and forecasts.


_UNITS = {**SPACED_UNITS, "m": "{} min"}


def number(value: float) -> str:
    """1,234,567"""
    return f"{round(value):,}"


def short(value: float) -> str:
    """1.23 M, 45.6 k, 789"""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return (
                f"{value / (1e3 if unit == 'k' else size):.3g} {unit}"
                if value < 1000 * size
                else f"{value / size:,.0f} {unit}"
            )
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.1f}"


def percent(part: float, whole: float) -> str:
    """Never "100 %" unless it is all of them, nor "0 %" unless it is none."""
    if not whole:
        return "-"
    if part in (0, whole):
        return "0 %" if part == 0 else "100 %"
    share = min(max(100 * part / whole, 0.001), 99.999)
    digits = 3 if share > 99.99 or share < 0.01 else 2 if share > 99.9 or share < 0.1 else 1
    return f"{share:.{digits}f} %"


def duration(ms: float | None) -> str:
    """8 ms, 1.2 s, 5 min, 3 h 6 min, 2 d"""
    return "-" if ms is None else span(ms, _UNITS)


def moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def day(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%a %d %b")


def span_of(start_at: int, end_at: int) -> str:
    """The period in words, UTC; whole days without their hours."""
    if start_at % 86_400_000 == 0 and end_at % 86_400_000 == 0:
        first, last = moment(start_at)[:10], moment(end_at - 1)[:10]
        return f"{first} (UTC)" if first == last else f"{first} to {last} (UTC)"
    return f"{moment(start_at)} to {moment(end_at)} (UTC)"


LEFT = ("accepted", "adopted")
RIGHT = (*PLACES, *ENDS)
"""The conservation law: the sum of LEFT is the sum of RIGHT, for every queue and every batch."""


@dataclass(frozen=True)
class Period:
    start_at: int
    end_at: int
    step_ms: int
    """How far apart the points of the charts are."""


@dataclass(frozen=True)
class Point:
    """One step of the period, all queues together."""

    at: int
    counts: Mapping[str, int]
    p50: int | None = None
    p95: int | None = None
    p99: int | None = None


@dataclass(frozen=True)
class QueueLine:
    namespace: str
    queue: str
    counts: Mapping[str, int]
    p50: int | None = None
    p95: int | None = None
    p99: int | None = None
    run_p50: int | None = None
    run_p99: int | None = None
    on_time: float | None = None
    """The share of deliveries within the target."""

    @property
    def name(self) -> str:
        return f"{self.namespace}/{self.queue}"


@dataclass(frozen=True)
class QueueBalance:
    """The law for one queue; `terms` has every word of LEFT and RIGHT, `missing` is what no term explains."""

    namespace: str
    queue: str
    terms: Mapping[str, int]

    @property
    def name(self) -> str:
        return f"{self.namespace}/{self.queue}"

    @property
    def missing(self) -> int:
        return sum(self.terms.get(word, 0) for word in LEFT) - sum(self.terms.get(word, 0) for word in RIGHT)


@dataclass(frozen=True)
class Heat:
    """Deliveries by day and hour or, for a short period, by queue and hour, minute or second; `by` says which."""

    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[int | None]]
    by: str


@dataclass(frozen=True)
class BatchLine:
    batch: str
    queue: str
    jobs: int
    acked: int
    dead: int
    open: int
    first_due_at: int
    last_due_at: int


@dataclass(frozen=True)
class Report:
    period: Period
    target_ms: int
    written_at: int
    whole: QueueLine
    points: Sequence[Point]
    queues: Sequence[QueueLine]
    balances: Sequence[QueueBalance]
    dead_reasons: Mapping[str, int]
    heat: Heat
    batches: Sequence[BatchLine] = ()
    peak: int = 0
    """Deliveries in the busiest minute."""
    audited_at: int = 0
    """When the audit was made that the law comes from; 0 if there is no recent one, and the journal alone was asked."""
    defects: Mapping[str, int] = field(default_factory=dict[str, int])
    """What that audit named: lost, duplicated, early, acked twice; by kind."""

    @property
    def minutes(self) -> float:
        return max((self.period.end_at - self.period.start_at) / 60_000, 1 / 60)
