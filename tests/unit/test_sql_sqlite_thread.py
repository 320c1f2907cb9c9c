"""The threads behind the SQLite store: shared transactions, failures that stay their own, callers that go away."""

import asyncio
import fcntl
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from duetime.model.clock import SystemClock
from duetime.model.errors import LeaseLost, StoreDamaged, StoreUnavailable
from duetime.model.job import Lease, NewJob
from duetime.model.names import Queue
from duetime.stores.base import Push, Pushed, Wake
from duetime.stores.sql.threads import BIG_JOBS, ConnectionThreads
from duetime.stores.sqlite import store as store_module
from duetime.stores.sqlite.connection import WriteLock, connect, prepare_file, retry_while_busy
from duetime.stores.sqlite.disk import BackgroundThread, DiskReserve
from duetime.stores.sqlite.step import SqliteStep
from duetime.stores.sqlite.store import SqliteLink, SqliteStore

QUEUE = Queue("shop", "mail")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(tmp_path / "jobs.db")
    yield opened
    await opened.close()


class Gate:
    """An operation that holds the writer until it is opened."""

    def __init__(self) -> None:
        self.entered, self._opened = threading.Event(), threading.Event()

    def __call__(self, step: SqliteStep) -> str:
        self.entered.set()
        assert self._opened.wait(30)
        return "through"

    def open(self) -> None:
        self._opened.set()


async def hold(store: SqliteStore) -> tuple[Gate, "asyncio.Task[str]"]:
    gate = Gate()
    task = asyncio.create_task(store._write(gate))
    await asyncio.to_thread(gate.entered.wait, 30)
    return gate, task


async def push(store: SqliteStore, job_id: str, queue: Queue = QUEUE) -> Pushed:
    [answer] = await store.push(queue, [Push([NewJob(job_id, b"x")])])
    assert isinstance(answer, Pushed)
    return answer


async def announcing_transactions(store: SqliteStore) -> int:
    return (await store._read_meta()).wakes


async def test_concurrent_callers_share_one_transaction(store: SqliteStore) -> None:
    before = await announcing_transactions(store)
    gate, held = await hold(store)
    pushes = [asyncio.create_task(push(store, "a", Queue("shop", f"q{n}"))) for n in range(20)]
    await asyncio.sleep(0)
    gate.open()
    await asyncio.gather(held, *pushes)
    assert await announcing_transactions(store) == before + 1


async def test_an_operation_that_fails_takes_back_only_its_own(store: SqliteStore) -> None:
    def half_done(step: SqliteStep) -> None:
        step.connection.execute("INSERT INTO counters VALUES ('half', 1, 0)")
        step.wakes.append(Wake(QUEUE, 1))
        raise ZeroDivisionError

    gate, held = await hold(store)
    calls = [asyncio.create_task(call) for call in (push(store, "a"), store._write(half_done), push(store, "b"))]
    await asyncio.sleep(0)
    gate.open()
    first, failed, last = await asyncio.gather(*calls, return_exceptions=True)
    assert await held == "through"
    assert isinstance(first, Pushed)
    assert isinstance(failed, ZeroDivisionError)
    assert isinstance(last, Pushed)
    assert await store.registry.counters() == {}
    assert [job and job.id for job in await store.get(QUEUE, ["a", "b"])] == ["a", "b"]


async def test_an_error_of_ours_is_raised_as_it_is(store: SqliteStore) -> None:
    with pytest.raises(LeaseLost):
        await store.kill(Lease(QUEUE, "a", 1, 1))
    await push(store, "a")


async def test_a_statement_that_cannot_be_is_no_driver_error_outside(store: SqliteStore) -> None:
    with pytest.raises(StoreDamaged, match="no such table: nowhere"):
        await store._write(lambda step: step.connection.execute("SELECT 1 FROM nowhere"))


class FailingCommits(sqlite3.Connection):
    """Refuses to commit what others have written, once `broken` is set."""

    broken = False

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        if statement == "COMMIT" and self.broken:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error
        return super().execute(statement, *parameters)


