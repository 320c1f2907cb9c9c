"""What the doctor asks a MariaDB or MySQL: does it keep what it is given, and may we do our work?

Only reads, and makes no tables. Each finding that is not fine comes with the statement that mends it.
"""

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

from duetime.cli.doctor_findings import Finding, fail, ok, size, warn
from duetime.errors import InvalidSettings
from duetime.job import MAX_BODY
from duetime.stores.sql.queries import tables_of_schema

OLDEST = {"MariaDB": (10, 6), "MySQL": (8, 0)}
LONG_S = 300
FEW_LEFT = 0.1
PACKET = 16 * 1_048_576
"""MariaDB's default of max_allowed_packet."""
MUCH_FREE = 256 * 1_048_576
"""Bytes that deleted rows have left in a table's file and that are worth a finding, if they are also more than its rows
and indexes take."""
RIGHTS_OF_CALLS = ("SELECT", "INSERT", "UPDATE", "DELETE")
RIGHTS_OF_MIGRATIONS = (*RIGHTS_OF_CALLS, "CREATE", "CREATE VIEW", "DROP")
"""DROP is needed to put a new view in the place of an old one."""

_FACTS = """
SELECT
    @@version,
    @@global.read_only,
    @@global.innodb_flush_log_at_trx_commit,
    @@global.log_bin,
    @@global.binlog_format,
    @@global.max_allowed_packet,
    @@global.max_connections
"""
_OLD_TRANSACTIONS = """
SELECT trx_mysql_thread_id, timestampdiff(SECOND, trx_started, now())
FROM information_schema.innodb_trx
WHERE trx_mysql_thread_id <> connection_id() AND trx_started <= now() - INTERVAL %s SECOND
ORDER BY trx_started
"""
_FREE = """
SELECT table_name, data_free, data_length + index_length
FROM information_schema.tables
WHERE table_schema = database() AND table_name IN %s AND engine = 'InnoDB' AND @@global.innodb_file_per_table
ORDER BY table_name
"""
_DENIED = (1044, 1142, 1143, 1227)


def examine_mysql(url: str) -> Iterator[Finding]:
    """Raises StoreUnavailable if it does not answer. Its last finding is about the tables."""
    try:
        import pymysql  # noqa: PLC0415 (an optional driver)

        from duetime.stores.mysql.connection import (  # noqa: PLC0415
            Migrator,
            MysqlAddress,
            is_mariadb,
            open_connection,
            translate,
        )
    except ModuleNotFoundError as missing:
        raise InvalidSettings.lacks("mysql://", "mysql", missing) from None
    address = MysqlAddress.parse(url)
    try:
        with closing(open_connection(address)) as connection, connection.cursor() as cursor:
            cursor.execute(_FACTS)
            yield from _server(*cursor.fetchall()[0])
            yield _connections(cursor)
            yield from _old_transactions(cursor, pymysql.MySQLError)
            if not is_mariadb(connection):
                # MySQL would answer with a table's size of up to a day ago.
                cursor.execute("SET information_schema_stats_expiry = 0")
            tables = MysqlTables(cursor, address, pymysql.MySQLError)
            yield from tables.examine(Migrator(connection, address).missing)
    except pymysql.MySQLError as error:
        raise translate(error) from error


def has_mysql_tables(url: str) -> bool:
    """Whether the store was opened before; opening it would make its tables."""
    import pymysql  # noqa: PLC0415

    from duetime.stores.mysql.connection import MysqlAddress, open_connection, translate  # noqa: PLC0415

    address = MysqlAddress.parse(url)
    try:
        with closing(open_connection(address)) as connection, connection.cursor() as cursor:
            return address.prefix + "migrations" in _names(cursor)
    except pymysql.MySQLError as error:
        raise translate(error) from error


def _server(
    version: str, read_only: Any, flush: int, binlog: int, binlog_format: str, *sizes: int
) -> Iterator[Finding]:
    kind = "MariaDB" if "MariaDB" in version else "MySQL"
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST[kind]:
        needed = ".".join(map(str, OLDEST[kind]))
        yield fail(
            "mysql.version",
            f"this is {kind} {version}",
            why=f"Duetime's statements need {kind} {needed}; it is tested with MariaDB 10.11",
            fix="upgrade the server",
        )
    else:
        yield ok("mysql.version", f"this is {kind} {version}")
    if str(read_only) in ("0", "OFF"):
        yield ok("mysql.writable", "this server takes writes")
    else:
        yield fail(
            "mysql.writable",
            "this server is read only",
            why="every push, reserve and ack is refused",
            fix="SET GLOBAL read_only = 0, or the address of the primary in the URL",
        )
    if flush == 1:
        yield ok("mysql.durability", "commits are durable (innodb_flush_log_at_trx_commit 1)")
    else:
        yield warn(
            "mysql.durability",
            f"innodb_flush_log_at_trx_commit is {flush}",
            why="a crash loses the last moments, also jobs that were accepted",
            fix="SET GLOBAL innodb_flush_log_at_trx_commit = 1",
        )
    if binlog and binlog_format == "STATEMENT":
        yield fail(
            "mysql.isolation",
            "the binary log is in the format STATEMENT",
            why="InnoDB refuses changes at READ COMMITTED then, which the store uses",
            fix="SET GLOBAL binlog_format = 'ROW'",
        )
    else:
        yield ok("mysql.isolation", "transactions at READ COMMITTED can be logged")
    yield _packet(sizes[0])


