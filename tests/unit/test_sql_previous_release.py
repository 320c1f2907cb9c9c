"""A rolling upgrade: the previous release's statements on today's tables, where its servers still run for a while.

`previous_release/` holds the `.sql` files of that release as they were; a release replaces them with its own.
"""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import psycopg
import pymysql
import pytest
from pymysql.cursors import DictCursor

from duetime.model.job import NewJob
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push
from duetime.stores.mysql.connection import MysqlAddress
from duetime.stores.mysql.connection import open_connection as open_mysql
from duetime.stores.mysql.store import MysqlStore
from duetime.stores.postgres.store import PostgresStore
from duetime.stores.sql.queries import _parse, statements
from tests.plugins.mysql_server import MysqlServer
from tests.plugins.postgres_server import PostgresServer
from tests.unit import test_sql_mysql_queries, test_sql_postgres

QUEUE = Queue("shop", "mail")


def previous(dialect: str) -> Mapping[str, str]:
    files = sorted((Path(__file__).parent / "previous_release" / dialect).glob("*.sql"))
    return {name: text for file in files for name, text in _parse(file.read_text())}


async def fill(store: PostgresStore | MysqlStore) -> None:
    await store.push(QUEUE, [Push([NewJob("a", b"body", tries=1), NewJob("b", b"body")])])
    await store.reserve(QUEUE, [Ask(1, 60_000)])


@pytest.mark.store_kind("postgres")
async def test_an_old_server_works_on_new_tables_of_postgresql(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    store = await PostgresStore.open(postgres_url)
    await fill(store)
    await store.close()
    refused: dict[str, str] = {}
    with psycopg.connect(postgres_server.url) as connection:
        for name, query in previous("postgres").items():
            text, values = test_sql_postgres.ADDRESS.name_tables(query), test_sql_postgres.values_of(name, query)
            try:
                connection.execute(text, values)  # type: ignore[arg-type]
            except psycopg.Error as error:
                refused[name] = str(error)
            connection.rollback()
    assert refused == {}


@pytest.mark.store_kind("mysql")
async def test_an_old_server_works_on_new_tables_of_mariadb(mysql_url: str, mysql_server: MysqlServer) -> None:
    store = await MysqlStore.open(mysql_url)
    await fill(store)
    await store.close()
    address, refused = MysqlAddress.parse(mysql_server.url), dict[str, str]()
    with closing(open_mysql(address)) as connection, connection.cursor() as cursor:
        for name, query in previous("mysql").items():
            connection.begin()
            for statement in statements(address.name_tables(query) + ";\n"):
                named = test_sql_mysql_queries.values_of(statement, 1)
                try:
                    cursor.execute(statement, named or (1,) * statement.count("%s"))
                except pymysql.Error as error:
                    refused[name] = str(error)
            connection.rollback()
    assert refused == {}


@pytest.mark.store_kind("mysql")
async def test_a_view_of_mariadb_shows_jobs_as_people_and_laravel_would(
    mysql_url: str, mysql_server: MysqlServer
) -> None:
    store = await MysqlStore.open(mysql_url)
    await store.push(QUEUE, [Push([NewJob("delayed", "Grüße".encode(), delay_ms=3_600_000)])])
    await store.push(QUEUE, [Push([NewJob("leased", b"\xff\x00"), NewJob("killed", b"{}"), NewJob("ready", b"x")])])
    [[first, second]] = (await store.reserve(QUEUE, [Ask(2, 60_000)])).deliveries
    assert [first.lease.id, second.lease.id] == ["killed", "leased"]
    await store.kill(first.lease, "broken")
    await store.close()
    address = MysqlAddress.parse(mysql_server.url)
    with closing(open_mysql(address)) as connection, connection.cursor(DictCursor) as cursor:
        cursor.execute("SELECT *, unix_timestamp(due_at) AS due_s FROM duetime_readable_jobs")
        jobs = {row["id"]: row for row in cursor.fetchall()}
    states = {"delayed": "delayed", "leased": "leased", "killed": "dead", "ready": "ready"}
    assert {job_id: row["state"] for job_id, row in jobs.items()} == states
    assert [jobs[job_id]["payload"] for job_id in ("delayed", "killed", "ready")] == ["Grüße", "{}", "x"]
    assert (jobs["leased"]["body"], jobs["leased"]["payload"]) == (b"\xff\x00", None)
    assert {(row["namespace"], row["queue"]) for row in jobs.values()} == {QUEUE}
    assert [jobs[job_id]["attempts"] for job_id in ("leased", "ready")] == [1, 0]
    assert jobs["ready"]["reserved_at"] is None
    assert jobs["delayed"]["available_at"] == int(jobs["delayed"]["due_s"])
    assert jobs["delayed"]["created_at"] <= jobs["delayed"]["available_at"] - 3_599
    assert (jobs["killed"]["reason"], jobs["killed"]["error"]) == ("killed", "broken")
