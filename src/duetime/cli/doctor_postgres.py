"""What the doctor asks a PostgreSQL: does it keep what it is given, may we do our work, and does it clean up behind us?

Only reads, and makes no tables. Each finding that is not fine comes with the statement that mends it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from duetime.cli.doctor_findings import Finding, fail, ok, warn
from duetime.errors import InvalidSettings
from duetime.stores.sql.queries import tables_of_schema

OLDEST = 120_000
"""The first release with materialized CTEs and plan_cache_mode, as server_version_num."""
LONG_S = 300
MANY_DEAD = 50_000
"""Dead rows of a table that are worth a finding, if they are also more than the live ones."""
FEW_LEFT = 0.1

_FACTS = """
SELECT
    current_setting('server_version_num')::int,
    current_setting('server_version'),
    pg_is_in_recovery(),
    current_setting('default_transaction_isolation'),
    current_setting('default_transaction_read_only'),
    current_setting('fsync'),
    current_setting('full_page_writes'),
    current_setting('synchronous_commit'),
    current_setting('autovacuum'),
    current_setting('max_connections')::int,
    (SELECT sum(numbackends)::int FROM pg_stat_database),
    quote_ident(current_user),
    quote_ident(current_database()),
    pg_has_role('pg_read_all_stats', 'USAGE')
"""
_OLD_SESSIONS = """
SELECT pid, usename, application_name, extract(EPOCH FROM clock_timestamp() - xact_start)::int
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
    c.relname,
    c.relkind,
    coalesce(s.n_dead_tup, 0),
    coalesce(s.n_live_tup, 0),
    coalesce('autovacuum_enabled=false' = ANY(c.reloptions), false),
    CASE c.relkind
        WHEN 'S' THEN has_sequence_privilege(c.oid, 'USAGE')
        ELSE has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
            AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE')
    END,
    ARRAY(SELECT a.attname::text FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0)
FROM pg_class AS c
LEFT JOIN pg_stat_user_tables AS s ON s.relid = c.oid
WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind IN ('r', 'S') AND c.relname = ANY(%s)
ORDER BY c.relname
"""
_SCHEMA = """
SELECT
    s.oid IS NOT NULL,
    coalesce(has_schema_privilege(s.oid, 'USAGE'), false),
    CASE
        WHEN s.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE')
        ELSE has_schema_privilege(s.oid, 'CREATE') AND has_schema_privilege(s.oid, 'USAGE')
    END
