"""A history of any size, made by Spark itself: events as `ingest` would have written them, and what the store holds.

Every fourth of a job's numbers decides something, always the same, so that two sizes differ in nothing but size:
most jobs are delivered once and acked, some are retried, die, are cancelled or still wait; one in 100,000 is lost.
"""

from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from duetime.spark.ingest.about import EventsAbout
from duetime.spark.lake.lake import Lake
from duetime.spark.lake.nodes import NodeState
from duetime.spark.schemas import EVENTS

EVENTS_PER_JOB = 3.2
START = 1_790_000_000_000
DAY_MS = 86_400_000
QUEUES = 20
NODES = 4

STEPS = """
    concat(
        array(struct('accepted' as event, 0 as attempt, 0L as after)),
        if(i % 100 < 94, array(struct('delivered' as event, 1 as attempt, delay + i % 50 as after)), array()),
        if(i % 100 < 10, array(
            struct('released' as event, 1 as attempt, delay + 500 as after),
            struct('delivered' as event, 2 as attempt, delay + 1500 + i % 50 as after)), array()),
        if(i % 100 between 2 and 92, array(
            struct('acked' as event, if(i % 100 < 10, 2, 1) as attempt, delay + 2000 + i % 900 as after)), array()),
        if(i % 100 = 0, array(struct('dead' as event, 2 as attempt, delay + 2100 as after)), array()),
        if(i % 100 = 99, array(struct('cancelled' as event, 0 as attempt, 5L as after)), array()))
"""


def history(spark: SparkSession, jobs: int, *, start: int = START, only: str = "true") -> DataFrame:
    """EVENTS of so many jobs over a day, or of those whose number `i` fulfils a condition."""
    each = spark.range(jobs, numPartitions=max(2, jobs // 1_000_000)).withColumnRenamed("id", "i").where(only)
    born = F.lit(start) + (F.col("i") * (DAY_MS // 2) / jobs).cast("long")
    steps = each.select("i", born.alias("born"), F.expr("1000L + (i * 7919) % 3600000").alias("delay")).select(
        "i", "born", "delay", F.expr(f"posexplode({STEPS})").alias("position", "step")
    )
    event = F.col("step.event")
    begins = event == "accepted"
    node = F.concat(F.lit("node-"), (F.col("i") % NODES).cast("string"))
    columns: dict[str, Any] = {
        "ts": F.col("born") + F.col("step.after"),
        "wrote_at": F.col("born") + F.col("step.after") + 1,
        "node": node,
        # Without gaps per node where each job has one slot of eight; the unused ones are what no audit looks at here.
        "seq": F.expr(f"(i div {NODES}) * 8 + position + 1"),
        "event": event,
        "pool": F.lit("default"),
        "namespace": F.lit("bench"),
        "queue": F.concat(F.lit("queue-"), (F.col("i") % QUEUES).cast("string")),
        "id": F.concat(F.lit("01JCV7ZK5N"), F.lpad(F.hex("i"), 16, "0")),
        "born": F.col("born"),
        "attempt": F.col("step.attempt"),
        "due_at": F.when(begins, F.col("born") + F.col("delay"))
        .when(event == "released", F.col("born") + F.col("delay") + 1500)
        .otherwise(0),
        "priority": F.when(begins, 2).otherwise(0),
        "ttl": F.lit(0),
        "tries": F.when(begins, 5).otherwise(0),
        "reason": F.when(event == "dead", "tries").otherwise(""),
        "body": F.when(begins, F.encode(F.concat(F.lit('{"order": '), F.col("i").cast("string"), F.lit("}")), "UTF-8")),
        "attributes": F.lit(None),
        "batch": F.when(begins & (F.col("i") % 4 == 0), F.concat(F.lit("batch-"), F.col("i") % 7)).otherwise(""),
        "was": F.lit(0),
        "status": F.lit(0),
        "ms": F.lit(0),
        "join": F.lit(None),
        "date": F.to_date(F.timestamp_millis(F.col("born") + F.col("step.after"))),
    }
    return steps.select(*(columns[field.name].cast(field.dataType).alias(field.name) for field in EVENTS.fields))


def held(spark: SparkSession, jobs: int, *, start: int = START) -> DataFrame:
    """What the store holds of them, as a scan has it: all that has not ended, but one in 100,000."""
    place = F.expr("case when i % 100 = 0 then 'dead' when i % 100 in (1, 93) then 'leased' else 'delayed' end")
    each = spark.range(jobs).withColumnRenamed("id", "i")
    alive = each.where("i % 100 in (0, 1, 93, 94, 95, 96, 97, 98) and i % 100000 != 95")
    return alive.select(
        F.lit("default").alias("pool"),
        F.lit("bench").alias("namespace"),
        F.concat(F.lit("queue-"), (F.col("i") % QUEUES).cast("string")).alias("queue"),
        F.concat(F.lit("01JCV7ZK5N"), F.lpad(F.hex("i"), 16, "0")).alias("id"),
        (F.lit(start) + (F.col("i") * (DAY_MS // 2) / jobs).cast("long")).alias("born"),
        place.alias("state"),
    )


def make(spark: SparkSession, lake: Lake, jobs: int, *, only: str = "true") -> int:
    """Write the history into a lake and the scan beside it; answers how many events there are."""
    staged = lake.events.stage(history(spark, jobs, only=only))
    ends = staged.read().groupBy("node").agg(F.count("*"), F.max("seq"), F.min("ts")).collect()
    rows = sum(count for _, count, _, _ in ends)
    about = EventsAbout(
        nodes={node: NodeState(ranges=[(1, last)], first_at=first_at) for node, _, last, first_at in ends},
        events=rows,
        purges=(),
    )
    lake.events.publish(staged, after=lake.events.manifest(), about=msgspec.to_builtins(about))
    held(spark, jobs).write.parquet(f"{lake.folder}/scan")
    return rows


def add_day(spark: SparkSession, lake: Lake, jobs: int, *, start: int) -> None:
    """Add the events of more jobs, which are born from `start` on, to a lake."""
    manifest = lake.events.manifest()
    staged = lake.events.stage(history(spark, jobs, start=start))
    lake.events.publish(staged, after=manifest, about=manifest.about)
