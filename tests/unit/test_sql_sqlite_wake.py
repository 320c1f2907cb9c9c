"""A SQLite file is looked at for news only while somebody waits, and then no news is missed."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from duetime.engine import Engine, waiters
from duetime.engine.schedules import ScheduleRunner
from duetime.model.job import NewJob
from duetime.model.names import Queue
from duetime.stores.base import Push
from duetime.stores.sql import wake as wake_module
from duetime.stores.sqlite.store import SqliteStore
from duetime.stores.sqlite.wake import Mailboxes, Meta
from tests.plugins.until import until

QUEUE = Queue("shop", "mail")
LONG_S = 600.0


@pytest.fixture
async def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqliteStore]:
    """Nothing but the looks while somebody waits makes it hear of other processes."""
    monkeypatch.setattr(wake_module, "IDLE_POLL_S", LONG_S)
    monkeypatch.setattr(waiters, "CHECK_EVERY_S", LONG_S)
    opened = await SqliteStore.open(tmp_path / "jobs.db")
    yield opened
    await opened.close()


async def looks_only_while_somebody_waits(store: Any, look_once: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake_module, "AWAKE_S", 0.1)
    looks, once = list[float](), getattr(store._hub, look_once)

    async def look(*given: bool) -> Meta | None:
        looks.append(monotonic())
        return await once(*given)

    monkeypatch.setattr(store._hub, look_once, look)
    async with Engine(store) as engine:
        await until(lambda: looks and monotonic() - looks[-1] > 0.5)

        before = len(looks)
        consumer = asyncio.create_task(engine.reserve([QUEUE], wait_ms=600_000))
        await until(lambda: len(looks) > before)
        consumer.cancel()
        await until(lambda: monotonic() - looks[-1] > 0.5)

        before = len(looks)
        consumer = asyncio.create_task(engine.results(QUEUE, ["a"], wait_ms=600_000))
        await until(lambda: len(looks) > before)
        consumer.cancel()


async def test_a_file_is_looked_at_only_while_somebody_waits(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await looks_only_while_somebody_waits(store, "_read_meta", monkeypatch)


async def test_a_check_for_due_schedules_is_no_wait(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, look_once = list[bool](), store._hub._read_meta  # type: ignore[attr-defined]

    async def look(always: bool) -> Meta | None:
        looks.append(always)
        return await look_once(always)

    monkeypatch.setattr(store._hub, "_read_meta", look)
    async with Engine(store) as engine:
        await until(lambda: looks)
        before = len(looks)
        await ScheduleRunner().run_once(engine)
        await store.ping()  # on the thread that would have looked
        assert len(looks) == before
        await store.heads([QUEUE], waiting=True)
        await until(lambda: len(looks) > before)


async def test_a_consumer_hears_of_a_push_whose_datagram_was_lost(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake_module, "AWAKE_S", LONG_S)
    monkeypatch.setattr(Mailboxes, "send", lambda *_: None)
    other = await SqliteStore.open(tmp_path / "jobs.db")
    async with Engine(store) as engine:
        for number in range(20):
            consumer = asyncio.create_task(engine.reserve([QUEUE], wait_ms=600_000))
            for _ in range(number):  # the push meets the consumer at different moments
                await asyncio.sleep(0)
            await other.push(QUEUE, [Push([NewJob(f"{number}", b"")])])

            [delivery] = await consumer
            assert delivery.lease.id == f"{number}"
    await other.close()