FROM (SELECT to_regnamespace(%(schema)s)::oid AS oid) AS s
"""


class PostgresFacts(NamedTuple):
    """The row of `_FACTS`. `user` and `database` are quoted for a statement."""

    number: int
    version: str
    is_standby: bool
    isolation: str
    read_only: str
    fsync: str
    full_pages: str
    synchronous: str
    autovacuum: str
    allowed: int
    used: int
    user: str
    database: str
    sees_all: bool


def examine_postgres(url: str) -> Iterator[Finding]:
    """Raises StoreUnavailable if it does not answer. Its last finding is about the tables."""
    try:
        import psycopg  # noqa: PLC0415 (an optional driver)

        from duetime.stores.postgres.connection import PostgresAddress, translate  # noqa: PLC0415
    except ModuleNotFoundError:
        raise InvalidSettings("postgresql:// needs the extra duetime[postgres]") from None
    address = PostgresAddress.parse(url)
    try:
        with psycopg.connect(address.conninfo, autocommit=True) as connection:
            facts = PostgresFacts(*(connection.execute(_FACTS).fetchone() or ()))
            yield from _server(facts)
            yield from _old_transactions(connection, facts)
            yield from _tables(connection, address, facts)
    except psycopg.Error as error:
        raise translate(error) from error


def has_postgres_tables(url: str) -> bool:
    """Whether the store was opened before; opening it would make its tables."""
    import psycopg  # noqa: PLC0415

    from duetime.stores.postgres.connection import PostgresAddress, translate  # noqa: PLC0415

    address = PostgresAddress.parse(url)
    try:
        with psycopg.connect(address.conninfo) as connection:
            return connection.execute("SELECT to_regclass(%s)", (address.table("migrations"),)).fetchone() != (None,)
    except psycopg.Error as error:
        raise translate(error) from error


def _server(facts: PostgresFacts) -> Iterator[Finding]:
    version, is_standby, isolation = facts.version, facts.is_standby, facts.isolation
    if facts.number < OLDEST:
        yield fail(
            "postgres.version",
            f"this is PostgreSQL {version}",
            why="Duetime's statements need PostgreSQL 12; it is tested with 15",
            fix="upgrade the server (pg_upgrade)",
        )
    else:
        yield ok("postgres.version", f"this is PostgreSQL {version}")
    if is_standby or facts.read_only == "on":
        yield fail(
            "postgres.writable",
            "this server is a standby" if is_standby else "transactions are read only by default",
            why="every push, reserve and ack is refused",
            fix="name all hosts in the URL and add target_session_attrs=read-write"
            if is_standby
            else f"ALTER ROLE {facts.user} SET default_transaction_read_only = off",
        )
    else:
        yield ok("postgres.writable", "this server takes writes")
    if isolation == "read committed":
        yield ok("postgres.isolation", "transactions are READ COMMITTED by default")
    else:
        yield warn(
            "postgres.isolation",
            f"transactions are {isolation.upper()} by default",
            why="the store sets READ COMMITTED for its own sessions; transactions with push_in may have to be repeated",
            fix=f"ALTER ROLE {facts.user} SET default_transaction_isolation = 'read committed'",
        )
    yield _durability(facts)
    if facts.autovacuum == "on":
        yield ok("postgres.autovacuum", "autovacuum is on")
    else:
        yield fail(
            "postgres.autovacuum",
            "autovacuum is off",
            why="dead rows pile up, and every step gets slower",
            fix="ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()",
        )
    yield _connections(facts.used, facts.allowed)


def _connections(used: int, allowed: int) -> Finding:
    what = f"{used} of {allowed} connections are used"
    if used < allowed * (1 - FEW_LEFT):
        return ok("postgres.connections", what)
    return warn(
        "postgres.connections",
        what,
        why="a server that gets none refuses calls (503)",
        fix=f"ALTER SYSTEM SET max_connections = {allowed * 2} and restart, or fewer connections= in the URL",
    )


def _durability(facts: PostgresFacts) -> Finding:
    wrong = [name for name, value in (("fsync", facts.fsync), ("full_page_writes", facts.full_pages)) if value != "on"]
    if wrong:
        return fail(
            "postgres.durability",
            f"{' and '.join(wrong)} off",
            why="a loss of power destroys the database, and with it all jobs",
            fix="; ".join(f"ALTER SYSTEM SET {name} = on" for name in wrong) + "; SELECT pg_reload_conf()",
        )
    if facts.synchronous == "off":
        return warn(
            "postgres.durability",
            "synchronous_commit is off",
            why="a crash loses the last moments, also jobs that were accepted",
            fix=f"ALTER ROLE {facts.user} SET synchronous_commit = on",
        )
    return ok("postgres.durability", f"commits are durable (fsync on, synchronous_commit {facts.synchronous})")


def _old_transactions(connection: Any, facts: PostgresFacts) -> Iterator[Finding]:
    check, why = "postgres.oldest_transaction", "while it is open no dead row can be removed, and queues get slower"
    mended = False
    for pid, user, name, seconds in connection.execute(_OLD_SESSIONS, (LONG_S,)).fetchall():
        mended = True
        what = f"a transaction of {user} ({name or 'no application name'}) is open since {seconds} s"
        yield warn(check, what, why=why, fix=f"SELECT pg_terminate_backend({pid})")
    for (gid,) in connection.execute(_OLD_PREPARED, (LONG_S,)).fetchall():
        mended = True
        yield warn(check, f"the prepared transaction {gid} is open", why=why, fix=f"ROLLBACK PREPARED '{gid}'")
    for (slot,) in connection.execute(_IDLE_SLOTS).fetchall():
        mended = True
        what = f"nobody uses the replication slot {slot}"
        yield warn(
            check, what, why=f"{why}, and its log fills the disk", fix=f"SELECT pg_drop_replication_slot('{slot}')"
        )
    if not facts.sees_all:
        yield warn(
            check,
            "transactions of other users are not visible to this user",
            why=f"one of them may be open for long; {why}",
            fix=f"GRANT pg_read_all_stats TO {facts.user}",
        )
    elif not mended:
        yield ok(check, f"no transaction is older than {LONG_S} s")


def _tables(connection: Any, address: Any, facts: PostgresFacts) -> Iterator[Finding]:
    schema, prefix, user = address.schema, address.prefix, facts.user
    # A table of another program may stand beside ours: only names of ours are asked for.
    names = [prefix + name for name in tables_of_schema("postgres")]
    rows = connection.execute(_TABLES, (f'"{schema}"', names)).fetchall()
    if rows and (foreign := _foreign(prefix, {name: columns for name, *_, columns in rows})):
        yield fail(
            "postgres.tables",
            f'the schema {schema} has a table "{foreign}" of somebody else',
            why="no server can start",
            fix="give the store's URL another schema= or prefix=",
        )
        return
    exists, usage, create = connection.execute(_SCHEMA, {"schema": f'"{schema}"'}).fetchone()
    if not rows:
        place = f'SCHEMA "{schema}"' if exists else f"DATABASE {facts.database}"
        rights = "CREATE, USAGE" if exists else "CREATE"
        yield _before_the_first_start(schema, f"GRANT {rights} ON {place} TO {user}", create=create)
        return
    if not usage:
        yield _missing_grant(f'GRANT USAGE ON SCHEMA "{schema}" TO {user}', f"the schema {schema}")
        return
    fine = True
    for name, kind, dead, live, unvacuumed, granted, _ in rows:
        table = f'"{schema}"."{name}"'
        if not granted:
            fine = False
            what = "USAGE ON SEQUENCE" if kind == "S" else "SELECT, INSERT, UPDATE, DELETE ON"
            yield _missing_grant(f"GRANT {what} {table} TO {user}", table)
        if unvacuumed:
            fine = False
            yield warn(
                "postgres.autovacuum",
                f"autovacuum is off for {table}",
                why="dead rows pile up, and every step gets slower",
                fix=f"ALTER TABLE {table} SET (autovacuum_enabled = true)",
            )
        if dead > max(MANY_DEAD, live):
            fine = False
            yield warn(
                "postgres.bloat",
                f"{table} has {dead:,} dead rows and {live:,} live ones",
                why="each look at the queue reads over them",
                fix=f"VACUUM (ANALYZE) {table}",
            )
    if fine:
        yield ok("postgres.tables", f"the tables in {schema} are ours to use, and are kept clean")


def _missing_grant(statement: str, what: str) -> Finding:
    return fail(
        "postgres.grants", f"this user may not use {what}", why="calls on jobs are refused (503)", fix=statement
    )


def _foreign(prefix: str, columns: Mapping[str, Sequence[str]]) -> str | None:
    """A table with a name of ours that another program made: ours come all at once, and `migrations` among them."""
    migrations = f"{prefix}migrations"
    if migrations not in columns:
        return min(columns)
    return None if set(columns[migrations]) >= {"number", "name", "applied_at"} else migrations


def _before_the_first_start(schema: str, grant: str, *, create: bool) -> Finding:
    if create:
        return ok(
            "postgres.tables", f"there are no tables in {schema} yet; the first start or `duetime migrate` makes them"
        )
    return fail(
        "postgres.grants",
        f"there are no tables in {schema}, and this user may not make them",
        why="no server can start until this is granted, or somebody else runs what `duetime migrate --sql` prints",
        fix=grant,
    )
