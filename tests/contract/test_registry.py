"""The registry: records with versions, what changed since, and counters with a life."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from duetime.model.clock import ManualClock
from duetime.model.errors import VersionConflict
from duetime.stores.base import Store
from duetime.stores.open import open_store
from duetime.stores.registry import MAX_TOMBSTONES, Changes, Counter, Record, Registry
from tests.contract.conftest import SHARED_KINDS
from tests.contract.vocabulary import DEADLINE_S, QUEUE, as_lists, push_one


@pytest.fixture
def registry(store: Store) -> Registry:
    return store.registry


async def version(registry: Registry) -> int:
    return (await registry.changes(since=10**9)).version


async def changes(registry: Registry, since: int = 0) -> Changes:
    """With records and deletions in an order of our own: the contract gives none."""
    found = as_lists(await registry.changes(since))
    records = sorted(found.records, key=lambda record: (record.kind, record.key))
    return Changes(found.version, records, sorted(map(tuple, found.deleted)), found.is_complete)


# --- records


async def test_no_such_record(registry: Registry) -> None:
    assert await registry.get("token", "a") is None
    assert list(await registry.list_records("token")) == []
    assert await changes(registry) == Changes(0, [], [])


async def test_a_record_is_kept(registry: Registry) -> None:
    record = await registry.put("token", "a", b"\0 any bytes \xff")

    assert record == Record("token", "a", b"\0 any bytes \xff", record.version)
    assert record.version > 0
    assert await registry.get("token", "a") == record


async def test_each_write_bumps_the_one_version(registry: Registry) -> None:
    first = await registry.put("token", "a", b"1")
    second = await registry.put("limit", "b", b"2")
    third = await registry.put("token", "a", b"1")

    assert first.version < second.version < third.version
    assert await registry.get("token", "a") == third
    assert await version(registry) == third.version


async def test_keys_are_any_text(registry: Registry) -> None:
    texts = ["a b", "a:b/c", 'it\'s "q"', "日本 🙂", "%_*?[]", "", "x" * 500]
    for text in texts:
        record = await registry.put("kind", text, b"value")
        await registry.put("kind", text + "x", b"other")
        assert await registry.get("kind", text) == record
        assert await registry.delete("kind", text)
        assert await registry.get("kind", text) is None
    assert [each.key for each in await registry.list_records("kind")] == sorted(text + "x" for text in texts)


@pytest.mark.parametrize("value", [b"", b"x" * 1_000_000], ids=["empty", "large"])
async def test_values_are_any_bytes(registry: Registry, value: bytes) -> None:
    await registry.put("kind", "a", value)

    record = await registry.get("kind", "a")
    assert record is not None
    assert record.value == value


async def test_a_kind_is_listed_by_key(registry: Registry) -> None:
    for key in ("b", "a", "é", "B", "10", "9"):
        await registry.put("token", key, key.encode())
    await registry.put("tokens", "c", b"another kind")

    assert [record.key for record in await registry.list_records("token")] == sorted(["b", "a", "é", "B", "10", "9"])


async def test_a_kind_and_a_key_do_not_run_together(registry: Registry) -> None:
    await registry.put("a", "b:c", b"1")
    await registry.put("a:b", "c", b"2")

    assert [record.value for record in await registry.list_records("a")] == [b"1"]
    assert [record.value for record in await registry.list_records("a:b")] == [b"2"]


async def test_a_deleted_record_is_gone(registry: Registry) -> None:
    await registry.put("token", "a", b"1")
    before = await version(registry)

    assert await registry.delete("token", "a") is True
    assert await registry.get("token", "a") is None
    assert await version(registry) > before


async def test_deleting_nothing_bumps_nothing(registry: Registry) -> None:
    await registry.put("token", "a", b"1")
    await registry.delete("token", "a")
    before = await version(registry)

    assert await registry.delete("token", "a") is False
    assert await registry.delete("token", "never") is False
    assert await version(registry) == before


# --- if_version


async def test_zero_writes_only_what_is_not_there(registry: Registry) -> None:
    record = await registry.put("token", "a", b"1", if_version=0)

    with pytest.raises(VersionConflict) as caught:
        await registry.put("token", "a", b"2", if_version=0)

    assert caught.value.fields["version"] == record.version
    assert await registry.get("token", "a") == record
    assert await version(registry) == record.version


async def test_a_number_writes_only_over_that_version(registry: Registry) -> None:
    first = await registry.put("token", "a", b"1")
    await registry.put("token", "b", b"elsewhere")

    second = await registry.put("token", "a", b"2", if_version=first.version)
    assert second.value == b"2"
    with pytest.raises(VersionConflict):
        await registry.put("token", "a", b"3", if_version=first.version)
    with pytest.raises(VersionConflict):
        await registry.put("token", "none", b"3", if_version=first.version)

    assert await registry.get("token", "a") == second
    assert await registry.get("token", "none") is None


async def test_a_number_deletes_only_that_version(registry: Registry) -> None:
    first = await registry.put("token", "a", b"1")
    second = await registry.put("token", "a", b"2")

    with pytest.raises(VersionConflict):
        await registry.delete("token", "a", if_version=first.version)
    assert await registry.get("token", "a") == second

    assert await registry.delete("token", "a", if_version=second.version) is True


async def test_a_deleted_record_can_be_written_anew(registry: Registry) -> None:
    first = await registry.put("token", "a", b"1")
    await registry.delete("token", "a")

    again = await registry.put("token", "a", b"2", if_version=0)

    assert again.version > first.version + 1


# --- changes


async def test_what_changed_since(registry: Registry) -> None:
    a = await registry.put("token", "a", b"1")
    b = await registry.put("limit", "b", b"2")
    assert await changes(registry) == Changes(b.version, [b, a], [])
    assert await changes(registry, a.version) == Changes(b.version, [b], [])
    assert await changes(registry, b.version) == Changes(b.version, [], [])

    await registry.delete("token", "a")
    now = await version(registry)
    assert await changes(registry, b.version) == Changes(now, [], [("token", "a")])
    assert await changes(registry, a.version) == Changes(now, [b], [("token", "a")])
    assert await changes(registry, now) == Changes(now, [], [])


async def test_each_key_is_reported_once(registry: Registry) -> None:
    start = await version(registry)
    for value in (b"1", b"2", b"3"):
        last = await registry.put("token", "a", value)
    await registry.put("token", "b", b"1")
    await registry.delete("token", "b")
    now = await version(registry)

    assert await changes(registry, start) == Changes(now, [last], [("token", "b")])

    b = await registry.put("token", "b", b"2")
    assert await changes(registry, start) == Changes(b.version, [last, b], [])


async def test_following_changes_gives_all_records(registry: Registry) -> None:
    copy: dict[tuple[str, str], bytes] = {}
    since = 0
    for n in range(60):
        if n % 5 == 4:
            await registry.delete("kind", f"{n % 7}")
        else:
            await registry.put("kind", f"{n % 7}", str(n).encode())
        if n % 3 == 0:
            change = await registry.changes(since)
            for record in change.records:
                copy[record.kind, record.key] = record.value
            for kind, key in change.deleted:
                copy.pop((kind, key), None)
            since = change.version
            held = {(record.kind, record.key): record.value for record in await registry.list_records("kind")}
            assert copy == held


async def test_a_reader_that_missed_too_many_deletions_gets_all_records(registry: Registry) -> None:
    # Given a copy of all there was at some version
    kept = await registry.put("kind", "kept", b"1")
    await registry.put("kind", "doomed", b"2")
    before = (await registry.changes()).version

    # When more is deleted than the registry remembers
    await registry.delete("kind", "doomed")
    for n in range(MAX_TOMBSTONES):
        await registry.put("kind", f"short-lived {n}", b"")
        await registry.delete("kind", f"short-lived {n}")
    last = await registry.put("kind", "last", b"3")

    # Then that copy is to be dropped: the answer has all records there are
    answer = await registry.changes(before)
    assert (answer.version, answer.is_complete, list(answer.deleted)) == (last.version, True, [])
    assert [record for record in answer.records if record.kind == "kind"] == [kept, last]
    afresh = await registry.changes()
    assert (afresh.is_complete, [record for record in afresh.records if record.kind == "kind"]) == (True, [kept, last])

    # ... and a copy that knows of the first deletion only needs the others
    followed = await changes(registry, before + 1)
    assert (followed.is_complete, followed.records, len(followed.deleted)) == (False, [last], MAX_TOMBSTONES)


async def test_a_record_that_comes_again_is_not_among_the_deleted(registry: Registry) -> None:
    for n in range(MAX_TOMBSTONES + 10):
        await registry.put("kind", "same", str(n).encode())
        await registry.delete("kind", "same")
    deleted = await changes(registry, 1)
    assert (deleted.records, deleted.deleted, deleted.is_complete) == ([], [("kind", "same")], False)
    again = await registry.put("kind", "same", b"again")
    assert await changes(registry, 1) == Changes(again.version, [again], [])


# --- watch


class Watcher:
    """Follows a registry's version in a task of its own."""

    def __init__(self, registry: Registry) -> None:
        self._seen: asyncio.Queue[int] = asyncio.Queue()
        self._task = asyncio.create_task(self._watch(registry))

    async def _watch(self, registry: Registry) -> None:
        async for seen in registry.watch():
            self._seen.put_nowait(seen)

    async def next(self) -> int:
        async with asyncio.timeout(DEADLINE_S):
            return await self._seen.get()

    async def until(self, wanted: int) -> None:
        while await self.next() != wanted:
            pass

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


