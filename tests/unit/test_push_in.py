"""`push_in`: jobs that exist if and only if another program's transaction commits, with each kind of connection."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psycopg
import pymysql
import pytest
import sqlalchemy
from psycopg.rows import class_row, dict_row, namedtuple_row, scalar_row, tuple_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from duetime import push_in, push_in_async
from duetime.engine import Engine
from duetime.journal.events import Entry
from duetime.journal.journal import Journal
from duetime.journal.options import JournalOptions
from duetime.journal.reader import read_journal
from duetime.journal.recorder import open_journal_recorder
from duetime.model.errors import (
    BodyTooLarge,
    DuetimeError,
    ExpiresBeforeDue,
    InvalidRequest,
    InvalidSettings,
    QueueFull,
    StoreUnavailable,
    TopicOffline,
)
from duetime.model.job import Event, IfExists, NewJob, Priority
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, RulesChange, Store
from duetime.stores.mysql.connection import MysqlAddress
from duetime.stores.open import open_store
from duetime.stores.postgres import connection as connection_settings
from duetime.stores.sql import threads
from tests.plugins.mysql_server import PREFIX, MysqlServer

STORE_KINDS = ["postgres", "mysql"]
MAIL = Queue("default", "mail")

on_postgres = pytest.mark.parametrize("store_kind", ["postgres"], indirect=True)
on_mysql = pytest.mark.parametrize("store_kind", ["mysql"], indirect=True)


@pytest.fixture
def url(store_url: str) -> str:
    return store_url


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    opened = await open_store(url)
    yield opened
    await opened.close()


def dsn(url: str) -> str:
    return url.partition("?")[0]


def connect(url: str) -> Any:
    if url.startswith("mysql"):
        return pymysql.connect(**MysqlAddress.parse(url).options)
    return psycopg.connect(dsn(url), row_factory=dict_row)


@contextmanager
def transaction(url: str) -> Iterator[Any]:
    """A connection whose transaction commits if the block ends without an exception."""
    with connect(url) as connection:
        yield connection
        connection.commit()


def by_driver(url: str, job_id: str, commit: bool) -> None:
    with connect(url) as connection:
        assert push_in(connection, "mail", ["body"], id=job_id) == [job_id]
        connection.commit() if commit else connection.rollback()


def by_psycopg_async(url: str, job_id: str, commit: bool) -> None:
    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(dsn(url)) as connection:
            assert await push_in_async(connection, "mail", ["body"], id=job_id) == [job_id]
            if not commit:
                await connection.rollback()

    asyncio.run(run())


def by_sqlalchemy(url: str, job_id: str, commit: bool, kind: Callable[..., Any] = sqlalchemy.Connection) -> None:
    engine = sqlalchemy.create_engine(sqlalchemy_url(url))
    with kind(engine) as connection:
        push_in(connection, "mail", ["body"], id=job_id)
        if commit:
            connection.commit()
    engine.dispose()


def by_sqlalchemy_session(url: str, job_id: str, commit: bool) -> None:
    by_sqlalchemy(url, job_id, commit, Session)


def by_sqlalchemy_async(url: str, job_id: str, commit: bool, kind: Callable[..., Any] | None = None) -> None:
    async def run() -> None:
        engine = create_async_engine(sqlalchemy_url(url))
        async with kind(engine) if kind else engine.connect() as connection:
            await push_in_async(connection, "mail", ["body"], id=job_id)
            if commit:
                await connection.commit()
        await engine.dispose()

    asyncio.run(run())


def by_sqlalchemy_async_session(url: str, job_id: str, commit: bool) -> None:
    by_sqlalchemy_async(url, job_id, commit, AsyncSession)


def sqlalchemy_url(url: str) -> str:
    return dsn(url).replace("postgresql:", "postgresql+psycopg:").replace("mysql:", "mysql+pymysql:")


DJANGO = """
import os
from django.conf import settings
from django.db import connection, transaction
from duetime import push_in

if os.environ["ENGINE"] == "mysql":
    import pymysql
    pymysql.install_as_MySQLdb()
database = {"ENGINE": "django.db.backends." + os.environ["ENGINE"], **eval(os.environ["DATABASE"])}
settings.configure(DATABASES={"default": database})
with transaction.atomic():
    push_in(connection, "mail", ["body"], id=os.environ["JOB"])
    transaction.set_rollback(os.environ["COMMIT"] == "no")
