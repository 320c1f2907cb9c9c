"""What a SQLite store keeps in memory: its page caches, which are bounded, and nothing that grows with its work."""

import _sqlite3
import ctypes
from pathlib import Path

import pytest

from duetime.model.job import NewJob, State
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push
from duetime.stores.sqlite import connection
from duetime.stores.sqlite.step import SqliteStep
from duetime.stores.sqlite.store import SqliteStore

QUEUE = Queue("shop", "mail")
KIB = 1024
SLACK = 1024 * KIB
"""Statements, and the pages of a transaction under way."""


def sqlite_bytes() -> int:
    """What SQLite holds in this process, for all connections."""
    # A module that is built into the interpreter has no file.
    library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
    library.sqlite3_memory_used.restype = ctypes.c_int64
    return int(library.sqlite3_memory_used())


async def test_memory_is_bounded_by_the_page_caches_however_much_passes_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: int
) -> None:
    monkeypatch.setattr(connection, "WRITER_CACHE_KIB", 2048)
    monkeypatch.setattr(connection, "READER_CACHE_KIB", 512)
    before = sqlite_bytes()
    store = await SqliteStore.open(tmp_path / "jobs.db", synchronous="OFF")
    # Given a file that is several times as large as the caches
    for batch in range(100):
        waiting = [NewJob(f"w{batch}-{n}", b"x" * 1000, delay_ms=3_600_000) for n in range(100)]
        await store.push(QUEUE, [Push(waiting)])

    most = 0
    for batch in range(100 * scale):
        await store.push(QUEUE, [Push([NewJob(f"j{batch}-{n}", b"x" * 1000) for n in range(20)])])
        [found] = (await store.reserve(QUEUE, [Ask(20, 60_000)])).deliveries
        await store.ack(QUEUE, [delivery.lease for delivery in found])
        await store.list_jobs(QUEUE, State.DELAYED, limit=100)
        await store.reap()
        most = max(most, sqlite_bytes() - before)
    assert 2048 * KIB < most < (2048 + 512) * KIB + SLACK

    # Then all that is more than at the start is pages, which SQLite lets go when it is told to
    def shrink(step: SqliteStep) -> None:
        step.connection.execute("PRAGMA shrink_memory")

    await store._write(shrink)
    await store._read(shrink)
    assert sqlite_bytes() - before < SLACK
    await store.close()
    assert sqlite_bytes() - before < SLACK // 8
