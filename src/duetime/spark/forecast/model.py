"""From load ahead and capacity to who will be late, when, and by how much: plain arithmetic, no Spark.

Time goes in steps. What a step cannot do is left for the next one; a job that comes then waits for what is before it,
so lateness at a step is backlog over capacity. Load is spread evenly within a step: a spike inside one is not seen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

HOUR_MS = 3_600_000
LEVEL_RANGE = (0.5, 2.0)
"""How far the last day may raise or lower what the weeks before say."""

QueueName = tuple[str, str]
"""Namespace and queue."""


@dataclass(frozen=True)
class Capacity:
    """Deliveries a minute. `is_floor`: nobody has ever seen it at its limit, so it can do at least this."""

    per_minute: float
    deliveries_per_job: float = 1.0
    is_floor: bool = False

    def jobs_in(self, step_ms: int) -> float:
        return self.per_minute / max(self.deliveries_per_job, 1.0) * step_ms / 60_000


@dataclass(frozen=True)
class ForecastStep:
    """`pending` is known, `expected` is what the past says; `late_ms` is how late a job that is due now will be."""

    at: int
    pending: float
    expected: float
    backlog: float
    late_ms: float

    @property
    def load(self) -> float:
        return self.pending + self.expected


@dataclass(frozen=True)
class QueueForecast:
    name: QueueName
    capacity: Capacity | None
    """None: it never delivered anything, so nothing is known."""
    steps: Sequence[ForecastStep]

    @property
    def title(self) -> str:
        return "/".join(self.name)

    @property
    def load(self) -> float:
        return sum(step.load for step in self.steps)

    @property
    def worst(self) -> ForecastStep:
        return max(self.steps, key=lambda step: step.late_ms)


@dataclass(frozen=True)
class Trouble:
    """From `start_at` jobs are later than the target, at worst `worst_ms` at `worst_at`; `end_at` 0: beyond sight."""

    name: QueueName
    start_at: int
    worst_at: int
    worst_ms: float
    end_at: int
    jobs: float
    """How many fall due in that time."""


def simulate(name: QueueName, loads: Sequence[tuple[int, float, float]], capacity: Capacity | None) -> QueueForecast:
    """`loads`: (start of the step, pending, expected), a step apart and in order. At least two."""
    step_ms = loads[1][0] - loads[0][0]
    room = capacity.jobs_in(step_ms) if capacity else 0.0
    backlog, steps = 0.0, list[ForecastStep]()
    for at, pending, expected in loads:
        backlog = max(backlog + pending + expected - room, 0.0) if capacity else 0.0
        late_ms = backlog / room * step_ms if room > 0 else 0.0
        steps.append(ForecastStep(at, pending, expected, backlog, late_ms))
    return QueueForecast(name, capacity, steps)


def find_trouble(forecast: QueueForecast, target_ms: int) -> list[Trouble]:
    """Every stretch in which jobs will be later than the target."""
    found, stretch = list[Trouble](), list[ForecastStep]()
    for step in forecast.steps:
        if step.late_ms > target_ms:
            stretch.append(step)
        elif stretch:
            found.append(_trouble(forecast.name, stretch, step.at))
            stretch = []
    if stretch:
        found.append(_trouble(forecast.name, stretch, 0))
    return found


def _trouble(name: QueueName, stretch: Sequence[ForecastStep], end_at: int) -> Trouble:
    worst = max(stretch, key=lambda step: step.late_ms)
    return Trouble(name, stretch[0].at, worst.at, worst.late_ms, end_at, sum(step.load for step in stretch))


def level(arrived: float, expected: float) -> float:
    """How the last day compares with what was expected of it; 1 where there is too little to say."""
    if expected < 1:
        return 1.0
    low, high = LEVEL_RANGE
    return min(max(arrived / expected, low), high)


def spread(by_hour: Mapping[int, float], start_at: int, step_ms: int, count: int) -> list[float]:
    """Loads per hour after `start_at` as loads per step, evenly within the hour. Steps divide hours, or hours steps."""
    if step_ms >= HOUR_MS:
        each = step_ms // HOUR_MS
        return [sum(by_hour.get(step * each + hour, 0.0) for hour in range(each)) for step in range(count)]
    return [by_hour.get(step * step_ms // HOUR_MS, 0.0) * step_ms / HOUR_MS for step in range(count)]


@dataclass(frozen=True)
class Error:
    """The back-test: the sum of all misses over the sum of all loads, by hour and queue."""

    origins: int
    hours: int
    actual: int
    wape: float | None
    pending_only: float | None
    """The same for whoever counts what is pending and nothing else."""


def measure(rows: Sequence[tuple[float, float, float]], *, origins: int) -> Error:
    """`rows`: (actual, forecast, pending) per origin, queue and hour."""
    actual = sum(row[0] for row in rows)
    missed = sum(abs(row[0] - row[1]) for row in rows)
    missed_by_pending = sum(abs(row[0] - row[2]) for row in rows)
    wape, pending_only = (missed / actual, missed_by_pending / actual) if actual else (None, None)
    return Error(origins, len(rows), round(actual), wape, pending_only)
