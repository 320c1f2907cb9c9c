"""Batches and the jobs of workers: how far they are, and how a batch is shifted and cancelled from its page."""

import time
import uuid

import pytest

import duetime
from duetime.model.names import Queue
from duetime.wire.job_output import output_names
from duetime.wire.worker_beats import RunBeat, WorkerBeat, beat_name, beat_number, run_name
from duetime.worker.batches import TaskBatch
from duetime.worker.shared_counters import count, progress_name
from tests.console.conftest import Visitor
from tests.plugins.serving import Served


@pytest.fixture
def app(console_server: Served) -> duetime.App:
    return duetime.App(f"sqlite://{console_server.log.parent}/jobs.db")


@pytest.fixture
def batch(app: duetime.App, client: duetime.Client) -> TaskBatch:
    """Two delayed jobs and a ready one."""
    made = app.batch(f"Newsletter {uuid.uuid4().hex[:6]}", queue="mail").open()
    client.queue(made.queue).bulk(["a", "b"], delay="1h")
    client.queue(made.queue).push("c")
    made.close()
    return made


def place(batch: TaskBatch) -> dict[str, str]:
    return {"pool": "default", "namespace": "default", "queue": batch.queue}


def test_a_batch_is_shifted_by_a_span(boss: Visitor, client: duetime.Client, batch: TaskBatch) -> None:
    queue = client.queue(batch.queue)
    before = {job.id: job.due_at for job in queue.list_jobs("delayed").jobs}
    assert "Shift" in boss.get("batches").text
    assert 'aria-sort="ascending"' in boss.get("batches", sort="-done").text
    assert "3 jobs shifted by 30m" in boss.post("do/shift-batch", **place(batch), by="30m").text
    after = {job.id: job.due_at for job in queue.list_jobs("delayed").jobs}
    assert all(after[one] - due == 1_800_000 for one, due in before.items())
    boss.post("do/shift-batch", **place(batch), by="-30m")
    after = {job.id: job.due_at for job in queue.list_jobs("delayed").jobs}
    assert all(after[one] == due for one, due in before.items())


def test_a_shift_that_is_no_span_is_refused_and_kept(boss: Visitor, batch: TaskBatch) -> None:
    answer = boss.post("do/shift-batch", **place(batch), by="soon")
    assert answer.status_code == 422
    assert 'value="soon"' in answer.text


def test_a_batch_is_cancelled_for_workers_too(boss: Visitor, client: duetime.Client, batch: TaskBatch) -> None:
    answer = boss.post("do/cancel-batch", **place(batch))
    assert "Batch cancelled, 3 waiting jobs deleted" in answer.text
    assert client.queue(batch.queue).status().counts.total == 0
    assert batch.status().state == "cancelled"
    assert "Cancel batch" in boss.get("audit").text
    refused = boss.post("do/cancel-batch", pool="default", namespace="default", queue="no-batch")
    assert "it is over or does not exist" in refused.text


def test_the_jobs_of_a_worker_show_how_far_they_are(boss: Visitor, client: duetime.Client, app: duetime.App) -> None:
    name = f"run{uuid.uuid4().hex[:10]}"
    queue = client.queue(name)
    queue.push("work", id=name)
    job = queue.take("1m", ttr="1h")
    number, now = beat_number(), int(time.time() * 1000)
    for counter in (
        beat_name(WorkerBeat("web-7", 4711, "threads", 3, name, now // 1000), number),
        run_name(RunBeat("web-7", 4711, name, name, "shop.resize", now - 5000), number),
    ):
        app.send(count("default", counter, 1, life_ms=25_000))
    app.send(count("default", progress_name(Queue("default", name), name), 42))
    for counter in output_names(Queue("default", name), name, 1, ["reading A-17.png", "tile 7 of <48>"]):
        app.send(count("default", counter, 1, life_ms=25_000))
    page = boss.get("workers").text
    assert "shop.resize" in page
    assert "42 %" in page
    assert "tile 7 of &lt;48&gt;" in page
    assert "reading A-17.png" not in page
    place = {"pool": "default", "namespace": "default", "queue": name, "id": name}
    page = boss.get("job", **place).text
    assert "42 %" in page
    assert "reading A-17.png\ntile 7 of &lt;48&gt;</pre>" in page
    job.ack()
    assert "Output" not in boss.get("job", **place).text
