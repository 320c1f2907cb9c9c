"""`push_in`: jobs that exist if and only if another program's transaction commits, with each kind of connection."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
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
    TopicOffline,
)
from duetime.model.job import Event, IfExists, NewJob, Priority
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, RulesChange
from duetime.stores.postgres import connection as connection_settings
from duetime.stores.postgres.store import PostgresStore

pytestmark = pytest.mark.store_kind("postgres")

MAIL = Queue("default", "mail")


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    opened = await PostgresStore.open(postgres_url)
    yield opened
    await opened.close()


def dsn(url: str) -> str:
    return url.partition("?")[0]


def by_psycopg(url: str, job_id: str, commit: bool) -> None:
    with psycopg.connect(dsn(url), row_factory=dict_row) as connection:
        assert push_in(connection, "mail", ["body"], id=job_id) == [job_id]
        if not commit:
            connection.rollback()


def by_psycopg_async(url: str, job_id: str, commit: bool) -> None:
    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(dsn(url)) as connection:
            assert await push_in_async(connection, "mail", ["body"], id=job_id) == [job_id]
            if not commit:
                await connection.rollback()

    asyncio.run(run())


@contextmanager
def sqlalchemy_engine(url: str) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(dsn(url).replace("postgresql", "postgresql+psycopg"))
    yield engine
    engine.dispose()


def by_sqlalchemy(url: str, job_id: str, commit: bool) -> None:
    with sqlalchemy_engine(url) as engine, engine.connect() as connection:
        push_in(connection, "mail", ["body"], id=job_id)
        if commit:
            connection.commit()


def by_sqlalchemy_session(url: str, job_id: str, commit: bool) -> None:
    with sqlalchemy_engine(url) as engine, Session(engine) as session:
        push_in(session, "mail", ["body"], id=job_id)
        if commit:
            session.commit()


def by_sqlalchemy_async(url: str, job_id: str, commit: bool) -> None:
    async def run() -> None:
        engine = create_async_engine(dsn(url).replace("postgresql", "postgresql+psycopg"))
        async with engine.connect() as connection:
            await push_in_async(connection, "mail", ["body"], id=job_id)
            if commit:
                await connection.commit()
        await engine.dispose()

    asyncio.run(run())


def by_sqlalchemy_async_session(url: str, job_id: str, commit: bool) -> None:
    async def run() -> None:
        engine = create_async_engine(dsn(url).replace("postgresql", "postgresql+psycopg"))
        async with AsyncSession(engine) as session:
            await push_in_async(session, "mail", ["body"], id=job_id)
            if commit:
                await session.commit()
        await engine.dispose()

    asyncio.run(run())


DJANGO = """
import os
from django.conf import settings
from django.db import connection, transaction
from duetime import push_in

settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **eval(os.environ["DATABASE"])}})
with transaction.atomic():
    push_in(connection, "mail", ["body"], id=os.environ["JOB"])
    transaction.set_rollback(os.environ["COMMIT"] == "no")
