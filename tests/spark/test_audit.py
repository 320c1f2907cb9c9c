"""audit: a day of history in which exactly the planted defects are found; and the law on small frames."""

import asyncio
import os
import signal
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from bench.audit_parts.history import history
from duetime.cli.options import Target
from duetime.cli.pipelines.sources import StoreSource
from duetime.console.pipeline_files import read_lake
from duetime.journal.journal import HEARTBEAT_S, HOUSEKEEPING_S
from duetime.journal.options import JournalOptions
from duetime.journal.segments import sealed_name
from duetime.model.clock import SystemClock
from duetime.model.job import Event
from duetime.model.settings import Settings
from duetime.spark.audit import transform as audit
from duetime.spark.audit.journal import open_segments, read_now
from duetime.spark.audit.run import WAIT_S, ComparedStore, read_findings, run_audit
from duetime.spark.audit.transform import Scanned
from duetime.spark.lake.lake import Lake
from duetime.spark.lifecycle.transform import lifecycle
from duetime.spark.reconcile.run import run_reconcile
from duetime.spark.schemas import EVENTS, frame
from duetime.stores.base import Push
from duetime.stores.open import open_store
from tests.e2e.shell import program
from tests.plugins.processes import guard, release
from tests.spark.frames import events, job_columns, settled
from tests.spark.history import HOUR_MS, Day, Node, a_day

DAY_MS = 24 * HOUR_MS
UPLOAD_S = 30.0
"""What a slow network may take to ship a segment."""


@pytest.fixture
def yesterday() -> int:
    return SystemClock().now_ms() - 2 * DAY_MS


def fill(path: Path, day: Day) -> str:
    """A store that holds what the day left there."""
    url = f"sqlite://{path}"

    async def push() -> None:
        store = await open_store(url)
        for queue, jobs in day.held.items():
            for answer in await store.push(queue, [Push([job]) for job in jobs]):
                assert not isinstance(answer, Exception), answer
        await store.close()

    asyncio.run(push())
    return url


def test_the_history_of_the_benchmark_is_a_table_of_events(spark: SparkSession) -> None:
    assert history(spark, 10).schema.names == EVENTS.names


def test_a_sound_day_is_sound(spark: SparkSession, tmp_path: Path, yesterday: int) -> None:
    day = a_day(tmp_path / "journal", yesterday)
    url = fill(tmp_path / "jobs.db", day)
    lake = Lake(spark, str(tmp_path / "lake"))
    audited = run_audit(lake, str(day.journal), ComparedStore(url))
    assert audited.is_sound
    assert list(read_findings(lake, audited)) == []
    total = {name: audited.total(name) for name in ("accepted", "adopted", *audit.PLACES, *audit.ENDS, "lost")}
    assert total == {
        "accepted": 39,
        "adopted": 0,
        "waiting": 3,
        "leased": 0,
        "dead": 0,
        "acked": 21,
        "cancelled": 3,
        "expired": 3,
        "replaced": 3,
        "purged": 3,
        "deleted": 3,
        "lost": 0,
    }
    assert run_audit(lake, str(day.journal)).law == audited.law, "the journal alone says the same"


def plant(day: Day) -> None:
    """Ten jobs with a defect each, and one that nobody was promised."""
    far = day.end + 365 * DAY_MS
    day.story("lost-waiting", due_at=far).accepted()
    day.story("lost-leased").accepted().delivered()
    doubled = day.story("doubled").accepted().delivered()
    doubled.attempt = 0
    doubled.delivered(after=6).ended(Event.ACKED)
    day.story("accepted-twice").accepted().accepted().delivered().ended(Event.ACKED)
    returned = day.story("returned").accepted().delivered().ended(Event.ACKED)
    day.hold(returned)
    day.story("undead").accepted().delivered().ended(Event.ACKED).delivered(after=900)
    day.story("early").accepted().delivered(after=-7).ended(Event.ACKED)
    day.hold(day.story("nobody-was-promised", due_at=far))
    again = day.story("early-again").accepted().delivered().released()
    again.delivered(after=-250).ended(Event.ACKED)
    day.story("acked-twice").accepted().delivered().ended(Event.ACKED).ended(Event.ACKED, after=101)
    day.story("two-ends").accepted().delivered().ended(Event.ACKED).ended(Event.CANCELLED, after=102)


