"""A SQLite file is looked at for news only while somebody waits, and then no news is missed."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest

from duetime.engine import Engine, waiters
from duetime.engine.schedules import ScheduleRunner
from duetime.model.clock import MAX_INSTANT, ManualClock
from duetime.model.job import NewJob
from duetime.model.names import Queue
from duetime.stores.base import Push, Wake
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

    async def look() -> Meta:
        looks.append(monotonic())
        return await once()

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


async def test_a_file_is_polled_only_while_a_consumer_waits(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await looks_only_while_somebody_waits(store, "_read_meta", monkeypatch)


async def test_a_check_for_due_schedules_is_no_wait(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake_module, "AWAKE_S", 0.1)
    looks, look_once = list[float](), store._hub._read_meta  # type: ignore[attr-defined]

    async def look() -> Meta:
        looks.append(monotonic())
        return await look_once()

    monkeypatch.setattr(store._hub, "_read_meta", look)
    async with Engine(store) as engine:
        await until(lambda: looks)
        before = len(looks)
        await ScheduleRunner().run_once(engine)
        await store.get(QUEUE, ["x"])  # on the thread that would have looked
        assert len(looks) == before
        for _ in range(2):  # the second time, the answer is known
            looks.clear()
            await store.heads([QUEUE], waiting=True)
            await until(lambda: looks)
            await until(lambda: monotonic() - looks[-1] > 0.5)


async def test_a_consumer_wakes_for_a_push_whose_datagram_was_lost(
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


@pytest.mark.parametrize("due_at", [-1, MAX_INSTANT + 1, 2**63])
async def test_a_datagram_with_an_impossible_time_is_ignored(store: SqliteStore, due_at: int) -> None:
    wakes = store.wakeups()
    assert await anext(wakes) == Wake()
    mailbox = mailbox_of(store)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for at in (due_at, 5):
            sender.sendto(msgspec.msgpack.encode([1, 0, [Wake(QUEUE, at)]]), mailbox)
    assert await anext(wakes) == Wake(QUEUE, 5)
    await wakes.aclose()  # type: ignore[attr-defined]


def mailbox_of(store: SqliteStore) -> str:
    [mailbox] = Path(f"{store._path}-wake").glob("*.sock")
    return str(mailbox)


async def test_answers_that_are_kept_are_those_of_the_last_commit(tmp_path: Path) -> None:
    """What is asked every second is read anew after a commit of this process or another one, and only then."""
    clock = ManualClock(1_000_000)
    here = await SqliteStore.open(tmp_path / "jobs.db", clock=clock)
    other = await SqliteStore.open(tmp_path / "jobs.db", clock=clock)
    for writer in (here, other, here, other):
        await here.reap()  # the first one writes, and the next ones only read
        for _ in range(2):
            assert await here.heads([QUEUE]) == [None]
            assert not (await here.reap()).moved
            before = await here.registry.changes(0)
        at = clock.now_ms()
        await writer.push(QUEUE, [Push([NewJob("a", b"", ttl_ms=50)])])
        await writer.registry.put("kind", "key", b"%d" % at)
        for _ in range(2):
            assert await here.heads([QUEUE]) == [at]
            assert (await here.reap()).next_at == at + 51
            after = await here.registry.changes(0)
            assert (after.version, after.records[-1].value) == (before.version + 1, b"%d" % at)
            assert (await here.registry.changes(after.version)).records == []
        clock.advance(60)
        assert list((await here.reap()).moved) == [QUEUE]
    await other.close()
    await here.close()


async def test_an_idle_engine_wakes_no_thread(tmp_path: Path) -> None:
    others = set(threading.enumerate())  # other tests of this process may have stores of their own
    store = await SqliteStore.open(tmp_path / "jobs.db")
    async with Engine(store) as engine:
        await engine.push(QUEUE, [NewJob("a", b"", delay_ms=3_600_000)])
        threads = [
            one.native_id
            for one in threading.enumerate()
            if one not in others and one.name.startswith("duetime-sqlite")
        ]
        assert len(threads) >= 2
        for _ in range(8):
            if await no_thread_wakes(threads, 2.2):
                break
        else:
            pytest.fail("a thread of the store woke in each of 8 intervals")
    await store.close()


async def no_thread_wakes(threads: list[int | None], seconds: float) -> bool:
    before = [context_switches(thread) for thread in threads]
    await asyncio.sleep(seconds)
    return before == [context_switches(thread) for thread in threads]


def context_switches(thread: int | None) -> int:
    status = Path(f"/proc/self/task/{thread}/status").read_text()
    [count] = [line for line in status.splitlines() if line.startswith("voluntary_ctxt_switches:")]
    return int(count.split()[1])
