"""The pipeline `reconcile`: audit, then repair.

The order is what makes it safe beside live traffic. (1) Scan the store, and note its time S at the end. (2) Read the
journal until every known node has written everything up to S without a gap, or is closed; else stop and name the node.
(3) Find what was accepted, has not ended and is not in the scan. (4) Ask the store once more, by id, and push what is
still missing with keep, each job with a mark of its own, so that any number of runs may overlap; before that, raise
the counts of task groups that the store has lost (`joins.py`). Jobs in the store that
no entry accepted are adopted by a new entry. What was found and done stays in `lake/reconcile/<run>/`; a run that dies
is simply run again. Runs on the driver.
"""

from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duetime.journal.housekeeping import close_dead_nodes
from duetime.journal.segments import sealed
from duetime.model.ids import IdMaker
from duetime.model.job import DAY_MS
from duetime.spark.audit.closed_files import days_of
from duetime.spark.audit.journal import check_complete, forget_whole_nodes
from duetime.spark.audit.run import Beside, Evidence, Told, born_after, findings, gather, write_places
from duetime.spark.audit.transform import Scanned
from duetime.spark.ingest.about import about_events
from duetime.spark.lake.files import Files, LocalFiles, files_for
from duetime.spark.lake.lake import Lake
from duetime.spark.load.task_entries import TaskEntries, close_left
from duetime.spark.reconcile import joins
from duetime.spark.reconcile import transform as reconcile
from duetime.spark.reconcile.repair import Reconciled, repair
from duetime.spark.reconcile.repair_task import SUPERSEDED, RepairTask
from duetime.spark.schemas import JOBS, KEY
from duetime.spark.store_view import StoreView

PLAN_ROWS = 50_000
"""At most, of one file of the plan. Spark gives whole files to the tasks, and few large ones leave cores idle."""


def run_reconcile(
    lake: Lake,
    journal: str,
    beside: Beside,
    *,
    dry_run: bool = False,
    assume_lost: Sequence[str] = (),
    told: Told = lambda step: None,
) -> Reconciled:
    """Raises JournalIncomplete with the names of the nodes that stand in the way; nothing was done then."""
    run = IdMaker().make()
    instance = f"reconcile-{run}"
    files = files_for(lake.spark, journal)
    if isinstance(files, LocalFiles) and not dry_run:
        close_dead_nodes(files.path(journal))
    done = Reconciled(run, f"{lake.folder}/reconcile/{run}", dry_run)
    try:
        evidence = gather(lake, journal, beside, run=run, assume_lost=assume_lost, told=told)
        scanned = evidence.scanned
        assert scanned is not None
        done.assumed = check_complete(evidence.journal, scanned.pool, scanned.ended_at, assume_lost)
        told("planning")
        counted = _write_plan(lake, evidence, done)
        if dry_run:
            _count_plan(lake, done)
        else:
            task = RepairTask(
                (beside.url, beside.token),
                scanned.epoch,
                scanned.ended_at,
                instance=instance,
                journal=str(files.path(journal)) if isinstance(files, LocalFiles) else "",
            )
            with closing(StoreView(beside.url, beside.token)) as view:
                if counted is not None:
                    joins.raise_counts(counted, view)
                try:
                    with _driver_entries(files, journal, view, instance) as entries:
                        repair(lake, task, entries, done, told)
                finally:
                    if isinstance(files, LocalFiles):
                        close_left(files.path(journal), instance, view)
                forget_whole_nodes(lake, evidence.journal, view)
        _write_summary(lake, done, scanned, beside, files.home(journal))
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
    missing, counted = reconcile.missing(evidence.jobs, placed, scanned), None
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
    body is not there: the first entry was lost, and a later one told it again.
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


def _write_summary(lake: Lake, done: Reconciled, scanned: Scanned, beside: Beside, journal: str) -> None:
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
        "namespaces": list(beside.namespaces),
        "journal": journal,
        "pool": scanned.pool,
    }
    lake.files.create(f"{done.folder}/summary.json", msgspec.json.format(msgspec.json.encode(summary)))
