"""The pipeline `lifecycle`: brings the table `jobs` up to the events that came since its last run.

A job's born is part of its key, and of each file of `jobs` it is noted which borns it has. So a run reads the new files
of `events`, sees which minutes of born they are about, and replaces only the files that have any of those. Its manifest
says up to which manifest of `events` it has read: a run that has nothing new does nothing, one that died is done again.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Struct
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duetime.spark.ingest.about import Purge, about_events, purge_frame
from duetime.spark.lake.lake import DataFile, Lake, Manifest, PublishConflict, local_lake
from duetime.spark.lifecycle import transform as lifecycle
from duetime.spark.lifecycle.job_files import file_name, job_files, touched_minutes, touches

ROWS_PER_FILE = 500_000
CROWDED = 64
"""A day with more files than this is written anew, as a few files, when one of them is."""


class JobsAbout(Struct, frozen=True):
    """The rows are made from `events` up to its manifest `events_version`, and with `purges`."""

    events_version: int = 0
    purges: Sequence[Purge] = ()


class Lifecycle(Struct, frozen=True):
    """What a run did. `days` were rewritten, with `jobs` rows in them."""

    days: int = 0
    jobs: int = 0
    events_version: int = 0
    version: int = 0


def about_jobs(manifest: Manifest) -> JobsAbout:
    return msgspec.convert(manifest.about, JobsAbout)


def run_lifecycle(lake: Lake) -> Lifecycle:
    """Safe to run again, also during another run: the one that comes second starts from the first one's rows."""
    while True:
        try:
            return _run(lake)
        except PublishConflict:
            continue


def find_done(folder: str) -> Lifecycle | None:
    """The answer of a run that has nothing to do, found without Spark. None if there may be something."""
    lake = local_lake(folder)
    if lake is None or not (events := lake.events.manifest()).version:
        return None
    jobs = lake.jobs.manifest()
    since = about_jobs(jobs).events_version
    return Lifecycle(events_version=since, version=jobs.version) if events.version <= since else None


def _run(lake: Lake) -> Lifecycle:
    before, events = lake.jobs.manifest(), lake.events.manifest()
    since = about_jobs(before).events_version
    if events.version <= since:
        return Lifecycle(events_version=since, version=before.version)
    fresh = lake.events.read(manifest=events, only=lambda file: file.since > since)
    all_purges = about_events(events).purges
    purged = set(all_purges) - set(about_jobs(before).purges)
    # Before the first row there is nothing to merge with, whatever minute the events are about.
    touched = _touched_files(lake, before, fresh, purged) if before.files else _Touched()
    known = lake.jobs.read(manifest=before, only=touched.has)
    purges = lifecycle.purges_by_queue(purge_frame(lake.spark, all_purges))
    states = lifecycle.event_states(fresh).unionByName(lifecycle.job_states(known))
    jobs = lifecycle.finish(lifecycle.merge(states), lifecycle.batch_names(fresh, known), purges)
    if before.files:
        # Neighbours in time are in one file, so that a later run which is about a few of them finds them together.
        jobs = jobs.repartitionByRange(touched.rows // ROWS_PER_FILE + 1, "born")
    about = JobsAbout(events.version, all_purges)
    with lake.jobs.stage(jobs) as staged:
        done = lake.jobs.publish(staged, after=before, about=msgspec.to_builtins(about), replaces=touched.has)
    written = {file.path for file in done.files if file.since == done.version}
    rows = sum(file.rows for path, file in job_files(lake, done).items() if path in written)
    days = {file.date for file in done.files if file.path in written} | touched.days
    return Lifecycle(days=len(days), jobs=rows, events_version=events.version, version=done.version)


@dataclass(frozen=True)
class _Touched:
    """The files that a run replaces, and how many rows it merges at most."""

    files: frozenset[DataFile] = frozenset()
    rows: int = 0

    def has(self, file: DataFile) -> bool:
        return file in self.files

    @property
    def days(self) -> set[str]:
        return {file.date for file in self.files}


def _touched_files(lake: Lake, jobs: Manifest, fresh: DataFrame, purged: Iterable[Purge]) -> _Touched:
    """The files with jobs that the new events can be about, those with living jobs in queues that were purged, and all
    files of a day that has too many.
    """
    facts, minutes = job_files(lake, jobs), touched_minutes(fresh)
    is_touched = touches(facts, minutes)
    chosen = {file for file in jobs.files if is_touched(file)}
    queues = {(one.pool, one.namespace, one.queue) for one in purged}
    is_open = {path for path, file in facts.items() if file.open}
    if queues and is_open:
        living = lake.jobs.read(manifest=jobs, only=lambda file: file.path in is_open).where("ends = 0")
        inside = F.struct("pool", "namespace", "queue").isin([F.struct(*map(F.lit, queue)) for queue in queues])
        found = living.where(inside & F.col("purged_at").isNull()).select(file_name().alias("path")).distinct()
        paths = {row["path"] for row in found.collect()}
        chosen |= {file for file in jobs.files if file.path in paths}
    per_day = Counter(file.date for file in jobs.files)
    touched_days = {file.date for file in chosen}
    chosen |= {file for file in jobs.files if file.date in touched_days and per_day[file.date] > CROWDED}
    return _Touched(frozenset(chosen), sum(facts[file.path].rows for file in chosen) + sum(minutes.values()))
