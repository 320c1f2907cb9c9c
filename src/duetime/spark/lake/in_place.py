"""Writes a table's files where they stay, under names that no other run uses, and returns those that count.

Spark's usual write puts files aside and renames them, one after the other: on S3 each rename copies the file. Here the
files are written once, by the commit protocol that Spark's own streaming sinks use: each task reports the files that
it has closed, and only those of tasks that succeeded are returned. No manifest names what a failed task leaves behind.
Nobody sees any of the files before a manifest names them. Runs on the driver; executors write the files.

The protocol has no public door in PySpark, so the driver's JVM is asked for it. Over Spark Connect there is no such
JVM: Spark writes aside, and the files, which are on a disk that both share, are renamed here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark import java_gateway
from pyspark.sql import DataFrame, SparkSession

from duetime.model.ids import IdMaker
from duetime.spark.lake.files import Files
from duetime.spark.session import SPARK, is_connect

PARTITION = "date"
ROW_GROUP_BYTES = 32 * 1024**2
"""A writer holds one row group in memory per day and task; a reading task reads at least one."""
DISTINCT = (
    *("id", "born", "ts", "wrote_at", "seq", "due_at"),
    *("accepted_at", "first_due_at", "first_delivered_at", "last_delivered_at", "acked_at", "ended_at", "last_at"),
    *("revived_order", "due_order", "first_due_order", "lateness_ms", "run_ms", "early_ms"),
)
"""Columns of `events` and `jobs` with about as many values as rows."""
BOUNDED: Mapping[str, str] = {"parquet.page.size.row.check.min": "8"}
"""Parquet's writer checks the size of pages and row groups after this many rows; its default of 100 rows of the largest
bodies (1 MiB) are 100 MiB in memory.
"""
OPTIONS: Mapping[str, str] = {
    "compression": "zstd",
    "parquet.compression.codec.zstd.level": "1",
    "parquet.block.size": str(ROW_GROUP_BYTES),
    **BOUNDED,
    "parquet.column.statistics.enabled": "true",
    **{f"parquet.enable.dictionary#{column}": "false" for column in DISTINCT},
}
"""Level 1 of zstd makes files 3 % larger than level 3. `lifecycle/job_files.py` reads the statistics. A dictionary of
distinct values would be made and thrown away.
"""
NUMBERS: Mapping[str, str] = {**OPTIONS, "parquet.writer.version": "v2"}
"""For `jobs`, which has 30 columns of numbers: version 2 writes them as differences, with less CPU and 14 % smaller."""


class WrittenFile(NamedTuple):
    """`path` is relative to the table."""

    path: str
    bytes: int


def write_in_place(
    spark: SparkSession,
    rows: DataFrame,
    folder: str,
    *,
    files: Files,
    notes: str,
    options: Mapping[str, str] = OPTIONS,
) -> list[WrittenFile]:
    """Write rows to partitions of a folder, or to the folder itself if they have no date.

    `notes` is a folder that no other run uses; it is gone afterwards. `options` are those of Spark's Parquet writer.
    """
    try:
        if is_connect(spark):
            written = _write_aside(rows, folder, files, notes, options)
        else:
            written = _write(spark, rows, folder, notes, options)
    finally:
        files.delete(notes)
    return sorted(written)


def _write(
    spark: SparkSession, rows: DataFrame, folder: str, notes: str, given: Mapping[str, str]
) -> list[WrittenFile]:
    session: Any = spark
    frame: Any = rows
    jvm, classic = session._jvm, session._jsparkSession
    sql, python = jvm.org.apache.spark.sql.execution, jvm.org.apache.spark.api.python.PythonUtils
    sinks = sql.streaming.sinks if SPARK >= (4, 1) else sql.streaming
    log = sinks.FileStreamSinkLog(1, classic, notes, jvm.scala.Option.empty())
    protocol = sql.streaming.ManifestFileCommitProtocol(IdMaker().make(), folder)
    protocol.setupManifestOptions(log, 0)
    options = python.toScalaMap(dict(given))
    hadoop = classic.sessionState().newHadoopConfWithOptions(options)
    writer, trackers = sql.datasources.FileFormatWriter, sql.datasources.BasicWriteJobStatsTracker
    tracker = trackers(jvm.org.apache.spark.util.SerializableConfiguration(hadoop), trackers.metrics())
    query = frame._jdf.queryExecution()
    columns = query.analyzed().output()
    partition = [columns.apply(at) for at in range(columns.size()) if columns.apply(at).name() == PARTITION]

    def write() -> None:
        writer.write(
            classic,
            query.executedPlan(),
            sql.datasources.parquet.ParquetFileFormat(),
            protocol,
            writer.OutputSpec(folder, python.toScalaMap({}), columns),
            hadoop,
            python.toSeq(partition),
            jvm.scala.Option.empty(),
            python.toSeq([tracker]),
            options,
            0,
            getattr(writer, "write$default$12")(),
        )

    gateway: Any = java_gateway
    gateway.ensure_callback_server_started(session.sparkContext._gateway)
    body = _Body(write)
    try:
        # The name makes Spark notify its listeners of the query's end, which completes the Observations in it.
        sql.SQLExecution.withNewExecutionId(query, jvm.scala.Option.apply("save"), body)
    except Exception as error:
        raise (body.error or error) from None
    depth = 2 if partition else 1
    return [WrittenFile("/".join(one.path().rsplit("/", depth)[1:]), one.size()) for one in log.get(0).get()]


class _Body:
    """A Scala function without parameters. It keeps its error, of which Java would hand on no more than the text."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self.error: BaseException | None = None

    def apply(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.error = error
            raise

    class Java:
        implements: Sequence[str] = ["scala.Function0"]


def _write_aside(
    rows: DataFrame, folder: str, files: Files, notes: str, options: Mapping[str, str]
) -> list[WrittenFile]:
    partition = [PARTITION] if PARTITION in rows.columns else []
    rows.write.partitionBy(*partition).options(**options).parquet(notes)
    # Spark does not read files whose names begin with an underscore.
    run, written = notes.rpartition("/")[2].lstrip("_"), list[WrittenFile]()
    parts = [part for part in files.list(notes) if part.name.startswith(f"{PARTITION}=")] if partition else [None]
    for part in parts:
        for file in files.list(part.path if part else notes):
            if file.name.endswith(".parquet") and not file.name.startswith((".", "_")):
                below = f"{part.name}/" if part else ""
                written.append(WrittenFile(f"{below}{run}-{len(written):05d}.parquet", file.size))
                files.rename(file.path, f"{folder}/{written[-1].path}")
    return written
