"""What PostgreSQL and MariaDB share beyond the contract: where tables may be, the view for people, and held queues."""

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from psycopg.rows import dict_row
from pymysql.cursors import DictCursor

from duetime.model.clock import MAX_INSTANT
from duetime.model.errors import StoreDamaged, StoreUnavailable
from duetime.model.job import NewJob, State
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed, Store
from duetime.stores.mysql.connection import MysqlAddress, open_connection
from duetime.stores.open import open_store
from duetime.stores.postgres import connection as postgres_connection
from duetime.stores.sql import threads
from tests.plugins.database_server import give_to
from tests.plugins.mysql_server import PREFIX, MysqlServer
from tests.plugins.postgres_server import PostgresServer
from tests.plugins.processes import make_folder
from tests.plugins.until import until

STORE_KINDS = ["postgres", "mysql"]
QUEUE, OTHER = Queue("shop", "mail"), Queue("shop", "other")
TIMES = ("due_at", "expires_at", "lease_until", "dead_at")


class Database:
    """A server of either kind, as its administrator sees it."""

    def __init__(self, server: PostgresServer | MysqlServer) -> None:
        self._server = server
        self.is_postgres = isinstance(server, PostgresServer)

    def connect(self) -> Any:
        if isinstance(self._server, PostgresServer):
            return psycopg.connect(self._server.url, autocommit=True, row_factory=dict_row)
        connection = self._server.root()
        connection.cursorclass = DictCursor
        return connection

    def execute(self, *statements: str) -> list[dict[str, Any]]:
        """Rows of the last statement."""
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def table(self, name: str) -> str:
        """In the store of the fixture `store`."""
        return f"duetime.{name}" if self.is_postgres else f"duetime.{PREFIX}{name}"

    @contextmanager
    def place(self, name: str) -> Iterator[str]:
        """A schema or database of its own, and its URL but for a prefix."""
        if self.is_postgres:
            self.execute(f"CREATE SCHEMA {name}")
            yield f"{self._server.url}?schema={name}&prefix="
            self.execute(f"DROP SCHEMA {name} CASCADE")
        else:
            self.execute(f"CREATE DATABASE {name}", f"GRANT ALL ON {name}.* TO duetime@'%'")
            yield self._server.url.replace("/duetime?", f"/{name}?") + "&prefix="
            self.execute(f"DROP DATABASE {name}")

    def view(self, hours: int = 0) -> dict[str, dict[str, Any]]:
        """Rows of the view by id, with times as they are in UTC, in a session that is so many hours ahead of it."""
        name = "duetime_jobs" if self.is_postgres else "readable_jobs"
        session = f"SET time_zone = '{hours:+03}:00', sql_mode = 'STRICT_ALL_TABLES'"
        if self.is_postgres:
            session = f"SET TIME ZONE 'Etc/GMT{-hours:+}'"
        rows = {row["id"]: row for row in self.execute(session, f"SELECT * FROM {self.table(name)}")}
        for row in rows.values():
            for column in TIMES:
                if isinstance(at := row[column], datetime):
                    offset = at.utcoffset() if self.is_postgres else timedelta(hours=hours)
                    assert offset == timedelta(hours=hours)
                    row[column] = at.replace(tzinfo=None) - offset
        return rows


@pytest.fixture
def database(store_kind: str, request: pytest.FixtureRequest) -> Database:
    return Database(request.getfixturevalue(f"{store_kind}_server"))


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    opened = await open_store(store_url)
    yield opened
    await opened.close()


async def push(store: Store, *jobs: NewJob, queue: Queue = QUEUE) -> None:
    [answer] = await store.push(queue, [Push(jobs)])
    assert isinstance(answer, Pushed), answer


def utc(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1) + timedelta(milliseconds=milliseconds)


# --- the tables


async def test_stores_with_other_prefixes_share_a_place(database: Database) -> None:
    with database.place("shared") as url:
        one, other = [await open_store(url + prefix) for prefix in ("one_", "")]
        await push(one, NewJob("a", b""))
        assert [len((await each.list_jobs(QUEUE, State.READY)).jobs) for each in (one, other)] == [1, 0]
        await one.close()
        await other.close()


