"""`push_in` on MariaDB: jobs that exist if and only if another program's transaction commits."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from pathlib import Path
from urllib.parse import urlsplit

import pymysql
import pytest
import sqlalchemy
from pymysql.connections import Connection
from sqlalchemy.orm import Session

from duetime import push_in
from duetime.engine import Engine
from duetime.model.errors import BodyTooLarge, InvalidSettings, QueueFull, StoreUnavailable, TopicOffline
from duetime.model.job import Event, IfExists, NewJob, Priority
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, RulesChange
from duetime.stores.mysql.connection import MysqlAddress
from duetime.stores.mysql.store import MysqlStore
from duetime.stores.sql import threads
from tests.plugins.mysql_server import PREFIX, MysqlServer

pytestmark = pytest.mark.store_kind("mysql")

MAIL = Queue("default", "mail")


@pytest.fixture
async def store(mysql_url: str) -> AsyncIterator[MysqlStore]:
    opened = await MysqlStore.open(mysql_url)
    yield opened
    await opened.close()


def connect(url: str) -> Connection:
    return pymysql.connect(**MysqlAddress.parse(url).options)


def by_pymysql(url: str, job_id: str, commit: bool) -> None:
    with connect(url) as connection:
        assert push_in(connection, "mail", ["body"], id=job_id) == [job_id]
        if commit:
            connection.commit()


def by_sqlalchemy(url: str, job_id: str, commit: bool) -> None:
    engine = sqlalchemy.create_engine(url.partition("?")[0].replace("mysql:", "mysql+pymysql:"))
    with Session(engine) as session:
        push_in(session, "mail", ["body"], id=job_id)
        if commit:
            session.commit()
    engine.dispose()


DJANGO = """
import os
import pymysql
pymysql.install_as_MySQLdb()
from django.conf import settings
from django.db import connection, transaction
from duetime import push_in

settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.mysql", **eval(os.environ["DATABASE"])}})
with transaction.atomic():
    push_in(connection, "mail", ["body"], id=os.environ["JOB"])
    transaction.set_rollback(os.environ["COMMIT"] == "no")
