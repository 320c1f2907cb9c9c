"""Connections to MariaDB and MySQL: reading the URL, making and upgrading the tables, translating errors.

Everything here blocks and runs in threads. Only this module knows the servers' error codes.
"""

import re
import ssl
from collections.abc import Mapping
from contextlib import closing
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql
from msgspec import Struct
from pymysql.connections import Connection
from pymysql.constants import CLIENT, CR, ER

from duetime.model.clock import Clock
from duetime.model.errors import DuetimeError, InvalidSettings, StoreDamaged, StoreFull, StoreUnavailable
from duetime.stores.mysql.session import CLIENT_ERRORS, MysqlSession
from duetime.stores.mysql.step import MysqlStep
from duetime.stores.sql.queries import (
    DEFAULT_MYSQL_PREFIX,
    Migration,
    check_newer,
    load_migrations,
    load_queries,
    load_schema,
    mysql_table_names,
    named_tables,
    statements,
    tables_of_schema,
)
from duetime.stores.sql.server_step import QueueIds
from duetime.stores.sql.step import Step
from duetime.stores.sql.threads import DatabaseLink

CONNECT_S = 5
LOCK_S = 2
"""How long one try waits for another process's transaction. A step is tried several times."""
ANSWER_S = 60
"""How long a statement may take."""
CONNECTIONS = 8
"""Connections per process that run steps. One more connection carries the wakes."""

MARIADB_COLLATION, MYSQL_COLLATION = "utf8mb4_nopad_bin", "utf8mb4_0900_bin"
"""The same order under its two names: by code point, and 'a' is not 'a '."""

_SESSION = {
    "sql_mode": "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
    "time_zone": "'+00:00'",
    "innodb_lock_wait_timeout": LOCK_S,
    "lock_wait_timeout": CONNECT_S,
}
_MARIADB_SESSION = _SESSION | {
    "tx_isolation": "'READ-COMMITTED'",
    # A process that was stopped in the middle of a step holds a queue's lock no longer than this. The same goes for a
    # session in which KILL QUERY came between two statements: MariaDB forgets the rest of the packet, and both wait.
    "idle_transaction_timeout": LOCK_S,
}
_MYSQL_SESSION = _SESSION | {"transaction_isolation": "'READ-COMMITTED'"}

_TRANSACTIONS = {
    "begin": ["BEGIN"],
    "begin_reading": [
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
    ],
    "commit": ["COMMIT"],
    "rollback": ["ROLLBACK"],
}
_NO_SPACE = 28
_TRANSIENT = (ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT, ER.CHECKREAD)
_FULL = (ER.RECORD_FILE_FULL, ER.DISK_FULL)
_FILE_ERRORS = (3, ER.ERROR_ON_WRITE, ER.GET_ERRNO)
_READ_ONLY = (ER.OPTION_PREVENTS_STATEMENT, 1836)
"""The server has read_only or innodb_read_only set: after a failover, or always as a replica."""
_UNAVAILABLE = (
    *_READ_ONLY,
    ER.CON_COUNT_ERROR,
    ER.TOO_MANY_USER_CONNECTIONS,
    ER.USER_LIMIT_REACHED,
    ER.DBACCESS_DENIED_ERROR,
    ER.ACCESS_DENIED_ERROR,
    ER.BAD_DB_ERROR,
    ER.TABLEACCESS_DENIED_ERROR,
    ER.COLUMNACCESS_DENIED_ERROR,
    ER.SPECIFIC_ACCESS_DENIED_ERROR,
    ER.HOST_IS_BLOCKED,
    ER.HOST_NOT_PRIVILEGED,
    ER.SERVER_SHUTDOWN,
    ER.NORMAL_SHUTDOWN,
    ER.SHUTDOWN_COMPLETE,
    ER.QUERY_INTERRUPTED,
    ER.OUTOFMEMORY,
    ER.OUT_OF_RESOURCES,
    ER.OUT_OF_SORTMEMORY,
    ER.LOCK_TABLE_FULL,
    ER.NET_READ_ERROR,
    ER.NET_READ_INTERRUPTED,
    ER.NET_ERROR_ON_WRITE,
    ER.NET_WRITE_INTERRUPTED,
    ER.NET_PACKET_TOO_LARGE,
    1047,  # a Galera node that is not part of its cluster
    1637,  # too many transactions
    1792,  # a read-only transaction
    1927,  # the session was killed
    1969,  # MariaDB's limit of a statement's time ...
    3024,  # ... and MySQL's
    3159,  # only TLS is allowed
    4031,  # MySQL closed an idle session
)

