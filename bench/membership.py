"""A membership table kept in step for ten days, with two kills and a wiped Redis; proved by audit.

    make bench ARGS=membership      or: make bench ARGS="membership --members 1000000"

Each day some members are new, some get another due time and some leave, and the table is scheduled once, with
on_change=replace and withdraw_missing. Two of these runs are processes that are killed (SIGKILL, once they push); the
next run ends what they began. On one day Redis loses everything and `reconcile` repairs it. A consumer acks all the
time. In the end each member whose due time has come must have been reminded once, when the last state of the table
says and not earlier; those who left, not at all; all others must wait for the time in the table; and the audit must be
sound.

The days follow each other without a pause. The due time of a member is soon (in minutes) or far (a day or
more); only members with a far one change or leave. So what must happen does not depend on how fast the machine is.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as arrow
from pyarrow import parquet
from pyspark.sql import SparkSession

from bench.core_parts.setting import DAY_MS, a_redis, meter
from bench.report import number, percentile, table
from duetime.client import connect
from duetime.spark import schedule
from duetime.spark.audit.run import Audited, ComparedStore, run_audit
from duetime.spark.lake.lake import Lake
from duetime.spark.load.batch import Changes, Scheduled
from duetime.spark.reconcile.run import run_reconcile
from duetime.spark.session import open_session
from tests.spark.conftest import jobs_in

QUEUE = "recall"
MOVED, GONE, NEW = 0.005, 0.002, 0.004
"""The shares of members that change on a day."""
SOON, LEAST_MS = 0.1, 5_000
"""The share of due times that come during the story, and the least time in which those of a day come."""

PATIENCE_S = 120
LAW = ("accepted", "waiting", "acked", "cancelled", "replaced", "lost")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Story:
    """Members and the due time of their reminder, now; and what was delivered, by id. What is due soon is due within
    `soon_ms` of the beginning.
    """

    members: int
    days: int
    soon_ms: int
    began: int = field(default_factory=now_ms)
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    due: dict[str, int] = field(default_factory=dict[str, int])
    far: set[str] = field(default_factory=set[str])
    left: set[str] = field(default_factory=set[str])
    delivered: dict[str, list[tuple[int, int]]] = field(default_factory=dict[str, list[tuple[int, int]]])

    def join(self, count: int) -> None:
        ever = len(self.due) + len(self.left)
        for index in range(ever, ever + count):
            self._place(f"recall-{index:07d}")

    def _place(self, member: str) -> None:
        is_soon, now = self.chance.random() < SOON, now_ms()
        latest = max(self.began + self.soon_ms, now + LEAST_MS)
        first, last = (now, latest) if is_soon else (now + DAY_MS, now + 365 * DAY_MS)
        self.due[member] = self.chance.randrange(first, last)
        (self.far.discard if is_soon else self.far.add)(member)

    def change(self) -> Changes:
        """What happens on a day."""
        gone, moved, new = (round(self.members * share) for share in (GONE, MOVED, NEW))
        chosen = self.chance.sample(sorted(self.far), gone + moved)
        for member in chosen[:gone]:
            del self.due[member]
            self.far.remove(member)
            self.left.add(member)
        stay = len(self.due) - moved
        for member in chosen[gone:]:
            self._place(member)
        self.join(new)
        return Changes(new=new, moved=moved, withdrawn=gone, unchanged=stay)

    def write(self, path: Path) -> None:
        due = list(self.due.values())
        parquet.write_table(arrow.table({"id": list(self.due), "due_at": due, "body": list(map(str, due))}), path)

    def wait_for_deliveries(self, consumer: threading.Thread) -> None:
        """Until everybody whose due time is soon was reminded."""
        wanted, deadline = self.due.keys() - self.far, time.monotonic() + self.soon_ms / 1000 + PATIENCE_S
        while consumer.is_alive() and not wanted <= self.delivered.keys():
            assert time.monotonic() < deadline, f"not reminded: {sorted(wanted - self.delivered.keys())[:3]}"
            time.sleep(0.1)

    def verify(self, waiting: dict[str, int]) -> None:
        assert waiting == {one: self.due[one] for one in self.far}
        assert self.delivered.keys() == self.due.keys() - self.far
        for member, times in self.delivered.items():
            assert [said for said, _ in times] == [self.due[member]], (member, times, self.due[member])
            assert times[0][1] >= self.due[member], f"{member} was reminded too early"


@contextmanager
def consuming(story: Story, url: str, journal: Path) -> Iterator[threading.Lock]:
    """A consumer in a thread. It has no lease and sends no ack while another thread has the lock."""
    lock, stop = threading.Lock(), threading.Event()
    failed: list[BaseException] = []

    def consume() -> None:
        try:
            with connect(url, journal=str(journal)) as client:
                queue = client.queue(QUEUE)
                while not stop.is_set():
                    with lock:
                        found = queue.reserve(limit=500)
                        at = now_ms()
                        for one in found:
                            story.delivered.setdefault(one.lease.id, []).append((int(one.body), at))
                        if found:
                            queue.ack(found)
                    stop.wait(0 if found else 0.02)
        except BaseException as problem:
            failed.append(problem)

    thread = threading.Thread(target=consume, name="consumer")
    thread.start()
    try:
        yield lock
        story.wait_for_deliveries(thread)
    finally:
        stop.set()
        thread.join()
    assert not failed, failed


class Pipelines:
    """On a session, with the table, the lake and the journal in one folder."""

    def __init__(self, spark: SparkSession, folder: Path, url: str) -> None:
        self._spark, self.folder, self._url = spark, folder, url
        self.journal, self.source = folder / "journal", folder / "members.parquet"
        self._lake, self._compared = Lake(spark, str(folder / "lake")), ComparedStore(url)

    def sync(self) -> Scheduled:
        return schedule(
            self._spark.read.parquet(str(self.source)), lake=str(self.folder / "lake"), url=self._url,
            journal=str(self.journal), queue=QUEUE, source="members", on_change="replace", withdraw_missing=True,
        )  # fmt: skip

    def killed_sync(self) -> None:
        """The same in another process, which is killed while it pushes."""
        known = set(self._pushing())
        arguments = ["--killed-sync", str(self.folder), self._url]
        process = subprocess.Popen([sys.executable, "-m", "bench.membership", *arguments], stdout=subprocess.DEVNULL)
        try:
            while set(self._pushing()) <= known:
                assert process.poll() is None, "the run ended before it pushed"
                time.sleep(0.005)
        finally:
            process.kill()
            process.wait()

    def _pushing(self) -> Iterator[Path]:
        return self.folder.glob("lake/batches/*/_pushing")

    def reconcile(self) -> int:
        return run_reconcile(self._lake, str(self.journal), self._compared).counts["pushed"]

    def audit(self) -> Audited:
        return run_audit(self._lake, str(self.journal), self._compared)


def keep_in_step(
    story: Story, pipelines: Pipelines, wipe: Callable[[], object], lock: threading.Lock, report: Callable[..., None]
) -> None:
    """All the days, checked one by one. Who has the lock may wipe the store."""
    kill_on, wipe_on = {story.days // 4, story.days * 3 // 4}, story.days // 2
    story.join(story.members)
    expected = Changes(new=story.members, moved=0, withdrawn=0, unchanged=0)
    for day in range(story.days + 1):
        began, note = time.perf_counter(), ""
        if day:
            expected = story.change()
        if day == wipe_on:
            with lock:
                wipe()
            note = f"wiped, {number(pipelines.reconcile())} jobs restored in {time.perf_counter() - began:.1f} s"
        story.write(pipelines.source)
        if day in kill_on:
            pipelines.killed_sync()
            note = f"killed after {time.perf_counter() - began:.1f} s"
        resumed_at = time.perf_counter()
        done = pipelines.sync()
        assert (bool(done.resumed), done.changes) == (day in kill_on, expected), (day, done, expected)
        shown = (expected.new, expected.moved, expected.withdrawn, expected.unchanged)
        report(day, *map(number, shown), f"{time.perf_counter() - resumed_at:.1f}", note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=20_000)
    parser.add_argument("--days", type=int, default=10)
    parser.add_argument("--soon", type=float, default=120, help="seconds in which every tenth member is reminded")
    parser.add_argument("--killed-sync", nargs=2, metavar=("FOLDER", "URL"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    spark = open_session("membership")
    if given.killed_sync:
        Pipelines(spark, Path(given.killed_sync[0]), given.killed_sync[1]).sync()
        return
    story, rows = Story(given.members, given.days, int(given.soon * 1000)), list[list[str]]()

    def report(*cells: object) -> None:
        rows.append([str(cell) for cell in cells])
        print(*cells, flush=True)

    with tempfile.TemporaryDirectory() as folder, a_redis() as redis:
        pipelines = Pipelines(spark, Path(folder), redis.url)
        with consuming(story, redis.url, pipelines.journal) as lock:
            keep_in_step(story, pipelines, meter(redis).flushall, lock, report)
        story.verify({job.id: job.due_at for job in jobs_in(redis.url, "default", QUEUE)})
        audited = pipelines.audit()
    assert (audited.is_sound, audited.found) == (True, {}), audited
    print(table(["day", "new", "moved", "withdrawn", "unchanged", "seconds", ""], rows))
    late = [at - said for [(said, at)] in story.delivered.values()]
    waiting = f"{number(len(story.far))} wait, {number(len(story.left))} left"
    print(f"{number(len(late))} members reminded once, {waiting}; the audit is sound:")
    print(", ".join(f"{name} {number(audited.total(name))}" for name in LAW))
    print(f"late by {number(percentile(late, 50))} ms (p50), {number(percentile(late, 99))} ms (p99)")


if __name__ == "__main__":
    main()
