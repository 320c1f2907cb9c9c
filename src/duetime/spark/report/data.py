"""What a report says, as plain data: collected by `gather.py`, drawn by `charts.py`, written by `write.py`.

Times are epoch milliseconds, durations milliseconds, percentiles None where nothing was delivered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from duetime.spark.audit.transform import ENDS, PLACES

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
