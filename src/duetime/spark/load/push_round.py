"""Pushing what a batch accepted: the second Spark job of `schedule`.

The first round pushes the accepted files. Its marks make it repeatable, until they are gone: after a week, or with a
store that was wiped. Then it is unknown what was pushed, until a reconcile has read the whole journal. The round after
it compares the accepted rows with the jobs that are known by now (`known_jobs`), writes down what is missing, and
pushes that with marks of its own. Runs on the driver.
"""

import re
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from duetime.client import store_calls
from duetime.client.event_loop import run
from duetime.client.store_link import AsyncStoreLink
from duetime.journal.registration import RegisteredNode
from duetime.model.errors import DuetimeError, StoreUnavailable
from duetime.model.ids import IdMaker
from duetime.spark.audit.journal import JournalIncomplete, JournalNow, Wait, check_complete, read_until
from duetime.spark.audit.run import WAIT_S
from duetime.spark.lake.lake import Lake
from duetime.spark.load.batch import (
    Accepted,
    Batch,
    BatchConflict,
    PushingBegun,
    ReconcileFirst,
    ReconcileRun,
    Scheduled,
)
from duetime.spark.load.batch_journal import BatchJournal, batch_node
from duetime.spark.load.job_rows import ROWS
from duetime.spark.load.options import MARK_LIFE_MS, Action, LoadOptions
from duetime.spark.load.push_files import COUNTS, RESULTS, FilePart, FilePusher
from duetime.spark.load.task_push import LoadFailed, ask_store
from duetime.spark.session import is_connect, parallelism, whole_file_session
from duetime.stores.base import StoreInfo

# --- after a reconcile
#
# The jobs that are known since a batch was first pushed, for a batch whose marks are gone. Runs on the driver.
#
# A row that was pushed is a job in the store, or the journal has the end of that job. The journal is read up to this
# moment, because jobs that the reconcile found in the store may have been acked since. The reconcile's plan is read
# as well: it names the jobs in the store that have no entry.


@contextmanager
def known_jobs(lake: Lake, reconcile: ReconcileRun, options: LoadOptions, since: int) -> Generator[DataFrame]:
    """(queue, id) of the namespace's jobs that were born since a time of the store's.

    Raises ReconcileFirst if the journal has become incomplete since the reconcile.
    """
    aside = IdMaker().make()
    try:
        now = _read_journal(lake, reconcile, options, aside)
        day = str(datetime.fromtimestamp(since / 1000, UTC).date())
        entries = lake.events.read(manifest=now.manifest, only=lambda file: file.date >= day).unionByName(now.late)
        known = _born_since(entries, options.namespace, since)
        plan = f"{lake.folder}/reconcile/{reconcile.run}/plan"
        if lake.files.list(plan):  # a vacuum deletes it, long after the lake has the entries of what was adopted
            known = known.unionByName(_born_since(lake.spark.read.parquet(plan), options.namespace, since))
        yield known.distinct()
    finally:
        lake.files.delete(lake.scratch(aside))


def _born_since(rows: DataFrame, namespace: str, since: int) -> DataFrame:
    born = (F.col("namespace") == namespace) & (F.col("born") >= since) & (F.col("id") != "")
    return rows.where(born).select("queue", "id")


def _read_journal(lake: Lake, reconcile: ReconcileRun, options: LoadOptions, aside: str) -> JournalNow:
    """The journal that the reconcile has read, with everything that happened in the store until now."""
    moment: int = run(ask_store(options)).now
    given_up = {one.node for one in reconcile.assumed_lost}
    now = read_until(
        lake,
        reconcile.journal,
        aside,
        registered=lambda: run(_registered(options)),
        awaited=lambda read: sorted({*read.awaited(reconcile.pool, moment)} - given_up),
        wait=Wait(WAIT_S),
    )
    # A node without entries, whose registration was removed, is known to the reconcile only.
    lost = given_up & {*now.nodes, *now.registered}
    try:
        check_complete(now, reconcile.pool, moment, lost)
    except JournalIncomplete as error:
        raise ReconcileFirst(
            f"since the reconcile {reconcile.run}: {error.message}; reconcile again, then run this again",
            batch=options.batch,
        ) from error
    return now


