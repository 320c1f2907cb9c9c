"""`spark.read.format("duetime")`: what is in a store; and the filters that are done there."""

import datetime
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from duetime.client import connect
from duetime.model.job import State
from duetime.spark import register
from duetime.spark.source.listing import Bounds
from duetime.spark.source.reader import Share, StoreReader
from tests.spark.conftest import since

DUE = datetime.datetime(2090, 1, 1, tzinfo=datetime.UTC)
PAST = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


def fill(url: str) -> None:
    """Two queues; one job in each state in the first."""
    with connect(url, namespace="crm") as client:
        recall = client.queue("recall")
        recall.push(b"one", id="dead", tries=1)
        [dying] = client.reserve(["recall"])
        client.kill(dying, error="no such address")
        recall.push(b"two", id="leased", attributes={"trace": "7"})
        client.reserve(["recall"], ttr="1h")
        recall.push(b"three", id="ready", priority=1)
        for day in range(3):
            recall.push(b"later", id=f"day-{day}", due_at=DUE + datetime.timedelta(days=day), ttl="36500d")
        client.queue("other").push(b"x", id="x")


def read(spark: SparkSession, url: str, **options: str):
    return spark.read.format("duetime").options(url=url, namespace="crm", **options).load()


@pytest.mark.parametrize("kind", ["redis", "sqlite", "postgres", "mysql", "http"])
def test_every_job_with_what_is_known_of_it(spark: SparkSession, kind: str, address_of: Callable[[str], str]) -> None:
    url = address_of(kind)
    fill(url)
    rows = {row["id"]: row for row in read(spark, url, queue="recall").collect()}

    assert {name: row["state"] for name, row in rows.items()} == {
        "dead": "dead",
        "leased": "leased",
        "ready": "ready",
        "day-0": "delayed",
        "day-1": "delayed",
        "day-2": "delayed",
    }
    assert rows["dead"]["last_error"] == "no such address"
    assert rows["leased"]["attempt"] == 1
    assert rows["leased"]["attributes"] == {"trace": "7"}
    assert bytes(rows["ready"]["body"]) == b"three"
    assert rows["ready"]["priority"] == "high"
    assert rows["ready"]["expires_at"] is None
    assert rows["day-1"]["due_at"].astimezone(datetime.UTC) == DUE + datetime.timedelta(days=1)
    assert rows["day-1"]["expires_at"] > rows["day-1"]["created_at"]
    assert {row["namespace"] for row in rows.values()} == {"crm"}


def test_filters_give_what_spark_would_give(spark: SparkSession, redis_url: str) -> None:
    fill(redis_url)
    jobs = read(spark, redis_url)

    def ids(condition: str) -> list[str]:
        return sorted(row["id"] for row in jobs.where(condition).select("id").collect())

    assert ids("queue = 'other'") == ["x"]
    assert ids("state in ('dead', 'leased') and queue = 'recall'") == ["dead", "leased"]
    assert ids("due_at > timestamp'2090-01-01 00:00:00'") == ["day-1", "day-2"]
    assert ids("due_at >= timestamp'2090-01-01' and due_at < timestamp'2090-01-02'") == ["day-0"]
    assert ids("due_at <= timestamp'2090-01-01 00:00:00.0005' and state = 'delayed'") == ["day-0"]
    assert ids("id like 'day%' and queue = 'nowhere'") == []
    assert ids("id like 'day%' and attempt = 0") == ["day-0", "day-1", "day-2"]


@since(4, 1)
def test_what_is_pushed_down_is_not_asked_for(redis_url: str) -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThanOrEqual, StringContains

    fill(redis_url)
    reader = StoreReader({"url": redis_url})
    rest = reader.pushFilters(
        [
            EqualTo(("queue",), "recall"),
            In(("state",), ("delayed", "dead")),
            GreaterThan(("due_at",), DUE),
            LessThanOrEqual(("due_at",), DUE + datetime.timedelta(days=1)),
            StringContains(("id",), "day"),
        ]
    )
    assert list(rest) == [StringContains(("id",), "day")]
    shares = [share for share in reader.partitions() if isinstance(share, Share)]
    assert [(share.queue.name, share.state) for share in shares] == [("recall", State.DELAYED), ("recall", State.DEAD)]
    due_ms = int(DUE.timestamp() * 1000)
    assert shares[0].bounds == Bounds(due_ms + 1, due_ms + 86_400_000)


def test_a_session_without_pushdown_filters_the_rows_itself(spark: SparkSession, redis_url: str) -> None:
    """`spark.sql.python.filterPushdown.enabled` is off in a session that nobody set up for this."""
    fill(redis_url)
    plain = spark.newSession()
    plain.conf.unset("spark.sql.python.filterPushdown.enabled")
    rows = read(plain, redis_url).where("queue = 'recall' and state = 'delayed'").collect()
    assert sorted(row["id"] for row in rows) == ["day-0", "day-1", "day-2"]


