"""What the doctor asks a MariaDB or MySQL: does it keep what it is given, and may we do our work?

Only reads, and makes no tables. Each finding that is not fine comes with the statement that mends it.
"""

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from duetime.cli.doctor_findings import Finding, fail, ok, size, warn
from duetime.errors import InvalidSettings
from duetime.job import MAX_BODY

OLDEST = {"MariaDB": (10, 6), "MySQL": (8, 0)}
LONG_S = 300
FEW_LEFT = 0.1
PACKET = 16 * 1_048_576
"""MariaDB's default of max_allowed_packet."""

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
_DENIED = (1044, 1142, 1143, 1227)


def examine_mysql(url: str) -> Iterator[Finding]:
    """Raises StoreUnavailable if it does not answer. Its last finding is about the tables."""
    try:
        import pymysql  # noqa: PLC0415 (an optional driver)

        from duetime.stores.mysql.connection import MysqlAddress, open_connection, translate  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        raise InvalidSettings.lacks("mysql://", "mysql", missing) from None
    address = MysqlAddress.parse(url)
    try:
        with closing(open_connection(address)) as connection, connection.cursor() as cursor:
            cursor.execute(_FACTS)
            yield from _server(*cursor.fetchall()[0])
            yield _connections(cursor)
            yield from _old_transactions(cursor, pymysql.MySQLError)
            yield from _tables(cursor, address, pymysql.MySQLError)
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
    try:
        cursor.execute(_OLD_TRANSACTIONS, (LONG_S,))
    except errors as error:
        if error.args[0] not in _DENIED:
            raise
        yield ok(check, "this user may not see other transactions (GRANT PROCESS ON *.*), which calls do not need")
        return
    rows = cursor.fetchall()
    for session, seconds in rows:
        yield warn(
            check,
            f"a transaction of the session {session} is open since {seconds} s",
            why="while it is open no old version of a row can be removed, and queues get slower",
            fix=f"KILL {session}",
        )
    if not rows:
        yield ok(check, f"no transaction is older than {LONG_S} s")


def _tables(cursor: Any, address: Any, errors: type[Exception]) -> Iterator[Finding]:
    names = sorted(name for name in _names(cursor) if name.startswith(address.prefix))
    if address.prefix + "migrations" not in names:
        yield ok(
            "mysql.tables",
            f"there are no tables in {address.database} yet; the first start or `duetime migrate` makes them",
        )
        return
    fine = True
    for name in names:
        denied = [right for right in ("SELECT", "INSERT", "UPDATE", "DELETE") if not _may(cursor, right, name, errors)]
        if denied:
            fine = False
            yield fail(
                "mysql.grants",
                f"this user may not {', '.join(denied)} in {name}",
                why="calls on jobs are refused (503)",
                fix=f"GRANT {', '.join(denied)} ON `{address.database}`.`{name}` TO CURRENT_USER",
            )
    if fine:
        yield ok("mysql.tables", f"the tables in {address.database} are ours to use")


def _may(cursor: Any, right: str, table: str, errors: type[Exception]) -> bool:
    """Asks for a plan, which needs the same right as the statement and changes nothing."""
    column = _columns(cursor, table)
    statement = {
        "SELECT": f"SELECT 1 FROM `{table}` WHERE `{column}` IS NULL",
        "INSERT": f"INSERT INTO `{table}` (`{column}`) VALUES (1)",
        "UPDATE": f"UPDATE `{table}` SET `{column}` = 1 WHERE 1 = 0",
        "DELETE": f"DELETE FROM `{table}` WHERE 1 = 0",
    }[right]
    try:
        cursor.execute(f"EXPLAIN {statement}")
    except errors as error:
        if error.args[0] in _DENIED:
            return False
    return True


def _columns(cursor: Any, table: str) -> str:
    cursor.execute(
        "SELECT column_name FROM information_schema.columns "
        "WHERE table_schema = database() AND table_name = %s ORDER BY ordinal_position LIMIT 1",
        (table,),
    )
    return str(cursor.fetchall()[0][0])


def _names(cursor: Any) -> set[str]:
    """The tables that this user can see."""
    cursor.execute(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = database() AND table_type = 'BASE TABLE'"
    )
    return {str(name) for (name,) in cursor.fetchall()}
