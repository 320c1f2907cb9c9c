"""The scan of a store: every job that it holds, read by many tasks, also where all of them are in one queue.

The driver cuts the waiting jobs of a large queue into ranges of due time, and of ids where too many are due in the same
millisecond. Executors read a range or a whole small queue at a time. A task lists the delayed jobs of its range before
the ready ones, because that is how a job moves when nothing happens but time: a job that falls due meanwhile is met
twice and not missed. Every other move has a fresh entry, and the audit then believes the journal.
"""

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from duetime.client.event_loop import iterate, run
from duetime.model.clock import MAX_INSTANT
from duetime.model.job import Counts, Job, State
from duetime.model.names import Queue
from duetime.spark.audit import transform as audit
from duetime.spark.audit.transform import SCAN
from duetime.spark.lake.lake import DataFile, Lake, Manifest, PublishConflict
from duetime.spark.lifecycle.job_files import file_name
from duetime.spark.load.job_columns import arrow
from duetime.spark.load.options import LoadOptions
from duetime.spark.schemas import CLOSED, LONG, TEXT, columns, frame
from duetime.spark.session import parallelism
from duetime.spark.source.listing import SMALL, Bounds, Listing, split_ranges

WAITING = "delayed,ready"
KEPT = "leased,dead"
SHARES_PER_TASK = 4
"""So many ranges for each task that can run at a time: who is done early takes another one."""
MOST_IN_SHARE = 250_000

SHARES = columns(namespace=TEXT, queue=TEXT, states=TEXT, first=LONG, last=LONG, after_id=TEXT, last_id=TEXT)


class ScanShare(NamedTuple):
    """A row of SHARES."""

    namespace: str
    queue: str
    states: str
    first: int = 0
    last: int = MAX_INSTANT
    after_id: str = ""
    last_id: str | None = None


def scan(spark: SparkSession, options: LoadOptions, counts: Mapping[Queue, Counts]) -> DataFrame:
    """SCAN of the queues, each job once. Lazy: it runs when it is written."""
    tasks = parallelism(spark) * SHARES_PER_TASK
    shares: list[ScanShare] = run(cut_queues(options, counts, tasks))
    spread: Any = frame(spark, shares, SHARES).repartition(max(1, min(len(shares), tasks)))
    pages: DataFrame = spread.mapInArrow(ScanTask(options), SCAN)
    # A job that moved on during the scan was met twice, and is to be counted once.
    return pages.groupBy(*SCAN.names[:-1]).agg(F.max("state").alias("state"))


async def cut_queues(options: LoadOptions, counts: Mapping[Queue, Counts], tasks: int) -> list[ScanShare]:
    """What there is to read: small queues as a whole, large ones in ranges of about the same size."""
    everything = sum(one.delayed + one.ready for one in counts.values())
    most = max(SMALL, min(MOST_IN_SHARE, everything // tasks))
    shares: list[ScanShare] = []
    async with Listing.open(options) as listing:
        for queue, counted in counts.items():
            waiting = counted.delayed + counted.ready
            if waiting + counted.leased + counted.dead <= most:
                shares.append(ScanShare(queue.namespace, queue.name, f"{WAITING},{KEPT}"))
                continue
            ranges = await split_ranges(listing, queue, Bounds(0, MAX_INSTANT), -(-waiting // most))
            shares += [ScanShare(queue.namespace, queue.name, WAITING, *bounds) for bounds in ranges]
            shares += [ScanShare(queue.namespace, queue.name, state) for state in KEPT.split(",")]
    return shares


class ScanTask:
    """Runs on an executor, so it is pickled with all that it needs."""

    def __init__(self, options: LoadOptions) -> None:
        self._options = options

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """SHARES -> SCAN."""
        yield from iterate(self._pages(share for batch in batches for share in batch.to_pylist()))

    async def _pages(self, shares: Iterator[dict[str, Any]]) -> AsyncGenerator[Any]:
        async with Listing.open(self._options) as listing:
            for share in shares:
                queue = Queue(share["namespace"], share["queue"])
                bounds = Bounds(share["first"], share["last"], share["after_id"], share["last_id"])
                for state in share["states"].split(","):
                    async for jobs in listing.jobs(queue, State(state), bounds):
                        if jobs:
                            yield _batch(queue, jobs)


def _batch(queue: Queue, jobs: Sequence[Job]) -> Any:
    return arrow.RecordBatch.from_pydict(
        {
            "namespace": [queue.namespace] * len(jobs),
            "queue": [queue.name] * len(jobs),
            "id": [job.id for job in jobs],
            "born": arrow.array([job.born for job in jobs], arrow.int64()),
            "state": [job.state.value for job in jobs],
        }
    )


# --- sums of closed files
#
# What audit has to say about files of `jobs` in which every job has ended: found out once, and kept in `closed`. Such
# a file is never changed, so its part of the law and its findings hold for as long as it exists. An audit reads the
# files that have an open job or were closed since the last audit, and the sums of the others. Runs on the driver.


PATHS = columns(file=TEXT)


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


def birthday() -> Column:
    """The day on which a job was born, as the name of a partition."""
    return F.expr("string(date_from_unix_date(cast(born div 86400000 as int)))")


def days_of(rows: DataFrame) -> set[str]:
    """The days on which these jobs were born."""
    return {row["day"] for row in rows.select(birthday().alias("day")).distinct().collect()}
