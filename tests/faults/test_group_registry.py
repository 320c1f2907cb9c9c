"""The registry of a group of Redis: its records are read while the member that keeps them is down."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import duetime
from duetime.engine import Engine
from duetime.engine.registry_copy import RegistryCopy
from duetime.journal import registration
from duetime.journal.journal import Journal
from duetime.journal.options import JournalOptions
from duetime.journal.recorder import open_journal_recorder
from duetime.journal.registration import registered
from duetime.model.errors import DuetimeError, StoreUnavailable, VersionConflict
from duetime.model.job import NewJob
from duetime.model.names import Queue
from duetime.model.settings import group_url
from duetime.stores.base import Store
from duetime.stores.group.layout import home
from duetime.stores.open import open_store
from duetime.stores.registry import MAX_TOMBSTONES, Registry
from duetime.transfer.registry_records import read_records
from tests.plugins.redis_server import RedisServer
from tests.plugins.until import until

pytestmark = pytest.mark.store_kind("group")

QUEUE = Queue("shop", "mail")
StartRedis = Callable[..., RedisServer]
Servers = dict[str, RedisServer]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process has to read of a new layout."""
    monkeypatch.setattr("duetime.stores.group.members.SPREAD_S", 0)


@pytest.fixture
def servers(start_redis: StartRedis) -> Servers:
    """What they hold survives a restart."""
    return {name: start_redis(appendonly="yes", appendfsync="always") for name in "abc"}


def url_of(servers: Servers, *drain: str) -> str:
    return group_url("wide", {name: server.url for name, server in servers.items()}, drain)


@asynccontextmanager
async def group(servers: Servers) -> AsyncIterator[Store]:
    store = await open_store(url_of(servers))
    try:
        yield store
    finally:
        await store.close()


async def is_written(registry: Registry) -> bool:
    """Whether a write that only the first member can decide is done."""
    try:
        await registry.put("probe", "a", b"", if_version=0)
    except VersionConflict:
        return True
    except StoreUnavailable:
        return False
    return True


async def values(registry: Registry, kind: str) -> dict[str, bytes]:
    return {record.key: record.value for record in await registry.list_records(kind)}


async def test_records_are_read_while_the_first_member_is_down(servers: Servers) -> None:
    async with group(servers) as store, RegistryCopy(lambda: store.registry) as followed:
        await store.registry.put("token", "old", b"1")
        await store.registry.put("token", "gone", b"1")
        written = await store.registry.put("token", "old", b"2")
        await store.registry.delete("token", "gone")
        await followed.refresh()
        servers["a"].kill()

        assert await store.registry.get("token", "old") == written
        assert await values(store.registry, "token") == {"old": b"2"}
        changes = await store.registry.changes()
        assert [one for one in changes.records if one.kind == "token"] == [written]
        assert not (await store.registry.changes(changes.version)).records
        await followed.refresh()
        assert followed.get("token", "old") == written

        async with group(servers) as later, RegistryCopy(lambda: later.registry) as read:
            assert [one.value for one in read.list_records("token")] == [b"2"]
        with pytest.raises(StoreUnavailable):
            await store.registry.put("token", "new", b"", if_version=0)
        with pytest.raises(StoreUnavailable):
            await store.registry.delete("token", "old")

        servers["a"].start()
        await until(lambda: is_written(store.registry))
        await store.registry.put("token", "old", b"3", if_version=written.version)
        await followed.refresh()
        assert [one.value for one in followed.list_records("token")] == [b"3"]


async def test_what_is_written_meanwhile_is_applied_when_the_first_member_is_back(servers: Servers) -> None:
    async with group(servers) as store, group(servers) as other:
        await store.registry.put("node", "kept", b"1")
        servers["a"].kill()
        await store.registry.put("node", "new", b"1")
        await store.registry.put("node", "kept", b"2")
        assert await values(other.registry, "node") == {"kept": b"2", "new": b"1"}
        servers["a"].start()

        async def is_applied() -> bool:
            own = await open_store(servers["a"].url)
            try:
                return await values(own.registry, "node") == {"kept": b"2", "new": b"1"}
            finally:
                await own.close()

        await until(is_applied)
        assert await values(store.registry, "node") == {"kept": b"2", "new": b"1"}


