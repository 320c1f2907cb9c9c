"""`duetime pipeline run`: all steps in one session, and what others see of a round."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from duetime.client import Client
from duetime.spark.audit.journal import JournalProblem
from duetime.spark.audit.run import Audited
from duetime.spark.lake.lake import Lake
from duetime.spark.rounds import Round, RoundPlan, RoundStep, audit_verdict, health_text, metrics_text, run_round
from tests.e2e.shell import Shell

MADE = Round(
    number=3,
    started_at=60_000,
    ended_at=61_500,
    ok=True,
    steps={"ingest": RoundStep(1.25, {"events": 7, "damaged": 0})},
)


@pytest.mark.timeout(900)
def test_a_round_with_everything(spark: SparkSession, tmp_path: Path) -> None:
    store, journal = f"sqlite://{tmp_path / 'jobs.db'}", tmp_path / "entries"
    with Client(store, namespace="crm", journal=str(journal)) as client:
        client.queue("recall").push(b"one", id="a")
        client.queue("recall").push(b"two", id="b", delay="1h")
        [delivery] = client.reserve(["recall"])
        client.ack(delivery)
    shell = Shell("", tmp_path)
    common = ("pipeline", "run", "--journal", str(journal), "--lake", "lake", "--grace", "0s", "--json")
    files = ("--report", "out/report.html", "--health", "out/health.json", "--metrics", "out/run.prom")

    first = shell.ok(*common, *files, "--url", store).document
    assert (first["ok"], first["problem"], list(first["steps"])) == (
        True, "", ["ingest", "lifecycle", "stats", "audit", "report"]
    )  # fmt: skip
    assert first["steps"]["audit"]["numbers"]["accepted"] == 2
    assert first["steps"]["report"]["numbers"] == {"accepted": 2, "delivered": 1, "acked": 1, "dead": 0}
    assert "Nothing was lost: 2 jobs accepted" in (tmp_path / "out" / "report.html").read_text()
    assert json.loads((tmp_path / "out" / "health.json").read_text())["ok"] is True
    assert "duetime_pipeline_ok 1\n" in (tmp_path / "out" / "run.prom").read_text()


def test_an_audit_that_is_not_sound_is_a_problem() -> None:
    law = [{"accepted": 7}, {"accepted": 2}]
    gap = JournalProblem("gap", "web-1", "entries 4 to 5 are missing (2)")
    assert audit_verdict(Audited("r", "lake/audit/r", law, {"unanswered": 1})) == (
        {"accepted": 9, "problems": 0, "unanswered": 1}, ""
    )  # fmt: skip
    numbers, problem = audit_verdict(Audited("r", "lake/audit/r", law, {"lost": 1_000}, [gap]))
    assert numbers == {"accepted": 9, "problems": 1, "lost": 1_000}
    assert problem == "not proved: 1,000 lost; gap of web-1: entries 4 to 5 are missing (2) (lake/audit/r)"
    assert audit_verdict(Audited("r", "lake/audit/r", law, {"lost": 1}))[1] == "not sound: 1 lost (lake/audit/r)"


def test_a_step_that_fails_ends_the_round_and_is_named(spark: SparkSession, tmp_path: Path) -> None:
    made = run_round(Lake(spark, str(tmp_path / "lake")), RoundPlan(str(tmp_path / "nowhere"), None))
    assert (made.ok, made.steps) == (False, {})
    assert made.problem == f"ingest: there is no journal in {tmp_path / 'nowhere'}"


def test_an_unexpected_error_is_told_before_it_is_raised(tmp_path: Path) -> None:
    """A health file that still says ok would hide it."""
    told: list[Round] = []
    no_lake: Any = None
    with pytest.raises(AttributeError):
        run_round(no_lake, RoundPlan(str(tmp_path), None), number=4, ended=told.append)
    [made] = told
    assert (made.number, made.ok, made.ended_at >= made.started_at > 0) == (4, False, True)
    assert made.problem.startswith("ingest: AttributeError: ")


def test_what_a_monitor_reads() -> None:
    health = json.loads(health_text(MADE, 900_000))
    assert (health["ok"], health["number"], health["ended_at"], health["next_at"]) == (True, 3, 61_500, 960_000)
    assert health["steps"] == {"ingest": {"seconds": 1.25, "numbers": {"events": 7, "damaged": 0}}}
    assert json.loads(health_text(MADE))["next_at"] == 0
    lines = metrics_text(MADE).decode().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        "duetime_pipeline_ok 1",
        "duetime_pipeline_ended_timestamp_seconds 61.5",
        'duetime_pipeline_step_seconds{step="ingest"} 1.25',
        'duetime_pipeline_count{step="ingest",what="damaged"} 0',
        'duetime_pipeline_count{step="ingest",what="events"} 7',
    ]
