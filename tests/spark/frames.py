"""Small frames for the transforms' tests: say what matters, the rest is as the journal leaves it."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from duetime.spark.schemas import EVENTS, frame

DEFAULTS: Mapping[str, Any] = {
    **dict.fromkeys(("ts", "wrote_at", "seq", "born", "attempt", "due_at", "priority"), 0),
    **dict.fromkeys(("ttl", "tries", "was", "status", "ms"), 0),
    **dict.fromkeys(("reason", "batch"), ""),
    "node": "node",
    "pool": "default",
    "namespace": "n",
    "queue": "q",
    "id": "a",
    "body": None,
    "attributes": None,
    "join": None,
}


def events(spark: SparkSession, *rows: Mapping[str, Any]) -> DataFrame:
    """EVENTS; seq counts up, the date is that of ts."""
    complete = [{**DEFAULTS, "seq": number, **row} for number, row in enumerate(rows, 1)]
    for row in complete:
        row["date"] = datetime.fromtimestamp(row["ts"] / 1000, UTC).date()
    return frame(spark, [tuple(row[name] for name in EVENTS.names) for row in complete], EVENTS)


def settled(rows: DataFrame) -> DataFrame:
    """The same rows, computed once: Spark plans a transform of them by itself, without everything that led to them."""
    return rows.localCheckpoint()


def job_columns(spark: SparkSession, rows: Iterable[Mapping[str, Any]], schema: StructType) -> DataFrame:
    return frame(spark, [tuple(row[name] for name in schema.names) for row in rows], schema)
