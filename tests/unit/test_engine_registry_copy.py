"""The local copy of the registry: complete, soon, and honest about its age."""

import asyncio
import math
import time
from collections.abc import AsyncIterator

import pytest

from duetime.engine.registry_copy import RegistryCopy
from duetime.model.clock import SystemClock
from duetime.model.errors import StoreUnavailable
from duetime.stores.memory.registry import MemoryRegistry
from duetime.stores.registry import MAX_TOMBSTONES, Changes
from tests.plugins.until import until
from tests.simulation.virtual_loop import virtual_time


class Flaky(MemoryRegistry):
    """A registry that can be switched off, and that counts looks."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.down = False
        self.silent = False
        self.looks = 0

    async def changes(self, since: int = 0) -> Changes:
        self.looks += 1
        await asyncio.sleep(0)
        if self.down:
            raise StoreUnavailable
        return await super().changes(since)

    async def watch(self) -> AsyncIterator[int]:
        if self.silent:
            await asyncio.get_running_loop().create_future()
        async for version in super().watch():
            yield version


async def test_it_starts_complete_and_follows_every_change() -> None:
    registry = Flaky()
    await registry.put("token", "b", b"2")
    await registry.put("token", "a", b"1")
    await registry.put("limit", "a", b"3")
    async with RegistryCopy(lambda: registry) as copied:
        assert [record.value for record in copied.list_records("token")] == [b"1", b"2"]
        assert time.monotonic() - copied.seen_at < 10
        await registry.put("token", "ba", b"4")
        await registry.delete("token", "a")
        await until(lambda: [r.key for r in copied.list_records("token")] == ["b", "ba"])
        assert [record.key for record in copied.list_records("token", "ba")] == ["ba"]
        assert copied.get("token", "a") is None


@virtual_time
async def test_a_lost_announcement_is_made_good_within_a_second() -> None:
    registry = Flaky()
    registry.silent = True
    async with RegistryCopy(lambda: registry) as copied:
        await registry.put("token", "a", b"1")
        async with asyncio.timeout(1.0):
            await until(lambda: copied.get("token", "a"))


async def test_refresh_sees_earlier_writes_and_many_share_one_read() -> None:
    registry = Flaky()
    registry.silent = True
    async with RegistryCopy(lambda: registry) as copied:
        await registry.put("token", "a", b"1")
        before = registry.looks
        await asyncio.gather(*(copied.refresh() for _ in range(100)))
        assert copied.get("token", "a")
        assert registry.looks - before <= 3


async def test_it_outlives_an_outage_and_reports_its_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duetime.engine.registry_copy.CHECK_EVERY_S", 0.01)
    registry = Flaky()
    registry.down = True
    async with RegistryCopy(lambda: registry) as copied:
        assert copied.seen_at == -math.inf
        with pytest.raises(StoreUnavailable):
            await copied.refresh()
        await registry.put("token", "a", b"1")
        registry.down = False
        await until(lambda: copied.get("token", "a"))
        assert time.monotonic() - copied.seen_at < 10


async def test_a_copy_that_missed_too_many_deletions_starts_anew() -> None:
    registry = Flaky()
    await registry.put("token", "kept", b"1")
    await registry.put("token", "doomed", b"2")
    async with RegistryCopy(lambda: registry) as copied:
        registry.down = True
        await registry.delete("token", "doomed")
        for n in range(MAX_TOMBSTONES):
            await registry.put("token", str(n), b"")
            await registry.delete("token", str(n))
        registry.down = False
        await copied.refresh()
        assert [record.key for record in copied.list_records("token")] == ["kept"]


async def test_a_wiped_registry_leaves_nothing_behind() -> None:
    registries = [Flaky(), Flaky()]
    await registries[0].put("token", "a", b"1")
    await registries[0].put("token", "b", b"1")
    await registries[1].put("token", "c", b"1")
    async with RegistryCopy(lambda: registries[0]) as copied:
        registries.reverse()
        await copied.refresh()
        assert [record.key for record in copied.list_records("token")] == ["c"]


async def test_a_cancelled_read_does_not_count_as_one() -> None:
    registry = Flaky()
    registry.silent = True
    async with RegistryCopy(lambda: registry) as copied:
        await until(lambda: registry.looks >= 2)
        await registry.put("token", "a", b"1")
        first = asyncio.create_task(copied.refresh())
        second = asyncio.create_task(copied.refresh())
        await asyncio.sleep(0)
        first.cancel()
        await second
        assert copied.get("token", "a")
