"""From any DataFrame to the rows of jobs: which columns there may be, and how Spark makes the rows.

`job_rows` is a pure transform. Each row comes out with all that a job has; for a row that cannot be a job, `reason`
says why. No row is dropped. `job_columns.py` says what the columns mean, for this and for the data source's writer
alike. Runs on the driver; the executors' Python workers do the work.
"""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DayTimeIntervalType,
    IntegralType,
    LongType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from duetime.model.clock import SystemClock
from duetime.model.errors import InvalidRequest
from duetime.spark.load.job_columns import SOURCE_PROBLEM, SOURCE_ROW, job_columns
from duetime.spark.load.options import LoadOptions
from duetime.spark.schemas import BYTES, INT, LONG, TEXT, columns

KNOWN = (
    *("id", "body", "due_at", "delay", "queue", "ttl", "tries", "priority", "attributes"),
    *("if_exists", "change", "version"),
)

ROWS = columns(
    id=TEXT,
    body=BYTES,
    due_at=LONG,
    queue=TEXT,
    ttl=LONG,
    tries=INT,
    priority=INT,
    attributes=TEXT,
    action=TEXT,
    reason=TEXT,
)
"""The same columns as `job_columns.SCHEMA`."""


class RowMaker:
    """Pickled to executors. `zone` is the session's time zone."""

    def __init__(self, options: LoadOptions, now_ms: int, zone: str) -> None:
        self._options, self._now_ms, self._zone = options, now_ms, zone

    def make(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield from job_columns(batch, self._options, self._now_ms, self._options.batch, self._zone).to_batches()


def job_rows(frame: DataFrame, options: LoadOptions, now_ms: int) -> DataFrame:
    """Rows of the schema ROWS. `now_ms` is the store's time, for rows that are due now or after a delay."""
    check_columns(frame.schema, options)
    zone = frame.sparkSession.conf.get("spark.sql.session.timeZone")
    rows: Any = latest(frame)  # mapInArrow's own annotations are incomplete
    return rows.mapInArrow(RowMaker(options, now_ms, str(zone)).make, ROWS)


def latest(frame: DataFrame) -> DataFrame:
    """Of a change feed with versions the last change of each job; any other frame as it is."""
    if not {"change", "version"} <= set(frame.columns):
        return frame
    job = Window.partitionBy("id", *(["queue"] if "queue" in frame.columns else [])).orderBy(F.desc("version"))
    return frame.withColumn("_number", F.row_number().over(job)).where("_number = 1").drop("_number")


def order(given: Collection[str]) -> list[str]:
    """The columns to sort by: rows that can go in one call are then together, in the order in which they fall due.

    Columns that were not given are left out: they are the same for all rows and would only slow down the comparisons.
    """
    groups = [name for name in ("action", "queue", "priority", "ttl", "tries") if name in given]
    return [*groups, *(["has_attributes"] if "attributes" in given else []), "due_at", "id"]


def check_columns(schema: Any, options: LoadOptions) -> dict[str, DataType]:
    """The types of the columns by name. Raises InvalidRequest, which names the column that is wrong."""
    kinds = {one.name: one.dataType for one in schema.fields if one.name not in (SOURCE_PROBLEM, SOURCE_ROW)}
    if unknown := sorted(set(kinds) - set(KNOWN)):
        raise InvalidRequest(f"unknown column of a job {unknown[0]!r}; there are {', '.join(KNOWN)}")
    if "body" not in kinds and not options.mode:
        raise InvalidRequest("the column body is missing: select the value that each job carries")
    for name, why in (
        ("id", "the column id is missing: jobs are cancelled and changed by their id"),
        ("due_at", "the column due_at is missing: a table that is kept in step says when each job is due"),
    ):
        needs = options.on_change or (name == "id" and (options.mode or "change" in kinds))
        if needs and name not in kinds:
            raise InvalidRequest(why)
    if "version" in kinds and "change" not in kinds:
        raise InvalidRequest("the column version orders the changes of a job: it needs a column change")
    if "due_at" in kinds and "delay" in kinds:
        raise InvalidRequest.not_both("delay", "due_at")
    for name, allowed in ALLOWED.items():
        if name in kinds and (not isinstance(kinds[name], allowed) or _has_variant(kinds[name])):
            raise InvalidRequest(
                f"the column {name} cannot be of type {kinds[name].simpleString()}{_hint(name, kinds[name])}"
            )
    return kinds


def _has_variant(kind: DataType) -> bool:
    match kind:
        case StructType():
            return any(_has_variant(field.dataType) for field in kind.fields)
        case ArrayType():
            return _has_variant(kind.elementType)
        case MapType():
            return _has_variant(kind.valueType)
        case _:
            return isinstance(kind, VariantType)


def _hint(name: str, kind: DataType) -> str:
    """What to do about a body or due time of the wrong type; empty for other columns."""
    if name == "body":
        return ": use to_json(body)" if _has_variant(kind) else ": use to_json(struct(...)) or cast it to string"
    if name != "due_at":
        return ""
    allowed = "; it must be a timestamp, a date, or epoch milliseconds (bigint)"
    if isinstance(kind, StringType):
        return f"{allowed}: use to_timestamp(due_at), or to_timestamp(due_at, 'dd.MM.yyyy HH:mm') for your own format"
    if isinstance(kind, NumericType):
        return f"{allowed}: use timestamp_seconds(due_at) for epoch seconds"
    return allowed


_SPAN = (DayTimeIntervalType, NumericType)
ALLOWED: dict[str, tuple[type[DataType], ...]] = {
    "body": (BinaryType, StringType, StructType, MapType, ArrayType),
    "due_at": (TimestampType, TimestampNTZType, DateType, LongType),
    "delay": _SPAN,
    "queue": (StringType,),
    "ttl": _SPAN,
    "tries": (IntegralType,),
    "priority": (IntegralType, StringType),
    "attributes": (MapType,),
    "if_exists": (StringType,),
    "change": (StringType,),
    "version": (NumericType, StringType, TimestampType, DateType),
}


# --- a dry run
#
# What a load would do: how many jobs fall due in which hour, which rows are bad, and how some jobs look.
#
# Reads the source once, pushes nothing and asks no store. Runs on the driver.


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
