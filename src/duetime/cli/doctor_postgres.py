"""What the doctor asks a PostgreSQL: does it keep what it is given, may we do our work, and does it clean up behind us?

Only reads, and makes no tables. Each finding that is not fine comes with the statement that mends it.
"""

from collections.abc import Iterator
from typing import Any

from duetime.cli.doctor_findings import Finding, fail, ok, warn
from duetime.errors import InvalidSettings

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
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')
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
    END
FROM pg_class AS c
LEFT JOIN pg_stat_user_tables AS s ON s.relid = c.oid
WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind IN ('r', 'S') AND starts_with(c.relname, %s)
ORDER BY c.relname
"""


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
            yield from _server(*(connection.execute(_FACTS).fetchone() or ()))
            yield from _old_transactions(connection)
            yield from _tables(connection, address)
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


def _server(
    number: int, version: str, is_standby: bool, isolation: str, read_only: str, *rest: Any
) -> Iterator[Finding]:
    fsync, full_pages, synchronous, autovacuum, allowed, used = rest
    if number < OLDEST:
        yield fail(
            "postgres.version",
            f"this is PostgreSQL {version}",
            why="Duetime's statements need PostgreSQL 12; it is tested with 15",
            fix="upgrade the server (pg_upgrade)",
        )
    else:
        yield ok("postgres.version", f"this is PostgreSQL {version}")
    if is_standby or read_only == "on":
        yield fail(
            "postgres.writable",
            "this server is a standby" if is_standby else "transactions are read only by default",
            why="every push, reserve and ack is refused",
            fix="name all hosts in the URL and add target_session_attrs=read-write"
            if is_standby
            else "ALTER ROLE CURRENT_USER SET default_transaction_read_only = off",
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
            fix="ALTER ROLE CURRENT_USER SET default_transaction_isolation = 'read committed'",
        )
    yield from _durability(fsync, full_pages, synchronous)
    if autovacuum == "on":
        yield ok("postgres.autovacuum", "autovacuum is on")
    else:
        yield fail(
            "postgres.autovacuum",
            "autovacuum is off",
            why="dead rows pile up, and every step gets slower",
            fix="ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()",
        )
    if used < allowed * (1 - FEW_LEFT):
        yield ok("postgres.connections", f"{used} of {allowed} connections are used")
    else:
        yield warn(
            "postgres.connections",
            f"{used} of {allowed} connections are used",
            why="a server that gets none refuses calls (503)",
            fix=f"ALTER SYSTEM SET max_connections = {allowed * 2} and restart, or fewer connections= in the URL",
        )


def _durability(fsync: str, full_pages: str, synchronous: str) -> Iterator[Finding]:
    wrong = [name for name, value in (("fsync", fsync), ("full_page_writes", full_pages)) if value != "on"]
    if wrong:
        yield fail(
            "postgres.durability",
            f"{' and '.join(wrong)} off",
            why="a loss of power destroys the database, and with it all jobs",
            fix="; ".join(f"ALTER SYSTEM SET {name} = on" for name in wrong) + "; SELECT pg_reload_conf()",
        )
    elif synchronous == "off":
        yield warn(
            "postgres.durability",
            "synchronous_commit is off",
            why="a crash loses the last moments, also jobs that were accepted",
            fix="ALTER ROLE CURRENT_USER SET synchronous_commit = on",
        )
    else:
        yield ok("postgres.durability", f"commits are durable (fsync on, synchronous_commit {synchronous})")


def _old_transactions(connection: Any) -> Iterator[Finding]:
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
    if not mended:
        yield ok(check, f"no transaction is older than {LONG_S} s")


def _tables(connection: Any, address: Any) -> Iterator[Finding]:
    schema, prefix = address.schema, address.prefix
    rows = connection.execute(_TABLES, (f'"{schema}"', prefix)).fetchall()
    found = {name for name, *_ in rows}
    exists, usage, create = connection.execute(
        "SELECT to_regnamespace(%(schema)s) IS NOT NULL, "
        "coalesce(has_schema_privilege(to_regnamespace(%(schema)s), 'USAGE'), false), "
        "CASE WHEN to_regnamespace(%(schema)s) IS NULL THEN has_database_privilege(current_database(), 'CREATE') "
        "ELSE has_schema_privilege(to_regnamespace(%(schema)s), 'CREATE') END",
        {"schema": f'"{schema}"'},
    ).fetchone()
    if f"{prefix}migrations" not in found:
        yield _before_the_first_start(schema, exists=exists, create=create)
        return
    if not usage:
        yield _missing_grant(f'GRANT USAGE ON SCHEMA "{schema}" TO CURRENT_USER', f"the schema {schema}")
        return
    fine = True
    for name, kind, dead, live, unvacuumed, granted in rows:
        table = f'"{schema}"."{name}"'
        if not granted:
            fine = False
            what = "USAGE ON SEQUENCE" if kind == "S" else "SELECT, INSERT, UPDATE, DELETE ON"
            yield _missing_grant(f"GRANT {what} {table} TO CURRENT_USER", table)
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


def _before_the_first_start(schema: str, *, exists: bool, create: bool) -> Finding:
    if create:
        return ok(
            "postgres.tables", f"there are no tables in {schema} yet; the first start or `duetime migrate` makes them"
        )
    wanted = f'CREATE ON SCHEMA "{schema}"' if exists else "CREATE ON DATABASE (this one)"
    return fail(
        "postgres.grants",
        f"there are no tables in {schema}, and this user may not make them",
        why="no server can start",
        fix=f"GRANT {wanted} TO CURRENT_USER, or let somebody else run what `duetime migrate --sql` prints",
    )
