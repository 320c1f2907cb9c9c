"""What the doctor asks a MariaDB or MySQL: does it keep jobs durably, and does this user have the rights?

Only reads, and makes no tables. Each finding that is not ok comes with the statement that fixes it.
"""

import re
import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Any

import pymysql
from pymysql.cursors import DictCursor

from duetime.cli.doctor_checks import Check, Facts, Finding, fail, judge, ok, warn
from duetime.model.humanise import size
from duetime.model.job import MAX_BODY
from duetime.stores.mysql.connection import Migrator, MysqlAddress, is_mariadb, open_connection, translate
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
    @@version AS version,
    @@global.read_only AS read_only,
    @@global.innodb_flush_log_at_trx_commit AS flush,
    @@global.log_bin AS binlog,
    @@global.binlog_format AS binlog_format,
    @@global.max_allowed_packet AS packet_bytes,
    @@global.max_connections AS allowed
"""
_OLD_TRANSACTIONS = """
SELECT trx_mysql_thread_id AS session, timestampdiff(SECOND, trx_started, now()) AS seconds
FROM information_schema.innodb_trx
WHERE trx_mysql_thread_id <> connection_id() AND trx_started <= now() - INTERVAL %s SECOND
ORDER BY trx_started
"""
_FREE = """
SELECT table_name AS name, data_free AS free_bytes, data_length + index_length AS used_bytes
FROM information_schema.tables
WHERE table_schema = database() AND table_name IN %s AND engine = 'InnoDB' AND @@global.innodb_file_per_table
ORDER BY table_name
"""
_DENIED = (1044, 1142, 1143, 1227)

KEEPS_VERSIONS = "while it is open no old version of a row can be removed, and queues get slower"
NO_START = "no server can start until this is granted, or another user runs what `duetime migrate --sql` prints"
GRANT_ALL = f"GRANT {', '.join(RIGHTS_OF_MIGRATIONS)} ON `{{database_pattern}}`.* TO {{me}}"

# fmt: off
GALERA = Check("mysql.galera",
    warn("this server is a node of a Galera cluster of {galera_nodes}", when=lambda f: f["galera_nodes"],
         why="Jepsen (2026) saw lost updates, stale reads and lost commits: jobs may be delivered twice or be lost",
         fix="let all programs use the same node, and set innodb_flush_log_at_trx_commit = 1 on every node"))
SERVER = (
    GALERA,
    Check("mysql.version",
        fail("this is {kind} {version}",
             when=lambda f: tuple(map(int, re.findall(r"\d+", f["version"])[:2])) < OLDEST[f["kind"]],
             why="Duetime's statements need {kind} {oldest}; it is tested with MariaDB 10.11",
             fix="upgrade the server"),
        ok("this is {kind} {version}")),
    Check("mysql.writable",
        ok("this server takes writes", when=lambda f: str(f["read_only"]) in ("0", "OFF")),
        fail("this server is read only", why="every push, reserve and ack is refused",
             fix="SET GLOBAL read_only = 0, or the address of the primary in the URL")),
    Check("mysql.durability",
        ok("commits are durable (innodb_flush_log_at_trx_commit 1)", when=lambda f: f["flush"] == 1),
        warn("innodb_flush_log_at_trx_commit is {flush}",
             why="a crash loses the last moments, also jobs that were accepted",
             fix="SET GLOBAL innodb_flush_log_at_trx_commit = 1")),
    Check("mysql.isolation",
        fail("the binary log is in the format STATEMENT",
             when=lambda f: f["binlog"] and f["binlog_format"] == "STATEMENT",
             why="InnoDB refuses changes at READ COMMITTED then, which the store uses",
             fix="SET GLOBAL binlog_format = 'ROW'"),
        ok("transactions at READ COMMITTED can be logged")),
    Check("mysql.max_allowed_packet",
        ok("bodies of up to {largest} fit into max_allowed_packet", when=lambda f: f["largest_bytes"] >= MAX_BODY),
        warn("max_allowed_packet is {packet}", why="bodies larger than {largest} are refused (413)",
             fix=f"SET GLOBAL max_allowed_packet = {PACKET}")),
    Check("mysql.connections",
        ok("{used} of {allowed} connections are used", when=lambda f: f["used"] < f["allowed"] * (1 - FEW_LEFT)),
        warn("{used} of {allowed} connections are used", why="a server that gets none refuses calls (503)",
             fix="SET GLOBAL max_connections = {twice_allowed}, or fewer connections= in the URL")),
    Check("mysql.oldest_transaction",
        warn("transactions of other users are not visible to this user", when=lambda f: f["blockers"] is None,
             why=f"one of them may be open for long; {KEEPS_VERSIONS}", fix="GRANT PROCESS ON *.* TO {me}"),
        warn("a transaction of the session {session} is open since {seconds} s", when=lambda f: "session" in f,
             why=KEEPS_VERSIONS, fix="KILL {session}"),
        ok("no transaction is older than {long_s} s"),
        rows=lambda f: f["blockers"] or ()),
)

HIDDEN = Check("mysql.grants",
    fail("this user may not see whether there are tables in {database}", why=NO_START, fix=GRANT_ALL))
FOREIGN = Check("mysql.tables",
    fail("the database {database} has a table {table} of another program", why="no server can start",
         fix="give the store's URL another prefix="))
ABSENT = Check("mysql.tables",
    ok("there are no tables in {database} yet; the first start or `duetime migrate` makes them"))
ABSENT_FOR_GOOD = Check("mysql.grants",
    fail("there are no tables in {database}, and this user may not make them", why=NO_START, fix=GRANT_ALL))
OLD = Check("mysql.tables", ok("the next start or `duetime migrate` upgrades the tables in {database}"))
OLD_FOR_GOOD = Check("mysql.grants",
    fail("this user may not upgrade the tables in {database}", why=NO_START, fix=GRANT_ALL))
GRANTS = Check("mysql.grants",
    fail("this user may not {rights} in {table}", when=lambda f: "rights" in f,
         why="calls on jobs are refused (503)", fix="GRANT {rights} ON `{database}`.`{table}` TO {me}"),
    rows=lambda f: f["denied"])
BLOAT = Check("mysql.bloat",
    warn("{name} has {used} of rows and indexes, and {free} that are free in its file",
         when=lambda f: f["free_bytes"] > max(MUCH_FREE, f["used_bytes"]),
         why="deleted jobs have left this room, which the disk does not get back by itself",
         fix="OPTIMIZE TABLE `{database}`.`{name}`"))
FINE = Check("mysql.tables", ok("the tables in {database} are ours to use"))
# fmt: on


def examine(url: str) -> Generator[Finding, None, bool]:
    """Returns whether the store's tables exist. Raises StoreUnavailable if the server does not answer."""
    address = MysqlAddress.parse(url)
    try:
        with closing(open_connection(address)) as connection, connection.cursor(DictCursor) as cursor:
            yield from judge(SERVER, _server_facts(cursor))
            if not is_mariadb(connection):
                # MySQL would answer with a table's size of up to a day ago.
                cursor.execute("SET information_schema_stats_expiry = 0")
            tables = MysqlTables(cursor, address)
            return (yield from tables.examine(Migrator(connection, address).missing))
    except pymysql.MySQLError as error:
        raise translate(error) from error


