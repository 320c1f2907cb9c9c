"""php-delayqueue's counters, from `stats`: written, notified, deleted and failed, by topic and day, and in total.

A topic is a queue. Written is a push that made a job (also in place of another); notified is a callback that was made
and failed one that got no good answer; deleted is a job removed by its owner, waiting or dead.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duetime.spark.stats.transform import QUEUE

COUNTERS = ("written", "notified", "deleted", "failed")


def daily_counters(stats: DataFrame) -> DataFrame:
    """A row per topic and day: `tw`, `tn`, `tdel` and `te` of a day there."""
    return stats.groupBy(*QUEUE, "date").agg(*_sums())


def total_counters(stats: DataFrame) -> DataFrame:
    """A row per topic: `total_write`, `total_notify` and `total_del` there."""
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
