"""Load ahead, capacity, and who will be late."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from duetime.client import connect
from duetime.console.pipeline_files import read_lake
from duetime.model.errors import InvalidRequest
from duetime.spark.forecast import run as forecast_run
from duetime.spark.forecast.model import Capacity, Trouble, find_trouble, level, simulate, spread
from duetime.spark.forecast.page import ForecastPage, write_forecast
from duetime.spark.forecast.run import (
    Season,
    backtest,
    find_capacities,
    find_season,
    forecast,
    pending_loads,
    window_for,
)
from duetime.spark.forecast.transform import DAY_MS, HOUR_MS, WEEK_MS, expected_ahead, load_ahead, measured_capacity
from duetime.spark.lake.lake import Lake
from duetime.spark.schemas import STATS
from duetime.spark.stats.transform import COUNTS
from tests.e2e.shell import Shell
from tests.spark.sample_rows import MINUTE, QUEUE, START, day_of, frame, job, jobs
from tests.spark.weeks import jobs_of_weeks

NAME = ("crm", "recall")


def due_job(job_id: str, *, accepted_at: int, due_at: int, ended_at: int | None = None) -> dict[str, object]:
    return job(job_id, accepted_at, first_due_at=due_at, due_at=due_at, ended_at=ended_at)


def test_load_after_an_origin_is_pending_or_arrives(spark: SparkSession) -> None:
    known = jobs(
        spark,
        due_job("pending", accepted_at=START - 5, due_at=START + 10),
        due_job("pending later", accepted_at=START - 5, due_at=START + HOUR_MS),
        due_job("arrives", accepted_at=START + 5, due_at=START + HOUR_MS + 1),
        due_job("cancelled before it was due", accepted_at=START - 5, due_at=START + 20, ended_at=START + 1),
        due_job("gone before the origin", accepted_at=START - 5, due_at=START + 20, ended_at=START - 1),
        due_job("too late", accepted_at=START, due_at=START + 2 * HOUR_MS),
        due_job("too early", accepted_at=START - 9, due_at=START - 1),
        {**due_job("begin not seen", accepted_at=START, due_at=START + 5), "accepted_at": None},
    )
    assertDataFrameEqual(
        load_ahead(known, [START], 2 * HOUR_MS),
        spark.createDataFrame(
            [(START, *NAME, 0, 2, 0, 1), (START, *NAME, 1, 1, 1, 2)],
            "origin long, namespace string, queue string, hour int, pending long, arrived long, actual long",
        ),
    )


def test_expected_is_what_came_late_in_the_same_hour_of_past_weeks(spark: SparkSession) -> None:
    then, earlier = START - WEEK_MS, START - 2 * WEEK_MS
    known = jobs(
        spark,
        due_job("pushed after the same moment", accepted_at=then + 1, due_at=then + HOUR_MS),
        due_job("pushed two weeks ago", accepted_at=earlier + 1, due_at=earlier + HOUR_MS + 9),
        due_job("pushed long before", accepted_at=then - DAY_MS, due_at=then + HOUR_MS),
        due_job("cancelled", accepted_at=then + 1, due_at=then + HOUR_MS, ended_at=then + 2),
        due_job("beyond the horizon", accepted_at=then + 1, due_at=then + 3 * HOUR_MS),
        due_job("beyond the seasons", accepted_at=START - 3 * WEEK_MS + 1, due_at=START - 3 * WEEK_MS + HOUR_MS),
        due_job("in the future", accepted_at=START - 1, due_at=START + HOUR_MS),
    )
    assertDataFrameEqual(
        expected_ahead(known, [START], 2 * HOUR_MS, seasons=2),
        spark.createDataFrame(
            [(START, *NAME, 1, 2)], "origin long, namespace string, queue string, hour int, total long"
        ),
    )


def test_capacity_is_measured_under_a_backlog_else_a_lower_bound(spark: SparkSession) -> None:
    def minute(number: int, queue: str, delivered: int, late_ms: int, **counts: int) -> dict[str, object]:
        at = START + number * MINUTE
        zeros = dict.fromkeys(COUNTS, 0)
        known = {"minute_at": at, "delivered": delivered, "lateness_p50_ms": late_ms, "date": day_of(at)}
        return {**QUEUE, **zeros, "queue": queue, **known, **counts}

    rows = [
        minute(0, "busy", 900, 20),
        minute(1, "busy", 600, 5000),
        minute(2, "busy", 500, 9000),
        minute(3, "busy", 550, 2000, released=510),
        minute(0, "calm", 30, 4),
        minute(1, "calm", 70, 4),
    ]
    stats = frame(spark, STATS, rows)
    assertDataFrameEqual(
        measured_capacity(stats),
        spark.createDataFrame(
            [("crm", "busy", 550.0, 900, 2550 / 2040), ("crm", "calm", None, 70, 1.0)],
            "namespace string, queue string, saturated double, peak long, deliveries_per_job double",
        ),
    )
    assert find_capacities(stats, {("crm", "calm"): 50.0}) == {
        ("crm", "busy"): Capacity(550.0, 1.25, is_floor=False),
        ("crm", "calm"): Capacity(50.0, 1.0),
    }


def test_what_a_step_cannot_do_makes_the_next_ones_late() -> None:
    loads = [(START + n * MINUTE, float(pending), 10.0) for n, pending in enumerate((0, 340, 90, 0, 0, 0, 500))]
    made = simulate(NAME, loads, Capacity(100.0))
    assert [step.backlog for step in made.steps] == [0, 250, 250, 160, 70, 0, 410]
    assert [step.late_ms / MINUTE for step in made.steps] == [0, 2.5, 2.5, 1.6, 0.7, 0, 4.1]
    assert find_trouble(made, MINUTE) == [
        Trouble(NAME, START + MINUTE, START + MINUTE, 2.5 * MINUTE, START + 4 * MINUTE, 460.0),
        Trouble(NAME, START + 6 * MINUTE, START + 6 * MINUTE, pytest.approx(4.1 * MINUTE), 0, 510.0),
    ]


def test_retries_take_their_share_of_the_capacity() -> None:
    assert Capacity(100.0, deliveries_per_job=1.25).jobs_in(MINUTE) == 80.0


def test_a_queue_of_unknown_capacity_is_not_called_late() -> None:
    assert not find_trouble(simulate(NAME, [(START, 1e6, 0.0), (START + MINUTE, 0.0, 0.0)], None), 1)


def test_hours_are_spread_over_steps_and_added_up_to_longer_ones() -> None:
    assert spread({0: 60.0, 1: 120.0}, START, 30 * MINUTE, 5) == [30.0, 30.0, 60.0, 60.0, 0.0]
    assert spread({0: 60.0, 1: 120.0, 2: 1.0}, START, 2 * HOUR_MS, 2) == [180.0, 1.0]


def test_the_last_day_raises_or_lowers_what_is_expected_within_bounds() -> None:
    assert [level(150, 100), level(900, 100), level(10, 100), level(5, 0)] == [1.5, 2.0, 0.5, 1.0]


def test_the_season_is_as_long_as_the_history_allows(spark: SparkSession) -> None:
    known = jobs(spark, job("first", START))
    assert find_season(known, START + HOUR_MS) is None
    assert find_season(known, START + DAY_MS) == Season(DAY_MS, 1, is_levelled=False)
    assert find_season(known, START + 3 * DAY_MS) == Season(DAY_MS, 2)
    assert find_season(known, START + 9 * WEEK_MS) == Season(WEEK_MS, 4)


def test_the_window_has_legible_steps_and_bounds() -> None:
    assert window_for(START, 6 * HOUR_MS).step_ms == MINUTE
    assert len(window_for(START, DAY_MS).edges) == 289
    assert window_for(START, WEEK_MS).step_ms == HOUR_MS
    with pytest.raises(InvalidRequest, match="from a minute to a week"):
        window_for(START, WEEK_MS + 1)


def test_generated_history_is_forecast_well(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """Five weeks that repeat with noise of a tenth: the forecast misses little, the waiting jobs alone most of it."""
    now = START + 10 * HOUR_MS
    known = jobs_of_weeks(spark, now, weeks=5, per_hour=60).cache()
    error = backtest(known, now, origins=3)
    assert error is not None
    with capsys.disabled():
        print(f"\nforecast: {error.wape:.1%} missed in the back-test, {error.pending_only:.1%} by waiting jobs alone")
    assert error.wape is not None
    assert error.wape < 0.15
    assert error.pending_only is not None
    assert error.pending_only > 3 * error.wape

    window = window_for(now, DAY_MS)
    pending = {NAME: [5] * (len(window.edges) - 1)}
    [made] = forecast(known, pending, {NAME: Capacity(0.3)}, window)
    noon, night = made.steps[24], made.steps[14 * 12]
    assert noon.expected > 5 * night.expected
    [trouble, *_] = find_trouble(made, MINUTE)
    assert trouble.start_at < now + HOUR_MS
    known.unpersist()


def test_too_little_history_has_no_back_test(spark: SparkSession) -> None:
    assert backtest(jobs(spark, job("a", START)), START + DAY_MS) is None


def test_what_waits_is_read_from_a_store(tmp_path: Path) -> None:
    now = START + 400 * DAY_MS
    edges = [now + step * MINUTE for step in range(601)]
    with connect(f"sqlite://{tmp_path / 'jobs.db'}", namespace="crm") as client:
        recall = client.queue("recall")
        recall.push("overdue", due_at=now - 5)
        recall.push("first", due_at=now)
        recall.push("last", due_at=edges[-1] - 1)
        recall.push("beyond", due_at=edges[-1])
        client.queue("other").push("x", due_at=edges[300])
        found = pending_loads(client, edges)
    assert set(found) == {("crm", "recall"), ("crm", "other")}
    assert [len(counts) for counts in found.values()] == [600, 600]
    assert (found[NAME][0], found[NAME][-1], sum(found[NAME])) == (2, 1, 3)
    assert found["crm", "other"][300] == sum(found["crm", "other"]) == 1


def test_the_page_names_the_queue_and_escapes_it() -> None:
    loads = [(START + n * MINUTE, 300.0, 0.0) for n in range(5)]
    queues = [simulate(("crm", "<b>recall</b>"), loads, Capacity(100.0))]
    troubles = find_trouble(queues[0], MINUTE)
    html = write_forecast(ForecastPage(queues, troubles, MINUTE, START, "the last 4 weeks", None))
    assert "crm/&lt;b&gt;recall&lt;/b&gt; will be up to 10 min late" in html
    assert "<b>recall" not in html


def test_the_command_answers_in_json_and_writes_the_page(spark: SparkSession, tmp_path: Path) -> None:
    shell = Shell(f"sqlite://{tmp_path / 'jobs.db'}", tmp_path)
    shell.ok("push", "recall", "x", "--delay", "30m")
    lake = Lake(spark, str(tmp_path / "lake"))
    assert lake.jobs.manifest().version == 0
    ran = shell.ok("pipeline", "forecast", "--ahead", "2h", "--capacity", "recall=0.001", "--out", "f.html", "--json")
    document = ran.document
    assert [(one["queue"], one["end_at"]) for one in document["late"]] == [("recall", 0)]
    [queue] = document["queues"]
    assert sum(step["pending"] for step in queue["steps"]) == 1
    assert document["backtest"] is None
    assert "Plotly" in (tmp_path / "f.html").read_text()
    shown = read_lake(tmp_path / "lake").forecast  # as the console reads it
    assert shown is not None
    assert (sum(shown.pending), [one.queue for one in shown.troubles]) == (1, ["default/recall"])
    said = shell.ok("pipeline", "forecast", "--ahead", "2h", "--out", "f.html").out
    assert "Nothing is known about the capacity of default/recall" in said
    assert json.loads(shell.run("pipeline", "forecast", "--capacity", "recall", "--json").err)["error"]["code"] == (
        "invalid_request"
    )


def test_a_season_shorter_than_the_horizon_goes_round() -> None:
    window = forecast_run.Window(START, 2 * DAY_MS, HOUR_MS)
    hours = forecast_run.repeated({0: 1.0, 23: 2.0}, Season(DAY_MS, 1), window)
    assert (hours[0], hours[23], hours[24], hours[47], len(hours)) == (1.0, 2.0, 1.0, 2.0, 48)
