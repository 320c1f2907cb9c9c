"""The last lines that a running task logs can be read by the program, over HTTP and by a command."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

import duetime
from duetime.model.clock import ManualClock
from duetime.model.errors import StoreUnavailable
from duetime.model.names import Queue
from duetime.stores.memory.store import MemoryStore
from duetime.testing import in_memory
from duetime.wire.job_output import MAX_OUTPUT, LastLines, clean_lines, output_names, read_output
from duetime.wire.payload import Payload, counter_name, write
from duetime.worker.current_job import OUTPUT, PROGRESS
from duetime.worker.held_jobs import HeldJobs
from duetime.worker.options import PoolKind, WorkerOptions
from duetime.worker.shared_counters import count, job_output, progress_name
from tests.e2e.shell import Shell
from tests.plugins.until import until
from tests.worker.conftest import Start
from tests.worker.test_http import server

__all__ = ["server"]

LOGGED = ["row 1 of 3", "at https://ann:***@example.com/rows", "second [31m line", "a record"]
MAIL = Queue("default", "mail")


@pytest.mark.parametrize("pool", ["processes", "threads"])
async def test_the_lines_of_a_running_task_can_be_read(start: Start, sample: Any, tmp_path: Path, pool: str) -> None:
    job_id = sample.talks.delay(str(tmp_path)).id
    worker = start("-c", "1", "--pool", pool)

    await until(lambda: sample.app.output("default", job_id) == LOGGED)
    assert sample.app.output("default", "another") == []
    (tmp_path / "end").touch()
    await worker.until_noted("processed")


@pytest.mark.parametrize("pool", ["processes", "threads"])
async def test_a_task_that_logs_without_a_pause_leaves_the_worker_its_loop(
    start: Start, sample: Any, tmp_path: Path, pool: str
) -> None:
    """The loop read line after line and did nothing else: it wrote no output, and renewed no lease."""
    job_id = sample.floods.delay(str(tmp_path)).id
    worker = start("-c", "1", "--pool", pool)

    await until(lambda: sample.app.output("default", job_id))
    (tmp_path / "end").touch()
    await worker.until_noted("processed")


async def test_over_http_and_by_a_command(start: Start, server: str, sample: Any, tmp_path: Path) -> None:
    sample.app.client_pusher._place["url"] = server
    job_id = (await asyncio.to_thread(sample.talks.delay, str(tmp_path))).id
    start("-c", "1", "--pool", "asyncio", at=server)
    shell = Shell(server, tmp_path)

    await until(lambda: asyncio.to_thread(sample.app.output, "default", job_id))
    assert shell.json("worker", "output", "default", job_id)[0]["lines"] == LOGGED
    assert shell.ok("worker", "output", "default", job_id).out == "\n".join(LOGGED) + "\n"


async def test_a_round_of_reports_asks_an_unavailable_store_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question takes seconds then, and the round also looks at the worker's memory and at restarts."""
    app = duetime.App("memory:")

    @app.task(name="talks")
    def talks() -> None: ...

    body, asked = write(Payload("talks", "talks", Raw(b"{}"), "1")), list[object]()

    async def refuse(call: object) -> Any:
        asked.append(call)
        raise StoreUnavailable("away")

    async with duetime.connect_async("memory:") as client:
        mail = client.queue("mail")
        await mail.bulk([body] * 3)
        jobs = HeldJobs(app, WorkerOptions(("mail",), PoolKind.THREADS, 3), client, asyncio.create_task)
        for job in await mail.reserve(limit=3):
            run = jobs.add(job.delivery)
            assert run is not None
            jobs.said(run, OUTPUT, ["a line"])
            jobs.said(run, PROGRESS, 50)
        with monkeypatch.context() as away:
            away.setattr(client, "send", refuse)
            await jobs.write_output()
            await jobs.write_progress()
            assert len(asked) == 2

        await jobs.write_output()
        await jobs.write_progress()
        for run in jobs.held.values():
            lease = run.delivery.lease
            assert (await client.send(job_output(lease.queue, lease.id))).lines == ["a line"]
            assert await client.send(count(lease.queue.namespace, progress_name(lease.queue, lease.id))) == 50


def test_a_task_of_a_test_may_log() -> None:
    app = duetime.App("memory:")

    @app.task
    def talks() -> None:
        duetime.current_job().log("nobody listens")

    with in_memory(app) as box:
        talks.delay()
        assert [one.is_done for one in box.run()] == [True]


# --- the text


@pytest.mark.parametrize(
    "line", ["x" * 10_000_000, "postgres://ann:" + "p" * 5_000 + "@host/", "Authorization: Bearer abc.def"]
)
def test_lines_are_short_and_have_no_secrets(line: str) -> None:
    [cleaned] = clean_lines(line)
    assert len(cleaned) <= 510
    assert "ppp" not in cleaned
    assert "abc" not in cleaned


def test_only_the_last_lines_are_kept() -> None:
    many = clean_lines("\n".join(f"line {number}" for number in range(1_000_000)))
    kept = LastLines(many).read()
    assert kept[-1] == "line 999999"
    assert MAX_OUTPUT - 20 < len("\n".join(kept)) <= MAX_OUTPUT
    assert LastLines(["é" * 500] * 3).read() == ["é" * 500]
    assert LastLines().read() == []


# --- the counters


async def written(store: MemoryStore, number: int, lines: list[str], *, parts: int | None = None) -> None:
    for name in output_names(MAIL, "j", number, lines)[:parts]:
        assert len(name) <= 600
        await store.registry.increment(counter_name("default", name), 1, life_ms=60_000)


async def test_the_last_complete_write_counts() -> None:
    store = MemoryStore()
    long = [f"{number} / é {'x' * 90}" for number in range(19)]
    assert len(output_names(MAIL, "j", 1, long)) == 4
    await written(store, 1, ["before"])
    await written(store, 2, long)
    await written(store, 3, long, parts=3)  # the worker is writing

    assert (await read_output(store.registry, MAIL, "j")).lines == long
    assert (await read_output(store.registry, MAIL, "other")).lines == []


@pytest.mark.parametrize(
    "name", ["", "9", "9/0/1", "x/0/1/a", "9/0/999999999999999/a", "9/1/1/a", "9/0/0/a", "9/²/1/a"]
)
async def test_names_that_no_worker_writes_are_skipped(name: str) -> None:
    store = MemoryStore()
    await written(store, 1, ["real"])
    [real] = output_names(MAIL, "j", 1, ["real"])
    await store.registry.increment(counter_name("default", real.removesuffix("1/0/1/real") + name), 1)

    assert (await read_output(store.registry, MAIL, "j")).lines == ["real"]


async def test_the_store_in_memory_forgets_counters_whose_life_is_over() -> None:
    clock = ManualClock(1_000)
    store = MemoryStore(clock)
    await store.registry.increment("ends", 1, life_ms=10)
    await store.registry.increment("stays", 1)
    clock.advance("10ms")
    await store.reap()

    assert list(store.registry._counters) == ["stays"]
