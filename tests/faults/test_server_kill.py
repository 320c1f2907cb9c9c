"""kill -9 of worker processes and of their supervisor, under load: resets at most, and nothing accepted is lost."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.faults.load import Books, LoadClient, missing, repeat
from tests.plugins.served import StartServer, is_running
from tests.plugins.until import until

CLIENTS = 8


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.getfixturevalue("redis_url") if request.param == "redis" else f"sqlite:{tmp_path / 'jobs.db'}"


async def test_workers_killed_under_load_lose_nothing(start_server: StartServer, store: str, scale: int) -> None:
    server = start_server("--workers", "2", "--store", store)
    books, stop = Books(), asyncio.Event()
    clients = [LoadClient(server.port, books) for _ in range(2 * CLIENTS)]
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
    code, errors = server.stop()
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