def _packet(packet: int) -> Finding:
    largest = packet // 2 - 65_536
    if largest >= MAX_BODY:
        return ok("mysql.max_allowed_packet", f"bodies of up to {size(largest)} fit into max_allowed_packet")
    return warn(
        "mysql.max_allowed_packet",
        f"max_allowed_packet is {size(packet)}",
        why=f"bodies larger than {size(max(0, largest))} are refused (413)",
        fix=f"SET GLOBAL max_allowed_packet = {PACKET}",
    )


def _connections(cursor: Any) -> Finding:
    cursor.execute("SELECT @@global.max_connections")
    [(allowed,)] = cursor.fetchall()
    cursor.execute("SHOW GLOBAL STATUS LIKE 'Threads_connected'")
    used = int(cursor.fetchall()[0][1])
    what = f"{used} of {allowed} connections are used"
    if used < allowed * (1 - FEW_LEFT):
        return ok("mysql.connections", what)
    return warn(
        "mysql.connections",
        what,
        why="a server that gets none refuses calls (503)",
        fix=f"SET GLOBAL max_connections = {allowed * 2}, or fewer connections= in the URL",
    )


def _old_transactions(cursor: Any, errors: type[Exception]) -> Iterator[Finding]:
    check = "mysql.oldest_transaction"
    why = "while it is open no old version of a row can be removed, and queues get slower"
    try:
        cursor.execute(_OLD_TRANSACTIONS, (LONG_S,))
    except errors as error:
        if error.args[0] not in _DENIED:
            raise
        yield warn(
            check,
            "transactions of other users are not visible to this user",
            why=f"one of them may be open for long; {why}",
            fix=f"GRANT PROCESS ON *.* TO {_user(cursor)}",
        )
        return
    rows = cursor.fetchall()
    for session, seconds in rows:
        yield warn(
            check,
            f"a transaction of the session {session} is open since {seconds} s",
            why=why,
            fix=f"KILL {session}",
        )
    if not rows:
        yield ok(check, f"no transaction is older than {LONG_S} s")


def _names(cursor: Any) -> set[str]:
    """The tables that this user can see."""
    cursor.execute(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = database() AND table_type = 'BASE TABLE'"
    )
    return {str(name) for (name,) in cursor.fetchall()}


def _user(cursor: Any) -> str:
    """The account that the server takes this user for, quoted for a statement."""
    cursor.execute("SELECT current_user()")
    name, _, host = str(cursor.fetchall()[0][0]).rpartition("@")
    return "@".join("'{}'".format(part.replace("\\", "\\\\").replace("'", "''")) for part in (name, host))


