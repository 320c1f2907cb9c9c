"""When a schedule runs: at an interval, or by a cron expression in a time zone.

The instants of the runs follow from the schedule alone, so that all processes agree on them: `every("1h")` runs at
whole hours since the epoch, not an hour after the first process started.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Literal, Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from duetime.model.clock import Duration, duration_ms, time_zone
from duetime.model.errors import InvalidRequest, InvalidTime
from duetime.model.humanise import exact_duration

Missed = Literal["last", "all", "none"]
"""Which runs are made up for that were due while nothing ran schedules."""

Overlap = Literal["allow", "skip"]
"""What happens to a run while the job of the last run is unfinished."""

LEAST_MS = 1_000
MAX_CRON = 255
"""The longest cron expression; the console explains it in words."""
GRACE_MS = 60_000
"""A run that is late by less than this was not missed."""
MOST_RUNS = 100
"""Missed runs that are pushed in one step, well within the lease of a tick."""


class Schedule(Protocol):
    """All times are epoch milliseconds."""

    @property
    def text(self) -> str:
        """The text that identifies the schedule."""
        ...

    def after(self, at: int) -> int:
        """The first run later than `at`."""
        ...

    def until(self, at: int) -> int:
        """The last run at `at` or before."""
        ...


@dataclass(frozen=True)
class Every:
    interval_ms: int

    @property
    def text(self) -> str:
        """The interval in the largest unit that says it exactly: `every 90s`, `every 1h`."""
        return f"every {exact_duration(self.interval_ms)}"

    def after(self, at: int) -> int:
        return (at // self.interval_ms + 1) * self.interval_ms

    def until(self, at: int) -> int:
        return at // self.interval_ms * self.interval_ms


@dataclass(frozen=True)
class Cron:
    """Five fields. When clocks are put forward, a run in the missing hour happens at its end; when they are put back,
    a run at a fixed hour happens once.
    """

    expression: str
    zone: ZoneInfo

    @property
    def text(self) -> str:
        return f"cron {self.expression} {self.zone.key}"

    def after(self, at: int) -> int:
        """Cron knows minutes: the one that `at` is in has begun already."""
        return _ms(next(CronSim(self.expression, _moment(at, self.zone))))

    def until(self, at: int) -> int:
        # Backwards, cron is not exact where clocks are turned: go back by more than enough, then forwards to `at`.
        backwards = CronSim(self.expression, _moment(at // 60_000 * 60_000, self.zone), reverse=True)
        next(backwards)
        run = self.after(_ms(next(backwards)) - 1)
        while (following := self.after(run)) <= at:
            run = following
        return run


def every(interval: Duration) -> Every:
    interval_ms = duration_ms(interval)
    if interval_ms < LEAST_MS:
        raise InvalidRequest(f"interval must be at least 1s, got {interval_ms}ms")
    return Every(interval_ms)


def cron(expression: str, tz: str = "UTC") -> Cron:
    """Raises InvalidRequest for what is no cron expression, never runs, or is in no known time zone."""
    if not isinstance(expression, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequest(f"cron expression must be text, got {expression!r:.60}")
    if len(expression) > MAX_CRON:
        raise InvalidRequest(f"cron expression must have at most {MAX_CRON} characters, got {len(expression)}")
    try:
        schedule = Cron(" ".join(expression.split()), time_zone(tz))
        next(CronSim(schedule.expression, datetime.now(UTC)))
    except CronSimError as error:
        raise InvalidRequest(f"cron expression cannot be read: {expression!r}: {error}") from None
    except StopIteration:
        raise InvalidRequest(f"cron expression must have a next run: {expression!r}") from None
    return schedule


def parse(text: str) -> Schedule:
    """The inverse of `Schedule.text`. Raises InvalidRequest; InvalidTime only for an unknown time zone."""
    kind, _, rest = text.partition(" ")
    if kind == "every":
        try:
            return every(rest)
        except InvalidTime as error:
            raise InvalidRequest(error.message) from None
    expression, _, zone = rest.rpartition(" ")
    if kind == "cron":
        return cron(expression, zone)
    raise InvalidRequest(f"schedule must be `every INTERVAL` or `cron EXPRESSION TIMEZONE`, got {text!r}")


@dataclass(frozen=True)
class SchedulePlan:
    """What to do at a tick: which runs to push now, and when the next tick is."""

    runs: tuple[int, ...]
    next_at: int


def plan(schedule: Schedule, missed: Missed, planned: int, now: int) -> SchedulePlan:
    """What to do at the tick of the run at `planned`. A tick that comes a moment too early runs nothing twice."""
    now = max(now, planned)
    first = schedule.until(planned)
    runs = list(islice(_runs(schedule, first, now), MOST_RUNS + 1))
    match missed:
        case "all":
            if len(runs) > MOST_RUNS:
                return SchedulePlan(tuple(runs[:MOST_RUNS]), runs[MOST_RUNS])
            return SchedulePlan(tuple(runs), schedule.after(now))
        case "last":
            return SchedulePlan((schedule.until(now),), schedule.after(now))
        case "none":
            last = schedule.until(now)
            return SchedulePlan((last,) if now - last < GRACE_MS else (), schedule.after(now))


def runs_between(schedule: Schedule, since: int, until: int) -> Iterator[int]:
    """The runs from `since` on and before `until`."""
    return _runs(schedule, schedule.after(since - 1), until - 1)


def _runs(schedule: Schedule, first: int, now: int) -> Iterator[int]:
    at = first
    while at <= now:
        yield at
        at = schedule.after(at)


def _moment(at: int, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(at / 1000, zone)


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
