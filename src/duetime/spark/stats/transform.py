"""What happened per queue and minute, how late deliveries were and how long jobs ran, in a form that can be merged.

Pure transforms, built on the driver and run by executors. Counts come from `events`, lateness and run time from `jobs`:
a job's lateness counts in the minute of its first delivery, its run time in the minute of its ack. Percentiles of
percentiles mean nothing, so each row carries KLL sketches; `merged` adds rows up to any longer step or fewer keys.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duetime.journal.events import REPEATED
from duetime.model.job import Event
from duetime.spark.schemas import STATS

MINUTE_MS = 60_000
QUEUE = ("pool", "namespace", "queue")
OF_NODES = (Event.HEARTBEAT, Event.CLOSED)
COUNTED = tuple(event.value for event in Event if event not in OF_NODES)
COUNTS = (*COUNTED, "notify_failed")
MEASURES = ("lateness", "run")
PERCENTILES = (("p50", 0.50), ("p95", 0.95), ("p99", 0.99))


def minute_stats(events: DataFrame, jobs: DataFrame, *, step_ms: int = MINUTE_MS) -> DataFrame:
    """`events`, `jobs` -> `stats`: a row per queue and minute in which anything happened.

    A shorter step is for looking at a short period closely; the table is made of minutes.
    """
    rows = _happenings(events).unionByName(_lateness(jobs)).unionByName(_run_times(jobs))
    grouped = rows.groupBy(*QUEUE, _floor("at", step_ms).alias("minute_at")).agg(
        *(_count_of(event) for event in COUNTED),
        F.count_if(_notify_failed()).alias("notify_failed"),
        *(column for measure in MEASURES for column in _measured(measure)),
    )
    return grouped.transform(_as_stats)


def merged(stats: DataFrame, keys: Sequence[str], step_ms: int | None = None) -> DataFrame:
    """Rows of `stats` added up by these keys, and by steps of `step_ms` milliseconds (as `minute_at`) if given.

    Every sum and percentile is what it would be had the rows been one from the start.
    """
    step = [] if step_ms is None else [_floor("minute_at", step_ms).alias("minute_at")]
    by: list[Column] = [F.col(key) for key in keys]
    grouped = stats.groupBy(*by, *step).agg(
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in COUNTS),
        *(F.max(f"{measure}_max_ms").alias(f"{measure}_max_ms") for measure in MEASURES),
        *(F.kll_merge_agg_bigint(f"{measure}_sketch").alias(f"{measure}_sketch") for measure in MEASURES),
    )
    return grouped.select(*keys, *(["minute_at"] if step else []), *_counts_and_measures())


def share_within(sketch: str, limit_ms: int) -> Column:
    """The share of the sketch's values that are not above the limit; null if it has none."""
    return F.when(_has_values(sketch), F.kll_sketch_get_rank_bigint(sketch, F.lit(limit_ms)))


def _happenings(events: DataFrame) -> DataFrame:
    unmeasured = [F.lit(None).cast("bigint").alias(f"{measure}_ms") for measure in MEASURES]
    of_jobs = ~F.col("event").isin([event.value for event in OF_NODES])
    # A job that reconcile put back has an attempt above 0; it was accepted, and counted, before.
    put_back = F.col("event").isin(Event.ACCEPTED.value, Event.REPLACED.value) & (F.col("attempt") > 0)
    # A repeated entry was counted before, unless a crash lost the first entry.
    happened = of_jobs & ~put_back & (F.col("reason") != REPEATED)
    return events.where(happened).select(*QUEUE, F.col("ts").alias("at"), "event", "status", *unmeasured)


def _lateness(jobs: DataFrame) -> DataFrame:
    return _measurement(jobs.where(F.col("lateness_ms").isNotNull()), "first_delivered_at", "lateness")


def _run_times(jobs: DataFrame) -> DataFrame:
    return _measurement(jobs.where(F.col("run_ms").isNotNull()), "acked_at", "run")


def _measurement(jobs: DataFrame, at: str, measured: str) -> DataFrame:
    values = [
        (F.col(f"{one}_ms") if one == measured else F.lit(None).cast("bigint")).alias(f"{one}_ms") for one in MEASURES
    ]
    return jobs.select(
        *QUEUE, F.col(at).alias("at"), F.lit("").alias("event"), F.lit(0).alias("status"), *values
    ).where(F.col("at").isNotNull())


def _floor(column: str, step_ms: int) -> Column:
    return F.col(column) - F.pmod(F.col(column), F.lit(step_ms))


def _count_of(event: str) -> Column:
    return F.count_if(F.col("event") == event).alias(event)


def _notify_failed() -> Column:
    answered_well = F.col("status").between(200, 299)
    return (F.col("event") == Event.NOTIFIED.value) & ~answered_well


def _measured(measure: str) -> tuple[Column, Column]:
    value = F.col(f"{measure}_ms")
    return F.max(value).alias(f"{measure}_max_ms"), F.kll_sketch_agg_bigint(value).alias(f"{measure}_sketch")


def _as_stats(grouped: DataFrame) -> DataFrame:
    date = F.to_date(F.timestamp_millis("minute_at")).alias("date")
    wide = grouped.select(*QUEUE, "minute_at", *_counts_and_measures(), date)
    return wide.select(*(F.col(field.name).cast(field.dataType).alias(field.name) for field in STATS.fields))


def _counts_and_measures() -> list[Column]:
    """Counts, rates, and for each measure its percentiles and its sketch; what was never measured is null."""
    columns = [F.col(name) for name in COUNTS]
    for measure in MEASURES:
        sketch = f"{measure}_sketch"
        columns += [_percentile(sketch, rank).alias(f"{measure}_{name}_ms") for name, rank in PERCENTILES]
        columns.append(F.col(f"{measure}_max_ms"))
        columns.append(F.when(_has_values(sketch), F.col(sketch)).alias(sketch))
    retries = F.col("released") + F.col("lease_expired")
    columns.append(_rate(retries).alias("retry_rate"))
    columns.append(_rate(F.col("dead")).alias("dead_rate"))
    return columns


def _percentile(sketch: str, rank: float) -> Column:
    return F.when(_has_values(sketch), F.kll_sketch_get_quantile_bigint(sketch, F.lit(rank)))


def _has_values(sketch: str) -> Column:
    """To be asked first: Spark ends the query if an empty sketch is asked for a quantile."""
    return F.kll_sketch_get_n_bigint(sketch) > 0


def _rate(count: Column) -> Column:
    return F.when(F.col("delivered") > 0, count / F.col("delivered"))
