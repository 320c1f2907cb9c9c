"""The demo, small: a table is scheduled, the store is lost, and in the end every job is accounted for."""

import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from duetime.spark.demo.processes import DemoFailed, DemoProcess, find_redis
from duetime.spark.demo.story import DAY_MS, MONTH_MS, NOTICE_MS, DemoMembers, members_table, reminders
from tests.e2e.shell import Shell, program
from tests.plugins.ci import missing_service
from tests.plugins.processes import guard, release
from tests.plugins.scale import read_scale
from tests.spark.sample_rows import START

STORY_S = 900
STORES = ["sqlite", "redis"] if read_scale() > 1 else ["sqlite"]
"""A story takes minutes. A Redis that is lost and repaired is told in test_end_to_end.py as well."""


def test_the_first_members_are_due_within_the_window(spark: SparkSession) -> None:
    members = DemoMembers(rows=1000, window_at=START, window_ms=10_000)
    assert members.soon == 20
    made = reminders(members_table(spark, members)).withColumn("at", F.unix_millis("due_at")).collect()
    soon = sorted(row["at"] - START for row in made if row["at"] < START + DAY_MS)
    assert soon == [step * 500 for step in range(20)]
    assert all(START + DAY_MS <= row["at"] < START + DAY_MS + MONTH_MS for row in made if row["at"] - START >= 10_000)
    assert len({row["id"] for row in made}) == 1000


def test_a_member_is_a_row_with_an_address(spark: SparkSession) -> None:
    table = members_table(spark, DemoMembers(rows=100, window_at=START, window_ms=1000)).where("member_id = 1")
    expected = spark.createDataFrame([(1, "member1@example.org", "free")], "member_id long, email string, plan string")
    at = F.timestamp_millis(F.lit(START + 500 + NOTICE_MS)).alias("expires_at")
    assertDataFrameEqual(table, expected.select("*", at))


@pytest.mark.timeout(STORY_S)
@pytest.mark.parametrize("store_kind", STORES)
def test_the_story_ends_well(spark: SparkSession, tmp_path: Path, store_kind: str, scale: int) -> None:
    if store_kind == "redis" and find_redis() is None:
        missing_service("redis-server is not installed")
    ran = Shell("", tmp_path).run(
        "pipeline", "demo", "--rows", str(2000 * scale), "--window", "3", "--store", store_kind, "--json"
    )
    assert ran.code == 0, ran.err
    story = ran.document
    broken, law = story["law_after_crash"], story["law_after_reconcile"]
    assert story["scheduled"] == broken["accepted"] == law["accepted"] == 2000 * scale
    assert broken["lost"] > 0
    assert law["lost"] == 0
    assert law["waiting"] == 2000 * scale - 40 * scale
    assert law["acked"] + law["dead"] == 40 * scale
    assert story["is_sound"]
    assert "Nothing was lost" in (tmp_path / "duetime-demo-report.html").read_text()


@pytest.mark.timeout(STORY_S)
def test_ctrl_c_ends_it_without_a_page_of_stacks(tmp_path: Path) -> None:
    command = [*program(), "pipeline", "demo", "--rows", "100000", "--store", "sqlite"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True)
    guard(process.pid)
    assert process.stderr is not None
    with process.stderr:
        assert any("schedule:" in line for line in process.stderr)
        os.killpg(process.pid, signal.SIGINT)
        said = process.stderr.read()
    assert process.wait(60) == 130
    release(process.pid)
    assert not any(word in said for word in ("Traceback", "ERROR", "Exception")), said


def test_what_cannot_be_is_refused_at_once(tmp_path: Path) -> None:
    shell = Shell("", tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for arguments in (["--rows", "1"], ["--store", "paper"], ["--keep", str(tmp_path / "full")]):
        ran = shell.run("pipeline", "demo", *arguments, "--json")
        assert (ran.code, json.loads(ran.err)["error"]["code"]) == (2, "invalid_request")


def test_a_child_is_ended_by_its_id(tmp_path: Path) -> None:
    child = DemoProcess("sleeper", ("sleep", "1000"), tmp_path)
    child.start()
    pid = child.pid
    guard(pid)
    os.kill(pid, 0)
    child.stop()
    release(pid)
    child.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_child_that_ignores_the_question_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duetime.spark.demo.processes.STOP_S", 0.05)
    child = DemoProcess("stubborn", ("sh", "-c", "trap '' TERM; echo ready; sleep 1000"), tmp_path)
    child.start()
    pid = child.pid
    guard(pid)
    ready = threading.Event()
    while "ready" not in child.said():
        ready.wait(0.005)
    child.stop()
    release(pid)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def test_a_child_that_ended_by_itself_is_noticed(tmp_path: Path) -> None:
    child = DemoProcess("brief", ("sh", "-c", "echo no such store; exit 3"), tmp_path)
    child.start()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(DemoFailed, match="no such store"):
        child.check_running()
    child.stop()
