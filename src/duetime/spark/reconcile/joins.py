"""The counts of task groups that a store may have lost: how many jobs of each join are done, as the journal knows.

A count is only ever raised, to the number of jobs that are done for good: each job once, and none that is still to be
delivered. So a store that has lost nothing is not changed, and no run makes a callback run early or twice. A join is
left alone if a finish made it whole, or if the job that follows from it is known, to the journal or to the store.

A job whose finish found it gone was done by a consumer while the store was wiped. If all jobs of a join are done and
one of them is such a job, no task is left to push what follows: that job is put back, and delivered once more.
DataFrame -> DataFrame.
"""

from collections.abc import Iterator
from itertools import groupby, islice

from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F

from duetime.model.job import MAX_RESULT_MS, STEP_JOBS, Event
from duetime.model.names import Queue
from duetime.spark.audit.transform import LOST, STORE_KEY, Scanned
from duetime.spark.store_view import StoreView
from duetime.stores.finishes import JoinCount

JOIN_KEY = ("namespace", "queue", "name")
READ_BACK_MS = 2 * MAX_RESULT_MS
"""How far back finishes are read. A count is kept for MAX_RESULT_MS after the last one."""


def finishes(events: DataFrame, scanned: Scanned) -> DataFrame:
    """EVENTS -> a row per job that was finished as part of a join: JOIN_KEY, `id`, `born`, `of`, `then`, `life_ms`,
    `seen`, which is 0 if every finish found the job gone, and `at`, the time of the last one.
    """
    joined = F.col("join.name").isNotNull() & (F.col("event") == Event.ACKED.value)
    in_scope = (F.col("pool") == scanned.pool) & (F.col("ts") > scanned.began_at - READ_BACK_MS)
    return (
        events.where(joined & in_scope)
        .groupBy("namespace", "queue", F.col("join.name").alias("name"), "id", "born")
        .agg(
            *(F.max(f"join.{name}").alias(name) for name in ("of", "then", "life_ms")),
            F.max(F.coalesce("join.seen", F.lit(0))).alias("seen"),
            F.max("ts").alias("at"),
        )
    )


def under_way(finished: DataFrame) -> DataFrame:
    """Without the joins that a finish made whole."""
    whole = finished.where("seen = of").select(*JOIN_KEY).distinct()
    return finished.join(whole, on=list(JOIN_KEY), how="left_anti")


def without_callback(finished: DataFrame, known: DataFrame) -> DataFrame:
    """Without the joins whose following job is among `known` (KEY): they are whole, though no entry says so."""
    callbacks = known.select("namespace", "queue", F.col("id").alias("then"))
    return finished.join(callbacks, on=["namespace", "queue", "then"], how="left_anti")


def done(finished: DataFrame, jobs: DataFrame, scanned: Scanned) -> DataFrame:
    """Without jobs that are not done for good. A finish that found its job gone counts if `jobs` (JOBS) has no other
    end of the job. A job that the store holds after its end is delivered again, and counted then.
    """
    acked = jobs.where(F.col("outcome") == Event.ACKED.value).select(*STORE_KEY)
    found_gone = finished.where("seen = 0").join(acked, on=list(STORE_KEY), how="left_semi")
    counted = finished.where("seen > 0").unionByName(found_gone)
    held = scanned.jobs.select(*STORE_KEY, F.lit(True).alias("is_held"))
    both = counted.join(held, on=list(STORE_KEY), how="left")
    return both.where(F.col("is_held").isNull() | (F.col("at") >= scanned.began_at)).select(*finished.columns)


def counts(done: DataFrame, scanned: Scanned) -> DataFrame:
    """JOIN_KEY, `count` and `left_ms` of each join that still counts; `again` is the `id` and `born` of the job that is
    to be put back so that it finishes the join, null if other jobs are left to do that.
    """
    join = Window.partitionBy(*JOIN_KEY)
    # Where the store stopped counting for lack of finishes, it began anew.
    is_first = F.col("at") - F.lag("at").over(join.orderBy("at")) >= F.col("life_ms")
    begun = done.withColumn("is_first", is_first).withColumn("first", F.max(F.expr("if(is_first, at, 0)")).over(join))
    summed = (
        begun.where("at >= first")
        .groupBy(*JOIN_KEY)
        .agg(
            F.count(F.lit(1)).cast("int").alias("seen"),
            F.max("of").alias("of"),
            F.max(F.col("at") + F.col("life_ms")).alias("until"),
            F.max("life_ms").alias("life_ms"),
            F.max(F.when(F.col("seen") == 0, F.struct("id", "born"))).alias("found_gone"),
        )
    )
    is_done = F.col("seen") == F.col("of")
    return (
        summed.where((F.col("until") > scanned.ended_at) & (F.col("seen") <= F.col("of")))
        .where(~is_done | F.col("found_gone").isNotNull())
        .select(
            *JOIN_KEY,
            F.when(is_done, F.col("of") - 1).otherwise(F.col("seen")).alias("count"),
            F.least(F.col("until") - scanned.ended_at, "life_ms").alias("left_ms"),
            F.when(is_done, F.col("found_gone")).alias("again"),
        )
    )


def put_back(counted: DataFrame, jobs: DataFrame) -> DataFrame:
    """The rows of `jobs` that `counts` wants to be put back, as lost ones."""
    again = counted.where("again is not null").select("namespace", "queue", "again.id", "again.born")
    return jobs.join(again, on=list(STORE_KEY), how="left_semi").withColumn("outcome", F.lit(LOST))


def raise_counts(counted: DataFrame, view: StoreView) -> None:
    """Let the store have the counts. Runs on the driver, a part of them at a time. Raises DuetimeError."""
    ordered = counted.where("count > 0").orderBy(*JOIN_KEY)

    def queue_of(row: Row) -> Queue:
        return Queue(row["namespace"], row["queue"])

    rows: Iterator[Row] = ordered.toLocalIterator()
    for queue, of_queue in groupby(rows, key=queue_of):
        while some := list(islice(of_queue, STEP_JOBS)):
            view.raise_joins(queue, [JoinCount(row["name"], row["count"], row["left_ms"]) for row in some])