@pytest.fixture
async def watcher(registry: Registry) -> AsyncIterator[Watcher]:
    await registry.put("token", "before", b"1")
    watching = Watcher(registry)
    yield watching
    await watching.stop()


async def test_the_first_step_returns_the_version(registry: Registry, watcher: Watcher) -> None:
    assert await watcher.next() == await version(registry)


async def test_writes_and_deletions_are_announced(registry: Registry, watcher: Watcher) -> None:
    await watcher.next()

    written = await registry.put("token", "a", b"1")
    await watcher.until(written.version)
    await registry.delete("token", "a")
    await watcher.until(await version(registry))


@pytest.mark.parametrize("store_kind", SHARED_KINDS, indirect=True)
async def test_writes_by_another_process_are_announced(
    watcher: Watcher, store: Store, store_url: str, clock: ManualClock
) -> None:
    await watcher.next()
    neighbour = await open_store(store_url, clock=clock)

    written = await neighbour.registry.put("token", "a", b"1")

    await watcher.until(written.version)
    assert await store.registry.get("token", "a") == written
    await neighbour.close()


# --- counters


async def test_a_counter_counts(registry: Registry) -> None:
    assert await registry.increment("hits") == Counter(1)
    assert await registry.increment("hits", 5) == Counter(6)
    assert await registry.increment("hits", -10) == Counter(-4)
    assert await registry.increment("hits", 0) == Counter(-4)


