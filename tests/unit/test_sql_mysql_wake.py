"""How often a process looks for announcements of others on MariaDB."""

import asyncio
from time import monotonic

import pytest

from duetime.engine import Engine
from duetime.names import Queue
from duetime.stores.mysql import wake as wake_module
from duetime.stores.mysql.wake import MysqlWakeHub
from duetime.stores.open import open_store
from tests.plugins.until import until

pytestmark = pytest.mark.store_kind("mysql")

QUEUE = Queue("shop", "mail")


async def test_announcements_are_looked_for_only_while_somebody_waits(
    mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look_once = list[float](), MysqlWakeHub._look_once

    async def look(hub: MysqlWakeHub) -> None:
        looks.append(monotonic())
        await look_once(hub)

    monkeypatch.setattr(MysqlWakeHub, "_look_once", look)
    monkeypatch.setattr(wake_module, "POLL_S", 600.0)
    monkeypatch.setattr(wake_module, "AWAKE_S", 0.1, raising=False)
    store = await open_store(mysql_url)
    async with Engine(store) as engine:
        await until(lambda: len(looks) > 1 and monotonic() - looks[-1] > 0.5)

        before = len(looks)
        waiting = asyncio.create_task(engine.reserve([QUEUE], wait_ms=600_000))
        await until(lambda: len(looks) > before)
        waiting.cancel()
        await until(lambda: monotonic() - looks[-1] > 0.5)

        before = len(looks)
        waiting = asyncio.create_task(engine.results(QUEUE, ["a"], wait_ms=600_000))
        await until(lambda: len(looks) > before)
        waiting.cancel()
    await store.close()
