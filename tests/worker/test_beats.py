"""A worker says who it is while it runs, for the console."""

import asyncio
from pathlib import Path
from typing import Any

from duetime.stores.open import open_store
from duetime.wire.payload import counter_name
from duetime.wire.worker_beats import PREFIX, WorkerBeat, beat_name, find_workers, read_workers
from tests.e2e.shell import Shell
from tests.plugins.until import until
from tests.worker.conftest import Start
from tests.worker.test_http import server

__all__ = ["server"]


async def test_a_worker_reports_its_host_and_pid(start: Start, url: str, sample: Any) -> None:
    worker = start("-c", "3", "--pool", "threads")
    store = await open_store(url)
    try:
        await until(lambda: store.registry.counters(counter_name("default", PREFIX)), deadline_s=120)
        [found] = (await find_workers(store.registry, "default")).workers
        assert (found.pool, found.concurrency, found.queues, found.jobs) == ("threads", 3, "default,other", 0)
        assert found.pid == worker.process.pid
    finally:
        await store.close()


async def test_workers_are_listed_with_what_they_run(
    start: Start, url: str, server: str, sample: Any, tmp_path: Path
) -> None:
    """By a command on a server, and on the store of that server."""
    sample.app.client_pusher._place["url"] = server
    handle = await asyncio.to_thread(sample.gate.delay, "a", str(tmp_path / "never"))
    worker = start("-c", "2", "--pool", "threads", at=server)
    for at in (server, url):
        shell = Shell(at, tmp_path)

        await until(lambda: any(one["running"] for one in shell.json("workers")))  # noqa: B023
        [one] = shell.json("workers")
        assert (one["pid"], one["jobs"], one["queues"]) == (worker.process.pid, 1, "default,other")
        [job] = one["running"]
        assert (job["queue"], job["id"], job["task"]) == ("default", handle.id, sample.gate.name)
        assert "tests.worker.sample.gate" in shell.ok("workers").out
        assert shell.json("workers", "--namespace", "other") == []


def test_the_last_beat_of_a_worker_counts_and_other_counters_do_not() -> None:
    beat = WorkerBeat("host", 7, "threads", 3, "q" * 500, 1)
    name = beat_name(beat)
    assert len(name) <= 300
    older = PREFIX + "1/" + name.partition("/")[2].partition("/")[2]
    found = read_workers({older: 9, name: 3, "workers/x/[]": 1, "workers/": 1, "workers/5/no": 2}, {}, "")
    assert [(one.host, one.pid, one.jobs) for one in found] == [("host", 7, 2)]
