"""From Arrow batches of any shape to columns that are jobs: what `job_rows.py` does, inside the data source's writer.

Columns stay columns. Only what Arrow has no kernel for goes row by row: a body that is a struct, map or array, ids that
have to be made, a spread. Whoever is in a hurry brings an id and a body of text or bytes. Runs on executors.
"""

import base64
import datetime
import decimal
import hashlib
from collections.abc import Callable
from typing import Any
from zlib import crc32

import msgspec
import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.compute as pc  # pyright: ignore[reportMissingTypeStubs]

from duetime.clock import MAX_DURATION, MAX_INSTANT
from duetime.job import MAX_BODY, MAX_TRIES, Priority
from duetime.names import MAX_ATTRIBUTE_KEY, MAX_ATTRIBUTE_VALUE, MAX_ATTRIBUTES, MAX_ID
from duetime.spark.load.job_rows import NAME, REASONS, UNPRINTABLE
from duetime.spark.load.options import LoadOptions

arrow: Any = pa
kernels: Any = pc

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
        ("reason", arrow.string()),
    ]
)
"""As `job_rows.ROWS`."""


def job_columns(batch: Any, options: LoadOptions, now_ms: int, batch_name: str) -> Any:
    """A table of SCHEMA, row for row. The batch's columns were checked by `job_rows.check_columns`."""
    given = {name: batch.column(name) for name in batch.schema.names}
    size = batch.num_rows

    def either(name: str, read: Callable[[Any], Any], default: Any, kind: Any) -> Any:
        constant = arrow.repeat(arrow.scalar(default, kind), size)
        return kernels.coalesce(read(given[name]).cast(kind), constant) if name in given else constant

    ids = _text(given["id"]) if "id" in given else _made_ids(batch, batch_name)
    columns = {
        "id": ids,
        "body": _bodies(given["body"]),
        "due_at": _due(given, size, now_ms),
        "queue": either("queue", _text, options.queue, arrow.string()),
        "ttl": either("ttl", _milliseconds, options.ttl_ms, arrow.int64()),
        "tries": either("tries", lambda one: one, options.tries, arrow.int32()),
        "priority": either("priority", _priorities, options.priority.value, arrow.int32()),
        "attributes": _attributes(given["attributes"]) if "attributes" in given else arrow.nulls(size, arrow.string()),
    }
    if options.spread_ms:
        shift = [crc32((one or "").encode()) % options.spread_ms for one in ids.to_pylist()]
        columns["due_at"] = kernels.add(columns["due_at"], arrow.array(shift, arrow.int64()))
    columns["reason"] = _reasons(columns, now_ms)
    return arrow.table(columns, schema=SCHEMA)


def _text(column: Any) -> Any:
    return column.cast(arrow.string())


def _bodies(column: Any) -> Any:
    if arrow.types.is_nested(column.type):
        bodies = [None if one is None else _json(one, column.type) for one in column.to_pylist()]
        return arrow.array(bodies, arrow.binary())
    return column.cast(arrow.binary())


def _attributes(column: Any) -> Any:
    """Maps as JSON objects, row by row, for the few that have any."""
    texts = [None if one is None else msgspec.json.encode(dict(one)).decode() for one in column.to_pylist()]
    return arrow.array(texts, arrow.string())


def _json(value: Any, kind: Any) -> bytes:
    return msgspec.json.encode(_plain(value, kind))


def _plain(value: Any, kind: Any) -> Any:
    """As Spark's to_json writes it: fields that are null are left out, bytes are base64, times are ISO 8601."""
    if arrow.types.is_struct(kind):
        return {
            kind.field(index).name: _plain(value[kind.field(index).name], kind.field(index).type)
            for index in range(kind.num_fields)
            if value[kind.field(index).name] is not None
        }
    if arrow.types.is_map(kind):
        return {str(key): None if one is None else _plain(one, kind.item_type) for key, one in value}
    if arrow.types.is_list(kind) or arrow.types.is_large_list(kind):
        return [None if one is None else _plain(one, kind.value_type) for one in value]
    return _scalar(value)


def _scalar(value: Any) -> Any:
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case decimal.Decimal():
            return msgspec.Raw(str(value).encode())
        case datetime.datetime():
            text = value.isoformat(timespec="milliseconds")
            return text.replace("+00:00", "Z")
        case _:
            return value


def _made_ids(batch: Any, batch_name: str) -> Any:
    """The same row in the same batch has the same id, whichever task writes it."""
    names = sorted(batch.schema.names)
    rows = batch.select(names).to_pylist()
    head = f"{batch_name}\n".encode()
    return arrow.array([hashlib.sha256(head + _row(row)).hexdigest()[:32] for row in rows], arrow.string())


def _row(row: dict[str, Any]) -> bytes:
    return msgspec.json.encode(row, enc_hook=str, order="deterministic")


def _due(given: dict[str, Any], size: int, now_ms: int) -> Any:
    now = arrow.repeat(arrow.scalar(now_ms, arrow.int64()), size)
    if "due_at" in given:
        due_at = given["due_at"]
        if arrow.types.is_date(due_at.type):
            due_at = due_at.cast(arrow.timestamp("us"))
        if arrow.types.is_timestamp(due_at.type):
            due_at = _ceil_thousandth(due_at.cast(arrow.timestamp("us", due_at.type.tz)).cast(arrow.int64()))
        return kernels.coalesce(due_at.cast(arrow.int64()), now)
    if "delay" in given:
        delay = kernels.coalesce(_milliseconds(given["delay"]), arrow.scalar(0, arrow.int64()))
        return kernels.add(now, delay)
    return now


def _ceil_thousandth(numbers: Any) -> Any:
    """Rounded up, so that nothing is early. Division goes towards zero, so what is left over adds one above zero."""
    whole = kernels.divide(numbers, 1000)
    rest = kernels.greater(numbers, kernels.multiply(whole, 1000))
    return kernels.add(whole, rest.cast(arrow.int64()))


def _milliseconds(column: Any) -> Any:
    """Of an interval, or of a number of seconds."""
    if arrow.types.is_duration(column.type):
        return _ceil_thousandth(column.cast(arrow.duration("us")).cast(arrow.int64()))
    if arrow.types.is_integer(column.type):
        return kernels.multiply(column.cast(arrow.int64()), 1000)
    return kernels.ceil(kernels.round(kernels.multiply(column.cast(arrow.float64()), 1000), 6)).cast(arrow.int64())


def _priorities(column: Any) -> Any:
    text = kernels.utf8_upper(kernels.utf8_trim_whitespace(_text(column)))
    number = arrow.repeat(arrow.scalar(-1, arrow.int32()), len(column))
    for priority in Priority:
        names = arrow.array([priority.name, str(priority.value)])
        number = kernels.if_else(kernels.is_in(text, names), arrow.scalar(priority.value, arrow.int32()), number)
    return kernels.if_else(kernels.is_null(text), arrow.scalar(None, arrow.int32()), number)


def _reasons(columns: dict[str, Any], now_ms: int) -> Any:
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
        "queue_bad": kernels.invert(kernels.match_substring_regex(columns["queue"], NAME)),
        "ttl_bad": _outside(ttl, 0, MAX_DURATION),
        "ttl_early": kernels.and_(kernels.greater(ttl, 0), kernels.greater(due_at, kernels.add(ttl, now_ms))),
        "tries_bad": _outside(columns["tries"], 0, MAX_TRIES),
        "priority_bad": _outside(columns["priority"], min(Priority), max(Priority)),
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