@since(4, 1)
def test_a_view_in_sql_is_selected_from_and_inserted_into(spark: SparkSession, redis_url: str) -> None:
    session = spark.newSession()
    options = f"USING duetime OPTIONS (url '{redis_url}', namespace 'crm', queue 'recall')"
    session.sql(f"CREATE TEMPORARY VIEW jobs {options}")
    session.sql(f"CREATE TEMPORARY VIEW texts (id string, body string, due_at timestamp) {options}")
    session.sql("INSERT INTO jobs (id, body, due_at) VALUES ('a', binary('one'), timestamp'2090-01-01')")
    session.sql("INSERT INTO texts VALUES ('b', 'two', timestamp'2091-01-01')")

    late = session.sql("SELECT id, state FROM jobs WHERE state = 'delayed' AND due_at > timestamp'2090-06-01'")
    assert [tuple(row) for row in late.collect()] == [("b", "delayed")]
    assert [row["body"] for row in session.sql("SELECT body FROM texts ORDER BY id").collect()] == ["one", "two"]
    plan = session.sql("EXPLAIN FORMATTED SELECT id FROM jobs WHERE state = 'dead' AND attempt = 3").first()
    assert plan is not None
    assert "PushedFilters: [IsNotNull(state), EqualTo(state,dead)]" in plan[0]
    with pytest.raises(PySparkException, match="the column state is set by the store"):
        session.sql("INSERT INTO jobs (id, body, state) VALUES ('c', binary('x'), 'dead')")


@since(4, 1)
def test_a_table_in_sql_gets_its_options_with_each_query(spark: SparkSession, redis_url: str) -> None:
    options = f"WITH (url = '{redis_url}', namespace = 'crm', queue = 'recall')"
    spark.sql("CREATE TABLE jobs_by_sql USING duetime")
    try:
        spark.sql(f"INSERT INTO jobs_by_sql {options} (id, body) VALUES ('a', binary('one'))")
        found = spark.sql(f"SELECT id, state, body FROM jobs_by_sql {options} WHERE state = 'ready'").collect()
    finally:
        spark.sql("DROP TABLE jobs_by_sql")
    assert [tuple(row) for row in found] == [("a", "ready", b"one")]


def test_what_sql_cannot_do_is_said(spark: SparkSession, redis_url: str) -> None:
    with pytest.raises(PySparkException, match=r"FROM jobs WITH \(url = '...'\), or CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE nowhere USING duetime OPTIONS (url '{redis_url}')")
    spark.sql("CREATE TABLE forgetful (id string, body string) USING duetime OPTIONS (url 'redis://nowhere')")
    try:
        for query in ("SELECT id FROM forgetful", "INSERT INTO forgetful VALUES ('a', 'x')"):
            with pytest.raises(PySparkException, match="no option was given, not even url"):
                spark.sql(query).collect()
    finally:
        spark.sql("DROP TABLE forgetful")
    with pytest.raises(PySparkException, match="unknown column of a job 'colour'"):
        spark.read.format("duetime").schema("id string, colour string").options(url=redis_url).load().collect()
    with pytest.raises(PySparkException, match="the column attempt must be int, got string"):
        spark.read.format("duetime").schema("attempt string").options(url=redis_url).load().collect()


@pytest.mark.parametrize("due", [DUE, PAST])
@pytest.mark.parametrize("kind", ["redis", "sqlite", "postgres", "mysql"])
def test_many_waiting_jobs_are_read_in_ranges_each_once(
    spark: SparkSession, kind: str, address_of: Callable[[str], str], due: datetime.datetime
) -> None:
    url, count = address_of(kind), 12_000
    spark.range(0, count, 1, 2).select(
        F.col("id").cast("string").alias("id"),
        F.lit("x").alias("body"),
        # Most of them close together, with many in the same millisecond at the edges.
        F.timestamp_millis(F.lit(int(due.timestamp() * 1000)) + F.pow(F.col("id") % 100, F.lit(5)).cast("long")).alias(
            "due_at"
        ),
        (F.col("id") % 3 + 1).alias("priority"),
    ).write.format("duetime").options(url=url, namespace="crm", queue="recall").mode("append").save()
    jobs = read(spark, url, queue="recall").where(f"state = '{'delayed' if due == DUE else 'ready'}'")

    assert jobs.rdd.getNumPartitions() > 1
    assert sorted(int(row["id"]) for row in jobs.select("id").collect()) == list(range(count))


@since(4, 1)
def test_registered_views_of_a_store_and_its_journal(spark: SparkSession, redis_url: str, tmp_path: Path) -> None:
    with connect(redis_url, namespace="crm", journal=str(tmp_path)) as client:
        client.queue("recall").push(b"one", id="a")
    register(spark, url=redis_url, journal=str(tmp_path), database="registered")
    try:
        jobs = spark.sql("SELECT namespace, queue, id FROM registered.jobs WHERE state = 'ready'").collect()
        entries = spark.sql("SELECT id, body FROM registered.events WHERE event = 'accepted'").collect()
    finally:
        spark.sql("DROP DATABASE registered CASCADE")

    assert [tuple(row) for row in jobs] == [("crm", "recall", "a")]
    assert [tuple(row) for row in entries] == [("a", b"one")]
