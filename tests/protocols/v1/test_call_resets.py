"""An answer is finished when its caller has it: a connection that breaks before that leaves the answer where it was."""

import asyncio
import socket
import struct
from urllib.parse import urlsplit

import httpx
import pytest

from duetime.engine import Engine
from duetime.model.job import NewJob, State
from duetime.model.names import Queue
from duetime.stores.base import Store
from tests.protocols.v1.server import Served
from tests.protocols.v1.vocabulary import forgotten, ok, someone_waits

SUM = Queue("shop", "sum")
CALL = "/v1/queues/shop/sum/call?wait=10s"
RESET = struct.pack("ii", 1, 0)
DEADLINE_S = 60


async def call(served: Served, job_id: str) -> socket.socket:
    """Send a call; returns when the worker has its job and the caller waits for the answer."""
    address = urlsplit(served.url)
    client = socket.create_connection((address.hostname, address.port))
    client.setblocking(False)
    body = b'{"id": "%b"}' % job_id.encode()
    await asyncio.get_running_loop().sock_sendall(
        client, b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (CALL.encode(), len(body), body)
    )
    [job] = await served.engine.reserve([SUM], wait_ms=10_000)
    assert job.lease.id == job_id
    await served.engine.ack([job.lease])
    await someone_waits(served.engine)
    return client


async def answer(engine: Engine, job_id: str) -> None:
    await engine.push(Queue("shop", job_id), [NewJob("answer", b"42")])


async def arrived(client: socket.socket) -> None:
    """The answer lies in the client's kernel; nobody has read it."""
    readable = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(client, readable.set)
    async with asyncio.timeout(DEADLINE_S):
        await readable.wait()
    loop.remove_reader(client)


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.close()


async def ready_again(store: Store, job_id: str) -> None:
    """The answer waits for the caller to come back. It stays ready: nobody leases it any more for the one who left."""
    rounds = 0
    async with asyncio.timeout(DEADLINE_S):
        while rounds < 50:
            [found] = await store.get(Queue("shop", job_id), ["answer"])
            assert found is not None, "the answer is lost"
            rounds = rounds + 1 if found.state is State.READY else 0
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("end", ["unread", "crossing", "closed"])
async def test_a_reset_never_loses_the_answer(
    served: Served, store: Store, http: httpx.AsyncClient, scale: int, end: str
) -> None:
    for number in range(5 * scale):
        job_id = f"call-{number}"
        client = await call(served, job_id)
        match end:
            case "unread":
                await answer(served.engine, job_id)
                await arrived(client)
                reset(client)
            case "crossing":
                pushed = asyncio.create_task(answer(served.engine, job_id))
                await asyncio.sleep(0)
                reset(client)
                await pushed
            case _:
                pushed = asyncio.create_task(answer(served.engine, job_id))
                await asyncio.sleep(0)
                client.close()
                await pushed
        await ready_again(store, job_id)

        again = await ok(await http.post(CALL, json={"id": job_id}))

        assert again["body"] == "42"
        assert (await store.counts([SUM]))[0].total == 0, "the job ran, and is not pushed a second time"
    await forgotten(served.engine.store)


async def test_a_caller_that_reads_its_answer_and_closes_finishes_the_call(served: Served) -> None:
    client = await call(served, "x")
    await answer(served.engine, "x")
    async with asyncio.timeout(DEADLINE_S):
        data = b""
        while b"42" not in data:
            data += await asyncio.get_running_loop().sock_recv(client, 65_536)
    client.close()

    await forgotten(served.engine.store)


async def test_a_caller_that_stays_finishes_the_call(served: Served, http: httpx.AsyncClient) -> None:
    problem = await http.post(CALL.replace("10s", "0"), json={"id": "x"})
    assert problem.status_code == 504
    [job] = await served.engine.reserve([SUM])
    await answer(served.engine, "x")
    await served.engine.ack([job.lease])

    assert (await ok(await http.post(CALL, json={"id": "x"})))["body"] == "42"

    await forgotten(served.engine.store)
