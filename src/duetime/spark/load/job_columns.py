"""From Arrow batches of any shape to the columns of jobs: what each column means, and why a row cannot be a job.

`schedule` (through `job_rows.py`) and the data source's writer both use this, so a row becomes the same job either way.
Only what Arrow has no kernel for is done row by row: a body that is a struct, map or array, ids that have to be made, a
spread. Rows with an id and a body of text or bytes are the fastest. Runs on executors.
"""

import base64
import datetime
import decimal
import hashlib
import math
import re
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any
from zlib import crc32

import msgspec
import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.compute as pc  # pyright: ignore[reportMissingTypeStubs]

from duetime.model.clock import MAX_DURATION, MAX_INSTANT, SECONDS, time_zone
from duetime.model.errors import InvalidSettings, InvalidTime
from duetime.model.job import MAX_BODY, MAX_TRIES, Priority
from duetime.model.names import MAX_ATTRIBUTE_KEY, MAX_ATTRIBUTE_VALUE, MAX_ATTRIBUTES, MAX_ID, MAX_NAME
from duetime.spark.load.options import IF_EXISTS, Action, LoadOptions

arrow: Any = pa
kernels: Any = pc

SOURCE_PROBLEM, SOURCE_ROW = "_duetime_problem", "_duetime_row"
"""Columns that `sources.read_selection` adds: why a row cannot be a job, and the row of the source as JSON."""

EXPRESSION = "--"
"""Reasons about an expression begin with the option that it was given by, such as --due."""

SCHEMA = arrow.schema(
    [
        ("id", arrow.string()),
        ("body", arrow.binary()),
        ("due_at", arrow.int64()),
        ("queue", arrow.string()),
        ("ttl", arrow.int64()),
        ("tries", arrow.int32()),
        ("priority", arrow.int32()),
        ("attributes", arrow.string()),
        ("action", arrow.string()),
        ("reason", arrow.string()),
    ]
)
"""The same columns as `job_rows.ROWS`. Times and durations are in milliseconds; attributes are a JSON object;
`action` is an `options.Action`.
"""

NAME = rf"^[A-Za-z0-9_.-]{{1,{MAX_NAME}}}\z"
UNPRINTABLE = r"[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}]|[^\P{Zs} ]"
"""The characters that Python's isprintable refuses, as a pattern of RE2."""
NO_TIME_MS = -(10**17)
"""Stands for NaN and for numbers that are too large: it is outside of every limit, whatever is added to it."""

REASONS = {
    "body_null": "the body is null",
    "body_large": f"the body has more than {MAX_BODY} bytes",
    "id_bad": f"the id is not 1 to {MAX_ID} printable characters",
    "due_bad": "the due time is not between 1970 and 9999",
    "due_null": "the due time is null, and a table that is kept in step needs one in every row",
    "due_seconds": "the due time is a number that looks like seconds; give due_at * 1000, or timestamp_seconds(due_at)",
    "queue_bad": "the queue's name is missing or not valid",
    "ttl_bad": "the ttl is negative or longer than 136 years",
    "ttl_early": "it would expire before it is due",
    "tries_bad": f"tries is not a whole number from 0 to {MAX_TRIES}",
    "priority_bad": "the priority is not high, normal or low",
    "action_bad": "if_exists is not keep, replace or reschedule, or change is not insert, update or delete",
    "attributes_bad": f"more than {MAX_ATTRIBUTES} attributes, or one without a name or too long",
}


