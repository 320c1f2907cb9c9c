"""What goes wrong: workers and processes that die, jobs that take too long or too much, stores that go away."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import duetime
from duetime.model.job import Job, State
from tests.plugins.redis_server import RedisServer
from tests.plugins.until import until
from tests.worker.conftest import Start

LEASE = "3s"
"""Short, and longer than a busy machine holds up a worker."""


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def is_stopped(pid: int) -> bool:
    """Returns whether SIGSTOP took effect, which it does when the process is scheduled next."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def all_jobs(queue: Any) -> Iterator[Job]:
    for state in (State.LEASED, State.READY):
        cursor = None
        while True:
            page = queue.list_jobs(state, cursor=cursor, limit=500)
            yield from page.jobs
            if (cursor := page.cursor) is None:
                break


@pytest.mark.parametrize("pool", ["processes", "threads", "asyncio"])
async def test_every_exception_of_a_task_is_its_failure(
    start: Start, client: duetime.Client, sample: Any, pool: str
) -> None:
    for what in sample.RAISED:
        sample.raises.options(id=f"plain {what}").delay(what)
        sample.raises_gently.options(id=f"async {what}").delay(what)
    worker = start("-c", "2", "--pool", pool)
    queue = client.queue("default")
    await until(lambda: queue.counts().dead == 2 * len(sample.RAISED))
    worker.signal(signal.SIGTERM)
    assert worker.end() == (0, "interrupted")
    errors = {job.id: job.error.strip().splitlines()[-1] for job in queue.dead.list_jobs().jobs}
    for colour in ("plain", "async"):
        assert errors[f"{colour} text that UTF-8 cannot encode"] == "ValueError: no such file: ?"
        assert errors[f"{colour} deep"] == "RecursionError: too deep"
        assert errors[f"{colour} base"] == "BaseException: all else"


