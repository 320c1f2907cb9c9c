"""`duetime pipeline demo`: schedule a table, lose the store on the way, prove what is missing, repair it, show it.

Every step is the pipeline that a user would run, on real processes in a folder of its own; every number is what they
answered. Runs on the driver, with a server, a Redis and a few consumers next to it, which end with it.
"""

import sqlite3
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from duetime.client import Client
from duetime.model.clock import SystemClock
from duetime.model.errors import StoreUnavailable
from duetime.spark.audit.run import Audited, ComparedStore, run_audit
from duetime.spark.demo.processes import Consumers, DemoFailed, EmptyRedis, Server
from duetime.spark.lake.lake import Lake
from duetime.spark.load.batch import Scheduled
from duetime.spark.load.schedule import schedule
from duetime.spark.reconcile.run import Reconciled, run_reconcile
from duetime.spark.report.data import Report
from duetime.spark.report.run import Asked, make_report, write_file
from duetime.spark.stats.run import refresh_stats

# --- the members
#
# The demo's table of members: some reminders fall due within a short window, most within a month.
#
# The executors make it; the same arguments make the same table.


DAY_MS = 86_400_000
NOTICE_MS = 3 * DAY_MS
"""A member is reminded three days before the membership ends."""
MONTH_MS = 30 * DAY_MS
SOONEST = 50
"""One member in this many is due within the window, but at most MOST_SOON."""
MOST_SOON = 20_000


