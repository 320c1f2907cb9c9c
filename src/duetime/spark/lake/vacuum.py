"""`duetime pipeline vacuum`: forget what is older than its retention, and delete files that nothing names any more.

Days of the tables go as a whole, except those with a row of a job that lives, or with its body: reconcile would need
them. Purges are in the manifest of `events` for as long as a row is left that one of them may be about. Bodies of
jobs that ended can go earlier than their events: those days are written anew without them. Files that readers may still
use stay for a day after they were replaced. A run that was killed leaves its scratch folder, with bodies in it; that
goes when nothing in it has changed for a day. Runs on the driver; executors write the days.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct, field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duetime.model.errors import InvalidRequest
from duetime.model.ids import timestamp_ms
from duetime.spark.audit.scan import ClosedAbout
from duetime.spark.ingest.about import ENDED_FOLDER, about_events
from duetime.spark.lake.files import FoundFile
from duetime.spark.lake.lake import LITTER_MS, SCRATCH, VERSIONS, DataFile, Lake, Manifest, Table
from duetime.spark.lifecycle.run import about_jobs
from duetime.spark.load.table import last_loads
from duetime.spark.schemas import KEY

WITH_BODIES = ("plan", "results")
"""The folders of a reconcile's run that hold bodies; its summary holds none."""


class Vacuumed(Struct):
    """What went, or would go.

    `runs` are those of audit and reconcile. `scratch` counts the scratch folders of runs that were killed. `files` are
    those that no manifest names, the files of scratch folders among them; `bytes` is their size.
    """

    days: dict[str, int] = field(default_factory=dict[str, int])
    days_without_bodies: int = 0
    batches: int = 0
    runs: int = 0
    scratch: int = 0
    files: int = 0
    bytes: int = 0


class _BatchEnd(Struct):
    finished_at: int = 0


def vacuum(lake: Lake, *, now_ms: int, keep_ms: int = 0, bodies_ms: int = 0, dry_run: bool = False) -> Vacuumed:
    """Forget days after `keep_ms` and bodies after `bodies_ms`; 0 keeps them.

    Safe to run again, also after a run that died. Raises PublishConflict if another run published meanwhile.
    """
    if keep_ms and bodies_ms > keep_ms:
        raise InvalidRequest("bodies cannot be kept longer than the events that they are part of")
    sweep = _Sweep(lake, dry_run=dry_run)
    if keep_ms:
        sweep.days(_day(now_ms - keep_ms))
        sweep.runs(now_ms - keep_ms)
    if bodies_ms:
        sweep.bodies(_day(now_ms - bodies_ms))
    if shortest := bodies_ms or keep_ms:
        sweep.batches(now_ms - shortest)
        sweep.plans(now_ms - shortest)
    for table in (lake.events, lake.jobs, lake.stats, lake.closed):
        sweep.litter(table, now_ms - LITTER_MS)
    sweep.ended_nodes(now_ms - LITTER_MS)
    sweep.scratch(now_ms - LITTER_MS)
    return sweep.done


def _day(at: int) -> str:
    """The name of a moment's partition."""
    return str(datetime.fromtimestamp(max(at, 0) / 1000, UTC).date())


def _dropped_since(manifest: Manifest, at: int) -> set[str]:
    """The paths of files that readers may still use."""
    return {one.path for one in manifest.dropped if one.at >= at}


def _among(chosen: set[DataFile]) -> Callable[[DataFile], bool]:
    return lambda file: file in chosen


def _dates(rows: DataFrame) -> set[str]:
    return {str(row["date"]) for row in rows.select("date").distinct().collect()}


