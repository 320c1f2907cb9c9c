"""The statements by which another program writes jobs in its own transaction (`client/push_in.py`); `intake.py` takes
them in.
"""

from functools import cache
from hashlib import sha256

from msgspec import Struct

from duetime.model.errors import InvalidSettings
from duetime.stores.sql.queries import load_queries, named_tables

DEFAULT_SCHEMA = "duetime"
DEFAULT_MYSQL_PREFIX = "duetime_"

MAX_CHANNEL = 63
"""Bytes of a channel's name; PostgreSQL cuts or refuses longer ones."""

NEWS_OF_INCOMING = '["push_in",0,null]'
"""A notification that tells the servers to look everywhere; an `Announcement` as JSON."""


class IncomingStatements(Struct, frozen=True):
    """`rules` and `insert` take named values, `insert` one row at a time; `notify` takes none."""

    rules: str
    insert: str
    notify: str


@cache
def incoming_statements(dialect: str, *, schema: str | None = None, prefix: str | None = None) -> IncomingStatements:
    """Without a schema or a prefix, those of a URL without them."""
    if dialect == "mysql":
        names = mysql_table_names(schema or "", DEFAULT_MYSQL_PREFIX if prefix is None else prefix)
        announcements = named_tables("dt.announcements", *names)
        notify = f"INSERT INTO {announcements} (message) VALUES ('{NEWS_OF_INCOMING}')"
    else:
        schema, prefix = DEFAULT_SCHEMA if schema is None else schema, prefix or ""
        names = table_names(schema, prefix)
        notify = f"SELECT pg_notify('{channel(schema, prefix)}', '{NEWS_OF_INCOMING}')"
    queries = load_queries(dialect)
    rules, insert = (named_tables(queries[name], *names) for name in ("incoming_rules", "insert_incoming"))
    return IncomingStatements(rules, insert, notify)


def table_names(schema: str, prefix: str) -> tuple[str, str, str]:
    """What `named_tables` puts around the names of tables and indexes. Raises InvalidSettings."""
    for name, word in (("schema", schema), ("prefix", prefix)):
        if not word.replace("_", "").isalnum() and (name == "schema" or word):
            raise InvalidSettings(f"{name} has letters, digits and underscores only, not {word!r}")
    return f'"{schema}"."{prefix}', '"', f'"{prefix}'


def mysql_table_names(schema: str, prefix: str) -> tuple[str, str, str]:
    """As `table_names`, for MariaDB and MySQL, where the schema is another database, or none for the session's own."""
    for name, word in (("schema", schema), ("prefix", prefix)):
        if word and not (word.replace("_", "").isalnum() and word.isascii()):
            raise InvalidSettings(f"{name} has letters, digits and underscores only, not {word!r}")
    return f"`{schema}`.`{prefix}" if schema else f"`{prefix}", "`", ""


def channel(schema: str, prefix: str) -> str:
    """On which PostgreSQL's sessions notify each other. A name that is too long for PostgreSQL becomes its digest."""
    name = f"duetime {schema}.{prefix}"
    if len(name.encode()) <= MAX_CHANNEL:
        return name
    return f"duetime {sha256(name.encode()).hexdigest()[:32]}"