async def test_processes_that_open_an_empty_database_at_the_same_time(database: Database) -> None:
    with database.place("rush") as url:
        stores = await asyncio.gather(*(open_store(url) for _ in range(4)))
        assert len({(await store.ping()).epoch for store in stores}) == 1
        for store in stores:
            await store.close()


@pytest.mark.parametrize("table", ["jobs (payload text)", "migrations (id int, migration text, batch int)"])
async def test_tables_of_another_program_are_left_alone(database: Database, table: str) -> None:
    with database.place("theirs") as url:
        database.execute(f"CREATE TABLE theirs.{table}")
        for _ in range(2):
            with pytest.raises(StoreDamaged, match=r"another .*prefix="):
                await open_store(url)
        found = database.execute("SELECT count(*) AS tables FROM information_schema.tables WHERE table_schema='theirs'")
        assert found == [{"tables": 1}]


@pytest.mark.parametrize(("name", "opens"), [("9999_breaking_change", False), ("9999_more", True)])
async def test_tables_that_a_newer_release_has_upgraded(database: Database, name: str, opens: bool) -> None:
    with database.place("newer") as url:
        await (await open_store(url)).close()
        database.execute(f"INSERT INTO newer.migrations VALUES (9999, '{name}', 1)")
        if opens:
            await (await open_store(url)).close()
        else:
            with pytest.raises(StoreUnavailable, match="a newer Duetime"):
                await open_store(url)


async def test_the_reaper_goes_on_at_once_while_more_has_ended_than_one_round_deletes(
    database: Database, store: Store
) -> None:
    """It deleted 500 a second. The lines that many tasks log are counters whose life ends faster."""
    rows = ", ".join(f"('line {number}', 1, 1)" for number in range(501))
    database.execute(f"INSERT INTO {database.table('counters')} VALUES {rows}")

    reaped = await store.reap()
    assert reaped.next_at == reaped.now
    await store.reap()
    [found] = database.execute(f"SELECT count(*) AS kept FROM {database.table('counters')}")
    assert found["kept"] == 0


# --- rows for people


async def test_a_view_shows_jobs_as_people_and_laravel_would(store: Store, database: Database) -> None:
    await push(store, NewJob("delayed", "Grüße".encode(), delay_ms=3_600_000))
    await push(store, NewJob("killed", b"{}"), NewJob("leased", b"x"), NewJob("ready", b"y"))
    [[killed, leased]] = (await store.reserve(QUEUE, [Ask(2, 60_000)])).deliveries
    await store.kill(killed.lease, "broken")
    jobs = database.view()
    shown = ("state", "namespace", "queue", "payload", "attempts")
    assert {job_id: tuple(row[column] for column in shown) for job_id, row in jobs.items()} == {
        "delayed": ("delayed", "shop", "mail", "Grüße", 0),
        "killed": ("dead", "shop", "mail", "{}", 1),
        "leased": ("leased", "shop", "mail", "x", 1),
        "ready": ("ready", "shop", "mail", "y", 0),
    }
    assert jobs["ready"]["reserved_at"] is None
    assert jobs["leased"]["lease_until"] == utc(leased.lease_until)
    assert jobs["leased"]["reserved_at"] == leased.lease_until // 1000
    assert jobs["delayed"]["available_at"] - jobs["delayed"]["created_at"] == 3600
    assert (jobs["killed"]["reason"], jobs["killed"]["error"]) == ("killed", "broken")


@pytest.mark.parametrize("hours", [0, 13, -12])
async def test_times_are_those_of_the_session_also_after_2038(hours: int, store: Store, database: Database) -> None:
    instants = {
        "soon": 2_000_000_000_123,
        "before": 2_147_483_646_999,
        "end": 2_147_483_647_000,
        "after": 2_147_483_647_001,
        "far": 32_503_680_000_000,
    }
    await push(store, *(NewJob(job_id, b"", due_at=at) for job_id, at in instants.items()))
    jobs = database.view(hours)
    assert {job_id: row["due_at"] for job_id, row in jobs.items()} == {name: utc(at) for name, at in instants.items()}
    assert {row[column] for row in jobs.values() for column in TIMES[1:]} == {None}