class _Sweep:
    """One run. `_gone` are the files of `events` that went, or would have gone, with their days."""

    def __init__(self, lake: Lake, *, dry_run: bool) -> None:
        self._lake, self._dry_run = lake, dry_run
        self._gone = set[DataFile]()
        self.done = Vacuumed()

    def _living(self) -> DataFrame:
        return self._lake.jobs.read().where("ends = 0 and purged_at is null")

    def _old_events(self, manifest: Manifest, before: str) -> set[DataFile]:
        """Files of days before `before`, without those that lifecycle has yet to read."""
        known = about_jobs(self._lake.jobs.manifest()).events_version
        return {file for file in manifest.files if file.date < before and file.since <= known}

    def days(self, before: str) -> None:
        """The days of `events` go last: its purges are needed as long as rows are left that they are about."""
        lake, events, jobs = self._lake, self._lake.events.manifest(), self._lake.jobs.manifest()
        old, living = self._old_events(events, before), self._living()
        rows = lake.events.read(manifest=events, only=_among(old)).where("body is not null")
        needed = _dates(rows.join(living.select(*KEY), on=list(KEY), how="left_semi"))
        self._gone = {file for file in old if file.date not in needed}
        purges, spared = about_events(events).purges, _dates(living)
        gone = {file for file in jobs.files if file.date < before and file.date not in spared}
        left = [file for file in jobs.files if file not in gone]
        self._drop("jobs", lake.jobs, jobs, gone)
        stats = lake.stats.manifest()
        self._drop("stats", lake.stats, stats, {file for file in stats.files if file.date < before})
        self._forget_closed(left)
        first = min([before, *(file.date for file in [*left, *events.files] if file not in self._gone)])
        kept = [list(purge) for purge in purges if _day(purge.ts) >= first]
        self._drop("events", lake.events, events, self._gone, {**events.about, "purges": kept})

    def _forget_closed(self, jobs: Sequence[DataFile]) -> None:
        """The days of `closed` of which no file of `jobs` is left."""
        table, exist = self._lake.closed, {file.path for file in jobs}
        manifest, dates = table.manifest(), {file.date for file in jobs}
        known = [path for path in msgspec.convert(manifest.about, ClosedAbout).files if path in exist]
        gone = {file for file in manifest.files if file.date not in dates}
        self._drop("closed", table, manifest, gone, msgspec.to_builtins(ClosedAbout(known)))

    def _drop(
        self, name: str, table: Table, manifest: Manifest, gone: set[DataFile], about: Mapping[str, Any] | None = None
    ) -> None:
        self.done.days[name] = len({file.date for file in gone})
        about = manifest.about if about is None else about
        if (gone or (manifest.version and about != manifest.about)) and not self._dry_run:
            table.publish(None, after=manifest, about=about, replaces=_among(gone))

    def bodies(self, before: str) -> None:
        """Write the days anew in which a job that ended has a body."""
        table, manifest = self._lake.events, self._lake.events.manifest()
        old = self._old_events(manifest, before) - self._gone
        living = self._living().select(*KEY).withColumn("lives", F.lit(True))
        rows = table.read(manifest=manifest, only=_among(old)).join(living, on=list(KEY), how="left")
        days = _dates(rows.where("body is not null and lives is null"))
        self.done.days_without_bodies = len(days)
        if not days or self._dry_run:
            return
        gone = {file for file in old if file.date in days}
        rows = table.read(manifest=manifest, only=_among(gone)).join(living, on=list(KEY), how="left")
        stripped = rows.withColumn("body", F.when(F.col("lives"), F.col("body"))).select(*table.schema.names)
        newest = max(file.since for file in gone)
        with table.stage(stripped) as staged:
            table.publish(staged, after=manifest, about=manifest.about, replaces=_among(gone), since=newest)

    def batches(self, before: int) -> None:
        """The rows of finished batches go. Their manifests stay, so that no batch is pushed again.

        The rows of the last load of each table stay: the next load is compared with them.
        """
        files = self._lake.files
        last = {load.batch for load in last_loads(files, self._lake.folder)}
        for batch in files.list(f"{self._lake.folder}/batches"):
            if batch.name in last:
                continue
            try:
                end = msgspec.json.decode(files.read(f"{batch.path}/_manifest"), type=_BatchEnd)
            except (FileNotFoundError, NotADirectoryError):
                continue
            rows = [one.path for one in files.list(batch.path) if one.is_folder]
            if rows and end.finished_at < before:
                self.done.batches += 1
                self._delete(*rows)

    def runs(self, before: int) -> None:
        for kind in ("audit", "reconcile"):
            for run in self._lake.files.list(f"{self._lake.folder}/{kind}"):
                if run.is_folder and timestamp_ms(run.name) < before:
                    self.done.runs += 1
                    self._delete(run.path)

    def plans(self, before: int) -> None:
        for run in self._lake.files.list(f"{self._lake.folder}/reconcile"):
            if run.is_folder and timestamp_ms(run.name) < before:
                self._delete(*(f"{run.path}/{name}" for name in WITH_BODIES))

    def litter(self, table: Table, before: int) -> None:
        """Files that no manifest names: replaced more than a day ago, or left by a run that died."""
        manifest = table.manifest()
        for links in table.files.list(f"{table.home}/{VERSIONS}")[:-1]:
            if links.changed_at < before:
                self._delete(links.path)
        named = {file.path for file in manifest.files} | _dropped_since(manifest, before)
        for day in table.files.list(table.folder):
            for file in table.files.list(day.path) if day.is_folder and day.name.startswith("date=") else []:
                is_ours = file.name.endswith(".parquet") and file.changed_at < before
                if is_ours and f"{day.name}/{file.name}" not in named:
                    self._count(file)
                    self._delete(file.path)

    def ended_nodes(self, before: int) -> None:
        """Files of ended nodes that the manifest of `events` does not name: as `litter`."""
        table, folder = self._lake.events, ENDED_FOLDER
        manifest = table.manifest()
        named = {f"{folder}/{file}" for file in about_events(manifest).ended} | _dropped_since(manifest, before)
        for file in table.files.list(f"{table.folder}/{folder}"):
            if file.changed_at < before and f"{folder}/{file.name}" not in named:
                self._count(file)
                self._delete(file.path)

    def scratch(self, before: int) -> None:
        """What killed runs left aside. A run that is still under way has written there since."""
        for run in self._lake.files.list(f"{self._lake.folder}/{SCRATCH}"):
            files = list(self._files_in(run))
            if max((file.changed_at for file in files), default=run.changed_at) >= before:
                continue
            self.done.scratch += 1
            self._count(*files)
            self._delete(run.path)

    def _files_in(self, found: FoundFile) -> Iterator[FoundFile]:
        """The file itself, or all files in a folder and in its folders."""
        if not found.is_folder:
            yield found
            return
        for one in self._lake.files.list(found.path):
            yield from self._files_in(one)

    def _count(self, *files: FoundFile) -> None:
        self.done.files += len(files)
        self.done.bytes += sum(file.size for file in files)

    def _delete(self, *paths: str) -> None:
        for path in () if self._dry_run else paths:
            self._lake.files.delete(path)