connection.close()
"""
"""In a process of its own: Django can be configured only once."""


def by_django(url: str, job_id: str, commit: bool) -> None:
    parts = urlsplit(url)
    database = {"HOST": parts.hostname, "PORT": parts.port, "NAME": parts.path[1:]}
    database |= {"USER": parts.username, "PASSWORD": parts.password}
    given = {"DATABASE": repr(database), "JOB": job_id, "COMMIT": "yes" if commit else "no"}
    subprocess.run([sys.executable, "-c", DJANGO], env={**os.environ, **given}, check=True, timeout=120)


@pytest.mark.parametrize("way", [by_pymysql, by_sqlalchemy, by_django], ids=lambda way: way.__name__)
async def test_a_job_exists_if_and_only_if_its_transaction_commits(
    way: Callable[[str, str, bool], None], store: MysqlStore, mysql_url: str
) -> None:
    await asyncio.to_thread(way, mysql_url, "undone", False)
    await asyncio.to_thread(way, mysql_url, "done", True)
    [[(request, answer)]] = (await store.reap()).pushed.values()
    assert [job.id for job in request.jobs] == [moved.id for moved in answer.jobs] == ["done"]
    [deliveries] = (await store.reserve(MAIL, [Ask(5, 1_000)])).deliveries
    assert [(delivery.lease.id, delivery.body) for delivery in deliveries] == [("done", b"body")]
    assert (await store.reap()).pushed == {}


async def test_what_a_job_is_given_arrives(store: MysqlStore, mysql_url: str) -> None:
    before = (await store.ping()).now
    job = NewJob(
        "ä", b"\x00\xff'", delay_ms=3_600_000, ttl_ms=7_200_000, tries=3, priority=Priority.HIGH, attributes={"t": "ü"}
    )
    with connect(mysql_url) as connection:
        push_in(connection, "mail", [job, NewJob("b", b"", due_at=32_503_680_000_000)])
        connection.commit()
    await store.reap()
    first, second = await store.get(MAIL, ["ä", "b"])
    assert first is not None
    assert second is not None
    assert (first.body, first.tries, first.priority, first.attributes) == (b"\x00\xff'", 3, Priority.HIGH, {"t": "ü"})
    assert before + 3_600_000 <= first.due_at <= (await store.ping()).now + 3_600_000
    assert second.due_at == 32_503_680_000_000
    assert list(await store.check()) == []


async def test_a_job_that_exists_is_kept_or_replaced(store: MysqlStore, mysql_url: str) -> None:
    await store.push(MAIL, [Push([NewJob("a", b"old"), NewJob("b", b"old")])])
    with connect(mysql_url) as connection:
        push_in(connection, "mail", ["new"], id="a")
        push_in(connection, "mail", ["new"], id="b", if_exists=IfExists.REPLACE)
        connection.commit()
    [pushed] = (await store.reap()).pushed.values()
    assert [moved.event for _, answer in pushed for moved in answer.jobs] == [Event.KEPT, Event.REPLACED]
    assert [job and job.body for job in await store.get(MAIL, ["a", "b"])] == [b"old", b"new"]


async def test_what_a_push_refuses_is_refused(store: MysqlStore, mysql_url: str) -> None:
    await store.configure(MAIL, RulesChange(max_body=10, max_jobs=1))
    with connect(mysql_url) as connection:
        with pytest.raises(BodyTooLarge):
            push_in(connection, "mail", ["x" * 11])
        with pytest.raises(QueueFull):
            push_in(connection, "mail", ["x", "y"])
        with pytest.raises(InvalidSettings):
            push_in(connection, "mail", ["x"], prefix="a`b")
        connection.commit()
        await store.configure(MAIL, RulesChange(offline=True))
        with pytest.raises(TopicOffline):
            push_in(connection, "mail", ["x"])
        connection.commit()
    assert (await store.reap()).pushed == {}


async def test_tables_in_another_database(store: MysqlStore, mysql_server: MysqlServer) -> None:
    with mysql_server.root() as connection:
        push_in(connection, "mail", ["x"], id="a", schema="duetime", prefix=PREFIX)
    await store.reap()
    assert [count.ready for count in await store.counts([MAIL])] == [1]


async def test_processes_that_reap_at_once_take_each_job_once(store: MysqlStore, mysql_url: str) -> None:
    others = [await MysqlStore.open(mysql_url) for _ in range(2)]
    with connect(mysql_url) as connection:
        ids = push_in(connection, "mail", ["x"] * 250)
        connection.commit()
    moved: list[str] = []
    while found := [
        job.id
        for reaped in await asyncio.gather(*(each.reap() for each in (store, *others)))
        for pushed in reaped.pushed.values()
        for request, _ in pushed
        for job in request.jobs
    ]:
        moved += found
    assert sorted(moved) == sorted(ids)
    assert [count.ready for count in await store.counts([MAIL])] == [250]
    for other in others:
        await other.close()


@pytest.mark.parametrize("wake", [False, True])
async def test_a_waiting_consumer_gets_the_job(wake: bool, store: MysqlStore, mysql_url: str) -> None:
    async with Engine(store) as engine:
        waiting = asyncio.create_task(engine.reserve([MAIL], wait_ms=60_000))
        with connect(mysql_url) as connection:
            push_in(connection, "mail", ["x"], id="a", wake=wake)
            connection.commit()
        [delivery] = await waiting
        assert delivery.lease.id == "a"


async def test_the_rights_of_the_docs_are_enough(store: MysqlStore, mysql_url: str, mysql_server: MysqlServer) -> None:
    page = (Path(__file__).parents[2] / "docs" / "stores.md").read_text()
    [(inserts, selects, for_wake)] = re.findall(
        r"INSERT on\s`(\w+)` and SELECT on `(\w+)`, for `wake=True` also INSERT on `(\w+)`", page
    )
    mysql_server.administer(
        "CREATE USER shop@'%' IDENTIFIED BY 'secret'",
        f"GRANT INSERT ON duetime.{inserts} TO shop@'%'",
        f"GRANT SELECT ON duetime.{selects} TO shop@'%'",
    )
    try:
        with connect(mysql_url.replace("duetime:", "shop:")) as connection:
            push_in(connection, "mail", ["x"])
            connection.commit()
            mysql_server.administer(f"GRANT INSERT ON duetime.{for_wake} TO shop@'%'")
            push_in(connection, "mail", ["x"], wake=True)
            connection.commit()
    finally:
        mysql_server.administer("DROP USER shop@'%'")
    await store.reap()
    assert [count.ready for count in await store.counts([MAIL])] == [2]


@pytest.mark.parametrize(("level", "waits"), [("REPEATABLE READ", False), ("SERIALIZABLE", True)])
async def test_only_a_serializable_transaction_holds_the_queue(
    level: str, waits: bool, store: MysqlStore, mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """InnoDB locks every row that such a transaction reads; the docs say so."""
    monkeypatch.setattr(threads, "MAX_TRIES", 1)
    await store.push(MAIL, [Push([NewJob("a", b"")])])
    with connect(mysql_url) as connection:
        connection.cursor().execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
        connection.begin()
        push_in(connection, "mail", ["x"], id="b")
        with pytest.raises(StoreUnavailable, match="Lock wait") if waits else nullcontext():
            await store.push(MAIL, [Push([NewJob("c", b"")])])
        connection.commit()


async def test_a_view_shows_jobs_as_people_and_laravel_would(store: MysqlStore, mysql_server: MysqlServer) -> None:
    await store.push(MAIL, [Push([NewJob("delayed", "Grüße".encode(), delay_ms=3_600_000)])])
    await store.push(MAIL, [Push([NewJob("killed", b"{}"), NewJob("leased", b"x"), NewJob("ready", b"y")])])
    [[first, second]] = (await store.reserve(MAIL, [Ask(2, 60_000)])).deliveries
    assert [first.lease.id, second.lease.id] == ["killed", "leased"]
    await store.kill(first.lease, "broken")
    columns = "id, state, queue, payload, attempts, reserved_at IS NULL, available_at - created_at, error"
    rows = mysql_server.administer(
        "SET NAMES utf8mb4", f"SELECT {columns} FROM duetime.{PREFIX}readable_jobs ORDER BY id"
    )
    assert [row[:6] for row in rows] == [
        ("delayed", "delayed", "mail", "Grüße", 0, 1),
        ("killed", "dead", "mail", "{}", 1, 1),
        ("leased", "leased", "mail", "x", 1, 0),
        ("ready", "ready", "mail", "y", 0, 1),
    ]
    assert rows[0][6] == 3600
    assert rows[1][7] == "broken"


async def test_the_example_of_the_docs_runs(store: MysqlStore, mysql_url: str, mysql_server: MysqlServer) -> None:
    mysql_server.administer("CREATE TABLE IF NOT EXISTS duetime.orders (id integer)")
    page = (Path(__file__).parents[2] / "docs" / "stores.md").read_text()
    [code] = re.findall(r"```python mysql\n(.*?)```", page, re.DOTALL)
    given = {**os.environ, "DATABASE_URL": mysql_url.partition("?")[0]}
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], env=given, check=True, timeout=120)
    [[(request, _)]] = (await store.reap()).pushed.values()
    assert [job.body for job in request.jobs] == [b'{"order":1}']


async def test_a_body_that_the_server_could_not_take_in_is_refused_at_once(
    start_mysql: Callable[..., MysqlServer],
) -> None:
    """A server writes bodies in hexadecimal: one above half a packet could be inserted by some drivers, and never be
    moved into its queue.
    """
    url = start_mysql(max_allowed_packet="1M").url
    store = await MysqlStore.open(url)
    with connect(url) as connection:
        with pytest.raises(BodyTooLarge):
            push_in(connection, "mail", [b"x" * 600_000])
        push_in(connection, "mail", [b"x" * 400_000], id="fits")
        connection.commit()
        with pytest.raises(BodyTooLarge):
            push_in(connection, "mail", [b"x" * 600_000])
    await store.reap()
    [[delivery]] = (await store.reserve(MAIL, [Ask(1, 60_000)])).deliveries
    assert delivery.lease.id == "fits"
    await store.close()
