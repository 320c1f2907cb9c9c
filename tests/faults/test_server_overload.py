"""Greedy clients of a real server: its memory stays bounded, and healthy clients are served meanwhile.

The numbers of the issue (10,000 idle connections, 500 clients with 1 MiB each) at DUETIME_TEST_SCALE=10.
"""

import asyncio
import os
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.faults.load import Books, LoadClient
from tests.plugins.http_peer import Peer
from tests.plugins.served import ServedProcess, StartServer
from tests.plugins.until import until

MIB = 1_048_576
IDLE = 1_000
LARGE = 50
BUDGET = 16 * MIB
ROOM = 96 * MIB
"""What may come on top of the budget: copies on the way to the store, connections, the allocator's slack."""


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def memory_of(server: ServedProcess) -> int:
    """Resident bytes of the process that serves."""
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def most_memory_of(server: ServedProcess) -> int:
    """The highest that it ever was."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


@asynccontextmanager
async def connections(server: ServedProcess, count: int, greeting: bytes = b"") -> AsyncIterator[list[Peer]]:
    peers: list[Peer] = []
    try:
        for _ in range(count):
            peer = Peer(*await asyncio.open_connection("127.0.0.1", server.port))
            peers.append(peer)
            peer.say(greeting)
        yield peers
    finally:
        for peer in peers:
            peer.writer.transport.abort()
        await asyncio.sleep(0)


async def serve_healthy(server: ServedProcess, requests: int = 50) -> None:
    """Somebody with small jobs, on new connections and old ones."""
    books = Books()
    for _ in range(2):
        client = LoadClient(server.port, books)
        for _ in range(requests // 2):
            await client.push()
        client.close()
    assert books.lost == []
    assert books.refused == 0
    assert books.statuses == {201: requests}


async def test_idle_connections_cost_little_and_hold_up_nobody(start_server: StartServer, scale: int) -> None:
    server = start_server("--store", "memory:")
    before = memory_of(server)
    async with connections(server, IDLE * scale) as peers:
        await serve_healthy(server)
        assert memory_of(server) - before < ROOM + len(peers) * 16_384
        assert not any(peer.reader.at_eof() for peer in peers)
    assert server.stop()[0] == 0


async def test_more_idle_connections_than_allowed_make_room_for_who_asks(start_server: StartServer, scale: int) -> None:
    server = start_server("--store", "memory:", DUETIME_MAX_CONNECTIONS=str(100 * scale))
    async with connections(server, 300 * scale) as peers:
        await serve_healthy(server)
        await until(lambda: sum(peer.reader.at_eof() for peer in peers) >= 200 * scale - 1)
    assert server.stop()[0] == 0


async def test_slow_headers_end_while_others_are_served(start_server: StartServer, scale: int) -> None:
    server = start_server("--store", "memory:", DUETIME_HEADER_TIMEOUT="3s")
    before = memory_of(server)
    drip = b"PUT /api/ns/q HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"x" * 1000
    async with connections(server, IDLE * scale, drip) as peers:
        await serve_healthy(server)
        replies = await asyncio.gather(*(peer.head() for peer in peers))
        assert {status for status, _ in replies} == {408}
        assert memory_of(server) - before < ROOM + len(peers) * 16_384
    assert server.stop()[0] == 0


async def test_slow_bodies_end_while_others_are_served(start_server: StartServer, scale: int) -> None:
    server = start_server("--store", "memory:", DUETIME_BODY_TIMEOUT="3s")
    drip = b"PUT /api/ns/q HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\nx"
    async with connections(server, IDLE * scale // 2, drip) as peers:
        await serve_healthy(server)
        replies = await asyncio.gather(*(peer.head() for peer in peers))
        assert {status for status, _ in replies} == {408}
    assert server.stop()[0] == 0


async def test_large_bodies_at_once_are_taken_or_refused_within_the_budget(
    start_server: StartServer, tmp_path: Path, scale: int
) -> None:
    server = start_server("--store", f"sqlite:{tmp_path / 'jobs.db'}", DUETIME_MAX_BUFFERED=str(BUDGET))
    before = memory_of(server)
    body = b"x" * (MIB - 1)
    books = Books()
    clients = [LoadClient(server.port, books) for _ in range(LARGE * scale)]
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.push(body))
        await serve_healthy(server)
    for client in clients:
        client.close()
    assert books.lost == []
    assert set(books.statuses) == {201, 503}
    assert books.statuses[201] >= 1
    assert most_memory_of(server) - before < 2 * BUDGET + ROOM
    assert server.stop()[0] == 0
