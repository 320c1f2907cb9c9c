"""Connections to a SQLite file: opening and upgrading it, waiting for its lock, translating its errors, forks.

Everything here blocks and runs in the threads of `threads.py`. Only this module knows SQLite's error codes.
"""

import fcntl
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from duetime.model.backoff import chance
from duetime.model.errors import DuetimeError, InvalidSettings, StoreDamaged, StoreFull, StoreUnavailable
from duetime.stores.sql.queries import Migration, load_migrations, load_queries, statements
from duetime.stores.sqlite.disk import CHECKPOINT_PAGES

QUERIES = load_queries("sqlite")
SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")
WRITER_CACHE_KIB = 32_768
READER_CACHE_KIB = 8_192
"""How much of the file a connection caches in memory, at most. A reader's cache is emptied by each commit of another
connection, so a large one is of no use to it."""

_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 0.1, 1.0
"""Between two attempts to get the lock of a file. With longer ones, newcomers would be served first."""
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_UNAVAILABLE = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_NOLFS,
)

T = TypeVar("T")


def connect(
    path: Path, deadline: float, *, synchronous: str, checkpoint_pages: int = CHECKPOINT_PAGES, read_only: bool = False
) -> sqlite3.Connection:
    """A connection that never begins a transaction by itself and never waits for a lock inside SQLite.

    Opening is tried until the deadline: the first and the last connection of a file lock all of it for a moment.
    """
    return retry_while_busy(lambda: _connect(path, synchronous, checkpoint_pages, read_only), deadline)


def _connect(path: Path, synchronous: str, checkpoint_pages: int, read_only: bool) -> sqlite3.Connection:
    if not path.exists():
        with suppress(OSError):  # SQLite says what is wrong with the path
            _make_private(path)
    connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256)
    try:
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {checkpoint_pages}")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        connection.execute(f"PRAGMA cache_size = -{READER_CACHE_KIB if read_only else WRITER_CACHE_KIB}")
        connection.execute("PRAGMA temp_store = MEMORY")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _make_private(path: Path) -> None:
    """Make an empty file for its owner alone; SQLite gives its log and its shared memory the same mode.

    The file is made under another name and linked: closing a descriptor of the file itself would drop the locks that
    other connections of this process hold on it.
    """
    handle, aside = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    os.close(handle)
    try:
        os.link(aside, path)
    finally:
        os.unlink(aside)


def check_synchronous(word: str) -> str:
    if word.upper() not in SYNCHRONOUS:
        raise InvalidSettings(f"synchronous must be one of {', '.join(SYNCHRONOUS)}, got {word!r}")
    return word.upper()


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's error code without its extension; -1 if the error does not come from SQLite itself."""
    code = getattr(error, "sqlite_errorcode", None)
    return -1 if code is None else code & 0xFF


def lacks_room(error: sqlite3.Error) -> bool:
    """Whether the disk is full. SQLite also says so when it cannot extend the file of memory shared by connections."""
    code = getattr(error, "sqlite_errorcode", None)
    return primary_code(error) == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE


def checkpoint(connection: sqlite3.Connection) -> bool:
    """Move the log into the file, so that its room is used again. Returns False if that is not possible now."""
    try:
        busy, log, moved = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    except sqlite3.OperationalError:
        return False
    return not busy and log == moved


def translate(error: sqlite3.Error, *, committing: bool = False) -> DuetimeError:
    """The contract's error for a driver error. While committing, an error of the disk leaves the outcome unknown."""
    code = primary_code(error)
    if lacks_room(error):
        return StoreFull(f"the SQLite file cannot grow: {error}")
    if code in _BUSY:
        return StoreUnavailable(f"the SQLite file is locked: {error}")
    if code in _UNAVAILABLE or isinstance(error, sqlite3.ProgrammingError):
        return StoreUnavailable(f"the SQLite file cannot be used: {error}", unknown=committing)
    return StoreDamaged(f"the SQLite file is damaged or foreign: {error}")


def is_unknown(error: sqlite3.Error) -> bool:
    """Returns whether a statement that was its own transaction may have been committed although it failed."""
    return primary_code(error) == sqlite3.SQLITE_IOERR and not lacks_room(error)


def _pause(pause_ms: float) -> float:
    """Sleep for about `pause_ms`, and return the next pause. The first are short, because most transactions are."""
    time.sleep(pause_ms * (0.5 + chance()) / 1000)
    return min(2 * pause_ms, _LONGEST_PAUSE_MS)


def retry_while_busy(attempt: Callable[[], T], deadline: float) -> T:
    """Repeat `attempt` while the file is locked, until the deadline.

    SQLite's own busy handler sleeps up to 100 ms at a time, far longer than a due job should wait.
    """
    pause_ms = _FIRST_PAUSE_MS
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if primary_code(error) not in _BUSY or time.monotonic() >= deadline:
                raise
        pause_ms = _pause(pause_ms)


