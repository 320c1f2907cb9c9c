"""`duetime pipeline stats`: brings the table `stats` up to date with `events` and `jobs`.

Only days that new events or changed jobs belong to are made again, each as a whole. So a run may be repeated at any
time, and late events are counted. The manifest says what was read. Runs on the driver.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, date, datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duetime.spark.lake.lake import DataFile, Lake, Manifest, PublishConflict
from duetime.spark.lifecycle.job_files import job_files
from duetime.spark.lifecycle.transform import DAY_MS
from duetime.spark.stats.transform import QUEUE, minute_stats

TRIES = 3


@dataclass(frozen=True)
class Refreshed:
    """`dates` were made again; `version` is the manifest that says so, or the old one if there was nothing to do."""

    dates: tuple[str, ...]
    version: int


def refresh_stats(lake: Lake, *, again: bool = False) -> Refreshed:
    """Make the days that changed; with `again` every day. Raises PublishConflict if others keep publishing."""
    for attempt in range(1, TRIES + 1):
        try:
            return _refresh(lake, again=again)
        except PublishConflict:
            if attempt == TRIES:
                raise
    raise AssertionError("unreachable")


def _refresh(lake: Lake, *, again: bool) -> Refreshed:
    before, events, jobs = lake.stats.manifest(), lake.events.manifest(), lake.jobs.manifest()
    seen = {"events": 0, "jobs": 0} if again else {"events": 0, "jobs": 0, **before.about}
    about = {"events": events.version, "jobs": jobs.version}
    if seen == about:
        return Refreshed((), before.version)
    dates = _changed_dates(lake, events, jobs, seen)
    is_ours = _among(dates)
    wanted = [date.fromisoformat(one) for one in sorted(dates)]
    made = minute_stats(
        lake.events.read(manifest=events, only=is_ours).where(F.col("date").isin(wanted)),
        lake.jobs.read(manifest=jobs, only=_measured_in(lake, jobs, dates)).where(
            _day_of("first_delivered_at").isin(wanted) | _day_of("acked_at").isin(wanted)
        ),
    ).where(F.col("date").isin(wanted))
    # With `again` everything is replaced, also days of which nothing is left.
    replaces: Callable[[DataFile], bool] = (lambda file: True) if again else is_ours
    with lake.stats.stage(_laid_out(made)) if wanted else nullcontext() as staged:
        published = lake.stats.publish(staged, after=before, about=about, replaces=replaces)
    return Refreshed(tuple(sorted(dates)), published.version)


def _changed_dates(lake: Lake, events: Manifest, jobs: Manifest, seen: dict[str, int]) -> set[str]:
    """Days with new events, and days on which a job that changed was first delivered or acked."""
    changed = lake.jobs.read(manifest=jobs, only=lambda file: file.since > seen["jobs"])
    days = [changed.select(_day_of(name).alias("day")) for name in ("first_delivered_at", "acked_at")]
    dates = {file.date for file in events.files if file.since > seen["events"]}
    found = days[0].unionAll(days[1]).where(F.col("day").isNotNull()).distinct().collect()
    return dates | {str(row.day) for row in found}


def _measured_in(lake: Lake, jobs: Manifest, dates: set[str]) -> Callable[[DataFile], bool]:
    """Chooses the files of `jobs` that can have a job that was first delivered or acked on one of these days."""
    facts = job_files(lake, jobs)
    days = [int(datetime.fromisoformat(one).replace(tzinfo=UTC).timestamp()) * 1000 for one in dates]
    chosen = {
        path
        for path, file in facts.items()
        if any(day + DAY_MS > file.begun_at and day <= file.done_at for day in days)
    }
    return lambda file: file.path in chosen


def _among(dates: set[str]) -> Callable[[DataFile], bool]:
    return lambda file: file.date in dates


def _day_of(column: str) -> Column:
    return F.to_date(F.timestamp_millis(column))


def _laid_out(stats: DataFrame) -> DataFrame:
    """One file per day with its rows sorted by queue, because readers ask for a few queues and days."""
    return stats.repartition("date").sortWithinPartitions("date", "namespace", "queue", "minute_at")


# --- counters by topic
#
# php-delayqueue's counters, from `stats`: written, notified, deleted and failed, by topic and day, and in total.
#
# A topic is a queue. A push that made a job counts as written, also if it replaced another job. A callback that was
# made counts as notified, and also as failed if it got no good answer. A job that its owner removed counts as
# deleted.


COUNTERS = ("written", "notified", "deleted", "failed")


def daily_counters(stats: DataFrame) -> DataFrame:
    """A row per topic and day; php-delayqueue calls these `tw`, `tn`, `tdel` and `te`."""
    return stats.groupBy(*QUEUE, "date").agg(*_sums())


def total_counters(stats: DataFrame) -> DataFrame:
    """A row per topic; php-delayqueue calls these `total_write`, `total_notify` and `total_del`."""
    return stats.groupBy(*QUEUE).agg(*_sums())


def _sums() -> list[Column]:
    parts = {
        "written": ("accepted", "adopted", "replaced"),
        "notified": ("notified",),
        "deleted": ("cancelled", "deleted"),
        "failed": ("notify_failed",),
    }
    return [
        F.sum(sum((F.col(part) for part in parts[name][1:]), F.col(parts[name][0]))).alias(name) for name in COUNTERS
    ]
