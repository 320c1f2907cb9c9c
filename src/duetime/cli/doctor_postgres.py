"""What the doctor asks a PostgreSQL: does it keep jobs durably, does this user have the rights, and does it vacuum?

Only reads, and makes no tables. Each finding that is not ok comes with the statement that fixes it.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import psycopg
from psycopg.rows import dict_row

from duetime.cli.doctor_checks import Check, Facts, Finding, fail, judge, ok, warn
from duetime.stores.postgres.connection import PostgresAddress, translate
from duetime.stores.sql.queries import tables_of_schema

OLDEST = 120_000
"""The first release with materialized CTEs and plan_cache_mode, as server_version_num."""
LONG_S = 300
MANY_DEAD = 50_000
"""Dead rows of a table that are worth a finding, if they are also more than the live ones."""
FEW_LEFT = 0.1

_FACTS = """
SELECT
    current_setting('server_version_num')::int AS number,
    current_setting('server_version') AS version,
    pg_is_in_recovery() AS is_standby,
    upper(current_setting('default_transaction_isolation')) AS isolation,
    current_setting('default_transaction_read_only') AS read_only,
    current_setting('fsync') AS fsync,
    current_setting('full_page_writes') AS full_page_writes,
    current_setting('synchronous_commit') AS synchronous,
    current_setting('autovacuum') AS autovacuum,
    current_setting('max_connections')::int AS allowed,
    (SELECT sum(numbackends)::int FROM pg_stat_database) AS used,
    quote_ident(current_user) AS me,
    quote_ident(current_database()) AS database,
    pg_has_role('pg_read_all_stats', 'USAGE') AS sees_all
"""
_OLD_SESSIONS = """
SELECT
    pid,
    usename,
    coalesce(nullif(application_name, ''), 'no application name') AS application,
    extract(EPOCH FROM clock_timestamp() - xact_start)::int AS seconds
FROM pg_stat_activity
WHERE
    pid <> pg_backend_pid()
    AND backend_type = 'client backend'
    AND xact_start < clock_timestamp() - make_interval(secs => %s)
ORDER BY xact_start
"""
_OLD_PREPARED = "SELECT gid FROM pg_prepared_xacts WHERE prepared < clock_timestamp() - make_interval(secs => %s)"
_IDLE_SLOTS = (
    "SELECT slot_name FROM pg_replication_slots WHERE NOT active AND (xmin IS NOT NULL OR slot_type = 'physical')"
)
_TABLES = """
SELECT
    c.relname AS name,
    CASE c.relkind WHEN 'S' THEN 'USAGE ON SEQUENCE' ELSE 'SELECT, INSERT, UPDATE, DELETE ON' END AS rights,
    coalesce(s.n_dead_tup, 0) AS dead,
    coalesce(s.n_live_tup, 0) AS live,
    coalesce('autovacuum_enabled=false' = ANY(c.reloptions), false) AS unvacuumed,
    CASE c.relkind
        WHEN 'S' THEN has_sequence_privilege(c.oid, 'USAGE')
        ELSE has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
            AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE')
    END AS granted,
    ARRAY(SELECT a.attname::text FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0) AS columns
FROM pg_class AS c
LEFT JOIN pg_stat_user_tables AS s ON s.relid = c.oid
WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind IN ('r', 'S') AND c.relname = ANY(%s)
ORDER BY c.relname
"""
_SCHEMA = """
SELECT
    s.oid IS NOT NULL AS schema_exists,
    coalesce(has_schema_privilege(s.oid, 'USAGE'), false) AS may_use,
    CASE
        WHEN s.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE')
        ELSE has_schema_privilege(s.oid, 'CREATE') AND has_schema_privilege(s.oid, 'USAGE')
    END AS may_create
