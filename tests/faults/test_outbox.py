"""Jobs of `push_in` beside rows that are no jobs, held queues, processes that die and clocks that step back."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from duetime import push_in
from duetime.engine import Engine
from duetime.journal.events import REPEATED, Entry
from duetime.journal.journal import Journal
from duetime.journal.options import JournalOptions
from duetime.journal.reader import read_journal
from duetime.journal.recorder import open_journal_recorder
from duetime.model.clock import ManualClock
from duetime.model.job import Counts, Event, NewJob
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Reaped, Store
from duetime.stores.mysql import connection as mysql_connection
from duetime.stores.mysql.connection import MysqlAddress
from duetime.stores.open import open_store
from duetime.stores.postgres import connection as postgres_connection
from duetime.stores.sql import outbox, threads
from duetime.stores.sql.step import Step
from tests.plugins.until import until

KINDS = [pytest.param(kind, marks=pytest.mark.store_kind(kind)) for kind in ("postgres", "mysql")]
MAIL, OTHER = Queue("default", "mail"), Queue("default", "other")
COLUMNS = ("namespace", "queue", "id", "if_exists", "priority", "due_at", "ttl_ms", "tries", "attributes", "body")
ROW: dict[str, Any] = {
    "namespace": "default",
    "queue": "mail",
    "id": "bad",
    "if_exists": "keep",
    "priority": 2,
    "due_at": 0,
    "ttl_ms": 0,
    "tries": 5,
    "attributes": None,
    "body": b"x",
}


class Database:
    """The database of a store, as another program sees it."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind, self.url = kind, url

    @contextmanager
    def connection(self) -> Iterator[Any]:
        if self.kind == "postgres":
            with closing(psycopg.connect(self.url.partition("?")[0])) as connection:
                yield connection
        else:
            with closing(pymysql.connect(**MysqlAddress.parse(self.url).options)) as connection:
                yield connection

    def table(self, name: str) -> str:
        return f"duetime.{name}" if self.kind == "postgres" else f"duetime_{name}"

    def push_in(self, queue: Queue, bodies: list[str], **options: Any) -> list[str]:
        with self.connection() as connection:
            ids = push_in(connection, queue.name, bodies, **options)
            connection.commit()
        return ids

    def insert_row(self, **columns: Any) -> None:
        values = {**ROW, **columns}
        with self.connection() as connection:
            connection.cursor().execute(
                f"INSERT INTO {self.table('outbox')} ({', '.join(COLUMNS)}) VALUES ({', '.join(['%s'] * 10)})",
                [values[name] for name in COLUMNS],
            )
            connection.commit()

    def rows(self) -> list[tuple[Any, ...]]:
        with self.connection() as connection:
            cursor = connection.cursor()
            cursor.execute(f"SELECT namespace, queue, id FROM {self.table('outbox')} ORDER BY number")
            return [tuple(row) for row in cursor.fetchall()]


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest) -> Database:
    return Database(request.param, str(request.getfixturevalue(f"{request.param}_url")))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(database: Database, clock: ManualClock) -> AsyncIterator[Store]:
    opened = await open_store(database.url, clock=clock)
    yield opened
    await opened.close()


def taken(reaped: Reaped) -> dict[Queue, list[str]]:
    return {
        queue: [moved.id for _, answer in pushed for moved in answer.jobs] for queue, pushed in reaped.pushed.items()
    }


BAD_ROWS: dict[str, dict[str, Any]] = {
    "priority": {"priority": 9},
    "if_exists": {"if_exists": "error"},
    "another word": {"if_exists": "merge"},
    "an id of two lines": {"id": "a\nb"},
    "no id": {"id": ""},
    "a long id": {"id": "x" * 200},
    "a large body": {"body": b"x" * 3_000_000},
    "due before 1970": {"due_at": -5},
    "due after 9999": {"due_at": 2**62},
    "ttl": {"ttl_ms": 2**63 - 1},
    "tries": {"tries": -1},
    "attributes": {"attributes": '{"nul": "a\\u0000b"}'},
    "namespace": {"namespace": "a b"},
    "queue": {"queue": "mail/x"},
    "no queue": {"queue": ""},
}


