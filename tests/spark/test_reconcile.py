"""reconcile: puts back exactly what is missing, under the old born, and stops where the journal is no proof."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from duetime.journal.reader import read_journal
from duetime.model.clock import SystemClock
from duetime.model.errors import DuetimeError
from duetime.model.job import Delivery, Event, Job, NewJob
from duetime.model.names import Queue
from duetime.spark.audit.journal import JournalIncomplete
from duetime.spark.audit.run import ComparedStore, read_findings, run_audit
from duetime.spark.lake.lake import Lake
from duetime.spark.reconcile.run import run_reconcile
from duetime.stores.base import Push
from duetime.stores.open import open_store
from tests.spark.history import HOUR_MS, NAMESPACE, Day, Node, Story, a_day

MAIL = Queue(NAMESPACE, "mail")
Drain = Callable[[str, str, str], list[Delivery]]


@pytest.fixture
def yesterday() -> int:
    return SystemClock().now_ms() - 48 * HOUR_MS


def push(url: str, queue: Queue, jobs: Sequence[NewJob]) -> None:
    async def work() -> None:
        store = await open_store(url)
        for answer in await store.push(queue, [Push([job]) for job in jobs]):
            assert not isinstance(answer, DuetimeError), answer
        await store.close()

    asyncio.run(work())


def get(url: str, queue: Queue, ids: Sequence[str]) -> list[Job | None]:
    async def work() -> list[Job | None]:
        store = await open_store(url)
        found = list(await store.get(queue, ids))
        await store.close()
        return found

    return asyncio.run(work())


def lose(day: Day) -> None:
    far = day.end + 365 * 24 * HOUR_MS
    day.story("waits", due_at=far).accepted(attributes={"colour": "red"})
    day.story("leased").accepted().delivered()
    day.story("retried").accepted().delivered().released()
    day.story("dead", tries=1).accepted().delivered().ended(Event.DEAD, reason="tries")
    day.story("too-late", ttl=61_000).accepted()
    day.story("in-time", ttl=200 * 24 * HOUR_MS).accepted()
    day.story("pushed-again", due_at=far).accepted()
    # The first one of these was ended by a process that died before it told.
    day.story("pushed-twice").accepted()
    day.story("pushed-twice", due_at=far).accepted()


def test_what_is_missing_is_put_back(spark: SparkSession, tmp_path: Path, yesterday: int) -> None:
    day = a_day(tmp_path / "journal", yesterday, rounds=1, finish=lose)
    url, journal = f"sqlite://{tmp_path}/jobs.db", str(day.journal)
    for queue, jobs in day.held.items():
        push(url, queue, jobs)
    push(
        url, MAIL, [NewJob("pushed-again", b"newer"), NewJob("nobody-was-promised", b"\xff\x00", attributes={"a": "b"})]
    )
    lake, compared = Lake(spark, str(tmp_path / "lake")), ComparedStore(url)

    # The id that was pushed again was accepted by nobody either, as far as this journal knows.
    planned = run_reconcile(lake, journal, compared, dry_run=True)
    assert (planned.lost, planned.counts) == (9, {"pushed": 6, "expired": 1, "superseded": 2, "adopted": 2})
    assert get(url, MAIL, ["waits"]) == [None]
    assert len(list(day.journal.iterdir())) == 2, "a dry run leaves no node"

    done = run_reconcile(lake, journal, compared)
    assert (done.lost, done.counts) == (9, {"pushed": 6, "expired": 1, "superseded": 2, "adopted": 2})
    found = get(url, MAIL, ["waits", "leased", "retried", "dead", "in-time", "pushed-twice"])
    assert all(job is not None for job in found)
    assert [(job.id, job.attempt, job.tries) for job in found if job] == [
        ("waits", 1, 5),
        ("leased", 2, 4),
        ("retried", 2, 4),
        ("dead", 2, 1),
        ("in-time", 1, 5),
        ("pushed-twice", 1, 5),
    ]
    begun = {
        entry.id: entry
        for entry in sorted(read_journal(day.journal, only=["node-a", "node-b"]), key=lambda entry: entry.born)
        if entry.event == "accepted"
    }
    for job in found:
        assert job
        assert (job.born, job.body.decode()) == (begun[job.id].born, begun[job.id].body)
    assert [job.attributes for job in found if job] == [{"colour": "red"}, {}, {}, {}, {}, {}]
    assert found[4]
    # What is left of its time was reckoned a moment before the push.
    assert 0 <= found[4].expires_at - (begun["in-time"].ts + begun["in-time"].ttl) < 60_000
    assert get(url, MAIL, ["too-late", "pushed-again"])[0] is None

    audited = run_audit(lake, journal, compared)
    assert (list(read_findings(lake, audited)), audited.problems) == ([], [])
    assert (audited.total("adopted"), audited.total("lost")) == (2, 0)
    again = run_reconcile(lake, journal, compared)
    assert (again.lost, again.counts, again.nodes) == (0, {}, set())


def replace_unrecorded(journal: Path, url: str, yesterday: int) -> None:
    """Six jobs; the process that replaced five of them died before it wrote that into the journal."""
    before = Node(journal, "node-a")
    for job_id in ("done", "done soon", "accepted again", "cancelled", "waits", "only lost"):
        Story(before.write, job_id, yesterday, yesterday).accepted()
    before.close(yesterday + 1)

    def later(after: int, node: Node, job_id: str) -> Story:
        return Story(node.write, job_id, yesterday + after, yesterday + after)

    after = Node(journal, "node-b")
    day = 24 * HOUR_MS
    later(day, after, "done").delivered().ended(Event.ACKED)  # all jobs of that day have ended
    later(day, after, "accepted again").accepted().delivered().ended(Event.ACKED)
    later(1000, after, "done soon").delivered().ended(Event.ACKED)
    later(1000, after, "cancelled").ended(Event.CANCELLED)
    after.close(yesterday + day + 1000)
    push(url, MAIL, [NewJob("waits", b"newer")])


def test_a_job_whose_id_has_a_later_job_is_not_put_back(
    spark: SparkSession, tmp_path: Path, yesterday: int, drain: Drain
) -> None:
    url, journal = f"sqlite://{tmp_path}/jobs.db", tmp_path / "journal"
    replace_unrecorded(journal, url, yesterday)
    done = run_reconcile(Lake(spark, str(tmp_path / "lake")), str(journal), ComparedStore(url, wait_s=0))
    assert done.counts == {"pushed": 1, "superseded": 5, "adopted": 1}
    assert {delivery.lease.id for delivery in drain(url, NAMESPACE, "mail")} == {"waits", "only lost"}


def test_a_job_whose_id_has_a_later_job_counts_as_replaced(spark: SparkSession, tmp_path: Path, yesterday: int) -> None:
    url, journal = f"sqlite://{tmp_path}/jobs.db", tmp_path / "journal"
    replace_unrecorded(journal, url, yesterday)
    lake, compared = Lake(spark, str(tmp_path / "lake")), ComparedStore(url, wait_s=0)
    audited = run_audit(lake, str(journal), compared)
    assert (audited.total("lost"), audited.total("replaced")) == (1, 5)
    assert run_reconcile(lake, str(journal), compared).lost == 6
    assert run_reconcile(lake, str(journal), compared).lost == 0


def test_a_job_is_put_back_once_by_two_runs_that_overlap(
    spark: SparkSession, tmp_path: Path, yesterday: int, drain: Drain
) -> None:
    put_back_twice(spark, tmp_path, yesterday, f"sqlite://{tmp_path}/jobs.db", drain)


def test_a_job_is_put_back_once_by_two_runs_through_a_server(
    spark: SparkSession, tmp_path: Path, yesterday: int, address_of: Callable[[str], str], drain: Drain
) -> None:
    put_back_twice(spark, tmp_path, yesterday, address_of("http without journal"), drain)


def put_back_twice(spark: SparkSession, tmp_path: Path, yesterday: int, url: str, drain: Drain) -> None:
    """One run has planned when the other one puts the jobs back, and they are delivered and acked before it goes on."""
    journal, lake = tmp_path / "hosts" / "journal", Lake(spark, str(tmp_path / "lake"))
    node = Node(journal, "node-a")
    for number in range(5):
        Story(node.write, f"job-{number}", yesterday, yesterday).accepted()
    node.close(yesterday + 1)
    compared = ComparedStore(url, wait_s=0)

    def meanwhile(step: str) -> None:
        if step.startswith("repairing"):
            first = run_reconcile(lake, str(journal), compared)
            assert first.counts == {"pushed": 5}
            assert len(drain(url, NAMESPACE, "mail")) == 5

    second = run_reconcile(lake, str(journal), compared, on_step=meanwhile)
    assert (second.lost, sum(second.counts.values())) == (5, 5)
    assert drain(url, NAMESPACE, "mail") == [], "what was acked is not delivered again"


KILLED = """
import os, signal, sys
from pathlib import Path
from duetime.spark.store_view import StoreView
from duetime.spark.load.task_entries import TaskEntries