connection.close()
"""
"""In a process of its own: Django can be configured only once."""


def by_django(url: str, job_id: str, commit: bool) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(dsn(url))
    database = {"HOST": parts["host"], "PORT": parts["port"], "NAME": parts["dbname"], "USER": parts["user"]}
    given = {"DATABASE": repr(database), "JOB": job_id, "COMMIT": "yes" if commit else "no"}
    subprocess.run([sys.executable, "-c", DJANGO], env={**os.environ, **given}, check=True, timeout=120)


WAYS = [
    by_psycopg,
    by_psycopg_async,
    by_sqlalchemy,
    by_sqlalchemy_session,
    by_sqlalchemy_async,
    by_sqlalchemy_async_session,
    by_django,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_a_job_exists_if_and_only_if_its_transaction_commits(
    way: Callable[[str, str, bool], None], store: PostgresStore, postgres_url: str
) -> None:
    await asyncio.to_thread(way, postgres_url, "undone", False)
    await asyncio.to_thread(way, postgres_url, "done", True)
    [[(request, answer)]] = (await store.reap()).pushed.values()
    assert [job.id for job in request.jobs] == [moved.id for moved in answer.jobs] == ["done"]
    [deliveries] = (await store.reserve(MAIL, [Ask(5, 1_000)])).deliveries
    assert [(delivery.lease.id, delivery.body) for delivery in deliveries] == [("done", b"body")]
    assert (await store.reap()).pushed == {}


async def test_what_a_job_is_given_arrives(store: PostgresStore, postgres_url: str) -> None:
    job = NewJob(
        "a",
        b"\x00\xff",
        delay_ms=3_600_000,
        ttl_ms=7_200_000,
        tries=3,
        priority=Priority.HIGH,
        attributes={"trace": "ü"},
    )
    with psycopg.connect(dsn(postgres_url)) as connection:
        push_in(connection, "mail", [job, NewJob("b", b"", due_at=32_503_680_000_000)])
    await store.reap()
    first, second = await store.get(MAIL, ["a", "b"])
    assert first is not None
    assert second is not None
    assert (first.body, first.tries, first.priority, first.attributes) == (
        b"\x00\xff",
        3,
        Priority.HIGH,
        {"trace": "ü"},
    )
    assert first.expires_at - first.due_at >= 3_600_000
    assert second.due_at == 32_503_680_000_000
    assert list(await store.check()) == []


async def test_a_job_that_exists_is_kept_or_replaced(store: PostgresStore, postgres_url: str) -> None:
    await store.push(MAIL, [Push([NewJob("a", b"old"), NewJob("b", b"old")])])
    with psycopg.connect(dsn(postgres_url)) as connection:
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
async def test_what_a_push_refuses_is_refused(
    problem: type[Exception], body: str, options: dict[str, Any], store: PostgresStore, postgres_url: str
) -> None:
    await store.configure(MAIL, RulesChange(max_body=10))
    with psycopg.connect(dsn(postgres_url)) as connection, pytest.raises(problem):
        push_in(connection, "mail", [body], **options)
    assert (await store.reap()).pushed == {}


async def test_a_full_queue_refuses_but_what_was_committed_before_stays(
    store: PostgresStore, postgres_url: str
) -> None:
    await store.configure(MAIL, RulesChange(max_jobs=2))
    with psycopg.connect(dsn(postgres_url)) as connection:
        push_in(connection, "mail", ["1", "2"])
    await store.push(MAIL, [Push([NewJob("a", b""), NewJob("b", b"")])])
    await store.reap()
    assert [count.ready for count in await store.counts([MAIL])] == [4]
    with psycopg.connect(dsn(postgres_url)) as connection, pytest.raises(QueueFull):
        push_in(connection, "mail", ["3"])


async def test_an_offline_queue_refuses_but_what_was_committed_before_stays(
    store: PostgresStore, postgres_url: str
) -> None:
    with psycopg.connect(dsn(postgres_url)) as connection:
        push_in(connection, "mail", ["1"])
    await store.configure(MAIL, RulesChange(offline=True, kept=True))
    await store.reap()
    assert [count.ready for count in await store.counts([MAIL])] == [1]
    with psycopg.connect(dsn(postgres_url)) as connection, pytest.raises(TopicOffline):
        push_in(connection, "mail", ["2"])


async def test_processes_that_reap_at_once_take_each_job_once(store: PostgresStore, postgres_url: str) -> None:
    others = [await PostgresStore.open(postgres_url) for _ in range(2)]
    with psycopg.connect(dsn(postgres_url)) as connection:
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


async def test_a_queue_that_somebody_holds_keeps_no_other_waiting(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection_settings._SESSION, "lock_timeout", "100ms")
    store, others = await PostgresStore.open(postgres_url), {Queue("default", name) for name in "abcd"}
    for queue in (MAIL, *others):
        await store.push(queue, [Push([NewJob("here", b"")])])
    with psycopg.connect(dsn(postgres_url)) as connection:
        for queue in (MAIL, *others):
            push_in(connection, queue.name, ["x"])
    with psycopg.connect(dsn(postgres_url)) as holder:
        holder.execute("SELECT 1 FROM duetime.queues WHERE name = 'mail' FOR UPDATE")
        assert (await store.reap()).pushed.keys() == others
    assert (await store.reap()).pushed.keys() == {MAIL}
    await store.close()


async def test_mistakes_are_named_and_push_nothing(store: PostgresStore, postgres_url: str) -> None:
    with psycopg.connect(dsn(postgres_url)) as connection:
        for body in ("text", b"bytes", {"order": 1}):
            with pytest.raises(InvalidRequest, match="a list of one"):
                push_in(connection, "mail", body)
        with pytest.raises(InvalidRequest, match="keep, replace or error"):
            push_in(connection, "mail", ["x"], if_exists="kepe")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match=r"use push_in\("):
            await push_in_async(connection, "mail", ["x"])
    async with await psycopg.AsyncConnection.connect(dsn(postgres_url)) as connection:
        with pytest.raises(InvalidRequest, match=r"await push_in_async\("):
            push_in(connection, "mail", ["x"])
    assert (await store.reap()).pushed == {}


def test_a_connection_that_nobody_knows() -> None:
    with pytest.raises(InvalidRequest, match="does not know connections of builtins"):
        push_in(object(), "mail", ["x"])


@pytest.mark.parametrize("wake", [False, True])
async def test_a_waiting_consumer_gets_the_job(wake: bool, store: PostgresStore, postgres_url: str) -> None:
    async with Engine(store) as engine:
        waiting = asyncio.create_task(engine.reserve([MAIL], wait_ms=60_000))
        with psycopg.connect(dsn(postgres_url)) as connection:
            push_in(connection, "mail", ["x"], id="a", wake=wake)
        [delivery] = await waiting
        assert delivery.lease.id == "a"


async def test_a_job_is_on_record_before_it_is_delivered(
    store: PostgresStore, postgres_url: str, tmp_path: Path
) -> None:
    async with (
        Journal(JournalOptions(tmp_path, reserve=0)) as journal,
        Engine(store, recorders=await open_journal_recorder(store, journal, "default")) as engine,
    ):
        with psycopg.connect(dsn(postgres_url)) as connection:
            push_in(connection, "mail", ["text"], id="a")
        [delivery] = await engine.reserve([MAIL], wait_ms=60_000)
        await engine.ack([delivery.lease])
    entries = [item for item in read_journal(tmp_path) if isinstance(item, Entry) and item.id == "a"]
    assert [entry.event for entry in entries] == [Event.ACCEPTED, Event.DELIVERED, Event.ACKED]


class OwnRow(NamedTuple):
    """A row of the caller's own statements, which has none of the columns that push_in reads."""

    order: int


