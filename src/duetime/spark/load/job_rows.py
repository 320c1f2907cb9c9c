"""From any DataFrame to rows that are jobs: the columns' meaning, written as Spark expressions.

`job_rows` is a pure transform. Each row comes out with all that a job has, and with `reason` saying why it cannot be
one, if so; nothing is dropped. `job_columns.py` does the same to Arrow batches inside the data source's writer, and a
test holds the two to the same verdicts. Runs on the driver; the work is the executors' JVMs'.
"""

from collections.abc import Collection
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DayTimeIntervalType,
    IntegerType,
    IntegralType,
    LongType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from duetime.clock import MAX_DURATION, MAX_INSTANT
from duetime.errors import InvalidRequest
from duetime.job import MAX_BODY, MAX_TRIES, Priority
from duetime.names import MAX_ATTRIBUTE_KEY, MAX_ATTRIBUTE_VALUE, MAX_ATTRIBUTES, MAX_ID, MAX_NAME
from duetime.spark.load.options import LoadOptions

NAME = rf"^[A-Za-z0-9_.-]{{1,{MAX_NAME}}}\z"
"""Java's $ would let a new line pass that stands at the end."""
UNPRINTABLE = r"[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}]|[^\P{Zs} ]"
"""What Python's isprintable refuses, in words that Java and RE2 both have."""
PLAIN_ID = rf"^[ -~]{{1,{MAX_ID}}}\z"
"""Ids that need no further look, which is the dear one: nearly all."""

KNOWN = ("id", "body", "due_at", "delay", "queue", "ttl", "tries", "priority", "attributes")

TEXTS = MapType(StringType(), StringType())

ROWS = StructType(
    [
        StructField("id", StringType()),
        StructField("body", BinaryType()),
        StructField("due_at", LongType()),
        StructField("queue", StringType()),
        StructField("ttl", LongType()),
        StructField("tries", IntegerType()),
        StructField("priority", IntegerType()),
        StructField("attributes", StringType()),
        StructField("reason", StringType()),
    ]
)
"""Times and durations in milliseconds. Attributes are a JSON object: a map costs ten times what all others do."""

REASONS = {
    "body_null": "the body is null",
    "body_large": f"the body has more than {MAX_BODY} bytes",
    "id_bad": f"the id is not 1 to {MAX_ID} printable characters",
    "due_bad": "the due time is not between 1970 and 9999",
    "queue_bad": "the queue's name is missing or not valid",
    "ttl_bad": "the ttl is negative or longer than 136 years",
    "ttl_early": "it would expire before it is due",
    "tries_bad": f"tries is not a whole number from 0 to {MAX_TRIES}",
    "priority_bad": "the priority is not high, normal or low",
    "attributes_bad": f"more than {MAX_ATTRIBUTES} attributes, or one without a name or too long",
}


def job_rows(frame: DataFrame, options: LoadOptions, now_ms: int) -> DataFrame:
    """Rows of the schema ROWS. `now_ms` is the store's time, for rows that are due now or after a delay."""
    kinds = check_columns(frame.schema)
    job_id = F.col("id").cast("string") if "id" in kinds else _made_id(frame, options.batch)
    due_at = _due(kinds, now_ms)
    if options.spread_ms:
        due_at = due_at + F.pmod(F.xxhash64("made_id"), F.lit(options.spread_ms))
    rows = frame.withColumn("made_id", job_id).select(
        F.col("made_id").alias("id"),
        _body(kinds["body"]).alias("body"),
        due_at.cast("long").alias("due_at"),
        (F.coalesce(F.col("queue"), F.lit(options.queue)) if "queue" in kinds else F.lit(options.queue)).alias("queue"),
        _or_default(kinds, "ttl", _milliseconds, options.ttl_ms).cast("long").alias("ttl"),
        _or_default(kinds, "tries", _as_it_is, options.tries).cast("int").alias("tries"),
        _or_default(kinds, "priority", _priority, options.priority.value).cast("int").alias("priority"),
        (F.col("attributes") if "attributes" in kinds else F.lit(None)).cast(TEXTS).alias("attributes"),
    )
    checked = rows.withColumn("reason", _reason(now_ms))
    return checked.withColumn("attributes", F.to_json("attributes", {"ignoreNullFields": "false"})).select(*ROWS.names)


def order(given: Collection[str]) -> list[str]:
    """What to sort by, of the columns that were given: rows that can go in one call stand together, in the order in
    which they fall due. A column that is the same for all would only make each comparison longer.
    """
    groups = [name for name in ("queue", "priority", "ttl", "tries") if name in given]
    return [*groups, *(["has_attributes"] if "attributes" in given else []), "due_at", "id"]


