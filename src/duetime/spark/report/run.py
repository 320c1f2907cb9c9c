"""`duetime pipeline report`: from the lake to one HTML file. Runs on the driver; a repeated run replaces the file."""

import os
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

from duetime.model.errors import DuetimeError
from duetime.model.ids import timestamp_ms
from duetime.spark.audit.transform import ERRORS
from duetime.spark.lake.lake import Lake
from duetime.spark.report.data import LEFT, RIGHT, Period, Report
from duetime.spark.report.gather import HOUR, MINUTE, Tables, balances_of, gather, step_for
from duetime.spark.report.write import write_report

TARGET_MS = 50
"""Several times the 99th percentile of a healthy store on one machine, so a value above it is worth a look."""


class NothingToReport(DuetimeError):
    """The lake has nothing in the period."""

    code = "nothing_to_report"
    status = 404


@dataclass(frozen=True)
class Asked:
    """The period that was asked for, without `end_at` itself. The report leaves out its ends if they have no data."""

    start_at: int
    end_at: int
    target_ms: int = TARGET_MS


def make_report(lake: Lake, asked: Asked, *, written_at: int) -> Report:
    """A report that begins with a whole minute. Raises NothingToReport, which says what to run first."""
    asked = replace(asked, start_at=asked.start_at - asked.start_at % MINUTE)
    days = {str(datetime.fromtimestamp(at / 1000, UTC).date()) for at in _every_day(asked)}
    stats = lake.stats.read(only=lambda file: file.date in days)
    stats = stats.where((F.col("minute_at") >= asked.start_at) & (F.col("minute_at") < asked.end_at))
    ends: Any = stats.agg(F.min("minute_at").alias("first"), F.max("minute_at").alias("last")).head()
    if ends["first"] is None:
        raise NothingToReport(
            "the lake has no stats in this period: run `duetime pipeline ingest`, `lifecycle` and `stats` first"
        )
    period = _period(asked, ends["first"], ends["last"])
    events = lake.events.read(only=lambda file: file.date in days).where(
        (F.col("ts") >= period.start_at) & (F.col("ts") < period.end_at)
    )
    tables = Tables(stats, events, lake.jobs.read())
    return _with_audit(gather(tables, period, target_ms=asked.target_ms, written_at=written_at), lake)


def write_file(report: Report, path: Path) -> None:
    """Write the file whole or not at all."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    aside.write_text(write_report(report), encoding="utf-8")
    os.replace(aside, path)


def default_name(report: Report) -> str:
    start, end = (datetime.fromtimestamp(at / 1000, UTC) for at in (report.period.start_at, report.period.end_at))
    form = "%Y-%m-%d" if report.period.end_at - report.period.start_at > 36 * HOUR else "%Y-%m-%dT%H%M"
    return f"duetime-report-{start.strftime(form)}-to-{end.strftime(form)}.html"


def summary(report: Report) -> dict[str, Any]:
    """The headline numbers, for --json."""
    whole = report.whole
    terms = {word: sum(one.terms.get(word, 0) for one in report.balances) for word in (*LEFT, *RIGHT)}
    return {
        "start_at": report.period.start_at,
        "end_at": report.period.end_at,
        "queues": len(report.queues),
        "counts": dict(whole.counts),
        "lateness_ms": {"p50": whole.p50, "p95": whole.p95, "p99": whole.p99},
        "target_ms": report.target_ms,
        "on_time": whole.on_time,
        "law": {**terms, "missing": sum(one.missing for one in report.balances)},
        "defects": dict(report.defects),
    }


def _with_audit(report: Report, lake: Lake) -> Report:
    """The report with the law and the defects that the last audit found, if that is less than a day old."""
    runs = [one.name for one in lake.files.list(f"{lake.folder}/audit")]
    done = [run for run in runs if lake.files.list(f"{lake.folder}/audit/{run}/findings")]
    if not done or report.written_at - timestamp_ms(max(done)) > 24 * HOUR:
        return report
    folder = f"{lake.folder}/audit/{max(done)}"
    found = lake.spark.read.parquet(f"{folder}/findings").groupBy("kind").count().collect()
    return replace(
        report,
        audited_at=timestamp_ms(max(done)),
        balances=balances_of(lake.spark.read.parquet(f"{folder}/law")),
        defects={row["kind"]: row["count"] for row in found if row["kind"] in ERRORS},
    )


def _every_day(asked: Asked) -> range:
    day = 86_400_000
    return range(asked.start_at - asked.start_at % day, asked.end_at, day)


def _period(asked: Asked, first: int, last: int) -> Period:
    """The period that was asked for, without its empty ends: the report of a two-minute demo is not about a week."""
    start = max(asked.start_at, first)
    end = min(asked.end_at, last + MINUTE)
    if end - start > 36 * HOUR:  # whole days read better, and a week stays a week
        start, end = max(asked.start_at, start - start % (24 * HOUR)), min(asked.end_at, end + -end % (24 * HOUR))
    return Period(start, end, step_for(start, end))
