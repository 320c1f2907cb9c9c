"""Every node stands in its pool's registry before it does anything, and signs off there with its last entry."""

from pathlib import Path

import pytest

from duetime.client import AsyncClient
from duetime.clock import SystemClock
from duetime.engine import Engine
from duetime.job import Event
from duetime.journal import journal
from duetime.journal.events import Entry
from duetime.journal.journal import Journal
from duetime.journal.observer import join_journal
from duetime.journal.options import JournalOptions
from duetime.journal.pool_journal import begin, end
from duetime.journal.reader import read_journal
from duetime.journal.registered_nodes import register, registered, sign_off
from duetime.stores.memory.registry import MemoryRegistry
from duetime.stores.memory.store import MemoryStore
from duetime.stores.open import open_store
from tests.plugins.until import until
from tests.simulation.engine_room import push


def entries(folder: Path, node: str) -> list[Entry]:
    return [item for item in read_journal(folder, only=[node]) if isinstance(item, Entry)]


async def test_a_node_is_known_before_its_first_event_and_signs_off_with_its_last(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Journal(JournalOptions(tmp_path, reserve=0)) as one:
        async with Engine(store, observers=await join_journal(store, one, "default")) as engine:
            [(node, found)] = (await registered(store)).items()
            assert (node, found.last) == (one.node, None)
            await push(engine, "a")
        signed_off = (await registered(store))[node]
    written = entries(tmp_path, node)
    pushed = next(entry for entry in written if entry.event is Event.ACCEPTED)
    assert found.at <= pushed.ts, "entries about the node itself may be older"
    assert signed_off.last is not None
    assert pushed.seq <= signed_off.last < written[-1].seq, "what comes after that is not about this pool"


async def test_a_program_that_only_looks_is_no_node_and_one_that_pushes_is(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/jobs.db"
    store = await open_store(url)
    await begin(store, "default")
    async with AsyncClient(url) as client:
        assert await client.queue("mail").reserve(limit=1) == []
        assert await registered(store) == {}
        await client.push_on("mail", "a", id="a")
        [(node, found)] = (await registered(store)).items()
        assert found.last is None
    assert (await registered(store))[node].last is not None
    assert any(entry.event is Event.ACCEPTED for entry in entries(tmp_path / "journal", node))
    await store.close()


async def test_living_nodes_tell_a_wiped_store_of_all_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "HEARTBEAT_S", 0.01)
    store = MemoryStore()
    await register(store, "killed-for-good")
    await register(store, "pruned")
    async with (
        Journal(JournalOptions(tmp_path, reserve=0)) as one,
        Engine(store, observers=await join_journal(store, one, "default")),
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


async def test_the_end_of_a_pools_journal_forgets_its_nodes(tmp_path: Path) -> None:
    store = MemoryStore()
    await begin(store, "default")
    await register(store, "old")
    await end(store)
    assert await registered(store) == {}