def _server_facts(cursor: Any) -> Facts:
    [facts] = _select(cursor, _FACTS)
    [threads] = _select(cursor, "SHOW GLOBAL STATUS LIKE 'Threads_connected'")
    wsrep = {
        row["Variable_name"]: row["Value"] for row in _select(cursor, "SHOW GLOBAL STATUS LIKE 'wsrep_cluster_size'")
    }
    kind = "MariaDB" if "MariaDB" in facts["version"] else "MySQL"
    largest = facts["packet_bytes"] // 2 - 65_536
    return {
        **facts,
        "kind": kind,
        "oldest": ".".join(map(str, OLDEST[kind])),
        "packet": size(facts["packet_bytes"]),
        "largest_bytes": largest,
        "largest": size(max(0, largest)),
        "used": int(threads["Value"]),
        "galera_nodes": int(wsrep.get("wsrep_cluster_size", 0)),
        "twice_allowed": facts["allowed"] * 2,
        "me": _user(cursor),
        "long_s": LONG_S,
        "blockers": _old_transactions(cursor),
    }


def _old_transactions(cursor: Any) -> list[Facts] | None:
    """None if this user may not see them."""
    try:
        return _select(cursor, _OLD_TRANSACTIONS, (LONG_S,))
    except pymysql.MySQLError as error:
        if error.args[0] not in _DENIED:
            raise
        return None


def _select(cursor: Any, statement: str, values: Sequence[Any] = ()) -> list[Facts]:
    cursor.execute(statement, values)
    return list(cursor.fetchall())


