"""Connections to PostgreSQL: reading the URL, making and upgrading the tables, translating errors.

Everything here blocks and runs in threads. Only this module knows PostgreSQL's error codes.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import psycopg
from msgspec import Struct
from psycopg import pq, sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import error_from_result

from duetime.model.clock import Clock
from duetime.model.errors import DuetimeError, InvalidSettings, StoreDamaged, StoreFull, StoreUnavailable
from duetime.model.names import Queue
from duetime.stores.postgres.session import Encoded, PostgresSession, Statement, encode
from duetime.stores.postgres.step import PostgresStep
from duetime.stores.sql.queries import (
    DEFAULT_SCHEMA,
    Migration,
    channel,
    check_newer,
    load_migrations,
    load_queries,
    named_tables,
    statements,
    table_names,
)
from duetime.stores.sql.server_step import QueueIds
from duetime.stores.sql.step import Step
from duetime.stores.sql.threads import DatabaseLink

Connection = psycopg.Connection[Any]

LOCK_TIMEOUT_S = 5
"""How long a call waits for another process's transaction before StoreUnavailable."""
CONNECTIONS = 8
"""Connections per process that run steps. Two more listen for wakes and send them, one more has lone pushes."""

_SESSION = {
    # Each of our queries has an index to use, but the statistics of a table that was empty a moment ago would make
    # PostgreSQL read the whole table.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    "client_encoding": "UTF8",
    # A user's other default would make steps fail that wait for each other.
    "default_transaction_isolation": "read committed",
    "lock_timeout": f"{LOCK_TIMEOUT_S}s",
    "statement_timeout": "60s",
    # A process that was stopped in the middle of a step holds a queue's lock no longer than this.
    "idle_in_transaction_session_timeout": "10s",
}

_NETWORK = {
    "connect_timeout": LOCK_TIMEOUT_S,
    # A server that vanished without a word (its host lost power, a network is cut) is noticed by the kernel after
    # about half a minute, whether an answer is awaited or data is sent. Linux would wait for 15 minutes or more.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
"""Defaults that the store's URL may change; libpq's names."""

_TRANSACTIONS = {
    "begin": "BEGIN",
    "begin_reading": "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    "commit": "COMMIT",
    "rollback": "ROLLBACK",
}
_NOW = "(extract(EPOCH FROM clock_timestamp()) * 1000)::bigint"
_TRANSIENT = ("40001", "40P01")
_LOCKED = (*_TRANSIENT, "55P03")
"""Codes of conflicts with other transactions; 55P03: a lock was not free in time."""
_POOLED = ("26000", "42P05")
_FULL = ("53100", "53400")
_READ_ONLY = "25006"
_UNAVAILABLE = (
    "08",  # the connection
    _READ_ONLY,
    "28",  # authentication
    "3D",  # no such database
    "42501",  # a missing grant
    "53",  # out of memory, too many connections
    "57",  # the server stops, or an administrator ended our statement or session
    "58",  # the server's disk
)


class PostgresAddress(Struct, frozen=True):
    """Where the tables are. `conninfo` goes to libpq, which knows TLS, sockets and several hosts."""

    conninfo: str
    schema: str
    prefix: str
    connections: int
    prepares: bool = True

    @property
    def channel(self) -> str:
        return channel(self.schema, self.prefix)

    @classmethod
    def parse(cls, url: str) -> "PostgresAddress":
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        schema, prefix = options.pop("schema", DEFAULT_SCHEMA), options.pop("prefix", "")
        connections = options.pop("connections", str(CONNECTIONS))
        if not connections.isdecimal() or len(connections) > 5 or int(connections) < 1:
            raise InvalidSettings(f"connections must be a number from 1 to 99999, got {connections!r:.50}")
        prepare = options.pop("prepare", "on")
        if prepare not in ("on", "off"):
            raise InvalidSettings(f"prepare must be on or off, got {prepare!r}")
        table_names(schema, prefix)
        options = {"application_name": "duetime", **{name: str(value) for name, value in _NETWORK.items()}, **options}
        conninfo = f"postgresql://{parts.netloc}{parts.path}?{urlencode(options)}"
        try:
            conninfo_to_dict(conninfo)
        except psycopg.Error as error:
            raise InvalidSettings(f"cannot read this PostgreSQL URL: {error}") from None
        return cls(conninfo, schema, prefix, int(connections), prepare == "on")

    def table(self, name: str) -> str:
        return f'"{self.schema}"."{self.prefix}{name}"'

    def name_tables(self, script: str) -> str:
        return named_tables(script, *table_names(self.schema, self.prefix))


def translate(error: Exception, *, committing: bool = False) -> DuetimeError:
    """The contract's error for a driver's error. While committing, a lost connection leaves the outcome unknown."""
    code = getattr(error, "sqlstate", None) or "08000"
    text = str(error).strip().partition("\n")[0]
    if code in _POOLED:
        return StoreUnavailable(f"a pooler keeps no prepared statements; add prepare=off to the store's URL: {text}")
    if code in _FULL:
        return StoreFull(f"PostgreSQL has no room: {text}")
    if code in _LOCKED:
        return StoreUnavailable(f"PostgreSQL cannot be used: {text}", unknown=committing, locked=True)
    if code.startswith(_UNAVAILABLE):
        return StoreUnavailable(f"PostgreSQL cannot be used: {text}", unknown=committing)
    return StoreDamaged(f"PostgreSQL refuses what Duetime does: {text}")


def open_connection(address: PostgresAddress) -> Connection:
    """A connection with the settings that the store's statements need."""
    connection = psycopg.connect(address.conninfo, autocommit=True)
    try:
        settings = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in _SESSION.items())
        connection.execute(_own("SELECT " + settings))
    except BaseException:
        connection.close()
        raise
    return connection


