"""The pipeline `audit`: scan the store, read the journal past that moment, compare the two.

The order makes the answer certain during live traffic: the store is scanned first, then the journal is read until every
node has written everything up to the end of the scan. What was found stays in `lake/audit/<run>/`. Runs on the driver.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from io import BytesIO
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from duetime.journal.journal import HOUSEKEEPING_S
from duetime.journal.options import JournalOptions
from duetime.journal.registration import RegisteredNode
from duetime.model.clock import SystemClock
from duetime.model.ids import IdMaker
from duetime.spark.audit import transform as audit
from duetime.spark.audit.journal import JournalNow, JournalProblem, Wait, forget_whole_nodes, read_until
from duetime.spark.audit.scan import birthday, closed_sums, scan
from duetime.spark.audit.transform import SCAN, Scanned
from duetime.spark.ingest.about import about_events, purge_frame
from duetime.spark.lake.lake import DataFile, Lake, Manifest
from duetime.spark.lifecycle import transform as lifecycle
from duetime.spark.lifecycle.job_files import job_files, touched_minutes, touches
from duetime.spark.lifecycle.run import run_lifecycle
from duetime.spark.load.options import LoadOptions
from duetime.spark.schemas import JOBS
from duetime.spark.session import whole_file_session
from duetime.spark.store_view import StoreView

parquet: Any = pq

WAIT_S = 2 * JournalOptions.segment_age_s + HOUSEKEEPING_S
"""How long to wait for the nodes' next heartbeat. It is written within 5 s, but a node that ships its journal seals the
segment first, which takes as long as a segment may grow old, and the next round of housekeeping ships it. The rest is
for a busy machine and a slow network: calling a node silent means that nothing is proved.
"""

BROADCAST_LOST = 100_000
"""At most this many lost jobs are sent to every executor to look for later jobs with their ids."""
FINDINGS_AT_ONCE = 10_000
SUMMARY_FINDINGS = 50
SUMMARY_FIELDS = ("kind", "namespace", "queue", "id", "batch", "detail")

OnStep = Callable[[str], None]


@dataclass(frozen=True)
class ComparedStore:
    """The store to compare the journal with. `namespaces` narrows everything to some of them; none means all. `pool` is
    the store's name in the journal; without it the store or the server is asked.

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

    @property
    def verdict(self) -> str:
        """The words that every output uses. Missing entries leave everything unproved."""
        return "Sound" if self.is_sound else "Not proved" if self.problems else "Not sound"

    def total(self, name: str) -> int:
        return sum(row[name] for row in self.law)


@dataclass(frozen=True)
class Evidence:
    """What is compared: the journal, the jobs that follow from it, and the scan of the store, if there is one.

    `jobs` are the rows of files that have an open job. `closed` are the other files of `manifest`, in which every job
    has ended: they are looked at only for jobs that the store holds all the same. `namespaces` narrows everything, if
    there are any.
    """

    journal: JournalNow
    jobs: DataFrame
    scanned: Scanned | None
    manifest: Manifest
    closed: Sequence[DataFile] = ()
    namespaces: Sequence[str] = ()

    def narrowed(self, rows: DataFrame) -> DataFrame:
        return rows.where(F.col("namespace").isin(*self.namespaces)) if self.namespaces else rows


def run_audit(
    lake: Lake,
    journal: str,
    compared: ComparedStore | None = None,
    *,
    assume_lost: Sequence[str] = (),
    forget_ended: bool = False,
    on_step: OnStep = lambda step: None,
) -> Audited:
    """Changes nothing but the lake. Safe to run at any time, also during live traffic.

    With `forget_ended` it also removes nodes from the store's registry that have ended and are whole in the lake.
    """
    run = IdMaker().make()
    try:
        evidence = gather(lake, journal, compared, run=run, assume_lost=assume_lost, on_step=on_step)
        on_step("weighing")
        audited = weigh(lake, evidence, run=run, assume_lost=assume_lost)
        if compared and forget_ended:
            with closing(StoreView(compared.url, compared.token)) as view:
                forget_whole_nodes(lake, evidence.journal, view)
        return audited
    finally:
        lake.files.delete(lake.scratch(run))


def gather(
    lake: Lake,
    journal: str,
    compared: ComparedStore | None,
    *,
    run: str,
    assume_lost: Sequence[str] = (),
    on_step: OnStep = lambda step: None,
) -> Evidence:
    """Scan the store, then read the journal past that moment, then bring the jobs up to the journal.

    Nodes in `assume_lost` are not waited for.
    """
    scanned: Scanned | None = None
    registered: Callable[[], Mapping[str, RegisteredNode]] = dict

    def awaited(now: JournalNow) -> Sequence[str]:
        nodes = now.awaited(scanned.pool, scanned.ended_at) if scanned else ()
        return [name for name in nodes if name not in assume_lost]

    with ExitStack() as stack:
        if compared:
            on_step("scanning the store")
            view = stack.enter_context(closing(StoreView(compared.url, compared.token)))
            scanned, registered = scan_store(lake, view, compared, run), view.registered
        on_step("reading the journal")
        wait = Wait(compared.wait_s if compared else 0, on_step)
        now = read_until(lake, journal, run, registered=registered, awaited=awaited, wait=wait)
    on_step("following the jobs")
    run_lifecycle(lake)
    return follow(lake, now, scanned, compared.namespaces if compared else (), run=run)


