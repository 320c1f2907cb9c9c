"""The pipeline `reconcile`: audit, then repair.

The order makes it safe during live traffic. (1) Scan the store, and note its time S at the end. (2) Read the
journal until every known node has written everything up to S without a gap, or is closed; else stop and name the node.
(3) Find what was accepted, has not ended and is not in the scan. (4) Ask the store once more, by id, and push what is
still missing with keep, each job with a mark of its own, so that any number of runs may overlap; before that, raise
the counts of task groups that the store has lost (`joins.py`). Jobs in the store that
no entry accepted are adopted by a new entry. What was found and done stays in `lake/reconcile/<run>/`; a run that dies
is simply run again. Runs on the driver.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duetime.journal.housekeeping import close_dead_nodes
from duetime.journal.segments import sealed
from duetime.model.ids import IdMaker
from duetime.model.job import DAY_MS
from duetime.spark.audit.journal import JournalProblem, check_complete, forget_whole_nodes
from duetime.spark.audit.run import ComparedStore, Evidence, OnStep, born_after, findings, gather, write_places
from duetime.spark.audit.scan import days_of
from duetime.spark.audit.transform import Scanned
from duetime.spark.ingest.about import about_events
from duetime.spark.lake.files import Files, LocalFiles, files_for
from duetime.spark.lake.lake import Lake
from duetime.spark.load.push_round import task_error
from duetime.spark.load.task_entries import TaskEntries, close_left
from duetime.spark.reconcile import joins
from duetime.spark.reconcile import transform as reconcile
from duetime.spark.reconcile.repair_task import RESULTS, SUPERSEDED, RepairTask, StoreChanged
from duetime.spark.schemas import JOBS, KEY
from duetime.spark.store_view import StoreView

# --- carrying out the plan
#
# Has the executors carry out a reconcile's plan, and journals what they did where they cannot. Runs on the driver.
#
# The entries come after the pushes. A run that dies in between leaves jobs in the store that the journal knows from
# before, with a lower attempt; the next run finds them present.


ENTRIES_AT_ONCE = 10_000
NAMED_REFUSALS = 20


@dataclass
class Reconciled:
    """How many jobs ended in which way.

    pushed: put back. repeated: put back by another run at the same time. expired: closed as expired. adopted: entered
    into the journal. present: it was there after all. superseded: a newer job has its id, and the old one is closed.
    no_body: the journal lost its body. refused: the store did not take it. gone: it was to be adopted and has gone.
    `nodes` are those of the journal that the run wrote.
    """

    run: str
    folder: str
    dry_run: bool
    lost: int = 0
    counts: dict[str, int] = field(default_factory=dict[str, int])
    refusals: list[str] = field(default_factory=list[str])
    assumed: list[JournalProblem] = field(default_factory=list[JournalProblem])
    nodes: set[str] = field(default_factory=set[str])

    @property
    def is_repaired(self) -> bool:
        return not any(self.counts.get(name) for name in ("refused", "no_body"))


def repair(
    lake: Lake, task: RepairTask, entries: TaskEntries | None, done: Reconciled, on_step: Callable[[str], None]
) -> None:
    """Carry out the plan of the run. Raises DuetimeError; what was done by then stays, and the next run goes on.

    `entries` is for a journal that the tasks cannot write.
    """
    plan: Any = lake.spark.read.parquet(f"{done.folder}/plan")
    done.lost = plan.where(F.col("action") != reconcile.ADOPT).count()
    on_step(f"repairing {done.lost:,} jobs")
    folder = f"{done.folder}/results"
    try:
        plan.mapInArrow(task, RESULTS).write.parquet(folder)
    except PySparkException as error:
        raise task_error(error, StoreChanged) from error
    results = lake.spark.read.parquet(folder)
    for row in results.groupBy("result", "node").agg(F.sum("jobs").alias("jobs")).collect():
        done.counts[row["result"]] = done.counts.get(row["result"], 0) + row["jobs"]
        done.nodes |= {row["node"]} if row["node"] else set()
    refused = results.where(F.col("problem").isNotNull()).select("problem").limit(NAMED_REFUSALS)
    done.refusals = [row["problem"] for row in refused.collect()] if done.counts.get("refused") else []
    if entries is None:
        return
    on_step("writing the journal")
    for file in lake.files.list(folder):
        if file.name.endswith(".parquet"):
            _write_entries(lake, file.path, entries)
    done.nodes |= {entries.node} if entries.node else set()


def _write_entries(lake: Lake, file: str, entries: TaskEntries) -> None:
    """The entries of one file of results, which is what a task made and fits into memory."""
    found: Any = lake.spark.read.parquet(file).where(F.col("entry").isNotNull()).select("entry")
    table = found.toArrow()
    for batch in table.to_batches(max_chunksize=ENTRIES_AT_ONCE):
        entries.write(batch.column("entry").to_pylist())


PLAN_ROWS = 50_000
"""At most, of one file of the plan. Spark gives whole files to the tasks, and few large ones leave cores idle."""


def run_reconcile(
    lake: Lake,
    journal: str,
    compared: ComparedStore,
    *,
    dry_run: bool = False,
    assume_lost: Sequence[str] = (),
    on_step: OnStep = lambda step: None,
) -> Reconciled:
    """Raises JournalIncomplete with the names of the nodes whose entries are missing; nothing was done then."""
    run = IdMaker().make()
    instance = f"reconcile-{run}"
    files = files_for(lake.spark, journal)
    if isinstance(files, LocalFiles) and not dry_run:
        close_dead_nodes(files.path(journal))
    done = Reconciled(run, f"{lake.folder}/reconcile/{run}", dry_run)
    try:
        evidence = gather(lake, journal, compared, run=run, assume_lost=assume_lost, on_step=on_step)
        scanned = evidence.scanned
        assert scanned is not None
        done.assumed = check_complete(evidence.journal, scanned.pool, scanned.ended_at, assume_lost)
        on_step("planning")
        counted = _write_plan(lake, evidence, done)
        if dry_run:
            _count_plan(lake, done)
        else:
            task = RepairTask(
                (compared.url, compared.token),
                scanned.epoch,
                scanned.ended_at,
                instance=instance,
                journal=str(files.path(journal)) if isinstance(files, LocalFiles) else "",
            )
            with closing(StoreView(compared.url, compared.token)) as view:
                if counted is not None:
                    joins.raise_counts(counted, view)
                try:
                    with _driver_entries(files, journal, view, instance) as entries:
                        repair(lake, task, entries, done, on_step)
                finally:
                    if isinstance(files, LocalFiles):
                        close_left(files.path(journal), instance, view)
                forget_whole_nodes(lake, evidence.journal, view)
        _write_summary(lake, done, scanned, compared, files.home(journal))
        return done
    finally:
        lake.files.delete(lake.scratch(run))


@contextmanager
def _driver_entries(files: Files, journal: str, view: StoreView, instance: str) -> Generator[TaskEntries | None]:
    """The driver's node, for a journal that executors cannot write; None for a local one."""
    if isinstance(files, LocalFiles):
        yield None
        return
    home = files.home(journal)

    def deliver(node: Path) -> None:
        for segment in sealed(node):
            files.create(f"{home}/{node.name}/{segment.path.name}", segment.path.read_bytes())

    with (
        TemporaryDirectory(prefix="duetime-reconcile-") as aside,
        closing(TaskEntries(Path(aside), view, instance=instance, deliver=deliver)) as entries,
    ):
        yield entries