def job_columns(batch: Any, options: LoadOptions, now_ms: int, batch_name: str, zone: str | None) -> Any:
    """A table of SCHEMA, row for row. The batch's columns were checked by `job_rows.check_columns`.

    `zone` is the session's time zone, for times without one; None if it is not known.
    """
    given = {name: batch.column(name) for name in batch.schema.names}
    problem, source_row = given.pop(SOURCE_PROBLEM, None), given.pop(SOURCE_ROW, None)
    given.pop("version", None)
    batch, size = batch.select(list(given)), batch.num_rows

    def either(name: str, read: Callable[[Any], Any], default: Any, kind: Any) -> Any:
        constant = arrow.repeat(arrow.scalar(default, kind), size)
        return kernels.coalesce(read(given[name]).cast(kind), constant) if name in given else constant

    ids = _text(given["id"]) if "id" in given else _made_ids(batch, batch_name)
    columns = {
        "id": ids,
        "body": _bodies(given["body"]) if "body" in given else arrow.nulls(size, arrow.binary()),
        "due_at": _due(given, size, now_ms, zone),
        "queue": either("queue", _text, options.queue, arrow.string()),
        "ttl": either("ttl", _milliseconds, options.ttl_ms, arrow.int64()),
        "tries": either("tries", lambda one: one, options.tries, arrow.int32()),
        "priority": either("priority", _priorities, options.priority.value, arrow.int32()),
        "attributes": _attributes(given["attributes"]) if "attributes" in given else arrow.nulls(size, arrow.string()),
        "action": _actions(given, either("if_exists", _word, options.on_change or options.if_exists, arrow.string())),
    }
    if options.mode:
        columns["action"] = arrow.repeat(arrow.scalar(options.mode, arrow.string()), size)
    cancels = kernels.equal(columns["action"], Action.CANCEL)
    columns["body"] = kernels.if_else(cancels, arrow.scalar(b"", arrow.binary()), columns["body"])
    if options.spread_ms:
        shift = [crc32((one or "").encode()) % options.spread_ms for one in ids.to_pylist()]
        columns["due_at"] = kernels.add(columns["due_at"], arrow.array(shift, arrow.int64()))
    columns["reason"] = _reasons(columns, now_ms, _looks_like_seconds(given, size))
    if options.on_change:
        due_null = kernels.if_else(kernels.is_null(given["due_at"]), REASONS["due_null"], None)
        columns["reason"] = kernels.coalesce(columns["reason"], due_null)
    # Of a job that is removed only the name counts.
    unnamed = kernels.is_in(columns["reason"], arrow.array([REASONS["id_bad"], REASONS["queue_bad"]]))
    columns["reason"] = kernels.if_else(kernels.and_not(cancels, unnamed), None, columns["reason"])
    if problem is not None:  # such a row is reported as the source has it
        columns["reason"] = kernels.coalesce(problem, columns["reason"])
        columns["body"] = kernels.coalesce(source_row.cast(arrow.binary()), columns["body"])
    return arrow.table(columns, schema=SCHEMA)


def _text(column: Any) -> Any:
    return column.cast(arrow.string())


def _word(column: Any) -> Any:
    return kernels.utf8_lower(kernels.utf8_trim_whitespace(_text(column)))


def _actions(given: dict[str, Any], if_exists: Any) -> Any:
    """What each row asks for: an update replaces what an insert would keep. A word that is none stays as it is, and
    `_reasons` reports it.
    """
    if "change" not in given:
        return if_exists
    change = kernels.fill_null(_word(given["change"]), "insert")
    keeps = kernels.and_(kernels.equal(change, "update"), kernels.equal(if_exists, Action.KEEP.value))
    if_exists = kernels.if_else(keeps, Action.REPLACE.value, if_exists)
    pushed = kernels.if_else(kernels.is_in(change, arrow.array(["insert", "update"])), if_exists, change)
    return kernels.if_else(kernels.equal(change, "delete"), Action.CANCEL.value, pushed)


def _bodies(column: Any) -> Any:
    if arrow.types.is_nested(column.type):
        return arrow.array(json_texts(column), arrow.binary())
    return column.cast(arrow.binary())


def _attributes(column: Any) -> Any:
    """Maps as JSON objects, made row by row."""
    texts = json_texts(column.cast(arrow.map_(arrow.string(), arrow.string())))
    return arrow.array(texts, arrow.binary()).cast(arrow.string())


