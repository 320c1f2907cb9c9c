"""Named statements from the `.sql` files of a dialect, and from those that dialects share.

A file holds statements, each under its `-- name:` and `-- description:`; the loader knows nothing else about SQL.
Scripts (schema, migrations) are plain files of statements that end with a semicolon at the end of a line.
"""

import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from duetime.model.errors import InvalidSettings, StoreUnavailable
from duetime.stores.sql.rows import QUEUE_COLUMNS


class Migration(NamedTuple):
    """A migration that is to be applied: its statements, and the one that notes it down."""

    name: str
    script: str


_HEADER = re.compile(r"^-- name: (\w+)\n-- description: .+\n", re.MULTILINE)
_COMMENT = re.compile(r"--[^\n]*")
_INDEX_HINT = re.compile(r" FORCE INDEX \(\w+\)")
_ROW_LOCK = re.compile(r"\s+FOR UPDATE SKIP LOCKED")
_PARAMETER = re.compile(r"%\((\w+)\)s")
_COLUMNS = re.compile(r"((?:\w+\.)?)\{queue_columns\}")


def load_queries(dialect: str) -> Mapping[str, str]:
    """Every named statement of a dialect: those that dialects share, unless the dialect has its own under that name."""
    shared = ("shared",) if dialect == "sqlite" else ("shared", "server")
    queries = {
        name: _in_dialect(dialect, statement)
        for file in shared
        for name, statement in _parse(
            files("duetime.stores").joinpath("sql", f"{file}.sql").read_text(encoding="utf-8")
        )
    }
    own: dict[str, str] = {}
    for file in _folder(dialect).iterdir():
        if file.name.endswith(".sql"):
            for name, statement in _parse(file.read_text(encoding="utf-8")):
                if name in own:
                    raise ValueError(f"duplicate query {name!r} in {dialect}/sql/*.sql")
                own[name] = statement
    return {name: _with_queue_columns(dialect, statement) for name, statement in (queries | own).items()}


def _with_queue_columns(dialect: str, statement: str) -> str:
    """Put the columns of `queues` into a statement: they are listed in one place, `QueueRow`.

    `{queue_columns}` are all columns in its order (`q.{queue_columns}` with the alias before each), `{queue_fields}`
    those without the id, `{zeros}` a 0 for each of these, and `{queue_assignments}` sets each to its parameter.
    """
    fields = QUEUE_COLUMNS[1:]
    value = "{0} = ?" if dialect == "sqlite" else "{0} = %({0})s"
    statement = statement.replace("{queue_assignments}", ", ".join(map(value.format, fields)))
    statement = statement.replace("{queue_fields}", ", ".join(fields)).replace(
        "{zeros}", ", ".join("0" for _ in fields)
    )
    return _COLUMNS.sub(lambda found: ", ".join(found[1] + column for column in QUEUE_COLUMNS), statement)


def _in_dialect(dialect: str, statement: str) -> str:
    """A shared statement as a dialect writes it; the head of `shared.sql` names the differences."""
    if dialect == "mysql":
        return statement
    statement = _INDEX_HINT.sub("", statement).replace("`", "")
    if dialect == "sqlite":
        statement = statement.replace("IN %(ids)s", "IN (SELECT value FROM json_each(%(ids)s))")
        statement = _PARAMETER.sub(r":\1", _ROW_LOCK.sub("", statement)).replace("dt.", "")
    return statement


def load_migrations(dialect: str) -> Mapping[int, tuple[str, str]]:
    """Number to (name, script), in the order in which they apply.

    There is one, the schema itself. The first change after a release adds a folder of numbered scripts next to it.
    """
    return {1: ("0001_initial", load_schema(dialect))}


def check_newer(database: str, unknown: Mapping[int, str]) -> None:
    """Raises StoreUnavailable if a newer release has upgraded the tables by a migration that this one must not meet.

    Migrations only add, so that the old and the new release work side by side during an upgrade. The name of one that
    has to break this rule says so: it contains "breaking".
    """
    if breaking := [number for number, name in unknown.items() if "breaking" in name]:
        raise StoreUnavailable(f"a newer Duetime has upgraded these {database} tables (migration {max(breaking)})")


def load_schema(dialect: str) -> str:
    return (_folder(dialect) / "schema.sql").read_text(encoding="utf-8")


def tables_of_schema(dialect: str) -> list[str]:
    """The names of a dialect's tables and sequences, without the store's prefix."""
    return re.findall(r"CREATE (?:TABLE|SEQUENCE) dt\.(\w+)", load_schema(dialect))


def named_tables(script: str, before: str, after: str, before_index: str) -> str:
    """Put a store's own names in the place of `dt.table` (a table or a sequence) and `dt_index`."""
    script = re.sub(r"\bdt\.(\w+)", rf"{before}\1{after}", script)
    return re.sub(r"\bdt_(\w+)", rf"{before_index}\1{after}", script)


DEFAULT_SCHEMA = "duetime"
DEFAULT_MYSQL_PREFIX = "duetime_"
MAX_CHANNEL = 63
"""Bytes of a channel's name; PostgreSQL cuts or refuses longer ones."""


def table_names(schema: str, prefix: str) -> tuple[str, str, str]:
    """What `named_tables` puts around the names of tables and indexes. Raises InvalidSettings."""
    for name, word in (("schema", schema), ("prefix", prefix)):
        if not word.replace("_", "").isalnum() and (name == "schema" or word):
            raise InvalidSettings(f"{name} must have letters, digits and underscores only, got {word!r}")
    return f'"{schema}"."{prefix}', '"', f'"{prefix}'


def mysql_table_names(schema: str, prefix: str) -> tuple[str, str, str]:
    """As `table_names`, for MariaDB and MySQL, where the schema is another database, or none for the session's own."""
    for name, word in (("schema", schema), ("prefix", prefix)):
        if word and not (word.replace("_", "").isalnum() and word.isascii()):
            raise InvalidSettings(f"{name} must have letters, digits and underscores only, got {word!r}")
    return f"`{schema}`.`{prefix}" if schema else f"`{prefix}", "`", ""


def channel(schema: str, prefix: str) -> str:
    """On which PostgreSQL's sessions notify each other. A name that is too long for PostgreSQL becomes its digest."""
    name = f"duetime {schema}.{prefix}"
    if len(name.encode()) <= MAX_CHANNEL:
        return name
    return f"duetime {sha256(name.encode()).hexdigest()[:32]}"


def for_rows(insert: str, count: int) -> str:
    """The same INSERT for several rows."""
    head, values = insert.rsplit("VALUES", 1)
    return f"{head}VALUES{','.join([values] * count)}"


def for_one_id(query: str) -> str:
    """The same statement for one id in the place of a JSON list of ids."""
    query = query.replace("IN (SELECT value FROM json_each(:ids))", "= :ids")
    query = query.replace("json_each(:ids) AS wanted\nCROSS JOIN jobs ON", "jobs\nWHERE")
    return query.replace("wanted.value", ":ids")


def statements(script: str) -> list[str]:
    """A script's statements, for drivers that run one at a time."""
    bare = _COMMENT.sub("", script)
    return [statement.strip() for statement in re.split(r";\s*\n", bare + "\n") if statement.strip()]


def _folder(dialect: str, *parts: str) -> Traversable:
    return files("duetime.stores").joinpath(dialect, "sql", *parts)


def _parse(text: str) -> Iterator[tuple[str, str]]:
    _, *sections = _HEADER.split(text)
    for name, statement in zip(sections[::2], sections[1::2], strict=True):
        yield name, statement.strip().removesuffix(";")
