"""The SDK repeats a push whose answer was lost, and the job is not done twice for that."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from duetime.client import AsyncClient
from duetime.client.calls import push_each
from duetime.model.errors import LeaseLost
from duetime.model.job import IfExists, NewJob
from duetime.model.names import Queue
from duetime.stores.memory.store import MemoryStore
from tests.faults.losing_proxy import LosingProxy
from tests.protocols.v1.server import serve

QUEUE = Queue("default", "mail")
JOBS = [NewJob("a", b""), NewJob("b", b"", due_at=1)]


@pytest.mark.parametrize(
    "push",
    [
        pytest.param(lambda client: client.queue("mail").push("hello"), id="push"),
        pytest.param(lambda client: client.queue("mail").push("hello", id="a", delay="1ms"), id="own-id"),
        pytest.param(lambda client: client.queue("mail").bulk(["a", "b"]), id="bulk"),
        pytest.param(lambda client: client.send(push_each(QUEUE, JOBS, IfExists.KEEP)), id="each"),
        pytest.param(lambda client: client.send(push_each(QUEUE, JOBS, IfExists.REPLACE)), id="replace"),
    ],
)
async def test_a_job_that_is_finished_before_its_push_is_repeated_is_done_once(
    push: Callable[[AsyncClient], Awaitable[object]],
) -> None:
    done: list[str] = []
    async with serve(MemoryStore()) as served, LosingProxy(int(served.url.rpartition(":")[2])) as proxy:

        async def finish() -> None:
            async with asyncio.timeout(60):
                while (await served.engine.store.counts([QUEUE]))[0].total:
                    deliveries = await served.engine.reserve([QUEUE], limit=10, wait_ms=60_000)
                    done.extend(one.lease.id for one in deliveries)
                    await served.engine.ack([one.lease for one in deliveries])

        async with AsyncClient(f"http://127.0.0.1:{proxy.port}") as client:
            proxy.loses_next, proxy.on_loss = True, finish
            await push(client)
        assert proxy.lost == 1
        assert done

        await finish()
        assert sorted(set(done)) == sorted(done)


async def test_a_pop_repeats_the_ack_that_it_brings_along() -> None:
    async with (
        serve(MemoryStore()) as served,
        LosingProxy(int(served.url.rpartition(":")[2])) as proxy,
        AsyncClient(f"http://127.0.0.1:{proxy.port}") as client,
    ):
        queue = client.queue("mail")
        await queue.bulk(["a", "b"])
        job = await queue.pop()
        proxy.loses_next = True
        job = await queue.pop(ack=job)
        assert job is not None
        assert (proxy.lost, job.body, await queue.size()) == (1, b"b", 1)
        stale = msgspec.structs.replace(job.lease, attempt=2)
        with pytest.raises(LeaseLost):
            await queue.pop(ack=stale)
        assert await queue.pop(ack=job) is None
