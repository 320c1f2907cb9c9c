"""The store on MariaDB beyond the contract: its tables, its errors, and sessions that end."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pymysql
import pytest

from duetime.model.errors import (
    BodyTooLarge,
    DuetimeError,
    InvalidSettings,
    StoreDamaged,
    StoreFull,
    StoreUnavailable,
)
from duetime.model.job import IfExists, NewJob
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed, Wake
from duetime.stores.mysql import connection as mysql_connection
from duetime.stores.mysql import store as wake_module
from duetime.stores.mysql.connection import MysqlAddress, translate
from duetime.stores.mysql.store import MysqlStore
from duetime.stores.open import open_store
from duetime.stores.sql import threads
from duetime.stores.sql import wake as sql_wake
from duetime.stores.sql.queries import load_migrations
from duetime.stores.sql.wake import Announcement
from tests.plugins.mysql_server import PREFIX, MysqlServer
from tests.plugins.until import until
from tests.unit.test_sql_sqlite_wake import looks_only_while_somebody_waits

pytestmark = pytest.mark.store_kind("mysql")

QUEUE = Queue("shop", "mail")


@pytest.fixture
async def store(mysql_url: str) -> AsyncIterator[MysqlStore]:
    opened = await MysqlStore.open(mysql_url)
    yield opened
    await opened.close()


async def push(store: MysqlStore, *ids: str, queue: Queue = QUEUE, delay_ms: int = 0) -> None:
    [answer] = await store.push(queue, [Push([NewJob(job_id, b"body", delay_ms=delay_ms) for job_id in ids])])
    assert isinstance(answer, Pushed), answer


# --- the way to it


async def test_a_socket_leads_to_the_same_store(store: MysqlStore, mysql_server: MysqlServer) -> None:
    await push(store, "a")
    url = f"mariadb://duetime:secret@/duetime?ssl_mode=disabled&unix_socket={mysql_server.socket}"
    same = await open_store(url)
    assert [count.ready for count in await same.counts([QUEUE])] == [1]
    await same.close()


@pytest.mark.parametrize(("part", "other"), [("secret", "wrong"), ("/duetime?", "/no_such?")])
async def test_a_password_or_a_database_that_is_wrong(mysql_server: MysqlServer, part: str, other: str) -> None:
    with pytest.raises(StoreUnavailable, match="denied"):
        await MysqlStore.open(mysql_server.url.replace(part, other))


# --- the tables


@contextmanager
def database(server: MysqlServer, name: str) -> Iterator[str]:
    """Another database, and its URL."""
    server.administer(f"CREATE DATABASE {name}", f"GRANT ALL ON {name}.* TO duetime@'%'")
    yield server.url.replace("/duetime?", f"/{name}?")
    server.administer(f"DROP DATABASE {name}")


async def test_a_migration_that_was_cut_off_is_finished(mysql_server: MysqlServer) -> None:
    with database(mysql_server, "cut_off") as url:
        whole = await MysqlStore.open(url)
        await whole.close()
        mysql_server.administer(
            f"UPDATE cut_off.{PREFIX}migrations SET applied_at = 0",
            f"DROP TABLE cut_off.{PREFIX}counters, cut_off.{PREFIX}marks",
            f"DELETE FROM cut_off.{PREFIX}meta",
        )
        store = await MysqlStore.open(url)
        assert (await store.registry.increment("n")).value == 1
        assert (await store.ping()).epoch
        await store.close()


async def test_an_upgrade_applies_what_is_missing(mysql_server: MysqlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with database(mysql_server, "upgraded") as url:
        await (await MysqlStore.open(url)).close()
        change = "ALTER TABLE dt.discarded ADD COLUMN later bigint;\n"
        both = {**load_migrations("mysql"), 2: ("0002_later", change)}
        monkeypatch.setattr(mysql_connection, "load_migrations", lambda dialect: both)
        assert [migration.name for migration in mysql_connection.pending(MysqlAddress.parse(url))] == ["0002_later"]
        await (await MysqlStore.open(url)).close()
        assert mysql_connection.pending(MysqlAddress.parse(url)) == []
        assert mysql_server.administer(f"SELECT later FROM upgraded.{PREFIX}discarded") == ()


async def test_names_differ_by_case_and_accent_in_a_database_that_ignores_both(
    store: MysqlStore, mysql_server: MysqlServer
) -> None:
    [(collation,)] = mysql_server.administer("SELECT @@collation_database")
    assert str(collation).endswith("_ci")
    await push(store, "e", "E", "é", "e ", queue=Queue("shop", "mail"))
    await push(store, "e", queue=Queue("shop", "Mail"))
    names = [Queue("shop", "Mail"), Queue("shop", "mail")]
    assert await store.queues() == names
    assert [count.ready for count in await store.counts(names)] == [1, 4]


# --- locks


async def waiting_transaction(server: MysqlServer, *, other_than: object = None) -> object:
    """The number of the transaction that waits for a lock."""
    rows: tuple[tuple[object, ...], ...] = ()

    def waits() -> bool:
        nonlocal rows
        rows = server.administer("SELECT trx_id FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'")
        return bool(rows) and rows[0][0] != other_than

    # The server renews this table only for those who have not looked for a tenth of a second.
    await until(waits, every_s=0.15)
    return rows[0][0]


def deadlocks(server: MysqlServer) -> int:
    [(count,)] = server.administer(
        "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'Innodb_deadlocks'"
    )
    return int(str(count))


async def test_a_deadlock_reaches_no_caller(store: MysqlStore, mysql_server: MysqlServer) -> None:
    await store.registry.put("kind", "key", b"1")
    before = deadlocks(mysql_server)
    # On a machine that stalls, the step may have given up its lock for a moment when the other one comes for it.
    while deadlocks(mysql_server) == before:
        with closing(mysql_server.root()) as other, other.cursor() as cursor:
            cursor.execute("BEGIN")
            # The server ends the transaction that has changed less.
            numbers = ", ".join(f"('{number}', 0, 0)" for number in range(100))
            cursor.execute(f"INSERT INTO duetime.{PREFIX}counters VALUES {numbers}")
            cursor.execute(f"SELECT 1 FROM duetime.{PREFIX}registry WHERE kind = 'kind' FOR UPDATE")
            putting = asyncio.create_task(store.registry.put("kind", "key", b"2"))
            await waiting_transaction(mysql_server)
            await asyncio.to_thread(cursor.execute, f"SELECT 1 FROM duetime.{PREFIX}meta FOR UPDATE")
            cursor.execute("ROLLBACK")
        assert (await asyncio.wait_for(putting, 60)).value == b"2"


async def test_a_lock_that_is_free_only_after_a_timeout(
    store: MysqlStore, mysql_server: MysqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "MAX_TRIES", 30)
    await push(store, "a")
    with closing(mysql_server.root()) as holder, holder.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT 1 FROM duetime.{PREFIX}queues WHERE namespace = 'shop' AND name = 'mail' FOR UPDATE")
        pushing = asyncio.create_task(push(store, "b"))
        first = await waiting_transaction(mysql_server)
        await waiting_transaction(mysql_server, other_than=first)
        cursor.execute("ROLLBACK")
    await asyncio.wait_for(pushing, 60)
    assert [count.ready for count in await store.counts([QUEUE])] == [2]


# --- what the server refuses


@contextmanager
def setting(server: MysqlServer, name: str, value: int) -> Iterator[None]:
    [(before,)] = server.administer(f"SELECT @@GLOBAL.{name}")
    server.administer(f"SET GLOBAL {name} = {value}")
    try:
        yield
    finally:
        server.administer(f"SET GLOBAL {name} = {before}")


async def test_a_body_beyond_max_allowed_packet_is_refused_alone(mysql_url: str, mysql_server: MysqlServer) -> None:
    with setting(mysql_server, "max_allowed_packet", 1_048_576):
        store = await MysqlStore.open(mysql_url)
        # Every byte of these is escaped, so that they double on their way.
        sizes = {"fits": 450_000, "too large": 460_000, "fits too": 450_000, "small": 1}
        answers = await store.push(QUEUE, [Push([NewJob(name, b"'" * size)]) for name, size in sizes.items()])
        [deliveries] = (await store.reserve(QUEUE, [Ask(5, 60_000)])).deliveries
        await store.close()
    assert [type(answer) for answer in answers] == [Pushed, BodyTooLarge, Pushed, Pushed]
    assert {delivery.lease.id: len(delivery.body) for delivery in deliveries} == {
        name: size for name, size in sizes.items() if name != "too large"
    }


async def test_a_server_that_only_reads(store: MysqlStore, mysql_server: MysqlServer) -> None:
    await push(store, "a")
    with setting(mysql_server, "read_only", 1):
        with pytest.raises(StoreUnavailable, match="read-only"):
            await store.push(QUEUE, [Push([NewJob("b", b"")])])
        assert [count.ready for count in await store.counts([QUEUE])] == [1]
    await push(store, "c")


async def test_a_server_without_room(start_mysql: Callable[..., MysqlServer]) -> None:
    server = start_mysql(innodb_file_per_table=0, innodb_data_file_path="ibdata1:12M:autoextend:max:24M")
    store = await MysqlStore.open(server.url)
    await push(store, "first")

    async def fill() -> None:
        for number in range(64):
            await store.push(QUEUE, [Push([NewJob(str(number), bytes(500_000), delay_ms=60_000)])])

    with pytest.raises(StoreFull, match="no room"):
        await fill()
    assert list(await store.check()) == []
    await store.close()


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (1114, "The table 'jobs' is full", StoreFull),
        (1030, 'Got error 28 "No space left on device" from storage engine', StoreFull),
        (1030, "Got error 122 from storage engine", StoreDamaged),
        (1213, "Deadlock found", StoreUnavailable),
        (2006, "MySQL server has gone away", StoreUnavailable),
        (1153, "Got a packet bigger than 'max_allowed_packet' bytes", StoreUnavailable),
        (1146, "Table 'duetime.jobs' doesn't exist", StoreDamaged),
        (0, "", StoreUnavailable),
    ],
)
def test_errors_by_their_code(code: int, text: str, kind: type[DuetimeError]) -> None:
    assert type(translate(pymysql.OperationalError(code, text))) is kind


# --- sessions that end


async def test_a_session_that_is_ended_in_its_transaction(store: MysqlStore, mysql_server: MysqlServer) -> None:
    await push(store, "a")
    with closing(mysql_server.root()) as holder, holder.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT 1 FROM duetime.{PREFIX}queues WHERE namespace = 'shop' AND name = 'mail' FOR UPDATE")
        pushing = asyncio.create_task(push(store, "b"))
        await waiting_transaction(mysql_server)
        mysql_server.end_sessions()
        cursor.execute("ROLLBACK")
    await asyncio.wait_for(pushing, 60)
    assert [count.ready for count in await store.counts([QUEUE])] == [2]


async def test_an_announcement_that_is_committed_late_arrives(
    store: MysqlStore, mysql_server: MysqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime.stores.mysql.store.GAP_S", 60)
    other = await MysqlStore.open(mysql_server.url)
    wakes = aiter(store.wakeups())
    assert await anext(wakes) == Wake()
    with closing(mysql_server.root()) as slow, slow.cursor() as cursor:
        cursor.execute("BEGIN")
        message = '["slow",0,[["shop","late",7]]]'
        cursor.execute(f"INSERT INTO duetime.{PREFIX}announcements (message) VALUES (%s)", (message,))
        await push(other, "a")
        while (await asyncio.wait_for(anext(wakes), 60)).queue != QUEUE:
            pass
        cursor.execute("COMMIT")
    while await asyncio.wait_for(anext(wakes), 60) != Wake(Queue("shop", "late"), 7):
        pass
    await wakes.aclose()  # type: ignore[attr-defined]
    await other.close()


async def test_old_announcements_are_deleted(
    store: MysqlStore, mysql_server: MysqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime.stores.mysql.store.KEPT", 5)
    monkeypatch.setattr("duetime.stores.mysql.store.SWEEP", 1)
    last = 0
    for number in range(8):
        await push(store, "a", queue=Queue("shop", str(number)))
        await until(lambda before=last: announcements(mysql_server)[0] > before)
        last, _ = announcements(mysql_server)
    await until(lambda: announcements(mysql_server)[1] == 5)


def announcements(server: MysqlServer) -> tuple[int, int]:
    """The last number, and how many there are."""
    [row] = server.administer(f"SELECT coalesce(max(number), 0), count(*) FROM duetime.{PREFIX}announcements")
    return int(str(row[0])), int(str(row[1]))


async def test_a_job_is_replaced_with_its_body(store: MysqlStore) -> None:
    for body in (b"one", bytes(range(256)) * 10):
        await store.push(QUEUE, [Push([NewJob("a", body)], IfExists.REPLACE)])
        [job] = await store.get(QUEUE, ["a"])
        assert job is not None
        assert job.body == body
    assert list(await store.check()) == []


# --- what a mysql:// address says, and which ones are refused


def test_a_url_has_user_host_and_table_prefix() -> None:
    address = MysqlAddress.parse("mysql://me:p%40ss%C3%A9@db:3307/app?prefix=b_&connections=3")
    options = address.options
    assert (options["host"], options["port"], options["user"]) == ("db", 3307, "me")
    assert options["password"].decode() == "p@ssé"
    assert (address.database, address.prefix, address.connections) == ("app", "b_", 3)


@pytest.mark.parametrize(
    ("query", "mode", "checks_name"),
    [
        ("ssl_mode=required", ssl.CERT_NONE, False),
        ("ssl-mode=REQUIRED", ssl.CERT_NONE, False),
        ("ssl_mode=verify_ca", ssl.CERT_REQUIRED, False),
        ("ssl_mode=verify_identity", ssl.CERT_REQUIRED, True),
    ],
)
def test_tls_modes(query: str, mode: ssl.VerifyMode, checks_name: bool) -> None:
    context = MysqlAddress.parse(f"mysql://db/app?{query}").options["ssl"]
    assert (context.verify_mode, context.check_hostname) == (mode, checks_name)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://db/app?prefix=a-b",
        "mysql://db/app?prefix=x%60",
        "mysql://db/app?connections=none",
        "mysql://db/app?no_such_option=1",
        "mysql://db/app?ssl_mode=perhaps",
        "mysql://db/app?ssl_ca=/no/such/file",
        "mysql://db:port/app",
        "mysql://db",
    ],
)
def test_an_address_that_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(InvalidSettings):
        MysqlAddress.parse(url)


# --- announcements on MariaDB: how often a process looks for those of others, and how long they stay


async def test_announcements_are_polled_only_while_a_consumer_waits(
    mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_wake, "IDLE_POLL_S", 600.0)
    store: Any = await open_store(mysql_url)
    await looks_only_while_somebody_waits(store, "_poll_once", monkeypatch)
    await store.close()


@pytest.fixture
def increment(request: pytest.FixtureRequest, mysql_server: MysqlServer) -> Iterator[int]:
    """How far apart the server's automatic numbers are: one for each node of a cluster."""
    mysql_server.administer(f"SET GLOBAL auto_increment_increment = {request.param}")
    yield request.param
    mysql_server.administer("SET GLOBAL auto_increment_increment = 1")


@pytest.mark.parametrize("increment", [1, 2, 7], indirect=True)
async def test_old_announcements_are_deleted_however_they_are_numbered(
    increment: int, mysql_url: str, mysql_server: MysqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake_module, "KEPT", 20)
    monkeypatch.setattr(wake_module, "SWEEP", 4)
    store: Any = await open_store(mysql_url)
    for _ in range(40):
        await store._server_hub._send(Announcement("x", 0, []))
    await store.close()
    [(left,)] = mysql_server.administer(f"SELECT count(*) FROM duetime.{PREFIX}announcements")
    assert 20 <= int(str(left)) < 24


async def test_processes_that_announce_only_once_delete_old_ones_too(
    mysql_url: str, mysql_server: MysqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake_module, "KEPT", 5)
    monkeypatch.setattr(wake_module, "SWEEP", 2)
    for _ in range(30):
        store: Any = await open_store(mysql_url)
        await store._server_hub._send(Announcement("x", 0, []))
        await store.close()
    [(left,)] = mysql_server.administer(f"SELECT count(*) FROM duetime.{PREFIX}announcements")
    # Each process begins to count somewhere: that none of the last 20 sweeps happens once in a million runs.
    assert int(str(left)) < 25
