"""Rows that become jobs: what each column means, and the verdict on every kind of bad row."""

import datetime
import decimal
import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from duetime.model.clock import MAX_INSTANT
from duetime.model.errors import InvalidRequest, InvalidSettings
from duetime.model.job import MAX_BODY
from duetime.model.names import check_id
from duetime.spark.load.chunks import Cutter
from duetime.spark.load.job_columns import REASONS, SCHEMA, job_columns, json_texts, read_zone
from duetime.spark.load.job_rows import ROWS, check_columns, job_rows
from duetime.spark.load.options import LoadOptions, read_options
from duetime.stores.base import Mark

NOW = 1_800_000_000_000
OPTIONS = read_options({"url": "redis://x", "queue": "recall", "batch": "b1", "ttl": "1000d", "tries": 4})

ROWS_OF_ALL_KINDS = f"""
    select * from values
      ('fine', 'x', timestamp'2027-02-01 10:00:00', 'other', 86400 * 400L, 3, 'High', map('k', 'v')),
      ('defaults', 'x', null, null, null, null, null, null),
      ('', 'x', null, null, null, null, null, null),
      (null, 'x', null, null, null, null, null, null),
      ('bell' || char(7), 'x', null, null, null, null, null, null),
      ('new-line' || char(10), 'x', null, null, null, null, null, null),
      ('no-break' || char(160), 'x', null, null, null, null, null, null),
      ('with space', 'x', null, null, null, null, null, null),
      (repeat('i', 128), 'x', null, null, null, null, null, null),
      (repeat('ü', 129), 'x', null, null, null, null, null, null),
      ('null-body', null, null, null, null, null, null, null),
      ('largest', repeat('b', {MAX_BODY}), null, null, null, null, null, null),
      ('too-large', repeat('b', {MAX_BODY + 1}), null, null, null, null, null, null),
      ('old', 'x', timestamp'1969-12-31 23:59:59', null, null, null, null, null),
      ('rounded', 'x', timestamp'2027-02-01 10:00:00.000001', null, null, null, null, null),
      ('bad-queue', 'x', null, 'no/slash', null, null, null, null),
      ('queue-line', 'x', null, 'recall' || char(10), null, null, null, null),
      ('negative', 'x', null, null, -1L, null, null, null),
      ('early', 'x', timestamp'2090-01-01', null, 60L, null, null, null),
      ('no-ttl', 'x', timestamp'2090-01-01', null, 0L, null, null, null),
      ('tries', 'x', null, null, null, 65536, null, null),
      ('priority', 'x', null, null, null, null, 'urgent', null),
      ('numbered', 'x', null, null, null, null, ' 3 ', null),
      ('empty-key', 'x', null, null, null, null, null, map('', 'v')),
      ('null-value', 'x', null, null, null, null, null, map('k', cast(null as string)))
    as t(id, body, due_at, queue, ttl, tries, priority, attributes)
"""


def rows_of(spark: SparkSession, query: str) -> list[dict[str, Any]]:
    rows = [row.asDict() for row in job_rows(spark.sql(query), OPTIONS, NOW).collect()]
    for row in rows:
        row["body"] = None if row["body"] is None else bytes(row["body"])
        row["attributes"] = None if row["attributes"] is None else json.loads(row["attributes"])
    return rows


def test_the_verdict_on_rows_of_all_kinds(spark: SparkSession) -> None:
    rows = rows_of(spark, ROWS_OF_ALL_KINDS)

    reasons = {row["id"]: row["reason"] for row in rows if row["reason"]}
    others = ("due_seconds", "due_null", "action_bad")
    assert set(reasons.values()) == set(REASONS.values()) - {REASONS[name] for name in others}
    fine = {row["id"]: row for row in rows if not row["reason"]}
    assert set(fine) == {
        "fine", "defaults", "with space", "i" * 128, "largest", "rounded", "no-ttl", "numbered"
    }  # fmt: skip
    assert (fine["defaults"]["due_at"], fine["defaults"]["queue"], fine["defaults"]["tries"]) == (NOW, "recall", 4)
    assert (fine["fine"]["queue"], fine["fine"]["tries"], fine["fine"]["priority"]) == ("other", 3, 1)
    assert fine["numbered"]["priority"] == 3
    at = datetime.datetime(2027, 2, 1, 10, tzinfo=datetime.UTC)
    assert fine["rounded"]["due_at"] == int(at.timestamp() * 1000) + 1
    assert fine["fine"]["due_at"] <= MAX_INSTANT


