"""php-delayqueue's counters, from `stats`: written, notified, deleted and failed, by topic and day, and in total.

A topic is a queue. A push that made a job counts as written, also if it replaced another job. A callback that was made
counts as notified, and also as failed if it got no good answer. A job that its owner removed counts as deleted.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duetime.spark.stats.transform import QUEUE

COUNTERS = ("written", "notified", "deleted", "failed")


def daily_counters(stats: DataFrame) -> DataFrame:
    """A row per topic and day; php-delayqueue calls these `tw`, `tn`, `tdel` and `te`."""
    return stats.groupBy(*QUEUE, "date").agg(*_sums())


def total_counters(stats: DataFrame) -> DataFrame:
    """A row per topic; php-delayqueue calls these `total_write`, `total_notify` and `total_del`."""
    return stats.groupBy(*QUEUE).agg(*_sums())


def _sums() -> list[Column]:
    parts = {
        "written": ("accepted", "adopted", "replaced"),
        "notified": ("notified",),
        "deleted": ("cancelled", "deleted"),
        "failed": ("notify_failed",),
    }
    return [
        F.sum(sum((F.col(part) for part in parts[name][1:]), F.col(parts[name][0]))).alias(name) for name in COUNTERS
    ]