def _made_ids(batch: Any, batch_name: str) -> Any:
    """The same row in the same batch has the same id, whichever task writes it and in whichever zone."""
    names = sorted(batch.schema.names)
    rows = json_texts(arrow.StructArray.from_arrays([_in_utc(batch.column(name)) for name in names], names=names))
    head = f"{batch_name}\n".encode()
    return arrow.array([hashlib.sha256(head + (row or b"")).hexdigest()[:32] for row in rows], arrow.string())


def _in_utc(column: Any) -> Any:
    has_zone = arrow.types.is_timestamp(column.type) and column.type.tz
    return column.cast(arrow.timestamp("us", "UTC")) if has_zone else column


def _due(given: dict[str, Any], size: int, now_ms: int, zone: str | None) -> Any:
    now = arrow.repeat(arrow.scalar(now_ms, arrow.int64()), size)
    if "due_at" in given:
        return kernels.coalesce(_due_ms(given["due_at"], zone), now)
    if "delay" in given:
        delay = kernels.coalesce(_milliseconds(given["delay"]), arrow.scalar(0, arrow.int64()))
        return kernels.add(now, delay)
    return now


def _due_ms(due_at: Any, zone: str | None) -> Any:
    if arrow.types.is_integer(due_at.type):
        return due_at.cast(arrow.int64())
    if arrow.types.is_timestamp(due_at.type) and due_at.type.tz:
        return _ceil_thousandth(due_at.cast(arrow.timestamp("us", due_at.type.tz)).cast(arrow.int64()))
    if zone is None:
        raise InvalidSettings(
            "due_at has no time zone, and the session has none: set spark.sql.session.timeZone, or cast it to timestamp"
        )
    return _ceil_thousandth(instants(due_at.cast(arrow.timestamp("us")).cast(arrow.int64()), zone))


def _looks_like_seconds(given: dict[str, Any], size: int) -> Any:
    if "due_at" in given and arrow.types.is_integer(given["due_at"].type):
        return kernels.invert(_outside(given["due_at"], SECONDS.start, SECONDS.stop - 1))
    return arrow.repeat(arrow.scalar(False), size)


def _ceil_thousandth(numbers: Any) -> Any:
    """Divides by 1000 and rounds up, so that nothing is early.

    Arrow's division rounds towards zero, so only a positive remainder adds one.
    """
    whole = kernels.divide(numbers, 1000)
    rest = kernels.greater(numbers, kernels.multiply(whole, 1000))
    return kernels.add(whole, rest.cast(arrow.int64()))