def test_what_passes_is_what_the_kernel_takes_for_an_id(spark: SparkSession) -> None:
    for row in rows_of(spark, ROWS_OF_ALL_KINDS):
        if row["id"] is None or row["reason"] == REASONS["id_bad"]:
            with pytest.raises(InvalidRequest):
                check_id(row["id"] or "")
        else:
            check_id(row["id"])


def test_delays_and_numbers(spark: SparkSession) -> None:
    """The due time in milliseconds from now, or why there is none."""
    cases: dict[str, int | str] = {
        "interval '90' minute delay": 5_400_000,
        "interval '1 00:00:00.0005' day to second delay": 86_400_001,
        "90 delay": 90_000,
        "0.07d delay": 70,
        "cast(1.5 as decimal(4, 2)) delay": 1_500,
        "cast(null as int) delay": 0,
        "double('NaN') delay": "due_bad",
        "double('-Infinity') delay": "due_bad",
        "9223372036854775807L delay": "due_bad",
        "float('NaN') ttl": "ttl_bad",
        f"{NOW + 5}L due_at": 5,
        f"{NOW // 1000}L due_at": "due_seconds",
        f"{NOW * 1000}L due_at": "due_bad",
    }
    found: dict[str, int | str] = {}
    for columns in cases:
        table = spark.sql(f"select 'a' id, 'x' body, {columns}").toArrow().combine_chunks()
        [row] = job_columns(table.to_batches()[0], OPTIONS, NOW, OPTIONS.batch, "UTC").to_pylist()
        reasons = [name for name, text in REASONS.items() if text == row["reason"]]
        found[columns] = reasons[0] if reasons else row["due_at"] - NOW
    assert found == cases


def test_bodies_that_become_json_as_sparks_own_does(spark: SparkSession) -> None:
    struct = """struct(1 number, 'ü"' text, cast(null as string) nothing, array(1, null) list, map('k', 1.5d) map,
        true yes, struct('deep' x) inner, array(struct(1 a), null, struct(2 a)) rows, double('NaN') none,
        cast(1.50 as decimal(4, 2)) price, binary('b') bytes, timestamp'2030-01-01 10:00:00' at, date'2030-01-01' day,
        map(1, array('x'), 2, null) numbered, 'odd' as `a name`)"""
    query = f"""select 'a' id, {struct} body union all select 'b', null union all select 'c', {struct}"""
    rows = {row["id"]: row for row in rows_of(spark, query)}
    expected = bytes(spark.sql(f"select to_json({struct}) text").first()["text"], "utf-8")  # type: ignore[index]
    assert rows["a"]["body"] == rows["c"]["body"] == expected
    assert rows["b"]["reason"] == REASONS["body_null"]


def test_attributes_of_other_types_are_texts(spark: SparkSession) -> None:
    [row] = rows_of(spark, "select 'a' id, 'x' body, map('k', 5, 'l', 7) attributes")
    assert (row["reason"], row["attributes"]) == (None, {"k": "5", "l": "7"})


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.decimal128(38, 9), decimal.Decimal("12345678901234567890.123456789"), b"12345678901234567890.123456789"),
        (pa.binary(), b"\xff", b'"/w=="'),
        (pa.map_(pa.binary(), pa.bool_()), [(b"\xff", True)], b'{"/w==":true}'),
        (pa.map_(pa.bool_(), pa.float64()), [(True, 1.5)], b'{"true":1.5}'),
        (pa.map_(pa.date32(), pa.int32()), [(datetime.date(2026, 1, 1), 1)], b'{"2026-01-01":1}'),
        (pa.map_(pa.decimal128(5, 2), pa.string()), [(decimal.Decimal("1.50"), "x")], b'{"1.50":"x"}'),
    ],
)
def test_values_that_json_has_no_type_for(kind: pa.DataType, value: object, text: bytes) -> None:
    assert json_texts(pa.array([{"v": value}], pa.struct([("v", kind)]))) == [b'{"v":' + text + b"}"]


