"""A real Laravel queue (laravel_peer.php) next to ours, on Redis or on a database."""

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql

from tests.plugins.ci import missing_service
from tests.plugins.processes import guard, release

SCRIPT = Path(__file__).with_name("laravel_peer.php")
ILLUMINATE = Path("/usr/share/php/Illuminate/Queue/autoload.php")
RETRY_AFTER_S = 90

JOBS = {
    "sqlite": "id INTEGER PRIMARY KEY AUTOINCREMENT",
    "postgresql": "id BIGSERIAL PRIMARY KEY",
    "mysql": "id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY",
}
TABLES = """CREATE TABLE jobs ({id}, queue VARCHAR(255) NOT NULL, payload {text} NOT NULL, attempts SMALLINT NOT NULL,
 reserved_at INTEGER NULL, available_at INTEGER NOT NULL, created_at INTEGER NOT NULL);
CREATE INDEX jobs_queue_index ON jobs (queue);
CREATE TABLE failed_jobs ({id}, uuid VARCHAR(255) NOT NULL UNIQUE, connection TEXT NOT NULL, queue TEXT NOT NULL,
 payload {text} NOT NULL, exception {text} NOT NULL, failed_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP)"""


@contextmanager
def python_worker(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """python_worker.py until the block ends."""
    command = [sys.executable, str(Path(__file__).with_name("python_worker.py")), *map(str, arguments)]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    guard(worker.pid)
    assert worker.stdout
    assert worker.stdout.readline() == "working\n"
    try:
        yield worker
    finally:
        worker.kill()
        worker.wait(60)
        release(worker.pid)
        worker.stdout.close()


@dataclass
class LaravelPeer:
    """`url` is what our side connects to."""

    url: str
    config: dict[str, Any]
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / "ran.log"

    def run(self, *arguments: object) -> str:
        done = subprocess.run(self._command(*arguments), capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _command(self, *arguments: object) -> list[str]:
        config = json.dumps({**self.config, "log": str(self.log)})
        return ["php", str(SCRIPT), config, *map(str, arguments)]

    @contextmanager
    def working(self, queue: str = "default") -> Iterator[subprocess.Popen[str]]:
        """A PHP worker until the block ends."""
        worker = subprocess.Popen(self._command("work", queue), stdout=subprocess.PIPE, text=True)
        guard(worker.pid)
        assert worker.stdout
        assert worker.stdout.readline() == "working\n"
        try:
            yield worker
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(60)
            release(worker.pid)
            worker.stdout.close()

    def runs(self) -> Counter[int]:
        """How often PHP ran each job."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return Counter(int(line.split()[1]) for line in lines)


def needs_laravel() -> None:
    if shutil.which("php") is None or not ILLUMINATE.exists():
        missing_service("PHP with Laravel's queue is not installed")


def redis_peer(url: str, folder: Path) -> LaravelPeer:
    server = {"host": "127.0.0.1", "port": urlsplit(url).port, "database": 0}
    connection = {
        "driver": "redis",
        "connection": "default",
        "queue": "default",
        "retry_after": RETRY_AFTER_S,
        "block_for": None,
    }
    redis = {"default": server, "options": {"prefix": "shop_database_"}}
    return LaravelPeer(url, {"connection": connection, "redis": redis}, folder)


def database_peer(url: str, folder: Path) -> LaravelPeer:
    parts = urlsplit(url)
    kind = parts.scheme
    statements = TABLES.format(id=JOBS[kind], text="LONGTEXT" if kind == "mysql" else "TEXT").split(";")
    database: dict[str, Any] = {"driver": {"postgresql": "pgsql"}.get(kind, kind), "prefix": ""}
    if kind == "sqlite":
        path = url.removeprefix("sqlite:")
        database["database"] = path
        for statement in statements:
            execute_sqlite(url, statement)
    else:
        database |= {"host": parts.hostname, "port": parts.port, "database": parts.path.lstrip("/")}
        database |= {"username": parts.username or "", "password": parts.password or "", "charset": "utf8"}
        execute(url, ["DROP TABLE IF EXISTS jobs, failed_jobs, duetime_held, duetime_accepted", *statements])
    connection = {"driver": "database", "table": "jobs", "queue": "default", "retry_after": RETRY_AFTER_S}
    return LaravelPeer(url, {"connection": connection, "database": database}, folder)


def execute_sqlite(url: str, statement: str) -> list[Any]:
    with closing(sqlite3.connect(url.removeprefix("sqlite:"))) as connection, connection:
        return connection.execute(statement).fetchall()


def own_database(url: str) -> str:
    """The URL of an empty database `laravel` on the same server, because Duetime has a table `jobs` of its own."""
    parts = urlsplit(url)
    if parts.scheme == "postgresql":
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP DATABASE IF EXISTS laravel WITH (FORCE)")
            connection.execute("CREATE DATABASE laravel")
    else:
        execute(url, ["CREATE DATABASE IF NOT EXISTS laravel"])
    return parts._replace(path="/laravel", query="").geturl()


def execute(url: str, statements: list[str]) -> None:
    parts = urlsplit(url)
    if parts.scheme == "postgresql":
        with psycopg.connect(url) as connection:
            for statement in statements:
                connection.execute(statement)
        return
    mysql = pymysql.connect(
        host=parts.hostname, port=parts.port or 3306, user=parts.username, password=parts.password or "",
        database=parts.path.lstrip("/"),
    )  # fmt: skip
    with mysql, mysql.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        mysql.commit()
