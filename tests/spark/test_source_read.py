"""`spark.read.format("duetime")`: what is in a store; and the filters that are done there."""

import datetime
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThanOrEqual, StringContains

from duetime.client import connect
from duetime.job import State
from duetime.spark.source.reader import Share, StoreReader

DUE = datetime.datetime(2090, 1, 1, tzinfo=datetime.UTC)


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


@pytest.mark.parametrize("kind", ["redis", "sqlite", "http"])
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


def test_what_is_pushed_down_is_not_asked_for(redis_url: str) -> None:
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
    assert shares[0].bounds == (due_ms + 1, due_ms + 86_400_000)


@pytest.mark.parametrize("kind", ["redis", "sqlite"])
def test_many_delayed_jobs_are_read_in_ranges_each_once(
    spark: SparkSession, kind: str, address_of: Callable[[str], str]
) -> None:
    url, count = address_of(kind), 12_000
    spark.range(0, count, 1, 2).select(
        F.col("id").cast("string").alias("id"),
        F.lit("x").alias("body"),
        # Most of them close together, with many in the same millisecond at the edges.
        F.timestamp_millis(F.lit(int(DUE.timestamp() * 1000)) + F.pow(F.col("id") % 100, F.lit(5)).cast("long")).alias(
            "due_at"
        ),
    ).write.format("duetime").options(url=url, namespace="crm", queue="recall").mode("append").save()
    jobs = read(spark, url, queue="recall").where("state = 'delayed'")

    assert jobs.rdd.getNumPartitions() > 1
    assert sorted(int(row["id"]) for row in jobs.select("id").collect()) == list(range(count))