async def _registered(options: LoadOptions) -> Mapping[str, RegisteredNode]:
    """The nodes of the journal; a server shows them to all who may read the namespace."""
    async with AsyncStoreLink.open(options.store_url, options.token) as link:
        return await link.send(store_calls.journal_nodes(options.namespace))


FIRST = ""
"""The name of the first round; a later one has the name of the reconcile that it rests on."""
SAFETY_MS = 86_400_000
"""A run must not rely on marks that may end while it runs, so it stops relying on them this long before."""


def find_round(batch: Batch, options: LoadOptions, store: StoreInfo) -> str:
    """The round to begin or to go on with.

    Raises ReconcileFirst if an earlier run may have pushed, its marks may be gone, and no reconcile has run since.
    """
    rounds = [(name, begun) for name in (FIRST, *batch.later_rounds()) if (begun := batch.pushing(name))]
    if not rounds:
        return FIRST
    name, begun = rounds[-1]
    problem = _marks_gone(begun, store)
    if not problem:
        return name
    if reconciled := batch.reconciled(options.namespace, epoch=store.epoch, after=begun.at):
        return reconciled
    if options.journal and begun.node:
        run(BatchJournal(options, begun.node, ()).abandon())
    raise ReconcileFirst(
        f"an earlier run pushed some of the batch {batch.name!r}, and {problem}: reconcile first "
        "(`duetime pipeline reconcile` with the same --lake), then run this again: it pushes what is missing",
        batch=batch.name,
    )


def _marks_gone(begun: PushingBegun, store: StoreInfo) -> str:
    """Why the marks of a round cannot be relied on; empty if they can."""
    if begun.epoch != store.epoch:
        return "the store was wiped or is another one since"
    if store.now - begun.at > MARK_LIFE_MS - SAFETY_MS:
        return "that is so long ago that its marks may have ended"
    return ""


def accept_missing(spark: SparkSession, batch: Batch, accepted: Accepted, options: LoadOptions, name: str) -> Accepted:
    """Write down, once for each round, the accepted rows of which no job is known.

    Raises ReconcileFirst if the journal has become incomplete since the reconcile that the round rests on.
    """
    if found := batch.accepted_later(name):
        return found
    first = batch.pushing(FIRST)
    assert first is not None
    folder = f"files-{IdMaker().make()}"
    rows = _to_push(spark, batch.paths(accepted))
    order = ("action", "queue", "priority", "ttl", "tries", F.col("attributes").isNotNull(), "due_at", "id")
    with known_jobs(Lake(spark, batch.lake), batch.reconcile_run(name), options, first.at) as known:
        missing = rows.join(known, on=["queue", "id"], how="left_anti").select(*ROWS.names)
        files = batch.write_rows(missing.sortWithinPartitions(*order), folder)
    count = sum(_count_rows(spark, [f"{batch.home}/{file.name}" for file in files]).values())
    again = Accepted(folder, files, count, 0, accepted.checksum, accepted.options, first.at, accepted.source)
    return batch.accept_later(again, name)


