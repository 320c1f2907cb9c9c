"""The tables of Laravel's database driver (`jobs`, `failed_jobs`) in PostgreSQL, MySQL, MariaDB or SQLite.

Locks as Laravel does: the rows of a pop are locked with SKIP LOCKED where the database has that, so PHP workers and
ours pass each other. The clock is the database's. The relay adds two tables of its own when it first runs:
`duetime_held` (jobs on their way to Duetime) and `duetime_accepted` (ids that came from Duetime in the last week).
"""

import hashlib
import math
import re
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import msgspec

from duetime.bridges.foreign import CLOSED_MS, HELD_BYTES, HeldBatch, Sizes
from duetime.bridges.laravel import RETRY_AFTER_S, LaravelQueues, ReservedJob
from duetime.bridges.payload import read_payload
from duetime.model.clock import Duration
from duetime.model.errors import NOT_JSON, InvalidRequest, InvalidSettings, StoreUnavailable
from duetime.model.ids import IdMaker
from duetime.model.masking import mask

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
POLL_S = 0.5
WEEK_S = 7 * 86400
CONNECT_S = 10

READY = "queue = %s AND ((reserved_at IS NULL AND available_at <= %s) OR reserved_at <= %s)"
"""Laravel's own predicate of a job that can be reserved: queue, now, now - retry_after."""

HELD = """CREATE TABLE IF NOT EXISTS duetime_held (
    batch VARCHAR(40) NOT NULL, number INTEGER NOT NULL, queue VARCHAR(255) NOT NULL, due_at BIGINT NOT NULL,
    payload {text} NOT NULL, attempts INTEGER NOT NULL, held_at BIGINT NOT NULL,
    PRIMARY KEY (batch, number))"""
"""`held_at` is the state of the batch, as the score in scripts/hold.lua."""
HAS_HELD = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = {} AND table_name = 'duetime_held'"
ACCEPTED = "CREATE TABLE IF NOT EXISTS duetime_accepted (id VARCHAR(255) PRIMARY KEY, at BIGINT NOT NULL)"


class Dialect(NamedTuple):
    """What differs between the databases."""

    connect: Callable[[str], Any]
    now: str
    text: str
    has_held: str
    error: type[Exception]
    lock: str = " FOR UPDATE"