def follow(lake: Lake, now: JournalNow, scanned: Scanned | None, namespaces: Sequence[str], *, run: str) -> Evidence:
    """The jobs as the journal has them at this moment, without those that have ended in peace."""
    manifest = lake.jobs.manifest()
    facts = job_files(lake, manifest)
    is_touched = touches(facts, touched_minutes(now.late) if now.late_rows else ())
    weighed = {file for file in manifest.files if facts[file.path].open or is_touched(file)}
    table = lake.jobs.read(manifest=manifest, only=lambda file: file in weighed)
    jobs = jobs_now(lake, now, table, f"{lake.scratch(run)}/late-jobs")
    closed = [file for file in manifest.files if file not in weighed]
    evidence = Evidence(now, jobs, scanned, manifest, closed, namespaces)
    return replace(evidence, jobs=evidence.narrowed(jobs))


def scan_store(lake: Lake, view: StoreView, compared: ComparedStore, run: str) -> Scanned:
    """Write down what the store holds, and when."""
    record, began = view.journaling(), view.info()
    wanted = {
        queue: counted
        for queue, counted in view.counts().items()
        if not compared.namespaces or queue.namespace in compared.namespaces
    }
    folder = f"{lake.scratch(run)}/scan"
    scan(lake.spark, LoadOptions(compared.url, token=compared.token), wanted).write.parquet(folder)
    return Scanned(
        jobs=lake.spark.read.schema(SCAN).parquet(folder),
        began_at=began.now,
        ended_at=view.now(),
        pool=compared.pool or record.pool,
        since=record.since,
        grace_ms=compared.grace_ms,
        epoch=began.epoch,
    )


def jobs_now(lake: Lake, now: JournalNow, table: DataFrame, folder: str) -> DataFrame:
    """JOBS with what the open segments add to the table; only the jobs that they are about are computed again.

    Those are written to `folder`, because several queries follow, and each would plan and compute them again.
    """
    if not now.late_rows:
        return table
    late = now.late
    states = lifecycle.event_states(late)
    keys = states.select(*audit.KEY).distinct()
    purges = lifecycle.purges_by_queue(purge_frame(lake.spark, now.purges))
    touched = table.join(keys, on=list(audit.KEY), how="left_semi").select(*table.columns)
    merged = lifecycle.merge(states.unionByName(lifecycle.job_states(touched)))
    lifecycle.finish(merged, lifecycle.batch_names(late, touched), purges).write.parquet(folder)
    fresh = lake.spark.read.schema(JOBS).parquet(folder)
    keys = fresh.select(*audit.KEY)
    rest = table.join(keys, on=list(audit.KEY), how="left_anti").select(*table.columns)
    if len(now.purges) == len(about_events(now.manifest).purges):
        return rest.unionByName(fresh)
    living = rest.where("ends = 0")
    again = lifecycle.finish(lifecycle.job_states(living), lifecycle.batch_names(living), purges)
    return rest.where("ends != 0").unionByName(again).unionByName(fresh)


def weigh(lake: Lake, evidence: Evidence, *, run: str, assume_lost: Sequence[str] = ()) -> Audited:
    """Write down the law and the findings, and count them."""
    folder = f"{lake.folder}/audit/{run}"
    scanned, now = evidence.scanned, evidence.journal
    closed = evidence.narrowed(closed_sums(lake, evidence.manifest, evidence.closed))
    placed = write_places(lake, evidence, f"{lake.scratch(run)}/places")
    audit.law(evidence.jobs, placed.rows, closed).coalesce(1).write.parquet(f"{folder}/law")
    counted = Observation()
    kinds = [F.count_if(F.col("kind") == kind).alias(kind) for kind in audit.KINDS]
    findings(lake, evidence, placed, closed).observe(counted, *kinds).write.parquet(f"{folder}/findings")
    problems = now.problems(scanned.pool, scanned.ended_at) if scanned else now.problems()
    audited = Audited(
        run=run,
        folder=folder,
        law=_read_law(lake, f"{folder}/law"),
        found={kind: count for kind, count in counted.get.items() if count},
        problems=[one for one in problems if one.node not in assume_lost],
        assumed_lost=sorted(set(assume_lost)),
    )
    _write_summary(lake, audited)
    return audited


def _read_law(lake: Lake, folder: str) -> list[dict[str, Any]]:
    """Read by the driver itself: the law has a row per queue and batch, and all of them are wanted."""
    files = [lake.files.read(file.path) for file in lake.files.list(folder) if file.name.endswith(".parquet")]
    rows: list[dict[str, Any]] = [row for file in files for row in parquet.read_table(BytesIO(file)).to_pylist()]
    return sorted(rows, key=itemgetter(*audit.LAW_KEY))


