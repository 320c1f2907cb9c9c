"""/healthz and /readyz: a store that is down, a loop that died, a loop that hangs."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from duetime import duties
from duetime.engine.pools import Pools
from duetime.protocols.health import health_routes
from duetime.stores.base import Reaped
from duetime.stores.group.store import GroupStore
from duetime.stores.memory.store import MemoryStore
from tests.faults.store_faults import FaultyStore
from tests.plugins.until import until


class Companion:
    def __init__(self, *tasks: "asyncio.Task[None]") -> None:
        self.loops = tasks


class HealthApp:
    """The health routes of one process with one pool."""

    def __init__(self) -> None:
        self.stores: list[FaultyStore] = []
        self.companions: list[object] = []
        self.draining = asyncio.Event()
        self.broken = False

    async def open_store(self, url: str) -> FaultyStore:
        store = FaultyStore(MemoryStore())
        if self.broken:
            store.down()
        self.stores.append(store)
        return store

    async def ask(self, path: str) -> tuple[int, dict[str, object]]:
        reply = await self.client.get(path)
        return reply.status_code, reply.json()


@pytest.fixture
async def health() -> AsyncIterator[HealthApp]:
    health = HealthApp()
    async with Pools({"default": "memory:"}, open_store=health.open_store) as pools:
        health.pools = pools
        routes = health_routes(pools, health.draining, companions=health.companions, detailed=True)
        transport = httpx.ASGITransport(Starlette(routes=routes))
        async with httpx.AsyncClient(transport=transport, base_url="http://health") as health.client:
            yield health


async def test_all_is_well(health: HealthApp) -> None:
    assert await health.ask("/readyz") == (200, {"status": "ready"})
    status, report = await health.ask("/healthz")
    assert (status, report["status"], report["pools"]["default"]["status"]) == (200, "ok", "ok")


async def test_a_store_that_is_down(health: HealthApp) -> None:
    health.stores[0].down()
    assert await health.ask("/readyz") == (503, {"status": "not ready", "down": ["default"]})
    status, report = await health.ask("/healthz")
    assert (status, report["status"]) == (200, "degraded")


async def test_one_store_of_a_pool_that_is_down() -> None:
    """A process that is taken out of service would not serve the other stores either."""
    members = {name: FaultyStore(MemoryStore()) for name in "ab"}

    async def open_member(name: str) -> Any:
        return members[name]

    async def open_group(url: str) -> Any:
        return await GroupStore.open("wide", {name: partial(open_member, name) for name in members})

    async with Pools({"default": "group:"}, open_store=open_group) as pools:
        transport = httpx.ASGITransport(Starlette(routes=health_routes(pools, asyncio.Event(), detailed=True)))
        async with httpx.AsyncClient(transport=transport, base_url="http://health") as client:
            members["b"].down()
            assert (await client.get("/readyz")).status_code == 200
            report = (await client.get("/healthz")).json()
            assert report["pools"]["default"]["problems"] == {"b": "store_unavailable"}


async def test_a_drain(health: HealthApp) -> None:
    health.draining.set()
    assert await health.ask("/readyz") == (503, {"status": "draining"})


async def test_an_engine_whose_duty_died(health: HealthApp) -> None:
    gate = asyncio.Event()

    async def bug(limit: int = 0) -> Reaped:
        raise ZeroDivisionError

    async def stay_down(url: str) -> MemoryStore:
        await gate.wait()
        return MemoryStore()

    health.pools._open_store = stay_down
    health.stores[0].inner.reap = bug  # type: ignore[method-assign]
    await until(health.pools.errors)
    assert await health.ask("/readyz") == (503, {"status": "not ready", "down": ["default"]})
    gate.set()
    await until(lambda: not health.pools.errors())
    assert (await health.ask("/readyz"))[0] == 200


async def test_a_duty_that_does_not_come_back(health: HealthApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duties, "STUCK_S", 0.0)
    health.stores[0].slow("reap", request=asyncio.Event())
    await until(lambda: health.pools.engine("default").stuck == ["reaper"])
    status, report = await health.ask("/readyz")
    assert (status, report["down"]) == (503, ["default"])
    assert (await health.ask("/healthz"))[1]["pools"]["default"] == {"status": "stuck", "loops": ["reaper"]}


async def test_a_loop_companions_the_listeners_that_died(health: HealthApp) -> None:
    async def end() -> None:
        return

    forever = asyncio.create_task(asyncio.Event().wait())
    health.companions += [object(), Companion(forever)]
    assert (await health.ask("/readyz"))[0] == 200
    ended = asyncio.create_task(end())
    await ended
    health.companions.append(Companion(forever, ended))
    assert await health.ask("/readyz") == (503, {"status": "not ready", "down": ["companion"]})
    assert (await health.ask("/healthz"))[1]["dead"] == ["companion"]
    forever.cancel()
