"""Groups: the callback runs once, when all members are done."""

import asyncio
import signal
from typing import Any

import pytest

import duetime
from duetime import PREVIOUS, TaskFailed, TaskStatus, group
from duetime.model.errors import InvalidRequest
from duetime.model.job import State
from duetime.testing import in_memory
from tests.plugins.until import until
from tests.worker.conftest import Start
from tests.worker.test_http import server

__all__ = ["server"]


@pytest.fixture
def app() -> duetime.App:
    return duetime.App("redis://nowhere.example/0")


def test_the_callback_gets_the_results_in_the_order_of_the_members(app: duetime.App) -> None:
    @app.task
    def square(number: int) -> int:
        return number * number

    @app.task(queue="slow")
    async def word(text: str) -> str:
        return text

    @app.task(queue="last", result_ttl="1h")
    def collect(found: list[int | str], end: str) -> str:
        return " ".join(map(str, found)) + end

    members = [square.step(3), word.step("a"), square.options(queue="third").step(4), square.step(5)]
    with in_memory(app) as box:
        handle = group(*members).then(collect.step(PREVIOUS, "!")).delay()
        assert [one.queue for one in handle.members] == ["default", "slow", "third", "default"]
        assert handle.status() is TaskStatus.WAITING
        box.run("default", "slow")
        assert (handle.status(), box.counts("last").total) == (TaskStatus.WAITING, 2)  # one job of each queue joins
        box.run("third")
        assert handle.status() is TaskStatus.WAITING  # what brings the callback is on its way
        box.run("last")
        assert (handle.status(), handle.get()) == (TaskStatus.DONE, "9 a 16 25!")
        assert sum(box.counts(name).total for name in ("default", "slow", "third", "last")) == 0


@pytest.mark.parametrize("queue", ["default", "elsewhere"])
def test_a_callback_that_wants_no_results(app: duetime.App, queue: str) -> None:
    ran: list[str] = []

    @app.task
    def part(key: str) -> None:
        ran.append(key)

    with in_memory(app) as box:
        both = group(part.step("a"), part.step("b")).then(part.options(queue=queue, delay="1h").step("callback"))
        both.delay()
        both.delay()  # a group of its own
        box.run("default")
        box.run(queue)
        assert (sorted(ran), box.counts(queue).delayed) == (["a", "a", "b", "b"], 2)
        box.travel("1h")
        box.run(queue)
        assert ran[4:] == ["callback", "callback"]


def test_a_member_that_fails_holds_the_callback_until_it_is_brought_back(app: duetime.App) -> None:
    broken, ran = [True], list[str]()

    @app.task(tries=1)
    def part(key: str) -> None:
        if key == "b" and broken:
            raise ConnectionError("down")

    @app.task(result_ttl="1h")
    def callback() -> int:
        ran.append("callback")
        return 7

    with in_memory(app) as box:
        handle = group(part.step("a"), part.step("b"), part.step("c")).then(callback.step()).delay()
        box.run()
        assert (handle.status(), ran) == (TaskStatus.DEAD, [])
        with pytest.raises(TaskFailed, match="down"):
            handle.get()
        broken.clear()
        box.respawn("default", *(job.id for job in box.jobs("default", State.DEAD)))
        box.run()
        assert (handle.get(), ran) == (7, ["callback"])


def test_the_status_of_a_cancelled_group_is_gone(app: duetime.App) -> None:
    @app.task(result_ttl="1h")
    def part() -> None: ...

    with in_memory(app) as box:
        handle = group(part.step(), part.options(queue="other").step()).then(part.step()).delay()
        assert (handle.cancel(), handle.cancel(), handle.status()) == (True, False, TaskStatus.GONE)
        assert box.run() == []


def test_without_a_callback_there_is_a_handle_for_each(app: duetime.App) -> None:
    @app.task(result_ttl="1h")
    def double(number: int) -> int:
        return 2 * number

    with in_memory(app) as box:
        handles = group(double.step(1), double.options(queue="other").step(2)).delay()
        box.run()
        assert [one.get() for one in handles] == [2, 4]


def test_wrong_groups_are_refused(app: duetime.App) -> None:
    @app.task
    def part(key: str) -> None: ...

    for wrong in (group, lambda: group(part.step(PREVIOUS))):
        with pytest.raises(InvalidRequest):
            wrong()
    with pytest.raises(InvalidRequest, match="bytes"):
        group(part.step("x" * 600_000)).then(part.step("y" * 600_000)).delay()


def members(sample: Any, size: int) -> list[Any]:
    return [(sample.other_member if number % 5 == 1 else sample.member).step(number) for number in range(size)]


@pytest.mark.parametrize("url", ["redis", "postgres", "group"], indirect=True)
async def test_the_callback_runs_once_although_workers_are_killed(
    start: Start, sample: Any, scale: int, client: duetime.Client
) -> None:
    def left() -> int:
        return sum(client.queue(name).status().counts.total for name in ("default", "other"))

    size = 300 if scale == 1 else 1_000 * scale
    summed = await group(*members(sample, size)).then(sample.total.step(PREVIOUS)).delay_async()
    told = (
        await group(*[sample.member.step(number) for number in range(50)]).then(sample.all_done.step("k")).delay_async()
    )
    options = ("--queue", "default,other", "-c", "2", "--lease", "1s")
    for number, pool in enumerate(("processes", "threads", "asyncio")):
        worker = start("--pool", pool, *options)
        await until(lambda: len(worker.noted("member")) >= 10 + 7 * number or left() == 0)  # noqa: B023
        worker.signal(signal.SIGKILL)
    start("--pool", "threads", *options)
    start("--pool", "processes", *options)

    assert await summed.get_async("170s") == sum(range(size))
    assert await told.get_async("120s") == "k"
    await until(lambda: left() == 0)
    ran = [note["id"] for worker in start.started for note in worker.noted("callback")]
    assert sorted(ran) == sorted([summed.id, told.id])
    await sample.app.close_async()


async def test_groups_work_through_a_server(start: Start, server: str, sample: Any) -> None:
    worker = start("--pool", "threads", "--queue", "default,other", at=server)
    sample.app.client_pusher._place["url"] = server
    handle = await asyncio.to_thread(group(*members(sample, 40)).then(sample.total.step(PREVIOUS)).delay)
    assert await asyncio.to_thread(handle.get, "120s") == sum(range(40))
    assert len(worker.noted("callback")) == 1