def _write_plan(lake: Lake, evidence: Evidence, done: Reconciled) -> DataFrame | None:
    """Returns the counts of task groups, None if there are none."""
    scanned, aside = evidence.scanned, lake.scratch(done.run)
    assert scanned is not None
    placed = write_places(lake, evidence, f"{aside}/places")
    missing, counted = reconcile.missing(evidence.jobs, placed.rows, scanned), None
    if (finished := _finishes(lake, evidence, f"{aside}/finishes")) is not None:
        jobs = _jobs_found_gone(lake, evidence, finished)
        joins.counts(joins.done(finished, jobs, scanned), scanned).write.parquet(f"{done.folder}/joins")
        counted = lake.spark.read.parquet(f"{done.folder}/joins")
        missing = missing.unionByName(joins.put_back(counted, jobs))
    missing.write.parquet(f"{aside}/missing")
    lost = lake.spark.read.schema(JOBS).parquet(f"{aside}/missing")
    plan = reconcile.plan(lost, _bodies(lake, evidence, lost, f"{aside}/bodies"), scanned)
    adopt = reconcile.adoptable(findings(lake, evidence, placed), scanned)
    whole = plan.unionByName(adopt, allowMissingColumns=True)
    # Neighbours in time are cheaper for a store, and those that share their options travel together.
    ordered = whole.sortWithinPartitions("pool", "namespace", "queue", "priority", "tries", "attempt", "due_at", "id")
    ordered.write.option("maxRecordsPerFile", PLAN_ROWS).parquet(f"{done.folder}/plan")
    return counted


