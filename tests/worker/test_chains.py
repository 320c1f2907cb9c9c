"""Chains: the next step exists if and only if the step before it is done."""

import asyncio
import signal
from typing import Any

import pytest

import duetime
from duetime import PREVIOUS, TaskFailed, TaskStatus, chain
from duetime.model.errors import InvalidRequest, JobNotFound
from duetime.model.job import State
from duetime.testing import in_memory
from duetime.worker.middleware import debounce
from tests.plugins.until import until
from tests.worker.conftest import Start
from tests.worker.test_http import server

__all__ = ["server"]


@pytest.fixture
def app() -> duetime.App:
    return duetime.App("redis://nowhere.example/0")


def test_steps_run_one_after_the_other_with_results(app: duetime.App) -> None:
    ran: list[str] = []

    @app.task
    def fetch(url: str) -> dict[str, int]:
        ran.append(f"fetch {url}")
        return {"size": 3}

    @app.task(queue="slow", tries=2, backoff="10s")
    async def measure(found: dict[str, int], times: int = 1) -> int:
        ran.append(f"measure {found}")
        return found["size"] * times

    @app.task(result_ttl="1h")
    def store(size: int) -> str:
        ran.append(f"store {size}")
        return f"stored {size}"

    steps = chain(
        fetch.step("a"), measure.options(headers={"tenant": "x"}).step(PREVIOUS, times=2), store.step(PREVIOUS)
    )
    with in_memory(app) as box:
        handle = steps.delay()
        assert handle.status() is TaskStatus.WAITING
        assert (box.counts("default").ready, box.counts("slow").ready) == (1, 0)
        box.run("default")  # also the job that carries the next step to its queue
        [waiting] = box.jobs("slow", State.READY)
        assert (waiting.tries, waiting.attributes) == (2, {"tenant": "x"})
        assert handle.status() is TaskStatus.WAITING
        box.run("default", "slow")
        assert ran == ["fetch a", "measure {'size': 3}", "store 6"]
        assert handle.get() == "stored 6"
        assert steps.delay().id != handle.id  # a chain can be pushed again


def test_a_step_that_fails_holds_the_chain_until_it_is_brought_back(app: duetime.App) -> None:
    broken = [True]

    @app.task(tries=1)
    def first() -> None:
        if broken:
            raise ConnectionError("down")

    @app.task(result_ttl="1h")
    def second() -> int:
        return 2

    with in_memory(app) as box:
        handle = chain(first.step(), second.step()).delay()
        box.run()
        assert handle.status() is TaskStatus.DEAD
        with pytest.raises(TaskFailed, match="down"):
            handle.get()
        broken.clear()
        [dead] = box.jobs("default", State.DEAD)
        box.respawn("default", dead.id)
        box.run()
        assert handle.get() == 2


def test_cancelling_the_step_of_now_ends_the_chain(app: duetime.App) -> None:
    @app.task(result_ttl="1h")
    def step(cancel: bool = False) -> None:
        if cancel:
            raise duetime.Cancel

    with in_memory(app) as box:
        handle = chain(step.step(), step.options(delay="1h").step(), step.step()).delay()
        box.run()
        assert (handle.cancel(), handle.cancel(), handle.status()) == (True, False, TaskStatus.GONE)
        with pytest.raises(JobNotFound):
            handle.get()
        handle = chain(step.step(cancel=True), step.step()).delay()
        box.run()
        assert handle.status() is TaskStatus.GONE
        assert box.counts("default").total == 0


def test_wrong_steps_are_refused(app: duetime.App) -> None:
    @app.task
    def plain(key: int) -> None: ...

    @app.task(unique_for="1h")
    def unique(key: int) -> None: ...

    @app.task(middleware=[debounce("1s")])
    def debounced(key: int) -> None: ...

    for wrong in (lambda: unique.step(1), lambda: debounced.step(1), lambda: plain.options(id="a").step(1), chain):
        with pytest.raises(InvalidRequest):
            wrong()
    with pytest.raises(InvalidRequest, match="first step"):
        chain(plain.step(PREVIOUS))
    with pytest.raises(InvalidRequest):
        plain.step("no number")
    with pytest.raises(InvalidRequest, match="bytes"):
        chain(*[plain.options(headers={"a": "x" * 1000}).step(1) for _ in range(2000)]).delay()


def long_chain(sample: Any, key: str) -> Any:
    steps = [sample.next_step.step(PREVIOUS, number) for number in range(2, 6)]
    steps[1:1] = [sample.other_step.step(PREVIOUS, 99)]
    return chain(sample.first_step.step(key), *steps)


@pytest.mark.parametrize("url", ["sqlite", "redis", "postgres", "mysql"], indirect=True)
async def test_chains_end_although_workers_are_killed_all_the_time(start: Start, sample: Any, scale: float) -> None:
    keys = [f"k{number}" for number in range(max(6, int(10 * scale)))]
    handles = [await long_chain(sample, key).delay_async() for key in keys]
    options = ("--queue", "default,other", "-c", "2", "--lease", "1s")
    for number, pool in enumerate(("processes", "threads", "asyncio")):
        worker = start("--pool", pool, *options)
        await worker.until_noted("step", 2 + number)
        worker.signal(signal.SIGKILL)
    start("--pool", "threads", *options)
    values = [await handle.get_async("120s") for handle in handles]

    assert values == [[key, "2", "other 99", "3", "4", "5"] for key in keys]
    await until(lambda: left(sample) == 0)
    await sample.app.close_async()


def left(sample: Any) -> int:
    with duetime.connect(sample.app.url) as client:
        return sum(client.queue(name).status().counts.total for name in ("default", "other"))


async def test_chains_work_through_a_server(start: Start, server: str, sample: Any) -> None:
    start("--pool", "threads", "--queue", "default,other", at=server)
    sample.app.client_pusher._place["url"] = server
    handle = await asyncio.to_thread(long_chain(sample, "k").delay)
    assert await asyncio.to_thread(handle.get, "120s") == ["k", "2", "other 99", "3", "4", "5"]