@pytest.mark.parametrize("factory", [tuple_row, dict_row, namedtuple_row, scalar_row, class_row(OwnRow)])
async def test_rows_of_any_shape(factory: Any, store: PostgresStore, postgres_url: str) -> None:
    await store.configure(MAIL, RulesChange(max_jobs=2))
    with psycopg.connect(dsn(postgres_url), row_factory=factory) as connection:
        push_in(connection, "mail", ["x"], id="a", wake=True)
        with pytest.raises(QueueFull):
            push_in(connection, "mail", ["x"] * 3)
    async with await psycopg.AsyncConnection.connect(dsn(postgres_url), row_factory=factory) as connection:
        await push_in_async(connection, "mail", ["x"], id="b", wake=True)
    await store.reap()
    assert [count.ready for count in await store.counts([MAIL])] == [2]


def examples() -> list[str]:
    page = (Path(__file__).parents[2] / "docs" / "stores.md").read_text()
    return re.findall(r"```python postgresql\n(.*?)```", page, re.DOTALL)


async def test_the_examples_of_the_docs_run(store: PostgresStore, postgres_url: str) -> None:
    with psycopg.connect(dsn(postgres_url), autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id integer); DELETE FROM orders")
    for code in examples():
        given = {**os.environ, "DATABASE_URL": dsn(postgres_url)}
        await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], env=given, check=True, timeout=120)
    [pushed] = (await store.reap()).pushed.values()
    assert sorted(job.body for request, _ in pushed for job in request.jobs) == [
        b'{"order":1}',
        b'{"order":2}',
        b'{"order":3}',
        b'{"order":4}',
    ]
