"""Store, journal, answer: what is answered when, and what becomes of it when the journal cannot be written."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from duetime.client import AsyncClient
from duetime.engine import Engine
from duetime.engine.pools import Pools
from duetime.engine.requests import PushRequest
from duetime.journal import journal, registration, writer
from duetime.journal.events import Entry
from duetime.journal.journal import Journal
from duetime.journal.options import Fsync, JournalOptions
from duetime.journal.reader import read_journal
from duetime.journal.recorder import JournalRecorder, open_journal_recorder
from duetime.journal.registration import begin_journaling, end_journaling, find_journaling
from duetime.metrics.meters import Meters
from duetime.model.errors import InvalidSettings, JobExists, JournalFull, StoreUnavailable
from duetime.model.job import Event, IfExists, NewJob, State
from duetime.model.names import Queue
from duetime.server.process import PoolRecorders
from duetime.stores.base import Ask, Push, Store
from duetime.stores.memory.store import MemoryStore
from duetime.stores.open import open_store
from tests.faults.store_faults import FaultyStore
from tests.plugins.until import until
from tests.simulation.engine_room import QUEUE, ids, push


class Disk:
    """The journal's disk: writes wait while it is held, and fail while it is broken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broken = False
        self.free = threading.Event()
        self.free.set()
        self._write = os.write
        monkeypatch.setattr(writer.os, "write", self.write)
        monkeypatch.setattr(writer, "RETRY_S", 0.01)

    def write(self, handle: int, data: bytes) -> int:
        assert self.free.wait(30)
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._write(handle, data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    one = Disk(monkeypatch)
    yield one
    one.free.set()
    one.broken = False


@asynccontextmanager
async def journaled(folder: Path, store: FaultyStore | None = None, **options: object) -> AsyncIterator[Engine]:
    async with Journal(JournalOptions(folder, **{"reserve": 0, **options})) as one:
        store = store or FaultyStore(MemoryStore())
        async with Engine(store, recorders=await open_journal_recorder(store, one, "default")) as engine:
            yield engine


def recorder_of(engine: Engine) -> JournalRecorder:
    [recorder] = engine.recorders.all
    assert isinstance(recorder, JournalRecorder)
    return recorder


def events(folder: Path) -> list[tuple[str, str]]:
    entries = [item for item in read_journal(folder) if isinstance(item, Entry)]
    return [(entry.event.value, entry.id) for entry in entries if entry.event not in (Event.HEARTBEAT, Event.CLOSED)]


async def test_an_answer_waits_for_the_journal_and_the_next_call_does_not(tmp_path: Path, disk: Disk) -> None:
    store = FaultyStore(MemoryStore())
    async with journaled(tmp_path, store) as engine:
        disk.free.clear()
        pushing = [asyncio.create_task(push(engine, "a"))]
        await until(lambda: store.count("push") == 1)
        pushing.append(asyncio.create_task(push(engine, "b")))
        await until(lambda: store.count("push") == 2)
        await until(lambda: not engine._batcher.lanes[PushRequest]._inboxes)
        found = await engine.reserve([QUEUE], limit=2)
        assert ids(found) == ["a", "b"], "delivered meanwhile: that need not be on record"
        assert [task.done() for task in pushing] == [False, False]
        disk.free.set()
        await asyncio.gather(*pushing)
        assert events(tmp_path)[:2] == [("accepted", "a"), ("accepted", "b")]


@pytest.mark.parametrize("mode", [Fsync.ALWAYS, Fsync.INTERVAL])
@pytest.mark.parametrize("verb", ["push", "ack", "ack by id", "cancel", "kill", "purge", "respawn", "reschedule"])
async def test_what_cannot_be_written_is_answered_with_an_unknown_outcome(
    tmp_path: Path, disk: Disk, verb: str, mode: Fsync
) -> None:
    async with journaled(tmp_path, fsync=mode) as engine:
        await push(engine, "a", "b", "waits")
        [a, b] = await engine.reserve([QUEUE], limit=2)
        await engine.kill(b.lease)
        calls = {
            "push": lambda: push(engine, "new"),
            "ack": lambda: engine.ack([a.lease]),
            "ack by id": lambda: engine.ack_by_id(QUEUE, ["a"]),
            "cancel": lambda: engine.cancel(QUEUE, ["a"]),
            "kill": lambda: engine.kill(a.lease),
            "purge": lambda: engine.purge(QUEUE, ["leased"]),
            "respawn": lambda: engine.respawn(QUEUE, ids=["b"]),
            "reschedule": lambda: engine.reschedule(QUEUE, ["waits"], delay_ms=1000),
        }
        disk.broken = True
        with pytest.raises(StoreUnavailable, match="journal could not be written") as caught:
            await calls[verb]()
        assert caught.value.outcome_unknown
        written = len(events(tmp_path))
        disk.broken = False
        await until(lambda: len(events(tmp_path)) == written + 1)


async def test_a_kept_push_that_cannot_be_written_again_is_not_answered_as_accepted(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    await store.push(QUEUE, [Push([NewJob("kept", b"hello")])])
    async with journaled(tmp_path, store) as engine:
        store.down("get")
        with pytest.raises(StoreUnavailable) as caught:
            await push(engine, "kept", "new")
        assert caught.value.outcome_unknown
        await push(engine, "other")
        store.heal()
        await push(engine, "kept", "new")
    written = events(tmp_path)
    assert sorted(name for event, name in written if event == "accepted") == ["kept", "new", "new", "other"]


@pytest.mark.parametrize("mode", [Fsync.INTERVAL, Fsync.OFF])
async def test_where_the_disk_is_not_waited_for_entries_are_with_the_system_before_the_answer(
    tmp_path: Path, mode: Fsync
) -> None:
    async with journaled(tmp_path, fsync=mode, segment_size=2000) as engine:
        for number in range(20):
            await push(engine, f"j{number}")
            assert ("accepted", f"j{number}") in events(tmp_path)
        found = await engine.reserve([QUEUE], limit=20)
        for delivery in found:
            await engine.ack([delivery.lease])
            assert ("acked", delivery.lease.id) in events(tmp_path)


async def test_a_slow_disk_is_left_to_the_thread(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SLOW_S", -1.0)
    async with journaled(tmp_path, fsync=Fsync.OFF) as engine:
        await push(engine, "a")
        disk.free.clear()
        pushing = asyncio.create_task(push(engine, "b"))
        assert ids(await engine.reserve([QUEUE], limit=1)) == ["a"], "the loop goes on"
        assert not pushing.done()
        disk.free.set()
        await pushing


async def test_a_refusal_is_a_refusal_whatever_becomes_of_its_neighbours_entries(tmp_path: Path, disk: Disk) -> None:
    store = FaultyStore(MemoryStore())
    async with journaled(tmp_path, store) as engine:
        await push(engine, "taken")
        store.slow("push", request=0.01)
        disk.broken = True
        answers = await asyncio.gather(
            *(engine.push(QUEUE, [NewJob(one, b"")], if_exists=IfExists.ERROR) for one in ("new", "taken")),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers] == [StoreUnavailable, JobExists]
        assert store.count("push") == 2
        disk.broken = False


async def test_while_the_journal_fails_pushes_are_refused_before_the_store(tmp_path: Path, disk: Disk) -> None:
    store = FaultyStore(MemoryStore())
    async with journaled(tmp_path, store) as engine:
        await push(engine, "a")
        disk.broken = True
        with pytest.raises(StoreUnavailable):
            await push(engine, "b")
        with pytest.raises(StoreUnavailable, match="cannot be written") as caught:
            await push(engine, "c")
        assert not caught.value.outcome_unknown
        assert store.count("push") == 2
        disk.broken = False
        await until(lambda: recorder_of(engine)._journal.writer.failure is None)
        assert events(tmp_path) == [("accepted", "a"), ("accepted", "b")]
        await push(engine, "c")


async def test_a_backlog_that_grows_too_large_stops_everything(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MAX_BACKLOG", 1000)
    async with journaled(tmp_path) as engine:
        await push(engine, *"abcdefghij")
        disk.broken = True
        found = await engine.reserve([QUEUE], limit=9)
        await until(lambda: recorder_of(engine)._journal.writer.backlog > 1000)
        for call in (engine.reserve([QUEUE]), engine.ack([found[0].lease]), engine.cancel(QUEUE, ["a"])):
            with pytest.raises(StoreUnavailable, match="cannot be written") as caught:
                await call
            assert not caught.value.outcome_unknown
        disk.broken = False
        await until(lambda: recorder_of(engine)._journal.writer.backlog == 0)
        await engine.ack([found[0].lease])


async def test_without_room_only_pushes_are_refused_and_the_rest_is_journaled(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    await store.push(QUEUE, [])
    async with journaled(tmp_path, store) as engine:
        await push(engine, "a", "b")
    async with journaled(tmp_path, store, reserve=2**62) as engine:
        with pytest.raises(JournalFull, match="bytes left") as caught:
            await push(engine, "c")
        assert (caught.value.code, caught.value.status) == ("journal_full", 507)
        assert await store.get(QUEUE, ["c"]) == [None]
        [a, b] = await engine.reserve([QUEUE], limit=2)
        await engine.ack([a.lease])
        await engine.release(b.lease, delay_ms=60_000)
    assert sorted(events(tmp_path)[-4:]) == [("acked", "a"), ("delivered", "a"), ("delivered", "b"), ("released", "b")]


async def test_a_stopping_engine_leaves_nothing_unwritten(tmp_path: Path) -> None:
    async with journaled(tmp_path) as engine:
        await push(engine, "a")
        await engine.reserve([QUEUE])
    items = [item for item in read_journal(tmp_path) if isinstance(item, Entry)]
    assert [entry.event for entry in items] == [Event.HEARTBEAT, Event.ACCEPTED, Event.DELIVERED, Event.CLOSED]


async def test_a_heartbeat_is_not_ahead_of_a_call_under_way(tmp_path: Path) -> None:
    """What happened before a heartbeat's time stands before it, or reconcile would bring back what is being acked."""
    store = FaultyStore(MemoryStore())
    async with journaled(tmp_path, store) as engine:
        joined = recorder_of(engine)
        before = (await store.ping()).now
        gate = asyncio.Event()
        store.slow("push", answer=gate)
        pushing = asyncio.create_task(push(engine, "a"))
        await until(lambda: store.count("push") == 1)
        began = joined._watermark()
        await asyncio.sleep(0.06)
        assert joined._watermark() == began
        assert began - before < 60_000
        gate.set()
        await pushing
        assert joined._watermark() >= began + 50


# --- whether a pool journals


async def test_a_pool_journals_from_the_first_engine_with_a_journal_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite://{tmp_path}/jobs.db"
    async with Pools({"default": url}, open_store=open_store, watch=PoolRecorders(Meters()).watch) as pools:
        without = pools.engine("default")
        assert await find_journaling(without.store) is None, "nobody asked for a journal yet"
        await push(without, "unrecorded")
        async with (
            Journal(JournalOptions(tmp_path / "journal")) as one,
            Pools({"default": url}, open_store=open_store, watch=PoolRecorders(Meters(), one).watch) as journaling,
        ):
            record = await find_journaling(without.store)
            now = (await without.store.ping()).now
            assert record
            assert (record.pool, now - 60_000 < record.since <= now) == ("default", True)
            [warning] = [one for one in caplog.records if one.message == "programs_without_journal"]
            assert f"process {os.getpid()} on " in str(warning.__dict__["programs"])
            await push(without, "unrecorded too")
            await push(journaling.engine("default"), "recorded")
            assert await end_journaling(without.store)
    assert events(tmp_path / "journal") == [("accepted", "recorded")]


async def test_an_engine_without_a_journal_is_a_node_while_it_may_change_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "RENEW_EVERY_S", 0.01)
    url = f"sqlite://{tmp_path}/jobs.db"
    store = await open_store(url)
    async with AsyncClient(url, journal="off") as client:
        assert (await client.queue("mail").counts()).ready == 0
        assert await registration.registered(store) == {}, "it has only read"
        await client.push_on("mail", "x")
        [(name, first)] = (await registration.registered(store)).items()
        assert (first.journal, first.pid, first.last) == (False, os.getpid(), None)

        async def is_renewed() -> bool:
            found = (await registration.registered(store))[name]
            assert found.at == first.at, "its changes since then are missing"
            return found.seen_at > first.seen_at

        await until(is_renewed)
        await store.registry.delete(registration.NODE_KIND, name)
        await until(lambda: registration.registered(store))
    assert await registration.registered(store) == {}
    await store.close()


async def test_a_program_that_was_killed_before_the_journal_began_owes_it_nothing() -> None:
    store = MemoryStore()
    now = (await store.ping()).now
    for name, seen_at in (("killed", now - 61_000), ("running", now)):
        node = registration.RegisteredNode(1, journal=False, seen_at=seen_at)
        await store.registry.put(registration.NODE_KIND, name, msgspec.json.encode(node))
    await begin_journaling(store, "default")
    assert set(await registration.registered(store)) == {"running"}


async def test_since_when_is_not_moved_by_later_engines(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Journal(JournalOptions(tmp_path)) as one:
        await open_journal_recorder(store, one, "first")
        before = await find_journaling(store)
        await asyncio.sleep(0.005)
        await open_journal_recorder(store, one, "second")
        assert await find_journaling(store) == before


async def test_a_wiped_store_learns_again_since_when_it_journals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "HEARTBEAT_S", 0.01)
    store = MemoryStore()
    async with Journal(JournalOptions(tmp_path)) as one:
        await open_journal_recorder(store, one, "default")
        before = await find_journaling(store)
        await end_journaling(store)
        store._epoch = "another data set"
        await until(lambda: find_journaling(store))
        assert await find_journaling(store) == before


async def test_a_journal_that_was_ended_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "HEARTBEAT_S", 0.01)
    store = MemoryStore()
    async with Journal(JournalOptions(tmp_path)) as one:
        await open_journal_recorder(store, one, "default")
        await end_journaling(store)
        beats = one.writer.seq
        await until(lambda: one.writer.seq > beats + 3)
        assert await find_journaling(store) is None


async def test_an_embedded_engine_journals_if_its_pool_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUETIME_JOURNAL", raising=False)
    url = f"sqlite://{tmp_path}/jobs.db"
    folder = tmp_path / "journal"
    async with AsyncClient(url) as client:
        await client.push_on("mail", "before", id="before")
    assert not folder.exists()
    async with AsyncClient(url, journal=str(tmp_path / "elsewhere")) as client:
        await client.push_on("mail", "first", id="first")
    async with AsyncClient(url) as client:
        await client.push_on("mail", "second", id="second")
    assert events(tmp_path / "elsewhere") == [("accepted", "first")]
    assert events(folder) == [("accepted", "second")], "beside the file, where a server would write"
    async with AsyncClient(url, journal="off") as client:
        await client.push_on("mail", "unrecorded")
    monkeypatch.setenv("DUETIME_JOURNAL", str(tmp_path / "third"))
    async with AsyncClient(url) as client:
        await client.push_on("mail", "third", id="third")
    assert events(tmp_path / "third") == [("accepted", "third")]


async def test_an_embedded_engine_that_only_reads_writes_nothing(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/jobs.db"
    async with AsyncClient(url, journal=str(tmp_path / "journal")) as client:
        assert (await client.queue("mail").counts()).ready == 0
    assert not (tmp_path / "journal").exists()


@pytest.fixture
async def journaled_store(tmp_path: Path) -> AsyncIterator[Store]:
    """The store of a pool that journals, in a file."""
    store = await open_store(f"sqlite://{tmp_path}/jobs.db")
    await begin_journaling(store, "default")
    yield store
    await store.close()


@pytest.fixture
def closed_folder(tmp_path: Path) -> str:
    """A folder that cannot be made."""
    (tmp_path / "file").touch()
    return str(tmp_path / "file" / "journal")


MAIL = Queue("default", "mail")


async def test_a_consumer_whose_journal_cannot_be_opened_uses_up_no_tries(
    tmp_path: Path, journaled_store: Store, closed_folder: str
) -> None:
    await journaled_store.push(MAIL, [Push([NewJob("a", b"", tries=1)])])
    async with AsyncClient(f"sqlite://{tmp_path}/jobs.db", journal=closed_folder) as consumer:
        for _ in range(2):
            with pytest.raises(InvalidSettings, match="the journal cannot be written"):
                await consumer.queue("mail").reserve(limit=1)
        [job] = await journaled_store.get(MAIL, ["a"])
    assert job is not None
    assert (job.state, job.attempt) == (State.READY, 0)


async def test_a_reaper_whose_journal_cannot_be_opened_moves_no_jobs(
    tmp_path: Path, journaled_store: Store, closed_folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    await journaled_store.push(MAIL, [Push([NewJob("a", b"", tries=1)])])
    await journaled_store.reserve(MAIL, [Ask(1, 1)])
    caplog.set_level("WARNING")
    async with AsyncClient(f"sqlite://{tmp_path}/jobs.db", journal=closed_folder) as reader:
        assert (await reader.queue("mail").counts()).leased == 1
        await until(lambda: "duty_fails" in caplog.messages)
        [job] = await journaled_store.get(MAIL, ["a"])
    assert job is not None
    assert job.state is State.LEASED


@pytest.mark.store_kind("redis")
async def test_an_embedded_engine_on_redis_writes_where_the_pool_does_or_among_the_users_files(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DUETIME_JOURNAL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "pool"
    async with AsyncClient(redis_url, journal=str(folder)) as client:
        await client.push_on("mail", "first", id="first")
    async with AsyncClient(redis_url) as client:
        await client.push_on("mail", "second", id="second")
    assert events(folder) == [("accepted", "first"), ("accepted", "second")]
    folder.rename(tmp_path / "away")
    async with AsyncClient(redis_url) as client:
        await client.push_on("mail", "third", id="third")
    assert events(tmp_path / "state" / "duetime" / "journal") == [("accepted", "third")]
    assert not folder.exists()
