"""Real PostgreSQL servers, each on a free port in a folder of its own, run by a user that is not root.

`postgres_server` is one server per test process, without syncs: no test on it cuts the power. `postgres_url` is a store
on it without any data. `start_postgres(**config)` starts another one with its own configuration:

    server = start_postgres(max_connections=5)
    server.kill()        # as a crash would
    server.start()       # same port, same folder
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.plugins.ci import missing_service
from tests.plugins.ports import find_free_port
from tests.plugins.processes import guard, release

START_DEADLINE_S = 40
STOP_DEADLINE_S = 20
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

Setting = str | int


class PostgresServer:
    """A server process. Settings are PostgreSQL's own."""

    def __init__(self, folder: Path, **config: Setting) -> None:
        self.folder, self._program = folder, find_postgres_folder()
        self.port = find_free_port()
        self.config: dict[str, Setting] = {**DEFAULTS, "unix_socket_directories": str(folder), **config}
        self._process: subprocess.Popen[bytes] | None = None
        self._run("initdb", "-D", str(folder / "data"), "-A", "trust", "-U", "duetime", "--no-sync", "-E", "UTF8")

    @property
    def url(self) -> str:
        return f"postgresql://duetime@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start, or start again after stop() or kill(), and return once it answers."""
        arguments = [f"-c{name}={value}" for name, value in self.config.items()]
        with (self.folder / "postgres.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._program / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **_as_postgres(),
            )
        guard(self._process.pid)
        deadline = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                psycopg.connect(self.url, connect_timeout=START_DEADLINE_S).close()
                return
            except psycopg.OperationalError:
                time.sleep(0.02)
        self.kill()
        raise RuntimeError(f"postgres did not start:\n{(self.folder / 'postgres.log').read_text(errors='replace')}")

    def stop(self) -> None:
        """Shut down in good order, ending the sessions there are. Does nothing when it is not running."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End at once, as a crash does; the processes of its sessions follow by themselves."""
        self._end(signal.SIGQUIT)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        release(self._process.pid)
        self._process = None

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._program / program), *arguments], check=True, stdout=subprocess.DEVNULL, **_as_postgres()
        )


def find_postgres_folder() -> Path:
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not folders:
        missing_service("PostgreSQL is not installed")
    return folders[-1]


def _as_postgres() -> dict[str, object]:
    """The server refuses to run as root."""
    return {"user": "postgres", "group": "postgres", "cwd": "/"} if os.getuid() == 0 else {}


@pytest.fixture(scope="session")
def make_postgres() -> Iterator[Callable[..., PostgresServer]]:
    """Folders are not pytest's: those are below one that only root may enter."""
    servers: list[PostgresServer] = []
    with tempfile.TemporaryDirectory(prefix="duetime-postgres-", ignore_cleanup_errors=True) as base:
        os.chmod(base, 0o755)

        def make(**config: Setting) -> PostgresServer:
            folder = Path(base) / str(len(servers))
            folder.mkdir()
            if os.getuid() == 0:
                owner = pwd.getpwnam("postgres")
                os.chown(folder, owner.pw_uid, owner.pw_gid)
            servers.append(PostgresServer(folder, **config))
            servers[-1].start()
            return servers[-1]

        yield make
        for server in servers:
            server.stop()


@pytest.fixture(scope="session")
def postgres_server(make_postgres: Callable[..., PostgresServer]) -> PostgresServer:
    return make_postgres()


@pytest.fixture
def start_postgres(make_postgres: Callable[..., PostgresServer]) -> Iterator[Callable[..., PostgresServer]]:
    started: list[PostgresServer] = []

    def start(**config: Setting) -> PostgresServer:
        started.append(make_postgres(**config))
        return started[-1]

    yield start
    for server in started:
        server.stop()


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