entries = TaskEntries(Path(sys.argv[2]), StoreView(sys.argv[1]), instance="reconcile-killed")
for _ in range(3):
    entries.write([b'{"ts":1,"event":"heartbeat"}'] * 25_001)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_task_that_was_killed_does_not_stop_the_next_run(
    spark: SparkSession, tmp_path: Path, yesterday: int, address_of: Callable[[str], str]
) -> None:
    url, journal = address_of("redis"), tmp_path / "journal"
    node = Node(journal, "node-a")
    Story(node.write, "job", yesterday, yesterday).accepted()
    node.close(yesterday + 1)
    assert subprocess.run([sys.executable, "-c", KILLED, url, str(journal)], check=False).returncode == -signal.SIGKILL
    done = run_reconcile(Lake(spark, str(tmp_path / "lake")), str(journal), ComparedStore(url, wait_s=0))
    assert (done.counts, len(done.nodes)) == ({"pushed": 1}, 1)


def test_a_gap_stops_it_by_name(spark: SparkSession, tmp_path: Path, yesterday: int) -> None:
    day = a_day(tmp_path / "journal", yesterday, rounds=1, finish=lose)
    node = Node(day.journal, "node-c", per_segment=2)
    for beat in range(6):
        node.write(Event.HEARTBEAT, yesterday + beat)
    node.close(yesterday + 10)
    (node.folder / "000000000003-000000000004.journal").unlink()
    lake, compared = Lake(spark, str(tmp_path / "lake")), ComparedStore(f"sqlite://{tmp_path}/jobs.db", wait_s=0)
    with pytest.raises(JournalIncomplete, match="node-c: entries 3 to 4 are missing"):
        run_reconcile(lake, str(day.journal), compared)
    assert get(compared.url, MAIL, ["waits"]) == [None]
    done = run_reconcile(lake, str(day.journal), compared, assume_lost=["node-c"])
    assert done.counts["pushed"] == 8
    assert [one.node for one in done.assumed] == ["node-c"]
    [summary] = (tmp_path / "lake" / "reconcile" / done.run).glob("summary.json")
    assert "node-c" in summary.read_text()