class MysqlTables:
    """What is to be said about the tables of a store. Names of ours are asked for one by one: tables of other programs
    may stand beside ours, and the server does not list tables on which this user has no right at all."""

    def __init__(self, cursor: Any, address: Any, errors: type[Exception]) -> None:
        self._cursor, self._errors, self._user = cursor, errors, _user(cursor)
        self._database, self._migrations = address.database, f"{address.prefix}migrations"
        self._ours = sorted(address.prefix + name for name in tables_of_schema("mysql"))
        self._listed = _names(cursor)

    def examine(self, missing: Callable[[], list[int]]) -> Iterator[Finding]:
        """`missing` answers the numbers of the migrations that are to be applied."""
        found = [name for name in self._ours if name in self._listed]
        if self._migrations not in found:
            yield self._before_the_first_start(found)
        elif not {"number", "name", "applied_at"} <= set(self._columns(self._migrations)):
            yield self._foreign(self._migrations)
        else:
            is_old = "SELECT" not in self._denied(self._migrations) and bool(missing())
            # A table that this user does not see is still to be made then.
            grants = list(self._grants(found if is_old else self._ours))
            yield from grants
            yield from self._bloat()
            if is_old:
                yield self._upgrade()
            elif not grants:
                yield ok("mysql.tables", f"the tables in {self._database} are ours to use")

    def _before_the_first_start(self, found: list[str]) -> Finding:
        if self._is_denied(f"EXPLAIN SELECT 1 FROM `{self._migrations}`"):
            return self._may_not_make(f"this user may not see whether there are tables in {self._database}")
        if found:
            return self._foreign(found[0])
        if self._may_make_tables():
            return ok(
                "mysql.tables",
                f"there are no tables in {self._database} yet; the first start or `duetime migrate` makes them",
            )
        return self._may_not_make(f"there are no tables in {self._database}, and this user may not make them")

    def _upgrade(self) -> Finding:
        if self._may_make_tables():
            return ok("mysql.tables", f"the next start or `duetime migrate` upgrades the tables in {self._database}")
        return self._may_not_make(f"this user may not upgrade the tables in {self._database}")

    def _may_make_tables(self) -> bool:
        """Tries statements that need the rights of migrations and cannot succeed: what they read is not there."""
        name, absent = (f"`duetime_doctor_{secrets.token_hex(8)}`" for _ in range(2))
        tries = (
            f"CREATE TABLE {name} LIKE {absent}",
            f"CREATE OR REPLACE VIEW {name} AS SELECT 1 FROM {absent}",
            f"EXPLAIN INSERT INTO {absent} VALUES (1)",
            f"EXPLAIN UPDATE {absent} SET a = 1",
            f"EXPLAIN DELETE FROM {absent}",
        )
        return not any(map(self._is_denied, tries))

    def _may_not_make(self, what: str) -> Finding:
        # Without the backslash an underscore would stand for any letter. All rights are named, because the server would
        # no longer look at those that were granted for the name without backslashes.
        database = re.sub(r"([_%])", r"\\\1", self._database)
        return fail(
            "mysql.grants",
            what,
            why="no server can start until this is granted, or somebody else runs what `duetime migrate --sql` prints",
            fix=f"GRANT {', '.join(RIGHTS_OF_MIGRATIONS)} ON `{database}`.* TO {self._user}",
        )

    def _foreign(self, table: str) -> Finding:
        return fail(
            "mysql.tables",
            f"the database {self._database} has a table {table} of somebody else",
            why="no server can start",
            fix="give the store's URL another prefix=",
        )

    def _grants(self, tables: Sequence[str]) -> Iterator[Finding]:
        for name in tables:
            if denied := self._denied(name):
                yield fail(
                    "mysql.grants",
                    f"this user may not {', '.join(denied)} in {name}",
                    why="calls on jobs are refused (503)",
                    fix=f"GRANT {', '.join(denied)} ON `{self._database}`.`{name}` TO {self._user}",
                )

    def _denied(self, table: str) -> list[str]:
        """The rights on a table that this user lacks."""
        if table not in self._listed:
            return list(RIGHTS_OF_CALLS) if self._is_denied(f"EXPLAIN SELECT 1 FROM `{table}`") else []
        column = self._columns(table)[0]
        statements = {
            "SELECT": f"SELECT 1 FROM `{table}` WHERE `{column}` IS NULL",
            "INSERT": f"INSERT INTO `{table}` (`{column}`) VALUES (1)",
            "UPDATE": f"UPDATE `{table}` SET `{column}` = 1 WHERE 1 = 0",
            "DELETE": f"DELETE FROM `{table}` WHERE 1 = 0",
        }
        # A plan needs the same right as the statement, and changes nothing.
        return [right for right in RIGHTS_OF_CALLS if self._is_denied(f"EXPLAIN {statements[right]}")]

    def _bloat(self) -> Iterator[Finding]:
        self._cursor.execute(_FREE, (self._ours,))
        for name, free, used in self._cursor.fetchall():
            if free > max(MUCH_FREE, used):
                yield warn(
                    "mysql.bloat",
                    f"{name} has {size(used)} of rows and indexes, and {size(free)} that are free in its file",
                    why="deleted jobs have left this room, which the disk does not get back by itself",
                    fix=f"OPTIMIZE TABLE `{self._database}`.`{name}`",
                )

    def _columns(self, table: str) -> list[str]:
        self._cursor.execute(
            "SELECT column_name FROM information_schema.columns "
            "WHERE table_schema = database() AND table_name = %s ORDER BY ordinal_position",
            (table,),
        )
        return [str(name) for (name,) in self._cursor.fetchall()]

    def _is_denied(self, statement: str) -> bool:
        """Whether a statement is refused for want of a right. Other errors are what a caller expects, or say elsewhere
        what is wrong."""
        try:
            self._cursor.execute(statement)
        except self._errors as error:
            return error.args[0] in _DENIED
        return False