_UNVERIFIED = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For TLS where the server offers it, if the URL does not mention its certificate."""
_UNVERIFIED.check_hostname = False
_UNVERIFIED.verify_mode = ssl.CERT_NONE

_TLS_MODES = ("disabled", "required", "verify_ca", "verify_identity")


class MysqlAddress(Struct, frozen=True):
    """Where the tables are, and how to get there."""

    options: Mapping[str, Any]
    database: str
    prefix: str
    connections: int

    @classmethod
    def parse(cls, url: str) -> "MysqlAddress":
        parts = urlsplit(url)
        given = {name.replace("-", "_"): value for name, value in parse_qsl(parts.query, keep_blank_values=True)}
        prefix, connections = given.pop("prefix", DEFAULT_MYSQL_PREFIX), given.pop("connections", str(CONNECTIONS))
        if not connections.isdecimal() or len(connections) > 5 or int(connections) < 1:
            raise InvalidSettings(f"connections must be a number from 1 to 99999, got {connections!r:.50}")
        mysql_table_names("", prefix)
        database = unquote(parts.path.removeprefix("/"))
        if not database or any(letter in database for letter in "/`"):
            raise InvalidSettings("a MySQL URL must name a database: mysql://user:password@host/database")
        options: dict[str, Any] = {"database": database, "unix_socket": given.pop("unix_socket", None)}
        try:
            options |= {"host": parts.hostname, "port": parts.port or 0}
        except ValueError as error:
            raise InvalidSettings(f"cannot read this MySQL URL: {error}") from None
        if parts.username is not None:
            options["user"] = unquote(parts.username)
        if parts.password is not None:
            options["password"] = unquote(parts.password).encode()
        options |= _tls(given)
        if given:
            raise InvalidSettings(f"unknown options of a MySQL URL: {', '.join(sorted(given))}")
        return cls(options, database, prefix, int(connections))

    def table(self, name: str) -> str:
        return f"`{self.prefix}{name}`"

    def name_tables(self, script: str) -> str:
        return named_tables(script, *mysql_table_names("", self.prefix))


def _tls(given: dict[str, str]) -> dict[str, Any]:
    """Takes the TLS options out of `given`. Without any, TLS is used where the server offers it."""
    files = {name: given.pop(name, None) for name in ("ssl_ca", "ssl_cert", "ssl_key")}
    mode = given.pop("ssl_mode", "verify_identity" if files["ssl_ca"] else "required" if any(files.values()) else "")
    mode = mode.lower()
    if not mode or mode == "disabled":
        return {"ssl_disabled": True} if mode else {}
    if mode not in _TLS_MODES:
        raise InvalidSettings(f"ssl_mode must be one of {', '.join(_TLS_MODES)}, got {mode!r}")
    try:
        context = ssl.create_default_context(cafile=files["ssl_ca"])
        if files["ssl_cert"]:
            context.load_cert_chain(files["ssl_cert"], files["ssl_key"])
    except OSError as error:
        raise InvalidSettings(f"cannot read the TLS files of the MySQL URL: {error}") from None
    context.check_hostname = mode == "verify_identity"
    context.verify_mode = ssl.CERT_NONE if mode == "required" else ssl.CERT_REQUIRED
    return {"ssl": context}


def _code(error: Exception) -> int:
    """The driver's InterfaceError of a closed connection has the code 0."""
    code = error.args[0] if error.args else 0
    return code if isinstance(code, int) and code else CR.CR_SERVER_LOST


