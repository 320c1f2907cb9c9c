"""Announcements on MariaDB: how often a process looks for those of others, and how long they stay."""

from collections.abc import Iterator
from typing import Any

import pytest

from duetime.model.names import Queue
from duetime.stores.mysql import store as wake_module
from duetime.stores.open import open_store
from duetime.stores.sql import wake as sql_wake
from duetime.stores.sql.wake import Announcement
from tests.plugins.mysql_server import PREFIX, MysqlServer
from tests.unit.test_sql_sqlite_wake import looks_only_while_somebody_waits

pytestmark = pytest.mark.store_kind("mysql")

QUEUE = Queue("shop", "mail")


async def test_announcements_are_polled_only_while_a_consumer_waits(
    mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_wake, "IDLE_POLL_S", 600.0)
    store: Any = await open_store(mysql_url)
    await looks_only_while_somebody_waits(store, "_poll_once", monkeypatch)
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
