"""10. DELETE is 204 in any state, also where the id was never; a late one still stops redelivery."""

from tests.plugins.until import until
from tests.protocols.lmstfy.client import Lmstfy
from tests.protocols.lmstfy.test_09_tries import die


async def is_gone(lmstfy: Lmstfy, job_id: str) -> bool:
    return (await lmstfy.call("GET", f"q/job/{job_id}")).status == 404


async def test_in_any_state(lmstfy: Lmstfy) -> None:
    delayed = await lmstfy.publish("q", delay=60)
    leased = await lmstfy.publish("q")
    await lmstfy.consume("q")
    ready = await lmstfy.publish("q")
    [dead] = await die(lmstfy, "dying")
    for queue, job_id in [("q", delayed), ("q", leased), ("q", ready), ("dying", dead)]:
        for _ in range(2):
            response = await lmstfy.ack(queue, job_id)
            assert (response.status, response.body) == (204, b"")
        assert (await lmstfy.call("GET", f"{queue}/job/{job_id}")).status == 404
    assert await lmstfy.size("q") == 0
    assert await lmstfy.dead_size("dying") == 0


async def test_on_a_queue_that_never_held_it(lmstfy: Lmstfy) -> None:
    job_id = await lmstfy.publish("q")
    assert (await lmstfy.ack("other", job_id)).status == 204
    assert (await lmstfy.ack("q", "never")).status == 204
    assert await lmstfy.size("q") == 1


async def test_a_late_one_stops_redelivery(lmstfy: Lmstfy) -> None:
    job_id = await lmstfy.publish("q", tries=5)
    await lmstfy.consume("q", ttr=0)
    await until(lambda: is_ready(lmstfy))
    await lmstfy.ack("q", job_id)
    assert await lmstfy.consume("q") is None
    assert await is_gone(lmstfy, job_id)


async def is_ready(lmstfy: Lmstfy) -> bool:
    return await lmstfy.size("q") == 1


async def test_a_late_one_ends_the_second_delivery_too(lmstfy: Lmstfy) -> None:
    job_id = await lmstfy.publish("q", tries=5)
    await lmstfy.consume("q", ttr=0)
    assert (await lmstfy.consume("q", ttr=60, timeout=5))["job_id"] == job_id
    await lmstfy.ack("q", job_id)
    assert await is_gone(lmstfy, job_id)


async def test_a_publisher_can_recall_a_job(lmstfy: Lmstfy) -> None:
    recalled = await lmstfy.publish("q", delay=1)
    later = await lmstfy.publish("q", delay=1)
    await lmstfy.ack("q", recalled)
    assert [job["job_id"] for job in await lmstfy.consume("q", timeout=5, count=5)] == [later]