PLANTED = {
    ("lost", "lost-waiting"),
    ("lost", "lost-leased"),
    ("duplicated", "doubled"),
    ("duplicated", "accepted-twice"),
    ("duplicated", "returned"),
    ("duplicated", "undead"),
    ("early", "early"),
    ("early", "early-again"),
    ("acked_twice", "acked-twice"),
    ("duplicated", "two-ends"),
    ("unanswered", "nobody-was-promised"),
}


def test_exactly_the_planted_defects_are_named(spark: SparkSession, tmp_path: Path, yesterday: int) -> None:
    journal = tmp_path / "journal"
    quiet = Node(journal, "node-c", per_segment=5)
    for beat in range(15):
        quiet.write(Event.HEARTBEAT, yesterday + beat * 5000)
    quiet.close(yesterday + 80_000)
    day = a_day(journal, yesterday, finish=plant)
    (journal / "node-c" / "000000000006-000000000010.journal").unlink()
    damaged = journal / "node-c" / "000000000011-000000000015.journal"
    lines = damaged.read_bytes().splitlines(keepends=True)
    damaged.write_bytes(b"".join([*lines[:2], lines[2].replace(b"heartbeat", b"heartbeet"), *lines[3:]]))
    # A segment that is there twice, in the wrong folder, is no defect.
    copied = next((journal / "node-a").glob("*.journal"))
    restored = journal / "restored"
    restored.mkdir()
    (restored / copied.name).write_bytes(copied.read_bytes())

    lake = Lake(spark, str(tmp_path / "lake"))
    audited = run_audit(lake, str(journal), ComparedStore(fill(tmp_path / "jobs.db", day)))
    assert {(one["kind"], one["id"]) for one in read_findings(lake, audited)} == PLANTED
    assert [(one.kind, one.node) for one in audited.problems] == [("damage", "node-c"), ("gap", "node-c")]
    assert "line 3: the check sum does not fit" in audited.problems[0].detail
    assert "entries 6 to 10 are missing (5)" in audited.problems[1].detail
    assert not audited.is_sound
    assert audited.total("lost") == 2
    assert audited.total("accepted") == sum(audited.total(name) for name in (*audit.PLACES, *audit.ENDS, "lost"))
    shown = read_lake(tmp_path / "lake").audit  # as the console reads it
    assert shown is not None
    assert (shown.is_sound, shown.found, len(shown.problems)) == (False, audited.found, 2)
    assert {(one.kind, one.id) for one in shown.findings} == PLANTED


def test_a_scan_is_weighed_on_full_keys(spark: SparkSession) -> None:
    entries = events(
        spark,
        {"event": "accepted", "id": "there", "born": 10, "due_at": 10},
        {"event": "accepted", "id": "reborn", "born": 10, "due_at": 10},
        {"event": "accepted", "id": "ended", "born": 10, "due_at": 10},
        {"event": "acked", "id": "ended", "born": 10, "attempt": 1, "ts": 20},
        {"event": "accepted", "id": "just now", "born": 95, "ts": 95, "due_at": 95},
        {"event": "accepted", "id": "other pool", "born": 10, "due_at": 10, "pool": "east"},
        {"event": "accepted", "id": "too old", "born": 10, "ts": 10, "due_at": 10, "ttl": 30},
    )
    jobs = settled(lifecycle(entries))
    held = [("n", "q", "there", 10, "leased"), ("n", "q", "reborn", 60, "ready"), ("n", "q", "old", 1, "dead")]
    scanned = Scanned(frame(spark, held, audit.SCAN), began_at=100, ended_at=110, pool="default", since=5, grace_ms=10)
    law: dict[str, Any] = dict.fromkeys((*audit.PLACES, *audit.ENDS, "lost", "adopted", "accepted"), 0)
    key = {"namespace": "n", "queue": "q", "batch": ""}
    expected = [
        {
            **law,
            **key,
            "pool": "default",
            "accepted": 5,
            "leased": 1,
            "acked": 1,
            "waiting": 1,
            "expired": 1,
            "lost": 1,
        },
        {**law, **key, "pool": "east", "accepted": 1, "waiting": 1},
    ]
    found = audit.law(jobs, audit.places(jobs, scanned))
    assertDataFrameEqual(found, job_columns(spark, expected, found.schema))
    findings = {(row["kind"], row["id"], row["born"]) for row in audit.findings(jobs, scanned).collect()}
    assert findings == {("lost", "reborn", 10), ("unanswered", "reborn", 60)}


