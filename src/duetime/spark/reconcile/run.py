"""The pipeline `reconcile`: audit, then repair.

The order is what makes it safe beside live traffic. (1) Scan the store, and note its time S at the end. (2) Read the
journal until every known node has written everything up to S without a gap, or is closed; else stop and name the node.
(3) Find what was accepted, has not ended and is not in the scan. (4) Ask the store once more, by id, and push what is
still missing with keep, each job with a mark of its own, so that any number of runs may overlap. Jobs in the store that
no entry accepted are adopted by a new entry. What was found and done stays in `lake/reconcile/<run>/`; a run that dies
is simply run again. Runs on the driver.
"""

from collections.abc import Sequence
from contextlib import closing

import msgspec
from pyspark.sql import functions as F

from duetime.ids import IdMaker
from duetime.journal.dead_nodes import close_dead_nodes
from duetime.names import DEFAULT_POOL
from duetime.spark.audit import transform as audit
from duetime.spark.audit.journal import check_complete, whole_nodes
from duetime.spark.audit.run import Beside, Evidence, Told, gather
from duetime.spark.audit.store import open_view
from duetime.spark.audit.transform import Scanned
from duetime.spark.lake.files import LocalFiles, files_for
from duetime.spark.lake.lake import Lake
from duetime.spark.reconcile import transform as reconcile
from duetime.spark.reconcile.entries import RepairEntries
from duetime.spark.reconcile.repair import Reconciled, repair
from duetime.spark.reconcile.repair_task import SUPERSEDED, RepairTask


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
    files = files_for(lake.spark, journal)
    if isinstance(files, LocalFiles) and not dry_run:
        close_dead_nodes(files.path(journal))
    done = Reconciled(run, f"{lake.folder}/reconcile/{run}", dry_run)
    try:
        evidence = gather(lake, journal, beside, run=run, told=told)
        scanned = evidence.scanned
        assert scanned is not None
        done.assumed = check_complete(evidence.journal, scanned.pool, scanned.ended_at, assume_lost)
        told("planning")
        _write_plan(lake, evidence, done)
        if dry_run:
            _count_plan(lake, done)
        else:
            pool = beside.pool or scanned.pool or DEFAULT_POOL
            task = RepairTask((beside.url, beside.token), pool, scanned.epoch, scanned.ended_at)
            view = open_view(beside.url, beside.token)
            try:
                with closing(RepairEntries(files, files.home(journal), view)) as entries:
                    repair(lake, task, entries, done, told)
                view.forget(whole_nodes(lake, evidence.journal))
            finally:
                view.close()
        _write_summary(lake, done, scanned, beside)
        return done
    finally:
        lake.files.delete(lake.scratch(run))


def _write_plan(lake: Lake, evidence: Evidence, done: Reconciled) -> None:
    scanned, now = evidence.scanned, evidence.journal
    assert scanned is not None
    events = lake.events.read(manifest=now.manifest).unionByName(now.late)
    missing = reconcile.plan(evidence.jobs, events, scanned)
    adopt = reconcile.adoptable(audit.findings(evidence.jobs, scanned), scanned)
    missing.unionByName(adopt, allowMissingColumns=True).write.parquet(f"{done.folder}/plan")


def _count_plan(lake: Lake, done: Reconciled) -> None:
    plan = lake.spark.read.parquet(f"{done.folder}/plan")
    for row in plan.groupBy("action", F.col("body").isNull().alias("bare")).count().collect():
        ended = {reconcile.EXPIRE: "expired", reconcile.SUPERSEDE: SUPERSEDED, reconcile.ADOPT: "adopted"}
        name = ended.get(row["action"]) or ("no_body" if row["bare"] else "pushed")
        done.counts[name] = done.counts.get(name, 0) + row["count"]
        done.lost += 0 if row["action"] == reconcile.ADOPT else row["count"]


def _write_summary(lake: Lake, done: Reconciled, scanned: Scanned, beside: Beside) -> None:
    summary = {
        "run": done.run,
        "dry_run": done.dry_run,
        "lost": done.lost,
        "counts": done.counts,
        "refusals": done.refusals,
        "assumed_lost": [{"node": one.node, "kind": one.kind, "detail": one.detail} for one in done.assumed],
        "node": done.node,
        "epoch": scanned.epoch,
        "scanned_at": scanned.ended_at,
        "namespaces": list(beside.namespaces),
    }
    lake.files.create(f"{done.folder}/summary.json", msgspec.json.format(msgspec.json.encode(summary)))
