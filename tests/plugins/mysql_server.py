"""Real MariaDB servers, each on a free port in a folder of its own, run by a user that is not root.

`mysql_server` is one server per test process, without syncs: no test on it cuts the power. `mysql_url` is a store on
it without any data. `start_mysql(**options)` starts another one with its own options:

    server = start_mysql(max_connections=5)
    server.kill()        # as a crash would
    server.start()       # same port, same folder
"""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pymysql
import pytest
from pymysql.connections import Connection

from tests.plugins.ci import missing_service
from tests.plugins.ports import find_free_port
from tests.plugins.processes import guard, release

START_DEADLINE_S = 60
STOP_DEADLINE_S = 30
DEFAULTS: dict[str, "Setting"] = {
    "bind-address": "127.0.0.1",
    "skip-name-resolve": 1,
    "performance-schema": 0,
    "innodb-buffer-pool-size": "32M",
    "innodb-log-file-size": "16M",
    "innodb-flush-log-at-trx-commit": 0,
    "innodb-flush-method": "nosync",
    "innodb-doublewrite": 0,
    "innodb-fast-shutdown": 2,
}
PREFIX = "duetime_"

Setting = str | int


class MysqlServer:
    """A server process. Options are MariaDB's own."""

    def __init__(self, folder: Path, **options: Setting) -> None:
        self.folder, self.port = folder, find_free_port()
        self.options = DEFAULTS | {name.replace("_", "-"): value for name, value in options.items()}
        self._process: subprocess.Popen[bytes] | None = None
        subprocess.run(
            [
                find_program("mariadb-install-db"),
                "--no-defaults",
                f"--datadir={folder / 'data'}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--skip-name-resolve",
                "--innodb-flush-method=nosync",
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **_as_mysql(),
        )

    @property
    def socket(self) -> Path:
        return self.folder / "s"

    @property
    def url(self) -> str:
        # The driver would read all certificates of the system for each connection, to use TLS if the server offers it.
        return f"mysql://duetime:secret@127.0.0.1:{self.port}/duetime?ssl_mode=disabled"

    def start(self) -> None:
        """Start, or start again after stop() or kill(), and return once it answers."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    find_program("mariadbd"),
                    "--no-defaults",
                    f"--datadir={self.folder / 'data'}",
                    f"--socket={self.socket}",
                    f"--pid-file={self.folder / 'pid'}",
                    f"--port={self.port}",
                    *(f"--{name}={value}" for name, value in self.options.items()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **_as_mysql(),
            )
        guard(self._process.pid)
        deadline = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if not self._listens():
                time.sleep(0.02)
                continue
            try:
                self.administer(
                    "CREATE DATABASE IF NOT EXISTS duetime",
                    "CREATE USER IF NOT EXISTS duetime@'%' IDENTIFIED BY 'secret'",
                    "CREATE USER IF NOT EXISTS duetime@localhost IDENTIFIED BY 'secret'",
                    "GRANT ALL ON duetime.* TO duetime@'%', duetime@localhost",
                )
                return
            except pymysql.OperationalError:
                time.sleep(0.02)
        self.kill()
        raise RuntimeError(f"mariadbd did not start:\n{self.log.read_text(errors='replace')}")

    def _listens(self) -> bool:
        """Asked first, because the driver forgets to close a socket that nobody accepts."""
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    @property
    def log(self) -> Path:
        return self.folder / "mariadbd.log"

    def stop(self) -> None:
        """Shut down in good order. Does nothing when it is not running."""
        if self._process is not None:
            self._process.terminate()
            self._wait()

    def kill(self) -> None:
        """End at once, as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._wait()

    def _wait(self) -> None:
        assert self._process is not None
        try:
            self._process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        release(self._process.pid)
        self._process = None

    def root(self) -> Connection:
        return pymysql.connect(
            user="root", unix_socket=str(self.socket), ssl_disabled=True, autocommit=True, charset="utf8mb4"
        )

    def administer(self, *statements: str) -> tuple[tuple[object, ...], ...]:
        """Run statements as root; the rows of the last one."""
        with self.root() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall()


def find_program(name: str) -> str:
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))
    if found is None:
        missing_service("MariaDB is not installed")
    return found


def _as_mysql() -> dict[str, object]:
    """The server refuses to run as root."""
    return {"user": "mysql", "group": "mysql", "cwd": "/"} if os.getuid() == 0 else {}


@pytest.fixture(scope="session")
def make_mysql() -> Iterator[Callable[..., MysqlServer]]:
    """Folders are not pytest's: those are below one that only root may enter."""
    servers: list[MysqlServer] = []
    with tempfile.TemporaryDirectory(prefix="duetime-mysql-", ignore_cleanup_errors=True) as base:
        os.chmod(base, 0o755)

        def make(**options: Setting) -> MysqlServer:
            folder = Path(base) / str(len(servers))
            folder.mkdir()
            if os.getuid() == 0:
                owner = pwd.getpwnam("mysql")
                os.chown(folder, owner.pw_uid, owner.pw_gid)
            servers.append(MysqlServer(folder, **options))
            servers[-1].start()
            return servers[-1]

        yield make
        for server in servers:
            server.stop()


@pytest.fixture(scope="session")
def mysql_server(make_mysql: Callable[..., MysqlServer]) -> MysqlServer:
    return make_mysql()


@pytest.fixture
def start_mysql(make_mysql: Callable[..., MysqlServer]) -> Iterator[Callable[..., MysqlServer]]:
    started: list[MysqlServer] = []

    def start(**options: Setting) -> MysqlServer:
        started.append(make_mysql(**options))
        return started[-1]

    yield start
    for server in started:
        server.stop()


def empty_tables(server: MysqlServer) -> None:
    """Leave the store as it was when it was made. Rows are deleted, because that is quicker than to make tables."""
    with server.root() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'duetime' "
            f"AND table_name LIKE '{PREFIX}%' AND table_type = 'BASE TABLE'"
        )
        tables = sorted(name for (name,) in cursor.fetchall())
        if not tables:
            return
        cursor.execute("BEGIN")
        for table in tables:
            if table.removeprefix(PREFIX) not in ("meta", "forgotten", "migrations"):
                cursor.execute(f"DELETE FROM duetime.{table}")
        cursor.execute(f"UPDATE duetime.{PREFIX}forgotten SET floor = 0, registry_version = 0")
        cursor.execute(f"UPDATE duetime.{PREFIX}meta SET registry_version = 0, epoch = uuid()")
        cursor.execute("COMMIT")


@pytest.fixture
def mysql_url(mysql_server: MysqlServer) -> str:
    empty_tables(mysql_server)
    return mysql_server.url