def test_what_is_said_again_is_no_fault_and_no_job_that_was_finished_is_lost(spark: SparkSession) -> None:
    begun = {"event": "accepted", "born": 10, "ts": 10, "due_at": 10}
    delivered = {"event": "delivered", "born": 10, "ts": 20, "due_at": 10, "attempt": 1}
    acked = {"event": "acked", "born": 10, "ts": 30, "attempt": 1}
    again = {"reason": "repeated", "ts": 40}
    by_id = {"event": "acked", "born": 0, "reason": "repeated"}
    stories: dict[str, list[dict[str, Any]]] = {
        "all said twice": [begun, delivered, acked, begun | again, acked | again, acked | again],
        "push said again": [begun | again],
        "ack said again": [begun, delivered, acked | again],
        "cancelled meanwhile": [begun, delivered, {**acked, "event": "cancelled"}, acked | again],
        "acked by id": [begun, delivered, by_id | {"ts": 20}],
        "acked by id and put back": [begun, delivered, by_id | {"ts": 40}, {**begun, "attempt": 2, "ts": 60}],
        "acked by id, then pushed": [by_id | {"ts": 5}, begun],
        "nobody's": [by_id | {"ts": 40}, acked | again | {"born": 11}],
    }
    rows = [{"id": name, **one} for name, told in stories.items() for one in told]
    jobs = settled(lifecycle(events(spark, *rows)))
    scanned = Scanned(frame(spark, [], audit.SCAN), began_at=100, ended_at=110, pool="default")
    lost = {("lost", name) for name in ("push said again", "acked by id and put back", "acked by id, then pushed")}
    assert {(row["kind"], row["id"]) for row in audit.findings(jobs, scanned).collect()} == lost
    [law] = audit.law(jobs, audit.places(jobs, scanned)).collect()
    assert (law["accepted"], law["acked"], law["cancelled"], law["lost"]) == (7, 3, 1, 3)
    assert audit.own_findings(jobs).isEmpty()
    [alone] = audit.law(jobs).collect()
    assert (alone["accepted"], alone["acked"], alone["waiting"], alone["cancelled"]) == (7, 3, 3, 1)


def test_a_silent_node_is_no_proof(spark: SparkSession, tmp_path: Path, yesterday: int) -> None:
    day = a_day(tmp_path / "journal", yesterday, rounds=1)
    alive = Node(day.journal, "node-d")
    alive.write(Event.HEARTBEAT, yesterday)
    alive.leave_open(torn=b"0123abcd00")
    lake = Lake(spark, str(tmp_path / "lake"))
    audited = run_audit(lake, str(day.journal), ComparedStore(f"sqlite://{tmp_path}/empty.db", wait_s=0))
    assert [(one.kind, one.node) for one in audited.problems] == [("silent", "node-d")]
    assert audited.found == {"lost": 1}


def test_a_busy_node_is_waited_for(spark: SparkSession, tmp_path: Path, yesterday: int) -> None:
    day = a_day(tmp_path / "journal", yesterday, rounds=1)
    busy = Node(day.journal, "node-d")
    busy.write(Event.HEARTBEAT, yesterday)
    busy.leave_open()
    heard: list[str] = []

    def told(step: str) -> None:
        if step.startswith("waiting"):
            heard.append(step)
            busy.write(Event.HEARTBEAT, SystemClock().now_ms() + 1)
            busy.leave_open()

    compared = ComparedStore(f"sqlite://{tmp_path}/empty.db", wait_s=600)
    audited = run_audit(Lake(spark, str(tmp_path / "lake")), str(day.journal), compared, on_step=told)
    assert audited.problems == []
    assert len(heard) == 1
    assert heard[0].endswith("s for the heartbeat of node-d")