@pytest.mark.parametrize("hours", [0, 13, -12])
async def test_a_row_with_odd_times_is_shown_with_the_nearest_ones(
    hours: int, store: Store, database: Database
) -> None:
    await push(store, NewJob("last", b"", due_at=MAX_INSTANT), NewJob("odd", b""), NewJob("old", b""))
    for job_id, value in {"odd": 2**62, "old": -(2**62)}.items():
        changes = ", ".join(f"{column} = {value}" for column in TIMES)
        database.execute(f"UPDATE {database.table('jobs')} SET {changes} WHERE id = '{job_id}'")
    jobs = database.view(hours)
    assert [jobs["last"]["due_at"].year, *(jobs["odd"][column].year for column in TIMES)] == [9999] * 5
    assert jobs["old"]["due_at"] == utc(0)
    assert jobs["odd"]["available_at"] == 2**62 // 1000


async def test_a_body_is_text_only_if_the_text_has_the_same_bytes(store: Store, database: Database) -> None:
    texts = ["", "??ab", "Grüße ", "\N{GRINNING FACE}", "\N{REPLACEMENT CHARACTER}"]
    others = [b"\xff\xfeab", b"ab\xc3", b"\xc0\x80", b"\xed\xa0\x80", "Grüße".encode("latin-1"), b"\xf5\x80\x80\x80"]
    (others if database.is_postgres else texts).append(b"a\0b" if database.is_postgres else "a\0b")
    bodies = [*(text.encode() for text in texts), *others]
    await push(store, *(NewJob(f"{number:02}", body) for number, body in enumerate(bodies)))
    jobs = sorted(database.view().items())
    assert [row["body"] for _, row in jobs] == bodies
    assert [row["payload"] for _, row in jobs] == [*texts, *(None for _ in others)]


# --- locks


async def test_a_locked_queue_fails_alone(store_url: str, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "MAX_TRIES", 1)
    monkeypatch.setitem(postgres_connection._SESSION, "lock_timeout", "500ms")
    store = await open_store(store_url)
    await push(store, NewJob("a", b""))
    with closing(database.connect()) as holder, holder.cursor() as cursor:
        cursor.execute("BEGIN")
        queues = database.table("queues")
        cursor.execute(f"SELECT 1 FROM {queues} WHERE namespace = 'shop' AND name = 'mail' FOR UPDATE")
        held = asyncio.create_task(store.reserve(QUEUE, [Ask(1, 1_000)]))
        await push(store, NewJob("b", b""), queue=OTHER)
        with pytest.raises(StoreUnavailable, match=r"lock timeout|Lock wait timeout"):
            await held
        cursor.execute("ROLLBACK")
    assert len((await store.reserve(QUEUE, [Ask(1, 1_000)])).deliveries[0]) == 1
    await store.close()


# --- servers that are away


@pytest.fixture
def own_server(store_kind: str, request: pytest.FixtureRequest) -> PostgresServer | MysqlServer:
    """With few connections, and commits that survive a crash."""
    if store_kind == "postgres":
        return request.getfixturevalue("start_postgres")(max_connections=5, superuser_reserved_connections=0)
    return request.getfixturevalue("start_mysql")(max_connections=10, innodb_flush_log_at_trx_commit=1)


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_server_that_stops_and_comes_again(own_server: PostgresServer | MysqlServer, how: str) -> None:
    store = await open_store(own_server.url)
    await push(store, NewJob("a", b""))

    getattr(own_server, how)()
    with pytest.raises(StoreUnavailable):
        await store.push(QUEUE, [Push([NewJob("b", b"")])])
    with pytest.raises(StoreUnavailable):
        await store.counts([QUEUE])
    own_server.start()

    await push(store, NewJob("c", b""))
    [deliveries] = (await store.reserve(QUEUE, [Ask(5, 60_000)])).deliveries
    assert [delivery.lease.id for delivery in deliveries] == ["a", "c"]
    assert list(await store.check()) == []
    await store.close()