async def test_a_commit_that_fails_is_everyones_error_and_its_outcome_unknown(
    tmp_path: Path,
) -> None:
    made: list[FailingCommits] = []

    def connect_failing() -> sqlite3.Connection:
        connection = FailingCommits(tmp_path / "jobs.db", isolation_level=None, check_same_thread=False)
        prepare_file(connection, 0, 0)
        made.append(connection)
        return connection

    write_lock = WriteLock(tmp_path / "turn")
    heard: list[object] = []
    link = SqliteLink(
        connect_failing,
        SystemClock(),
        write_lock=write_lock,
        disk=DiskReserve(tmp_path / "jobs.db", 0, BackgroundThread()),
        lock_timeout_s=1,
    )
    writer = ConnectionThreads("writer", link, size=1, announce=heard.append)
    await writer.run(lambda step: None)
    made[0].broken = True

    def write(step: SqliteStep) -> None:
        step.wakes.append(Wake(QUEUE, 1))
        step.connection.execute("INSERT INTO discarded VALUES (NULL)")

    results = await asyncio.gather(*[writer.run(write, key="writer") for _ in range(5)], return_exceptions=True)
    assert [type(result) for result in results] == [StoreUnavailable] * 5
    assert all(isinstance(result, StoreUnavailable) and result.outcome_unknown for result in results)
    assert heard == []

    made[0].broken = False
    assert await writer.run(lambda step: step.connection.execute("SELECT count(*) FROM discarded").fetchone()) == (0,)
    await writer.close()
    write_lock.close()


