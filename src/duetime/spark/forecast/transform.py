"""Load and capacity from the tables `jobs` and `stats`: pure transforms.

Load is counted by queue and hour after an origin (now, or a past moment for the back-test). Three numbers are kept
apart: what was known at the origin (*pending*), what came later (*arrived*), and what the weeks before the origin say
about what comes later (*expected*): the same hour of the week, counting only jobs that were not yet pushed at the
same moment of their week. So jobs pushed a month ahead are not counted twice, and those pushed a minute ahead are
not forgotten.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
WEEK_MS = 7 * DAY_MS
SATURATED_MS = 1000
"""If the median delivery of a minute was later than this, the consumers were working at their limit."""

QUEUE = ("namespace", "queue")


def load_ahead(jobs: DataFrame, origins: Sequence[int], horizon_ms: int) -> DataFrame:
    """Per origin, queue and hour after it: jobs that fell due, `pending` at the origin or `arrived` after it.

    A job that was removed before it was due is no load, but was pending if the origin lies before its removal.
    """
    rows = _due(jobs).withColumn("origin", _each(origins)).where(_falls_in("origin", horizon_ms))
    removed_early = F.coalesce(F.col("ended_at") < F.col("due"), F.lit(False))
    known = F.col("accepted_at") <= F.col("origin")
    still_there = F.coalesce(F.col("ended_at") > F.col("origin"), F.lit(True))
    return (
        rows.groupBy("origin", *QUEUE, _hour("due", "origin").alias("hour"))
        .agg(
            F.count_if(known & still_there).alias("pending"),
            F.count_if(~known & ~removed_early).alias("arrived"),
            F.count_if(~removed_early).alias("actual"),
        )
        .select("origin", *QUEUE, "hour", "pending", "arrived", "actual")
    )


def expected_ahead(
    jobs: DataFrame, origins: Sequence[int], horizon_ms: int, *, season_ms: int = WEEK_MS, seasons: int = 4
) -> DataFrame:
    """Per origin, queue and hour after it: jobs due in that hour of the past seasons that were pushed after its origin.

    `total` is the sum over the seasons; the caller divides it by the number of seasons that the history covers.
    """
    rows = _due(jobs).withColumn("origin", _each(origins)).where(F.col("due") < F.col("origin"))
    back = F.floor((F.col("origin") - F.col("due") - 1) / F.lit(season_ms)) + 1
    rows = rows.withColumn("back", back).where(F.col("back") <= seasons)
    rows = rows.withColumn("then", F.col("origin") - F.col("back") * F.lit(season_ms))
    came_later = F.col("accepted_at") > F.col("then")
    removed_early = F.coalesce(F.col("ended_at") < F.col("due"), F.lit(False))
    return (
        rows.where(came_later & ~removed_early & _falls_in("then", horizon_ms))
        .groupBy("origin", *QUEUE, _hour("due", "then").alias("hour"))
        .agg(F.count("*").alias("total"))
    )


def measured_capacity(stats: DataFrame) -> DataFrame:
    """Per queue: deliveries a minute. `saturated` is the median of the minutes with a backlog, `peak` the best minute.

    A queue that never had a backlog shows its demand only: its peak is a lower bound of what its consumers could do.
    """
    had_backlog = (F.col("lateness_p50_ms") > SATURATED_MS) & (F.col("delivered") > 0)
    return stats.groupBy(*QUEUE).agg(
        F.median(F.when(had_backlog, F.col("delivered"))).alias("saturated"),
        F.max("delivered").alias("peak"),
        (F.sum("delivered") / F.greatest(F.sum("delivered") - _retries(), F.lit(1))).alias("deliveries_per_job"),
    )


def _retries() -> Column:
    return F.sum(F.col("released") + F.col("lease_expired") - F.col("dead"))


def _due(jobs: DataFrame) -> DataFrame:
    """The columns and jobs that count here; a job without an `accepted` entry has no due time to go by."""
    return jobs.where(F.col("accepted_at").isNotNull() & F.col("first_due_at").isNotNull()).select(
        *QUEUE, F.greatest("first_due_at", "accepted_at").alias("due"), "accepted_at", "ended_at"
    )


def _falls_in(start: str, horizon_ms: int) -> Column:
    return (F.col("due") >= F.col(start)) & (F.col("due") < F.col(start) + F.lit(horizon_ms))


def _hour(at: str, start: str) -> Column:
    return F.floor((F.col(at) - F.col(start)) / F.lit(HOUR_MS)).cast("int")


def _each(origins: Sequence[int]) -> Column:
    """A row per origin; an origin that is given twice must not count twice."""
    return F.explode(F.array(*(F.lit(origin).cast("bigint") for origin in sorted(set(origins)))))
