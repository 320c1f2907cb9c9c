"""`schedule(df, ...)`: a DataFrame becomes jobs, exactly once, whatever fails and however often it is run.

Two Spark jobs. The first checks all rows and writes them down; the driver then fixes which files count. The second
pushes those files, a task each, in steps that carry a mark (batch, file, step) set in the same atomic step as their
jobs: a step is pushed once however often its task runs, also after its jobs were delivered and acked. A run that finds
accepted files goes on from those and does not look at its DataFrame. `batch.py` says what is on disk, `push_round.py`
what happens when marks are gone.
"""

import hashlib
from collections.abc import Callable
from typing import Any, Unpack
from urllib.parse import urlsplit

from msgspec import structs
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from duetime.client.event_loop import run
from duetime.model.clock import rfc3339
from duetime.model.errors import InvalidRequest, InvalidSettings
from duetime.model.ids import IdMaker
from duetime.spark.lake.files import LocalFiles
from duetime.spark.load.batch import Accepted, Batch, BatchConflict, Scheduled
from duetime.spark.load.batch_journal import with_journal
from duetime.spark.load.job_columns import EXPRESSION
from duetime.spark.load.job_rows import ROWS, check_columns, job_rows, order
from duetime.spark.load.options import BadRecords, LoadFields, LoadOptions, read_options
from duetime.spark.load.push_round import find_round, push_round
from duetime.spark.load.task_push import ask_store
from duetime.stores.base import StoreInfo

SAMPLE = 5
SHOWN_ROW = 300

OnProgress = Callable[[str, int], None]
"""Called with the phase that begins ("checking", "pushing", "done") and its number of rows (0: not known yet)."""


class BadRows(InvalidRequest):
    """Some rows cannot be jobs."""

    code = "bad_rows"


def schedule(
    frame: DataFrame, *, lake: str = "lake", on_phase: OnProgress | None = None, **options: Unpack[LoadFields]
) -> Scheduled:
    """Push the rows as the batch `options["batch"]`, or finish what an earlier run of it began.

    `options["source"]` says where the rows are from; another one under the same batch name is a BatchConflict. Without
    it only the columns are compared, so other rows with the same columns are taken for the batch that was there before.
    A frame without rows is no batch: `rows` is 0, and a later run under the same name pushes its rows.
    Raises BadRows (nothing was pushed), BatchConflict, ReconcileFirst, LoadFailed, StoreUnavailable.
    """
    return load(frame, read_options(options), lake=lake, on_phase=on_phase)


def load(frame: DataFrame, given: LoadOptions, *, lake: str, on_phase: OnProgress | None = None) -> Scheduled:
    """`schedule` with options that were read already."""
    if not given.batch:
        raise InvalidSettings("name the batch: a second run under the same name adds nothing")
    if given.journal and given.is_http:
        raise InvalidSettings("a server writes the journal itself: leave journal out, or name the store")
    tell = on_phase or _nothing
    batch = Batch.open(frame.sparkSession, lake, given.batch)
    store: StoreInfo = run(ask_store(given))
    if (done := batch.manifest()) is not None:
        _check_same(batch, done, frame, given)
        _check_store(batch, done, store)
        return structs.replace(done, was_done=True)
    given = run(with_journal(given))
    accepted = batch.accepted()
    if accepted is None:
        tell("checking", 0)
        accepted = _accept(frame, batch, given, store)
        if not accepted.rows:
            return Scheduled(batch.name, given.namespace, 0, 0, 0, 0, 0, store.epoch, store.now)
    else:
        _check_same(batch, accepted, frame, given)
    name = find_round(batch, given, store)
    tell("pushing", accepted.rows - accepted.bad)
    result = push_round(batch, accepted, given, name, spark=frame.sparkSession, store=store)
    tell("done", result.rows)
    return result


def find_done(lake: str, given: LoadOptions) -> Scheduled | None:
    """The end of a batch in a local lake, found without Spark.

    None if the batch is not done, if anything differs from what was asked for then, or if the lake is elsewhere:
    `schedule` knows what to do about it.
    """
    if not given.batch or not given.source or urlsplit(lake).scheme not in ("", "file"):
        return None
    done = Batch(LocalFiles(), lake, given.batch).manifest()
    if done is None or (done.options, done.named) != (_options_digest(given), given.source):
        return None
    store: StoreInfo = run(ask_store(given))
    return structs.replace(done, was_done=True) if done.epoch == store.epoch else None


def _check_same(batch: Batch, then: Accepted | Scheduled, frame: DataFrame, options: LoadOptions) -> None:
    """Raise BatchConflict if the batch of this name had other options or another source."""
    for what, before, now in (
        ("with other options", then.options, _options_digest(options)),
        ("from another source", then.source, _source_digest(frame, options)),
    ):
        if before not in ("", now):
            raise BatchConflict(
                f"the batch {batch.name!r} was accepted {what}: give this one another name", batch=batch.name
            )