def push_round(
    batch: Batch, accepted: Accepted, options: LoadOptions, name: str, *, spark: SparkSession, store: StoreInfo
) -> Scheduled:
    """Push the files of a round; `store` is as it was when the round was chosen.

    Raises ReconcileFirst, BatchConflict, LoadFailed, StoreUnavailable.
    """
    part = accepted if name == FIRST else accept_missing(spark, batch, accepted, options, name)
    paths = batch.paths(part)
    begun = batch.begin(PushingBegun(store.epoch, store.now, batch_node(options)), name)
    if begun.epoch != store.epoch:
        find_round(batch, options, store)
    clock = time.monotonic()
    progress = batch.begin_progress(accepted.rows - accepted.bad - (part.rows - part.bad))
    results = _push_files(spark, paths, options, begun, name, progress)
    seconds = time.monotonic() - clock
    now: StoreInfo = run(ask_store(options))
    if now.epoch != begun.epoch:
        find_round(batch, options, now)
    totals = {one: sum(int(row[one]) for row in results) for one in COUNTS}
    if totals["rows"] != part.rows - part.bad:
        raise BatchConflict(
            f"the files of the batch {batch.name!r} hold {totals['rows']:,} good rows; "
            f"{part.rows - part.bad:,} were accepted",
            batch=batch.name,
        )
    good = accepted.rows - accepted.bad
    known = good - totals["rows"]
    return batch.finish(
        Scheduled(
            batch=batch.name,
            namespace=options.namespace,
            rows=good,
            accepted=totals["accepted"] + known,
            kept=totals["kept"],
            bad=accepted.bad,
            files=len(paths),
            epoch=begun.epoch,
            finished_at=now.now,
            repeated=totals["repeated"] + known,
            seconds=round(seconds, 3),
            options=accepted.options,
            source=accepted.source,
            named=options.source,
            replaced=totals["replaced"],
            cancelled=totals["cancelled"],
            changes=accepted.changes,
            queue=options.queue,
        )
    )


def _push_files(
    spark: SparkSession, paths: list[str], options: LoadOptions, begun: PushingBegun, name: str, progress: str
) -> list[Any]:
    """Push the files, a task for each; returns a row of RESULTS per file."""
    if not paths:
        return []
    files = {path.rpartition("/")[2]: FilePart(number) for number, path in enumerate(paths)}
    journal: BatchJournal | None = None
    if options.journal:
        counts = _count_rows(spark, paths)
        lines = [counts.get(file, 0) for file in files]
        journal = BatchJournal(options, begun.node or f"batch-{options.batch}", lines)
        run(journal.begin())
        numbered = zip(files, journal.firsts, lines, strict=True)
        files = {
            file: FilePart(number, journal.node, first, rows) for number, (file, first, rows) in enumerate(numbered)
        }
    # Spark Connect does not report how many tasks run at a time, so all tasks share the cap.
    writers = len(paths) if is_connect(spark) else min(len(paths), parallelism(spark))
    marks = f"{options.batch}/{name}" if name else options.batch
    pusher = FilePusher(
        replace(options, writers=options.writers or writers), files, begun.epoch, marks, progress=progress
    )
    rows = _to_push(whole_file_session(spark), paths)
    named: Any = rows.withColumn("file", F.col("_metadata.file_name"))
    try:
        results = named.mapInArrow(pusher.push, RESULTS).collect()
    except PySparkException as error:
        raise task_error(error, ReconcileFirst) from error
    if journal:
        run(journal.end())
    return results


def _to_push(spark: SparkSession, paths: list[str]) -> DataFrame:
    """The rows of accepted files that are good and have changed."""
    rows = spark.read.schema(ROWS).parquet(*paths)
    return rows.where(F.col("reason").isNull() & (F.col("action") != Action.SAME))


def _count_rows(spark: SparkSession, paths: list[str]) -> dict[str, int]:
    """The good rows of each file, by its name."""
    if not paths:
        return {}
    rows = _to_push(spark, paths)
    counts = rows.groupBy(F.col("_metadata.file_name").alias("file")).count().collect()
    return {row["file"]: row["count"] for row in counts}


def task_error(error: PySparkException, *kinds: type[DuetimeError]) -> DuetimeError:
    """The error that a task raised, found in Spark's text about it: one of `kinds`, StoreUnavailable or LoadFailed."""
    said = re.findall(r"^duetime\.[\w.]*\.(\w+): (.+)$", str(error), re.MULTILINE)
    if not said:
        return LoadFailed(str(error).strip().split("\n", 1)[0])
    name, message = said[-1]
    kind = next((one for one in (*kinds, StoreUnavailable) if one.__name__ == name), LoadFailed)
    return kind(message)
