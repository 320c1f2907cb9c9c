"""Jobs of tasks that a worker does not know, as during a rolling deploy."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

import duetime
from duetime.model.job import State
from tests.plugins.serving import read_samples, serving
from tests.plugins.until import until
from tests.worker.conftest import Start

OLDER = "tests.worker.older_sample:app"


@pytest.mark.parametrize(("url", "pool"), [("sqlite", "threads"), ("redis", "processes")], indirect=["url"])
async def test_a_worker_of_an_older_version_costs_no_job_a_try(
    start: Start, client: duetime.Client, sample: Any, pool: str
) -> None:
    sample.work.options(tries=1).bulk([(key,) for key in range(100)])
    queue = client.queue("default")
    older = start("-c", "2", "--pool", pool, place=OLDER)
    await older.until_noted("attempted", 10)
    newer = start("-c", "2", "--pool", pool)
    await newer.until_noted("ran", 60)  # both serve the queue for a while, then the older one goes
    older.signal(signal.SIGTERM)

    await until(lambda: queue.size() == 0, every_s=0.05, deadline_s=120)
    assert queue.dead.list_jobs().jobs == []
    assert sorted(note["key"] for note in newer.noted("ran")) == list(range(100))


async def test_a_job_of_an_unknown_task_waits_longer_each_time(
    start: Start, client: duetime.Client, sample: Any
) -> None:
    job_id = sample.work.options(tries=1).delay(1).id
    older = start("-c", "1", "--pool", "threads", place=OLDER)

    first, *_, last = await older.until_noted("postponed", 5)
    assert older.kinds(job_id)[:3] == ["popped", "postponed", "attempted"]
    assert first["failure"] == "duetime.worker.execution.UnknownTask"
    assert 0 < first["delay_ms"] < last["delay_ms"]
    await until(lambda: queue_state(client, job_id) is State.DELAYED)
    job = client.queue("default").get(job_id)
    assert (job.used, job.attempt >= 5) == (0, True)


def queue_state(client: duetime.Client, job_id: str) -> State:
    return client.queue("default").get(job_id).state


async def test_a_worker_that_stops_when_empty_does_not_wait_for_unknown_tasks(start: Start, sample: Any) -> None:
    sample.work.bulk([(1,), (2,)])

    older = start("--stop-when-empty", "--pool", "threads", place=OLDER)

    assert older.end() == (0, "empty")
    [line, *_] = [line for line in older.err.read_text().splitlines() if "unknown_task" in line]
    assert f"task={sample.work.name} queue=default" in line


def test_metrics_and_the_console_show_unknown_tasks(start: Start, url: str, sample: Any, tmp_path: Path) -> None:
    sample.work.delay(1)
    start("-c", "1", "--pool", "threads", place=OLDER)
    key = ("duetime_unknown_task_deliveries", frozenset({("pool", "default"), ("namespace", "default")}))
    with serving(tmp_path, "--dev", store=url) as served:
        asyncio.run(until(lambda: read_samples(httpx.get(f"{served.admin}/metrics").text).get(key, 0) > 0))
        page = httpx.get(f"{served.admin}/console/workers", timeout=60).text

    assert "Unknown tasks" in page
    assert sample.work.name in page