def _finishes(lake: Lake, evidence: Evidence, aside: str) -> DataFrame | None:
    """`joins.finishes` of joins that are not whole; None if there are none. Only days with such entries are read."""
    now, scanned = evidence.journal, evidence.scanned
    assert scanned is not None
    days = set(about_events(now.manifest).group_days)
    if not days and not now.late_rows:
        return None
    events = lake.events.read(manifest=now.manifest, only=lambda file: file.date in days).unionByName(now.late)
    joins.under_way(joins.finishes(evidence.narrowed(events), scanned)).write.parquet(f"{aside}-all")
    found = lake.spark.read.parquet(f"{aside}-all")
    [first] = found.agg(F.min("at")).collect()
    if first[0] is None:
        return None
    # The time of an entry may be a moment off; a job that follows is born when the last finish happens.
    joins.without_callback(found, born_after(lake, evidence, first[0] - DAY_MS)).write.parquet(aside)
    return lake.spark.read.parquet(aside)


def _jobs_found_gone(lake: Lake, evidence: Evidence, finished: DataFrame) -> DataFrame:
    """The rows of the jobs whose finishes found them gone, and of others."""
    days = days_of(finished.where("seen = 0"))
    chosen = {file for file in evidence.closed if file.date in days}
    closed = lake.jobs.read(manifest=evidence.manifest, only=lambda file: file in chosen)
    return evidence.jobs.unionByName(evidence.narrowed(closed))


def _bodies(lake: Lake, evidence: Evidence, lost: DataFrame, aside: str) -> DataFrame:
    """The bodies of lost jobs, from the days on which these were accepted. The other days are only read for jobs whose
    body is not there: the first entry was lost, and a later one repeats it.
    """
    now, days = evidence.journal, reconcile.body_days(lost)
    named = lake.events.read(manifest=now.manifest, only=lambda file: file.date in days).unionByName(now.late)
    reconcile.bodies_of(named, lost).write.parquet(aside)
    found = lake.spark.read.parquet(aside)
    others = [file for file in now.manifest.files if file.date not in days]
    left = lost.join(found.select(*KEY), on=list(KEY), how="left_anti")
    if not others or left.isEmpty():
        return found
    rest = lake.events.read(manifest=now.manifest, only=lambda file: file.date not in days)
    return found.unionByName(reconcile.bodies_of(rest, left))


def _count_plan(lake: Lake, done: Reconciled) -> None:
    plan = lake.spark.read.parquet(f"{done.folder}/plan")
    for row in plan.groupBy("action", F.col("body").isNull().alias("bare")).count().collect():
        ended = {reconcile.EXPIRE: "expired", reconcile.SUPERSEDE: SUPERSEDED, reconcile.ADOPT: "adopted"}
        name = ended.get(row["action"]) or ("no_body" if row["bare"] else "pushed")
        done.counts[name] = done.counts.get(name, 0) + row["count"]
        done.lost += 0 if row["action"] == reconcile.ADOPT else row["count"]


def _write_summary(lake: Lake, done: Reconciled, scanned: Scanned, compared: ComparedStore, journal: str) -> None:
    summary = {
        "run": done.run,
        "dry_run": done.dry_run,
        "lost": done.lost,
        "counts": done.counts,
        "refusals": done.refusals,
        "assumed_lost": [{"node": one.node, "kind": one.kind, "detail": one.detail} for one in done.assumed],
        "nodes": sorted(done.nodes),
        "epoch": scanned.epoch,
        "scanned_at": scanned.ended_at,
        "namespaces": list(compared.namespaces),
        "journal": journal,
        "pool": scanned.pool,
    }
    lake.files.create(f"{done.folder}/summary.json", msgspec.json.format(msgspec.json.encode(summary)))
