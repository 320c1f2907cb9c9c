"""The log of a table in Delta Lake's format, written without any of its libraries.

    <table>/_delta_log/<version>.json                one commit: which files came and went
    <table>/_delta_log/<version>.checkpoint.parquet  all files of that version, so that older commits can go

A commit's first line also holds our whole manifest, so that we read the newest commit only. Delta's readers (DuckDB,
Trino, Databricks, delta-rs, Spark with its extension) read the other lines. The format is described in Delta's
PROTOCOL.md; we need reader version 1 and writer version 2. Runs on the driver.
"""

from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]

arrow: Any = pa
parquet: Any = pq

LOG = "_delta_log"
CHECKPOINT_EVERY = 20
PARTITION = "date"

_TEXTS = arrow.map_(arrow.string(), arrow.string())
CHECKPOINT = arrow.schema(
    [
        ("protocol", arrow.struct([("minReaderVersion", arrow.int32()), ("minWriterVersion", arrow.int32())])),
        (
            "metaData",
            arrow.struct(
                [
                    ("id", arrow.string()),
                    ("format", arrow.struct([("provider", arrow.string()), ("options", _TEXTS)])),
                    ("schemaString", arrow.string()),
                    ("partitionColumns", arrow.list_(arrow.string())),
                    ("configuration", _TEXTS),
                    ("createdTime", arrow.int64()),
                ]
            ),
        ),
        (
            "add",
            arrow.struct(
                [
                    ("path", arrow.string()),
                    ("partitionValues", _TEXTS),
                    ("size", arrow.int64()),
                    ("modificationTime", arrow.int64()),
                    ("dataChange", arrow.bool_()),
                ]
            ),
        ),
    ]
)

Action = Mapping[str, Mapping[str, Any]]


def commit_path(table: str, version: int) -> str:
    """Our versions begin with 1, Delta's with 0."""
    return f"{table}/{LOG}/{version - 1:020d}.json"


def checkpoint_path(table: str, version: int) -> str:
    return f"{table}/{LOG}/{version - 1:020d}.checkpoint.parquet"


def head(table_id: str, schema: str, at: int) -> list[Action]:
    """The actions of a table's first commit. `schema` is JSON as Spark writes it."""
    about: dict[str, Any] = {
        "id": table_id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": [PARTITION],
        "configuration": {},
        "createdTime": at,
    }
    return [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": about}]


def add(path: str, date: str, size: int, at: int) -> Action:
    """`path` is relative to the table."""
    return {
        "add": {
            "path": quote(path, safe="/="),
            "partitionValues": {PARTITION: date},
            "size": size,
            "modificationTime": at,
            "dataChange": True,
        }
    }


def remove(path: str, at: int) -> Action:
    return {"remove": {"path": quote(path, safe="/="), "deletionTimestamp": at, "dataChange": True}}


def commit(manifest: Any, at: int, actions: Iterable[Action]) -> bytes:
    info = {"commitInfo": {"timestamp": at, "operation": "WRITE", "engineInfo": "duetime", "manifest": manifest}}
    return b"\n".join(map(msgspec.json.encode, (info, *actions))) + b"\n"


def manifest_of(text: bytes) -> Any:
    """Our part of a commit, as JSON values."""
    return msgspec.json.decode(text.partition(b"\n")[0])["commitInfo"]["manifest"]


def checkpoint(actions: Sequence[Action]) -> bytes:
    """A checkpoint of a version: its head and an `add` for each file."""
    rows = [{name: _row(value) for name, value in action.items()} for action in actions]
    found = BytesIO()
    parquet.write_table(arrow.Table.from_pylist(rows, CHECKPOINT), found)
    return found.getvalue()


def last_checkpoint(version: int, actions: int) -> bytes:
    return msgspec.json.encode({"version": version - 1, "size": actions})


def _row(value: Mapping[str, Any]) -> dict[str, Any]:
    """Arrow wants a map as pairs."""
    maps = ("partitionValues", "configuration", "options")
    return {
        name: list(one.items()) if name in maps else _row(one) if name == "format" else one
        for name, one in value.items()
    }