class WriteLock:
    """A file lock by which processes that write to one SQLite file take turns.

    A process that commits and begins again immediately would hardly ever leave a gap for one that retries every few
    milliseconds. So a process acquires this lock before it begins a transaction and holds it until it has begun: the
    process that just committed finds the lock held and waits. The lock is advisory and ends with the process.
    """

    def __init__(self, path: Path) -> None:
        self._file, self._test_file = (os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) for _ in range(2))

    def begin(self, connection: sqlite3.Connection, deadline: float) -> None:
        """Start a writing transaction; sqlite3.OperationalError (busy) if that takes longer than the deadline."""
        pause_ms = _FIRST_PAUSE_MS
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:  # its process may be stopped; SQLite's own lock still decides
                    break
            pause_ms = _pause(pause_ms)
        try:
            retry_while_busy(partial(connection.execute, "BEGIN IMMEDIATE"), deadline)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def is_free(self) -> bool:
        """Returns whether no process waits to begin. For one thread at a time; another one may begin meanwhile."""
        try:
            fcntl.flock(self._test_file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        finally:
            fcntl.flock(self._test_file, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            os.close(self._test_file)
            self._file = -1


def prepare_file(connection: sqlite3.Connection, now_ms: int, deadline: float) -> None:
    """Switch to the write-ahead log and apply the migrations that are missing. Safe in concurrent processes."""
    (mode,) = retry_while_busy(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone(), deadline)
    if mode != "wal":
        raise StoreUnavailable(f"SQLite cannot keep a write-ahead log here; the journal mode is {mode!r}")
    if not retry_while_busy(lambda: _missing_migrations(connection), deadline):
        return
    retry_while_busy(lambda: connection.execute("BEGIN IMMEDIATE"), deadline)
    try:
        for number in _missing_migrations(connection):
            name, script = load_migrations("sqlite")[number]
            for statement in statements(script):
                connection.execute(statement)
            connection.execute("INSERT INTO migrations VALUES (?, ?, ?)", (number, name, now_ms))
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _missing_migrations(connection: sqlite3.Connection) -> list[int]:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if tables and "migrations" not in tables:
        raise StoreDamaged(f"this SQLite file is not Duetime's: it has the tables {', '.join(sorted(tables))}")
    applied = {number for (number,) in connection.execute("SELECT number FROM migrations")} if tables else set[int]()
    ours = load_migrations("sqlite")
    if newer := applied - set(ours):
        raise StoreUnavailable(f"a newer Duetime has upgraded this SQLite file (migration {max(newer)})")
    return [number for number in ours if number not in applied]


def pending(path: str) -> list[Migration]:
    """What `prepare_file` would do, as scripts. A file that is not there lacks everything, and is not made."""
    if Path(path).exists():
        with closing(sqlite3.connect(path)) as connection:
            try:
                missing = _missing_migrations(connection)
            except sqlite3.Error as error:
                raise translate(error) from error
    else:
        missing = list(load_migrations("sqlite"))
    found: list[Migration] = []
    for number in missing:
        name, script = load_migrations("sqlite")[number]
        noted = f"INSERT INTO migrations VALUES ({number}, '{name}', unixepoch() * 1000)"
        found.append(Migration(name, "".join(f"{part};\n" for part in [*statements(script), noted])))
    return found


# --- forks
#
# SQLite keeps in memory which locks the process has on a file. A forked child inherits that memory but not the locks.
# It would take a file for locked that it never locked, on a new connection too; and the parent, when it closes the
# file, would take itself for the last user and delete the log that the child has just committed to.
#
# So a fork waits for the transactions that are under way, and the child closes every inherited connection before it
# does anything else. SQLite forgets the locks with the last connection, and what the child opens then is locked for
# real.


_open: set["ForkGuard"] = set()
_changing = threading.RLock()
"""Held while a guard comes or goes, and during a fork."""


class ForkGuard:
    """Guards a connection: no other thread forks while `in_use` is held.

    The thread that holds it may, in the handler of a signal that runs between two statements. A transaction that is
    under way there is rolled back by closing the connection, and the next statement raises sqlite3.ProgrammingError.
    """

    def __init__(self) -> None:
        self.in_use = threading.RLock()
        self._connection: sqlite3.Connection | None = None

    def open(self, connect: Callable[[], sqlite3.Connection]) -> sqlite3.Connection:
        with _changing:
            _open.add(self)
        try:
            with self.in_use:
                self._connection = connect()
        except BaseException:
            self.close()
            raise
        return self._connection

    def close(self) -> None:
        with self.in_use:
            self.close_connection()
        with _changing:
            _open.discard(self)

    def close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def roll_back(self) -> bool:
        """Undo the transaction that is under way. Returns False if there is none, because it was committed."""
        if self._connection is None:
            return True  # `wait` has closed it
        if not self._connection.in_transaction:
            return False
        self._connection.execute("ROLLBACK")
        return True

    def wait(self) -> None:
        """Called before a fork. A child that closed its connection within a transaction would undo the transaction in
        the shared memory of the log, perhaps while the parent writes there.
        """
        self.in_use.acquire()
        if self._connection is not None and self._connection.in_transaction:
            self.close_connection()


class CommitWatch:
    """Checks whether a connection has committed something. It takes microseconds and waits for no transaction, so it
    is called in the event loop.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect, self._guard = connect, ForkGuard()
        self._connection: sqlite3.Connection | None = None

    def open(self, _: object) -> None:
        """Open the connection that watches. Blocks, so it runs as a step of the reader's thread."""
        self._connection = self._guard.open(self._connect)

    def version(self) -> int | None:
        """Returns a number that changes with each commit of another connection, or None if it cannot be read."""
        if self._connection is None:
            return None
        try:
            with self._guard.in_use:
                [(version,)] = self._connection.execute(QUERIES["data_version"]).fetchall()
        except sqlite3.Error:
            return None
        return version

    def close(self) -> None:
        self._guard.close()


def _wait() -> None:
    _changing.acquire()
    for guard in _open:
        guard.wait()


def _go_on() -> None:
    for guard in _open:
        guard.in_use.release()
    _changing.release()


def _close_inherited() -> None:
    for guard in _open:
        guard.close_connection()
    _go_on()
    _open.clear()


os.register_at_fork(before=_wait, after_in_parent=_go_on, after_in_child=_close_inherited)
