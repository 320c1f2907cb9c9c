"""A long poll whose client has gone takes no job; one taken for it goes back to its place, its try restored."""

import asyncio
from collections.abc import Awaitable, Callable

from tests.plugins.until import until
from tests.protocols.lmstfy.client import Lmstfy
from tests.protocols.lmstfy.server import Server
from tests.protocols.lmstfy.wire import request_bytes


def poll_bytes(lmstfy: Lmstfy, queue: str, **query: object) -> bytes:
    return request_bytes("GET", f"/api/{lmstfy.namespace}/{queue}", headers={"X-Token": lmstfy.token}, query=query)


def has_parked(server: Server, polls: int) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return await server.parked() == polls

    return look


async def park(lmstfy: Lmstfy, server: Server, queue: str, **query: object) -> asyncio.StreamWriter:
    """A poll that the server has parked; closing its writer is the client's going."""
    parked = await server.parked()
    _, writer = await asyncio.open_connection(lmstfy.api.host, lmstfy.api.port)
    writer.write(poll_bytes(lmstfy, queue, **query))
    await until(has_parked(server, parked + 1))
    return writer


async def test_a_poll_whose_client_has_gone_is_over(lmstfy: Lmstfy, server: Server) -> None:
    before = await server.parked()
    for count in (1, 5):
        writer = await park(lmstfy, server, "q", timeout=60, count=count)
        writer.close()
        await until(has_parked(server, before))
    job_id = await lmstfy.publish("q", tries=1)
    job = await lmstfy.consume("q")
    assert (job["job_id"], job["remain_tries"]) == (job_id, 0), "the only try was not spent"


async def test_one_of_many_on_the_same_queue(lmstfy: Lmstfy, server: Server) -> None:
    before = await server.parked()
    gone = [await park(lmstfy, server, "q,r", timeout=60) for _ in range(10)]
    staying = asyncio.create_task(lmstfy.consume("q", timeout=60))
    await until(has_parked(server, before + 11))
    for writer in gone:
        writer.close()
    await until(has_parked(server, before + 1))
    job_id = await lmstfy.publish("q")
    assert (await staying)["job_id"] == job_id


async def test_a_race_between_going_and_publishing_costs_no_job_and_no_try(
    lmstfy: Lmstfy, server: Server, scale: int
) -> None:
    """Whoever wins: afterwards every job is delivered to somebody who is there, with all of its tries."""
    rounds = 30 * scale
    for _ in range(rounds):
        writer = await park(lmstfy, server, "q", timeout=60, ttr=1)
        publishing = asyncio.create_task(lmstfy.publish("q", tries=2))
        await asyncio.sleep(0)
        writer.transport.abort()
        job_id = await publishing
        job = await lmstfy.consume("q", timeout=20, ttr=60)
        assert job["job_id"] == job_id
        await lmstfy.ack("q", job_id)
    assert await lmstfy.size("q") == 0
    assert await lmstfy.dead_size("q") == 0


async def test_a_job_given_back_keeps_its_place_and_its_try(lmstfy: Lmstfy, server: Server) -> None:
    """Taken and answered, but the answer finds nobody: the server itself tells the application so."""
    ids = [await lmstfy.publish("q", tries=1) for _ in range(3)]
    await server.consume_for_nobody(lmstfy, "q", count=2)
    jobs = await lmstfy.consume("q", count=5)
    assert [job["job_id"] for job in jobs] == ids
    assert [job["remain_tries"] for job in jobs] == [0, 0, 0]


async def test_a_client_that_goes_gives_its_slot_back(lmstfy: Lmstfy, server: Server) -> None:
    limit = b'{"read":1,"interval":60}'
    await lmstfy.admin.request("POST", f"/token/{lmstfy.namespace}/{lmstfy.token}/limit", body=limit)
    before = await server.parked()
    writer = await park(lmstfy, server, "q", timeout=60)
    writer.close()
    await until(has_parked(server, before))
    await lmstfy.publish("q")

    async def consumed() -> bool:
        return (await lmstfy.call("GET", "q")).status == 200

    await until(consumed)
