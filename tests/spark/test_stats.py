"""Stats per queue and minute, and what they add up to."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from duetime.spark.lake.lake import Lake
from duetime.spark.schemas import STATS
from duetime.spark.stats import run as stats_run
from duetime.spark.stats.run import daily_counters, total_counters
from duetime.spark.stats.transform import COUNTS, merged, minute_stats, share_within
from tests.e2e.shell import Shell
from tests.spark.sample_rows import DAY, MINUTE, QUEUE, START, day_of, event, events, frame, job, jobs

SKETCHES = ("lateness_sketch", "run_sketch")


def visible(stats: DataFrame) -> DataFrame:
    """Sketches are compared by what they answer."""
    return stats.drop(*SKETCHES)


def expected(spark: SparkSession, *rows: dict[str, object]) -> DataFrame:
    zeros = dict.fromkeys(COUNTS, 0)
    return frame(
        spark, STATS, [{**QUEUE, **zeros, "date": day_of(int(str(row["minute_at"]))), **row} for row in rows]
    ).drop(*SKETCHES)


def test_a_row_per_queue_and_minute(spark: SparkSession) -> None:
    happened = events(
        spark,
        event("accepted", START + 10),
        event("accepted", START + 59_999),
        event("delivered", START + 60_000),
        event("delivered", START + 61_000),
        event("released", START + 62_000),
        event("delivered", START + 63_000),
        event("delivered", START + 64_000),
        event("dead", START + 65_000),
        event("acked", START + 119_999),
        event("notified", START + 60_001, status=200),
        event("notified", START + 60_002, status=503),
        event("notified", START + 60_003),
        event("heartbeat", START + 5, namespace="", queue=""),
        event("accepted", START + 70_000, attempt=3),
        event("accepted", START + 80_000, reason="repeated"),
        event("acked", START + 80_000, reason="repeated"),
        event("accepted", START + 20, queue="other"),
    )
    known = jobs(
        spark,
        job("a", START + 10, first_delivered_at=START + 60_000, lateness_ms=4, acked_at=START + 119_999, run_ms=900),
        job("b", START + 59_999, first_delivered_at=START + 61_000, lateness_ms=6),
        job("c", START + 59_999),
    )
    assertDataFrameEqual(
        visible(minute_stats(happened, known)),
        expected(
            spark,
            {"minute_at": START, "accepted": 2},
            {"minute_at": START, "accepted": 1, "queue": "other"},
            {
                "minute_at": START + MINUTE,
                "delivered": 4,
                "released": 1,
                "dead": 1,
                "acked": 1,
                "notified": 3,
                "notify_failed": 2,
                "lateness_p50_ms": 4,
                "lateness_p95_ms": 6,
                "lateness_p99_ms": 6,
                "lateness_max_ms": 6,
                "run_p50_ms": 900,
                "run_p95_ms": 900,
                "run_p99_ms": 900,
                "run_max_ms": 900,
                "retry_rate": 0.25,
                "dead_rate": 0.25,
            },
        ),
    )


def test_the_schema_is_the_tables(spark: SparkSession) -> None:
    made = minute_stats(events(spark), jobs(spark))
    assert [(field.name, field.dataType) for field in made.schema] == [(field.name, field.dataType) for field in STATS]


def test_a_lateness_counts_on_the_day_of_the_delivery(spark: SparkSession) -> None:
    late = job("a", START, first_due_at=START + DAY, first_delivered_at=START + DAY + 3, lateness_ms=3)
    assertDataFrameEqual(
        minute_stats(events(spark), jobs(spark, late)).select("date", "minute_at", "lateness_p99_ms"),
        spark.createDataFrame(
            [(day_of(START + DAY), START + DAY, 3)], "date date, minute_at long, lateness_p99_ms long"
        ),
    )


def test_merging_minutes_is_as_good_as_one_sketch_from_the_start(spark: SparkSession) -> None:
    deliveries = [job(f"j{n}", START, first_delivered_at=START + n * 600, lateness_ms=n) for n in range(1000)]
    stats = minute_stats(events(spark, event("accepted", START + MINUTE * 30)), jobs(spark, *deliveries))
    assert stats.count() == 11
    [hour] = merged(stats, ["queue"], 60 * MINUTE).collect()
    assert (hour.minute_at, hour.accepted, hour.lateness_max_ms) == (START, 1, 999)
    assert abs(hour.lateness_p50_ms - 500) < 30
    assert abs(hour.lateness_p99_ms - 990) < 30
    assert hour.run_p99_ms is None


def test_the_share_within_a_target(spark: SparkSession) -> None:
    deliveries = [job(f"j{n}", START, first_delivered_at=START, lateness_ms=n) for n in (1, 2, 3, 400)]
    stats = minute_stats(events(spark, event("accepted", START + DAY)), jobs(spark, *deliveries))
    shares = stats.orderBy("minute_at").select(share_within("lateness_sketch", 50).alias("share")).collect()
    assert [row.share for row in shares] == [0.75, None]


def test_counters_by_topic_and_day_and_in_total(spark: SparkSession) -> None:
    happened = events(
        spark,
        event("accepted", START),
        event("replaced", START + 1, born=2, was=1),
        event("kept", START + 2),
        event("notified", START + 3, status=500),
        event("notified", START + DAY, status=200),
        event("cancelled", START + DAY + 1),
        event("deleted", START + DAY + 2),
    )
    stats = minute_stats(happened, jobs(spark)).withColumn("pool", F.lit("p"))
    columns = "pool string, namespace string, queue string, written long, notified long, deleted long, failed long"
    assertDataFrameEqual(total_counters(stats), spark.createDataFrame([("p", "crm", "recall", 2, 2, 2, 1)], columns))
    assertDataFrameEqual(
        daily_counters(stats).drop("pool", "namespace", "queue"),
        spark.createDataFrame(
            [(day_of(START), 2, 1, 0, 1), (day_of(START + DAY), 0, 1, 2, 0)],
            "date date, written long, notified long, deleted long, failed long",
        ),
    )


def test_the_command_reads_the_days_that_it_shows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(spark, str(tmp_path / "lake"))
    happened = [event("accepted", START + day * DAY) for day in range(3)]
    lake.events.publish(lake.events.stage(events(spark, *happened)), after=lake.events.manifest(), about={})
    read: list[set[str]] = []

    def seen(stats: DataFrame) -> DataFrame:
        read.append({str(row.date) for row in stats.select("date").distinct().collect()})
        return daily_counters(stats)

    monkeypatch.setattr(stats_run, "daily_counters", seen)
    shell = Shell("", tmp_path)
    for days in (2, 0):
        told = shell.ok("pipeline", "stats", "--days", str(days), "--json").document
        assert [row["written"] for row in told["totals"]] == [3]
        shown = {str(day_of(START + (2 - day) * DAY)) for day in range(days)}
        assert {row["date"] for row in told["days"]} == shown
        assert read.pop() == shown