class Placed(NamedTuple):
    """PLACED, how many of its jobs the store lacks, and the days on which its strays were born."""

    rows: DataFrame
    lost: int
    stray_days: set[str]


def write_places(lake: Lake, evidence: Evidence, folder: str) -> Placed:
    """Written aside: several steps need it, and jobs and scan are compared once."""
    seen, is_lost = Observation(), F.col("outcome") == audit.LOST
    audit.places(evidence.jobs, evidence.scanned).observe(
        seen,
        F.count_if(is_lost).alias("lost"),
        F.min(F.when(is_lost, F.col("born"))).alias("first"),
        F.concat_ws("\n", F.collect_set(F.when(F.col("outcome") == audit.STRAY, birthday()))).alias("stray_days"),
    ).write.parquet(folder)
    placed = lake.spark.read.schema(audit.PLACED).parquet(folder)
    lost_jobs, first, days = (seen.get[name] for name in ("lost", "first", "stray_days"))
    if lost_jobs:
        lost = placed.where(is_lost)
        few = F.broadcast(lost) if lost_jobs <= BROADCAST_LOST else lost
        aside, counted = f"{folder}-superseded", Observation()
        ended = audit.superseded(few, born_after(lake, evidence, first))
        ended.observe(counted, F.count(F.lit(1)).alias("jobs")).write.parquet(aside)
        if counted.get["jobs"]:
            placed = audit.with_superseded(placed, lake.spark.read.schema(audit.JOB_KEY).parquet(aside))
    return Placed(placed, lost_jobs, set(days.splitlines()))


def born_after(lake: Lake, evidence: Evidence, first: int) -> DataFrame:
    """KEY of all jobs that were born after this time: open, closed, and those that only the store knows."""
    scanned, facts = evidence.scanned, job_files(lake, evidence.manifest)
    assert scanned is not None
    chosen = {file for file in evidence.closed if facts[file.path].last > first}
    closed = lake.jobs.read(manifest=evidence.manifest, only=lambda file: file in chosen)
    held = scanned.jobs.withColumn("pool", F.lit(scanned.pool))
    known = evidence.jobs.select(*audit.KEY).unionByName(closed.select(*audit.KEY))
    return known.unionByName(held.select(*audit.KEY)).where(F.col("born") > first)


def findings(lake: Lake, evidence: Evidence, placed: Placed, closed: DataFrame | None = None) -> DataFrame:
    """FINDING; of closed files, only those of days are read from which the store holds a job that is not open."""
    scanned = evidence.scanned
    if scanned is None or not (placed.lost or placed.stray_days):
        return audit.own_findings(evidence.jobs, scanned.since if scanned else 0, closed)
    chosen = {file for file in evidence.closed if file.date in placed.stray_days}
    ended = evidence.narrowed(lake.jobs.read(manifest=evidence.manifest, only=lambda file: file in chosen))
    return audit.findings(evidence.jobs, scanned, placed.rows, closed, ended)


def _write_summary(lake: Lake, audited: Audited) -> None:
    """What readers without Spark, such as the console, show of the audit."""
    first = first_findings(lake, audited, SUMMARY_FINDINGS)
    summary = {
        "run": audited.run,
        "at": SystemClock().now_ms(),
        "is_sound": audited.is_sound,
        "accepted": audited.total("accepted"),
        "found": audited.found,
        "problems": [{"kind": one.kind, "node": one.node, "detail": one.detail} for one in audited.problems],
        "findings": [{name: one[name] for name in SUMMARY_FIELDS} for one in first],
    }
    lake.files.create(f"{audited.folder}/summary.json", msgspec.json.format(msgspec.json.encode(summary)))


def read_findings(lake: Lake, audited: Audited) -> Iterator[dict[str, Any]]:
    """All findings, sorted, without holding all of them in memory."""
    if not audited.found:
        return
    aside = f"{lake.scratch(audited.run)}/sorted"
    try:
        _sorted_findings(lake, audited).write.parquet(aside)
        session: Any = whole_file_session(lake.spark)
        for file in lake.files.list(aside):
            if file.name.endswith(".parquet"):
                for batch in session.read.parquet(file.path).toArrow().to_batches(max_chunksize=FINDINGS_AT_ONCE):
                    yield from batch.to_pylist()
    finally:
        lake.files.delete(lake.scratch(audited.run))


def first_findings(lake: Lake, audited: Audited, limit: int) -> list[dict[str, Any]]:
    rows = _sorted_findings(lake, audited).limit(limit).collect() if audited.found else []
    return [row.asDict() for row in rows]


def _sorted_findings(lake: Lake, audited: Audited) -> DataFrame:
    return lake.spark.read.parquet(f"{audited.folder}/findings").orderBy("kind", *audit.KEY, "detail")
