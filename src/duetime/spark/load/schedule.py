"""`schedule(df, ...)`: a DataFrame becomes jobs, exactly once, whatever fails and however often it is run.

Two Spark jobs. The first checks all rows and writes them down; the driver then fixes which files count. The second
pushes those files, a task each, in steps that carry a mark (batch, file, step) set in the same atomic step as their
jobs: a step is pushed once however often its task runs, also after its jobs were delivered and acked. A run that finds
accepted files goes on from those and does not look at its DataFrame. `batch.py` says what is on disk, `push_round.py`
what happens when marks are gone. With `on_change` the rows are a table that is kept in step: only what has changed
since its last load is pushed (`table.py`).
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Unpack
from urllib.parse import urlsplit

from msgspec import structs
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from duetime.client.event_loop import run
from duetime.model.clock import rfc3339
from duetime.model.errors import InvalidRequest, InvalidSettings
from duetime.model.ids import IdMaker
from duetime.spark.lake.files import LocalFiles, files_for
from duetime.spark.load.batch import Accepted, Batch, BatchConflict, Changes, ReconcileFirst, Scheduled
from duetime.spark.load.batch_journal import with_journal
from duetime.spark.load.job_columns import EXPRESSION
from duetime.spark.load.job_rows import check_columns, job_rows, order
from duetime.spark.load.options import Action, BadRecords, LoadFields, LoadOptions, read_options
from duetime.spark.load.push_round import find_round, push_round
from duetime.spark.load.table import (
    ACCEPTED_ROWS,
    GONE,
    MISSING,
    MOVED,
    NEW,
    UNCHANGED,
    TableLoads,
    changes,
    last_rows,
    with_digest,
)
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
    tell = on_phase or _nothing
    if given.withdraw_missing and not given.on_change:
        given = replace(given, on_change=Action.KEEP)
    if given.on_change:
        return _keep_in_step(frame, given, lake, tell)
    if not given.batch:
        raise InvalidSettings("name the batch: a second run under the same name adds nothing")
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
    return _push(frame.sparkSession, batch, accepted, given, store, tell)


def _push(
    spark: SparkSession, batch: Batch, accepted: Accepted, options: LoadOptions, store: StoreInfo, tell: OnProgress
) -> Scheduled:
    name = find_round(batch, options, store)
    tell("pushing", accepted.rows - accepted.bad)
    result = push_round(batch, accepted, options, name, spark=spark, store=store)
    tell("done", result.rows)
    return result


def _keep_in_step(frame: DataFrame, given: LoadOptions, lake: str, tell: OnProgress) -> Scheduled:
    """Push what has changed since the table's last load; finish that one first if it was interrupted.

    A run that is killed leaves a load that is not claimed yet, or one that is claimed and not done. The next run finds
    either of them and ends it before it compares the table again.
    """
    if not given.source:
        raise InvalidSettings("name the table with the option source: it is compared with its last load")
    spark, resumed = frame.sparkSession, None
    store: StoreInfo = run(ask_store(given))
    given = run(with_journal(given))
    loads = TableLoads(files_for(spark, lake), lake, given)
    while True:
        number, last = loads.last()
        if last and (accepted := last.accepted()) and last.manifest() is None:
            resumed = _push(spark, last, accepted, replace(given, batch=last.name), store, tell)
            continue
        name = given.batch or f"{given.queue[:100] or 'table'}-{loads.key[:8]}-{number + 1:06d}"
        batch, options = Batch.open(spark, lake, name), replace(given, batch=name)
        if (done := batch.manifest()) is not None:
            _check_same(batch, done, frame, options)
            return done if resumed else structs.replace(done, was_done=True)
        if (accepted := batch.accepted()) is None:
            break
        if not accepted.number:
            _check_same(batch, accepted, frame, options)
        loads.claim(accepted.number, name)
    if last:
        _check_not_wiped(last, store, given.namespace)
    tell("checking", 0)
    accepted = _accept(frame, batch, options, store, load=number + 1, before=last and last_rows(spark, last))
    found = accepted.changes
    assert found is not None
    if not found.new + found.moved + found.unchanged + accepted.bad:
        return Scheduled(name, given.namespace, 0, 0, 0, 0, 0, store.epoch, store.now)
    if not found.new + found.moved + found.withdrawn:
        nothing = Scheduled(name, given.namespace, 0, 0, 0, accepted.bad, 0, store.epoch, store.now, changes=found)
        return structs.replace(resumed, resumed=resumed.batch) if resumed else nothing
    loads.claim(number + 1, name)
    result = _push(spark, batch, accepted, options, store, tell)
    return structs.replace(result, resumed=resumed.batch if resumed else "")


def _check_not_wiped(last: Batch, store: StoreInfo, namespace: str) -> None:
    """Raise ReconcileFirst if jobs of the last load may be missing in the store."""
    done = last.manifest()
    if done is None or done.epoch == store.epoch:
        return
    if not last.reconciled(namespace, epoch=store.epoch, after=0):
        raise ReconcileFirst(
            f"the last load of this table, {last.name!r}, went to another store, or this one was wiped since: "
            "reconcile first (`duetime pipeline reconcile` with the same --lake), then run this again",
            batch=last.name,
        )


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


def _accept(
    frame: DataFrame,
    batch: Batch,
    options: LoadOptions,
    store: StoreInfo,
    *,
    load: int = 0,
    before: DataFrame | None = None,
) -> Accepted:
    """Check the rows and write them down. With `load`, the number of a table's load, they are compared with `before`.

    Rows of which none is to be pushed are not a batch: nothing is left on the disk.
    """
    folder = f"files-{IdMaker().make()}"
    seen = Observation()
    kinds = check_columns(frame.schema, options)
    if not options.queue and "queue" not in kinds:
        raise InvalidSettings("name a queue: by the option queue or in a column queue")
    rows = with_digest(job_rows(frame, options, store.now))
    rows = changes(rows, before, withdraw=options.withdraw_missing) if load else rows.withColumn("kind", F.lit(NEW))
    # A row without a due time is due when it was read, which is another time in another run.
    fixed = ["id", "body", "queue", "action"] + (["due_at"] if "due_at" in kinds and not options.spread_ms else [])
    # The hash is not made within `observe`, because Spark interprets what it observes row by row.
    observed = rows.withColumn("hash", F.xxhash64(*fixed)).observe(
        seen,
        F.count(F.lit(1)).alias("all"),
        F.count("reason").alias("bad"),
        F.bit_xor("hash").alias("sum"),
        *(F.count_if(F.col("kind") == kind).alias(kind) for kind in (NEW, MOVED, GONE, UNCHANGED, MISSING)),
    )
    by_action = ["action"] if load or {"if_exists", "change"} & set(kinds) else []
    ordered = observed.withColumn("has_attributes", F.col("attributes").isNotNull()).sortWithinPartitions(
        *order([*kinds, *by_action])
    )
    files = batch.write_rows(ordered.select(*ACCEPTED_ROWS.names), folder)
    counts: dict[str, Any] = seen.get
    counts["rows"] = counts["all"] - counts[UNCHANGED] - counts[MISSING]
    if counts["bad"]:
        written = frame.sparkSession.read.schema(ACCEPTED_ROWS).parquet(
            *(f"{batch.home}/{file.name}" for file in files)
        )
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
        number=load,
        changes=Changes(*(counts[kind] for kind in (NEW, MOVED, GONE, UNCHANGED, MISSING))) if load else None,
    )
    # Not a batch: the rows of the next run under this name must count. An empty table withdraws nothing.
    is_empty = counts["all"] == counts[GONE] + counts[MISSING]
    if is_empty or (load and counts["rows"] == counts["bad"]):
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
    if options.mode or options.on_change or options.if_exists is not Action.KEEP:
        parts = (*parts, options.mode, options.on_change, options.if_exists, options.withdraw_missing)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _nothing(phase: str, rows: int) -> None: ...
