"""What listeners hear about a job, in which order: Laravel's sequences, and ours where we do better."""

import json
import signal
from typing import Any

import pytest

from duetime.model.job import State
from tests.plugins.until import until
from tests.worker.conftest import Start

RELEASED = ["popped", "processing", "exception_occurred", "released_after_exception", "attempted"]
LAST = ["popped", "processing", "failed", "exception_occurred", "attempted"]
LATE = ["popped", "processing", "timed_out", "released_after_exception", "attempted"]
TOO_LATE = ["popped", "processing", "failed", "timed_out", "attempted"]
DONE = ["popped", "processing", "processed", "attempted"]

EXPECTED = {
    "plain": DONE,
    "gentle": DONE,
    "boom": [*RELEASED, "popped", "processing", "hook", "failed", "exception_occurred", "attempted"],
    "booms": [*RELEASED, *LAST],
    "again": ["popped", "processing", "processed", "released", "attempted", *DONE],
    "never_again": ["popped", "processing", "failed", "processed", "attempted"],
    "cancelled": ["popped", "processing", "cancelled", "attempted"],
    "hopeless": ["popped", "processing", "failed", "processed", "attempted"],
    "slow": [*LATE, *TOO_LATE],
    "slow_gently": [*LATE, *TOO_LATE],
}
REASONS = {"boom": "tries", "booms": "killed", "never_again": "tries", "hopeless": "killed", "slow": "tries"}


@pytest.mark.parametrize("pool", ["processes", "threads"])
async def test_every_end_of_a_job_has_its_sequence(start: Start, client: Any, sample: Any, pool: str) -> None:
    arguments = {"plain": ("k",), "gentle": ("k",)}
    ids = {name: getattr(sample, name).delay(*arguments.get(name, ())).id for name in EXPECTED}
    foreign = client.queue("default").push("not a task").id
    late = client.queue("default").push({"job": "tests.worker.sample.boom", "retryUntil": 1}).id

    begin = start.program if pool == "processes" else start
    worker = begin("-c", "4", "--pool", pool, "--json")
    queue = client.queue("default")
    await until(lambda: queue.size() == 0, every_s=0.05)
    worker.signal(signal.SIGTERM)

    assert worker.end() == (0, "interrupted"), worker.err.read_text()
    assert {name: worker.kinds(job_id) for name, job_id in ids.items()} == EXPECTED
    assert worker.kinds(foreign) == LAST
    assert worker.kinds(late) == ["popped", "processing", "hook", "failed", "exception_occurred", "attempted"]
    dead = {job.id: job for job in queue.dead.list_jobs().jobs}
    assert {name: dead[ids[name]].reason for name in REASONS} == REASONS
    assert "ValueError: no" in dead[ids["boom"]].error
    lines = [json.loads(line) for line in worker.out.read_text().splitlines()]
    assert [line["status"] for line in lines if line["id"] == ids["boom"]] == [
        "starting",
        "released_after_exception",
        "starting",
        "failed",
    ]
    assert lines[0].keys() == {
        *("level", "id", "uuid", "connection", "queue", "job", "status", "result", "attempts", "exception"),
        *("message", "timestamp", "duration"),
    }


async def test_retry_until_takes_the_place_of_tries(start: Start, client: Any, sample: Any) -> None:
    worker = start("-c", "1")
    await worker.until_noted("worker_starting")
    job_id = sample.until_then.delay().id
    await worker.until_noted("failed")
    await until(lambda: worker.kinds(job_id)[-1] == "attempted")

    kinds = worker.kinds(job_id)
    assert kinds[:5] == RELEASED
    assert kinds[-5:] == LAST
    queue = client.queue("default")
    assert [job.id for job in queue.list_jobs(State.DEAD).jobs] == [job_id]

    # Its time is over, but somebody wants it tried again: it runs, and its tries count.
    queue.dead.respawn([job_id])
    await until(lambda: worker.kinds(job_id)[len(kinds) :][-1:] == ["attempted"])
    assert worker.kinds(job_id)[len(kinds) :] == LAST
    assert queue.get(job_id).error.endswith("ValueError: not yet\n")