def _names(cursor: Any) -> set[str]:
    """The tables that this user can see."""
    rows = _select(
        cursor,
        "SELECT table_name AS name FROM information_schema.tables "
        "WHERE table_schema = database() AND table_type = 'BASE TABLE'",
    )
    return {str(row["name"]) for row in rows}


def _user(cursor: Any) -> str:
    """The account that the server takes this user for, quoted for a statement."""
    [row] = _select(cursor, "SELECT current_user() AS account")
    name, _, host = str(row["account"]).rpartition("@")
    return "@".join("'{}'".format(part.replace("\\", "\\\\").replace("'", "''")) for part in (name, host))


class MysqlTables:
    """The findings about the tables of a store. Our tables are looked up one by one: tables of other programs
    may be in the same database, and the server does not list tables on which this user has no right at all."""

    def __init__(self, cursor: Any, address: MysqlAddress) -> None:
        self._cursor = cursor
        self._migrations = f"{address.prefix}migrations"
        self._ours = sorted(address.prefix + name for name in tables_of_schema("mysql"))
        self._listed = _names(cursor)
        # Without the backslash an underscore would match any letter. All rights are named, because the server would
        # ignore those that were granted for the name without backslashes.
        pattern = re.sub(r"([_%])", r"\\\1", address.database)
        self._facts = {"database": address.database, "database_pattern": pattern, "me": _user(cursor)}

    def examine(self, missing: Callable[[], list[int]]) -> Generator[Finding, None, bool]:
        """`missing` returns the numbers of the migrations that are to be applied."""
        found = [name for name in self._ours if name in self._listed]
        if self._migrations not in found:
            yield from self._before_the_first_start(found)
            return False
        if not {"number", "name", "applied_at"} <= set(self._columns(self._migrations)):
            yield from self._judge(FOREIGN, table=self._migrations)
        else:
            is_old = "SELECT" not in self._denied(self._migrations) and bool(missing())
            # A table that this user does not see is still to be made then.
            tables = found if is_old else self._ours
            denied = [{"table": name, "rights": ", ".join(lack)} for name in tables if (lack := self._denied(name))]
            yield from self._judge(GRANTS, denied=denied)
            for row in _select(self._cursor, _FREE, (self._ours,)):
                yield from self._judge(BLOAT, **row, free=size(row["free_bytes"]), used=size(row["used_bytes"]))
            if is_old:
                yield from self._judge(OLD if self._may_make_tables() else OLD_FOR_GOOD)
            elif not denied:
                yield from self._judge(FINE)
        return True

    def _judge(self, check: Check, **more: Any) -> Iterator[Finding]:
        return judge([check], {**self._facts, **more})

    def _before_the_first_start(self, found: list[str]) -> Iterator[Finding]:
        if self._is_denied(f"EXPLAIN SELECT 1 FROM `{self._migrations}`"):
            return self._judge(HIDDEN)
        if found:
            return self._judge(FOREIGN, table=found[0])
        return self._judge(ABSENT if self._may_make_tables() else ABSENT_FOR_GOOD)

    def _may_make_tables(self) -> bool:
        """Tries statements that need the rights of migrations and cannot succeed: they read missing tables."""
        name, absent = (f"`duetime_doctor_{secrets.token_hex(8)}`" for _ in range(2))
        tries = (
            f"CREATE TABLE {name} LIKE {absent}",
            f"CREATE OR REPLACE VIEW {name} AS SELECT 1 FROM {absent}",
            f"EXPLAIN INSERT INTO {absent} VALUES (1)",
            f"EXPLAIN UPDATE {absent} SET a = 1",
            f"EXPLAIN DELETE FROM {absent}",
        )
        return not any(map(self._is_denied, tries))

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

    def _columns(self, table: str) -> list[str]:
        rows = _select(
            self._cursor,
            "SELECT column_name AS name FROM information_schema.columns "
            "WHERE table_schema = database() AND table_name = %s ORDER BY ordinal_position",
            (table,),
        )
        return [str(row["name"]) for row in rows]

    def _is_denied(self, statement: str) -> bool:
        """Whether a statement is refused for want of a right. Other errors are what a caller expects, or say elsewhere
        what is wrong."""
        try:
            self._cursor.execute(statement)
        except pymysql.MySQLError as error:
            return error.args[0] in _DENIED
        return False