connection.close()
"""
"""In a process of its own: Django can be configured only once."""


def by_django(url: str, job_id: str, commit: bool) -> None:
    if url.startswith("mysql"):
        parts = urlsplit(url)
        database = {"HOST": parts.hostname, "PORT": parts.port, "NAME": parts.path[1:]}
        database |= {"USER": parts.username, "PASSWORD": parts.password}
    else:
        info = psycopg.conninfo.conninfo_to_dict(dsn(url))
        database = {"HOST": info["host"], "PORT": info["port"], "NAME": info["dbname"], "USER": info["user"]}
    given = {"DATABASE": repr(database), "JOB": job_id, "COMMIT": "yes" if commit else "no"}
    given["ENGINE"] = urlsplit(url).scheme
    subprocess.run([sys.executable, "-c", DJANGO], env={**os.environ, **given}, check=True, timeout=120)


WAYS = [
    by_driver,
    by_psycopg_async,
    by_sqlalchemy,
    by_sqlalchemy_session,
    by_sqlalchemy_async,
    by_sqlalchemy_async_session,
    by_django,
]
ON_MYSQL = [by_driver, by_sqlalchemy_session, by_django]


@pytest.mark.parametrize(
    ("store_kind", "way"),
    [("postgres", way) for way in WAYS] + [("mysql", way) for way in ON_MYSQL],
    ids=lambda one: getattr(one, "__name__", one),
    indirect=["store_kind"],
)
async def test_a_job_exists_if_and_only_if_its_transaction_commits(
    way: Callable[[str, str, bool], None], store: Store, url: str
) -> None:
    await asyncio.to_thread(way, url, "undone", False)
    await asyncio.to_thread(way, url, "done", True)
    [[(request, answer)]] = (await store.reap()).pushed.values()
    assert [job.id for job in request.jobs] == [moved.id for moved in answer.jobs] == ["done"]
    [deliveries] = (await store.reserve(MAIL, [Ask(5, 1_000)])).deliveries
    assert [(delivery.lease.id, delivery.body) for delivery in deliveries] == [("done", b"body")]
    assert (await store.reap()).pushed == {}


async def test_all_options_of_a_job_arrive(store: Store, url: str) -> None:
    job = NewJob(
        "ä", b"\x00\xff'", delay_ms=3_600_000, ttl_ms=7_200_000, tries=3, priority=Priority.HIGH, attributes={"t": "ü"}
    )
    with transaction(url) as connection:
        push_in(connection, "mail", [job, NewJob("b", b"", due_at=32_503_680_000_000)])
    await store.reap()
    first, second = await store.get(MAIL, ["ä", "b"])
    assert first is not None
    assert second is not None
    assert (first.body, first.tries, first.priority, first.attributes) == (b"\x00\xff'", 3, Priority.HIGH, {"t": "ü"})
    assert first.expires_at - first.due_at >= 3_600_000
    assert second.due_at == 32_503_680_000_000
    assert list(await store.check()) == []


async def test_a_job_that_exists_is_kept_or_replaced(store: Store, url: str) -> None:
    await store.push(MAIL, [Push([NewJob("a", b"old"), NewJob("b", b"old")])])
    with transaction(url) as connection:
        push_in(connection, "mail", ["new"], id="a")
        push_in(connection, "mail", ["new"], id="b", if_exists=IfExists.REPLACE)
    [pushed] = (await store.reap()).pushed.values()
    assert [moved.event for _, answer in pushed for moved in answer.jobs] == [Event.KEPT, Event.REPLACED]
    assert [job and job.body for job in await store.get(MAIL, ["a", "b"])] == [b"old", b"new"]


@pytest.mark.parametrize(
    ("problem", "body", "options"),
    [
        (ExpiresBeforeDue, "x", {"delay": "2h", "ttl": "1h"}),
        (BodyTooLarge, "x" * 11, {}),
        (InvalidRequest, "x", {"tries": -1}),
        (InvalidRequest, "x", {"if_exists": IfExists.ERROR}),
        (InvalidSettings, "x", {"schema": 'a"b'}),
        (DuetimeError, "x", {"id": "not an id\n"}),
    ],
)
async def test_push_in_refuses_what_push_refuses(
    problem: type[Exception], body: str, options: dict[str, Any], store: Store, url: str
) -> None:
    await store.configure(MAIL, RulesChange(max_body=10))
    with connect(url) as connection, pytest.raises(problem):
        push_in(connection, "mail", [body], **options)
    assert (await store.reap()).pushed == {}


async def test_a_full_queue_refuses_but_what_was_committed_before_stays(store: Store, url: str) -> None:
    await store.configure(MAIL, RulesChange(max_jobs=2))
    with transaction(url) as connection:
        push_in(connection, "mail", ["1", "2"])
    await store.push(MAIL, [Push([NewJob("a", b""), NewJob("b", b"")])])
    await store.reap()
    assert [count.ready for count in await store.counts([MAIL])] == [4]
    with connect(url) as connection, pytest.raises(QueueFull):
        push_in(connection, "mail", ["3"])


async def test_an_offline_queue_refuses_but_what_was_committed_before_stays(store: Store, url: str) -> None:
    with transaction(url) as connection:
        push_in(connection, "mail", ["1"])
    await store.configure(MAIL, RulesChange(offline=True, kept=True))
    await store.reap()
    assert [count.ready for count in await store.counts([MAIL])] == [1]
    with connect(url) as connection, pytest.raises(TopicOffline):
        push_in(connection, "mail", ["2"])


async def test_processes_that_reap_at_the_same_time_import_each_job_once(store: Store, url: str) -> None:
    others = [await open_store(url) for _ in range(2)]
    with transaction(url) as connection:
        ids = push_in(connection, "mail", ["x"] * 250)
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


@on_postgres
async def test_a_locked_queue_does_not_delay_others(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection_settings._SESSION, "lock_timeout", "100ms")
    store, others = await open_store(url), {Queue("default", name) for name in "abcd"}
    for queue in (MAIL, *others):
        await store.push(queue, [Push([NewJob("here", b"")])])
    with transaction(url) as connection:
        for queue in (MAIL, *others):
            push_in(connection, queue.name, ["x"])
    with psycopg.connect(dsn(url)) as holder:
        holder.execute("SELECT 1 FROM duetime.queues WHERE name = 'mail' FOR UPDATE")
        assert (await store.reap()).pushed.keys() == others
    assert (await store.reap()).pushed.keys() == {MAIL}
    await store.close()


@on_postgres
async def test_mistakes_are_refused_and_push_nothing(store: Store, url: str) -> None:
    with psycopg.connect(dsn(url)) as connection:
        for body in ("text", b"bytes", {"order": 1}):
            with pytest.raises(InvalidRequest, match="a list of one"):
                push_in(connection, "mail", body)
        with pytest.raises(InvalidRequest, match="keep, replace or error"):
            push_in(connection, "mail", ["x"], if_exists="kepe")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match=r"use push_in\("):
            await push_in_async(connection, "mail", ["x"])
    async with await psycopg.AsyncConnection.connect(dsn(url)) as connection:
        with pytest.raises(InvalidRequest, match=r"await push_in_async\("):
            push_in(connection, "mail", ["x"])
    assert (await store.reap()).pushed == {}


def test_a_connection_of_an_unknown_library_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="does not know connections of builtins"):
        push_in(object(), "mail", ["x"])


@pytest.mark.parametrize("wake", [False, True])
async def test_a_waiting_consumer_gets_the_job(wake: bool, store: Store, url: str) -> None:
    async with Engine(store) as engine:
        waiting = asyncio.create_task(engine.reserve([MAIL], wait_ms=60_000))
        with transaction(url) as connection:
            push_in(connection, "mail", ["x"], id="a", wake=wake)
        [delivery] = await waiting
        assert delivery.lease.id == "a"


@on_postgres
async def test_a_job_is_on_record_before_it_is_delivered(store: Store, url: str, tmp_path: Path) -> None:
    async with (
        Journal(JournalOptions(tmp_path, reserve=0)) as journal,
        Engine(store, recorders=await open_journal_recorder(store, journal, "default")) as engine,
    ):
        with transaction(url) as connection:
            push_in(connection, "mail", ["text"], id="a")
        [delivery] = await engine.reserve([MAIL], wait_ms=60_000)
        await engine.ack([delivery.lease])
    entries = [item for item in read_journal(tmp_path) if isinstance(item, Entry) and item.id == "a"]
    assert [entry.event for entry in entries] == [Event.ACCEPTED, Event.DELIVERED, Event.ACKED]


class OwnRow(NamedTuple):
    """A row of the caller's own statements, which has none of the columns that push_in reads."""

    order: int


