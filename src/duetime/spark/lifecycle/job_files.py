"""What is in each file of the table `jobs`: how many rows, how many of them open, and which times they span.

A file is never changed and its name never used again, so what was found out about it holds for as long as it exists. It
is noted beside the table, and only files without a note are looked at. So whoever needs some of the jobs reads the
files that can have them: lifecycle those with jobs that new events are about, stats those of a few days, audit those
with a job that has not ended. Runs on the driver.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec
from msgspec import Struct
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duetime.ids import IdMaker
from duetime.spark.lake.lake import DataFile, Lake, Manifest

FOLDER = "_notes"
MOST_NOTES = 16
"""More notes than this are written anew as one, without the files that are gone."""
MINUTE_MS = 60_000


class JobFile(Struct, frozen=True, array_like=True):
    """`open` rows have not ended, or are acks that may end other jobs. `first` and `last` are the least and greatest
    born; `begun_at` and `done_at` the earliest and latest time at which a job was first delivered or acked, 0 if none
    was.
    """

    rows: int
    open: int
    first: int
    last: int
    begun_at: int = 0
    done_at: int = 0


def file_name() -> Column:
    """The path of a row's file, relative to its table."""
    return F.regexp_extract(F.col("_metadata.file_path"), "([^/]+/[^/]+)$", 1)


def job_files(lake: Lake, manifest: Manifest) -> dict[str, JobFile]:
    """By path, every file of a manifest of `jobs`."""
    folder = f"{lake.jobs.folder}/{FOLDER}"
    notes = [one for one in lake.files.list(folder) if one.name.endswith(".json") and not one.name.startswith(".")]
    known: dict[str, JobFile] = {}
    for note in notes:
        # A note that another run has just joined with others is simply made anew.
        with suppress(FileNotFoundError):
            known |= msgspec.json.decode(lake.files.read(note.path), type=dict[str, JobFile])
    paths = {file.path for file in manifest.files}
    fresh = _look(lake, manifest, paths - set(known)) if paths - set(known) else {}
    found = {path: one for path, one in {**known, **fresh}.items() if path in paths}
    is_crowded = len(notes) >= MOST_NOTES
    if fresh or is_crowded:
        text = msgspec.json.encode(found if is_crowded else fresh)
        lake.files.create(f"{folder}/{IdMaker().make()}.json", text)
    for note in notes if is_crowded else ():
        lake.files.delete(note.path)
    return found


def _look(lake: Lake, manifest: Manifest, paths: set[str]) -> dict[str, JobFile]:
    rows = lake.jobs.read(manifest=manifest, only=lambda file: file.path in paths)
    seen = rows.groupBy(file_name().alias("path")).agg(
        F.count(F.lit(1)).alias("rows"),
        F.count_if(F.expr("ends = 0 or born = 0")).alias("open"),
        F.min("born").alias("first"),
        F.max("born").alias("last"),
        F.coalesce(F.least(F.min("first_delivered_at"), F.min("acked_at")), F.lit(0)).alias("begun_at"),
        F.coalesce(F.greatest(F.max("first_delivered_at"), F.max("acked_at")), F.lit(0)).alias("done_at"),
    )
    found = {row["path"]: JobFile(*(int(value) for value in row[1:])) for row in seen.collect()}
    return {path: found.get(path, JobFile(0, 0, 0, 0)) for path in paths}


def touched_minutes(events: DataFrame) -> dict[int, int]:
    """EVENTS -> the minutes of born of the jobs that they are about, and how many events are about each."""
    of_jobs = events.where("id != ''")
    minutes = of_jobs.select(_minute("born")).unionAll(of_jobs.where("was > 0").select(_minute("was")))
    return {row["minute"]: row["count"] for row in minutes.groupBy("minute").count().collect()}


def _minute(column: str) -> Column:
    return F.expr(f"{column} div {MINUTE_MS}").alias("minute")


def touches(files: dict[str, JobFile], minutes: Iterable[int]) -> Callable[[DataFile], bool]:
    """Chooses the files that can have a job that was born in one of these minutes."""
    chosen = set[str]()
    ordered = sorted(minutes)
    for path, file in files.items():
        first, last = file.first // MINUTE_MS, file.last // MINUTE_MS
        at = bisect_left(ordered, first)
        if at < len(ordered) and ordered[at] <= last:
            chosen.add(path)
    return lambda file: file.path in chosen
