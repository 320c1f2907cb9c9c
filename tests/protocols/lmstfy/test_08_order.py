"""8. Queue order is priority; FIFO per queue; the real queue's name; a peek changes nothing."""

import asyncio

from tests.protocols.lmstfy.client import Lmstfy


async def test_first_in_first_out(lmstfy: Lmstfy) -> None:
    ids = [await lmstfy.publish("q", b"%d" % number) for number in range(30)]
    one_by_one = [(await lmstfy.consume("q"))["job_id"] for _ in range(10)]
    batches = [job["job_id"] for _ in range(2) for job in await lmstfy.consume("q", count=10)]
    assert one_by_one + batches == ids


async def test_first_in_first_out_within_a_millisecond(lmstfy: Lmstfy) -> None:
    bulk = await lmstfy.call("PUT", "q/bulk", body=b"[%b]" % b",".join(b"%d" % number for number in range(64)))
    assert [job["job_id"] for job in await lmstfy.consume("q", count=100)] == bulk.json()["job_ids"]


async def test_the_queue_named_first_comes_first(lmstfy: Lmstfy) -> None:
    for queue in ("low", "high", "middle"):
        for _ in range(2):
            await lmstfy.publish(queue)
    taken = [(await lmstfy.consume("high,middle,low"))["queue"] for _ in range(3)]
    rest = [job["queue"] for job in await lmstfy.consume("high,middle,low", count=10)]
    assert taken + rest == ["high", "high", "middle", "middle", "low", "low"]


async def test_many_queues_at_once_with_and_without_a_timeout(lmstfy: Lmstfy) -> None:
    await lmstfy.publish("b")
    await lmstfy.publish("c")
    assert (await lmstfy.consume("a,b,c", timeout=0))["queue"] == "b"
    assert (await lmstfy.consume("a,b,c", timeout=5))["queue"] == "c"
    poll = asyncio.create_task(lmstfy.consume("a,b,c", timeout=20))
    await lmstfy.publish("c")
    assert (await poll)["queue"] == "c"


async def test_a_peek_shows_the_first_and_changes_nothing(lmstfy: Lmstfy) -> None:
    ids = [await lmstfy.publish("q", b"%d" % number) for number in range(3)]
    for _ in range(5):
        assert (await lmstfy.call("GET", "q/peek")).json()["job_id"] == ids[0]
        assert (await lmstfy.call("GET", f"q/job/{ids[1]}")).json()["job_id"] == ids[1]
    assert await lmstfy.size("q") == 3
    assert [job["job_id"] for job in await lmstfy.consume("q", count=10)] == ids


async def test_sizes_are_exact(lmstfy: Lmstfy) -> None:
    ids = [await lmstfy.publish("q") for _ in range(5)]
    await lmstfy.publish("q", delay=60)
    await lmstfy.ack("q", ids[0])
    assert await lmstfy.size("q") == 4, "deleted and delayed ones do not count"
    await lmstfy.consume("q")
    assert await lmstfy.size("q") == 3
    assert (await lmstfy.call("GET", "q/peek")).json()["job_id"] == ids[2], "a deleted head is no head"
