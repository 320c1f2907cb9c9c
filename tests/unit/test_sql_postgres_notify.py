"""PostgreSQL's NOTIFY takes a lock of the whole server at the commit: no session that changes jobs sends one."""

from collections.abc import Iterator

import psycopg
import pytest

from duetime import push_in
from duetime.engine import Engine
from duetime.model.job import NewJob
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Wake
from duetime.stores.postgres.store import PostgresStore
from duetime.stores.sql.outbox import channel
from tests.plugins.postgres_server import PostgresServer

pytestmark = pytest.mark.store_kind("postgres")

QUEUE = Queue("shop", "mail")
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