async def test_reading_does_not_create(registry: Registry) -> None:
    assert await registry.increment("hits", 0) == Counter(0)
    assert await registry.increment("hits", 0, life_ms=1000) == Counter(0)
    assert await registry.counters() == {}


async def test_a_counter_lives_for_the_life_it_was_made_with(registry: Registry, clock: ManualClock) -> None:
    assert await registry.increment("hits", 2, life_ms=1000) == Counter(2, 1000)
    clock.advance("400ms")
    assert await registry.increment("hits", 1, life_ms=5000) == Counter(3, 600)
    assert await registry.increment("hits", 0) == Counter(3, 600)
    clock.advance("599ms")
    assert await registry.increment("hits") == Counter(4, 1)

    clock.advance("1ms")
    assert await registry.counters() == {}
    assert await registry.increment("hits", 0) == Counter(0)
    assert await registry.increment("hits", 1, life_ms=50) == Counter(1, 50)


async def test_a_counter_without_a_life_stays(registry: Registry, clock: ManualClock) -> None:
    await registry.increment("hits")
    clock.advance("36500d")

    assert await registry.increment("hits", 1, life_ms=5) == Counter(2)


async def test_counters_are_found_by_prefix(registry: Registry, clock: ManualClock) -> None:
    await registry.increment("pushes:shop", 1)
    await registry.increment("pushes:shop/mail", 2)
    await registry.increment("acks:shop", 3)
    await registry.increment("pushes:gone", 4, life_ms=10)
    await registry.increment("push%", 5)
    clock.advance("10ms")

    assert await registry.counters("pushes:") == {"pushes:shop": 1, "pushes:shop/mail": 2}
    assert await registry.counters("push%") == {"push%": 5}
    assert await registry.counters("_") == {}
    assert len(await registry.counters()) == 4


async def test_counters_bump_no_version(registry: Registry) -> None:
    await registry.put("token", "a", b"1")
    before = await version(registry)

    await registry.increment("hits")

    assert await version(registry) == before


async def test_jobs_and_records_do_not_meet(store: Store, registry: Registry) -> None:
    await registry.put("queue", str(QUEUE), b"1")
    assert list(await store.queues()) == []

    await push_one(store, "a")
    await store.purge(QUEUE, ["delayed", "ready", "leased", "dead"])  # type: ignore[list-item]
    assert [record.value for record in await registry.list_records("queue")] == [b"1"]


async def test_many_writers_make_as_many_versions(registry: Registry) -> None:
    records = await asyncio.gather(*[registry.put("token", f"{n % 5}", b"x") for n in range(50)])
    counted = await asyncio.gather(*[registry.increment("hits") for _ in range(50)])

    assert len({record.version for record in records}) == 50
    assert sorted(counter.value for counter in counted) == list(range(1, 51))


async def test_of_many_writers_with_one_version_one_wins(registry: Registry) -> None:
    first = await registry.put("token", "a", b"0")

    async def write(n: int) -> int | None:
        try:
            await registry.put("token", "a", str(n).encode(), if_version=first.version)
        except VersionConflict:
            return None
        return n

    winners = [n for n in await asyncio.gather(*[write(n) for n in range(20)]) if n is not None]

    assert len(winners) == 1
    record = await registry.get("token", "a")
    assert record is not None
    assert record.value == str(winners[0]).encode()
