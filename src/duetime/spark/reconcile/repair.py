"""Has the executors carry out a reconcile's plan, and journals what they did where they cannot. Runs on the driver.

The entries come after the pushes. A run that dies in between leaves jobs in the store that the journal knows from
before, with a lower attempt; the next run finds them present.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from duetime.spark.audit.journal import JournalProblem
from duetime.spark.lake.lake import Lake
from duetime.spark.load.push_round import told as task_error
from duetime.spark.load.task_entries import TaskEntries
from duetime.spark.reconcile import transform as reconcile
from duetime.spark.reconcile.repair_task import RESULTS, RepairTask, StoreChanged

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
    lake: Lake, task: RepairTask, entries: TaskEntries | None, done: Reconciled, told: Callable[[str], None]
) -> None:
    """Carry out the plan of the run. Raises DuetimeError; what was done by then stays, and the next run goes on.

    `entries` is for a journal that the tasks cannot write.
    """
    plan: Any = lake.spark.read.parquet(f"{done.folder}/plan")
    done.lost = plan.where(F.col("action") != reconcile.ADOPT).count()
    told(f"repairing {done.lost:,} jobs")
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
    told("writing the journal")
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