@pytest.mark.parametrize("columns", BAD_ROWS.values(), ids=BAD_ROWS.keys())
async def test_a_row_that_is_no_job_is_set_aside_and_blocks_nothing(
    database: Database, store: Store, clock: ManualClock, columns: dict[str, Any]
) -> None:
    await store.push(OTHER, [Push([NewJob("leased", b"")])])
    await store.reserve(OTHER, [Ask(1, 10)])
    clock.advance("1s")
    database.insert_row(**columns)
    [good] = database.push_in(MAIL, ["good"])

    reaped = await store.reap()

    assert [moved.event for moved in reaped.moved[OTHER]] == [Event.LEASE_EXPIRED]
    assert taken(reaped) == {MAIL: [good]}
    row = {**ROW, **columns}
    assert database.rows() == [("", f"{row['namespace']}/{row['queue']}", row["id"])]
    assert (await store.reap()).pushed == {}
    [problem] = await store.check()
    assert "of outbox, is no job and was set aside" in problem


async def test_a_held_queue_with_many_jobs_keeps_no_other_waiting(
    database: Database, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(postgres_connection._SESSION, "lock_timeout", "100ms")
    monkeypatch.setitem(mysql_connection._MARIADB_SESSION, "innodb_lock_wait_timeout", 1)
    monkeypatch.setattr(threads, "MAX_TRIES", 1)
    await store.push(MAIL, [Push([NewJob("here", b"")])])
    database.push_in(MAIL, ["x"] * 150)
    [other] = database.push_in(OTHER, ["y"])
    impatient = await open_store(database.url)
    with database.connection() as holder:
        holder.cursor().execute(
            f"SELECT 1 FROM {database.table('queues')} WHERE namespace = 'default' AND name = 'mail' FOR UPDATE"
        )
        assert taken(await impatient.reap()) == {OTHER: [other]}
        assert taken(await impatient.reap()) == {}
        holder.rollback()
    assert len(taken(await impatient.reap())[MAIL]) == 100
    assert len(taken(await impatient.reap())[MAIL]) == 50
    await impatient.close()


async def test_jobs_whose_taker_died_are_told_again_and_once(
    database: Database, store: Store, clock: ManualClock
) -> None:
    """The process that took them moved them into the queue, and never said that they are on record."""
    ids = database.push_in(MAIL, ["x", "y"])
    first = await store.reap()
    assert taken(first) == {MAIL: ids}
    heir = await open_store(database.url, clock=clock)
    assert (await heir.reap()).pushed == {}  # the first process may still live

    clock.advance("31s")
    successor = await open_store(database.url, clock=clock)
    again = await successor.reap()
    assert taken(again) == {MAIL: ids}
    [(_, answer)] = again.pushed[MAIL]
    assert answer.repeated
    [(_, one), (_, other)] = first.pushed[MAIL]
    assert [moved.born for moved in answer.jobs] == [one.jobs[0].born, other.jobs[0].born]

    await successor.reap(recorded=again.receipts)
    last = await open_store(database.url, clock=clock)
    assert (await last.reap()).pushed == {}
    assert (await store.counts([MAIL]))[0] == Counts(ready=2, now=clock.now_ms())
    for opened in (heir, successor, last):
        await opened.close()


@pytest.fixture
def soon_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "LATE_MS", 500)
    monkeypatch.setattr(outbox, "RECEIPT_CHECK_S", 0.1)


@asynccontextmanager
async def journaled(database: Database, folder: Path) -> AsyncIterator[Engine]:
    store = await open_store(database.url)
    async with (
        Journal(JournalOptions(folder, reserve=0)) as journal,
        Engine(store, recorders=await open_journal_recorder(store, journal, "default")) as engine,
    ):
        yield engine
    await store.close()


def begun(folder: Path) -> dict[str, Entry]:
    """The entries that tell of an import again, by id."""
    entries = (item for item in read_journal(folder) if isinstance(item, Entry))
    return {entry.id: entry for entry in entries if entry.reason == REPEATED}


@pytest.mark.usefixtures("soon_abandoned")
async def test_jobs_whose_taker_died_are_in_the_journal_however_large_they_are(
    database: Database, tmp_path: Path
) -> None:
    dies = await open_store(database.url)
    bodies = ["x" * 1_000_000] * 6
    job_ids = [job_id for body in bodies for job_id in database.push_in(MAIL, [body])]
    assert taken(await dies.reap()) == {MAIL: job_ids}
    await dies.close()

    async with journaled(database, tmp_path):
        await until(lambda: len(begun(tmp_path)) == len(bodies))
    assert {entry.event for entry in begun(tmp_path).values()} == {Event.ACCEPTED}
    assert {entry.body for entry in begun(tmp_path).values()} == set(bodies)


