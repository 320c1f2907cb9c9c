"""Generated history: weeks of jobs that repeat by the hour of the week, with noise that is the same in every run."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from duetime.spark.schemas import JOBS

HOUR = 3_600_000
DAY = 24 * HOUR
WEEK = 7 * DAY

PUSHED_AHEAD_MS = 30 * 60_000
"""Most jobs are pushed half an hour before they are due ..."""
BOOKED_AHEAD_MS = 10 * DAY
"""... and one in four ten days before."""


def jobs_of_weeks(spark: SparkSession, now: int, *, weeks: int, per_hour: int) -> DataFrame:
    """Jobs of `weeks` before now and of the ten days after it, as far as they are pushed by now.

    An hour of the day has up to `per_hour` jobs at noon, few at night, half as many on the days at the end of the week.
    """
    hours = spark.range(-weeks * 168, 240).withColumn("start", F.lit(now) + F.col("id") * F.lit(HOUR))
    of_day = F.pmod(F.floor(F.col("start") / F.lit(HOUR)), F.lit(24))
    of_week = F.pmod(F.floor(F.col("start") / F.lit(DAY)), F.lit(7))
    shape = F.pow(F.sin(of_day / 24 * F.lit(3.14159)), 2) * F.when(of_week < 5, 1.0).otherwise(0.5)
    noise = 0.9 + F.pmod(F.hash("start"), F.lit(1000)) / 5000
    counted = hours.withColumn("count", F.round(shape * noise * per_hour + 1).cast("int"))
    rows = counted.withColumn("n", F.explode(F.expr("sequence(1, count)")))
    due = F.col("start") + F.floor(F.col("n") / F.col("count") * (HOUR - 1))
    ahead = F.when(F.col("n") % 4 == 0, BOOKED_AHEAD_MS).otherwise(PUSHED_AHEAD_MS)
    made = rows.select(
        F.lit("default").alias("pool"),
        F.lit("crm").alias("namespace"),
        F.lit("recall").alias("queue"),
        F.concat_ws("-", "start", "n").alias("id"),
        due.alias("first_due_at"),
        (due - ahead).alias("accepted_at"),
    ).where(F.col("accepted_at") <= now)
    is_done = F.col("first_due_at") < now
    return made.select(
        *(
            {
                "born": F.col("accepted_at"),
                "due_at": F.col("first_due_at"),
                "outcome": F.when(is_done, "acked").otherwise("waiting"),
                "ended_at": F.when(is_done, F.col("first_due_at") + 50),
                "acked_at": F.when(is_done, F.col("first_due_at") + 50),
                "first_delivered_at": F.when(is_done, F.col("first_due_at") + 4),
                "lateness_ms": F.when(is_done, 4),
                "batch": F.lit(""),
            }.get(field.name, F.col(field.name) if field.name in made.columns else F.lit(None))
            .cast(field.dataType)
            .alias(field.name)
            for field in JOBS.fields
        )
    )