def check_columns(schema: Any) -> dict[str, DataType]:
    """The types by name. Raises InvalidRequest that names what does not belong."""
    kinds = {field.name: field.dataType for field in schema.fields}
    if unknown := sorted(set(kinds) - set(KNOWN)):
        raise InvalidRequest(f"a job has no column {unknown[0]!r}; it has {', '.join(KNOWN)}")
    if "body" not in kinds:
        raise InvalidRequest("the column body is missing: select(...) what the job is to carry")
    if "due_at" in kinds and "delay" in kinds:
        raise InvalidRequest("give due_at or delay, not both")
    for name, allowed in ALLOWED.items():
        if name in kinds and not isinstance(kinds[name], allowed):
            raise InvalidRequest(f"the column {name} cannot be of type {kinds[name].simpleString()}")
    return kinds


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
}


def _made_id(frame: DataFrame, batch: str) -> Column:
    """The same row in the same batch has the same id, whichever task reads it."""
    row = F.to_json(F.struct(*[F.col(name) for name in sorted(frame.columns)]), {"ignoreNullFields": "false"})
    return F.substring(F.sha2(F.concat(F.lit(f"{batch}\n"), row), 256), 1, 32)


def _body(kind: DataType) -> Column:
    match kind:
        case BinaryType():
            return F.col("body")
        case StringType():
            return F.col("body").cast("binary")
        case _:
            return F.to_json("body").cast("binary")


def _due(kinds: dict[str, DataType], now_ms: int) -> Column:
    if "due_at" in kinds:
        given = F.col("due_at")
        if not isinstance(kinds["due_at"], LongType):
            given = _ceil_thousandth(F.unix_micros(given.cast("timestamp")))
        return F.coalesce(given, F.lit(now_ms))
    if "delay" in kinds:
        return F.lit(now_ms) + F.coalesce(_milliseconds("delay", kinds["delay"]), F.lit(0))
    return F.lit(now_ms)


def _ceil_thousandth(number: Column) -> Column:
    """Rounded up, so that nothing is early; in whole numbers, as a double has too few digits for the year 3000."""
    return F.unix_millis(F.timestamp_micros(number + 999))


def _or_default(kinds: dict[str, DataType], name: str, read: Any, default: int) -> Column:
    return F.coalesce(read(name, kinds[name]), F.lit(default)) if name in kinds else F.lit(default)


def _milliseconds(name: str, kind: DataType) -> Column:
    """Of an interval, or of a number of seconds."""
    if isinstance(kind, DayTimeIntervalType):
        return _ceil_thousandth(F.unix_micros(F.timestamp_micros(F.lit(0)) + F.col(name)))
    if isinstance(kind, IntegralType):
        return F.col(name).cast("long") * 1000
    return F.ceil(F.round(F.col(name).cast("double") * 1000, 6))


def _as_it_is(name: str, kind: DataType) -> Column:
    return F.col(name)


def _priority(name: str, kind: DataType) -> Column:
    """Words or numbers; -1 for what is neither."""
    text = F.upper(F.trim(F.col(name).cast("string")))
    number = F.when(text.isNull(), F.lit(None).cast("int"))
    for priority in Priority:
        number = number.when(text.isin(priority.name, str(priority.value)), F.lit(priority.value))
    return number.otherwise(F.lit(-1))


def _reason(now_ms: int) -> Column:
    size, attributes = F.octet_length("body"), F.col("attributes")
    keys, values = F.map_keys(attributes), F.map_values(attributes)

    def is_bad_key(key: Column) -> Column:
        return ~F.length(key).between(1, MAX_ATTRIBUTE_KEY) | key.rlike(UNPRINTABLE)

    def is_bad_value(value: Column) -> Column:
        return value.isNull() | (F.length(value) > MAX_ATTRIBUTE_VALUE) | F.contains(value, F.lit("\0"))

    checks = {
        "body_null": F.col("body").isNull(),
        "body_large": size > MAX_BODY,
        "id_bad": F.col("id").isNull()
        | (~F.col("id").rlike(PLAIN_ID) & (~F.length("id").between(1, MAX_ID) | F.col("id").rlike(UNPRINTABLE))),
        "due_bad": F.col("due_at").isNull() | ~F.col("due_at").between(0, MAX_INSTANT),
        "queue_bad": F.col("queue").isNull() | ~F.col("queue").rlike(NAME),
        "ttl_bad": ~F.col("ttl").between(0, MAX_DURATION),
        "ttl_early": (F.col("ttl") > 0) & (F.col("due_at") > F.col("ttl") + now_ms),
        "tries_bad": ~F.col("tries").between(0, MAX_TRIES),
        "priority_bad": ~F.col("priority").isin(*[priority.value for priority in Priority]),
        "attributes_bad": attributes.isNotNull()
        & ((F.size(keys) > MAX_ATTRIBUTES) | F.exists(keys, is_bad_key) | F.exists(values, is_bad_value)),
    }
    reason = F.when(F.lit(False), F.lit(""))
    for name, is_bad in checks.items():
        reason = reason.when(is_bad, F.lit(REASONS[name]))
    return reason
