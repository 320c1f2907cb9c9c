"""7. One object or an array; a batch never waits to fill up; a long poll never returns early."""

import asyncio
import time
from typing import Any

import pytest

from tests.plugins.until import until
from tests.protocols.lmstfy.client import Lmstfy
from tests.protocols.lmstfy.server import Server
from tests.protocols.lmstfy.test_disconnects import has_parked

LATE_S = 20.0
"""How late an answer may be on a busy machine; still before a poll of LONG_S ends. Early is not forgiven at all."""
LONG_S = 25


async def timed(lmstfy: Lmstfy, queue: str, **query: object) -> tuple[Any, float]:
    started = time.monotonic()
    found = await lmstfy.consume(queue, **query)
    return found, time.monotonic() - started


async def test_one_is_an_object_and_several_are_an_array(lmstfy: Lmstfy) -> None:
    for _ in range(4):
        await lmstfy.publish("q")
    assert isinstance(await lmstfy.consume("q"), dict)
    assert isinstance(await lmstfy.consume("q", count=1), dict)
    assert len(await lmstfy.consume("q", count=2)) == 2
    await lmstfy.publish("q")
    alone = await lmstfy.consume("q", count=100)
    assert isinstance(alone, list)
    assert len(alone) == 1


async def test_four_jobs_by_three_and_three(lmstfy: Lmstfy) -> None:
    for _ in range(4):
        await lmstfy.publish("q")
    first, first_s = await timed(lmstfy, "q", count=3, timeout=LONG_S)
    second, second_s = await timed(lmstfy, "q", count=3, timeout=LONG_S)
    third, third_s = await timed(lmstfy, "q", count=3, timeout=1)
    assert [len(first), len(second), third] == [3, 1, None]
    assert max(first_s, second_s) < LATE_S
    assert third_s >= 1.0


async def test_no_poll_is_early_by_a_millisecond(lmstfy: Lmstfy) -> None:
    polls = [(f"q{number}", 1, count) for number, count in enumerate([1, 2] * 10 + [100, 1])]  # side by side
    results = await asyncio.gather(
        *(timed(lmstfy, queue, timeout=timeout, count=count) for queue, timeout, count in polls)
    )
    for (_, timeout, _), (found, took_s) in zip(polls, results, strict=True):
        assert found is None
        assert took_s >= timeout


async def test_polls_of_names_that_no_queue_has_wait_too(lmstfy: Lmstfy) -> None:
    found, took_s = await timed(lmstfy, "x" * 300, timeout=1)
    assert found is None
    assert took_s >= 1.0


async def test_without_a_timeout_the_answer_comes_at_once(lmstfy: Lmstfy) -> None:
    for query in ({}, {"timeout": 0}, {"count": 5}, {"count": 5, "timeout": 0}):
        found, took_s = await timed(lmstfy, "q,r", **query)
        assert found is None
        assert took_s < LATE_S


@pytest.mark.parametrize("count", [1, 3])
async def test_a_parked_poll_gets_exactly_one_job(lmstfy: Lmstfy, server: Server, count: int) -> None:
    before = await server.parked()
    poll = asyncio.create_task(timed(lmstfy, "q,r", timeout=LONG_S, count=count))
    await until(has_parked(server, before + 1))
    bulk = await lmstfy.call("PUT", "r/bulk", body=b"[1, 2, 3]")
    assert bulk.status == 201
    found, took_s = await poll
    jobs = found if count > 1 else [found]
    assert isinstance(jobs, list)
    assert [job["queue"] for job in jobs] == ["r"]
    assert took_s < LATE_S
    assert await lmstfy.size("r") == 2


async def test_a_parked_poll_sees_a_delayed_job_when_it_is_due_and_not_before(lmstfy: Lmstfy) -> None:
    started = time.monotonic()
    job_id = await lmstfy.publish("q", delay=1)
    accepted = time.monotonic()
    job, _ = await timed(lmstfy, "q", timeout=LONG_S)
    delivered = time.monotonic()
    assert job["job_id"] == job_id
    assert delivered - started >= 1.0
    assert delivered - accepted < LATE_S
    assert job["elapsed_ms"] >= 999, "the id is made before the store says when it is due"


async def test_each_job_goes_to_one_of_many_polls(lmstfy: Lmstfy) -> None:
    polls = [asyncio.create_task(lmstfy.consume("q", timeout=LONG_S)) for _ in range(50)]
    ids = {await lmstfy.publish("q") for _ in range(50)}
    assert {job["job_id"] for job in await asyncio.gather(*polls)} == ids