class LaravelDatabase(LaravelQueues):
    """`url` is postgresql://, mysql:// or sqlite:. `table`, `failed_table` and `connection`, with which
    `artisan queue:retry` finds the queue again, are the names in config/queue.php.
    """

    def __init__(
        self,
        url: str,
        *,
        table: str = "jobs",
        failed_table: str = "failed_jobs",
        connection: str = "database",
        retry_after: Duration = RETRY_AFTER_S,
        handler: str | None = None,
    ) -> None:
        super().__init__(retry_after, handler)
        for name in (table, failed_table):
            if not IDENTIFIER.fullmatch(name):
                raise InvalidSettings(f"table name must consist of letters, digits and '_', got {name!r}")
        self._table, self._failed, self._name = table, failed_table, connection
        self._database = Database(url)
        self._dialect, self._transaction = self._database.dialect, self._database.transaction
        self._lock_free = self._dialect.lock and f"{self._dialect.lock} SKIP LOCKED"
        self.close = self._database.close
        self._has_own_tables = False
        self._ids = IdMaker()

    # --- queue

    def names(self) -> Sequence[str]:
        with self._transaction() as run:
            return [row[0] for row in run.rows(f"SELECT DISTINCT queue FROM {self._table} ORDER BY queue")]

    def sizes(self, queue: str) -> Sizes:
        with self._transaction() as run:
            now = run.now()
            cut = (int(now), int(now) - self.retry_after_s)
            [(ready, held, total, oldest)] = run.rows(
                f"SELECT SUM(CASE WHEN {READY} THEN 1 ELSE 0 END),"
                " SUM(CASE WHEN reserved_at > %s THEN 1 ELSE 0 END), COUNT(*),"
                f" MIN(CASE WHEN reserved_at IS NULL THEN available_at END) FROM {self._table} WHERE queue = %s",
                [queue, *cut, cut[1], queue],
            )
            in_batches = 0
            if run.rows(self._dialect.has_held)[0][0]:
                [[in_batches]] = run.rows("SELECT COUNT(*) FROM duetime_held WHERE queue = %s", [queue])
        ready, held = int(ready or 0), int(held or 0)
        due_at = None if oldest is None else int(oldest) * 1000
        return Sizes(ready, total - ready - held, reserved=held, held=in_batches, oldest_due_at=due_at)

    def add_texts(self, queue: str, texts: Sequence[tuple[str, bytes]]) -> None:
        with self._transaction() as run:
            now = run.now()
            for when, text in texts:
                due = float(when) if when[:1].isdigit() else now + float(when or 0)
                self._insert(run, queue, text, now, int(now) if not when else math.ceil(due))

    def _insert(self, run: "Transaction", queue: str, text: bytes, now: float, due: int, attempts: int = 0) -> None:
        run.execute(
            f"INSERT INTO {self._table} (queue, payload, attempts, reserved_at, available_at, created_at)"
            " VALUES (%s, %s, %s, NULL, %s, %s)",
            [queue, _without_redis_fields(text), attempts, due, int(now)],
        )

    def reserve(self, queues: Sequence[str], limit: int, wait_s: float = 0) -> list[ReservedJob]:
        deadline = time.monotonic() + wait_s
        while True:
            for queue in queues:
                if found := self._reserve(queue, limit):
                    return found
            pause_s = min(POLL_S, deadline - time.monotonic())
            if pause_s <= 0:
                return []
            time.sleep(pause_s)

    def _reserve(self, queue: str, limit: int) -> list[ReservedJob]:
        found: list[ReservedJob] = []
        with self._transaction() as run:
            run.write_lock()
            now = int(run.now())
            rows = run.rows(
                f"SELECT id, payload, attempts FROM {self._table} WHERE {READY} ORDER BY id LIMIT %s{self._lock_free}",
                [queue, now, now - self.retry_after_s, limit],
            )
            for number, payload, attempts in rows:
                text = payload.encode()
                try:
                    read = read_payload(text)
                except InvalidRequest as error:
                    self._move_to_failed(run, ReservedJob(queue, text, _UNREADABLE, attempts, number), str(error))
                    continue
                run.execute(
                    f"UPDATE {self._table} SET reserved_at = %s, attempts = %s WHERE id = %s",
                    [now, attempts + 1, number],
                )
                found.append(ReservedJob(queue, text, read, attempts + 1, number))
        return found

    def _if_held(self, job: ReservedJob, change: Callable[["Transaction"], object]) -> bool:
        """Change the row unless somebody else has raised its attempts since. Waits for others that lock the row."""
        with self._transaction() as run:
            run.write_lock()
            held = run.rows(
                f"SELECT id FROM {self._table} WHERE id = %s AND attempts = %s"
                f" AND reserved_at IS NOT NULL{self._dialect.lock}",
                [job.handle, job.attempts],
            )
            if held:
                change(run)
        return bool(held)

    def _delete_row(self, run: "Transaction", job: ReservedJob) -> None:
        run.execute(f"DELETE FROM {self._table} WHERE id = %s", [job.handle])

    def delete(self, job: ReservedJob) -> bool:
        return self._if_held(job, lambda run: self._delete_row(run, job))

    def release(self, job: ReservedJob, delay_s: float, uncounted: int = 0) -> bool:
        """As Laravel does: the row is deleted and inserted again, with a new id."""

        def insert_again(run: Transaction) -> None:
            now = run.now()
            self._delete_row(run, job)
            self._insert(run, job.queue, job.text, now, math.ceil(now + delay_s), job.attempts - uncounted)

        return self._if_held(job, insert_again)

    def extend(self, job: ReservedJob) -> bool:
        update = f"UPDATE {self._table} SET reserved_at = %s WHERE id = %s"
        return self._if_held(job, lambda run: run.execute(update, [int(run.now()), job.handle]))

    def fail(self, job: ReservedJob, error: str) -> bool:
        return self._if_held(job, lambda run: self._move_to_failed(run, job, error))

    def _move_to_failed(self, run: "Transaction", job: ReservedJob, error: str) -> None:
        self._delete_row(run, job)
        names, row = "connection, queue, payload, exception", [self._name, job.queue, job.text.decode(errors="replace")]
        if "uuid" in run.columns(self._failed):  # a table of before Laravel 8 has none
            names, row = f"uuid, {names}", [job.payload.uuid or str(uuid.uuid4()), *row]
        places = "%s, " * (len(row) + 1)
        run.execute(
            f"INSERT INTO {self._failed} ({names}, failed_at) VALUES ({places}CURRENT_TIMESTAMP)", [*row, error]
        )

    def clear(self, queue: str = "default") -> int:
        with self._transaction() as run:
            return run.execute(f"DELETE FROM {self._table} WHERE queue = %s", [queue])

    # --- relay

    def _make_own_tables(self) -> None:
        if not self._has_own_tables:
            with self._transaction() as run:
                run.execute(HELD.format(text=self._dialect.text))
                run.execute(ACCEPTED)
            self._has_own_tables = True

    def hold(self, queue: str, limit: int, size: int = HELD_BYTES) -> HeldBatch | None:
        self._make_own_tables()
        with self._transaction() as run:
            run.write_lock()
            now_ms, theirs = int(run.now() * 1000), "queue = %s AND held_at >= %s"
            [[left]] = run.rows(f"SELECT MIN(batch) FROM duetime_held WHERE {theirs}", [queue, CLOSED_MS - now_ms])
            if left:
                held_at = "CASE WHEN held_at < 0 THEN %s ELSE 0 END"
                mine = [now_ms, left, queue]
                run.execute(f"UPDATE duetime_held SET held_at = {held_at} WHERE batch = %s AND queue = %s", mine)
            name = left or self._hold_new(run, queue, limit, size)
            # Locked, because MySQL would still read a batch that was forgotten after this transaction began.
            rows = run.rows(
                "SELECT due_at, payload, attempts FROM duetime_held WHERE batch = %s AND queue = %s"
                f" ORDER BY number{self._dialect.lock}",
                [name, queue],
            )
        if not rows and not left:
            return None
        return self._batch(queue, name, [(due_at, text.encode(), attempts) for due_at, text, attempts in rows])

    def _hold_new(self, run: "Transaction", queue: str, limit: int, size: int) -> str:
        name, now = self._ids.make(), run.now()
        rows = run.rows(
            f"SELECT id, payload, attempts, available_at FROM {self._table} WHERE queue = %s AND"
            f" (reserved_at IS NULL OR reserved_at <= %s)"
            f" ORDER BY id LIMIT %s{self._lock_free}",
            [queue, int(now) - self.retry_after_s, limit],
        )
        moved = 0
        for number, (row_id, payload, attempts, available_at) in enumerate(rows):
            if moved >= size:
                break
            moved += len(payload)
            run.execute(
                "INSERT INTO duetime_held (batch, number, queue, due_at, payload, attempts, held_at)"
                " VALUES (%s, %s, %s, %s, %s, %s, %s)",
                [name, number, queue, int(available_at) * 1000, payload, attempts, int(now * 1000)],
            )
            run.execute(f"DELETE FROM {self._table} WHERE id = %s", [row_id])
        return name

    def forget(self, queue: str, batch: HeldBatch, back: Sequence[int] = (), *, if_unshared: bool = False) -> None:
        this = "WHERE batch = %s AND queue = %s"
        with self._transaction() as run:
            run.write_lock()
            if if_unshared:
                close = f"UPDATE duetime_held SET held_at = %s {this} AND held_at = 0"
                run.execute(close, [-int(run.now() * 1000), batch.name, queue])
                this += " AND held_at > 0"
            if run.execute(f"DELETE FROM duetime_held {this}", [batch.name, queue]):
                for due_at, text, attempts in (batch.stored[n] for n in back):
                    self._insert(run, queue, text, run.now(), due_at // 1000, attempts)

    def accept_texts(self, queue: str, texts: Sequence[tuple[str, bytes]]) -> None:
        self._make_own_tables()
        with self._transaction() as run:
            run.write_lock()
            now = run.now()
            run.execute("DELETE FROM duetime_accepted WHERE at < %s", [int(now) - WEEK_S])
            for name, text in texts:
                # A hash, because MySQL compares texts without case.
                job_id = hashlib.blake2b(name.encode(), digest_size=20).hexdigest()
                if not run.rows("SELECT id FROM duetime_accepted WHERE id = %s", [job_id]):
                    run.execute("INSERT INTO duetime_accepted (id, at) VALUES (%s, %s)", [job_id, int(now)])
                    self._insert(run, queue, text, now, int(now))


class Database:
    """One connection, which is opened again after an error."""

    def __init__(self, url: str) -> None:
        self._url, self.dialect = url, _dialect(url)
        self._connection: Any = None
        self._lock = threading.Lock()

    @contextmanager
    def transaction(self) -> Generator["Transaction"]:
        """Raises StoreUnavailable."""
        with self._lock:
            began = False
            try:
                self._connection = self._connection or self.dialect.connect(self._url)
                transaction = Transaction(self._connection, self.dialect)
                began = True
                yield transaction
                self._connection.commit()
            except (self.dialect.error, OSError) as error:
                self._disconnect()
                raise StoreUnavailable(f"database of the bridge: {error}", unknown=began) from error
            except BaseException:
                self._disconnect()
                raise

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        with suppress(Exception):  # it is broken already, or there is none
            connection.close()

    def close(self) -> None:
        with self._lock:
            self._disconnect()


class Transaction:
    """Statements with %s for values, on any of the three drivers."""

    def __init__(self, connection: Any, dialect: Dialect) -> None:
        self._connection, self._dialect = connection, dialect
        self._is_sqlite = isinstance(connection, sqlite3.Connection)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> int:
        return self._cursor(statement, values).rowcount

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        return list(self._cursor(statement, values).fetchall())

    def columns(self, table: str) -> set[str]:
        return {column[0] for column in self._cursor(f"SELECT * FROM {table} WHERE 1 = 0", ()).description}

    def _cursor(self, statement: str, values: Sequence[Any]) -> Any:
        cursor = self._connection.cursor()
        cursor.execute(statement.replace("%s", "?") if self._is_sqlite else statement, values)
        return cursor

    def write_lock(self) -> None:
        """SQLite has no row locks: a transaction that reads and then writes locks the file before it reads."""
        if self._is_sqlite and not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")

    def now(self) -> float:
        return float(self.rows(self._dialect.now)[0][0]) if self._dialect.now else time.time()


_UNREADABLE = read_payload(b'{"job": "unreadable"}')


def _without_redis_fields(text: bytes) -> str:
    """A table has the id and the attempts in columns; Laravel writes neither into the payload there."""
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except NOT_JSON:
        return text.decode(errors="replace")
    kept = {name: value for name, value in fields.items() if name not in {"id", "attempts"}}
    return text.decode() if len(kept) == len(fields) else msgspec.json.encode(kept).decode()


def _dialect(url: str) -> Dialect:
    scheme = url.partition(":")[0]
    try:
        match scheme:
            case "sqlite":
                has_held = "SELECT COUNT(*) FROM sqlite_master WHERE name = 'duetime_held'"
                return Dialect(_open_sqlite, "", "TEXT", has_held, sqlite3.Error, "")
            case "postgresql" | "postgres":
                import psycopg  # noqa: PLC0415 (optional driver)

                now, has_held = "SELECT extract(epoch FROM clock_timestamp())", HAS_HELD.format("current_schema()")
                return Dialect(psycopg.connect, now, "TEXT", has_held, psycopg.Error)
            case "mysql":
                import pymysql  # noqa: PLC0415 (optional driver)

                now, has_held = "SELECT UNIX_TIMESTAMP(NOW(6))", HAS_HELD.format("DATABASE()")
                return Dialect(_open_mysql, now, "LONGTEXT", has_held, pymysql.MySQLError)
            case _:
                raise InvalidSettings(f"database URL must be postgresql://, mysql:// or sqlite:, got {scheme!r}")
    except ModuleNotFoundError as missing:
        raise InvalidSettings.lacks(f"{scheme}://", "mysql" if scheme == "mysql" else "postgres", missing) from None


def _open_sqlite(url: str) -> Any:
    path = url.removeprefix("sqlite:")
    path = path.removeprefix("//") if path.startswith("///") else path
    # Not to be created: a wrong path must be an error.
    return sqlite3.connect(f"file:{quote(path)}?mode=rw", timeout=CONNECT_S, check_same_thread=False, uri=True)


def _open_mysql(url: str) -> Any:
    import pymysql  # noqa: PLC0415 (optional driver)

    parts = urlsplit(url)
    try:
        port = parts.port or 3306
    except ValueError as error:
        raise InvalidSettings(f"database URL {mask(url)} is not valid: {error}") from None
    return pymysql.connect(
        host=parts.hostname or "localhost",
        port=port,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=unquote(parts.path.lstrip("/")),
        connect_timeout=CONNECT_S,
        charset="utf8mb4",
    )