async def test_a_later_write_of_the_first_member_is_not_undone(servers: Servers) -> None:
    async with group(servers) as store:
        await store.registry.put("node", "a", b"1")
        servers["a"].kill()
        await store.registry.put("node", "a", b"from the time without it")
        servers["a"].start()
        own = await open_store(servers["a"].url)
        await own.registry.put("node", "a", b"later")
        await own.close()

        async def is_copied() -> bool:
            return await copied(servers["b"]) == await copied(servers["c"]) == {"a": b"later"}

        await until(is_copied)
        assert await values(store.registry, "node") == {"a": b"later"}


async def copied(server: RedisServer) -> dict[str, bytes]:
    own = await open_store(server.url)
    try:
        found = await own.registry.list_records("group-copy:node")
    finally:
        await own.close()
    return {record.key: record.value[8:] for record in found}


async def test_a_member_that_missed_writes_and_many_deletions_is_brought_up_to_date(servers: Servers) -> None:
    async with group(servers) as store:
        for number in range(MAX_TOMBSTONES + 20):
            await store.registry.put("node", f"{number}", b"x")
        servers["b"].kill()
        for number in range(MAX_TOMBSTONES + 10):
            await store.registry.delete("node", f"{number}")
        await store.registry.put("node", "new", b"y")
        servers["b"].start()
        expected = await values(store.registry, "node")
        assert len(expected) == 11

        async def is_copied() -> bool:
            return await copied(servers["b"]) == expected

        await until(is_copied)


async def test_a_first_member_that_lost_its_data_gets_the_records_back(start_redis: StartRedis) -> None:
    servers = {name: start_redis() for name in "ab"}
    async with group(servers) as store:
        await store.registry.put("token", "a", b"secret hash")
        servers["a"].kill()
        servers["a"].start()

        async def is_back() -> bool:
            return await values(store.registry, "token") == {"a": b"secret hash"} and await is_written(store.registry)

        await until(is_back)
    async with group(servers) as store:
        assert await values(store.registry, "token") == {"a": b"secret hash"}
        assert [(one.kind, one.key) for one in await read_records(store.registry)] == [("probe", "a"), ("token", "a")]


async def test_the_registry_stays_when_the_first_member_is_taken_out(servers: Servers) -> None:
    async with group(servers) as store:
        await store.registry.put("token", "a", b"secret hash")
    for _ in range(2):  # the first process that drains must not forget the member
        draining = await open_store(url_of(servers, "a"))
        await draining.close()
    del servers["a"]
    async with group(servers) as store:
        assert await values(store.registry, "token") == {"a": b"secret hash"}


async def test_a_program_goes_on_when_the_first_member_falls(servers: Servers) -> None:
    async with duetime.connect_async(url_of(servers)) as client:
        queue = client.queue("mail")
        ids = [f"job-{n}" for n in range(40)]
        for job_id in ids[:20]:
            await queue.push("x", id=job_id)
        servers["a"].kill()
        refused: set[str] = set()
        for job_id in ids[20:]:
            try:
                await queue.push("x", id=job_id)
            except DuetimeError:
                refused.add(job_id)
        at_a = {job_id for job_id in ids if home(Queue("default", "mail"), job_id, ("a", "b", "c")) == "a"}
        assert refused == at_a & {*ids[20:]}
        seen: set[str] = set()
        while job := await queue.pop():
            seen.add(job.id)
            await job.ack()
        assert seen == {*ids} - at_a


async def test_an_engine_starts_and_journals_while_the_first_member_is_down(servers: Servers, tmp_path: Path) -> None:
    async with group(servers) as store, Journal(JournalOptions(tmp_path / "one")) as journal:
        async with Engine(store, recorders=await open_journal_recorder(store, journal, "default")):
            pass
        servers["a"].kill()
        async with group(servers) as later, Journal(JournalOptions(tmp_path / "two")) as second:
            recorders = await open_journal_recorder(later, second, "default")
            async with Engine(later, recorders=recorders) as engine:
                alive = next(f"j{n}" for n in range(40) if home(QUEUE, f"j{n}", ("a", "b", "c")) != "a")
                await engine.push(QUEUE, [NewJob(alive, b"x")])
                assert second.node in await registered(store)
        assert await registration.find_journaling(store) is not None
        servers["a"].start()
        await until(lambda: is_written(store.registry))

        async def has_signed_off() -> bool:
            own = await open_store(servers["a"].url)
            try:
                node = (await registered(own)).get(second.node)
            finally:
                await own.close()
            return node is not None and node.last is not None

        await until(has_signed_off)