def translate(error: Exception, *, committing: bool = False) -> DuetimeError:
    """The contract's error for a driver's error. While committing, a lost connection leaves the outcome unknown."""
    code, text = (
        _code(error),
        str(error.args[-1] if error.args else error).partition("\n")[0] or "the connection is lost",
    )
    if code in _FULL or (code in _FILE_ERRORS and str(_NO_SPACE) in text):
        return StoreFull(f"MySQL has no room: {text}")
    if code in _TRANSIENT:
        return StoreUnavailable(f"MySQL cannot be used: {text}", unknown=committing, locked=True)
    if code in CLIENT_ERRORS or code in _UNAVAILABLE:
        return StoreUnavailable(f"MySQL cannot be used: {text}", unknown=committing)
    return StoreDamaged(f"MySQL refuses what Duetime does: {text}")


def open_connection(address: MysqlAddress) -> Connection:
    """A connection with the settings that the store's statements need."""
    prefers_tls = not {"ssl", "ssl_disabled"} & address.options.keys()
    options: dict[str, Any] = {"ssl_disabled": prefers_tls, **address.options, "defer_connect": True}
    connection = pymysql.connect(
        **options,
        charset="utf8mb4",
        autocommit=True,
        connect_timeout=CONNECT_S,
        read_timeout=ANSWER_S,
        write_timeout=ANSWER_S,
        binary_prefix=True,
        program_name="duetime",
        client_flag=CLIENT.MULTI_STATEMENTS,
    )
    if prefers_tls:
        # The driver would read all certificates of the system for each connection, and then believe any server.
        connection.ssl, connection.ctx = True, _UNVERIFIED  # pyright: ignore[reportAttributeAccessIssue]
    connection.connect()  # pyright: ignore[reportUnknownMemberType]
    try:
        with connection.cursor() as cursor:
            settings = _MARIADB_SESSION if is_mariadb(connection) else _MYSQL_SESSION
            variables = ", ".join(f"{name} = {value}" for name, value in settings.items())
            cursor.execute(f"SET NAMES utf8mb4 COLLATE {collation(connection)}, {variables}")
    except BaseException:
        connection.close()
        raise
    return connection


class MysqlLink(DatabaseLink):
    errors = (pymysql.MySQLError,)

    def __init__(self, address: MysqlAddress, clock: Clock | None) -> None:
        self._address, self._clock, self._queue_ids = address, clock, QueueIds()
        self._queries = _TRANSACTIONS | {
            name: statements(address.name_tables(text) + ";\n") for name, text in load_queries("mysql").items()
        }
        self._max_body = 0

    def connect(self) -> MysqlSession:
        session = MysqlSession(connection := open_connection(self._address), self._queries)
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@max_allowed_packet")
            [(packet,)] = cursor.fetchall()
        # Escaping can double a body, and the rest of the statement needs room as well.
        self._max_body = packet // 2 - 65_536
        return session

    def prepare_tables(self) -> None:
        """Make or upgrade the tables at need. Safe in many processes at the same time."""
        try:
            with closing(open_connection(self._address)) as connection:
                migrator = Migrator(connection, self._address)
                if migrator.missing():
                    migrator.run()
        except pymysql.MySQLError as error:
            raise translate(error) from error

    def step(self, session: MysqlSession) -> Step:
        return MysqlStep(session, self._queue_ids, self._clock, self._max_body)

    def is_transient(self, error: Exception) -> bool:
        return _code(error) in _TRANSIENT

    def is_read_only(self, error: Exception) -> bool:
        return _code(error) in _READ_ONLY

    def translate(self, error: Exception, *, committing: bool = False) -> DuetimeError:
        return translate(error, committing=committing)


def pending(address: MysqlAddress) -> list[Migration]:
    """What `MysqlLink.prepare_tables` would do."""
    try:
        with closing(open_connection(address)) as connection:
            return Migrator(connection, address).pending()
    except pymysql.MySQLError as error:
        raise translate(error) from error


def is_mariadb(connection: Connection) -> bool:
    return "MariaDB" in connection.get_server_info()  # pyright: ignore[reportUnknownMemberType]


def collation(connection: Connection) -> str:
    return MARIADB_COLLATION if is_mariadb(connection) else MYSQL_COLLATION