def _milliseconds(column: Any) -> Any:
    """The milliseconds of an interval or of a number of seconds; NO_TIME_MS for NaN and for what is too large."""
    if arrow.types.is_duration(column.type):
        return _ceil_thousandth(column.cast(arrow.duration("us")).cast(arrow.int64()))
    kind = arrow.int64() if arrow.types.is_integer(column.type) else arrow.float64()
    seconds, most = column.cast(kind), arrow.scalar(MAX_INSTANT // 1000, kind)
    countable = kernels.less_equal(kernels.abs(seconds), most)  # false for NaN
    milliseconds = kernels.multiply(kernels.if_else(countable, seconds, arrow.scalar(0, kind)), 1000)
    if kind == arrow.float64():
        milliseconds = kernels.ceil(kernels.round(milliseconds, 6)).cast(arrow.int64())
    return kernels.if_else(countable, milliseconds, arrow.scalar(NO_TIME_MS, arrow.int64()))


def _priorities(column: Any) -> Any:
    text = kernels.utf8_upper(kernels.utf8_trim_whitespace(_text(column)))
    number = arrow.repeat(arrow.scalar(-1, arrow.int32()), len(column))
    for priority in Priority:
        names = arrow.array([priority.name, str(priority.value)])
        number = kernels.if_else(kernels.is_in(text, names), arrow.scalar(priority.value, arrow.int32()), number)
    return kernels.if_else(kernels.is_null(text), arrow.scalar(None, arrow.int32()), number)


def _reasons(columns: dict[str, Any], now_ms: int, like_seconds: Any) -> Any:
    body, ids, due_at, ttl = columns["body"], columns["id"], columns["due_at"], columns["ttl"]
    checks = {
        "body_null": kernels.is_null(body),
        "body_large": kernels.greater(kernels.binary_length(body), MAX_BODY),
        "id_bad": _any(
            kernels.is_null(ids),
            _outside(kernels.utf8_length(ids), 1, MAX_ID),
            kernels.match_substring_regex(ids, UNPRINTABLE),
        ),
        "due_bad": _outside(due_at, 0, MAX_INSTANT),
        "due_seconds": like_seconds,
        "queue_bad": kernels.invert(kernels.match_substring_regex(columns["queue"], NAME)),
        "ttl_bad": _outside(ttl, 0, MAX_DURATION),
        "ttl_early": kernels.and_(kernels.greater(ttl, 0), kernels.greater(due_at, kernels.add(ttl, now_ms))),
        "tries_bad": _outside(columns["tries"], 0, MAX_TRIES),
        "priority_bad": _outside(columns["priority"], min(Priority), max(Priority)),
        "action_bad": kernels.invert(kernels.is_in(columns["action"], arrow.array([*IF_EXISTS, Action.CANCEL]))),
        "attributes_bad": _bad_attributes(columns["attributes"]),
    }
    reason = arrow.nulls(len(ids), arrow.string())
    for name, is_bad in reversed(checks.items()):
        reason = kernels.if_else(kernels.fill_null(is_bad, fill_value=False), REASONS[name], reason)
    return reason


def _any(*masks: Any) -> Any:
    result = masks[0]
    for mask in masks[1:]:
        result = kernels.or_kleene(result, mask)
    return result


def _outside(numbers: Any, least: int, most: int) -> Any:
    return kernels.or_(kernels.less(numbers, int(least)), kernels.greater(numbers, int(most)))


def _bad_attributes(column: Any) -> Any:
    if column.null_count == len(column):
        return arrow.repeat(arrow.scalar(False), len(column))
    texts: list[str | None] = column.to_pylist()
    return arrow.array([text is not None and _is_bad(msgspec.json.decode(text)) for text in texts])


def _is_bad(attributes: dict[str, str | None]) -> bool:
    return len(attributes) > MAX_ATTRIBUTES or any(
        not 1 <= len(key) <= MAX_ATTRIBUTE_KEY
        or not key.isprintable()
        or value is None
        or len(value) > MAX_ATTRIBUTE_VALUE
        or "\0" in value
        for key, value in attributes.items()
    )


# --- times without a zone
#
# Turns times without a zone, which are in the session's time zone, into instants. Runs on executors.
#
# Of an hour that the clock shows twice the first is meant, and an hour that it skips is counted on from where the gap
# begins, as Spark does it when it casts to timestamp.


QUARTER_US = 900_000_000
"""Clocks are put forward and back at whole quarters of an hour, so all times within one quarter have one offset."""
_FIXED = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")
_EPOCH = datetime.datetime(1970, 1, 1)


def instants(wall_us: Any, zone_name: str) -> Any:
    """From microseconds since 1970 on the clocks of a zone to microseconds since 1970 in UTC."""
    zone = read_zone(zone_name)
    quarters = kernels.fill_null(wall_us, 0).to_numpy(zero_copy_only=False) // QUARTER_US
    known = arrow.array(quarters, arrow.int64()).dictionary_encode()
    offsets = arrow.array([_offset_us(quarter, zone) for quarter in known.dictionary.to_pylist()], arrow.int64())
    return kernels.subtract(wall_us, offsets.take(known.indices))


def _offset_us(quarter: int, zone: datetime.tzinfo) -> int:
    try:
        wall = _EPOCH + datetime.timedelta(microseconds=quarter * QUARTER_US)
    except OverflowError:  # beyond the years that a job can be due in
        return 0
    offset = wall.replace(tzinfo=zone).utcoffset()
    return 0 if offset is None else offset // datetime.timedelta(microseconds=1)


def read_zone(name: str) -> datetime.tzinfo:
    """A zone as Spark's sessions name it: Europe/Berlin, UTC, +05:30, GMT+8."""
    if fixed := _FIXED.fullmatch(name):
        sign, *parts = fixed.groups(default="0")
        hours, minutes, seconds = (int(part) for part in parts)
        offset = datetime.timedelta(hours=hours, minutes=minutes, seconds=seconds)
        return datetime.timezone(-offset if sign == "-" else offset)
    try:
        return time_zone("UTC" if name == "Z" else name)
    except InvalidTime:
        raise InvalidSettings(f"this machine knows no time zone {name!r}: cast due_at to timestamp") from None


# --- values as JSON
#
# Arrow columns of structs, maps and arrays as JSON, one text per row, as Spark's to_json writes it.
#
# Fields that are null are left out, bytes are base64, times are ISO 8601 in the session's zone, and doubles that are
# not finite are written by name. Works column by column, which costs half of what it costs to convert row by row.
# Runs on executors.


_encode = msgspec.json.Encoder().encode


def json_texts(column: Any) -> list[bytes | None]:
    return [None if value is None else _encode(value) for value in _values(column)]


def _values(column: Any) -> list[Any]:
    """Per row an object that msgspec encodes to the text that is wanted."""
    kind = column.type
    if arrow.types.is_struct(kind):
        return _structs(column)
    if arrow.types.is_map(kind):
        names = column.keys.to_pylist()
        keys = [name if isinstance(name, str) else _encode(_scalar(name)).decode().strip('"') for name in names]
        items = list(zip(keys, _values(column.items), strict=True))
        return [None if rows is None else dict(items[rows]) for rows in _slices(column)]
    if arrow.types.is_list(kind) or arrow.types.is_large_list(kind):
        elements = _values(column.values)
        return [None if rows is None else elements[rows] for rows in _slices(column)]
    values: list[Any] = column.to_pylist()
    if _goes_as_it_is(kind):
        return values
    return [_scalar(value) for value in values]


def _structs(column: Any) -> list[Any]:
    row = _row_type(tuple(column.type.field(index).name for index in range(column.type.num_fields)))
    children = [_values(child) for child in column.flatten()]
    rows = [row(*values) for values in zip(*children, strict=True)] if children else [row() for _ in range(len(column))]
    if not column.null_count:
        return rows
    return [one if valid else None for one, valid in zip(rows, column.is_valid().to_pylist(), strict=True)]


@lru_cache(64)
def _row_type(names: tuple[str, ...]) -> Any:
    """A type whose fields are written under these names, which may be any text; None is left out."""
    fields: list[Any] = [(f"f{index}", Any, None) for index in range(len(names))]
    written = {f"f{index}": name for index, name in enumerate(names)}
    return msgspec.defstruct("Row", fields, rename=written, omit_defaults=True)


def _slices(column: Any) -> list[slice | None]:
    """Per row of a list or map: where its elements are in the child column."""
    bounds = column.offsets.to_pylist()
    slices: list[slice | None] = [slice(first, last) for first, last in pairwise(bounds)]
    if column.null_count:
        valid = column.is_valid().to_pylist()
        return [one if is_valid else None for one, is_valid in zip(slices, valid, strict=True)]
    return slices


def _goes_as_it_is(kind: Any) -> bool:
    types = arrow.types
    return types.is_string(kind) or types.is_large_string(kind) or types.is_integer(kind) or types.is_boolean(kind)


def _scalar(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case bytes():
            return base64.b64encode(value).decode()
        case decimal.Decimal():
            return msgspec.Raw(str(value).encode())
        case datetime.datetime():
            text = value.isoformat(timespec="milliseconds")
            return text.replace("+00:00", "Z")
        case _:
            return value
