"""The pipeline `audit`: scan the store, read the journal past that moment, compare the two.

The order makes the answer certain beside live traffic: the store is scanned first, then the journal is read until every
node has written everything up to the end of the scan. What was found stays in `lake/audit/<run>/`. Runs on the driver.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duetime.clock import SystemClock
from duetime.ids import IdMaker
from duetime.job import Event
from duetime.journal.registered_nodes import RegisteredNode
from duetime.names import DEFAULT_POOL, Queue
from duetime.spark.audit import transform as audit
from duetime.spark.audit.journal import JournalNow, JournalProblem, Wait, read_until
from duetime.spark.audit.store import StoreView, open_view, scan
from duetime.spark.audit.transform import SCAN, Scanned
from duetime.spark.lake.lake import Lake
from duetime.spark.lifecycle import transform as lifecycle
from duetime.spark.lifecycle.run import run_lifecycle

WAIT_S = 60.0
"""How long to wait for the nodes' next heartbeat. They come every 5 s, but a busy node on a busy machine is late, and
calling it silent means that nothing is proved.
"""

SUMMARY_FINDINGS = 50
SUMMARY_FIELDS = ("kind", "namespace", "queue", "id", "batch", "detail")

Told = Callable[[str], None]


@dataclass(frozen=True)
class Beside:
    """The store to compare the journal with. `namespaces` narrows everything to some of them; none means all.

    A job with an entry fresher than `grace_ms` before the scan is left to the journal. `wait_s` is how long the nodes
    may take to write everything up to the scan.
    """

    url: str
    token: str | None = None
    pool: str | None = None
    namespaces: Sequence[str] = ()
    grace_ms: int = 0
    wait_s: float = WAIT_S


@dataclass
class Audited:
    """What an audit found. `law` has a row per queue and batch; `found` counts the findings by kind."""

    run: str
    folder: str
    law: list[dict[str, Any]]
    found: dict[str, int]
    problems: list[JournalProblem] = field(default_factory=list[JournalProblem])
    assumed_lost: list[str] = field(default_factory=list[str])
    store: str = ""

    @property
    def is_sound(self) -> bool:
        return not self.problems and not any(self.found.get(kind) for kind in audit.ERRORS)

    def total(self, name: str) -> int:
        return sum(row[name] for row in self.law)


@dataclass(frozen=True)
class Evidence:
    """What is compared: the journal, the jobs that follow from it, and the scan of the store, if there is one."""

    journal: JournalNow
    jobs: DataFrame
    scanned: Scanned | None


def run_audit(
    lake: Lake,
    journal: str,
    beside: Beside | None = None,
    *,
    assume_lost: Sequence[str] = (),
    told: Told = lambda step: None,
) -> Audited:
    """Changes nothing but the lake. Safe to run at any time, beside live traffic too."""
    run = IdMaker().make()
    try:
        evidence = gather(lake, journal, beside, run=run, told=told)
        told("weighing")
        return weigh(lake, evidence, run=run, assume_lost=assume_lost)
    finally:
        lake.files.delete(lake.scratch(run))


def gather(lake: Lake, journal: str, beside: Beside | None, *, run: str, told: Told = lambda step: None) -> Evidence:
    """Scan the store, then read the journal past that moment, then bring the jobs up to the journal."""
    scanned: Scanned | None = None
    registered: Mapping[str, RegisteredNode] = {}
    if beside:
        told("scanning the store")
        view = open_view(beside.url, beside.token)
        try:
            scanned = scan_store(lake, view, beside, run)
            # Asked after the scan: a node that registers later has done nothing that the scan could show.
            registered = view.registered()
        finally:
            view.close()

    def awaited(now: JournalNow) -> Sequence[str]:
        return () if scanned is None else now.awaited(scanned.pool, scanned.ended_at)

    told("reading the journal")
    wait = Wait(beside.wait_s if beside else 0, told)
    now = read_until(lake, journal, run, registered=registered, awaited=awaited, wait=wait)
    told("following the jobs")
    run_lifecycle(lake)
    jobs = jobs_now(lake, now)
    if beside and beside.namespaces:
        jobs = jobs.where(F.col("namespace").isin(*beside.namespaces))
    return Evidence(now, jobs, scanned)


def scan_store(lake: Lake, view: StoreView, beside: Beside, run: str) -> Scanned:
    """Write down what the store holds, and when."""
    record, began = view.journaling(), view.info()
    queues = _wanted(view.queues(), beside.namespaces)
    folder = f"{lake.scratch(run)}/scan"
    scan(lake.spark, beside.url, beside.token, queues).write.parquet(folder)
    is_server = beside.url.startswith(("http:", "https:"))
    return Scanned(
        jobs=lake.spark.read.schema(SCAN).parquet(folder),
        began_at=began.now,
        ended_at=view.now(),
        pool=beside.pool or (record.pool if record else None if is_server else DEFAULT_POOL),
        since=record.since if record else 0,
        grace_ms=beside.grace_ms,
        epoch=began.epoch,
    )


def _wanted(queues: Sequence[Queue], namespaces: Sequence[str]) -> list[Queue]:
    return [queue for queue in queues if not namespaces or queue.namespace in namespaces]


def jobs_now(lake: Lake, now: JournalNow) -> DataFrame:
    """JOBS with what the open segments add to the table; only the jobs that they are about are worked out again."""
    table = lake.jobs.read()
    if not now.late_rows:
        return table
    late = now.late
    states = lifecycle.event_states(late)
    keys = states.select(*audit.KEY).distinct()
    purges = lifecycle.purges_by_queue(lake.events.read(manifest=now.manifest).unionByName(late))
    touched = table.join(keys, on=list(audit.KEY), how="left_semi").select(*table.columns)
    merged = lifecycle.merge(states.unionByName(lifecycle.job_states(touched)))
    fresh = lifecycle.finish(merged, lifecycle.batch_names(late, touched), purges)
    rest = table.join(keys, on=list(audit.KEY), how="left_anti").select(*table.columns)
    if late.where(F.col("event") == Event.PURGED).isEmpty():
        return rest.unionByName(fresh)
    living = rest.where("ends = 0")
    again = lifecycle.finish(lifecycle.job_states(living), lifecycle.batch_names(living), purges)
    return rest.where("ends != 0").unionByName(again).unionByName(fresh)


def weigh(lake: Lake, evidence: Evidence, *, run: str, assume_lost: Sequence[str] = ()) -> Audited:
    """Write down the law and the findings, and count them."""
    folder = f"{lake.folder}/audit/{run}"
    scanned, now = evidence.scanned, evidence.journal
    audit.law(evidence.jobs, scanned).coalesce(1).write.parquet(f"{folder}/law")
    audit.findings(evidence.jobs, scanned).write.parquet(f"{folder}/findings")
    law = lake.spark.read.parquet(f"{folder}/law").orderBy(*audit.LAW_KEY)
    counts = lake.spark.read.parquet(f"{folder}/findings").groupBy("kind").count()
    problems = now.problems(scanned.pool if scanned else None, scanned.ended_at if scanned else None)
    audited = Audited(
        run=run,
        folder=folder,
        law=[row.asDict() for row in law.collect()],
        found={row["kind"]: row["count"] for row in counts.collect()},
        problems=[one for one in problems if one.node not in assume_lost],
        assumed_lost=sorted(set(assume_lost)),
    )
    _write_summary(lake, audited)
    return audited


def _write_summary(lake: Lake, audited: Audited) -> None:
    """What readers without Spark, such as the console, show of the audit."""
    first = _sorted_findings(lake, audited).select(*SUMMARY_FIELDS).limit(SUMMARY_FINDINGS)
    summary = {
        "run": audited.run,
        "at": SystemClock().now_ms(),
        "is_sound": audited.is_sound,
        "accepted": audited.total("accepted"),
        "found": audited.found,
        "problems": [{"kind": one.kind, "node": one.node, "detail": one.detail} for one in audited.problems],
        "findings": [row.asDict() for row in first.collect()] if audited.found else [],
    }
    lake.files.create(f"{audited.folder}/summary.json", msgspec.json.format(msgspec.json.encode(summary)))


def read_findings(lake: Lake, audited: Audited) -> Iterator[dict[str, Any]]:
    """All findings, sorted, without holding all of them in memory."""
    return (row.asDict() for row in _sorted_findings(lake, audited).toLocalIterator())


def _sorted_findings(lake: Lake, audited: Audited) -> DataFrame:
    return lake.spark.read.parquet(f"{audited.folder}/findings").orderBy("kind", *audit.KEY, "detail")
