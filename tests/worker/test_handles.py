"""Handles and results: what a push answers, and what it can ask and change afterwards."""

import asyncio
import signal
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import duetime
from duetime import TaskFailed, TaskStatus
from duetime.model.errors import InvalidRequest, JobNotFound
from duetime.model.job import MAX_RESULT, Event
from duetime.testing import in_memory
from duetime.worker.runs import Ended
from tests.worker.conftest import Start
from tests.worker.test_http import server

__all__ = ["server"]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duetime.worker.handle.PARK_S", 0.05)


@dataclass
class Price:
    cents: int
    at: datetime


def test_a_handle_asks_cancels_and_reschedules(app: duetime.App) -> None:
    @app.task
    def send(to: str) -> None: ...

    handle = send.later("10m", "ann")
    assert (handle.event, handle.status(), handle.queue) == (Event.ACCEPTED, TaskStatus.DELAYED, "default")
    moved = handle.reschedule("1h")
    assert moved.due_at - handle.born >= 3_600_000
    assert handle.reschedule(due_at="2020-01-01T00:00:00Z").due_at < handle.born
    assert handle.status() == "ready"
    assert (handle.cancel(), handle.cancel(), handle.status()) == (True, False, TaskStatus.GONE)
    with pytest.raises(JobNotFound):
        handle.reschedule("1h")


async def test_the_twins_do_the_same_inside_a_loop(app: duetime.App) -> None:
    @app.task
    def send(to: str) -> None: ...

    handle = await send.later_async("10m", "ann")
    assert await handle.status_async() is TaskStatus.DELAYED
    await handle.reschedule_async(0)
    assert await handle.status_async() is TaskStatus.READY
    assert await handle.cancel_async()
    await app.close_async()


def test_a_result_comes_back_with_its_type(app: duetime.App) -> None:
    @app.task(result_ttl="1h")
    def price(cents: int) -> Price:
        return Price(cents, datetime(2030, 1, 1, tzinfo=UTC))

    @app.task
    def nothing() -> int:
        return 1

    with in_memory(app) as box:
        handle = price.delay(7)
        with pytest.raises(TimeoutError):
            handle.get(timeout=0)
        box.run()
        assert handle.get() == Price(7, datetime(2030, 1, 1, tzinfo=UTC))
        assert asyncio.run(handle.get_async()) == handle.get(timeout=0)
        assert handle.status() is TaskStatus.DONE
        box.travel("61m")
        assert handle.status() is TaskStatus.GONE
        with pytest.raises(JobNotFound):
            handle.get()
        with pytest.raises(InvalidRequest, match="must have result_ttl"):
            nothing.delay().get()


def test_an_exception_comes_back_with_its_type_and_text(app: duetime.App) -> None:
    @app.task(tries=1, result_ttl="1h")
    def fail(text: str) -> None:
        raise LookupError(text)

    with in_memory(app) as box:
        handle = fail.delay("no such: order 17")
        box.run()
        assert handle.status() is TaskStatus.DEAD
        with pytest.raises(TaskFailed, match="no such: order 17") as caught:
            handle.get()
        assert caught.value.kind == "LookupError"
        assert "Traceback" in caught.value.traceback
        handle.cancel()
        with pytest.raises(JobNotFound):
            handle.get()


def test_a_result_that_cannot_be_kept_fails_the_job(app: duetime.App) -> None:
    @app.task(result_ttl="1h")
    def bad(large: bool) -> object:
        return "x" * MAX_RESULT if large else object()

    with in_memory(app) as box:
        handles = [bad.delay(True), bad.delay(False)]
        assert [one.ended for one in box.run()] == [Ended.FAIL] * 2
        for handle, text in zip(handles, ("must have at most", "cannot be written as JSON"), strict=True):
            with pytest.raises(TaskFailed, match=text):
                handle.get()
    with pytest.raises(InvalidRequest, match="31 days"):
        app.task(name="long", result_ttl="32d")(lambda: None)


@pytest.mark.parametrize("url", ["sqlite", "redis"], indirect=True)
@pytest.mark.parametrize("pool", ["processes", "threads", "asyncio"])
async def test_results_come_from_every_pool(start: Start, sample: Any, pool: str) -> None:
    start("--pool", pool, "-c", "2")
    adds = [sample.adds.delay(1, 2), sample.adds_gently.delay(3, 4), sample.adds.delay(0, 100_000)]
    assert [await asyncio.to_thread(one.get, "60s") for one in adds] == [[1, 2], [3, 4], [0, 100_000]]
    large = sample.large_result.delay(200_000)
    assert len(await asyncio.to_thread(large.get, "60s")) == 200_000
    with pytest.raises(TaskFailed, match="no such order"):
        await asyncio.to_thread(sample.fails_with.delay("no such order").get, "60s")


async def test_results_come_through_a_server(
    start: Start, server: str, sample: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    start("--pool", "asyncio", at=server)
    app = duetime.App(server)
    adds = app.task(name=sample.adds.name, result_ttl="1h")(sample.adds.function)
    try:
        assert await (await adds.delay_async(1, 2)) == [1, 2]
    finally:
        await app.close_async()


async def test_a_killed_worker_leaves_no_result_and_the_next_one_does(
    start: Start, sample: Any, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    first = start("--pool", "processes", "-c", "1", "--lease", "1s")
    handle = sample.gated_result.delay(str(gate))
    await first.until_noted("began")
    first.signal(signal.SIGKILL)
    second = start("--pool", "threads", "-c", "1", "--lease", "1s")
    await second.until_noted("began")
    assert await asyncio.to_thread(handle.status) is TaskStatus.LEASED
    gate.touch()
    assert await asyncio.to_thread(handle.get, "60s") == 2