def _check_store(batch: Batch, done: Scheduled, store: StoreInfo) -> None:
    if done.epoch != store.epoch:
        raise BatchConflict(
            f"the batch {batch.name!r} was done {rfc3339(done.finished_at)} in another store, or this one was wiped "
            "since: reconcile puts back what was lost, and another name pushes the rows again",
            batch=batch.name,
        )


# --- the first job: check and write down


def _accept(frame: DataFrame, batch: Batch, options: LoadOptions, store: StoreInfo) -> Accepted:
    folder = f"files-{IdMaker().make()}"
    seen = Observation()
    kinds = check_columns(frame.schema)
    if not options.queue and "queue" not in kinds:
        raise InvalidSettings("name a queue: by the option queue or in a column queue")
    rows = job_rows(frame, options, store.now)
    # A row without a due time is due when it was read, which is another time in another run.
    fixed = ["id", "body", "queue"] + (["due_at"] if "due_at" in kinds and not options.spread_ms else [])
    # The hash is not made within `observe`, because Spark interprets what it observes row by row.
    observed = rows.withColumn("hash", F.xxhash64(*fixed)).observe(
        seen,
        F.count(F.lit(1)).alias("rows"),
        F.count("reason").alias("bad"),
        F.bit_xor("hash").alias("sum"),
    )
    ordered = observed.withColumn("has_attributes", F.col("attributes").isNotNull()).sortWithinPartitions(*order(kinds))
    files = batch.write_rows(ordered.select(*ROWS.names), folder)
    counts: dict[str, Any] = seen.get
    if counts["bad"]:
        written = frame.sparkSession.read.schema(ROWS).parquet(*(f"{batch.home}/{file.name}" for file in files))
        try:
            _handle_bad(written.where(F.col("reason").isNotNull()), batch, counts, options)
        except BadRows:
            batch.forget(folder)
            raise
    record = Accepted(
        folder=folder,
        files=files,
        rows=counts["rows"],
        bad=counts["bad"],
        checksum=f"{counts['rows']}-{(counts['sum'] or 0) & (2**64 - 1):016x}",
        options=_options_digest(options),
        at=store.now,
        source=_source_digest(frame, options),
    )
    if not record.rows:  # not a batch: the rows of the next run under this name must count
        batch.forget(folder)
        return record
    return batch.accept(record)


def _handle_bad(bad: DataFrame, batch: Batch, counts: dict[str, Any], options: LoadOptions) -> None:
    """Put the bad rows aside, or raise BadRows with a sample of them."""
    if options.bad_records is BadRecords.SKIP:
        bad.write.mode("overwrite").parquet(batch.rejected)
        return
    # The body of a row whose expression failed is the source's row.
    example = F.min(F.when(F.col("reason").startswith(EXPRESSION), F.col("body").cast("string"))).alias("example")
    found = bad.groupBy("reason").agg(F.count(F.lit(1)).alias("count"), example)
    reasons = found.orderBy(F.desc("count"), "reason").collect()
    sample = [row["id"] for row in bad.where("id is not null").orderBy("id").select("id").limit(SAMPLE).collect()]
    examples = [f"the row {row['example'][:SHOWN_ROW]}" for row in reasons if row["example"]][:SAMPLE]
    examples += [f"the ids {', '.join(map(repr, sample))}"] if sample else []
    counted = [f"{row['reason']}: {row['count']:,}" for row in reasons]
    counted += [f"for example {', '.join(examples)}"] if examples else []
    raise BadRows(
        f"{counts['bad']:,} of {counts['rows']:,} rows cannot be jobs, so nothing was pushed: {'; '.join(counted)}. "
        "badRecords=skip (--bad-rows skip) pushes the others and writes these to a file",
        rows=counts["rows"],
        bad=counts["bad"],
        reasons={row["reason"]: row["count"] for row in reasons},
        sample=sample,
        examples=[row["example"] for row in reasons if row["example"]],
    )


def _source_digest(frame: DataFrame, options: LoadOptions) -> str:
    """A digest of the source's name and its columns; the rows are not read for this."""
    said = (options.source, [(field.name, field.dataType.simpleString()) for field in frame.schema.fields])
    return hashlib.sha256(repr(said).encode()).hexdigest()[:16]


def _options_digest(options: LoadOptions) -> str:
    """A digest of the options that change which jobs the rows become or where they go; not of the pace or the URL."""
    parts = (
        options.namespace,
        options.queue,
        options.ttl_ms,
        options.tries,
        int(options.priority),
        options.spread_ms,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _nothing(phase: str, rows: int) -> None: ...
