"""The pipeline `lifecycle`: brings the table `jobs` up to the events that came since its last run.

A job's partition is the day of its born, which is part of its key. So a run reads the new files of `events`, sees which
days they touch, merges them into the rows of those days and replaces just those partitions. Its manifest says up to
which manifest of `events` it has read: a run that has nothing new does nothing, one that died is done again.
"""

from datetime import date, timedelta
from typing import Any

import msgspec
from msgspec import Struct
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duetime.job import Event
from duetime.spark.lake.lake import DataFile, Lake, Manifest, PublishConflict
from duetime.spark.lifecycle import transform as lifecycle


class JobsAbout(Struct, frozen=True):
    """`events_version` is the version of the manifest of `events` up to which the rows are made."""

    events_version: int = 0


class Lifecycle(Struct, frozen=True):
    """What a run did. `days` were rewritten, with `jobs` rows in them."""

    days: int = 0
    jobs: int = 0
    events_version: int = 0
    version: int = 0


def about_jobs(manifest: Manifest) -> JobsAbout:
    return msgspec.convert(manifest.about, JobsAbout)


def run_lifecycle(lake: Lake) -> Lifecycle:
    """Safe to run again, also beside another run: the one that comes second starts from the first one's rows."""
    while True:
        try:
            return _run(lake)
        except PublishConflict:
            continue


def _run(lake: Lake) -> Lifecycle:
    before, events = lake.jobs.manifest(), lake.events.manifest()
    since = about_jobs(before).events_version
    if events.version <= since:
        return Lifecycle(events_version=since, version=before.version)
    fresh = lake.events.read(manifest=events, only=lambda file: file.since > since)
    # Before the first row there is nothing to merge with, whatever day the events are about.
    whole = not before.files
    days = set[str]() if whole else _touched_days(lake, before, fresh)

    def is_touched(file: DataFile) -> bool:
        return whole or file.date in days

    known = lake.jobs.read(manifest=before, only=lambda file: not whole and file.date in days)
    purges = lifecycle.purges_by_queue(lake.events.read(manifest=events))
    states = lifecycle.event_states(fresh).unionByName(lifecycle.job_states(known))
    jobs = lifecycle.finish(lifecycle.merge(states), lifecycle.batch_names(fresh, known), purges)
    staged = lake.jobs.stage(jobs)
    rows = staged.read().count()
    about = JobsAbout(events_version=events.version)
    done = lake.jobs.publish(staged, after=before, about=msgspec.to_builtins(about), replaces=is_touched)
    written = {file.date for file in done.files if file.since == done.version}
    return Lifecycle(days=len(written | days), jobs=rows, events_version=events.version, version=done.version)


def _touched_days(lake: Lake, jobs: Manifest, fresh: DataFrame) -> set[str]:
    """The days whose jobs the new events are about, and those with living jobs in queues that were purged."""
    of_jobs = fresh.where("id != ''")
    days = of_jobs.select(_day("born")).union(of_jobs.where("was > 0").select(_day("was"))).distinct()
    touched = {_date(row["day"]) for row in days.collect()}
    purged = fresh.where(F.col("event") == Event.PURGED).select("pool", "namespace", "queue").distinct()
    queues: list[Any] = purged.collect()
    if queues and jobs.files:
        living = lake.jobs.read(manifest=jobs).where("ends = 0 and purged_at is null")
        inside = F.struct("pool", "namespace", "queue").isin([F.struct(*map(F.lit, queue)) for queue in queues])
        touched |= {_date(row["day"]) for row in living.where(inside).select(_day("born")).distinct().collect()}
    return touched


def _day(column: str) -> Any:
    """The day as a number: only the few distinct ones are then made into dates."""
    return F.expr(f"{column} div {lifecycle.DAY_MS}").alias("day")


def _date(day: int) -> str:
    """The name of a day's partition."""
    return (date(1970, 1, 1) + timedelta(days=day)).isoformat()
