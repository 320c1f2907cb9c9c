"""Every node stands in its pool's registry before it does anything, and signs off there with its last entry."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from duetime.client import AsyncClient
from duetime.engine import Engine
from duetime.journal import journal, registration
from duetime.journal.events import Entry
from duetime.journal.journal import Journal
from duetime.journal.options import JournalOptions
from duetime.journal.reader import read_journal
from duetime.journal.recorder import JournalRecorder, open_journal_recorder
from duetime.journal.registration import (
    NodeRegistration,
    begin_journaling,
    end_journaling,
    find_journaling,
    register,
    registered,
    sign_off,
)
from duetime.model.clock import SystemClock
from duetime.model.errors import StoreUnavailable
from duetime.model.job import Event
from duetime.stores.memory.registry import MemoryRegistry
from duetime.stores.memory.store import MemoryStore
from duetime.stores.open import open_store
from duetime.stores.registry import Record
from tests.plugins.until import until
from tests.simulation.engine_room import push


def entries(folder: Path, node: str) -> list[Entry]:
    return [item for item in read_journal(folder, only=[node]) if isinstance(item, Entry)]


async def test_a_node_is_known_before_its_first_event_and_signs_off_with_its_last(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Journal(JournalOptions(tmp_path, reserve=0)) as one:
        async with Engine(store, recorders=await open_journal_recorder(store, one, "default")) as engine:
            [(node, found)] = (await registered(store)).items()
            assert (node, found.last) == (one.node, None)
            await push(engine, "a")
        signed_off = (await registered(store))[node]
    written = entries(tmp_path, node)
    pushed = next(entry for entry in written if entry.event is Event.ACCEPTED)
    assert found.at <= pushed.ts, "entries about the node itself may be older"
    assert signed_off.last is not None
    assert pushed.seq <= signed_off.last < written[-1].seq, "what comes after that is not about this pool"


@pytest.mark.parametrize("verb", ["push", "reserve"])
async def test_only_a_program_that_may_change_something_is_a_node(tmp_path: Path, verb: str) -> None:
    url = f"sqlite://{tmp_path}/jobs.db"
    store = await open_store(url)
    await begin_journaling(store, "default")
    async with AsyncClient(url) as client:
        assert (await client.queue("mail").counts()).ready == 0
        assert await registered(store) == {}
        if verb == "push":
            await client.push_on("mail", "a", id="a")
        else:
            assert await client.queue("mail").reserve(limit=1) == []
        [(node, found)] = (await registered(store)).items()
        assert found.last is None
    assert (await registered(store))[node].last is not None
    written = [entry.event for entry in entries(tmp_path / "journal", node)]
    assert (Event.ACCEPTED in written) == (verb == "push")
    await store.close()


async def test_living_nodes_register_all_nodes_in_a_wiped_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "HEARTBEAT_S", 0.01)
    store = MemoryStore()
    await register(store, "killed-for-good")
    await register(store, "pruned")
    async with (
        Journal(JournalOptions(tmp_path, reserve=0)) as one,
        Engine(store, recorders=await open_journal_recorder(store, one, "default")),
    ):
        await register(store, "came-later")
        await sign_off(store, "came-later", 7)
        await store.registry.delete("journal_node", "pruned")
        before = await registered(store)
        beats = one.writer.seq
        await until(lambda: one.writer.seq > beats + 3)
        store.registry, store._epoch = MemoryRegistry(SystemClock()), "another data set"

        async def are_back() -> bool:
            return await registered(store) == before

        await until(are_back)
    assert set(before) == {"killed-for-good", "came-later", one.node}


class FullRegistry(MemoryRegistry):
    """Takes so many records and then no more."""

    room = 1

    async def put(self, kind: str, key: str, value: bytes, *, if_version: int | None = None) -> Record:
        if not self.room:
            raise StoreUnavailable("full")
        self.room -= 1
        return await super().put(kind, key, value, if_version=if_version)


async def test_a_renewal_that_broke_off_is_begun_again(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Journal(JournalOptions(tmp_path, reserve=0)) as one:
        [recorder] = await open_journal_recorder(store, one, "default")
        assert isinstance(recorder, JournalRecorder)
        await register(store, "killed-for-good")
        await register(store, "slow")
        await recorder._renew()
        before = await registered(store)
        store.registry, store._epoch = FullRegistry(SystemClock()), "another data set"
        with pytest.raises(StoreUnavailable):
            await recorder._renew()
        store.registry.room = 10
        await recorder._renew()
        assert await registered(store) == before
        assert await find_journaling(store)
        await recorder.close()
    assert set(before) == {"killed-for-good", "slow", one.node}


async def test_a_node_registers_again_when_another_journal_has_begun(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Journal(JournalOptions(tmp_path, reserve=0)) as one:
        [recorder] = await open_journal_recorder(store, one, "default")
        assert isinstance(recorder, JournalRecorder)
        before = await registered(store)
        await register(store, "killed-for-good")
        await end_journaling(store)
        await recorder._renew()
        assert await registered(store) == {}, "the pool does not journal"
        await begin_journaling(store, "default")
        await recorder._renew()
        assert await registered(store) == before
        await recorder.close()


async def test_records_are_renewed_before_each_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "HEARTBEAT_S", 0.01)
    done: list[str] = []

    async def renew() -> None:
        done.append("renewed")

    def pulse() -> int:
        done.append("heartbeat")
        return 1

    async with Journal(JournalOptions(tmp_path, reserve=0)) as one:
        one.keep_for("default", pulse, renew)
        await until(lambda: len(done) >= 5)
    assert done[:5] == ["heartbeat", "renewed", "heartbeat", "renewed", "heartbeat"], "the first is written at once"


async def test_a_bug_in_a_renewal_ends_neither_the_renewals_nor_the_heartbeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journal, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(registration, "RENEW_EVERY_S", 0.01)
    done: list[str] = []

    async def renew() -> None:
        done.append("renewed")
        if done.count("renewed") == 1:
            raise ValueError("a bug")

    def pulse() -> int:
        done.append("heartbeat")
        return 1

    async with Journal(JournalOptions(tmp_path, reserve=0)) as one:
        one.keep_for("default", pulse, renew)
        await until(lambda: len(done) >= 4)
    assert done[:4] == ["heartbeat", "renewed", "renewed", "heartbeat"], "no heartbeat without the records"

    store = MemoryStore()
    without = NodeRegistration(store)
    await without.make()
    rounds: list[int] = []

    class Broken(MemoryRegistry):
        async def put(self, kind: str, key: str, value: bytes, *, if_version: int | None = None) -> Record:
            rounds.append(1)
            raise ValueError("a bug")

    store.registry = Broken(SystemClock())
    renewing = asyncio.create_task(without.keep_renewed())
    await until(lambda: len(rounds) >= 2)
    renewing.cancel()
    duties = {getattr(record, "duty", "") for record in caplog.records if record.message == "duty_broke"}
    assert duties == {"journal heartbeats of default", "node renewal"}


async def test_a_pool_whose_store_hangs_keeps_no_other_pool_from_its_heartbeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "HEARTBEAT_S", 0.01)
    beats = {"hangs": 0, "answers": 0}
    is_asked = asyncio.Event()

    def pulse_of(pool: str) -> Callable[[], int]:
        def pulse() -> int:
            beats[pool] += 1
            return 1

        return pulse

    async def hang() -> None:
        is_asked.set()
        await asyncio.Event().wait()

    async def answer() -> None:
        await asyncio.sleep(0)

    async with Journal(JournalOptions(tmp_path, reserve=0)) as one:
        one.keep_for("hangs", pulse_of("hangs"), hang)
        one.keep_for("answers", pulse_of("answers"), answer)
        await is_asked.wait()
        before = beats["answers"]
        await until(lambda: beats["answers"] > before + 3)
    assert beats["hangs"] == 1, "the one that is written at once; the next comes after the records"


async def test_the_end_of_a_pools_journal_forgets_its_nodes(tmp_path: Path) -> None:
    store = MemoryStore()
    await begin_journaling(store, "default")
    await register(store, "old")
    await end_journaling(store)
    assert await registered(store) == {}