async def test_a_server_without_a_connection_to_spare(own_server: PostgresServer | MysqlServer) -> None:
    store, guests = await open_store(own_server.url), list[Any]()

    def are_all_taken() -> bool:
        """Sessions that were closed a moment ago still count."""
        try:
            while True:
                guests.append(connect_guest(own_server.url))
        except (psycopg.OperationalError, pymysql.OperationalError):
            return len(guests) >= 5

    await until(are_all_taken)
    with pytest.raises(StoreUnavailable, match=r"too many clients|Too many connections"):
        await store.counts([QUEUE])
    for guest in guests:
        guest.close()

    async def is_served() -> bool:
        with suppress(StoreUnavailable):
            await push(store, NewJob("a", b""))
            return True
        return False

    await until(is_served)
    await store.close()


def connect_guest(url: str) -> Any:
    if url.startswith("mysql"):
        return pymysql.connect(**MysqlAddress.parse(url).options)
    return psycopg.connect(url)


# --- PostgreSQL and MariaDB over TLS: the store believes a server only if its certificate is one that the URL names


def files_for(user: str, certificate: Path) -> tuple[Path, Path]:
    """Copies of a certificate and its key that only a server's user can read."""
    folder = make_folder("duetime-tls-")
    copies = [Path(shutil.copy(file, folder)) for file in (certificate, certificate.with_name("key.pem"))]
    for copy in copies:
        copy.chmod(0o600)
        give_to(copy, user)
    return copies[0], copies[1]


async def push_one(url: str) -> None:
    store = await open_store(url)
    try:
        await store.push(QUEUE, [Push([NewJob("a", b"body")])])
        assert [count.ready for count in await store.counts([QUEUE])] == [1]
    finally:
        await store.close()


@pytest.mark.store_kind("postgres")
async def test_postgresql_shows_the_certificate_that_the_url_names(
    start_postgres: Callable[..., PostgresServer], certificate: Path, other_certificate: Path
) -> None:
    shown, key = files_for("postgres", certificate)
    server = start_postgres(ssl="on", ssl_cert_file=str(shown), ssl_key_file=str(key))
    server.stop()
    (server.folder / "data" / "pg_hba.conf").write_text("hostssl all all all trust\n")
    server.start()
    await push_one(f"{server.url}?sslmode=verify-full&sslrootcert={certificate}")
    with pytest.raises(StoreUnavailable, match="certificate verify failed"):
        await open_store(f"{server.url}?sslmode=verify-full&sslrootcert={other_certificate}")
    with pytest.raises(StoreUnavailable, match="no encryption"):
        await open_store(f"{server.url}?sslmode=disable")


@pytest.mark.store_kind("mysql")
async def test_mariadb_shows_the_certificate_that_the_url_names(
    start_mysql: Callable[..., MysqlServer], certificate: Path, other_certificate: Path
) -> None:
    shown, key = files_for("mysql", certificate)
    server = start_mysql(ssl_cert=str(shown), ssl_key=str(key))
    server.administer("ALTER USER duetime@'%' REQUIRE SSL")
    url = server.url.partition("?")[0]
    await push_one(f"{url}?ssl_ca={certificate}")
    for mode in ("verify_identity", "verify_ca"):
        with pytest.raises(StoreUnavailable, match="certificate verify failed"):
            await open_store(f"{url}?ssl_mode={mode}&ssl_ca={other_certificate}")
    with pytest.raises(StoreUnavailable, match="denied"):
        await open_store(f"{url}?ssl_mode=disabled")


@pytest.mark.store_kind("mysql")
@pytest.mark.parametrize("tls", ["offered", "not offered"])
async def test_a_connection_to_mariadb_reads_no_unneeded_certificates(
    start_mysql: Callable[..., MysqlServer], certificate: Path, monkeypatch: pytest.MonkeyPatch, tls: str
) -> None:
    """All certificates of the system take a tenth of a second and megabytes for each connection."""
    shown, key = files_for("mysql", certificate)
    server = start_mysql(**({"ssl_cert": str(shown), "ssl_key": str(key)} if tls == "offered" else {"skip_ssl": 1}))
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: pytest.fail("certificates are read"))
    address = MysqlAddress.parse(server.url.partition("?")[0])
    with open_connection(address) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
        [(_, cipher)] = cursor.fetchall()
    assert bool(cipher) == (tls == "offered")