FROM (SELECT to_regnamespace(%s)::oid AS oid) AS s
"""

DEAD_ROWS = "dead rows pile up, and every step gets slower"
KEEPS_DEAD_ROWS = "while it is open no dead row can be removed, and queues get slower"
REFUSED = "calls on jobs are refused (503)"
NO_START = "no server can start until this is granted, or another user runs what `duetime migrate --sql` prints"

# fmt: off
SERVER = (
    Check("postgres.version",
        fail("this is PostgreSQL {version}", when=lambda f: f["number"] < OLDEST,
             why="Duetime's statements need PostgreSQL 12; it is tested with 15",
             fix="upgrade the server (pg_upgrade)"),
        ok("this is PostgreSQL {version}")),
    Check("postgres.writable",
        fail("this server is a standby", when=lambda f: f["is_standby"], why="every push, reserve and ack is refused",
             fix="name all hosts in the URL and add target_session_attrs=read-write"),
        fail("transactions are read only by default", when=lambda f: f["read_only"] == "on",
             why="every push, reserve and ack is refused",
             fix="ALTER ROLE {me} SET default_transaction_read_only = off"),
        ok("this server takes writes")),
    Check("postgres.isolation",
        warn("transactions are {isolation} by default", when=lambda f: f["isolation"] != "READ COMMITTED",
             why="the store sets READ COMMITTED for its own sessions; transactions with push_in may need repeating",
             fix="ALTER ROLE {me} SET default_transaction_isolation = 'read committed'"),
        ok("transactions are READ COMMITTED by default")),
    Check("postgres.durability",
        fail("{unsafe} off", when=lambda f: f["unsafe"],
             why="a loss of power destroys the database, and with it all jobs",
             fix="{make_safe}; SELECT pg_reload_conf()"),
        warn("synchronous_commit is off", when=lambda f: f["synchronous"] == "off",
             why="a crash loses the last moments, also jobs that were accepted",
             fix="ALTER ROLE {me} SET synchronous_commit = on"),
        ok("commits are durable (fsync on, synchronous_commit {synchronous})")),
    Check("postgres.autovacuum",
        fail("autovacuum is off", when=lambda f: f["autovacuum"] != "on", why=DEAD_ROWS,
             fix="ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()"),
        ok("autovacuum is on")),
    Check("postgres.connections",
        warn("{used} of {allowed} connections are used", when=lambda f: f["used"] >= f["allowed"] * (1 - FEW_LEFT),
             why="a server that gets none refuses calls (503)",
             fix="ALTER SYSTEM SET max_connections = {twice_allowed} and restart, or fewer connections= in the URL"),
        ok("{used} of {allowed} connections are used")),
    Check("postgres.oldest_transaction",
        warn("a transaction of {usename} ({application}) is open since {seconds} s", when=lambda f: "pid" in f,
             why=KEEPS_DEAD_ROWS, fix="SELECT pg_terminate_backend({pid})"),
        warn("the prepared transaction {gid} is open", when=lambda f: "gid" in f, why=KEEPS_DEAD_ROWS,
             fix="ROLLBACK PREPARED '{gid}'"),
        warn("the replication slot {slot_name} is unused", when=lambda f: "slot_name" in f,
             why=f"{KEEPS_DEAD_ROWS}, and its log fills the disk",
             fix="SELECT pg_drop_replication_slot('{slot_name}')"),
        warn("transactions of other users are not visible to this user", when=lambda f: not f["sees_all"],
             why=f"one of them may be open for long; {KEEPS_DEAD_ROWS}", fix="GRANT pg_read_all_stats TO {me}"),
        ok("no transaction is older than {long_s} s"),
        rows=lambda f: [*f["blockers"], *([] if f["sees_all"] else [{}])]),
)

SCHEMA = (
    Check("postgres.tables",
        fail('the schema {schema} has a table "{foreign}" of another program', when=lambda f: f["foreign"],
             why="no server can start", fix="give the store's URL another schema= or prefix="),
        ok("there are no tables in {schema} yet; the first start or `duetime migrate` makes them",
           when=lambda f: not f["tables"] and f["may_create"])),
    Check("postgres.grants",
        fail("there are no tables in {schema}, and this user may not make them",
             when=lambda f: not f["tables"] and not f["may_create"] and f["schema_exists"], why=NO_START,
             fix='GRANT CREATE, USAGE ON SCHEMA "{schema}" TO {me}'),
        fail("there are no tables in {schema}, and this user may not make them",
             when=lambda f: not f["tables"] and not f["may_create"], why=NO_START,
             fix="GRANT CREATE ON DATABASE {database} TO {me}"),
        fail("this user may not use the schema {schema}",
             when=lambda f: f["tables"] and not f["foreign"] and not f["may_use"], why=REFUSED,
             fix='GRANT USAGE ON SCHEMA "{schema}" TO {me}')),
)

TABLE = (
    Check("postgres.grants",
        fail('this user may not use "{schema}"."{name}"', when=lambda f: not f["granted"], why=REFUSED,
             fix='GRANT {rights} "{schema}"."{name}" TO {me}')),
    Check("postgres.autovacuum",
        warn('autovacuum is off for "{schema}"."{name}"', when=lambda f: f["unvacuumed"], why=DEAD_ROWS,
             fix='ALTER TABLE "{schema}"."{name}" SET (autovacuum_enabled = true)')),
    Check("postgres.bloat",
        warn('"{schema}"."{name}" has {dead:,} dead rows and {live:,} live ones',
             when=lambda f: f["dead"] > max(MANY_DEAD, f["live"]), why="each query of the queue reads over them",
             fix='VACUUM (ANALYZE) "{schema}"."{name}"')),
)
TABLES_FINE = Check("postgres.tables", ok("the tables in {schema} are ours to use, and are kept clean"))
# fmt: on


def examine(url: str) -> Generator[Finding, None, bool]:
    """Returns whether the store's tables exist. Raises StoreUnavailable if the server does not answer."""
    address = PostgresAddress.parse(url)
    try:
        with (
            psycopg.connect(address.conninfo, autocommit=True) as connection,
            connection.cursor(row_factory=dict_row) as cursor,
        ):
            facts = _server_facts(cursor)
            yield from judge(SERVER, facts)
            return (yield from _tables(cursor, address, facts))
    except psycopg.Error as error:
        raise translate(error) from error