@on_postgres
@pytest.mark.parametrize("factory", [tuple_row, dict_row, namedtuple_row, scalar_row, class_row(OwnRow)])
async def test_rows_of_any_shape(factory: Any, store: Store, url: str) -> None:
    await store.configure(MAIL, RulesChange(max_jobs=2))
    with psycopg.connect(dsn(url), row_factory=factory) as connection:
        push_in(connection, "mail", ["x"], id="a", wake=True)
        with pytest.raises(QueueFull):
            push_in(connection, "mail", ["x"] * 3)
    async with await psycopg.AsyncConnection.connect(dsn(url), row_factory=factory) as connection:
        await push_in_async(connection, "mail", ["x"], id="b", wake=True)
    await store.reap()
    assert [count.ready for count in await store.counts([MAIL])] == [2]


async def test_the_examples_of_the_docs_run(store_kind: str, store: Store, url: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "stores.md").read_text()
    kind = "mysql" if store_kind == "mysql" else "postgresql"
    examples = re.findall(rf"```python {kind}\n(.*?)```", page, re.DOTALL)
    with transaction(url) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS orders (id integer)")
        cursor.execute("DELETE FROM orders")
    for code in examples:
        given = {**os.environ, "DATABASE_URL": dsn(url)}
        await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], env=given, check=True, timeout=120)
    [pushed] = (await store.reap()).pushed.values()
    orders = range(1, len(examples) + 1)
    assert sorted(job.body for request, _ in pushed for job in request.jobs) == [
        b'{"order":%d}' % one for one in orders
    ]


