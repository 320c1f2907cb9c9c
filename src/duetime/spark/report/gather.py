"""Collects what the report says from the lake's tables. Runs on the driver, which collects a few thousand rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duetime.spark.audit.transform import law
from duetime.spark.report.data import LEFT, RIGHT, BatchLine, Heat, Period, Point, QueueBalance, QueueLine, Report, day
from duetime.spark.stats.transform import COUNTS, merged, minute_stats, share_within

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
STEPS = (SECOND, 5 * SECOND, 15 * SECOND, MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, DAY)
MOST_POINTS = 200
MOST_BATCHES = 50
HEAT_ROWS = 31


@dataclass(frozen=True)
class Tables:
    """The tables that a report is made of; `stats` and `events` are already cut to the period."""

    stats: DataFrame
    events: DataFrame
    jobs: DataFrame


def step_for(start_at: int, end_at: int) -> int:
    """The shortest step that keeps the charts legible."""
    return next((step for step in STEPS if (end_at - start_at) / step <= MOST_POINTS), DAY)


def gather(tables: Tables, period: Period, *, target_ms: int, written_at: int) -> Report:
    stats = tables.stats
    if period.step_ms < MINUTE:
        stats = minute_stats(tables.events, tables.jobs, step_ms=period.step_ms).where(_within(period))
    stats = stats.cache()
    try:
        queues = [_queue_line(row) for row in _by_queue(stats, target_ms).collect()]
        whole = _queue_line(merged(stats, []).withColumn("on_time", share_within("lateness_sketch", target_ms)).head())
        return Report(
            period=period,
            target_ms=target_ms,
            written_at=written_at,
            whole=whole,
            points=_points(stats, period),
            queues=sorted(queues, key=lambda one: one.name),
            balances=balances(tables.jobs),
            dead_reasons=_dead_reasons(tables.events),
            heat=_heat(stats, period),
            batches=_batches(tables.jobs, period),
            peak=_peak(stats),
        )
    finally:
        stats.unpersist()


def balances(jobs: DataFrame) -> list[QueueBalance]:
    """The conservation law per queue, over every job that the lake knows, by the journal alone."""
    return balances_of(law(jobs))


def balances_of(stated: DataFrame) -> list[QueueBalance]:
    """The law per queue, from that per queue and batch. RIGHT has no lost jobs, so they show as missing."""
    words = (*LEFT, *RIGHT)
    rows = stated.groupBy("namespace", "queue").agg(*(F.sum(word).alias(word) for word in words)).collect()
    return [QueueBalance(row.namespace, row.queue, {word: row[word] for word in words}) for row in rows]


def _within(period: Period) -> Any:
    return (F.col("minute_at") >= period.start_at) & (F.col("minute_at") < period.end_at)


def _by_queue(stats: DataFrame, target_ms: int) -> DataFrame:
    return merged(stats, ["namespace", "queue"]).withColumn("on_time", share_within("lateness_sketch", target_ms))


def _queue_line(row: Any) -> QueueLine:
    known = row.asDict()
    return QueueLine(
        namespace=known.get("namespace", ""),
        queue=known.get("queue", ""),
        counts={name: known[name] for name in COUNTS},
        p50=row.lateness_p50_ms,
        p95=row.lateness_p95_ms,
        p99=row.lateness_p99_ms,
        run_p50=row.run_p50_ms,
        run_p99=row.run_p99_ms,
        on_time=row.on_time,
    )


def _points(stats: DataFrame, period: Period) -> list[Point]:
    """One point per step, also where nothing happened: else a chart would draw a straight line across the gap."""
    found = {row.minute_at: row for row in merged(stats, [], period.step_ms).collect()}
    first = period.start_at - period.start_at % period.step_ms
    return [_point(at, found.get(at)) for at in range(first, period.end_at, period.step_ms)]


def _point(at: int, row: Any) -> Point:
    if row is None:
        return Point(at, {})
    counts = {name: row[name] for name in COUNTS}
    return Point(at, counts, row.lateness_p50_ms, row.lateness_p95_ms, row.lateness_p99_ms)


def _peak(stats: DataFrame) -> int:
    """Deliveries in the busiest minute of the clock, whatever the steps of the charts are."""
    minute = F.col("minute_at") - F.pmod("minute_at", F.lit(MINUTE))
    row: Any = stats.groupBy(minute.alias("at")).agg(F.sum("delivered").alias("n")).agg(F.max("n").alias("n")).head()
    return row["n"] or 0


def _dead_reasons(events: DataFrame) -> dict[str, int]:
    rows = events.where(F.col("event") == "dead").groupBy("reason").count().collect()
    return {row["reason"] or "not given": row["count"] for row in rows}


def _heat(stats: DataFrame, period: Period) -> Heat:
    """Days by hours. For a period up to 36 hours: queues by hours, or by shorter times up to two hours."""
    length = period.end_at - period.start_at
    delivered = stats.where(F.col("delivered") > 0)
    if length > 36 * HOUR:
        return _heat_of_days(delivered)
    unit = max(period.step_ms, MINUTE) if length <= 2 * HOUR else HOUR
    unit = period.step_ms if length <= 5 * MINUTE else unit
    at = F.col("minute_at") - F.pmod("minute_at", F.lit(unit))
    rows = delivered.groupBy("namespace", "queue", at.alias("at")).agg(F.sum("delivered").alias("n")).collect()
    busiest = _busiest([(f"{row.namespace}/{row.queue}", row.n) for row in rows])
    first = period.start_at - period.start_at % unit
    columns = list(range(first, period.end_at, unit))
    found = {(f"{row.namespace}/{row.queue}", row["at"]): row.n for row in rows}
    values = [[found.get((name, column), 0) for column in columns] for name in busiest]
    word = "hour" if unit == HOUR else "minute" if unit >= MINUTE else "second"
    return Heat(busiest, [_clock(column, unit) for column in columns], values, f"queue and {word}")


def _heat_of_days(delivered: DataFrame) -> Heat:
    at = F.col("minute_at") - F.pmod("minute_at", F.lit(HOUR))
    rows = delivered.groupBy(at.alias("at")).agg(F.sum("delivered").alias("n")).collect()
    found = {row["at"]: row.n for row in rows}
    days = sorted({at - at % DAY for at in found})
    shown = list(range(days[0], days[-1] + DAY, DAY))[-HEAT_ROWS:] if days else []
    values = [[found.get(start + hour * HOUR, 0) for hour in range(24)] for start in shown]
    return Heat([day(start) for start in shown], [f"{hour:02d}" for hour in range(24)], values, "day and hour")


def _busiest(counts: Sequence[tuple[str, int]]) -> list[str]:
    sums: dict[str, int] = {}
    for name, count in counts:
        sums[name] = sums.get(name, 0) + count
    return sorted(sums, key=lambda name: -sums[name])[:12]


def _clock(at: int, unit: int) -> str:
    seconds = at % DAY // SECOND
    text = f"{seconds // 3600:02d}:{seconds % 3600 // 60:02d}"
    return text if unit >= MINUTE else f"{text}:{seconds % 60:02d}"


def _batches(jobs: DataFrame, period: Period) -> list[BatchLine]:
    """Batches with anything in the period, the youngest first."""
    rows = (
        jobs.where(F.col("batch") != "")
        .groupBy("batch", "namespace", "queue")
        .agg(
            F.count("*").alias("jobs"),
            F.count_if(F.col("outcome") == "acked").alias("acked"),
            F.count_if(F.col("outcome") == "dead").alias("dead"),
            F.count_if(F.col("outcome").isin("waiting", "leased")).alias("open"),
            F.min("first_due_at").alias("first_due_at"),
            F.max("first_due_at").alias("last_due_at"),
            F.min("accepted_at").alias("accepted_at"),
            F.max("last_at").alias("last_at"),
        )
        .where((F.col("accepted_at") < period.end_at) & (F.greatest("last_at", "last_due_at") >= period.start_at))
        .orderBy(F.desc("accepted_at"), "batch")
        .limit(MOST_BATCHES)
        .collect()
    )
    return [
        BatchLine(
            row.batch,
            f"{row.namespace}/{row.queue}",
            jobs=row.jobs,
            acked=row.acked,
            dead=row.dead,
            open=row.open,
            first_due_at=row.first_due_at or 0,
            last_due_at=row.last_due_at or 0,
        )
        for row in rows
    ]
