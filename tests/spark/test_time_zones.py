"""Due times in sessions that are not in UTC: `.save()` and `schedule` make the same jobs of the same rows."""

import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from duetime.spark import schedule
from duetime.spark.load.schedule import BadRows
from tests.spark.conftest import jobs_in

ZONES = ["America/New_York", "Asia/Kolkata"]


def session_in(spark: SparkSession, zone: str) -> SparkSession:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    return session


def save(frame: DataFrame, url: str, **options: str) -> None:
    frame.write.format("duetime").options(url=url, queue="saved", **options).mode("append").save()


def due_at_both_ways(frame: DataFrame, folder: Path, **options: str) -> list[dict[str, int]]:
    """The due times by id: of `.save()` and of `schedule`."""
    url = f"sqlite://{folder / 'jobs.db'}"
    save(frame, url, **options)
    schedule(frame, url=url, queue="scheduled", batch="b1", lake=str(folder / "lake"), **options)  # type: ignore[arg-type]
    return [{job.id: job.due_at for job in jobs_in(url, "default", queue)} for queue in ("saved", "scheduled")]


def in_zone(zone: str, *parts: int) -> int:
    return int(datetime.datetime(*parts, tzinfo=ZoneInfo(zone)).timestamp() * 1000)  # type: ignore[misc]


@pytest.mark.parametrize("zone", ZONES)
def test_a_time_without_a_zone_is_in_the_sessions(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    frame = session_in(spark, zone).sql(
        """select * from values
           ('winter', 'x', timestamp_ntz'2090-01-15 10:00:00.000001'),
           ('summer', 'x', timestamp_ntz'2090-07-15 10:00:00')
           as t(id, body, due_at)"""
    )
    expected = {"winter": in_zone(zone, 2090, 1, 15, 10) + 1, "summer": in_zone(zone, 2090, 7, 15, 10)}
    assert due_at_both_ways(frame, tmp_path) == [expected, expected]


@pytest.mark.parametrize("zone", ZONES)
def test_a_date_begins_at_the_sessions_midnight(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    frame = session_in(spark, zone).sql("select 'day' id, 'x' body, date'2090-07-15' due_at")
    expected = {"day": in_zone(zone, 2090, 7, 15)}
    assert due_at_both_ways(frame, tmp_path) == [expected, expected]


def test_hours_that_a_clock_repeats_or_skips(spark: SparkSession, tmp_path: Path) -> None:
    """As in Spark's own cast: the first of two, and the skipped hour counted on from where the gap begins."""
    frame = session_in(spark, "America/New_York").sql(
        """select id, 'x' body, due_at, cast(due_at as timestamp) at from values
           ('twice', timestamp_ntz'2032-11-07 01:30:00'), ('never', timestamp_ntz'2032-03-14 02:30:00')
           as t(id, due_at)"""
    )
    expected = {row["id"]: int(row["at"].timestamp() * 1000) for row in frame.collect()}
    assert due_at_both_ways(frame.drop("at"), tmp_path) == [expected, expected]


def test_spread_made_ids_and_bodies_are_the_same(spark: SparkSession, tmp_path: Path) -> None:
    frame = session_in(spark, "Asia/Kolkata").sql(
        """select struct(id number, cast(id as double) / 3 part, 1e30d large, double('NaN') none, date'2030-01-01' day,
                  timestamp'2030-01-01 10:00:00' at, timestamp_ntz'2030-01-01 10:00:00' wall) body,
                  timestamp'2090-01-01 00:00:00' due_at from range(40)"""
    )
    url = f"sqlite://{tmp_path / 'jobs.db'}"
    save(frame, url, batch="b1", spread="10m")
    schedule(frame, url=url, queue="scheduled", batch="b1", lake=str(tmp_path / "lake"), spread="10m")

    saved, scheduled = (
        [(job.id, job.due_at, job.body) for job in jobs_in(url, "default", queue)] for queue in ("saved", "scheduled")
    )
    assert saved == scheduled
    assert len({due_at for _, due_at, _ in saved}) > 30


def test_numbers_that_are_no_time_are_bad_rows_both_ways(spark: SparkSession, tmp_path: Path) -> None:
    """Once through both; `test_source_rows.py` has the reasons of all kinds."""
    frame = spark.sql("select 'a' id, 'x' body, double('NaN') delay")
    url = f"sqlite://{tmp_path / 'jobs.db'}"
    with pytest.raises(PySparkException, match="the due time is not between 1970 and 9999"):
        save(frame, url)
    with pytest.raises(BadRows, match="the due time is not between 1970 and 9999"):
        schedule(frame, url=url, queue="scheduled", batch="b1", lake=str(tmp_path / "lake"))
    assert jobs_in(url, "default", "saved") == jobs_in(url, "default", "scheduled") == []


@pytest.mark.parametrize("zone", ZONES)
def test_what_is_read_back_is_filtered_by_the_instant(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    session, url = session_in(spark, zone), f"sqlite://{tmp_path / 'jobs.db'}"
    save(session.sql("select 'a' id, 'x' body, timestamp'2090-01-01 10:00:00' due_at"), url)
    jobs = session.read.format("duetime").options(url=url).load()
    assert jobs.where("due_at = timestamp'2090-01-01 10:00:00'").count() == 1
    assert jobs.where("due_at >= timestamp'2090-01-01 10:00:00'").count() == 1
    assert jobs.where("due_at < timestamp'2090-01-01 10:00:00'").count() == 0