# --- on MariaDB


@on_mysql
async def test_tables_in_another_database(store: Store, mysql_server: MysqlServer) -> None:
    with mysql_server.root() as connection:
        push_in(connection, "mail", ["x"], id="a", schema="duetime", prefix=PREFIX)
    await store.reap()
    assert [count.ready for count in await store.counts([MAIL])] == [1]


@on_mysql
async def test_the_rights_of_the_docs_are_enough(store: Store, url: str, mysql_server: MysqlServer) -> None:
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
        with connect(url.replace("duetime:", "shop:")) as connection:
            push_in(connection, "mail", ["x"])
            connection.commit()
            mysql_server.administer(f"GRANT INSERT ON duetime.{for_wake} TO shop@'%'")
            push_in(connection, "mail", ["x"], wake=True)
            connection.commit()
    finally:
        mysql_server.administer("DROP USER shop@'%'")
    await store.reap()
    assert [count.ready for count in await store.counts([MAIL])] == [2]


@on_mysql
@pytest.mark.parametrize(("level", "waits"), [("REPEATABLE READ", False), ("SERIALIZABLE", True)])
async def test_only_a_serializable_transaction_holds_the_queue(
    level: str, waits: bool, store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """InnoDB locks every row that such a transaction reads; the docs say so."""
    monkeypatch.setattr(threads, "MAX_TRIES", 1)
    await store.push(MAIL, [Push([NewJob("a", b"")])])
    with connect(url) as connection:
        connection.cursor().execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
        connection.begin()
        push_in(connection, "mail", ["x"], id="b")
        with pytest.raises(StoreUnavailable, match="Lock wait") if waits else nullcontext():
            await store.push(MAIL, [Push([NewJob("c", b"")])])
        connection.commit()


@pytest.mark.store_kind("mysql")
async def test_a_body_that_the_server_could_not_import_is_refused_immediately(
    start_mysql: Callable[..., MysqlServer],
) -> None:
    """A server writes bodies in hexadecimal: one above half a packet could be inserted by some drivers, and never be
    moved into its queue.
    """
    url = start_mysql(max_allowed_packet="1M").url
    store = await open_store(url)
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
