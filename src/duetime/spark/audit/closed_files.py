"""What audit has to say about files of `jobs` in which every job has ended: found out once, and kept in `closed`.

Such a file is never changed, so its part of the law and its findings hold for as long as it exists. An audit reads the
files that have an open job or were closed since the last audit, and the sums of the others. Runs on the driver.
"""

from collections.abc import Iterable, Sequence
from datetime import date

import msgspec
from msgspec import Struct
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from duetime.spark.audit import transform as audit
from duetime.spark.lake.lake import DataFile, Lake, Manifest, PublishConflict
from duetime.spark.lifecycle.job_files import file_name
from duetime.spark.schemas import CLOSED, frame

PATHS = StructType([StructField("file", StringType())])


class ClosedAbout(Struct, frozen=True):
    """The files of `jobs` that the table has something about."""

    files: Sequence[str] = ()


def closed_sums(lake: Lake, jobs: Manifest, closed: Iterable[DataFile]) -> DataFrame:
    """CLOSED of these files of a manifest of `jobs`; those that are new are read and added to the table."""
    wanted = {file.path: file for file in closed}
    while True:
        before = lake.closed.manifest()
        known = set(msgspec.convert(before.about, ClosedAbout).files)
        fresh = [file for path, file in wanted.items() if path not in known]
        if not fresh:
            break
        try:
            before = _add(lake, jobs, before, fresh)
        except PublishConflict:
            continue
        break
    dates = {file.date for file in wanted.values()}
    rows = lake.closed.read(manifest=before, only=lambda file: file.date in dates)
    return rows.join(_paths(lake, wanted), on="file", how="left_semi").select(*CLOSED.names)


def _add(lake: Lake, jobs: Manifest, before: Manifest, fresh: Sequence[DataFile]) -> Manifest:
    """Write the days of the new files anew, without what is about files that are gone."""
    dates, paths = {file.date for file in fresh}, {file.path for file in fresh}
    exist = {file.path for file in jobs.files}
    known = [path for path in msgspec.convert(before.about, ClosedAbout).files if path in exist]
    rows = lake.jobs.read(manifest=jobs, only=lambda file: file.path in paths).withColumn("file", file_name())
    kept = lake.closed.read(manifest=before, only=lambda file: file.date in dates)
    kept = kept.join(_paths(lake, known), on="file", how="left_semi").select(*CLOSED.names)
    made = summed(rows).unionByName(kept).repartition(len(dates), "date")
    about = ClosedAbout([*known, *sorted(paths)])
    with lake.closed.stage(made) as staged:
        return lake.closed.publish(
            staged, after=before, about=msgspec.to_builtins(about), replaces=lambda file: file.date in dates
        )


def summed(jobs: DataFrame) -> DataFrame:
    """JOBS with a column `file` -> CLOSED."""
    counts = audit.ended_counts(jobs, "file", "date").withColumn("kind", F.lit(""))
    both = counts.unionByName(audit.faults(jobs, 0, "file", "date"), allowMissingColumns=True)
    return both.select(*(F.col(field.name).cast(field.dataType).alias(field.name) for field in CLOSED.fields))


def _paths(lake: Lake, paths: Iterable[str]) -> DataFrame:
    return F.broadcast(frame(lake.spark, [(path,) for path in sorted(paths)], PATHS))


def days_of(rows: DataFrame) -> set[str]:
    """The names of the days on which these jobs were born."""
    days = rows.select(F.expr("date_from_unix_date(cast(born div 86400000 as int))").alias("day")).distinct()
    found: list[date] = [row["day"] for row in days.collect()]
    return {str(day) for day in found}
