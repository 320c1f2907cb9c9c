"""A later run does not grow with history: what it does not need is taken away before it runs, and nobody misses it."""

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from duetime.model.clock import SystemClock
from duetime.model.job import Event, NewJob
from duetime.model.names import Queue
from duetime.spark.audit.run import ComparedStore, read_findings, run_audit
from duetime.spark.ingest.run import run_ingest
from duetime.spark.lake.files import LocalFiles
from duetime.spark.lake.lake import Lake, Table
from duetime.spark.lifecycle import job_files
from duetime.spark.lifecycle import run as lifecycle_run
from duetime.spark.lifecycle import transform as lifecycle
from duetime.spark.lifecycle.run import run_lifecycle
from duetime.spark.reconcile.run import run_reconcile
from duetime.spark.stats.run import refresh_stats
from tests.spark.history import HOUR_MS, NAMESPACE, Node, Story
from tests.spark.test_reconcile import get, push

DAY_MS = 24 * HOUR_MS
MAIL = Queue(NAMESPACE, "mail")


@pytest.fixture
def first_day() -> int:
    """Midnight, some days ago."""
    return (SystemClock().now_ms() // DAY_MS - 5) * DAY_MS


def acked(node: Node, name: str, start: int, jobs: int = 12) -> None:
    """Jobs of one day, ten minutes apart, all of them done."""
    for number in range(jobs):
        born = start + HOUR_MS + number * 600_000
        Story(node.write, f"{name}-{number}", born, born + 60_000).accepted().delivered().ended(Event.ACKED)


@contextmanager
def hidden(*tables: Table, date: str = "") -> Iterator[None]:
    """Takes the files away that the tables have at this moment, of one day or of all."""
    moved: list[tuple[Path, Path]] = []
    for table in tables:
        for file in table.manifest().files:
            if date in file.date:
                path = Path(f"{table.folder}/{file.path}".removeprefix("file://"))
                moved.append((path, path.with_name(f".{path.name}.hidden")))
                path.rename(moved[-1][1])
    assert moved
    try:
        yield
    finally:
        for path, aside in moved:
            aside.rename(path)


def day_name(at: int) -> str:
    return str(datetime.fromtimestamp(at / 1000, UTC).date())


def test_old_events_are_not_read_again_not_even_for_a_purge(
    spark: SparkSession, tmp_path: Path, first_day: int
) -> None:
    lake, journal = Lake(spark, str(tmp_path / "lake")), tmp_path / "journal"
    node = Node(journal, "node-a")
    acked(node, "early", first_day)
    purged_at = first_day + 20 * HOUR_MS
    node.write(Event.PURGED, purged_at, namespace=NAMESPACE, queue="trash", reason="delayed,ready")
    node.close(first_day + DAY_MS)
    run_ingest(lake, str(journal))
    run_lifecycle(lake)

    # The entries of another node come later: one of its jobs was there when the queue was purged.
    other = Node(journal, "node-b")
    Story(other.write, "thrown", first_day + HOUR_MS, purged_at + HOUR_MS, queue="trash").accepted()
    acked(other, "late", first_day + DAY_MS)
    other.close(first_day + 2 * DAY_MS)
    with hidden(lake.events):
        run_ingest(lake, str(journal))
        run_lifecycle(lake)
    assertDataFrameEqual(
        lake.jobs.read().drop("date"), lifecycle.lifecycle(lake.events.read()).drop("date"), ignoreNullable=True
    )
    assert [row["outcome"] for row in lake.jobs.read().where("id = 'thrown'").collect()] == ["purged"]


def test_only_the_files_with_touched_jobs_are_written_again(
    spark: SparkSession, tmp_path: Path, first_day: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle_run, "ROWS_PER_FILE", 8)
    lake, journal = Lake(spark, str(tmp_path / "lake")), tmp_path / "journal"

    def run_with(name: str, write: Callable[[Node], None]) -> None:
        node = Node(journal, name)
        write(node)
        node.close(first_day + DAY_MS)
        run_ingest(lake, str(journal))
        run_lifecycle(lake)

    run_with("node-a", lambda node: acked(node, "first", first_day))
    run_with("node-b", lambda node: acked(node, "second", first_day))
    files = set(lake.jobs.manifest().files)
    assert len(files) > 2, "neighbours in time share a file"

    # A second ack of one job.
    born = first_day + HOUR_MS

    def again(node: Node) -> None:
        Story(node.write, "first-0", born, born, attempt=1).ended(Event.ACKED)

    run_with("node-c", again)
    kept = files & set(lake.jobs.manifest().files)
    assert len(files) - len(kept) == 1

    # A day with too many files becomes a few when one of them is touched.
    monkeypatch.setattr(lifecycle_run, "CROWDED", 2)
    monkeypatch.setattr(lifecycle_run, "ROWS_PER_FILE", 500_000)
    run_with("node-d", again)
    assert len(lake.jobs.manifest().files) == 1
    assertDataFrameEqual(
        lake.jobs.read().drop("date"), lifecycle.lifecycle(lake.events.read()).drop("date"), ignoreNullable=True
    )


def test_a_run_takes_few_spark_jobs(spark: SparkSession, tmp_path: Path, first_day: int) -> None:
    """Each costs up to half a second on a small lake. A step with nothing to do takes none."""
    context: Any = spark.sparkContext
    lake, journal, url = Lake(spark, str(tmp_path / "lake")), tmp_path / "journal", f"sqlite://{tmp_path / 'jobs.db'}"
    compared = ComparedStore(url, pool="default", wait_s=0)
    steps: dict[str, Callable[[], object]] = {
        "ingest": lambda: run_ingest(lake, str(journal)),
        "lifecycle": lambda: run_lifecycle(lake),
        "stats": lambda: refresh_stats(lake),
        "audit": lambda: run_audit(lake, str(journal), compared),
    }

    def spark_jobs(step: Callable[[], object]) -> int:
        scheduler = context._jsc.sc().dagScheduler()
        before: int = scheduler.numTotalJobs()
        step()
        return scheduler.numTotalJobs() - before

    def run_with(name: str, start: int) -> dict[str, int]:
        node = Node(journal, name)
        acked(node, name, start)
        node.write(Event.PURGED, start + 2 * HOUR_MS, namespace=NAMESPACE, queue="trash", reason="ready")
        node.close(start + DAY_MS)
        return {name: spark_jobs(step) for name, step in steps.items()}

    run_with("node-a", first_day)
    later = run_with("node-b", first_day + HOUR_MS)
    most = {"ingest": 4, "lifecycle": 9, "stats": 5, "audit": 10}
    assert {name: jobs for name, jobs in later.items() if jobs > most[name]} == {}
    assert [spark_jobs(steps[name]) for name in ("ingest", "lifecycle", "stats")] == [0, 0, 0]


class MeetingReaders(LocalFiles):
    """Whoever reads a file of a table waits until somebody else reads one, too."""

    def __init__(self) -> None:
        self._first, self._second = threading.Lock(), threading.Event()

    def read(self, path: str, start: int = 0) -> bytes:
        if path.endswith(".parquet"):
            if not self._first.acquire(blocking=False):
                self._second.set()
            assert self._second.wait(20), "files are read one after the other"
        return super().read(path, start)


@pytest.mark.parametrize("footer_bytes", [job_files.FOOTER_BYTES, 100])
def test_what_a_file_of_jobs_has_is_known_from_its_end(
    spark: SparkSession, tmp_path: Path, first_day: int, monkeypatch: pytest.MonkeyPatch, footer_bytes: int
) -> None:
    monkeypatch.setattr(job_files, "FOOTER_BYTES", footer_bytes)
    lake, journal = Lake(spark, str(tmp_path / "lake")), tmp_path / "journal"
    node, born, next_day = Node(journal, "node-a"), first_day + HOUR_MS, first_day + DAY_MS + HOUR_MS
    acked(node, "done", first_day)
    Story(node.write, "waiting", next_day, next_day).accepted()
    Story(node.write, "acked by id", 0, next_day + DAY_MS).ended(Event.ACKED)
    node.close(first_day + 2 * DAY_MS)
    run_ingest(lake, str(journal))
    run_lifecycle(lake)
    done = lake.jobs.read().where("born > 0").agg({"first_delivered_at": "min", "acked_at": "max"}).collect()[0]

    # The notes are gone, and no row of any file can be read. The ends of several files are read at a time.
    lake.files = MeetingReaders()
    folder = lake.files.path(lake.jobs.folder)
    shutil.rmtree(folder / job_files.FOLDER)
    manifest = lake.jobs.manifest()
    for file in manifest.files:
        path = folder / file.path
        footer = int.from_bytes(path.read_bytes()[-8:-4], "little") + 8
        path.write_bytes(bytes(file.bytes - footer) + path.read_bytes()[-footer:])
    found = job_files.job_files(lake, manifest)
    by_day = {path.partition("/")[0]: file for path, file in found.items()}
    assert len(by_day) == len(found) == 3
    begun_at, done_at = done["min(first_delivered_at)"], done["max(acked_at)"]
    last = born + 11 * 600_000
    assert by_day[f"date={day_name(first_day)}"] == job_files.JobFile(12, 0, born, last, begun_at, done_at)
    assert by_day[f"date={day_name(next_day)}"] == job_files.JobFile(1, 1, next_day, next_day)
    assert by_day["date=1970-01-01"].open, "an ack without a job may be the end of one that is still to come"


def test_days_on_which_every_job_has_ended_are_summed_once(spark: SparkSession, tmp_path: Path, first_day: int) -> None:
    lake, journal, compared = (
        Lake(spark, str(tmp_path / "lake")),
        tmp_path / "journal",
        ComparedStore(f"sqlite://{tmp_path}/db"),
    )
    node = Node(journal, "node-a")
    acked(node, "early", first_day)
    Story(node.write, "twice", first_day + HOUR_MS, first_day + HOUR_MS).accepted().delivered().ended(
        Event.ACKED
    ).ended(Event.ACKED, after=200)
    node.close(first_day + DAY_MS)
    run_ingest(lake, str(journal))
    run_lifecycle(lake)
    refresh_stats(lake)
    assert run_audit(lake, str(journal), compared).found == {"acked_twice": 1}

    later = Node(journal, "node-b")
    acked(later, "late", first_day + DAY_MS)
    far = first_day + 400 * DAY_MS
    Story(later.write, "lost", first_day + DAY_MS + HOUR_MS, far).accepted()
    later.close(first_day + 2 * DAY_MS)
    with hidden(lake.events, lake.jobs, date=day_name(first_day)):
        run_ingest(lake, str(journal))
        run_lifecycle(lake)
        refresh_stats(lake)
        audited = run_audit(lake, str(journal), compared)
        assert (audited.total("accepted"), audited.total("acked"), audited.total("lost")) == (26, 25, 1)
        assert [(one["kind"], one["id"]) for one in read_findings(lake, audited)] == [
            ("acked_twice", "twice"),
            ("lost", "lost"),
        ]
        # The body is looked for on the day on which the job was accepted.
        done = run_reconcile(lake, str(journal), compared)
        assert done.counts == {"pushed": 1}
    [job] = get(compared.url, MAIL, ["lost"])
    assert job
    assert job.body == b"body of lost"
    assert run_audit(lake, str(journal), compared).found == {"acked_twice": 1}


def test_a_job_that_the_store_holds_after_its_end_is_found_in_a_closed_day(
    spark: SparkSession, tmp_path: Path, first_day: int
) -> None:
    lake, journal, compared = (
        Lake(spark, str(tmp_path / "lake")),
        tmp_path / "journal",
        ComparedStore(f"sqlite://{tmp_path}/db"),
    )
    node = Node(journal, "node-a")
    acked(node, "early", first_day)
    node.close(first_day + DAY_MS)
    push(compared.url, MAIL, [NewJob("early-3", b"", due_at=first_day, born=first_day + HOUR_MS + 3 * 600_000)])
    audited = run_audit(lake, str(journal), compared)
    assert [(one["kind"], one["id"], one["detail"]) for one in read_findings(lake, audited)] == [
        ("duplicated", "early-3", "still in the store after it was acked")
    ]
    assert run_reconcile(lake, str(journal), compared).counts == {}, "what has ended is not adopted"
