"""What is in each file of the table `jobs`: how many rows, whether any of them is open, and which times they span.

A file is never changed and its name never used again, so what was found out about it holds for as long as it exists. It
is noted next to the table. Of a file without a note only the end is read, where Parquet keeps the least and greatest
value of each column. So a pipeline that needs some of the jobs reads the files that can have them: lifecycle those
with jobs that new events are about, stats those of a few days, audit those with a job that has not ended. Runs on the
driver.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from io import BytesIO
from typing import Any

import msgspec
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]
from msgspec import Struct
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duetime.model.ids import IdMaker
from duetime.spark.lake.lake import DataFile, Lake, Manifest

parquet: Any = pq

FOLDER = "_notes"
MOST_NOTES = 16
"""More notes than this are written anew as one, without the files that are gone."""
MINUTE_MS = 60_000
FOOTERS_AT_ONCE = 16
"""Far storage takes tens of milliseconds to answer, and a lake has hundreds of files."""
FOOTER_BYTES = 64 * 1024
"""Enough for a few row groups; of a file with more of them the end is read again, as much as it says."""


class JobFile(Struct, frozen=True, array_like=True):
    """`open` is 0 if every job in the file has ended and none of its rows is an ack that may end other jobs. `first`
    and `last` are the least and greatest born; `begun_at` and `done_at` the earliest and latest time at which a job was
    first delivered or acked, 0 if none was.
    """

    rows: int
    open: int
    first: int
    last: int
    begun_at: int = 0
    done_at: int = 0


def file_name() -> Column:
    """The path of a row's file, relative to its table."""
    return F.substring_index("_metadata.file_path", "/", -2)


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
    unknown = [file for file in manifest.files if file.path not in known]
    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as readers:
        looked = readers.map(partial(_look, lake), unknown)
        fresh = {file.path: one for file, one in zip(unknown, looked, strict=True)}
    found = {path: one for path, one in {**known, **fresh}.items() if path in paths}
    is_crowded = len(notes) >= MOST_NOTES
    if fresh or is_crowded:
        text = msgspec.json.encode(found if is_crowded else fresh)
        lake.files.create(f"{folder}/{IdMaker().make()}.json", text)
    for note in notes if is_crowded else ():
        lake.files.delete(note.path)
    return found


def _look(lake: Lake, file: DataFile) -> JobFile:
    """Read from the end of a file what Parquet's writer noted about its columns; the rows are not read."""
    path, size = f"{lake.jobs.folder}/{file.path}", FOOTER_BYTES
    footer = lake.files.read(path, max(0, file.bytes - size))
    if (whole := int.from_bytes(footer[-8:-4], "little") + 8) > size:
        footer = lake.files.read(path, max(0, file.bytes - whole))
    about = parquet.read_metadata(BytesIO(footer))
    groups = [about.row_group(number) for number in range(about.num_row_groups)]

    def values(*columns: str) -> list[int]:
        """The least and greatest values of these columns in each row group; none for a column that is all null."""
        chunks = [group.column(about.schema.names.index(name)) for group in groups for name in columns]
        found = [chunk.statistics for chunk in chunks if chunk.statistics.has_min_max]
        return [value for one in found for value in (one.min, one.max)]

    born, ends, done = values("born"), values("ends"), values("first_delivered_at", "acked_at")
    return JobFile(
        rows=about.num_rows,
        open=int(0 in (*born, *ends)),
        first=min(born, default=0),
        last=max(born, default=0),
        begun_at=min(done, default=0),
        done_at=max(done, default=0),
    )


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
