"""`schedule(df, ...)`: a DataFrame becomes jobs, exactly once, whatever fails and however often it is run.

Two Spark jobs. The first checks all rows and writes them down; the driver then fixes which files count. The second
pushes those files, a task each, in steps that carry a mark (batch, file, step) set in the same atomic step as their
jobs: a step is pushed once however often its task runs, also after its jobs were delivered and acked. A run that finds
accepted files goes on from those and does not look at its DataFrame. See `batch.py` for what is on disk.
"""

import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Unpack

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from duetime.errors import DuetimeError, InvalidRequest, InvalidSettings, StoreUnavailable
from duetime.ids import IdMaker
from duetime.spark.load.batch import Accepted, Batch, BatchConflict, PushingBegun, ReconcileFirst, Scheduled
from duetime.spark.load.job_rows import ROWS, check_columns, job_rows, order
from duetime.spark.load.journal_rules import with_journal
from duetime.spark.load.options import MARK_LIFE_MS, BadRecords, LoadFields, LoadOptions, read_options
from duetime.spark.load.push_files import RESULTS, FilePusher
from duetime.spark.load.task_push import LoadFailed, ask_store, run
from duetime.spark.session import is_connect, parallelism
from duetime.stores.base import StoreInfo

ROWS_PER_FILE = 250_000
FILE_OPTIONS: dict[str, Any] = {"maxRecordsPerFile": ROWS_PER_FILE} | {
    f"parquet.enable.dictionary#{column}": "false" for column in ("id", "body", "due_at")
}
"""A dictionary of values that do not repeat is work for nothing."""
SAMPLE = 5
SAFETY_MS = 86_400_000
"""A run does not begin to rely on marks that may end while it runs."""
ONE_FILE_PER_TASK = {"spark.sql.files.maxPartitionBytes": "1t", "spark.sql.files.openCostInBytes": "1t"}

OnProgress = Callable[[str, int], None]
"""Told which phase begins ("checking", "pushing", "done") and with how many rows (0: not known yet)."""


class BadRows(InvalidRequest):
    """Some rows cannot be jobs."""

    code = "bad_rows"


def schedule(
    frame: DataFrame, *, lake: str = "lake", on_phase: OnProgress | None = None, **options: Unpack[LoadFields]
) -> Scheduled:
    """Push the rows as the batch `options["batch"]`, or finish what an earlier run of it began.

    Raises BadRows (nothing was pushed), BatchConflict, ReconcileFirst, LoadFailed, StoreUnavailable.
    """
    given = read_options(options)
    if not given.batch:
        raise InvalidSettings("name the batch: a second run under the same name adds nothing")
    if given.journal and given.is_http:
        raise InvalidSettings("a server writes the journal itself: leave journal out, or name the store")
    tell = on_phase or _nothing
    batch = Batch(frame.sparkSession, lake, given.batch)
    if (done := batch.manifest()) is not None:
        return done
    store: StoreInfo = run(ask_store(given))
    given = run(with_journal(given))
    accepted = batch.accepted()
    if accepted is None:
        tell("checking", 0)
        accepted = _accept(frame, batch, given, store)
    elif accepted.options != _options_digest(given):
        raise BatchConflict(f"the batch {batch.name!r} was accepted with other options", batch=batch.name)
    _check_marks(batch, store)
    tell("pushing", accepted.rows - accepted.bad)
    result = _push(frame.sparkSession, batch, accepted, given, store)
    tell("done", result.rows)
    return result


# --- the first job: check and write down


def _accept(frame: DataFrame, batch: Batch, options: LoadOptions, store: StoreInfo) -> Accepted:
    folder = f"files-{IdMaker().make()}"
    seen = Observation()
    kinds = check_columns(frame.schema)
    if not options.queue and "queue" not in kinds:
        raise InvalidSettings("name a queue: by the option queue or in a column queue")
    rows = job_rows(frame, options, store.now)
    # A row without a due time is due when it was looked at, which is another time in another run.
    fixed = ["id", "body", "queue"] + (["due_at"] if "due_at" in kinds and not options.spread_ms else [])
    # The hash is made outside of what observes it: that part of Spark is interpreted row by row.
    observed = rows.withColumn("hash", F.xxhash64(*fixed)).observe(
        seen,
        F.count(F.lit(1)).alias("rows"),
        F.count("reason").alias("bad"),
        F.bit_xor("hash").alias("sum"),
    )
    ordered = observed.withColumn("has_attributes", F.col("attributes").isNotNull()).sortWithinPartitions(*order(kinds))
    ordered.select(*ROWS.names).write.options(**FILE_OPTIONS).parquet(f"{batch.home}/{folder}")
    counts: dict[str, Any] = seen.get
    if counts["bad"]:
        _handle_bad(frame.sparkSession, batch, folder, counts, options)
    record = Accepted(
        folder=folder,
        files=batch.data_files(folder),
        rows=counts["rows"],
        bad=counts["bad"],
        checksum=f"{counts['rows']}-{(counts['sum'] or 0) & (2**64 - 1):016x}",
        options=_options_digest(options),
        at=store.now,
    )
    return batch.accept(record)