async def test_a_caller_that_leaves_before_its_turn_leaves_nothing(store: SqliteStore) -> None:
    gate, held = await hold(store)
    waiting = asyncio.create_task(push(store, "a"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    gate.open()
    await held
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await store.get(QUEUE, ["a"]) == [None]


async def test_a_caller_that_leaves_during_its_turn_does_not_stop_the_thread(store: SqliteStore) -> None:
    gate, held = await hold(store)
    held.cancel()
    with pytest.raises(asyncio.CancelledError):
        await held
    gate.open()
    await push(store, "a")
    assert await store.check() == []


async def test_a_caller_sees_what_it_has_written(store: SqliteStore) -> None:
    for n in range(200):
        await push(store, f"{n}")
        [job] = await store.get(QUEUE, [f"{n}"])
        assert job is not None


async def test_close_finishes_accepted_steps_and_refuses_new_ones(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "jobs.db")
    gate, held = await hold(store)
    waiting = asyncio.create_task(push(store, "a"))
    await asyncio.sleep(0)
    closing = [asyncio.create_task(store.close()) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable, match="closed"):
        await push(store, "b")
    gate.open()
    await asyncio.gather(held, waiting, *closing)
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.ping()

    again = await SqliteStore.open(tmp_path / "jobs.db")
    assert [job and job.id for job in await again.get(QUEUE, ["a", "b"])] == ["a", None]
    await again.close()


async def test_close_ends_listeners(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "jobs.db")
    wakes, versions = store.wakeups(), store.registry.watch()
    assert await anext(wakes) == Wake()
    assert await anext(versions) == 0
    waiting = [asyncio.create_task(anext(wakes, "end")), asyncio.create_task(anext(versions, "end"))]
    await asyncio.sleep(0)
    await store.close()
    assert await asyncio.gather(*waiting) == ["end", "end"]


async def test_a_ping_is_answered_by_the_thread_that_reads(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PROVEN_S", 0.001)
    await store.ping()
    gate = Gate()
    held = asyncio.create_task(store._read(gate))
    await asyncio.to_thread(gate.entered.wait, 30)

    ping = asyncio.create_task(store.ping())
    await asyncio.wait([ping], timeout=0.1)
    assert not ping.done()

    gate.open()
    assert (await ping).kind == "sqlite"
    await held


async def test_threads_and_sockets_are_gone_after_close(tmp_path: Path) -> None:
    others = set(threading.enumerate())
    store = await SqliteStore.open(tmp_path / "jobs.db")
    own = [thread for thread in threading.enumerate() if thread not in others]
    assert sorted(thread.name for thread in own) == ["duetime-sqlite-reader", "duetime-sqlite-writer"]
    wakes = store.wakeups()
    await anext(wakes)
    assert mailboxes(tmp_path) == 1
    await store.close()
    assert not any(thread.is_alive() for thread in own)
    assert mailboxes(tmp_path) == 0


def mailboxes(folder: Path) -> int:
    return len(list((folder / "jobs.db-wake").glob("*.sock")))


def test_processes_take_turns(tmp_path: Path) -> None:
    # Given one that holds the file, and one that waits for it
    path = tmp_path / "jobs.db"
    with connect(path, 0, synchronous="OFF") as first, connect(path, 0, synchronous="OFF") as second:
        prepare_file(first, 0, 0)
        turns = [WriteLock(tmp_path / "turn") for _ in range(2)]
        turns[0].begin(first, 0)
        order: list[str] = []

        def wait() -> None:
            turns[1].begin(second, float("inf"))
            order.append("the one that waited")
            second.execute("COMMIT")

        waiter = threading.Thread(target=wait)
        waiter.start()
        while not taken(turns[0]):
            pass

        # When the first commits and wants to begin again at once
        first.execute("COMMIT")
        turns[0].begin(first, float("inf"))
        order.append("the one that had its turn")
        first.execute("COMMIT")
        waiter.join()
    first.close()
    second.close()
    for turn in turns:
        turn.close()

    # Then the one that waited was first
    assert order == ["the one that waited", "the one that had its turn"]


def test_a_locked_file_is_asked_again_soon_and_then_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "jobs.db"
    first, second = connect(path, 0, synchronous="OFF"), connect(path, 0, synchronous="OFF")
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 12:
            first.execute("COMMIT")

    monkeypatch.setattr(time, "sleep", sleep)
    first.execute("BEGIN IMMEDIATE")
    retry_while_busy(lambda: second.execute("BEGIN IMMEDIATE"), float("inf"))
    first.close()
    second.close()
    assert sum(pauses[:3]) < 0.002, "most transactions take a millisecond or so"
    assert all(0.0004 < pause < 0.002 for pause in pauses[6:]), "a long one is not watched by a busy processor"


def taken(write_lock: WriteLock) -> bool:
    try:
        fcntl.flock(write_lock._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(write_lock._file, fcntl.LOCK_UN)
    return False


# --- whose turn it is


async def test_queues_are_served_in_turn_and_each_in_its_own_order(store: SqliteStore) -> None:
    served = list[str]()
    gate, held = await hold(store)
    calls = [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("c", 1), ("b", 2)]
    tasks = [
        asyncio.create_task(
            store._write(
                lambda step, name=name, number=number: served.append(f"{name}{number}"), queue=Queue("shop", name)
            )
        )
        for name, number in calls
    ]
    await asyncio.sleep(0)
    gate.open()
    await asyncio.gather(held, *tasks)
    assert served == ["a1", "b1", "c1", "a2", "b2", "a3"]


async def test_a_small_operation_is_answered_before_a_big_one_begins(store: SqliteStore) -> None:
    gate, held = await hold(store)
    flood = [Gate(), Gate()]
    big = [asyncio.create_task(store._write(one, queue=QUEUE, jobs=BIG_JOBS)) for one in flood]
    small = asyncio.create_task(push(store, "a", Queue("shop", "quiet")))
    await asyncio.sleep(0)
    gate.open()
    flood[0].open()
    await asyncio.to_thread(flood[1].entered.wait, 30)
    # The second big operation is under way and cannot end.
    await asyncio.wait_for(small, 10)
    assert not big[1].done()
    flood[1].open()
    assert await asyncio.gather(held, *big) == ["through"] * 3


async def test_big_operations_of_a_flood_do_not_starve_each_other(store: SqliteStore) -> None:
    gate, held = await hold(store)
    served = list[int]()
    big = [
        asyncio.create_task(
            store._write(lambda step, n=n: served.append(n), queue=Queue("shop", f"q{n}"), jobs=BIG_JOBS)
        )
        for n in range(20)
    ]
    small = [asyncio.create_task(push(store, f"a{n}")) for n in range(20)]
    await asyncio.sleep(0)
    gate.open()
    await asyncio.gather(held, *big, *small)
    assert served == list(range(20))