@pytest.mark.parametrize("url", ["sqlite", "redis", "postgres", "mysql"], indirect=True)
async def test_a_killed_worker_costs_only_what_it_was_running(
    start: Start, client: Any, sample: Any, scale: int
) -> None:
    jobs = 200 * scale
    queue = client.queue("default")
    made = [sample.work.prepare(None, None, (key,), {}).job for key in range(jobs)]
    keys = {job.id: key for key, job in enumerate(made)}
    queue.bulk(made)
    first = start.program("-c", "4", "--lease", LEASE)
    await first.until_noted("processed", jobs // 4)

    first.process.kill()
    first.process.wait()
    children = {note["pid"] for note in first.noted("child_starting")}
    await until(lambda: not any(map(is_alive, children)))
    held = {job.id for job in all_jobs(queue) if job.attempt}
    second = start("-c", "4", "--lease", LEASE)
    await until(lambda: queue.size() == 0, every_s=0.05)

    ran = Counter(note["key"] for worker in (first, second) for note in worker.noted("began"))
    assert set(ran) == set(range(jobs))
    twice = {key for key, times in ran.items() if times > 1}
    assert held.isdisjoint(note["id"] for note in first.noted("processed"))
    assert twice <= {keys[job_id] for job_id in held}
    assert queue.dead.list_jobs().jobs == []


@pytest.mark.parametrize("url", ["redis"], indirect=True)
async def test_jobs_of_a_stopped_worker_go_to_another(start: Start, client: Any, sample: Any) -> None:
    """It is stopped for longer than its leases last. Acks that it sends afterwards are refused by the fence.

    Not on SQLite: a process that is stopped within a transaction keeps the file locked.
    """
    jobs = 60
    queue = client.queue("default")
    queue.bulk([sample.work.prepare(None, None, (key,), {}).job for key in range(jobs)])
    paused = start.program("-c", "4", "--lease", "1s")
    await paused.until_noted("processed", 5)
    pids = [note["pid"] for note in paused.noted("child_starting")]
    for pid in (paused.process.pid, *pids):
        os.kill(pid, signal.SIGSTOP)
    await until(lambda: all(map(is_stopped, (paused.process.pid, *pids))))

    other = start("-c", "4", "--lease", "1s")
    await until(lambda: queue.size() == 0, every_s=0.05)
    for pid in (paused.process.pid, *pids):
        os.kill(pid, signal.SIGCONT)
    paused.signal(signal.SIGTERM)
    assert paused.end()[0] == 0

    ran = {note["key"] for worker in (paused, other) for note in worker.noted("began")}
    assert ran == set(range(jobs))
    processed = Counter(note["id"] for worker in (paused, other) for note in worker.noted("processed"))
    assert sum(processed.values()) >= jobs
    totals = queue.totals().running
    assert (totals.accepted, totals.acked, totals.dead) == (jobs, jobs, 0)


async def test_a_job_longer_than_its_lease_runs_once(start: Start, client: Any, sample: Any, tmp_path: Path) -> None:
    door = tmp_path / "open"
    job_id = sample.gate.delay("a", str(door)).id
    first = start("-c", "2", "--lease", LEASE)
    await first.until_noted("began")
    second = start("-c", "2", "--lease", LEASE)
    await second.until_noted("worker_starting")
    queue = client.queue("default")
    lease_until = queue.get(job_id).lease_until

    # A lease later it is still the first one's.
    await until(lambda: queue.get(job_id).lease_until > lease_until + 3000, every_s=0.05)
    door.touch()
    await first.until_noted("processed")

    assert queue.size() == 0
    assert not second.noted("began")
    assert len(first.noted("began")) == 1


async def test_a_stubborn_job_is_killed_with_its_process_and_the_worker_goes_on(
    start: Start, client: Any, sample: Any
) -> None:
    job_id = sample.stubborn.delay().id
    worker = start("-c", "1", "--pool", "processes")
    await worker.until_noted("attempted")

    [victim] = worker.noted("stubborn")
    assert not is_alive(victim["pid"])
    assert worker.kinds(job_id) == ["popped", "processing", "failed", "timed_out", "attempted"]
    assert client.queue("default").get(job_id).reason == "tries"
    sample.plain.delay("next")
    [after] = await worker.until_noted("ran")
    assert after["pid"] != victim["pid"]


async def test_a_stubborn_job_in_a_thread_is_left_behind(start: Start, client: Any, sample: Any) -> None:
    job_id = sample.stubborn.delay().id
    worker = start("-c", "1", "--pool", "threads")
    await worker.until_noted("attempted")

    assert client.queue("default").get(job_id).state is State.DEAD
    sample.plain.delay("next")
    await worker.until_noted("ran")
    worker.signal(signal.SIGTERM)
    assert worker.end() == (0, "interrupted")


async def test_a_process_that_has_grown_too_large_is_replaced(start: Start, sample: Any) -> None:
    worker = start("-c", "1", "--pool", "processes", "--memory", "150")
    [first] = await worker.until_noted("child_starting")
    sample.grow.delay(150)

    await worker.until_noted("child_starting", 2)
    await until(lambda: not is_alive(first["pid"]))
    sample.plain.delay("next")
    [after] = await worker.until_noted("ran")
    assert after["pid"] != first["pid"]
    assert worker.process.poll() is None


async def test_a_job_that_its_process_does_not_take_begins_once_in_another(start: Start, sample: Any) -> None:
    worker = start("-c", "2", "--pool", "processes")
    children = [note["pid"] for note in await worker.until_noted("child_starting", 2)]

    for number, slow in enumerate(children):  # one of them is the one that gets the next job
        os.kill(slow, signal.SIGSTOP)
        await until(lambda slow=slow: is_stopped(slow))  # until then it can still read a job
        try:
            job_id = sample.plain.delay(str(number)).id
            [ran] = await worker.until_noted("ran", key=str(number))
            await worker.until_noted("attempted", number + 1)
        finally:
            os.kill(slow, signal.SIGCONT)
        assert ran["pid"] != slow
        assert worker.kinds(job_id) == ["popped", "processing", "processed", "attempted"]


async def test_a_job_that_kills_its_process_has_failed(start: Start, client: Any, sample: Any) -> None:
    job_id = sample.suicide.delay().id
    sample.plain.delay("next")
    worker = start("-c", "1", "--pool", "processes")

    await worker.until_noted("ran")
    await worker.until_noted("attempted", 2)
    assert worker.kinds(job_id) == ["popped", "processing", "failed", "exception_occurred", "attempted"]
    assert "SIGKILL" in client.queue("default").get(job_id).error


@pytest.mark.parametrize("pool", ["processes", "threads"])
async def test_a_job_can_extend_its_time_and_report_its_progress(
    start: Start, client: Any, sample: Any, pool: str
) -> None:
    job_id = sample.extended.delay().id
    worker = start("-c", "1", "--pool", pool)

    [ran] = await worker.until_noted("ran")
    await worker.until_noted("processed")
    assert ran["queue"] == "default"
    await until(lambda: sample.app.progress("default", job_id) == 40)


def test_a_large_job_reaches_its_process(start: Start, sample: Any) -> None:
    sample.large.delay("x" * 900_000)

    worker = start("--max-jobs", "1", "--pool", "processes")

    assert worker.end() == (0, "max_jobs")
    assert worker.noted("ran", key=900_000)


async def test_an_outage_of_the_store_is_sat_out(
    start_redis: Callable[..., RedisServer], start: Start, tmp_path: Path
) -> None:
    server = start_redis(appendonly="yes", appendfsync="always")
    door = tmp_path / "open"
    with duetime.connect(server.url) as client:
        payload = {"job": "tests.worker.sample.gate", "data": {"key": "a", "path": str(door)}}
        client.queue("default").push(payload)
        worker = start("-c", "2", at=server.url)
        await worker.until_noted("began")

        server.kill()
        door.touch()
        await worker.until_noted("ran")
        assert worker.process.poll() is None
        server.start()
        await worker.until_noted("processed")

        await until(lambda: client.queue("default").size() == 0)
        client.queue("default").push({**payload, "data": {"key": "b", "path": str(door)}})
        await worker.until_noted("ran", key="b")


async def test_a_worker_stops_while_its_store_is_away(
    start_redis: Callable[..., RedisServer], start: Start, tmp_path: Path
) -> None:
    server = start_redis()
    door = tmp_path / "open"
    with duetime.connect(server.url) as client:
        client.queue("default").push({"job": "tests.worker.sample.gate", "data": {"key": "a", "path": str(door)}})
    worker = start("-c", "1", at=server.url, SAMPLE_REPORT_S="0.5")
    await worker.until_noted("began")

    server.kill()
    worker.signal(signal.SIGTERM)
    await worker.until_noted("interrupted")
    door.touch()

    assert worker.end() == (1, "interrupted")  # nobody knows that the job is done
    assert worker.noted("ran")


async def test_a_worker_that_can_start_no_process_ends(start: Start, client: Any, sample: Any, tmp_path: Path) -> None:
    door = tmp_path / "open"
    sample.gate.delay("a", str(door))
    worker = start("-c", "1", "--pool", "processes")
    [child] = await worker.until_noted("child_starting")
    await worker.until_noted("began")

    os.kill(child["parent"], signal.SIGKILL)
    door.touch()

    assert worker.end() == (1, "pool_lost")
    assert worker.noted("processed")
    await until(lambda: not is_alive(child["pid"]))
    assert client.queue("default").size() == 0


@pytest.mark.parametrize("body", ["[" * 60_000, '{"job":"plain","data":' + "[" * 60_000], ids=["no task", "a task"])
async def test_a_body_that_is_nested_too_deeply_is_a_dead_letter(
    body: str, start: Start, client: Any, sample: Any
) -> None:
    """Python's JSON readers raise RecursionError for it."""
    queue = client.queue("default")
    queue.push(body, id="deep")
    worker = start("-c", "1")
    sample.plain.delay("after")
    await worker.until_noted("ran", key="after")
    [dead] = queue.dead.list_jobs().jobs
    assert (dead.id, dead.reason) == ("deep", "killed")
