"""Database servers that end our sessions, restart or fail over under load: nothing is lost, nothing is done twice."""

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from duetime.engine import Engine
from duetime.model.clock import ManualClock
from duetime.model.errors import StoreUnavailable
from duetime.model.job import Moved, NewJob
from duetime.model.names import Queue
from duetime.model.settings import group_url
from duetime.stores.base import Ask, Push, Pushed, Store
from duetime.stores.group.layout import home
from duetime.stores.mysql import connection as mysql_connection
from duetime.stores.mysql.connection import MysqlAddress
from duetime.stores.open import open_store
from duetime.stores.postgres import connection as postgres_connection
from duetime.stores.postgres.connection import PostgresAddress, open_connection
from duetime.stores.sql import threads
from tests.faults.losing_proxy import LosingProxy
from tests.plugins.mysql_server import PREFIX, MysqlServer
from tests.plugins.postgres_server import PostgresServer
from tests.plugins.until import until

QUEUE = Queue("shop", "mail")
JOBS = 60


async def push_all(engine: Engine, ids: list[str], before_each: Callable[[int], None]) -> None:
    """Push each job until it is accepted, as a careful producer does."""
    for number, job_id in enumerate(ids):
        await asyncio.to_thread(before_each, number)
        while True:
            try:
                await engine.push(QUEUE, [NewJob(job_id, b"body")])
                break
            except StoreUnavailable:
                await asyncio.sleep(0.01)


async def ack_all(engine: Engine, count: int) -> Counter[str]:
    """Take and finish jobs until so many different ones are gone; how often each was acked."""
    acked: Counter[str] = Counter()
    while len(acked) < count:
        try:
            deliveries = await engine.reserve([QUEUE], limit=20, ttr_ms=2_000, wait_ms=200)
            leases = [delivery.lease for delivery in deliveries]
            while leases:
                with suppress(StoreUnavailable):
                    answers = await engine.ack(leases)
                    # An ack whose commit was in doubt is repeated, and then finds the job gone.
                    acked.update(
                        lease.id
                        for lease, answer in zip(leases, answers, strict=True)
                        if answer is None or isinstance(answer, Moved)
                    )
                    break
        except StoreUnavailable:
            await asyncio.sleep(0.01)
    return acked


async def work_through(store: Store, disturb: Callable[[int], None]) -> None:
    """Push and finish jobs while `disturb` is called before each push: no job is lost, none is counted twice."""
    ids = [f"job {number:04}" for number in range(JOBS)]
    async with Engine(store) as engine:
        consumer = asyncio.create_task(ack_all(engine, JOBS))
        await push_all(engine, ids, disturb)
        acked = await consumer
    # A lease that was lost with its answer has run out, and its job was delivered again.
    assert sorted(acked) == ids
    [counts], [totals] = await store.counts([QUEUE]), await store.totals([QUEUE])
    assert (counts.delayed, counts.ready, counts.leased, counts.dead) == (0, 0, 0, 0)
    assert totals.running.accepted == totals.running.acked == JOBS
    assert list(await store.check()) == []
    await store.close()


@pytest.mark.store_kind("postgres")
async def test_sessions_that_are_ended_under_load(postgres_url: str) -> None:
    store = await open_store(f"{postgres_url}&application_name=loaded")
    ended = 0
    with psycopg.connect(postgres_url.partition("?")[0], autocommit=True) as connection:

        def end_sessions(number: int) -> None:
            nonlocal ended
            if number % 10 == 5:
                ended += connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'loaded'"
                ).rowcount

        await work_through(store, end_sessions)
    assert ended > 0


@pytest.mark.store_kind("mysql")
async def test_sessions_that_are_killed_under_load(mysql_url: str, mysql_server: MysqlServer) -> None:
    store = await open_store(mysql_url)
    ended = 0

    def kill_sessions(number: int) -> None:
        nonlocal ended
        if number % 10 == 5:
            rows = mysql_server.administer("SELECT id FROM information_schema.processlist WHERE user = 'duetime'")
            for (session,) in rows:
                with suppress(pymysql.OperationalError):  # it has ended meanwhile
                    mysql_server.administer(f"KILL {session}")
                    ended += 1

    await work_through(store, kill_sessions)
    assert ended > 0


@pytest.mark.store_kind("postgres")
async def test_a_postgres_that_crashes_under_load(start_postgres: Callable[..., PostgresServer]) -> None:
    server = start_postgres()

    def crash(number: int) -> None:
        if number in (20, 40):
            server.kill()
            server.start()

    await work_through(await open_store(server.url), crash)