@dataclass(frozen=True)
class DemoMembers:
    """`rows` members, `soon` of them due evenly over `window_ms` from `window_at`, the others in the month after."""

    rows: int
    window_at: int
    window_ms: int

    @property
    def soon(self) -> int:
        return min(max(self.rows // SOONEST, 1), MOST_SOON)


def members_table(spark: SparkSession, members: DemoMembers) -> DataFrame:
    """The columns are member_id, email, plan and expires_at (timestamp)."""
    number = F.col("id")
    soon = F.lit(members.window_at) + F.floor(number * members.window_ms / members.soon)
    later = F.lit(members.window_at + DAY_MS) + F.pmod(F.xxhash64(number), F.lit(MONTH_MS))
    due = F.when(number < members.soon, soon).otherwise(later)
    plan = F.element_at(F.array(F.lit("pro"), F.lit("free"), F.lit("team")), (number % 3 + 1).cast("int"))
    return spark.range(members.rows).select(
        number.alias("member_id"),
        F.format_string("member%d@example.org", number).alias("email"),
        plan.alias("plan"),
        F.timestamp_millis(due + NOTICE_MS).alias("expires_at"),
    )


def reminders(members: DataFrame) -> DataFrame:
    """The columns that `schedule` takes: id, due_at, body."""
    return members.select(
        F.concat(F.lit("recall-"), F.col("member_id").cast("string")).alias("id"),
        (F.col("expires_at") - F.expr("interval 3 days")).alias("due_at"),
        F.struct("member_id", "email").alias("body"),
    )


NAMESPACE, QUEUE = "crm", "recall"
LOADED_PER_S = 25_000
"""The pace of a slow machine, in jobs: from it follows when the window begins, about when the load is done."""
LOOK_S = 0.2
WAIT_S = 120.0
"""How long beyond the window a step may take before the demo gives up."""
TARGET_MS = 1000
"""The crash is part of the story, so the target is generous."""


class Progress(Protocol):
    def advance_to(self, done: int, *, total: int | None = None) -> None: ...


Stage = Callable[[str], AbstractContextManager[Progress]]
"""Opens a step of the demo by its title, shows how far it is while it lasts, and says when it is done."""


@dataclass(frozen=True)
class DemoPlan:
    rows: int
    folder: Path
    report: Path
    is_redis: bool = True
    window_s: float = 30.0


@dataclass(frozen=True)
class Ending:
    """The result of the demo: the law before (`broken`) and after (`sound`) the repair, and the report."""

    scheduled: Scheduled
    broken: Audited
    repaired: Reconciled
    sound: Audited
    report: Report
    deliveries: dict[str, int]
    seconds: float


class Demo:
    """One run. The folder is the caller's, to keep or to remove."""

    def __init__(self, spark: SparkSession, plan: DemoPlan, stage: Stage, say: Callable[[str], None]) -> None:
        self._spark, self._plan, self._stage, self._say = spark, plan, stage, say
        self._lake = Lake(spark, str(plan.folder / "lake"))
        self._journal = plan.folder / "journal"
        self._redis = EmptyRedis(plan.folder) if plan.is_redis else None
        self._store = self._redis.url if self._redis else f"sqlite://{plan.folder / 'jobs.db'}"
        self._compared = ComparedStore(url=self._store, wait_s=WAIT_S)
        self._server = Server(self._store, self._journal, plan.folder)
        self._began = SystemClock().now_ms()
        lead_s = 3 + plan.rows / LOADED_PER_S
        self._members = DemoMembers(plan.rows, self._began + round(lead_s * 1000), round(plan.window_s * 1000))

    def run(self) -> Ending:
        """Raises DemoFailed, or what a pipeline raised. The processes are gone afterwards in any case."""
        started = time.monotonic()
        with ExitStack() as store:
            if self._redis:
                store.callback(self._redis.stop)
            with ExitStack() as service:
                service.callback(self._server.stop)
                scheduled = self._schedule()
                self._serve()
                consumers = service.enter_context(Consumers(self._server.api, namespace=NAMESPACE, queue=QUEUE))
                self._wait_for_half(consumers)
                self._lose_the_store()
                broken = self._audit("audit: who is missing?")
                repaired = self._reconcile()
                self._wait_for_all(consumers)
            sound = self._audit("audit: does the law hold?")
        report = self._report()
        return Ending(scheduled, broken, repaired, sound, report, dict(consumers.tally), time.monotonic() - started)

    def _schedule(self) -> Scheduled:
        table = f"{self._plan.folder}/members.parquet"
        with self._stage(f"making a table of {self._plan.rows:,} members"):
            if self._redis:
                self._redis.start()
            members_table(self._spark, self._members).write.parquet(table)
        with self._stage(f"schedule: a reminder for each, {self._members.soon:,} due within {self._plan.window_s:g} s"):
            done = schedule(
                reminders(self._spark.read.parquet(table)),
                lake=str(self._plan.folder / "lake"),
                url=self._store,
                namespace=NAMESPACE,
                queue=QUEUE,
                batch="recall-demo",
                journal=str(self._journal),
            )
        self._say(f"{done.accepted:,} jobs accepted, {done.rows / max(done.seconds, 0.001):,.0f} a second")
        return done

    def _serve(self) -> None:
        with self._stage("starting a server" + (" on a Redis that keeps nothing on disk" if self._redis else "")):
            self._server.start()
        self._say(f"store {self._store}, API {self._server.api}, journal {self._journal}")

    def _wait_for_half(self, consumers: Consumers) -> None:
        """Returns when half of what is due in the window has been acked."""
        half = max(self._members.soon // 2, 1)
        with self._stage(f"consumers at work, until {half:,} are delivered") as progress:
            deadline = time.monotonic() + self._plan.window_s + WAIT_S
            while consumers.tally["acked"] < half:
                self._check(deadline, f"{consumers.tally['acked']:,} of {half:,} reminders were delivered")
                progress.advance_to(consumers.tally["acked"], total=half)
                time.sleep(LOOK_S)

    def _lose_the_store(self) -> None:
        if self._redis:
            with self._stage("killing Redis, and starting it again: empty"):
                self._redis.kill()
                self._redis.start()
            return
        with self._stage("deleting every third row of the store behind its back"):
            lost = delete_rows(self._plan.folder / "jobs.db")
        self._say(f"{lost:,} rows are gone")

    def _audit(self, title: str) -> Audited:
        with self._stage(title):
            found = run_audit(self._lake, str(self._journal), self._compared, on_step=self._say)
        for problem in found.problems[:3]:
            self._say(f"{problem.kind} at {problem.node}: {problem.detail}")
        return found

    def _reconcile(self) -> Reconciled:
        with self._stage("reconcile: pushing again what was promised"):
            done = run_reconcile(self._lake, str(self._journal), self._compared, on_step=self._say)
        self._say(", ".join(f"{count:,} {word}" for word, count in sorted(done.counts.items())) or "nothing to do")
        return done

    def _wait_for_all(self, consumers: Consumers) -> None:
        """Returns when what was due in the window is done and only the reminders of later days wait."""
        later = self._plan.rows - self._members.soon
        with (
            self._stage("consumers finish what is due") as progress,
            Client(self._server.api, namespace=NAMESPACE) as client,
        ):
            deadline = time.monotonic() + self._plan.window_s + WAIT_S
            while True:
                left = self._left(client, later)
                if left == 0:
                    return
                self._check(deadline, f"{left:,} reminders are still not done")
                progress.advance_to(max(self._members.soon - left, 0), total=self._members.soon)
                time.sleep(LOOK_S)

    def _left(self, client: Client, later: int) -> int:
        try:
            counts = client.queue(QUEUE).counts()
        except StoreUnavailable:
            return self._members.soon
        return counts.ready + counts.leased + max(counts.delayed - later, 0)

    def _check(self, deadline: float, problem: str) -> None:
        self._server.check_running()
        if time.monotonic() > deadline:
            raise DemoFailed(f"{problem}; the server said: {self._server.said()[-400:]}")

    def _report(self) -> Report:
        with self._stage("stats and report"):
            refresh_stats(self._lake)
            now = SystemClock().now_ms()
            made = make_report(self._lake, Asked(self._began, now + 60_000, TARGET_MS), written_at=now)
            write_file(made, self._plan.report)
        return made


def delete_rows(file: Path) -> int:
    """Delete about every third waiting job and its count, as a careless hand or a half-restored backup would."""
    with closing(sqlite3.connect(file, timeout=30, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        third = "place = 0 AND abs(unicode(substr(id, -1))) % 3 = 0"
        by_queue = connection.execute(f"SELECT queue, count(*) FROM jobs WHERE {third} GROUP BY queue").fetchall()
        connection.execute(f"DELETE FROM jobs WHERE {third}")
        for queue, count in by_queue:
            connection.execute("UPDATE queues SET jobs = jobs - ? WHERE id = ?", (count, queue))
        connection.execute("COMMIT")
    return sum(count for _, count in by_queue)
