"""The SQL files: how they load, and that queries stay on their indexes."""

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from duetime.stores.sql import queries
from duetime.stores.sql.queries import for_one_id, for_rows, load_queries, load_schema, statements

QUERIES = load_queries("sqlite")
PLANNED = {name: query for name, query in QUERIES.items() if not query.startswith("PRAGMA")}
WALKS = {name for name in QUERIES if name.startswith("check_")}
"""Full walks by intention; they are not on any consumer's or producer's way."""
LISTS_ALL = {"list_queues", "some_discarded", "delete_old_tombstones"}
"""Whoever asks for all queues reads all queues, but in order; the discarded are read one by one.
Tombstones are few, because each one beyond that is removed with the next."""


# --- the loader


@pytest.fixture
def dialect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of SQL files in the place of the package."""
    monkeypatch.setattr(queries, "files", lambda package: tmp_path)
    (tmp_path / "toy" / "sql").mkdir(parents=True)
    (tmp_path / "sql").mkdir()
    for file in ("shared", "server"):
        (tmp_path / "sql" / f"{file}.sql").write_text("")
    return tmp_path / "toy" / "sql"


def test_a_query_has_a_name_a_description_and_a_statement(dialect: Path) -> None:
    (dialect / "a.sql").write_text(
        "-- A file's own comment.\n\n"
        "-- name: one\n-- description: The first.\nSELECT 1;\n\n"
        "-- name: two\n-- description: The second.\nSELECT\n    2\nFROM t;\n"
    )
    assert load_queries("toy") == {"one": "SELECT 1", "two": "SELECT\n    2\nFROM t"}


def test_queries_come_from_all_files_but_the_schema(dialect: Path) -> None:
    (dialect / "a.sql").write_text("-- name: one\n-- description: x\nSELECT 1;\n")
    (dialect / "b.sql").write_text("-- name: two\n-- description: x\nSELECT 2;\n")
    (dialect / "schema.sql").write_text("CREATE TABLE t (a);\n")
    (dialect / "notes.txt").write_text("-- name: three\n-- description: x\nSELECT 3;\n")
    assert set(load_queries("toy")) == {"one", "two"}


def test_a_dialect_replaces_a_shared_statement_by_its_own(dialect: Path) -> None:
    shared, server = (dialect.parents[1] / "sql" / f"{file}.sql" for file in ("shared", "server"))
    shared.write_text("-- name: one\n-- description: x\nSELECT 1;\n-- name: two\n-- description: x\nSELECT 2;\n")
    server.write_text("-- name: three\n-- description: x\nSELECT 3;\n")
    (dialect / "a.sql").write_text("-- name: two\n-- description: x\nSELECT 'own';\n")
    assert load_queries("toy") == {"one": "SELECT 1", "two": "SELECT 'own'", "three": "SELECT 3"}


def test_shared_statements_in_each_dialect(dialect: Path) -> None:
    root = dialect.parents[1]
    (root / "sql" / "shared.sql").write_text(
        "-- name: one\n-- description: x\n"
        "SELECT a FROM dt.t FORCE INDEX (by_a) WHERE a = %(a)s\nFOR UPDATE SKIP LOCKED;\n"
    )
    for name in ("sqlite", "postgres", "mysql"):
        (root / name / "sql").mkdir(parents=True)
    assert [load_queries(name)["one"] for name in ("sqlite", "postgres", "mysql")] == [
        "SELECT a FROM t WHERE a = :a",
        "SELECT a FROM dt.t WHERE a = %(a)s\nFOR UPDATE SKIP LOCKED",
        "SELECT a FROM dt.t FORCE INDEX (by_a) WHERE a = %(a)s\nFOR UPDATE SKIP LOCKED",
    ]


@pytest.mark.parametrize("name", ["sqlite", "postgres", "mysql"])
def test_a_dialect_replaces_no_statement_by_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load_queries(name)
    monkeypatch.setattr(queries, "_folder", lambda dialect: Path(__file__).parent)  # no statements of its own
    assert [
        query for query, text in load_queries(name).items() if overrides(name, query) and text == whole[query]
    ] == []


def overrides(dialect: str, query: str) -> bool:
    folder = Path(queries.__file__).parents[1] / dialect / "sql"
    return any(f"-- name: {query}\n" in file.read_text() for file in folder.glob("*.sql"))


def test_a_name_is_defined_once(dialect: Path) -> None:
    for file in ("a.sql", "b.sql"):
        (dialect / file).write_text("-- name: one\n-- description: x\nSELECT 1;\n")
    with pytest.raises(ValueError, match="duplicate query 'one'"):
        load_queries("toy")


def test_a_script_falls_into_statements_without_comments() -> None:
    script = "-- why\nCREATE TABLE a (\n    b TEXT -- what; for\n);\n\nINSERT INTO a VALUES (';');\n"
    assert statements(script) == ["CREATE TABLE a (\n    b TEXT \n)", "INSERT INTO a VALUES (';')"]


def test_an_insert_for_several_rows() -> None:
    assert for_rows("INSERT INTO t (a, b) VALUES (?, 0)", 3) == "INSERT INTO t (a, b) VALUES (?, 0), (?, 0), (?, 0)"


@pytest.mark.parametrize("name", sorted(name for name, query in QUERIES.items() if "json_each(:ids)" in query))
def test_a_statement_for_one_id_finds_it_by_its_key(database: sqlite3.Connection, name: str) -> None:
    one = for_one_id(QUERIES[name])
    assert "json_each" not in one
    assert "wanted" not in one
    assert [step for step in plan(database, one) if not step.startswith(("SEARCH", "CORRELATED SCALAR SUBQUERY"))] == []


@pytest.mark.parametrize("dialect", ["sqlite", "postgres", "mysql"])
def test_every_query_is_used(dialect: str) -> None:
    stores = Path(queries.__file__).parents[1]
    source = "".join(path.read_text() for name in (dialect, "sql") for path in (stores / name).glob("*.py"))
    assert [name for name in load_queries(dialect) if f'"{name}"' not in source] == []


# --- the plans


@pytest.fixture(scope="module")
def database() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.executescript(load_schema("sqlite"))
    yield connection
    connection.close()


def plan(database: sqlite3.Connection, query: str) -> list[str]:
    named = {name: 0 for name in re.findall(r":(\w+)", query)}
    rows = database.execute(f"EXPLAIN QUERY PLAN {query}", named or [0] * query.count("?")).fetchall()
    return [detail for _, _, _, detail in rows]


@pytest.mark.parametrize("name", sorted(set(PLANNED) - WALKS - LISTS_ALL))
def test_a_query_never_reads_a_whole_table(database: sqlite3.Connection, name: str) -> None:
    harmless = ("VIRTUAL TABLE", "SCAN CONSTANT ROW", "SCAN (subquery")
    scans = [step for step in plan(database, QUERIES[name]) if step.startswith("SCAN")]
    assert [step for step in scans if not any(word in step for word in harmless)] == []


@pytest.mark.parametrize("name", sorted(set(PLANNED) - WALKS))
def test_a_query_never_sorts(database: sqlite3.Connection, name: str) -> None:
    assert [step for step in plan(database, QUERIES[name]) if "TEMP B-TREE" in step] == []


@pytest.mark.parametrize("name", ["heads", "count_waiting", "next_lapse", "next_expiry"])
def test_counting_and_looking_for_the_first_need_no_row(database: sqlite3.Connection, name: str) -> None:
    searches = [step for step in plan(database, QUERIES[name]) if step.startswith("SEARCH")]
    assert searches
    assert all("COVERING INDEX" in step for step in searches)


def served() -> list[tuple[str, str]]:
    found = re.findall(r"-- serves ([\w, ]+)\nCREATE (?:UNIQUE )?INDEX (\w+)", load_schema("sqlite"))
    return [(index, query) for served, index in found for query in served.split(", ")]


@pytest.mark.parametrize(("index", "query"), served())
def test_an_index_serves_its_documented_query(database: sqlite3.Connection, index: str, query: str) -> None:
    assert any(f"INDEX {index} " in f"{step} " for step in plan(database, QUERIES[query]))


def test_every_index_names_its_query() -> None:
    indexes = set(re.findall(r"CREATE (?:UNIQUE )?INDEX (\w+)", load_schema("sqlite")))
    assert indexes == {index for index, _ in served()}
