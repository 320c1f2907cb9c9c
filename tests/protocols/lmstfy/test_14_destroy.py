"""14. Destroy touches ready jobs only."""

from tests.protocols.lmstfy.client import Lmstfy
from tests.protocols.lmstfy.test_09_tries import die


async def test_ready_ones_go_and_all_others_stay(lmstfy: Lmstfy) -> None:
    [dead] = await die(lmstfy, "q")
    leased = await lmstfy.publish("q")
    await lmstfy.consume("q")
    delayed = await lmstfy.publish("q", delay=60)
    ready = [await lmstfy.publish("q") for _ in range(3)]
    response = await lmstfy.call("DELETE", "q")
    assert (response.status, response.body) == (204, b"")
    assert await lmstfy.size("q") == 0
    assert await lmstfy.dead_size("q") == 1
    found = {job_id: (await lmstfy.call("GET", f"q/job/{job_id}")).status for job_id in [*ready, leased, delayed, dead]}
    assert found == {**dict.fromkeys(ready, 404), **dict.fromkeys([leased, delayed, dead], 200)}


async def test_more_than_one_step_of_jobs(lmstfy: Lmstfy, scale: int) -> None:
    body = b"[" + b"1," * 63 + b"1]"
    for _ in range(10 * scale):
        assert (await lmstfy.call("PUT", "q/bulk", body=body)).status == 201
    assert await lmstfy.size("q") == 640 * scale
    await lmstfy.call("DELETE", "q")
    assert await lmstfy.size("q") == 0


async def test_the_queue_lives_on(lmstfy: Lmstfy) -> None:
    await lmstfy.publish("q")
    await lmstfy.call("DELETE", "q")
    await lmstfy.call("DELETE", "q")
    job_id = await lmstfy.publish("q")
    assert (await lmstfy.consume("q"))["job_id"] == job_id
