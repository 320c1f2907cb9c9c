"""`duetime pipeline forecast`: combines the store, the history and the capacity, and back-tests the result.

Runs on the driver, which collects one row per queue and hour.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duetime.client import Client
from duetime.model.errors import InvalidRequest
from duetime.spark.forecast import model
from duetime.spark.forecast.model import Capacity, Error, QueueForecast, QueueName
from duetime.spark.forecast.transform import DAY_MS, HOUR_MS, WEEK_MS, expected_ahead, load_ahead, measured_capacity

SEASONS = 4
STEPS = (60_000, 5 * 60_000, 15 * 60_000, HOUR_MS)
MOST_STEPS = 400

ByHour = dict[tuple[int, QueueName], dict[int, float]]
"""Origin and queue -> hour after the origin -> jobs."""


@dataclass(frozen=True)
class Window:
    """The time that a forecast is about: `horizon_ms` from `start_at` on, in steps."""

    start_at: int
    horizon_ms: int
    step_ms: int

    @property
    def edges(self) -> list[int]:
        return list(range(self.start_at, self.start_at + self.horizon_ms + 1, self.step_ms))


@dataclass(frozen=True)
class Season:
    """How the past repeats: by week where there is a whole one, else by day; `count` of them are known.

    With `is_levelled` another day is known before them, to compare the last day with what was expected of it.
    """

    length_ms: int
    count: int
    is_levelled: bool = True

    @property
    def word(self) -> str:
        return {WEEK_MS: "week", DAY_MS: "day"}[self.length_ms] + ("s" if self.count != 1 else "")


def window_for(now: int, horizon_ms: int) -> Window:
    """The shortest steps that make a legible chart. Raises InvalidRequest below a minute and above a week."""
    if not 60_000 <= horizon_ms <= WEEK_MS:
        raise InvalidRequest("the period of a forecast must be from a minute to a week")
    step = next((step for step in STEPS if horizon_ms / step <= MOST_STEPS), HOUR_MS)
    return Window(now, -(-horizon_ms // step) * step if horizon_ms > step else 2 * step, step)


def find_season(jobs: DataFrame, now: int) -> Season | None:
    """None if less than a day is known, so that nothing can be learned from the past."""
    first: Any = jobs.agg(F.min("accepted_at").alias("at")).head()
    known = now - first["at"] if first["at"] is not None else 0
    for length, spare in ((WEEK_MS, DAY_MS), (WEEK_MS, 0), (DAY_MS, DAY_MS), (DAY_MS, 0)):
        if known >= length + spare:
            return Season(length, min(SEASONS, (known - spare) // length), is_levelled=spare > 0)
    return None


def forecast(
    jobs: DataFrame,
    pending: Mapping[QueueName, Sequence[int]],
    capacities: Mapping[QueueName, Capacity],
    window: Window,
) -> list[QueueForecast]:
    """One forecast per queue that the store or the history knows; the queue that will be latest comes first."""
    season = find_season(jobs, window.start_at)
    horizon = min(window.horizon_ms, season.length_ms) if season else 0
    expected = expected_by_hour(jobs, [window.start_at], horizon, season) if season else {}
    by_queue = {name: hours for (_, name), hours in expected.items()}
    count = len(window.edges) - 1
    made: list[QueueForecast] = []
    for name in {*pending, *by_queue}:
        hours = model.spread(repeated(by_queue.get(name, {}), season, window), window.start_at, window.step_ms, count)
        known = pending.get(name, [0] * count)
        loads = list(zip(window.edges[:-1], map(float, known), hours, strict=True))
        made.append(model.simulate(name, loads, capacities.get(name)))
    return sorted(made, key=lambda one: (-one.worst.late_ms, -one.load, one.name))


def repeated(hours: Mapping[int, float], season: Season | None, window: Window) -> dict[int, float]:
    """Repeats a season that is shorter than the horizon: tomorrow is like today."""
    if season is None:
        return {}
    length = season.length_ms // HOUR_MS
    return {hour: hours.get(hour % length, 0.0) for hour in range(-(-window.horizon_ms // HOUR_MS))}


def expected_by_hour(jobs: DataFrame, origins: Sequence[int], horizon_ms: int, season: Season) -> ByHour:
    """The average of the seasons, raised or lowered by how the last day compares with what was expected of it."""
    day_before = [origin - DAY_MS for origin in origins]
    averages = _averages(jobs, [*origins, *day_before], max(horizon_ms, DAY_MS), season)
    came: dict[tuple[int, QueueName], float] = defaultdict(float)
    for row in load_ahead(jobs, day_before, DAY_MS).collect():
        came[row.origin, (row.namespace, row.queue)] += row.arrived
    made: ByHour = {}
    for origin, name in averages:
        if origin not in origins:
            continue
        before = (origin - DAY_MS, name)
        hoped = sum(count for hour, count in averages.get(before, {}).items() if hour < 24)
        factor = model.level(came[before], hoped) if season.is_levelled else 1.0
        made[origin, name] = {hour: count * factor for hour, count in averages[origin, name].items()}
    return made


def _averages(jobs: DataFrame, origins: Sequence[int], horizon_ms: int, season: Season) -> ByHour:
    made: ByHour = defaultdict(dict)
    ahead = expected_ahead(jobs, origins, horizon_ms, season_ms=season.length_ms, seasons=season.count)
    for row in ahead.collect():
        made[row.origin, (row.namespace, row.queue)][row.hour] = row.total / season.count
    return made


def find_capacities(stats: DataFrame, given: Mapping[QueueName, float]) -> dict[QueueName, Capacity]:
    """The capacities as measured; those in `given` replace them."""
    found: dict[QueueName, Capacity] = {}
    for row in measured_capacity(stats).collect():
        if row.peak:
            per_job = row.deliveries_per_job or 1.0
            is_floor = row.saturated is None
            found[row.namespace, row.queue] = Capacity(
                float(row.peak if is_floor else row.saturated), per_job, is_floor
            )
    for name, per_minute in given.items():
        found[name] = Capacity(per_minute, found[name].deliveries_per_job if name in found else 1.0)
    return found


def backtest(jobs: DataFrame, now: int, *, horizon_ms: int = DAY_MS, origins: int = 7) -> Error | None:
    """Forecast each of the last days from what was known at its start, and compare. None with too little history."""
    starts = [now - (number + 1) * DAY_MS for number in range(origins)]
    season = find_season(jobs, starts[-1])
    if season is None:
        return None
    horizon_ms = min(horizon_ms, DAY_MS)
    expected = expected_by_hour(jobs, starts, horizon_ms, season)
    actual: dict[tuple[int, QueueName, int], Any] = {
        (row.origin, (row.namespace, row.queue), row.hour): row
        for row in load_ahead(jobs, starts, horizon_ms).collect()
    }
    keys = {*actual, *((origin, name, hour) for (origin, name), hours in expected.items() for hour in hours)}
    rows: list[tuple[float, float, float]] = []
    for origin, name, hour in keys:
        row = actual.get((origin, name, hour))
        known, fell_due = (row.pending, row.actual) if row is not None else (0, 0)
        rows.append((fell_due, known + expected.get((origin, name), {}).get(hour, 0.0), known))
    return model.measure(rows, origins=len(starts))


# --- what waits in a store
#
# What waits in the store, by queue and step. The client reads it, from a server or from a store of any kind.


EDGES_PER_CALL = 200
"""The edges travel in the address of a GET, which must not become too long."""


def pending_loads(
    client: Client, edges: Sequence[int], *, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> dict[QueueName, list[int]]:
    """Jobs per step between each two edges, for every queue of the client's namespace.

    Jobs that are ready or leased now count in the first step, because they take their share of the capacity too. Paused
    queues are counted like others. Queues are read one after the other, not all at one moment.
    """
    statuses = client.queues()
    found: dict[QueueName, list[int]] = {}
    for number, status in enumerate(statuses):
        queue = client.queue(status.queue.name)
        counts: list[int] = []
        for first in range(0, len(edges) - 1, EDGES_PER_CALL):
            counts += queue.due_histogram(edges[first : first + EDGES_PER_CALL + 1])
        overdue = queue.due_histogram([0, edges[0]])[0] if edges[0] > 0 else 0
        counts[0] += overdue + status.counts.leased
        found[(status.queue.namespace, status.queue.name)] = counts
        on_progress(number + 1, len(statuses))
    assert all(len(counts) == len(list(pairwise(edges))) for counts in found.values())
    return found
