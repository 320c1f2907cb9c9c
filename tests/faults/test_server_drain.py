"""A stop under load: whoever has a connection gets its answer, everyone else is refused, no lease is left behind."""

import asyncio
from pathlib import Path

import pytest

from tests.faults.load import Books, LoadClient, counts, missing, repeat
from tests.plugins.served import StartServer
from tests.plugins.until import until

PUSHERS = 8
SHORT_LIVED = 4
POLLERS = 20


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_no_request_fails_but_for_refused_connections(
    start_server: StartServer, tmp_path: Path, scale: int, workers: str
) -> None:
    store = f"sqlite:{tmp_path / 'jobs.db'}"
    server = start_server("--workers", workers, "--store", store)
    books, idle = Books(), Books()
    kept = [LoadClient(server.port, books) for _ in range(PUSHERS * scale)]
    short = [LoadClient(server.port, books) for _ in range(SHORT_LIVED * scale)]
    pollers = [LoadClient(server.port, idle) for _ in range(POLLERS * scale)]

    async def push_once(client: LoadClient) -> None:
        await client.push()
        client.close()

    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for client in kept:
            group.create_task(repeat(client.push, stop))
        for client in short:
            group.create_task(repeat(lambda client=client: push_once(client), stop))
        polls = [group.create_task(client.ask(poll(number))) for number, client in enumerate(pollers)]
        await until(lambda: len(books.accepted) > 200)
        ended = asyncio.create_task(asyncio.to_thread(server.stop))
        await until(lambda: books.refused)
        stop.set()
        code, errors = await ended
        answers = [await poll for poll in polls]
    for client in (*kept, *short, *pollers):
        client.close()
    assert code == 0
    assert "ERROR" not in errors
    assert books.lost == []
    assert set(books.statuses) == {201}
    # The polls ended early, in good order and without a job.
    assert idle.lost == []
    assert all(answer is not None and answer[0] == 404 for answer in answers)
    assert await missing(store, books.accepted) == set()


def poll(number: int) -> bytes:
    return b"GET /api/ns/other%d?timeout=600 HTTP/1.1\r\nHost: localhost\r\n\r\n" % number


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_no_job_is_taken_for_a_poll_that_a_drain_ended(
    start_server: StartServer, tmp_path: Path, workers: str
) -> None:
    """Jobs come in while their consumers are drained: each is delivered or still ready, never leased to nobody."""
    store = f"sqlite:{tmp_path / 'jobs.db'}"
    server = start_server("--workers", workers, "--store", store)
    books, stop = Books(), asyncio.Event()
    pushers = [LoadClient(server.port, books) for _ in range(4)]
    takers = [LoadClient(server.port, books) for _ in range(POLLERS)]
    async with asyncio.TaskGroup() as group:
        for client in takers:
            group.create_task(repeat(client.take, stop))
        for client in pushers:
            group.create_task(repeat(client.push, stop))
        await until(lambda: len(books.delivered) > 200)
        ended = asyncio.create_task(asyncio.to_thread(server.stop))
        await until(lambda: books.refused)
        stop.set()
        code, _ = await ended
    for client in (*pushers, *takers):
        client.close()
    assert code == 0
    assert books.lost == []
    left = await counts(store)
    assert left.leased == len(books.delivered)
    assert left.ready + left.leased == len(books.accepted)
