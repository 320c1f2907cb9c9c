"""What a load would do: how many jobs fall due in which hour, which rows are bad, and how some jobs look.

Reads the source once, pushes nothing and asks no store. Runs on the driver.
"""

from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duetime.model.clock import SystemClock
from duetime.spark.load.job_rows import job_rows
from duetime.spark.load.options import LoadOptions

HOUR_MS = 3_600_000


class Hour(NamedTuple):
    """Jobs due from `at` (epoch milliseconds) on, for an hour."""

    at: int
    jobs: int


class Preview(NamedTuple):
    rows: int
    bad: int
    reasons: dict[str, int]
    hours: list[Hour]
    sample: list[dict[str, Any]]


def preview(frame: DataFrame, options: LoadOptions, *, sample: int = 5) -> Preview:
    rows = job_rows(frame, options, SystemClock().now_ms()).cache()
    try:
        hour = (F.floor(F.col("due_at") / HOUR_MS) * HOUR_MS).alias("hour")
        counted = rows.groupBy("reason", hour).count().collect()
        some = rows.where(F.col("reason").isNull()).orderBy("due_at", "id").limit(sample).collect()
    finally:
        rows.unpersist()
    hours: dict[int, int] = {}
    reasons: dict[str, int] = {}
    for row in counted:
        if row["reason"] is None:
            hours[row["hour"]] = hours.get(row["hour"], 0) + row["count"]
        else:
            reasons[row["reason"]] = reasons.get(row["reason"], 0) + row["count"]
    bad = sum(reasons.values())
    return Preview(
        rows=bad + sum(hours.values()),
        bad=bad,
        reasons=dict(sorted(reasons.items())),
        hours=[Hour(at, jobs) for at, jobs in sorted(hours.items())],
        sample=[row.asDict() for row in some],
    )
