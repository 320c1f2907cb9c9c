"""A client that goes takes no job with it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from duetime.model.job import NewJob, State
from duetime.stores.base import Store
from tests.contract.vocabulary import QUEUE
from tests.protocols.v1.server import Served, serve
from tests.protocols.v1.vocabulary import MAIL, someone_waits

DEADLINE_S = 60


class Slow:
    """A store whose reserve takes as long as the test wants."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.entered = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def reserve(self, queue: Any, asks: Any) -> Any:
        self.entered.set()
        await self.go_on.wait()
        return await self._store.reserve(queue, asks)


@pytest.fixture
def slow(store: Store) -> Slow:
    return Slow(store)


@pytest.fixture
async def served(slow: Slow) -> AsyncIterator[Served]:
    async with serve(slow) as running:  # type: ignore[arg-type]
        yield running


async def send(served: Served, path: str, body: bytes, *, length: int | None = None) -> asyncio.StreamWriter:
    """Send a request; whoever holds the connection may close it."""
    address = urlsplit(served.url)
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    size = len(body) if length is None else length
    writer.write(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n".encode() + body)
    await writer.drain()
    return writer


async def hang_up(served: Served, writer: asyncio.StreamWriter) -> None:
    """Close the connection and wait until the server knows."""
    writer.close()
    async with asyncio.timeout(DEADLINE_S):
        while served.connections():  # noqa: ASYNC110 - the servers ring no bell
            await asyncio.sleep(0.001)


async def nobody_waits(served: Served) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while served.engine.parked:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def given_back(store: Store, job_id: str) -> None:
    """The job was delivered, is ready again, and none of its tries is used."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            [job] = await store.get(QUEUE, [job_id])
            assert job is not None
            if job.state is State.READY and job.attempt == 1:
                assert job.used == 0
                return
            await asyncio.sleep(0.001)


async def test_a_parked_reserve_ends_with_its_client(served: Served, store: Store) -> None:
    writer = await send(served, f"{MAIL}/reserve", b'{"wait": "1h"}')
    await someone_waits(served.engine)

    await hang_up(served, writer)

    await nobody_waits(served)
    await served.engine.push(QUEUE, [NewJob("a", b"")])
    [job] = await store.get(QUEUE, ["a"])
    assert job is not None
    assert (job.state, job.attempt) == (State.READY, 0)


async def test_a_parked_call_ends_with_its_client(served: Served) -> None:
    writer = await send(served, f"{MAIL}/call?wait=1h", b'{"id": "x"}')
    await someone_waits(served.engine)

    await hang_up(served, writer)

    await nobody_waits(served)


@pytest.mark.parametrize("wait", [b"0", b'"1h"'])
async def test_a_job_taken_for_a_gone_client_is_given_back(
    served: Served, slow: Slow, store: Store, wait: bytes
) -> None:
    await served.engine.push(QUEUE, [NewJob("a", b"")])
    slow.go_on.clear()
    writer = await send(served, f"{MAIL}/reserve", b'{"wait": ' + wait + b"}")
    await slow.entered.wait()

    await hang_up(served, writer)
    slow.go_on.set()

    await given_back(store, "a")


async def test_a_client_that_goes_while_it_sends(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    writer = await send(served, f"{MAIL}/jobs", b'{"body": ', length=1000)
    await asyncio.sleep(0.01)

    await hang_up(served, writer)

    await asyncio.sleep(0.01)
    assert not [record for record in caplog.records if record.name.startswith("duetime")]


async def test_a_push_is_done_even_if_its_client_goes(served: Served, store: Store) -> None:
    writer = await send(served, f"{MAIL}/jobs", b'{"id": "a"}')

    await hang_up(served, writer)

    async with asyncio.timeout(DEADLINE_S):
        while await store.get(QUEUE, ["a"]) == [None]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
