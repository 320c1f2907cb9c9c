"""The arrivals of a past window in their order, which a replay is made of. A pure transform.

An arrival is a job that was accepted then: when, how long before it was due, and how long it ran once it was delivered.
The id is not part of it: a replayed job is another job.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duetime.journal.events import REPEATED
from duetime.model.job import Event
from duetime.spark.schemas import KEY

BEGINS = (Event.ACCEPTED.value, Event.ADOPTED.value, Event.REPLACED.value)


def arrivals(events: DataFrame, jobs: DataFrame, *, start_at: int, end_at: int) -> DataFrame:
    """Per accepted job in [start_at, end_at): offset from the start, delay, options, size, run time (null: unknown).

    They are in the order of arrival. The last column is the body; Spark does not read it if the caller drops it.
    """
    # Jobs that reconcile put back have an attempt, and repeated entries have a reason; both arrived before.
    came = F.col("event").isin(*BEGINS) & ((F.col("attempt") == 0) | (F.col("event") == Event.ADOPTED.value))
    came = came & (F.col("reason") != REPEATED)
    begun = events.where(came & (F.col("ts") >= start_at) & (F.col("ts") < end_at))
    run_times = jobs.select(*KEY, "run_ms")
    return (
        begun.join(run_times, on=list(KEY), how="left")
        .select(
            (F.col("ts") - F.lit(start_at)).alias("offset_ms"),
            F.greatest(F.col("due_at") - F.col("ts"), F.lit(0)).alias("delay_ms"),
            "priority",
            F.col("ttl").alias("ttl_ms"),
            "tries",
            F.coalesce(F.length("body"), F.lit(0)).alias("size"),
            "run_ms",
            "body",
            F.col("ts").alias("_ts"),
            F.col("id").alias("_id"),
        )
        .orderBy("_ts", "_id")
        .drop("_ts", "_id")
    )


def arrivals_by_second(arrived: DataFrame) -> DataFrame:
    """How many arrive in each second of the window; for a look before the replay."""
    second = F.floor(F.col("offset_ms") / 1000).alias("second")
    return arrived.groupBy(second).agg(F.count("*").alias("jobs"), F.sum("size").alias("bytes"))
