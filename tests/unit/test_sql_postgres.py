"""The PostgreSQL store beyond the contract: its address, its tables, its plans, and sessions that end."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from duetime import push_in
from duetime.engine import Engine
from duetime.model.errors import InvalidSettings, StoreUnavailable
from duetime.model.job import NewJob
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed, Wake
from duetime.stores.postgres import connection as connection_settings
from duetime.stores.postgres.connection import PostgresAddress, PostgresLink, open_connection, pending, translate
from duetime.stores.postgres.store import PostgresStore
from duetime.stores.sql.outbox import channel
from duetime.stores.sql.queries import load_migrations, load_queries
from tests.plugins.postgres_server import STORE, PostgresServer
from tests.plugins.until import until

pytestmark = pytest.mark.store_kind("postgres")

QUEUE = Queue("shop", "mail")
QUERIES = load_queries("postgres")
WALKS = {name for name in QUERIES if name.startswith("check_")}
"""Full walks by intention."""


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    opened = await PostgresStore.open(postgres_url)
    yield opened
    await opened.close()


async def push(store: PostgresStore, *ids: str, queue: Queue = QUEUE, delay_ms: int = 0) -> None:
    [answer] = await store.push(queue, [Push([NewJob(job_id, b"body", delay_ms=delay_ms) for job_id in ids])])
    assert isinstance(answer, Pushed), answer


# --- the address


def test_our_options_leave_the_url_and_the_rest_goes_to_libpq() -> None:
    address = PostgresAddress.parse("postgres://me@db/app?schema=a&prefix=b_&connections=3&sslmode=verify-full")
    assert (address.schema, address.prefix, address.connections) == ("a", "b_", 3)
    libpqs = conninfo_to_dict(address.conninfo)
    assert (libpqs["user"], libpqs["host"], libpqs["dbname"], libpqs["sslmode"]) == ("me", "db", "app", "verify-full")
    assert "schema" not in address.conninfo


def test_a_socket_is_a_folder_as_host() -> None:
    assert "host=%2Frun%2Fpostgresql" in PostgresAddress.parse("postgresql:///app?host=/run/postgresql").conninfo


@pytest.mark.parametrize(
    "query", ["schema=a-b", "schema=", "prefix=x%22", "connections=none", "prepare=maybe", "no_such_option=1"]
)
def test_an_option_that_cannot_be_is_refused(query: str) -> None:
    with pytest.raises(InvalidSettings):
        PostgresAddress.parse(f"postgresql://db/app?{query}")


def test_a_pooler_without_prepared_statements_is_named() -> None:
    assert PostgresAddress.parse("postgresql://db/app?prepare=off").prepares is False
    for error in (psycopg.errors.DuplicatePreparedStatement("x"), psycopg.errors.InvalidSqlStatementName("x")):
        with pytest.raises(StoreUnavailable, match="prepare=off"):
            raise translate(error)


# --- the tables


async def test_an_upgrade_waits_a_bounded_time_for_readers(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{postgres_server.url}?schema=upgraded"
    await (await PostgresStore.open(url)).close()
    change = "ALTER TABLE dt.discarded ADD COLUMN later bigint;\n"
    both = {**load_migrations("postgres"), 2: ("0002_later", change)}
    monkeypatch.setattr(connection_settings, "load_migrations", lambda dialect: both)
    monkeypatch.setattr(connection_settings, "LOCK_TIMEOUT_S", 0.2)
    with psycopg.connect(postgres_server.url) as reader:
        reader.execute("SELECT count(*) FROM upgraded.discarded")
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            await asyncio.wait_for(PostgresStore.open(url), 30)
    assert [migration.name for migration in pending(PostgresAddress.parse(url))] == ["0002_later"]
    await (await PostgresStore.open(url)).close()
    assert pending(PostgresAddress.parse(url)) == []


# --- the plans


ADDRESS = PostgresAddress.parse(f"postgresql:///?{STORE}")


def sample(name: str, kind: str) -> object:
    """A value that fits a parameter."""
    if kind:
        return [1] if kind == "bigint" else [b"x"] if kind == "bytea" else ["x"]
    texts = ["namespace", "name", "kind", "key", "after_id", "prefix", "beyond", "channel", "payload"]
    texts += ["if_exists", "attributes", "job_id", "least", "greatest"]
    return "x" if name in texts else 1


@pytest.fixture(scope="module")
def planner(postgres_server: PostgresServer) -> Iterator["psycopg.Connection[tuple[object, ...]]"]:
    # Its session has a name of its own: tests end those of the store.
    address = PostgresAddress.parse(f"{postgres_server.url}?{STORE}&application_name=planner")
    PostgresLink(address, None).prepare_tables()
    with open_connection(address) as connection:
        yield connection


def values_of(name: str, query: str) -> dict[str, object]:
    """Values that fit the parameters of a query."""
    by_name = any(table in query for table in ("dt.marks", "dt.totals", "dt.outbox", "dt.results"))
    by_name = by_name and "dt.jobs" not in query
    values: dict[str, object] = {}
    for parameter, kind in re.findall(r"%\((\w+)\)[sb](?:::(\w+) \[\])?", query):
        values[parameter] = values.get(parameter) or sample(parameter, kind)
    if by_name and "queue" in values:
        values["queue"] = "x"
    binary = ("digest", "answer", "value", "body", "result")
    values |= {column: b"x" for column in binary if column in values and "put_counter" != name}
    if name in ("insert_outbox_job", "keep_result"):
        values["id"] = "x"
    if name == "list_joins":
        values |= {"after": "x", "before": "y"}
    return values


def plan(planner: "psycopg.Connection[tuple[object, ...]]", name: str) -> list[str]:
    query, values = ADDRESS.name_tables(QUERIES[name]), values_of(name, QUERIES[name])
    rows = planner.execute(f"EXPLAIN {query}", values).fetchall()  # type: ignore[arg-type]
    return [str(line) for (line,) in rows]


@pytest.mark.parametrize("name", sorted(set(QUERIES) - WALKS))
def test_a_query_never_reads_a_whole_table_or_sorts_one(
    planner: "psycopg.Connection[tuple[object, ...]]", name: str
) -> None:
    steps = plan(planner, name)
    assert [step for step in steps if "Seq Scan" in step] == []
    harmless = name in (
        "heads_of",
        "outbox_queues",
        "reserve_single_statement",
    )  # a few queues, or the jobs of one call
    assert harmless or [step for step in steps if "Sort" in step] == []


# --- sessions that end


async def test_a_listener_that_is_cancelled_as_it_starts_is_cancelled(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that was closed right after its start waited for ever for such a listener."""
    hub: Any = store._hub
    listening, never = hub._listening_now, asyncio.Event()
    monkeypatch.setattr(hub, "run_once", never.wait)
    listener = asyncio.ensure_future(anext(aiter(store.wakeups())))
    await until(lambda: listening._waiters)

    listening.set()
    listener.cancel()

    with pytest.raises(asyncio.CancelledError):
        await listener