def _repeatable(statement: str) -> str:
    """The same statement for a client, which stops at a table or view that is there already."""
    statement = re.sub(r"^CREATE TABLE (?!IF NOT EXISTS)", "CREATE TABLE IF NOT EXISTS ", statement)
    return re.sub(r"^CREATE VIEW ", "CREATE OR REPLACE VIEW ", statement)


class Migrator:
    """Brings the tables up to date. Statements that make tables commit by themselves, so that a migration can be cut
    off in the middle; the next process runs it again, and skips what is there."""

    _IS_THERE = (ER.TABLE_EXISTS_ERROR, ER.DUP_FIELDNAME, ER.DUP_KEYNAME)

    def __init__(self, connection: Connection, address: MysqlAddress) -> None:
        self._connection, self._address = connection, address
        self._migrations = load_migrations("mysql")

    def missing(self) -> list[int]:
        """The migrations that the tables lack."""
        try:
            rows = self._query(f"SELECT number, name, applied_at FROM {self._address.table('migrations')}")
        except pymysql.MySQLError as error:
            match _code(error):
                case ER.NO_SUCH_TABLE:
                    return list(self._migrations)
                case ER.BAD_FIELD_ERROR:
                    raise self._foreign("migrations") from error
                case _:
                    raise
        check_newer("MySQL", {number: name for number, name, _ in rows if number not in self._migrations})
        applied = {number for number, _, applied_at in rows if applied_at}
        return [number for number in self._migrations if number not in applied]

    def run(self) -> None:
        name = f"duetime {self._address.database}.{self._address.prefix}"[:64]
        if self._query("SELECT get_lock(%s, %s)", name, ANSWER_S // 2) != [(1,)]:
            raise StoreUnavailable("another process has been upgrading these MySQL tables for too long")
        try:
            for number in self.missing():
                self._apply(number)
        finally:
            self._query("SELECT release_lock(%s)", name)

    def pending(self) -> list[Migration]:
        """What `run` would do, as scripts for a client, which may be cut off and run again as well."""
        found: list[Migration] = []
        self._has_own_table()
        for number in self.missing():
            name, script = self._migrations[number]
            noted = (
                f"INSERT INTO {self._address.table('migrations')} (number, name, applied_at) "
                f"VALUES ({number}, '{name}', unix_timestamp() * 1000) "
                "ON DUPLICATE KEY UPDATE applied_at = values(applied_at)"
            )
            parts = [*map(_repeatable, self._statements(script)), noted]
            found.append(Migration(name, "".join(f"{part};\n" for part in parts)))
        return found

    def _apply(self, number: int) -> None:
        name, script = self._migrations[number]
        migrations = self._address.table("migrations")
        if not self._has_own_table():
            self._query(self._statements(load_schema("mysql"))[0])  # it makes the table of migrations
        self._query(f"INSERT IGNORE INTO {migrations} (number, name, applied_at) VALUES (%s, %s, 0)", number, name)
        for statement in self._statements(script):
            try:
                self._query(statement)
            except pymysql.OperationalError as error:
                if _code(error) not in self._IS_THERE:
                    raise
        self._query(f"UPDATE {migrations} SET applied_at = unix_timestamp() * 1000 WHERE number = %s", number)

    def _has_own_table(self) -> bool:
        """Returns whether the table of migrations exists. Raises StoreDamaged if only others with our names do."""
        if "migrations" in (there := self._tables()):
            return True
        if there:
            raise self._foreign(min(there))
        return False

    def _statements(self, script: str) -> list[str]:
        named = self._address.name_tables(script).replace(MARIADB_COLLATION, collation(self._connection))
        return statements(named)

    def _foreign(self, table: str) -> StoreDamaged:
        return StoreDamaged(
            f"the database {self._address.database} has a table {self._address.prefix}{table} that is not Duetime's; "
            "give the store's URL another prefix="
        )

    def _tables(self) -> set[str]:
        """Those of our tables that are there."""
        rows = self._query("SELECT table_name FROM information_schema.tables WHERE table_schema = database()")
        return set(tables_of_schema("mysql")) & {
            name.removeprefix(self._address.prefix) for (name,) in rows if name.startswith(self._address.prefix)
        }

    def _query(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, parameters or None)
            return list(cursor.fetchall())
