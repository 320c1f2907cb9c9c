"""Announcements on MariaDB: how often a process looks for those of others, and how long they stay."""

import asyncio
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest

from duetime.engine import Engine
from duetime.model.names import Queue
from duetime.stores.mysql import store as wake_module
from duetime.stores.mysql.store import MysqlWakeHub
from duetime.stores.open import open_store
from duetime.stores.sql import wake as sql_wake
from duetime.stores.sql.wake import Announcement
from tests.plugins.mysql_server import PREFIX, MysqlServer
from tests.plugins.until import until

pytestmark = pytest.mark.store_kind("mysql")

QUEUE = Queue("shop", "mail")


async def test_announcements_are_looked_for_only_while_somebody_waits(
    mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, poll_once = list[float](), MysqlWakeHub._poll_once

    async def look(hub: MysqlWakeHub) -> None:
        looks.append(monotonic())
        await poll_once(hub)

    monkeypatch.setattr(MysqlWakeHub, "_poll_once", look)
    monkeypatch.setattr(sql_wake, "IDLE_POLL_S", 600.0)
    monkeypatch.setattr(sql_wake, "AWAKE_S", 0.1)
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


@pytest.fixture
def increment(request: pytest.FixtureRequest, mysql_server: MysqlServer) -> Iterator[int]:
    """How far apart the server's automatic numbers are: one for each node of a cluster."""
    mysql_server.administer(f"SET GLOBAL auto_increment_increment = {request.param}")
    yield request.param
    mysql_server.administer("SET GLOBAL auto_increment_increment = 1")


@pytest.mark.parametrize("increment", [1, 2, 7], indirect=True)
async def test_old_announcements_are_deleted_however_they_are_numbered(
    increment: int, mysql_url: str, mysql_server: MysqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake_module, "KEPT", 20)
    monkeypatch.setattr(wake_module, "SWEEP", 4)
    store: Any = await open_store(mysql_url)
    for _ in range(40):
        await store._server_hub._send(Announcement("x", 0, []))
    await store.close()
    [(left,)] = mysql_server.administer(f"SELECT count(*) FROM duetime.{PREFIX}announcements")
    assert 20 <= int(str(left)) < 24


async def test_processes_that_announce_only_once_delete_old_ones_too(
    mysql_url: str, mysql_server: MysqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake_module, "KEPT", 5)
    monkeypatch.setattr(wake_module, "SWEEP", 2)
    for _ in range(30):
        store: Any = await open_store(mysql_url)
        await store._server_hub._send(Announcement("x", 0, []))
        await store.close()
    [(left,)] = mysql_server.administer(f"SELECT count(*) FROM duetime.{PREFIX}announcements")
    # Each process begins to count somewhere: that none of the last 20 sweeps happens once in a million runs.
    assert int(str(left)) < 25