def test_a_node_that_is_assumed_lost_is_not_waited_for(spark: SparkSession, tmp_path: Path, yesterday: int) -> None:
    journal = tmp_path / "journal"
    node = Node(journal, "node-d")
    node.write(Event.HEARTBEAT, yesterday)
    node.leave_open()

    def told(step: str) -> None:
        assert not step.startswith("waiting")

    compared, lake = ComparedStore(f"sqlite://{tmp_path}/empty.db", wait_s=600), Lake(spark, str(tmp_path / "lake"))
    audited = run_audit(lake, str(journal), compared, assume_lost=["node-d"], on_step=told)
    assert (audited.problems, audited.assumed_lost) == ([], ["node-d"])
    [assumed] = run_reconcile(lake, str(journal), compared, assume_lost=["node-d"], on_step=told).assumed
    assert (assumed.node, assumed.kind) == ("node-d", "silent")


def test_the_wait_is_longer_than_a_heartbeat_takes_to_be_shipped() -> None:
    """A heartbeat after the scan is in a segment that is sealed within its age, and shipped at the next look."""
    sealed_s = JournalOptions.segment_age_s + HEARTBEAT_S
    assert timedelta(seconds=JournalOptions.segment_age_s) == Settings().journal_segment_age
    assert HEARTBEAT_S + sealed_s + HOUSEKEEPING_S + UPLOAD_S < WAIT_S < 2 * (sealed_s + HOUSEKEEPING_S)
    assert StoreSource().compared(Target(url="http://127.0.0.1:1")).wait_s == WAIT_S == ComparedStore("").wait_s
    assert StoreSource(wait="5m").compared(Target(url="http://127.0.0.1:1")).wait_s == 300


def test_a_segment_that_is_sealed_while_it_is_read_adds_nothing(spark: SparkSession, tmp_path: Path) -> None:
    node = Node(tmp_path / "journal", "node-a")
    node.write(Event.HEARTBEAT, 1_790_000_000_000)
    path = node.leave_open()
    path.with_name(sealed_name(1, 1)).write_bytes(path.read_bytes())
    lake, journal = Lake(spark, str(tmp_path / "lake")), str(tmp_path / "journal")
    now = read_now(lake, journal, open_segments(lake, journal, "run"))
    assert (now.late_rows, now.late.count(), now.damage, now.node("node-a").ranges) == (0, 0, [], [(1, 1)])


def test_an_open_segment_is_read_from_where_the_last_look_ended(spark: SparkSession, tmp_path: Path) -> None:
    lake, journal = Lake(spark, str(tmp_path / "lake")), str(tmp_path / "journal")
    Node(tmp_path / "journal", "node-z").close(1_790_000_000_000)  # so that there is something to ingest
    node = Node(tmp_path / "journal", "node-a")
    node.write(Event.HEARTBEAT, 1_790_000_000_000)
    path = node.leave_open(torn=b"0000")
    opened = open_segments(lake, journal, "run")
    first = read_now(lake, journal, opened)
    assert (first.late_rows, opened.read_bytes) == (1, path.stat().st_size - 4)

    content = path.read_bytes()[:-4]
    node.write(Event.HEARTBEAT, 1_790_000_000_005)
    node.leave_open().rename(path.with_name("second"))
    second = path.with_name("second").read_bytes()
    path.with_name("second").unlink()
    path.write_bytes(content + second + b"this is no line\n")
    again = read_now(lake, journal, opened)
    assert (again.late_rows, again.node("node-a").ranges) == (2, [(1, 2)])
    assert opened.read_bytes == path.stat().st_size, "nothing is read twice"
    assert [(one.node, one.seq) for one in again.damage] == [("node-a", 3)]


def test_ctrl_c_is_no_verdict(tmp_path: Path, yesterday: int) -> None:
    """What was read of the journal by then is not taken for the whole."""
    day = a_day(tmp_path / "journal", yesterday)
    where = ["--journal", str(day.journal), "--lake", str(tmp_path / "lake")]
    process = subprocess.Popen(
        [*program(), "pipeline", "audit", *where, "--journal-only"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    guard(process.pid)
    assert process.stderr is not None
    assert any("reading the journal" in line for line in process.stderr)
    os.killpg(process.pid, signal.SIGINT)
    answered, said = process.communicate(timeout=120)
    release(process.pid)
    assert (process.returncode, answered) == (130, ""), said
    assert not any(word in said for word in ("Traceback", "ERROR", "Exception")), said
    assert not list((tmp_path / "lake").glob("audit/*")), "no audit is on record"