def _handle_bad(spark: SparkSession, batch: Batch, folder: str, counts: dict[str, Any], options: LoadOptions) -> None:
    """Put the bad rows aside, or end it here with a sample of them."""
    bad = spark.read.schema(ROWS).parquet(f"{batch.home}/{folder}").where(F.col("reason").isNotNull())
    if options.bad_records is BadRecords.QUARANTINE:
        bad.write.mode("overwrite").parquet(f"{batch.home}/quarantine")
        return
    reasons = bad.groupBy("reason").count().orderBy(F.desc("count"), "reason").collect()
    sample = [row["id"] for row in bad.orderBy("id").select("id").limit(SAMPLE).collect()]
    batch.forget(folder)
    said = "; ".join(f"{row['reason']}: {row['count']:,}" for row in reasons)
    raise BadRows(
        f"{counts['bad']:,} of {counts['rows']:,} rows cannot be jobs, so nothing was pushed: {said}; "
        f"for example the ids {', '.join(map(repr, sample))}. badRecords=quarantine puts them aside",
        rows=counts["rows"],
        bad=counts["bad"],
        reasons={row["reason"]: row["count"] for row in reasons},
        sample=sample,
    )


def _options_digest(options: LoadOptions) -> str:
    """Of what changes which jobs come out of the same rows, or where they go; not of how fast or by which address."""
    parts = (
        options.namespace,
        options.queue,
        options.ttl_ms,
        options.tries,
        int(options.priority),
        options.spread_ms,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


# --- the second job: push what was accepted


def _check_marks(batch: Batch, store: StoreInfo) -> None:
    """Raise ReconcileFirst where a run before may have pushed and its marks may be gone."""
    before = batch.pushing()
    if before is None:
        return
    if before.epoch != store.epoch:
        problem = "the store was wiped or is another one since"
    elif store.now - before.at > MARK_LIFE_MS - SAFETY_MS:
        problem = "that is so long ago that its marks may have ended"
    else:
        return
    raise ReconcileFirst(
        f"an earlier run pushed some of the batch {batch.name!r}, and {problem}: reconcile first "
        f"(`duetime pipeline reconcile`), then schedule what is missing as a new batch",
        batch=batch.name,
    )


def _push(spark: SparkSession, batch: Batch, accepted: Accepted, options: LoadOptions, store: StoreInfo) -> Scheduled:
    paths = batch.paths(accepted)
    epoch = batch.begin(PushingBegun(store.epoch, store.now)).epoch
    if epoch != store.epoch:
        _check_marks(batch, store)
    began = time.monotonic()
    results = _push_files(spark, paths, options, epoch) if paths else []
    seconds = time.monotonic() - began
    now: StoreInfo = run(ask_store(options))
    if now.epoch != epoch:
        _check_marks(batch, now)
    totals = {name: sum(int(row[name]) for row in results) for name in ("rows", "accepted", "kept", "repeated")}
    if totals["rows"] != accepted.rows - accepted.bad:
        raise BatchConflict(
            f"the files of the batch {batch.name!r} hold {totals['rows']:,} good rows; "
            f"{accepted.rows - accepted.bad:,} were accepted",
            batch=batch.name,
        )
    return batch.finish(
        Scheduled(
            batch=batch.name,
            namespace=options.namespace,
            bad=accepted.bad,
            files=len(paths),
            epoch=epoch,
            finished_at=now.now,
            seconds=round(seconds, 3),
            **totals,
        )
    )


def _push_files(spark: SparkSession, paths: list[str], options: LoadOptions, epoch: str) -> list[Any]:
    """A task per file; each answers a row of RESULTS."""
    session = _reading_session(spark)
    files = {path.rpartition("/")[2]: number for number, path in enumerate(paths)}
    # Over Spark Connect nobody says how many tasks run at a time, so the cap is shared by all of them.
    writers = len(paths) if is_connect(spark) else min(len(paths), parallelism(spark))
    pusher = FilePusher(replace(options, writers=options.writers or writers), files, epoch)
    rows = session.read.schema(ROWS).parquet(*paths).where(F.col("reason").isNull())
    named: Any = rows.withColumn("file", F.col("_metadata.file_name"))
    try:
        return named.mapInArrow(pusher.push, RESULTS).collect()
    except PySparkException as error:
        raise told(error) from error


def told(error: PySparkException) -> DuetimeError:
    """What a task of ours said, out of what Spark says about it."""
    said = re.findall(r"^duetime\.[\w.]*\.(\w+): (.+)$", str(error), re.MULTILINE)
    if not said:
        return LoadFailed(str(error).strip().split("\n", 1)[0])
    name, message = said[-1]
    kind = next((one for one in (ReconcileFirst, StoreUnavailable) if one.__name__ == name), LoadFailed)
    return kind(message)


def _reading_session(spark: SparkSession) -> SparkSession:
    """A session like this one in which each file is read by a task of its own."""
    session = spark.newSession()
    for name, value in ONE_FILE_PER_TASK.items():
        session.conf.set(name, value)
    return session


def _nothing(phase: str, rows: int) -> None: ...
