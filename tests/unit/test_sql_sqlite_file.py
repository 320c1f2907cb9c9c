"""What can be wrong with a file, and how the store says so: full, locked, damaged, foreign, out of reach."""

import asyncio
import contextlib
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from duetime.model.errors import InvalidSettings, StoreDamaged, StoreFull, StoreUnavailable
from duetime.model.job import Event, NewJob
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed, Store
from duetime.stores.open import open_store
from duetime.stores.sql.queries import load_migrations
from duetime.stores.sqlite import connection as file_connection
from duetime.stores.sqlite.step import SqliteStep
from duetime.stores.sqlite.store import SqliteStore

QUEUE = Queue("shop", "mail")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(path, lock_timeout_s=0.05)
    yield opened
    await opened.close()


@contextlib.contextmanager
def raw(path: Path) -> Iterator[sqlite3.Connection]:
    """The file as another program sees it."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=0)
    yield connection
    connection.close()


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def overwrite(path: Path, start: int, data: bytes) -> None:
    path.touch()
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data)


async def push(store: Store, *ids: str, body: bytes = b"hello") -> object:
    [answer] = await store.push(QUEUE, [Push([NewJob(job_id, body) for job_id in ids])])
    return answer


# --- opening


async def test_the_log_is_write_ahead_and_fully_synced_by_default(store: SqliteStore, path: Path) -> None:
    def settings(step: SqliteStep) -> tuple[str, int]:
        (mode,) = step.connection.execute("PRAGMA journal_mode").fetchone()
        (synchronous,) = step.connection.execute("PRAGMA synchronous").fetchone()
        return mode, synchronous

    assert await store._write(settings) == ("wal", 2)
    relaxed = await SqliteStore.open(path, synchronous="normal")
    assert await relaxed._write(settings) == ("wal", 1)
    await relaxed.close()


async def test_an_unknown_word_for_synchronous_is_refused(path: Path) -> None:
    with pytest.raises(InvalidSettings, match="synchronous must be one of OFF, NORMAL, FULL, EXTRA, got 'maybe'"):
        await SqliteStore.open(path, synchronous="maybe")
    assert size(path) == 0


@pytest.mark.parametrize("place", ["nowhere/jobs.db", ""], ids=["no folder", "a folder"])
async def test_a_path_that_cannot_be_a_file(tmp_path: Path, place: str) -> None:
    with pytest.raises(StoreUnavailable):
        await SqliteStore.open(tmp_path / place)


async def test_a_folder_that_goes_away_is_an_outage(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    store = await SqliteStore.open(folder / "jobs.db")
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreUnavailable):
        await store.ping()
    await store.close()


async def test_something_that_is_no_database(path: Path) -> None:
    overwrite(path, 0, b"this is not a database, and it is longer than a header" * 100)
    with pytest.raises(StoreDamaged):
        await SqliteStore.open(path)


async def test_a_database_of_another_program_is_refused(path: Path) -> None:
    with raw(path) as connection:
        connection.execute("CREATE TABLE photos (name TEXT)")
    with pytest.raises(StoreDamaged, match="not Duetime's: it has the tables photos"):
        await SqliteStore.open(path)
    with raw(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("photos",)]


async def test_a_file_that_a_newer_release_has_upgraded(store: SqliteStore, path: Path) -> None:
    with raw(path) as connection:
        connection.execute("INSERT INTO migrations VALUES (9999, '9999_future', 0)")
    with pytest.raises(StoreUnavailable, match=r"newer Duetime .* \(migration 9999\)"):
        await SqliteStore.open(path)


async def test_an_upgrade_applies_what_is_missing(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = {**load_migrations("sqlite"), 2: ("0002_later", "ALTER TABLE discarded ADD COLUMN later INTEGER;\n")}
    monkeypatch.setattr(file_connection, "load_migrations", lambda dialect: both)
    assert [migration.name for migration in file_connection.pending(str(path))] == ["0002_later"]
    await (await SqliteStore.open(path)).close()
    assert file_connection.pending(str(path)) == []
    with raw(path) as database:
        assert database.execute("SELECT later FROM discarded").fetchall() == []


async def test_overwritten_pages_are_damage(path: Path) -> None:
    store = await SqliteStore.open(path)
    for batch in range(20):
        await push(store, *[f"{batch}-{n}" for n in range(100)], body=b"x" * 100)
    await store.close()
    overwrite(path, 4096 * 32, b"\xee" * (size(path) - 4096 * 32))

    again = await SqliteStore.open(path)
    with pytest.raises(StoreDamaged):
        await again.reserve(QUEUE, [Ask(500, 60_000)])
    assert await again.check() != []
    await again.close()


# --- locked


async def test_a_lock_that_stays_is_store_unavailable_with_nothing_done(store: SqliteStore, path: Path) -> None:
    with raw(path) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable) as raised:
            await push(store, "a")
        assert not raised.value.outcome_unknown
        assert await store.get(QUEUE, ["a"]) == [None]
        other.execute("ROLLBACK")
    assert isinstance(await push(store, "a"), Pushed)


async def test_a_lock_that_goes_is_only_a_wait(path: Path) -> None:
    store = await SqliteStore.open(path, lock_timeout_s=30)
    with raw(path) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(push(store, "a"))
        assert await store.get(QUEUE, ["a"]) == [None]  # reading goes on meanwhile
        assert not waiting.done()
        other.execute("ROLLBACK")
    assert isinstance(await waiting, Pushed)
    await store.close()


async def test_an_exclusively_locked_file_can_be_opened_after_the_lock_ends(path: Path) -> None:
    """As the first and the last connection to a file do, for a moment."""
    await (await SqliteStore.open(path)).close()
    with raw(path) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailable, match="locked"):
            await SqliteStore.open(path, lock_timeout_s=0.05)
        opening = asyncio.create_task(SqliteStore.open(path, lock_timeout_s=30))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(opening), 0.05)
        other.execute("ROLLBACK")
    store = await opening
    assert isinstance(await push(store, "a"), Pushed)
    await store.close()


# --- full


async def fill_up(store: SqliteStore) -> None:
    """Let the file grow by a few pages more and no further."""

    def limit(step: SqliteStep) -> None:
        (pages,) = step.connection.execute("PRAGMA page_count").fetchone()
        step.connection.execute(f"PRAGMA max_page_count = {pages + 10}")

    await store._write(limit)


async def test_a_full_file_refuses_only_changes_that_need_room(store: SqliteStore) -> None:
    await push(store, "early")
    await fill_up(store)
    large, small = Push([NewJob("large", b"x" * 200_000)]), Push([NewJob("small", b"x")])

    refused, accepted = await store.push(QUEUE, [large, small])
    assert isinstance(refused, StoreFull)
    assert isinstance(accepted, Pushed)

    reserved = await store.reserve(QUEUE, [Ask(10, 60_000)])
    leases = [delivery.lease for delivery in reserved.deliveries[0]]
    assert [lease.id for lease in leases] == ["early", "small"]
    assert [moved.event for moved in await store.ack(QUEUE, leases) if moved] == [Event.ACKED, Event.ACKED]
    assert await store.check() == []


async def test_callers_in_one_transaction_with_one_that_has_no_room(store: SqliteStore) -> None:
    await push(store, "early")
    await fill_up(store)
    answers = await asyncio.gather(
        push(store, "one"), push(store, "large", body=b"x" * 200_000), push(store, "two"), store.counts([QUEUE])
    )
    assert [type(answer) for answer in answers[:3]] == [Pushed, StoreFull, Pushed]
    [counts] = await store.counts([QUEUE])
    assert counts.ready == 3
    assert await store.check() == []


async def test_pushes_leave_the_reserve_free(path: Path) -> None:
    disk = shutil.disk_usage(path.parent)
    store = await open_store(f"sqlite://{path}?reserve=0")
    assert isinstance(await push(store, "a"), Pushed)
    await store.close()
    assert not reserve_file(path).exists()

    store = await open_store(f"sqlite://{path}?reserve={disk.total}")
    refused = await push(store, "b")
    assert isinstance(refused, StoreFull)
    assert refused.fields["reserve"] == disk.total
    [[delivery]] = (await store.reserve(QUEUE, [Ask(1, 60_000)])).deliveries
    assert [moved.event for moved in await store.ack(QUEUE, [delivery.lease]) if moved] == [Event.ACKED]
    await store.close()


async def test_the_reserve_file_is_as_large_as_the_log_and_comes_again(path: Path) -> None:
    store = await SqliteStore.open(path, reserve=1_048_576)
    assert isinstance(await push(store, "a"), Pushed)
    assert reserve_file(path).stat().st_size >= 131_072
    for job_id in "bc":
        assert isinstance(await push(store, job_id, body=b"x" * 400_000), Pushed)
    assert reserve_file(path).stat().st_size == 262_144  # a quarter of the reserve
    assert different_blocks(reserve_file(path)) == 64, "so that no file system keeps two as one"
    reserve_file(path).unlink()
    assert isinstance(await push(store, "d"), Pushed)
    assert reserve_file(path).stat().st_size == 262_144
    await store.close()


async def test_most_pushes_do_not_check_a_large_disk(path: Path) -> None:
    store = await SqliteStore.open(path, reserve=64 * 1_048_576)
    assert isinstance(await push(store, "a"), Pushed)
    reserve_file(path).unlink()
    for number in range(101):
        assert isinstance(await push(store, str(number)), Pushed)
    assert reserve_file(path).exists()
    await store.close()


async def test_a_reserve_is_a_size(path: Path) -> None:
    with pytest.raises(InvalidSettings, match="reserve must be a size"):
        await open_store(f"sqlite://{path}?reserve=much")


def different_blocks(path: Path) -> int:
    data = path.read_bytes()
    return len({data[at : at + 4096] for at in range(0, len(data), 4096)})


def reserve_file(path: Path) -> Path:
    return path.with_name(path.name + "-reserve")
