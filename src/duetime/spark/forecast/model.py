"""The arithmetic of a forecast, without Spark: from load and capacity to which queue will be late, when, how much.

Time goes in steps. Jobs that cannot be done in a step are left for the next one, and a job that falls due then waits
behind them, so lateness at a step is backlog over capacity. Load counts as even within a step: a spike in it is unseen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

HOUR_MS = 3_600_000
LEVEL_RANGE = (0.5, 2.0)
"""The factors by which the last day may lower or raise what the weeks before say."""

QueueName = tuple[str, str]
"""Namespace and queue."""


@dataclass(frozen=True)
class Capacity:
    """Deliveries a minute. `is_floor`: the queue never had a backlog, so its consumers can do at least this."""

    per_minute: float
    deliveries_per_job: float = 1.0
    is_floor: bool = False

    def jobs_in(self, step_ms: int) -> float:
        return self.per_minute / max(self.deliveries_per_job, 1.0) * step_ms / 60_000


@dataclass(frozen=True)
class ForecastStep:
    """`pending` jobs wait already, `expected` ones follow from the past; a job due then will be `late_ms` late."""

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
    """None if the queue never delivered anything, so that its capacity is unknown."""
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
    """From `start_at` to `end_at` jobs are later than the target. An `end_at` of 0 is after the end of the forecast."""

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
    """The same for a forecast that counts pending jobs and nothing else."""


def measure(rows: Sequence[tuple[float, float, float]], *, origins: int) -> Error:
    """`rows`: (actual, forecast, pending) per origin, queue and hour."""
    actual = sum(row[0] for row in rows)
    missed = sum(abs(row[0] - row[1]) for row in rows)
    missed_by_pending = sum(abs(row[0] - row[2]) for row in rows)
    wape, pending_only = (missed / actual, missed_by_pending / actual) if actual else (None, None)
    return Error(origins, len(rows), round(actual), wape, pending_only)