def test_a_time_without_a_zone_in_a_session_without_one(spark: SparkSession) -> None:
    batch = spark.sql("select 'x' body, date'2030-01-01' due_at").toArrow().combine_chunks().to_batches()[0]
    with pytest.raises(InvalidSettings, match=r"set spark\.sql\.session\.timeZone"):
        job_columns(batch, OPTIONS, NOW, OPTIONS.batch, None)


@pytest.mark.parametrize(
    ("name", "minutes"), [("UTC", 0), ("Z", 0), ("+05:30", 330), ("GMT-8", -480), ("Asia/Kolkata", 330)]
)
def test_zones_as_sessions_name_them(name: str, minutes: int) -> None:
    at = datetime.datetime(2030, 1, 1, tzinfo=read_zone(name))
    assert at.utcoffset() == datetime.timedelta(minutes=minutes)


def test_a_zone_that_nobody_knows() -> None:
    with pytest.raises(InvalidSettings, match="knows no time zone 'Mars/Phobos'"):
        read_zone("Mars/Phobos")


def test_the_two_tables_have_the_same_columns() -> None:
    assert SCHEMA.names == ROWS.names


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ("1 body", r"the column body cannot be of type int: use to_json\(struct"),
        ("parse_json('[1]') body", r"the column body cannot be of type variant: use to_json\(body\)"),
        ("struct(parse_json('[1]') v) body", r"the column body cannot be of type .*variant.*: use to_json\(body\)"),
        (
            "'x' body, 'tomorrow' due_at",
            "due_at cannot be of type string; it must be a timestamp, .*: use to_timestamp",
        ),
        ("'x' body, 1790000000 due_at", "due_at cannot be of type int; .*: use timestamp_seconds"),
        ("'x' body, current_timestamp() due_at, 5 delay", "give delay or due_at, not both"),
    ],
)
def test_columns_of_the_wrong_type(spark: SparkSession, columns: str, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        check_columns(spark.sql(f"select {columns}").schema, LoadOptions("redis://x"))


@pytest.mark.parametrize("size", [1, 7, 499, 500, 501, 1_300, 5_000])
def test_where_rows_are_cut_does_not_depend_on_the_batches_they_come_in(size: int) -> None:
    count = 5_000
    rows = {
        "id": [f"job-{index}" for index in range(count)],
        "body": [b"x" * (100_000 if index < 300 else 10) for index in range(count)],
        "due_at": [NOW + index for index in range(count)],
        "queue": ["one" if index < 1_250 else "two" for index in range(count)],
        "ttl": [0] * count,
        "tries": [5] * count,
        "priority": [2 if index < 4_000 else 3 for index in range(count)],
        "attributes": [None if index % 1_000 else '{"k":"v"}' for index in range(count)],
        "action": ["keep"] * count,
        "reason": [None] * count,
    }
    table = pa.table(rows, schema=SCHEMA)

    def cut(pieces: list[pa.Table]) -> list[tuple[str, str, int, bytes]]:
        marks: list[tuple[str, str, int, bytes]] = []
        for queue, columns, steps, _ in Cutter("crm", lambda number, digest: Mark(str(number), digest, 1)).cut(pieces):
            for step in steps:
                assert step.mark is not None
                first = columns.ids[step.first].as_py()
                marks.append((step.mark.name, f"{queue}:{first}", step.last - step.first, step.mark.digest))
        return marks

    whole = cut([table])
    assert cut([table.slice(at, size) for at in range(0, count, size)]) == whole
    assert sum(one[2] for one in whole) == count
    assert max(one[2] for one in whole) == 500
    # 4 MiB of bodies are 41 of the large ones.
    assert [one[2] for one in whole[:3]] == [1, 41, 41]