class PostgresLink(DatabaseLink):
    errors = (psycopg.Error,)

    def __init__(self, address: PostgresAddress, clock: Clock | None) -> None:
        self._address, self._clock, self._queue_ids = address, clock, QueueIds()
        texts = {name: address.name_tables(text) for name, text in load_queries("postgres").items()} | _TRANSACTIONS
        self._statements = {name: Statement.parse(text) for name, text in texts.items()}

    def connect(self) -> PostgresSession:
        connection = open_connection(self._address)
        return PostgresSession(connection, self._statements, prepares=self._address.prepares)

    # --- for a connection of the event loop (`one_job.py`)

    def known_values(self, queue: Queue) -> dict[str, object] | None:
        """The parameters `queue` and `now`; None if the queue's id is not known, or statements are not prepared."""
        queue_id = self._queue_ids.get(queue) if self._address.prepares else None
        now = self._clock.now_ms() if self._clock else None
        return None if queue_id is None else {"queue": queue_id, "now": now}

    def encode(self, name: str, parameters: Mapping[str, object]) -> list[Encoded]:
        return [encode(parameters[parameter]) for parameter in self._statements[name].names]

    def connect_prepared(self, name: str, types: Sequence[int]) -> Connection:
        """A connection on which one statement is prepared under its own name. Blocks."""
        connection = open_connection(self._address)
        prepared = connection.pgconn.prepare(name.encode(), self._statements[name].text, types)
        if prepared.status != pq.ExecStatus.COMMAND_OK:
            connection.close()
            raise error_from_result(prepared, encoding="utf-8")
        return connection

    def prepare_tables(self) -> None:
        """Make or upgrade the tables at need. Safe in many processes at the same time."""
        try:
            with psycopg.connect(self._address.conninfo) as connection:
                if _missing(connection, self._address):
                    _migrate(connection, self._address)
        except (psycopg.errors.DuplicateTable, psycopg.errors.UndefinedColumn) as error:
            raise StoreDamaged(
                f"the schema {self._address.schema} has tables that are not Duetime's ({error}); "
                "give the store's URL another schema= or prefix="
            ) from error
        except psycopg.Error as error:
            raise translate(error) from error

    def step(self, session: PostgresSession) -> Step:
        return PostgresStep(session, self._queue_ids, self._clock)

    def is_transient(self, error: Exception) -> bool:
        return getattr(error, "sqlstate", None) in _TRANSIENT

    def is_read_only(self, error: Exception) -> bool:
        return getattr(error, "sqlstate", None) == _READ_ONLY

    def translate(self, error: Exception, *, committing: bool = False) -> DuetimeError:
        return translate(error, committing=committing)


def _missing(connection: Connection, address: PostgresAddress) -> list[int]:
    """The migrations that the tables lack."""
    ours = load_migrations("postgres")
    (found,) = connection.execute("SELECT to_regclass(%s)", (address.table("migrations"),)).fetchone() or (None,)
    if found is None:
        return list(ours)
    rows = connection.execute(_own(f"SELECT number, name FROM {address.table('migrations')}"))
    applied: dict[int, str] = dict(rows)
    check_newer("PostgreSQL", {number: name for number, name in applied.items() if number not in ours})
    return [number for number in ours if number not in applied]


def pending(address: PostgresAddress) -> list[Migration]:
    """What `prepare_tables` would do, as scripts for psql."""
    try:
        with psycopg.connect(address.conninfo) as connection:
            missing = _missing(connection, address)
    except psycopg.Error as error:
        raise translate(error) from error
    found: list[Migration] = []
    for number in missing:
        name, script = load_migrations("postgres")[number]
        noted = (
            f"INSERT INTO {address.table('migrations')} (number, name, applied_at) VALUES ({number}, '{name}', {_NOW})"
        )
        create = f'CREATE SCHEMA IF NOT EXISTS "{address.schema}"'
        parts = [create, *map(address.name_tables, statements(script)), noted]
        found.append(Migration(name, "".join(f"{part};\n" for part in parts)))
    return found


def _migrate(connection: Connection, address: PostgresAddress) -> None:
    connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (f"duetime {address.table('')}",))
    # A reader that leaves its transaction on the view open must not silently keep a server from starting.
    connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{LOCK_TIMEOUT_S * 1000:.0f}ms",))
    (schema,) = connection.execute("SELECT to_regnamespace(%s)", (f'"{address.schema}"',)).fetchone() or (None,)
    if schema is None:
        connection.execute(_own(f'CREATE SCHEMA "{address.schema}"'))
    for number in _missing(connection, address):
        name, script = load_migrations("postgres")[number]
        for statement in statements(script):
            connection.execute(_own(address.name_tables(statement)))
        connection.execute(
            _own(f"INSERT INTO {address.table('migrations')} (number, name, applied_at) VALUES (%s, %s, {_NOW})"),
            (number, name),
        )


def _own(statement: str) -> sql.SQL:
    """Accepts a statement as safe: it consists only of text from our files and of checked names from the URL."""
    return sql.SQL(statement)  # pyright: ignore[reportArgumentType]
