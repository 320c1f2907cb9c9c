"""kill -9 of worker processes and of their supervisor, under load: resets at most, and nothing accepted is lost."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.faults.load import Books, LoadClient, missing, repeat
from tests.faults.losing_proxy import LosingProxy
from tests.plugins.served import StartServer, is_running
from tests.plugins.until import until

CLIENTS = 8


SEVERAL = b"empty,q,idle"
"""Queues that each consumer waits on."""
LATENCY_S = 0.002


@pytest.fixture(params=["sqlite", "redis", "slow redis"])
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[str, str]]:
    """The store as the server reaches it, and as the test does."""
    if request.param == "sqlite":
        yield (f"sqlite:{tmp_path / 'jobs.db'}",) * 2
        return
    url: str = request.getfixturevalue("redis_url")
    if request.param == "redis":
        yield url, url
        return
    where = urlsplit(url)
    assert where.port
    async with LosingProxy(where.port) as proxy:
        proxy.delay_s = LATENCY_S
        yield f"redis://127.0.0.1:{proxy.port}{where.path}", url


async def test_workers_killed_under_load_lose_nothing(
    start_server: StartServer, stores: tuple[str, str], scale: int
) -> None:
    served, store = stores
    server = await asyncio.to_thread(start_server, "--workers", "2", "--store", served)
    books, stop = Books(), asyncio.Event()
    clients = [LoadClient(server.port, books, SEVERAL) for _ in range(2 * CLIENTS)]
    async with asyncio.TaskGroup() as group:
        for client in clients[:CLIENTS]:
            group.create_task(repeat(client.push, stop))
        for client in clients[CLIENTS:]:
            group.create_task(repeat(client.finish_one, stop))
        for _ in range(2 * scale):
            accepted = len(books.accepted)
            await until(lambda accepted=accepted: len(books.accepted) > accepted + 100)
            before = server.workers()
            os.kill(before[0], signal.SIGKILL)
            await until(lambda before=before: len(server.workers()) == 2 and server.workers() != before)
            # The other one serves on, and the new one's turn comes.
            accepted = len(books.accepted)
            await until(lambda accepted=accepted: len(books.accepted) > accepted + 100)
        stop.set()
    for client in clients:
        client.close()
    assert books.refused == 0
    assert set(books.statuses) <= {200, 201, 204, 404}
    assert books.resets <= 2 * scale * 2 * CLIENTS
    code, errors = await asyncio.to_thread(server.stop)
    assert code == 0
    assert errors.count("signal=SIGKILL") == 2 * scale
    assert await missing(store, books.accepted - books.finished) == set()


async def test_a_supervisor_killed_under_load_loses_nothing(start_server: StartServer, tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'jobs.db'}"
    server = start_server("--workers", "2", "--store", store)
    workers = server.workers()
    books, stop = Books(), asyncio.Event()
    clients = [LoadClient(server.port, books) for _ in range(CLIENTS)]
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(repeat(client.push, stop))
        await until(lambda: len(books.accepted) > 100)
        server.send(signal.SIGKILL)
        await until(lambda: not any(is_running(pid) for pid in workers))
        stop.set()
    for client in clients:
        client.close()
    # Its workers drain: even now every request that was sent has its answer.
    assert books.lost == []
    assert set(books.statuses) == {201}
    assert await missing(store, books.accepted) == set()


BACK_CPU_S = 2.0
"""Time on the processor, because the tests may share theirs; on a free machine it is the time that clients notice."""


def cpu_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


async def test_a_server_killed_under_load_is_back_soon(
    start_server: StartServer, stores: tuple[str, str], tmp_path: Path
) -> None:
    bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode")}  # as if installed
    store = ("--store", stores[0])
    server = await asyncio.to_thread(start_server, *store, **bytecode)
    books, stop = Books(), asyncio.Event()
    clients = [LoadClient(server.port, books) for _ in range(CLIENTS)]
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(repeat(client.push, stop))
        await until(lambda: len(books.accepted) > 2_000)
        await asyncio.to_thread(server.stop, signal.SIGKILL)
        stop.set()
    again = await asyncio.to_thread(start_server, *store, **bytecode)
    client = LoadClient(again.port, books)
    accepted = len(books.accepted)
    await client.push()
    assert len(books.accepted) == accepted + 1
    assert cpu_s(again.process.pid) < BACK_CPU_S
    for one in (*clients, client):
        one.close()
    assert await missing(stores[1], books.accepted) == set()
