"""`df.write.format("duetime")` on Redis, SQLite and a real server."""

import datetime
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from duetime.client import connect
from duetime.journal.events import REPEATED, Entry, body_of
from duetime.journal.reader import read_journal
from duetime.model.job import Event, Job, Priority, State
from duetime.spark.store_view import StoreView
from tests.spark.conftest import jobs_in

DUE = datetime.datetime(2090, 1, 1, tzinfo=datetime.UTC)
DUE_MS = int(DUE.timestamp() * 1000)


def members(spark: SparkSession, count: int = 3, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions).select(
        F.format_string("recall-%05d", "id").alias("id"),
        F.timestamp_millis(F.lit(DUE_MS) - F.col("id")).alias("due_at"),
        F.struct(F.col("id").alias("member"), F.lit("a@example.org").alias("email")).alias("body"),
    )


def save(frame: DataFrame, address: str, /, **options: str) -> None:
    settings = {"url": address, "namespace": "crm", "queue": "recall", **options}
    frame.write.format("duetime").options(**settings).mode("append").save()


@pytest.fixture(params=["redis", "sqlite", "http"])
def url(request: pytest.FixtureRequest, address_of: Callable[[str], str]) -> str:
    return address_of(request.param)


EVERYWHERE = pytest.mark.parametrize("url", ["redis", "sqlite", "postgres", "mysql", "http"], indirect=True)


@EVERYWHERE
def test_rows_become_jobs(spark: SparkSession, url: str) -> None:
    save(members(spark), url, ttl="999999h", tries="7", priority="high")

    jobs = jobs_in(url, "crm", "recall")
    assert [(job.id, job.body, job.due_at) for job in jobs] == [
        (f"recall-{index:05}", b'{"member":%d,"email":"a@example.org"}' % index, DUE_MS - index) for index in (2, 1, 0)
    ]
    assert {(job.tries, job.priority, job.state) for job in jobs} == {(7, Priority.HIGH, State.DELAYED)}
    assert all(job.expires_at - job.born == 999_999 * 3_600_000 for job in jobs)


def test_columns_win_over_options(spark: SparkSession, url: str) -> None:
    frame = spark.sql("""
        select 'a' id, 'text' body, interval 2 hours delay, 'other' queue, 86400 ttl, 2 tries, 'low' priority,
               map('trace', '1') attributes
        union all select 'b', 'text', null, null, null, null, null, null""")
    save(frame, url, tries="9")

    [a] = jobs_in(url, "crm", "other")
    [b] = jobs_in(url, "crm", "recall")
    assert (a.tries, a.priority, dict(a.attributes)) == (2, Priority.LOW, {"trace": "1"})
    assert a.expires_at - a.born == 86_400_000
    assert abs(a.due_at - a.born - 7_200_000) < 60_000
    assert (b.tries, b.priority, b.state, dict(b.attributes)) == (9, Priority.NORMAL, State.READY, {})


def test_without_ids_the_same_rows_are_the_same_jobs(spark: SparkSession, url: str) -> None:
    frame = members(spark).drop("id")
    save(frame, url, batch="monday")
    first = {job.id for job in jobs_in(url, "crm", "recall")}
    save(frame.repartition(1), url, batch="monday")
    assert {job.id for job in jobs_in(url, "crm", "recall")} == first
    save(frame, url, batch="tuesday")

    assert len(first) == 3
    assert len(jobs_in(url, "crm", "recall")) == 6


def test_the_first_bad_row_ends_the_load(spark: SparkSession, url: str) -> None:
    frame = members(spark, 2, 1).withColumn("id", F.when(F.col("id") == "recall-00001", "bell\a").otherwise("fine"))
    with pytest.raises(
        PySparkException, match=r"the id is not 1 to 128 printable characters .*this task had pushed 0 rows"
    ):
        save(frame, url)
    assert jobs_in(url, "crm", "recall") == []


@pytest.mark.parametrize("count", [2_000])
@pytest.mark.parametrize("url", ["redis", "postgres", "mysql"], indirect=True)
def test_a_step_that_is_repeated_after_its_jobs_are_gone_adds_nothing(
    spark: SparkSession, url: str, count: int, drain: Callable[..., list[Job]]
) -> None:
    frame = members(spark, count).withColumn("due_at", F.lit(datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)))
    save(frame, url, batch="once")
    assert len(drain(url, "crm", "recall")) == count
    save(frame, url, batch="once")

    assert jobs_in(url, "crm", "recall") == []


def test_spread_moves_due_times_into_the_window(spark: SparkSession, redis_url: str) -> None:
    frame = members(spark, 200).withColumn("due_at", F.lit(DUE))
    save(frame, redis_url, spread="10m")
    dues = [job.due_at for job in jobs_in(redis_url, "crm", "recall")]

    assert DUE_MS <= min(dues) < max(dues) < DUE_MS + 600_000
    assert len(set(dues)) > 150


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"url": ""}, "the option url is missing"),
        ({"url": "memory:"}, "must not be a memory: store"),
        ({"colour": "red"}, "unknown option 'colour'"),
        ({"queue": ""}, "name a queue"),
        ({"maxJobsPerSecond": "100"}, "needs the option writers"),
        ({"badRecords": "quarantine"}, "only duetime.spark.schedule"),
    ],
)
def test_options_that_cannot_be(spark: SparkSession, redis_url: str, options: dict[str, str], problem: str) -> None:
    with pytest.raises(PySparkException, match=problem):
        save(members(spark), redis_url, **options)


def test_a_pool_that_journals_gets_an_entry_for_each_job(spark: SparkSession, tmp_path: Path) -> None:
    """From .save() and from SQL; each task is a node that has ended, and none of them is waited for."""
    url, journal = f"sqlite://{tmp_path}/jobs.db", tmp_path / "journal"
    with connect(url, namespace="crm", journal=str(journal)) as client:
        client.queue("recall").push(b"first", id="recall-00001", due_at=DUE_MS)
    save(members(spark), url, journal=str(journal))
    members(spark, 5).createOrReplaceTempView("members")
    options = f"url '{url}', namespace 'crm', queue 'recall', journal '{journal}'"
    columns = "id string, due_at timestamp, body binary"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW recall ({columns}) USING duetime OPTIONS ({options})")
    spark.sql("INSERT INTO recall SELECT id, due_at, cast(to_json(body) AS binary) FROM members")

    jobs = {(job.id, job.born, job.body) for job in jobs_in(url, "crm", "recall")}
    entries = [one for one in read_journal(journal) if isinstance(one, Entry) and one.event is Event.ACCEPTED]
    assert {(one.id, one.born, body_of(one)) for one in entries} == jobs
    assert (len(jobs), sum(one.reason != REPEATED for one in entries)) == (5, 5), "jobs that were kept are said again"
    with closing(StoreView(url)) as view:
        nodes = view.registered()
    assert all(record.last is not None for record in nodes.values())
    assert {name.partition("-")[0] for name in nodes} >= {"load"}


def test_columns_that_no_job_has(spark: SparkSession, redis_url: str) -> None:
    with pytest.raises(PySparkException, match="unknown column of a job 'colour'"):
        save(members(spark).withColumn("colour", F.lit("red")), redis_url)
    with pytest.raises(PySparkException, match="the column body is missing"):
        save(members(spark).drop("body"), redis_url)


def test_a_queue_cannot_be_overwritten(spark: SparkSession, redis_url: str) -> None:
    writer = members(spark).write.format("duetime").options(url=redis_url, queue="recall")
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        writer.mode("overwrite").save()