@pytest.mark.store_kind("mysql")
async def test_a_mariadb_that_crashes_under_load(start_mysql: Callable[..., MysqlServer]) -> None:
    server = start_mysql(innodb_flush_log_at_trx_commit=1)

    def crash(number: int) -> None:
        if number in (20, 40):
            server.kill()
            server.start()

    await work_through(await open_store(server.url), crash)


@pytest.mark.store_kind("postgres")
async def test_a_standby_that_is_promoted_under_load(start_postgres: Callable[..., PostgresServer]) -> None:
    """A commit waits for the standby, so that the new primary knows all that was answered."""
    primary = start_postgres(wal_level="replica", max_wal_senders=4, hot_standby="on")
    standby = start_postgres(standby_of=primary)
    with psycopg.connect(primary.url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        connection.execute("SELECT pg_reload_conf()")
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    store = await open_store(f"postgresql://duetime@{hosts}/postgres?target_session_attrs=read-write")

    def fail_over(number: int) -> None:
        if number == JOBS // 2:
            primary.kill()
            standby.promote()
            with psycopg.connect(standby.url, autocommit=True) as connection:
                # It came over from the old primary, and nobody follows the new one.
                connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
                connection.execute("SELECT pg_reload_conf()")

    await work_through(store, fail_over)


async def test_a_server_that_vanishes_without_a_word_is_given_up(start_postgres: Callable[..., PostgresServer]) -> None:
    """The kernel ends a connection of which nothing is heard: after the times that it was told, and not after hours."""
    address = PostgresAddress.parse(start_postgres().url)
    with open_connection(address) as connection, socket.socket(fileno=os.dup(connection.fileno())) as wire:
        read = wire.getsockopt
        assert read(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        silent_s = read(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        silent_s += read(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) * read(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
        assert silent_s <= 30
        assert read(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000

    chosen = PostgresAddress.parse("postgresql://host/db?tcp_user_timeout=5000&connect_timeout=3")
    assert "tcp_user_timeout=5000" in chosen.conninfo
    assert "connect_timeout=3" in chosen.conninfo


@pytest.mark.store_kind("postgres")
async def test_a_deadlock_of_postgres_reaches_no_caller(postgres_url: str) -> None:
    """Somebody locks two rows in the other order; the server ends ours, and the store tries again."""
    store = await open_store(postgres_url)
    await store.registry.put("kind", "key", b"1")
    dsn = postgres_url.partition("?")[0]
    with psycopg.connect(dsn) as other, psycopg.connect(dsn, autocommit=True) as watcher:
        other.execute("SET deadlock_timeout = '1h'")  # the one who notices is ended
        other.execute("SELECT 1 FROM duetime.registry WHERE kind = 'kind' FOR UPDATE")
        putting = asyncio.create_task(store.registry.put("kind", "key", b"2"))

        def waits() -> bool:
            found = watcher.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
            return found is not None and found[0] > 0

        await until(waits)
        before = watcher.execute("SELECT sum(deadlocks) FROM pg_stat_database").fetchone()
        await asyncio.to_thread(other.execute, "SELECT 1 FROM duetime.meta FOR UPDATE")
        other.rollback()
        assert (await putting).value == b"2"
        await until(lambda: watcher.execute("SELECT sum(deadlocks) FROM pg_stat_database").fetchone() != before)
    await store.close()


@pytest.mark.store_kind("mysql")
async def test_a_session_that_was_cut_off_in_its_transaction_stops_its_queue_only_briefly(mysql_url: str) -> None:
    """MariaDB forgets the rest of a packet when KILL QUERY comes between two of its statements."""
    store = await open_store(mysql_url)
    await store.push(QUEUE, [Push([NewJob("a", b"")])])
    with mysql_connection.open_connection(MysqlAddress.parse(mysql_url)) as cut, cut.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT 1 FROM {PREFIX}queues WHERE name = %s FOR UPDATE", [QUEUE.name])

        [pushed] = await store.push(QUEUE, [Push([NewJob("b", b"")])])

        assert isinstance(pushed, Pushed)
    await store.close()


@pytest.mark.store_kind("mysql")
async def test_statements_that_are_killed_under_load(mysql_url: str, mysql_server: MysqlServer) -> None:
    store = await open_store(mysql_url)
    killed = 0

    def kill_statements(_: int) -> None:
        nonlocal killed
        with mysql_server.root() as connection, connection.cursor() as cursor:
            for _ in range(10):
                cursor.execute("SELECT id FROM information_schema.processlist WHERE user = 'duetime'")
                for (session,) in cursor.fetchall():
                    with suppress(pymysql.OperationalError):  # it has ended meanwhile
                        cursor.execute(f"KILL QUERY {session}")
                        killed += 1

    await work_through(store, kill_statements)
    assert killed > 0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks are waited for as shortly as each server can, and once."""
    monkeypatch.setitem(postgres_connection._SESSION, "lock_timeout", "100ms")
    monkeypatch.setitem(mysql_connection._MARIADB_SESSION, "innodb_lock_wait_timeout", 1)
    monkeypatch.setattr(threads, "MAX_TRIES", 1)


def holder_of(kind: str, url: str) -> tuple[Any, str]:
    """A session that can lock rows, and the name of the table of queues."""
    if kind == "postgres":
        return psycopg.connect(url.partition("?")[0]), "duetime.queues"
    return pymysql.connect(**MysqlAddress.parse(url).options), f"{PREFIX}queues"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.store_kind(kind)) for kind in ("postgres", "mysql")]
)
async def test_the_reaper_goes_on_beside_queues_that_somebody_holds(kind: str, request: pytest.FixtureRequest) -> None:
    url, clock = str(request.getfixturevalue(f"{kind}_url")), ManualClock()
    store, free, soon = await open_store(url, clock=clock), Queue("shop", "free"), Queue("shop", "soon")
    held = [Queue("shop", f"held-{number}") for number in range(3)]
    for queue in (*held, free, soon):
        clock.advance(1)
        await store.push(queue, [Push([NewJob("a", b"")])])
        await store.reserve(queue, [Ask(1, 500)])
    holder, table = holder_of(kind, url)
    with holder:
        cursor = holder.cursor()
        # The sweep has something to do for them, too.
        cursor.execute(f"UPDATE {table.replace('queues', 'totals')} SET day = 1")  # type: ignore[arg-type]
        holder.commit()
        for queue in held:
            one_row = f"SELECT 1 FROM {table} WHERE namespace = 'shop' AND name = '{queue.name}' FOR UPDATE"
            cursor.execute(one_row)  # type: ignore[arg-type]
        rounds = [await store.reap() for _ in range(3)]
        assert [[*reaped.moved] for reaped in rounds] == [[free], [], []]
        # The held queues are overdue, and yet the reaper rests until another one needs it.
        assert all(reaped.next_at == reaped.now + 500 for reaped in rounds)
        holder.rollback()

    assert {*(await store.reap()).moved} == {*held}
    await store.close()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.store_kind(kind)) for kind in ("postgres", "mysql")]
)
async def test_a_locked_queue_does_not_take_its_member_of_a_group_down(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url, locked, free = str(request.getfixturevalue(f"{kind}_url")), Queue("shop", "locked"), Queue("shop", "free")
    store = await open_store(group_url("wide", {"a": url, "b": f"sqlite://{tmp_path}/b.db"}))
    at_a = {queue: [f"j{n}" for n in range(40) if home(queue, f"j{n}", ("a", "b")) == "a"] for queue in (locked, free)}
    try:
        for queue, ids in at_a.items():
            await store.push(queue, [Push([NewJob(ids[0], b"")])])
        holder, table = holder_of(kind, url)
        with holder:
            holder.cursor().execute(f"SELECT 1 FROM {table} WHERE namespace = 'shop' AND name = 'locked' FOR UPDATE")
            [refused] = await store.push(locked, [Push([NewJob(at_a[locked][1], b"")])])
            [pushed] = await store.push(free, [Push([NewJob(at_a[free][1], b"")])])
            holder.rollback()
        assert isinstance(refused, StoreUnavailable)
        assert isinstance(pushed, Pushed)
    finally:
        await store.close()


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.store_kind(kind)) for kind in ("postgres", "mysql")]
)
async def test_a_connection_that_goes_silent_is_given_up(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy or a balancer that froze keeps connections open, so that the kernel finds nothing wrong with them."""
    monkeypatch.setattr("duetime.stores.sql.server_step.STEP_S", 0.5)
    url, port = str(request.getfixturevalue(f"{kind}_url")), request.getfixturevalue(f"{kind}_server").port
    async with LosingProxy(port) as proxy:
        store = await open_store(url.replace(str(port), str(proxy.port)))
        try:
            await store.push(QUEUE, [Push([NewJob("a", b"")])])
            proxy.go_silent()
            async with asyncio.timeout(20):
                with suppress(StoreUnavailable):
                    await store.push(QUEUE, [Push([NewJob("b", b""), NewJob("c", b"")])])
                await store.push(QUEUE, [Push([NewJob("d", b"")])])
        finally:
            await store.close()
