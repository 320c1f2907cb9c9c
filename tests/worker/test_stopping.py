"""Why a worker stops, with which exit code, and what it does with its jobs first."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import duetime
from duetime.model.errors import InvalidSettings
from duetime.model.job import State
from duetime.wire.payload import PAUSED_TASKS, PAUSES, RESTARTS, paused_task
from duetime.worker.daemon import load_app
from duetime.worker.shared_counters import count
from tests.plugins.until import until
from tests.worker.conftest import Start


@pytest.mark.parametrize(
    ("options", "reason", "ran"),
    [
        (["--once"], "max_jobs", 1),
        (["--max-jobs", "2"], "max_jobs", 2),
        (["--stop-when-empty"], "empty", 3),
        (["--stop-when-empty-for", "300ms", "--pool", "threads"], "empty_for", 3),
        (["--max-time", "600ms", "--pool", "threads"], "max_time", None),  # as many as the machine does in that time
    ],
)
def test_limits_end_a_worker(
    start: Start, client: Any, sample: Any, options: list[str], reason: str, ran: int | None
) -> None:
    for key in "abc":
        sample.plain.delay(key)

    worker = start(*options, "-c", "2")

    assert worker.end() == (0, reason), worker.err.read_text()
    done = len(worker.noted("ran"))
    assert ran in (done, None)
    assert client.queue("default").size() == 3 - done
    assert client.queue("default").counts().leased == 0


def test_once_without_a_job_ends_after_one_wait(start: Start) -> None:
    assert start("--once", "--sleep", "50ms").end() == (0, "empty")


def test_too_much_memory_in_the_worker_itself_is_exit_code_12(start: Start, sample: Any) -> None:
    sample.grow.delay(160)

    worker = start("--pool", "threads", "--memory", "150", "-c", "1")

    assert worker.end() == (12, "memory")
    assert worker.noted("grown")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
async def test_a_signal_lets_jobs_finish(
    start: Start, client: Any, sample: Any, tmp_path: Path, number: signal.Signals
) -> None:
    door = tmp_path / "open"
    sample.gate.delay("a", str(door))
    worker = start("-c", "1", "--pool", "processes")
    [began] = await worker.until_noted("began")
    sample.plain.delay("b")

    worker.signal(number)
    await worker.until_noted("interrupted")
    os.kill(began["pid"], number)  # as systemd or a terminal does, which signal the whole group
    door.touch()

    assert worker.end() == (0, "interrupted")
    assert [note["key"] for note in worker.noted("ran")] == ["a"]
    assert (client.queue("default").pending_size(), client.queue("default").reserved_size()) == (1, 0)


@pytest.mark.parametrize("pool", ["processes", "threads"])
async def test_a_second_signal_gives_jobs_back(
    start: Start, client: Any, sample: Any, tmp_path: Path, pool: str
) -> None:
    job_id = sample.gate.delay("a", str(tmp_path / "never")).id
    worker = start("-c", "1", "--pool", pool)
    await worker.until_noted("began")

    worker.signal(signal.SIGTERM)
    await worker.until_noted("interrupted")
    worker.signal(signal.SIGTERM)

    assert worker.end() == (0, "interrupted")
    job = client.queue("default").get(job_id)
    assert (job.state, job.used, job.attempt) == (State.READY, 0, 1)


@pytest.mark.parametrize("pool", ["processes", "threads"])
async def test_a_running_job_sees_that_its_worker_wants_to_stop(
    start: Start, client: Any, sample: Any, pool: str
) -> None:
    ids = {sample.polite.delay("a").id, sample.polite_gently.delay("b").id}
    worker = start("-c", "2", "--pool", pool)
    await worker.until_noted("began", 2)
    assert not worker.noted("saved")

    worker.signal(signal.SIGTERM)

    assert worker.end() == (0, "interrupted")
    assert {note["key"] for note in worker.noted("saved")} == {"a", "b"}
    assert {job.id for job in client.queue("default").list_jobs(State.DELAYED).jobs} == ids


async def test_a_restart_ends_all_workers_after_their_jobs(
    start: Start, client: Any, sample: Any, tmp_path: Path
) -> None:
    door = tmp_path / "open"
    sample.gate.delay("a", str(door))
    busy = start("-c", "1", "--pool", "threads")
    await busy.until_noted("began")
    idle = start("-c", "1", "--pool", "threads")
    await idle.until_noted("worker_starting")

    client.send(count("default", RESTARTS, 1))
    assert idle.end() == (0, "restart_signal")
    door.touch()
    assert busy.end() == (0, "restart_signal")

    assert len(busy.noted("ran")) == 1
    assert start("--stop-when-empty").end() == (0, "empty")


async def test_a_worker_pauses_and_resumes_by_signals(start: Start, client: Any, sample: Any) -> None:
    worker = start("-c", "1", "--pool", "threads")
    await worker.until_noted("worker_starting")

    worker.signal(signal.SIGUSR2)
    await worker.until_noted("pausing")
    sample.plain.delay("a")
    queue = client.queue("default")
    assert (queue.pending_size(), queue.reserved_size()) == (1, 0)
    worker.signal(signal.SIGCONT)

    await worker.until_noted("ran")
    kinds = [note["kind"] for note in worker.notes]
    assert kinds.index("resuming") < kinds.index("popped")
    worker.signal(signal.SIGUSR2)
    await worker.until_noted("pausing", 2)
    worker.signal(signal.SIGCONT)
    sample.plain.delay("b")
    await worker.until_noted("ran", key="b")


async def test_workers_of_a_namespace_are_paused_by_a_counter_also_those_that_start_then(
    start: Start, client: Any, sample: Any
) -> None:
    worker = start("-c", "1", "--pool", "threads")
    await worker.until_noted("worker_starting")
    client.send(count("default", PAUSES, 1))
    await worker.until_noted("pausing")
    worker.signal(signal.SIGUSR2)
    later = start("-c", "1", "--pool", "threads")
    await later.until_noted("pausing")
    sample.plain.delay("a")
    worker.signal(signal.SIGCONT)  # ends its own pause, not the other
    queue = client.queue("default")
    assert (queue.pending_size(), queue.reserved_size()) == (1, 0)

    client.send(count("default", PAUSES, -1))
    await later.until_noted("resuming")
    await worker.until_noted("resuming")
    await until(lambda: worker.noted("ran") or later.noted("ran"))


async def test_a_paused_queue_is_passed_over_until_it_is_resumed(start: Start, client: Any, sample: Any) -> None:
    client.queue("default").pause()
    sample.plain.delay("paused")
    sample.elsewhere.delay("other")
    worker = start("-c", "1", "--pool", "threads", "--queue", "default,other")

    await worker.until_noted("ran", key="other")
    assert not worker.noted("ran", key="paused")
    client.queue("default").resume()
    await worker.until_noted("ran", key="paused")


def test_queues_are_served_in_strict_order(start: Start, sample: Any) -> None:
    for number in range(3):
        sample.plain.delay(f"second {number}")
        sample.elsewhere.delay(f"first {number}")

    worker = start("-c", "1", "--queue", "other,default", "--stop-when-empty", "--pool", "threads")
    worker.end()

    assert [note["key"][:6] for note in worker.noted("ran")] == ["first "] * 3 + ["second"] * 3


def test_a_program_that_cannot_be_loaded(start: Start, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    worker = start.program(place="broken:app", PYTHONPATH=str(tmp_path))
    assert worker.end()[0] == 1
    assert "ZeroDivisionError" in worker.err.read_text()

    with pytest.raises(InvalidSettings, match="module 'nothing' not found"):
        load_app("nothing:app")
    with pytest.raises(InvalidSettings, match=r"must be a duetime\.App"):
        load_app("json:dumps")


async def test_jobs_that_a_task_pushes_run_too(start: Start, sample: Any) -> None:
    sample.pushes.delay("nested")

    for pool in ("processes", "threads"):
        worker = start("--pool", pool, "-c", "1", "--max-jobs", "2")
        assert worker.end() == (0, "max_jobs")
        assert worker.noted("ran", key="nested")
        sample.pushes.delay("nested")


def test_a_rest_follows_each_job(start: Start, sample: Any) -> None:
    for key in "abc":
        sample.plain.delay(key)

    worker = start("--rest", "10ms", "-c", "1", "--stop-when-empty", "--pool", "threads")

    assert worker.end() == (0, "empty")
    assert len(worker.noted("ran")) == 3


async def test_jobs_that_have_not_begun_are_left_to_others(
    start: Start, client: Any, sample: Any, tmp_path: Path
) -> None:
    """A worker whose places are taken holds no other job for long."""
    for key in range(50):
        sample.plain.delay(str(key))
    worker = start("-c", "1")
    await worker.until_noted("processed", 50)
    door = tmp_path / "open"
    for key in "ab":
        sample.gate.delay(key, str(door))

    await worker.until_noted("began")
    queue = client.queue("default")
    await until(lambda: queue.reserved_size() == 1)
    other = start("-c", "1", "--pool", "threads")
    await other.until_noted("began")
    door.touch()


@pytest.mark.parametrize("pool", ["processes", "threads", "asyncio"])
async def test_a_running_job_that_is_cancelled_is_stopped(
    start: Start, sample: Any, client: duetime.Client, tmp_path: Path, pool: str
) -> None:
    worker = start("--pool", pool, "-c", "1", "--lease", "1s")
    handle = sample.gate.delay("a", str(tmp_path / "never"))
    await worker.until_noted("began")

    client.queue("default").cancel(handle.id)
    await worker.until_noted("lease_lost")
    await worker.until_noted("attempted")
    sample.plain.delay("next")
    await worker.until_noted("ran", key="next")
    assert worker.noted("ran", key="a") == []


async def test_a_paused_task_waits_and_the_others_go_on(start: Start, sample: Any, client: duetime.Client) -> None:
    client.send(count("default", paused_task(sample.plain.name), 1))
    client.send(count("default", PAUSED_TASKS, 1))
    worker = start("--pool", "threads", "-c", "2")
    waits = sample.plain.options(tries=1).delay("waits")
    sample.gentle.delay("goes on")

    await worker.until_noted("ran", key="goes on")
    await worker.until_noted("postponed", id=waits.id)
    assert worker.noted("ran", key="waits") == []
    client.send(count("default", paused_task(sample.plain.name), -1))
    client.send(count("default", PAUSED_TASKS, -1))

    def has_run() -> bool:
        with suppress(duetime.DuetimeError):  # it runs, or is gone
            waits.reschedule(0)
        return bool(worker.noted("ran", key="waits"))

    await until(has_run, every_s=0.2)
