"""A table that is kept in step: which loads of it there were, and what has changed since the last one.

    <lake>/tables/<key>/<number>     names the batch of the table's load of that number

The accepted rows of a batch say what the table was like: each row's queue, id, due time and a digest of the rest. A
load of a table writes down all rows, with the action SAME for those that have not changed, so the next load needs the
last one only. A number is claimed by creating its file, so of two loads that were compared with the same one only one
is pushed. `changes` is a pure transform; the rest runs on the driver.
"""

import hashlib
from collections.abc import Iterator

import msgspec
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from duetime.spark.lake.files import Files
from duetime.spark.load.batch import Batch, BatchConflict, Scheduled
from duetime.spark.load.job_rows import ROWS
from duetime.spark.load.options import Action, LoadOptions
from duetime.spark.schemas import LONG, columns

ACCEPTED_ROWS = StructType([*ROWS.fields, *columns(digest=LONG).fields])
"""The rows of a batch on disk. `digest` is over everything but queue, id and due time."""
NEW, MOVED, GONE, MISSING, UNCHANGED, BAD = "new", "moved", "gone", "missing", "unchanged", "bad"
TWICE = "another row has the same id and differs"


class LoadName(Struct, frozen=True):
    batch: str


def last_loads(files: Files, lake: str) -> Iterator[LoadName]:
    """The last load of each table."""
    for table in files.list(f"{lake}/tables"):
        for last in files.list(table.path)[-1:]:
            yield msgspec.json.decode(files.read(last.path), type=LoadName)


class TableLoads:
    """The loads of one table: one source of rows for one namespace and queue."""

    def __init__(self, files: Files, lake: str, options: LoadOptions) -> None:
        said = repr((options.namespace, options.queue, options.source))
        self.key = hashlib.sha256(said.encode()).hexdigest()[:16]
        self._files, self._options, self._lake = files, options, files.home(lake)
        self._folder = f"{self._lake}/tables/{self.key}"

    def last(self) -> tuple[int, Batch | None]:
        """The number and batch of the last load. If there was none: 0, and the last batch of this source that was
        scheduled without being compared.
        """
        numbers = [file.name for file in self._files.list(self._folder)]
        if numbers:
            return int(numbers[-1]), self._batch(self._read(numbers[-1]))
        done = [found for one in self._files.list(f"{self._lake}/batches") if (found := self._of_source(one.name))]
        return 0, self._batch(max(done, key=lambda one: one.finished_at).batch) if done else None

    def claim(self, number: int, batch: str) -> None:
        """Make the batch the load of this number. Raises BatchConflict if another one is."""
        name = f"{number:08d}"
        try:
            self._files.create(f"{self._folder}/{name}", msgspec.json.encode(LoadName(batch)))
        except FileExistsError:
            winner = self._read(name)
            if winner != batch:
                raise BatchConflict(
                    f"the batch {winner!r} of the same source was accepted after {batch!r} was compared: run this "
                    "again, under another batch name if you gave one",
                    batch=batch,
                ) from None

    def _read(self, name: str) -> str:
        return msgspec.json.decode(self._files.read(f"{self._folder}/{name}"), type=LoadName).batch

    def _batch(self, name: str) -> Batch:
        return Batch(self._files, self._lake, name)

    def _of_source(self, name: str) -> Scheduled | None:
        """The end of a batch if it is one of this source."""
        done = self._batch(name).manifest()
        wanted = (self._options.source, self._options.namespace, self._options.queue)
        return done if done and (done.named, done.namespace, done.queue) == wanted else None


def last_rows(spark: SparkSession, batch: Batch) -> DataFrame:
    """What the table was like: queue, id, due_at, digest."""
    accepted = batch.accepted()
    assert accepted is not None
    try:
        paths = batch.paths(accepted)
    except BatchConflict as error:
        raise BatchConflict(
            f"{error.message}, so nothing can be compared with it; another source name begins anew", batch=batch.name
        ) from None
    rows = spark.read.schema(ACCEPTED_ROWS).parquet(*paths)
    stays = (F.col("action") != Action.CANCEL) & (F.col("reason").isNull() | (F.col("action") == Action.SAME))
    return rows.where(stays).select("queue", "id", "due_at", "digest").dropDuplicates(["queue", "id"])


def with_digest(rows: DataFrame) -> DataFrame:
    return rows.withColumn("digest", F.xxhash64("body", "ttl", "tries", "priority", "attributes"))


def changes(rows: DataFrame, before: DataFrame | None, *, withdraw: bool) -> DataFrame:
    """ROWS with a digest -> ACCEPTED_ROWS and `kind`, compared with what the table was like before.

    A row that has changed keeps its action. A row that is gone gets the action CANCEL, or SAME if nothing is to be
    withdrawn; a bad row that had a job before leaves that job as it is. Of equal rows one stays, and rows that have
    the same id and differ are bad.
    """
    same_id = Window.partitionBy("queue", "id")
    row_hash = F.xxhash64("digest", "due_at", "action")
    good = F.col("reason").isNull() & F.col("id").isNotNull()
    differs = good & (F.min(row_hash).over(same_id) != F.max(row_hash).over(same_id))
    numbered = rows.select(
        *(name for name in ACCEPTED_ROWS.names if name != "reason"),
        F.coalesce("reason", F.when(differs, TWICE)).alias("reason"),
        F.row_number().over(same_id.orderBy("digest", "due_at")).alias("number"),
    )
    now = numbered.where("reason is not null or number = 1").withColumn("is_there", F.lit(True))
    old = (rows.where(F.lit(False)) if before is None else before).select(
        "queue", "id", F.col("due_at").alias("old_due_at"), F.col("digest").alias("old_digest")
    )
    both = now.join(old, on=["queue", "id"], how="full")
    had = F.col("old_digest").isNotNull()
    unchanged = (F.col("digest") == F.col("old_digest")) & (F.col("due_at") == F.col("old_due_at"))
    kind = (
        F.when(F.col("is_there").isNull(), GONE if withdraw else MISSING)
        .when(F.col("reason").isNotNull(), BAD)
        .when(~had, NEW)
        .when(unchanged, UNCHANGED)
        .otherwise(MOVED)
    )
    told_kind = both.withColumn("kind", kind)
    is_kind = F.col("kind").isin
    stays_old = had & is_kind(GONE, MISSING, BAD)
    action = (
        F.when(is_kind(GONE), Action.CANCEL)
        .when(is_kind(UNCHANGED, MISSING) | stays_old, Action.SAME)
        .otherwise(F.col("action"))
    )
    values = {
        "body": F.when(is_kind(GONE), F.lit(b"")).when(~is_kind(UNCHANGED), F.col("body")),
        "due_at": F.when(stays_old, F.col("old_due_at")).otherwise(F.col("due_at")),
        "digest": F.when(stays_old, F.col("old_digest")).otherwise(F.col("digest")),
        "action": action,
        **{name: F.coalesce(name, F.lit(0)) for name in ("ttl", "tries")},
        "priority": F.coalesce("priority", F.lit(2)),
    }
    return told_kind.select(
        *(values[name].alias(name) if name in values else name for name in ACCEPTED_ROWS.names), "kind"
    )
