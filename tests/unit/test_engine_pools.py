"""Pools: one that is down affects only itself, and comes back by itself."""

import asyncio
from collections.abc import Awaitable

import pytest

from duetime.engine.pools import Pools, RegisteredPools, check_store, registered_pools, unregister_pool
from duetime.engine.registry_copy import RegistryCopy
from duetime.engine.schedules import ScheduleRunners
from duetime.model.errors import Conflict, DuetimeError, InvalidRequest, InvalidSettings, PoolNotFound, StoreUnavailable
from duetime.model.job import NewJob
from duetime.model.names import Queue
from duetime.stores.memory.store import MemoryStore
from duetime.stores.open import open_store
from duetime.stores.registry import POOL, SHARES
from tests.plugins.until import until

QUEUE = Queue("ns", "q")


class Stores:
    """Opens memory stores by URL; those in `down` refuse."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.opened: dict[str, list[MemoryStore]] = {}
        self.refused = asyncio.Event()

    async def __call__(self, url: str) -> MemoryStore:
        if url in self.down:
            self.refused.set()
            raise StoreUnavailable(f"{url} is down")
        store = MemoryStore()
        self.opened.setdefault(url, []).append(store)
        return store


async def test_each_pool_has_its_own_store() -> None:
    async with Pools({"default": "memory:a", "fast": "memory:b"}, open_store=Stores()) as pools:
        await pools.engine("default").push(QUEUE, [NewJob("x", b"")])
        assert await pools.engine("fast").store.get(QUEUE, ["x"]) == [None]
        assert pools.names == ["default", "fast"]
        assert "fast" in pools
        assert "slow" not in pools
        assert pools.errors() == {}
        assert pools.registry is pools.engine("default").store.registry
        with pytest.raises(PoolNotFound):
            pools.engine("slow")


async def test_an_unreachable_pool_affects_only_itself_and_is_opened_later() -> None:
    stores = Stores()
    stores.down = {"memory:b"}
    async with Pools({"default": "memory:a", "fast": "memory:b"}, open_store=stores) as pools:
        await pools.engine("default").push(QUEUE, [NewJob("x", b"")])
        with pytest.raises(StoreUnavailable):
            pools.engine("fast")
        assert list(pools.errors()) == ["fast"]
        stores.down.clear()
        await until(lambda: not pools.errors())
        await pools.engine("fast").push(QUEUE, [NewJob("x", b"")])


async def test_a_broken_engine_is_replaced_and_its_neighbours_work_on() -> None:
    stores = Stores()
    async with Pools({"default": "memory:a", "fast": "memory:b"}, open_store=stores) as pools:
        broken, neighbour = pools.engine("fast"), pools.engine("default")

        async def bug(limit: int = 0, *, recorded: object = ()) -> None:
            raise ZeroDivisionError

        broken.store.reap = bug  # type: ignore[method-assign, assignment]
        await until(lambda: len(stores.opened["memory:b"]) == 2 and not pools.errors())
        assert pools.engine("fast") is not broken
        assert pools.engine("default") is neighbour


async def test_an_engine_that_breaks_while_it_closes_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    stores = Stores()
    async with Pools({"default": "memory:a"}, open_store=stores) as pools:

        async def bug() -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(pools.engine("default").recorders, "close", bug)
    assert len(stores.opened["memory:a"]) == 1


async def test_wrong_settings_are_raised_at_the_start() -> None:
    async def refuse(url: str) -> MemoryStore:
        raise InvalidSettings("no such scheme")

    with pytest.raises(InvalidSettings, match="no such scheme"):
        async with Pools({"default": "nonsense:"}, open_store=refuse):
            pass


@pytest.mark.parametrize("urls", [{}, {"other": "memory:"}, {"default": "memory:", "a:b": "memory:"}])
def test_names_are_checked(urls: dict[str, str]) -> None:
    with pytest.raises(InvalidSettings):
        Pools(urls, open_store=Stores())


async def test_the_registry_can_be_a_store_of_its_own_or_one_of_the_pools() -> None:
    urls = {"default": "memory:a", "fast": "memory:b"}
    async with Pools(urls, open_store=Stores(), registry_url="memory:c") as pools:
        assert pools.registry not in [pools.engine(name).store.registry for name in pools.names]
        assert pools.names == ["default", "fast"]
    async with Pools(urls, open_store=Stores(), registry_url="memory:b") as pools:
        assert pools.registry is pools.engine("fast").store.registry


async def test_leaving_does_not_wait_for_a_store_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duetime.engine.pools.FIRST_WAIT_S", 0.01)
    stores = Stores()

    def hang(url: str) -> Awaitable[MemoryStore]:
        return asyncio.get_running_loop().create_future() if url == "memory:b" else stores(url)

    async with asyncio.timeout(10), Pools({"default": "memory:a", "fast": "memory:b"}, open_store=hang) as pools:
        with pytest.raises(StoreUnavailable):
            pools.engine("fast")


# --- pools of the registry


async def test_a_pool_that_gets_another_url_has_one_runner_of_schedules() -> None:
    async with (
        Pools({"default": "memory:a"}, open_store=Stores()) as pools,
        RegistryCopy(lambda: pools.registry) as copy,
        RegisteredPools(pools, copy),
        ScheduleRunners(pools) as runners,
    ):
        for url in ("redis://1", "redis://2", "redis://3"):
            await pools.registry.put(POOL, "eu", url.encode())
            await copy.refresh()
            await until(lambda url=url: pools.urls.get("eu") == url)
        assert len(runners.loops) == 2
        assert not any(loop.done() for loop in runners.loops)


async def test_shares_that_cannot_be_read_leave_the_others_and_the_pools_alone() -> None:
    async with (
        Pools({"default": "memory:a"}, open_store=Stores()) as pools,
        RegistryCopy(lambda: pools.registry) as copy,
    ):
        await pools.registry.put(SHARES, "broken", b"\xff:none")
        await pools.registry.put(SHARES, "shop", b"8:1:1")
        await pools.registry.put(POOL, "eu", b"redis://1")
        await copy.refresh()
        async with RegisteredPools(pools, copy):
            assert pools.shares.namespaces == {"shop": (8, 1, 1)}
            assert "eu" in pools.urls


async def test_a_pool_can_be_registered_again_right_after_its_removal() -> None:
    """Also by a process that has not closed the removed one yet."""
    async with Pools({"default": "memory:a"}, open_store=Stores()) as pools:
        await pools.register("eu", "redis://1")
        pools.add("eu", "redis://1")
        await unregister_pool(pools.registry, "eu")
        await pools.register("eu", "redis://2")
        assert await registered_pools(pools.registry) == {"eu": "redis://2"}
        with pytest.raises(Conflict, match="settings"):
            await pools.register("default", "redis://3")


@pytest.mark.parametrize(
    "url", ["sqlite:///x.db", "group:g?a=redis://1&b=sqlite%3A%2F%2F%2Fx.db", "tiered:?hot=redis://1&cold=memory%3A"]
)
async def test_a_store_that_other_processes_cannot_reach_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="every process can reach"):
        await check_store(url, Stores())


async def test_a_password_is_no_scheme() -> None:
    await check_store("redis://:memory:sqlite:@host", Stores())


@pytest.mark.parametrize(
    ("name", "url"),
    [("e/u", "redis://1"), ("eu", "oracle:x"), ("eu", "redis://[::1"), ("eu", "group:g?a=mysql://[::1")],
)
async def test_a_pool_with_a_wrong_name_or_url_is_refused_as_a_wrong_request(name: str, url: str) -> None:
    """And not as a fault of the server."""
    async with Pools({"default": "memory:"}, open_store=open_store) as pools:
        with pytest.raises(DuetimeError) as refused:
            await pools.register(name, url)
        assert refused.value.status == 400