@pytest.mark.usefixtures("soon_abandoned")
async def test_the_journal_knows_what_a_job_replaced_whose_taker_died(database: Database, tmp_path: Path) -> None:
    async with journaled(database, tmp_path) as engine:
        [old] = (await engine.push(MAIL, [NewJob("a", b"old")])).jobs
    dies = await open_store(database.url)
    database.push_in(MAIL, ["new"], id="a", if_exists="replace")
    assert taken(await dies.reap()) == {MAIL: ["a"]}
    await dies.close()

    async with journaled(database, tmp_path):
        await until(lambda: bool(begun(tmp_path)))
    told = begun(tmp_path)["a"]
    assert (told.event, told.was, told.body) == (Event.REPLACED, old.born, "new")
    assert told.born > old.born


@pytest.mark.usefixtures("soon_abandoned")
async def test_a_replacement_whose_taker_died_and_that_is_done_is_not_begun_again(
    database: Database, tmp_path: Path
) -> None:
    """Its body is gone with it: an entry without it would be of no use to anybody."""
    dies = await open_store(database.url)
    await dies.push(MAIL, [Push([NewJob("a", b"old")])])
    database.push_in(MAIL, ["new"], id="a", if_exists="replace")
    database.push_in(MAIL, ["other"], id="b")
    assert taken(await dies.reap()) == {MAIL: ["a", "b"]}
    await dies.cancel(MAIL, ["a"], finished=True)
    await dies.close()

    async with journaled(database, tmp_path):
        await until(lambda: bool(begun(tmp_path)))
    assert begun(tmp_path).keys() == {"b"}


async def test_a_receipt_that_cannot_be_read_blocks_no_jobs(
    database: Database, store: Store, clock: ManualClock
) -> None:
    with database.connection() as connection:
        connection.cursor().execute(
            f"INSERT INTO {database.table('marks')} (namespace, queue, name, digest, expires_at, answer) "
            "VALUES ('', 'push_in', 'x', %s, %s, %s)",
            (b"", clock.now_ms() + 86_400_000, b"nonsense"),
        )
        connection.commit()
    [job_id] = database.push_in(MAIL, ["x"])
    rounds = [taken(await store.reap()) for _ in range(2)]
    assert {MAIL: [job_id]} in rounds


async def test_a_job_is_not_lost_to_a_clock_that_steps_back(
    database: Database, store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ttl is as long as the delay, and the clock goes back between the look at the row and the push."""
    database.insert_row(id="a", due_at=clock.now_ms() + 10_000, ttl_ms=10_000)
    push = outbox.verbs.push

    def push_earlier(step: Step, *given: Any, **options: Any) -> Any:
        clock.set(clock.now_ms() - 3_000)
        return push(step, *given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(outbox.verbs, "push", push_earlier)
        assert (await store.reap()).pushed == {}
    assert [row[2] for row in database.rows()] == ["a"]
    assert taken(await store.reap()) == {MAIL: ["a"]}
    assert database.rows() == []


async def test_two_processes_take_replacements_in_their_order(
    database: Database, store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process reads the first row and is slow; the other one must not push the second row before it."""
    monkeypatch.setattr(outbox, "IMPORT_JOBS", 1)
    other = await open_store(database.url, clock=clock)
    await store.push(MAIL, [Push([NewJob("here", b"")])])
    for body in ("first", "second"):
        database.push_in(MAIL, [body], id="a", if_exists="replace")

    push, is_first = outbox.verbs.push, threading.Lock()

    def push_slowly(*given: Any, **options: Any) -> Any:
        if is_first.acquire(blocking=False):
            time.sleep(0.5)
        return push(*given, **options)

    monkeypatch.setattr(outbox.verbs, "push", push_slowly)
    await asyncio.gather(store.reap(), other.reap())
    await store.reap()
    [job] = await store.get(MAIL, ["a"])
    assert job is not None
    assert job.body == b"second"
    await other.close()
