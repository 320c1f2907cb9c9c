"""Real PostgreSQL servers, each on a free port in a folder of its own, run by a user that is not root.

`postgres_server` is one server per test process, without syncs: no test on it cuts the power. `postgres_url` is a store
on it without any data. `start_postgres(**config)` starts another one with its own configuration:

    server = start_postgres(max_connections=5)
    server.kill()        # as a crash would
    server.start()       # same port, same folder
    standby = start_postgres(standby_of=server)
"""

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.plugins.ci import missing_service
from tests.plugins.database_server import DatabaseServer, Setting, servers

DEFAULTS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_wal_size": "256MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "autovacuum": "off",
    "logging_collector": "off",
}
STORE = "schema=duetime"


class PostgresServer(DatabaseServer):
    """A server process. Settings are PostgreSQL's own. With `standby_of` it follows another server until promoted."""

    user = "postgres"
    stop_signal, kill_signal = signal.SIGINT, signal.SIGQUIT

    def __init__(self, folder: Path, *, standby_of: "PostgresServer | None" = None, **config: Setting) -> None:
        super().__init__(folder)
        self._programs = find_postgres_folder()
        inherited = standby_of.config if standby_of else DEFAULTS
        self.config: dict[str, Setting] = {**inherited, "unix_socket_directories": str(folder), **config}
        if standby_of is None:
            how = ("-A", "trust", "-U", "duetime", "--no-sync", "-E", "UTF8")
            self._make_data(self._program("initdb"), "--pgdata", *how)
        else:
            where = f"host=127.0.0.1 port={standby_of.port} user=duetime"
            data = ["-D", str(folder / "data")]
            self._run(self._program("pg_basebackup"), *data, "-d", where, "-R", "-c", "fast", "--no-sync")

    @property
    def url(self) -> str:
        return f"postgresql://duetime@127.0.0.1:{self.port}/postgres"

    def promote(self) -> None:
        """Let a standby take over; returns once it takes writes."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            # A statement that waits here may be cancelled: it has a snapshot, and the standby still removes old rows.
            assert connection.execute("SELECT pg_promote(false)").fetchone() == (True,)
            while connection.execute("SELECT pg_is_in_recovery()").fetchone() != (False,):
                time.sleep(0.01)

    def end_sessions(self) -> None:
        """End the connections of all stores."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity "
                "WHERE application_name = 'duetime' AND pid <> pg_backend_pid()"
            )

    def _command(self) -> list[str]:
        arguments = [f"-c{name}={value}" for name, value in self.config.items()]
        return [self._program("postgres"), "-D", str(self.folder / "data"), "-p", str(self.port), *arguments]

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=40).close()
        except psycopg.OperationalError:
            return False
        return True

    def _program(self, name: str) -> str:
        return str(self._programs / name)


def find_postgres_folder() -> Path:
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not folders:
        missing_service("PostgreSQL is not installed")
    return folders[-1]


@pytest.fixture(scope="session")
def make_postgres() -> Iterator[Callable[..., PostgresServer]]:
    with servers(PostgresServer, "postgres") as made:
        yield made.start


@pytest.fixture(scope="session")
def postgres_server(make_postgres: Callable[..., PostgresServer]) -> PostgresServer:
    return make_postgres()


@pytest.fixture
def start_postgres() -> Iterator[Callable[..., PostgresServer]]:
    with servers(PostgresServer, "postgres") as made:
        yield made.start


def empty_tables(server: PostgresServer) -> None:
    """Leave the store as it was when it was made. Rows are deleted, because that is quicker than to make tables."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'duetime'").fetchall()
        tables = sorted(name for (name,) in rows if name not in ("meta", "forgotten", "migrations"))
        if tables:
            deletes = "; ".join(f"DELETE FROM duetime.{table}" for table in tables)
            connection.execute(
                f"{deletes}; UPDATE duetime.forgotten SET floor = 0, registry_version = 0; "  # type: ignore[arg-type]
                "UPDATE duetime.meta SET registry_version = 0, epoch = gen_random_uuid()::text"
            )


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    empty_tables(postgres_server)
    return f"{postgres_server.url}?{STORE}"
