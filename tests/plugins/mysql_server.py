"""Real MariaDB servers, each on a free port in a folder of its own, run by a user that is not root.

`mysql_server` is one server per test process, without syncs: no test on it cuts the power. `mysql_url` is a store on
it without any data. `start_mysql(**options)` starts another one with its own options:

    server = start_mysql(max_connections=5)
    server.kill()        # as a crash would
    server.start()       # same port, same folder
"""

import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pymysql
import pytest
from pymysql.connections import Connection

from tests.plugins.ci import missing_service
from tests.plugins.database_server import DatabaseServer, Setting, servers
from tests.plugins.ports import find_free_port

DEFAULTS: dict[str, Setting] = {
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
NODES = 3
"""Of a Galera cluster."""


class MysqlServer(DatabaseServer):
    """A server process. Options are MariaDB's own."""

    user = "mysql"
    stop_signal, kill_signal = signal.SIGTERM, signal.SIGKILL

    def __init__(self, folder: Path, **options: Setting) -> None:
        super().__init__(folder)
        self.options = DEFAULTS | {name.replace("_", "-"): value for name, value in options.items()}
        self._make_data(
            find_program("mariadb-install-db"),
            "--datadir",
            "--no-defaults",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
            "--innodb-flush-method=nosync",
        )

    @property
    def socket(self) -> Path:
        return self.folder / "s"

    @property
    def url(self) -> str:
        # The driver would read all certificates of the system for each connection, to use TLS if the server offers it.
        return f"mysql://duetime:secret@127.0.0.1:{self.port}/duetime?ssl_mode=disabled"

    def _command(self) -> list[str]:
        return [
            find_program("mariadbd"),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--socket={self.socket}",
            f"--pid-file={self.folder / 'pid'}",
            f"--port={self.port}",
            *(f"--{name}={value}" for name, value in self.options.items()),
        ]

    def _answers(self) -> bool:
        """Makes the database and its user as well."""
        with socket.socket(socket.AF_UNIX) as probe:
            # Asked first, because the driver forgets to close a socket that nobody accepts.
            if probe.connect_ex(str(self.socket)) != 0:
                return False
        try:
            self.administer(
                "CREATE DATABASE IF NOT EXISTS duetime",
                "CREATE USER IF NOT EXISTS duetime@'%' IDENTIFIED BY 'secret'",
                "CREATE USER IF NOT EXISTS duetime@localhost IDENTIFIED BY 'secret'",
                "GRANT ALL ON duetime.* TO duetime@'%', duetime@localhost",
                "GRANT ALL ON laravel.* TO duetime@'%', duetime@localhost",
            )
        except pymysql.OperationalError:
            return False
        return True

    def end_sessions(self) -> None:
        """End the connections of all stores."""
        rows = self.administer("SELECT id FROM information_schema.processlist WHERE user = 'duetime'")
        with closing(self.root()) as connection, connection.cursor() as cursor:
            for (session,) in rows:
                with suppress(pymysql.OperationalError):  # it has ended by itself
                    cursor.execute(f"KILL CONNECTION {session}")

    def follow(self, primary: "MysqlServer") -> None:
        """Become a replica of a server that writes a binary log. What the two have already must be the same."""
        primary.administer("CREATE USER IF NOT EXISTS copy@'%'", "GRANT REPLICATION SLAVE ON *.* TO copy@'%'")
        [(file, position, *_)] = primary.administer("SHOW MASTER STATUS")
        self.administer(
            f"CHANGE MASTER TO master_host = '127.0.0.1', master_port = {primary.port}, master_user = 'copy', "
            f"master_log_file = '{file}', master_log_pos = {position}, master_connect_retry = 1",
            "START SLAVE",
        )

    def promote(self) -> None:
        """Let a replica take over, once it has done what it has received."""
        self.administer("STOP SLAVE IO_THREAD")
        while not any("has read all relay log" in str(value) for value in self.administer("SHOW SLAVE STATUS")[0]):
            time.sleep(0.02)
        self.administer("STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only = 0")

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


def cluster_address(ports: Sequence[int]) -> str:
    return "gcomm://" + ",".join(f"127.0.0.1:{port}" for port in ports)


def galera_node(number: int, ports: Sequence[int]) -> dict[str, Setting]:
    """Options of a node of a Galera cluster; the ports are those of the nodes for each other. Node 0 makes the cluster
    when it is first started, and must join it later.
    """
    listen, state = ports[number], find_free_port()
    provider = f"gmcast.listen_addr=tcp://127.0.0.1:{listen};ist.recv_addr=127.0.0.1:{find_free_port()}"
    return {
        "wsrep_on": "ON",
        "wsrep_provider": "/usr/lib/galera/libgalera_smm.so",
        "wsrep_provider_options": provider,
        "wsrep_cluster_address": cluster_address(ports if number else []),
        "wsrep_node_address": f"127.0.0.1:{listen}",
        "wsrep_sst_method": "rsync",
        "wsrep_sst_receive_address": f"127.0.0.1:{state}",
        "binlog_format": "ROW",
        "innodb_autoinc_lock_mode": 2,
    }


def find_program(name: str) -> str:
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))
    if found is None:
        missing_service("MariaDB is not installed")
    return found


@pytest.fixture(scope="session")
def make_mysql() -> Iterator[Callable[..., MysqlServer]]:
    with servers(MysqlServer, "mysql") as made:
        yield made.start


@pytest.fixture(scope="session")
def mysql_server(make_mysql: Callable[..., MysqlServer]) -> MysqlServer:
    return make_mysql()


@pytest.fixture
def start_mysql() -> Iterator[Callable[..., MysqlServer]]:
    with servers(MysqlServer, "mysql") as made:
        yield made.start


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