def _server_facts(cursor: Any) -> Facts:
    facts = cursor.execute(_FACTS).fetchone()
    unsafe = [name for name in ("fsync", "full_page_writes") if facts[name] != "on"]
    return {
        **facts,
        "unsafe": " and ".join(unsafe),
        "make_safe": "; ".join(f"ALTER SYSTEM SET {name} = on" for name in unsafe),
        "twice_allowed": facts["allowed"] * 2,
        "long_s": LONG_S,
        "blockers": [
            *cursor.execute(_OLD_SESSIONS, (LONG_S,)).fetchall(),
            *cursor.execute(_OLD_PREPARED, (LONG_S,)).fetchall(),
            *cursor.execute(_IDLE_SLOTS).fetchall(),
        ],
    }


def _tables(cursor: Any, address: PostgresAddress, server: Facts) -> Generator[Finding, None, bool]:
    # Tables of other programs may be in the same schema: only our names are queried.
    names = [address.prefix + name for name in tables_of_schema("postgres")]
    tables = cursor.execute(_TABLES, (f'"{address.schema}"', names)).fetchall()
    facts: Facts = {
        **server,
        **cursor.execute(_SCHEMA, (f'"{address.schema}"',)).fetchone(),
        "schema": address.schema,
        "tables": tables,
        "foreign": tables and _foreign(address.prefix, {table["name"]: table["columns"] for table in tables}),
    }
    findings = [*judge(SCHEMA, facts)] or [finding for table in tables for finding in judge(TABLE, {**facts, **table})]
    yield from findings or judge([TABLES_FINE], facts)
    return any(table["name"] == f"{address.prefix}migrations" for table in tables)


def _foreign(prefix: str, columns: Mapping[str, Sequence[str]]) -> str | None:
    """A table with a name of ours that another program made: ours are created in one transaction, with `migrations`."""
    migrations = f"{prefix}migrations"
    if migrations not in columns:
        return min(columns)
    return None if set(columns[migrations]) >= {"number", "name", "applied_at"} else migrations
