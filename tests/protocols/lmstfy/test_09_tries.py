"""9. Tries are spent at delivery; out of tries and out of time is dead; respawn."""

import asyncio
import time
from typing import Any

from tests.plugins.until import until
from tests.protocols.lmstfy.client import Lmstfy
from tests.protocols.lmstfy.server import Server
from tests.protocols.lmstfy.test_disconnects import has_parked


async def die(lmstfy: Lmstfy, queue: str, jobs: int = 1) -> list[str]:
    """Ids of jobs that went to the dead letter, oldest first."""
    ids: list[str] = []
    for _ in range(jobs):
        ids.append(await lmstfy.publish(queue))
        assert (await lmstfy.consume(queue, ttr=0))["job_id"] == ids[-1]
        await until(lambda: is_dead(lmstfy, queue, len(ids)))
    return ids


async def is_dead(lmstfy: Lmstfy, queue: str, jobs: int) -> bool:
    return await lmstfy.dead_size(queue) == jobs


async def test_each_delivery_takes_one_try_and_then_the_job_is_dead(lmstfy: Lmstfy) -> None:
    job_id = await lmstfy.publish("q", tries=3)
    assert (await lmstfy.call("GET", "q/peek")).json()["remain_tries"] == 3
    left: list[int] = []
    for _ in range(3):
        job = await lmstfy.consume("q", ttr=0, timeout=5)
        assert job["job_id"] == job_id
        left.append(job["remain_tries"])
        if left[-1]:
            await until(lambda: peeked_tries(lmstfy, left[-1]))
    assert left == [2, 1, 0]
    await until(lambda: is_dead(lmstfy, "q", 1))
    assert await lmstfy.consume("q") is None


async def peeked_tries(lmstfy: Lmstfy, tries: int) -> bool:
    response = await lmstfy.call("GET", "q/peek")
    return response.status == 200 and bool(response.json()["remain_tries"] == tries)


async def test_peek_by_id_always_shows_no_tries(lmstfy: Lmstfy) -> None:
    ids = [await lmstfy.publish("q", tries=5), await lmstfy.publish("q", tries=5, delay=60)]
    [dead] = await die(lmstfy, "dying")
    await lmstfy.consume("q")
    for queue, job_id in [("q", ids[0]), ("q", ids[1]), ("dying", dead)]:
        job: dict[str, Any] = (await lmstfy.call("GET", f"{queue}/job/{job_id}")).json()
        assert (job["job_id"], job["remain_tries"]) == (job_id, 0), "leased, delayed and dead ones are found"
        assert "msg" not in job


async def test_a_lease_never_lapses_early(lmstfy: Lmstfy) -> None:
    await lmstfy.publish("q", tries=2)
    before = time.monotonic()
    await lmstfy.consume("q", ttr=1)
    taken = time.monotonic()
    assert await lmstfy.consume("q", ttr=1, timeout=5)
    again = time.monotonic()
    assert again - before >= 1.0
    assert again - taken < 2.0


async def test_the_dead_letter_shows_its_oldest(lmstfy: Lmstfy) -> None:
    ids = await die(lmstfy, "q", 2)
    expected = {"deadletter_head": ids[0], "deadletter_size": 2, "namespace": lmstfy.namespace, "queue": "q"}
    assert (await lmstfy.call("GET", "q/deadletter")).json() == expected
    assert (await lmstfy.call("DELETE", "q/deadletter")).status == 204
    assert (await lmstfy.call("GET", "q/deadletter")).json()["deadletter_head"] == ids[1]
    assert (await lmstfy.call("DELETE", "q/deadletter", limit=10)).status == 204
    assert await lmstfy.dead_size("q") == 0


async def test_respawn(lmstfy: Lmstfy) -> None:
    ids = await die(lmstfy, "q", 3)
    first = await lmstfy.call("PUT", "q/deadletter")
    assert (first.status, first.json()) == (200, {"count": 1, "msg": "respawned"})
    job = await lmstfy.consume("q")
    assert (job["job_id"], job["remain_tries"], job["ttl"]) == (ids[0], 0, 86_400), "oldest, one try, the default ttl"
    assert (await lmstfy.call("PUT", "q/deadletter", limit=1, ttl=0)).json()["count"] == 1
    assert (await lmstfy.consume("q"))["ttl"] == 0
    assert (await lmstfy.call("PUT", "q/deadletter", limit=2, ttl=10)).json()["count"] == 1, "there was only one"
    job = await lmstfy.consume("q", ttr=0)
    assert (job["job_id"], job["ttl"]) == (ids[2], 10)
    await until(lambda: is_dead(lmstfy, "q", 1))


async def test_respawn_wakes_a_poll_and_takes_the_longest_ttl(lmstfy: Lmstfy, server: Server) -> None:
    [job_id] = await die(lmstfy, "q")
    before = await server.parked()
    poll = asyncio.create_task(lmstfy.consume("q", timeout=25))
    await until(has_parked(server, before + 1))
    assert (await lmstfy.call("PUT", "q/deadletter", limit=2**63 - 1, ttl=2**63 - 1)).json()["count"] == 1
    assert (await poll)["job_id"] == job_id


async def test_an_expired_job_is_gone(lmstfy: Lmstfy) -> None:
    expiring = await lmstfy.publish("q", ttl=1)
    staying = await lmstfy.publish("q", ttl=60)
    await until(lambda: is_size(lmstfy, 1), every_s=0.05)
    assert (await lmstfy.call("GET", f"q/job/{expiring}")).status == 404
    assert (await lmstfy.consume("q"))["job_id"] == staying
    assert await lmstfy.dead_size("q") == 0


async def is_size(lmstfy: Lmstfy, size: int) -> bool:
    return await lmstfy.size("q") == size
