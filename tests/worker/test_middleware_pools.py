"""Middleware in real workers: every pool, several of them, on stores and through a server, with kills."""

import importlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import duetime
from duetime.model.job import Event
from tests.plugins.until import until
from tests.worker.conftest import Start
from tests.worker.test_http import server

__all__ = ["server"]

PLACE = "tests.worker.middleware_sample:app"
POOLS = ["processes", "threads", "asyncio"]


@pytest.fixture
def tasks(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The sample's tasks, to push with, on the store of the test."""
    monkeypatch.setenv("DUETIME_URL", url)
    monkeypatch.setenv("SAMPLE_LOG", str(tmp_path / "producer.log"))
    for name in ("tests.worker.sample", "tests.worker.middleware_sample"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module("tests.worker.middleware_sample")
    yield module
    module.app.close()
    for name in ("tests.worker.sample", "tests.worker.middleware_sample"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("pool", POOLS)
async def test_it_goes_around_both_colours_in_every_pool(start: Start, tasks: Any, pool: str) -> None:
    worker = start("--pool", pool, "-c", "1", place=PLACE)
    ids: dict[str, str] = {}
    for number, task in enumerate([tasks.traced, tasks.traced_gently, tasks.traced, tasks.traced_gently]):
        token = tasks.TENANT.set(f"tenant {number}")
        ids[task.delay(str(number)).id] = str(number)
        tasks.TENANT.reset(token)

    await worker.until_noted("after", 4)
    for job_id, key in ids.items():
        [before], [ran], [after] = (worker.noted(kind, id=job_id) for kind in ("before", "ran", "after"))
        assert (before["tenant"], ran["tenant"], ran["key"], after["answer"]) == (f"tenant {key}",) * 2 + (key, key)


@pytest.mark.parametrize("url", ["sqlite", "redis"], indirect=True)
async def test_a_rate_limit_holds_over_workers(start: Start, tasks: Any, client: duetime.Client) -> None:
    workers = [start("--pool", pool, "-c", "2", place=PLACE) for pool in POOLS]
    tasks.limited.bulk([()] * 40)

    await until(lambda: sum(len(worker.noted("postponed")) for worker in workers) >= 35)
    assert sum(len(worker.noted("ran")) for worker in workers) == 5
    assert client.queue("default").status().counts.delayed == 35


@pytest.mark.parametrize("url", ["sqlite", "redis", "postgres", "mysql"], indirect=True)
async def test_runs_of_a_key_never_overlap(start: Start, tasks: Any, tmp_path: Path) -> None:
    workers = [start("--pool", pool, "-c", "3", place=PLACE) for pool in POOLS]
    tasks.alone.bulk([(str(tmp_path),)] * 12)

    await until(lambda: sum(len(worker.noted("ran")) for worker in workers) >= 12)
    assert [worker.noted("overlap") for worker in workers] == [[]] * 3


@pytest.mark.parametrize("pool", POOLS)
async def test_a_lock_ends_with_the_lease_of_a_worker_that_was_killed(
    start: Start, tasks: Any, tmp_path: Path, pool: str
) -> None:
    gate = tmp_path / "gate"
    first = start("--pool", pool, "-c", "2", "--lease", "1s", place=PLACE)
    tasks.gate_alone.delay("a", str(gate))
    await first.until_noted("began")
    tasks.gate_alone.delay("b", str(gate))
    await first.until_noted("postponed")

    first.signal(signal.SIGKILL)
    second = start("--pool", pool, "-c", "2", "--lease", "1s", place=PLACE)
    await second.until_noted("began")
    await second.until_noted("postponed")
    assert len(second.noted("began")) == 1
    gate.touch()

    await second.until_noted("ran", 2)
    assert sorted(note["key"] for note in second.noted("ran")) == ["a", "b"]


async def test_all_of_it_works_through_a_server(
    start: Start, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("tasks")
    monkeypatch.setenv("DUETIME_URL", server)
    for name in ("tests.worker.sample", "tests.worker.middleware_sample"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    tasks = importlib.import_module("tests.worker.middleware_sample")
    with tasks.app:
        kept = [tasks.synced.delay(1).event, tasks.synced.delay(1).event]
        tasks.limited.bulk([()] * 8)
        tasks.alone.bulk([(str(tmp_path),)] * 4)
        tasks.paid.delay("4111")
        workers = [start("--pool", pool, "-c", "2", at=server, place=PLACE) for pool in ("processes", "asyncio")]

        await until(lambda: sum(len(worker.noted("ran")) for worker in workers) >= 5 + 4 + 1 + 1)
        await until(lambda: sum(len(w.noted("postponed", name=tasks.limited.name)) for w in workers) >= 3)
        assert kept == [Event.ACCEPTED, Event.KEPT]
        assert tasks.synced.delay(1).event is Event.ACCEPTED
        assert [worker.noted("overlap") for worker in workers] == [[]] * 2
