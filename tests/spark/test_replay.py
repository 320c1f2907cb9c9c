"""Replay: the past's arrivals, pushed again at their rate or simulated."""

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from duetime.client import connect
from duetime.model.job import Priority, State
from duetime.spark.lake.lake import Lake
from duetime.spark.replay.drive import (
    Arrival,
    SimulatedOutcome,
    arrivals,
    arrivals_by_second,
    drive,
    percentile,
    simulate_consumers,
)
from tests.e2e.shell import Shell
from tests.spark.sample_rows import START, day_of, event, events, job, jobs

COLUMNS = "offset_ms long, delay_ms long, priority int, ttl_ms long, tries int, size int, run_ms long, body binary"


def accepted(job_id: str, offset: int, delay: int = 0, **fields: object) -> dict[str, object]:
    at = START + offset
    known = {"id": job_id, "born": at, "due_at": at + delay, "tries": 5, "priority": 2, "body": b"abc"}
    return event("accepted", at, **{**known, **fields})


def test_arrivals_of_the_window_in_their_order(spark: SparkSession) -> None:
    happened = events(
        spark,
        accepted("late", 2000, 500, ttl=9, body=None),
        accepted("first", 0, priority=1),
        {**accepted("same", 2000), "event": "replaced"},
        {**accepted("other", 1), "event": "kept"},
        accepted("before", -1),
        accepted("after", 3000),
        accepted("put back", 2500, attempt=1),
        accepted("said again", 2600, reason="repeated"),
    )
    known = jobs(spark, job("first", START, run_ms=40), job("first", START + 7, run_ms=99))
    assertDataFrameEqual(
        arrivals(happened, known, start_at=START, end_at=START + 3000),
        spark.createDataFrame(
            [
                (0, 0, 1, 0, 5, 3, 40, b"abc"),
                (2000, 500, 2, 9, 5, 0, None, None),
                (2000, 0, 2, 0, 5, 3, None, b"abc"),
            ],
            COLUMNS,
        ),
        checkRowOrder=True,
    )


def test_arrivals_by_second(spark: SparkSession) -> None:
    rows = [(offset, 0, 2, 0, 5, 10, None, None) for offset in (0, 999, 1000)]
    assertDataFrameEqual(
        arrivals_by_second(spark.createDataFrame(rows, COLUMNS)),
        spark.createDataFrame([(0, 2, 20), (1, 1, 10)], "second long, jobs long, bytes long"),
    )


def test_pushes_keep_their_gaps_and_their_order(tmp_path: Path) -> None:
    with connect(f"sqlite://{tmp_path / 'jobs.db'}") as client:
        queue = client.queue("load-test")
        past = [
            Arrival(0, 3_600_000, priority=1, ttl_ms=7_200_000, tries=3, body=b"a"),
            *(Arrival(10, 3_600_000, body=b"b") for _ in range(600)),
            Arrival(3000, 3_600_000, body=b"c"),
        ]
        before = time.time_ns() // 1_000_000
        done = drive(past, queue, speed=10.0, prefix="r1")
        assert (done.pushed, queue.counts().delayed) == (602, 602)
        assert len(done.calls_ms) == 3, "one call per tick and 500 jobs"
        first, last = queue.get("r1-000000000"), queue.get("r1-000000601")
    assert (first.priority, first.tries, first.expires_at - first.born) == (Priority.HIGH, 3, 720_000)
    assert first.due_at - first.born == 360_000
    assert last.born - before >= 300, "never before its moment"
    assert percentile(done.calls_ms, 0.99) >= percentile(done.calls_ms, 0.5) > 0


def test_more_consumers_are_less_late() -> None:
    due, runs = [0.0, 0.0, 0.0, 100.0], [60.0] * 4
    assert simulate_consumers(due, runs, 1) == SimulatedOutcome(1, 80.0, 120.0, 120.0, 120.0, 1.0)
    assert simulate_consumers(due, runs, 3) == SimulatedOutcome(3, 0.0, 0.0, 0.0, 0.0, 240 / 480)


@pytest.fixture
def shell(spark: SparkSession, tmp_path: Path) -> Shell:
    """A shell beside a lake with three arrivals in crm/recall."""
    lake = Lake(spark, str(tmp_path / "lake"))
    happened = events(spark, *(accepted(f"j{n}", n * 100, 50, body=b"secret") for n in range(3)))
    known = jobs(spark, *(job(f"j{n}", START + n * 100, run_ms=150) for n in range(3)))
    for table, rows in ((lake.events, happened), (lake.jobs, known)):
        table.publish(table.stage(rows), after=table.manifest(), about={})
    return Shell(f"sqlite://{tmp_path / 'jobs.db'}", tmp_path)


def window() -> list[str]:
    return ["--namespace", "crm", "--since", str(day_of(START)), "--until", str(START + 60_000), "--json"]


def test_the_command_looks_first_then_pushes_and_simulates(shell: Shell, tmp_path: Path) -> None:
    looked = shell.ok("pipeline", "replay", "recall", *window(), "--to", "load-test", "--dry-run").document
    assert (looked["jobs"], looked["bytes"], looked["peak_per_s"]) == (3, 18, 3.0)
    pushed = shell.ok("pipeline", "replay", "recall", *window(), "--to", "load-test", "--speed", "10").document
    assert pushed["pushed"] == 3
    shell.ok("pipeline", "replay", "recall", *window(), "--to", "real", "--speed", "10", "--bodies")
    with connect(shell.url, namespace="crm") as client:
        assert [job.body for job in client.queue("load-test").list_jobs(State.READY).jobs] == [b" " * 6] * 3
        assert [job.body for job in client.queue("real").list_jobs(State.READY).jobs] == [b"secret"] * 3
        assert {status.queue.name for status in client.queues()} == {"load-test", "real"}, "the past is not touched"
    simulated = shell.ok("pipeline", "replay", "recall", *window(), "--consumers", "1,2").document
    assert [(one["consumers"], one["worst_ms"]) for one in simulated["outcomes"]] == [(1, 100.0), (2, 0.0)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "recall"], "--to must name another queue"),
        ([], "must be given"),
        (["--to", "a", "--consumers", "1"], "cannot be combined"),
        (["--to", "a", "--speed", "0"], "greater than 0"),
    ],
)
def test_what_must_not_be_is_refused_before_anything_runs(tmp_path: Path, arguments: list[str], message: str) -> None:
    ran = Shell(f"sqlite://{tmp_path / 'jobs.db'}", tmp_path).run("pipeline", "replay", "recall", *window(), *arguments)
    assert ran.code == 2
    assert message in ran.error["message"]