# --- the reaper


async def test_jobs_that_a_round_moved_are_reported_although_it_failed_later(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = [Queue("shop", "first"), Queue("shop", "second")]
    for queue in queues:
        await push(store, "a", queue=queue)
        await store.reserve(queue, [Ask(1, 1)])
    await asyncio.sleep(0.01)
    write, calls = store._write, list[Queue | None]()

    async def fails_from_the_second_on(*arguments: Any, queue: Queue | None = None, **more: Any) -> Any:
        calls.append(queue)
        if len(calls) > 1:
            raise StoreUnavailable("gone")
        return await write(*arguments, queue=queue, **more)

    monkeypatch.setattr(store, "_write", fails_from_the_second_on)
    reaped = await store.reap()
    assert [list(reaped.moved), reaped.next_at] == [[queues[0]], reaped.now]
    with pytest.raises(StoreUnavailable):
        await store.reap()


# --- PostgreSQL's NOTIFY takes a lock of the whole server at the commit: no session that changes jobs sends one


SCHEMA = "watched"
WATCH = f"""
CREATE TABLE {SCHEMA}.changers (pid integer);
CREATE FUNCTION {SCHEMA}.note() RETURNS trigger LANGUAGE plpgsql AS
    $$BEGIN INSERT INTO {SCHEMA}.changers VALUES (pg_backend_pid()); RETURN NULL; END$$;
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {SCHEMA}.jobs EXECUTE FUNCTION {SCHEMA}.note();
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {SCHEMA}.outbox EXECUTE FUNCTION {SCHEMA}.note();
"""


@pytest.fixture
def watcher(postgres_server: PostgresServer) -> Iterator["psycopg.Connection[tuple[int]]"]:
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        yield connection
        connection.execute(f"DROP SCHEMA {SCHEMA} CASCADE")


async def test_sessions_that_change_jobs_send_no_notifications(
    postgres_server: PostgresServer, watcher: "psycopg.Connection[tuple[int]]"
) -> None:
    store = await PostgresStore.open(f"{postgres_server.url}?schema={SCHEMA}")
    watcher.execute(WATCH)
    watcher.execute(f'LISTEN "{channel(SCHEMA, "")}"')  # type: ignore[arg-type]
    async with Engine(store) as engine:
        await store.push(QUEUE, [Push([NewJob(name, b"") for name in ("acked", "released", "killed")])])
        await engine.push(QUEUE, [NewJob("alone", b"")])
        [[acked, released, killed, _]] = (await store.reserve(QUEUE, [Ask(4, 60_000)])).deliveries
        await engine.ack([acked.lease])
        await engine.release(released.lease)
        await engine.kill(killed.lease)
        with psycopg.connect(postgres_server.url) as connection:
            push_in(connection, "mail", ["body"], schema=SCHEMA)
        await store.reap()
    await store.close()
    watcher.execute("SELECT pg_notify(%s, 'end')", [channel(SCHEMA, "")])
    notifying: set[int] = set()
    for notice in watcher.notifies(timeout=60):
        if notice.payload == "end":
            break
        notifying.add(notice.pid)
    changing = {pid for (pid,) in watcher.execute(f"SELECT pid FROM {SCHEMA}.changers")}
    assert notifying
    assert len(changing) >= 2
    assert notifying.isdisjoint(changing)


async def test_a_notification_that_no_process_of_ours_sent_is_ignored(postgres_server: PostgresServer) -> None:
    """Every user of the database may notify. A timer cannot be set to such a time, and Python's JSON readers raise
    RecursionError for what is nested deeply.
    """
    store = await PostgresStore.open(f"{postgres_server.url}?schema=forged")
    wakes = store.wakeups()
    assert await anext(wakes) == Wake()
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        wakes_at = [f'["x",0,[["shop","mail",{due_at}]]]' for due_at in (10**30, -1, 1_900_000_000_000)]
        for payload in ("no JSON", '["x",0,null,[],' + "[" * 7000, *wakes_at):
            connection.execute("SELECT pg_notify(%s, %s)", [channel("forged", ""), payload])
        found = Wake()
        while found.queue is None:
            found = await anext(wakes)
        assert found == Wake(QUEUE, 1_900_000_000_000)
        await store.close()
        connection.execute("DROP SCHEMA forged CASCADE")
