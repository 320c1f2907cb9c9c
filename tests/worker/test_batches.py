"""Batches: exact counts, pause, shift, cancel, and what runs at the end."""

import asyncio
import signal
from contextlib import suppress
from typing import Any

import pytest

import duetime
from duetime import PREVIOUS, State
from duetime.client.calls import configure, get
from duetime.model.errors import Conflict, InvalidRequest, NotFound
from duetime.model.names import check_queue
from duetime.stores.base import RulesChange
from duetime.testing import in_memory
from duetime.worker.batches import KEEPERS, KEPT_MS, read_keeper
from tests.plugins.until import until
from tests.worker.conftest import Start
from tests.worker.test_http import server

__all__ = ["server"]


class Program:
    """Tasks that write down what ran; numbers in `broken` fail."""

    def __init__(self) -> None:
        app = self.app = duetime.App("redis://nowhere.example/0")
        self.ran: list[Any] = []
        self.broken: set[int] = set()

        @app.task(tries=1, queue="mail")
        def part(number: int, more: int = 0) -> None:
            if number in self.broken:
                raise ConnectionError("down")
            self.ran.append(number)
            batch = duetime.current_job().batch
            assert batch is not None
            batch.add(*[part.step(number * 10 + one) for one in range(more)])

        @app.task
        def tell(word: str, status: duetime.BatchStatus) -> None:
            self.ran.append((word, status.done, status.failed, status.cancelled))

        self.part, self.tell = part, tell

    def open(self, **options: Any) -> duetime.TaskBatch:
        words = {"then": "then", "catch": "catch", "finally_": "finally"}
        told = {name: self.tell.step(word, PREVIOUS) for name, word in words.items()}
        return self.app.batch("letters", queue="mail", **told, **options).open()


@pytest.fixture
def program() -> Program:
    return Program()


def test_then_and_finally_run_once_when_all_is_done_and_it_is_closed(program: Program) -> None:
    with in_memory(program.app) as box:
        batch = program.open()
        batch.add(program.part.step(1), program.part.options(delay="1h").step(2))
        program.part.options(queue=batch.queue).bulk([(3,), (4,)])
        box.run()
        assert program.ran == [1, 3, 4]
        status = batch.status()
        assert (status.state, status.total, status.waiting, status.done, status.percent) == ("open", 4, 1, 3, 75)
        box.travel("1h")
        box.run()
        assert program.ran[3:] == [2]  # it is empty, and still open
        batch.close()
        box.run()
        assert program.ran[4:] == [("then", 4, 0, 0), ("finally", 4, 0, 0)]
        assert (batch.status().state, box.counts(KEEPERS).total) == ("ended", 0)
        box.travel("8d")
        box.run()
        assert len(program.ran) == 6
        assert 8 * 86_400_000 > KEPT_MS
        with pytest.raises(NotFound):
            batch.status()


def test_only_tasks_of_a_closed_batch_add_to_it(program: Program) -> None:
    with in_memory(program.app) as box:
        with program.open() as batch:
            batch.add(program.part.step(1, more=2))
        with pytest.raises(Conflict):
            batch.add(program.part.step(5))
        with pytest.raises(InvalidRequest):
            batch.add(program.part.step(PREVIOUS))
        box.run()
        assert program.ran == [1, 10, 11, ("then", 3, 0, 0), ("finally", 3, 0, 0)]


def test_the_first_failure_cancels_waiting_jobs(program: Program) -> None:
    program.broken = {1}
    with in_memory(program.app) as box:
        with program.open() as batch:
            batch.add(program.part.step(1), program.part.options(delay="1h").step(2))
        box.run()
        assert program.ran == [("catch", 0, 1, 0), ("finally", 0, 1, 1)]
        status = batch.status()
        assert (status.state, status.total, status.failed, status.cancelled) == ("ended", 2, 1, 1)
        box.travel("2h")
        assert box.run() == []


def test_with_allowed_failures_the_rest_runs_and_then_waits_for_the_dead(program: Program) -> None:
    program.broken = {1, 2}
    with in_memory(program.app) as box:
        with program.open(allow_failures=True) as batch:
            batch.add(*map(program.part.step, (1, 2, 3)))
        box.run()
        assert program.ran == [3, ("catch", 1, 2, 0), ("finally", 1, 2, 0)]
        program.broken.clear()
        box.respawn(batch.queue, *(job.id for job in box.jobs(batch.queue, State.DEAD)))
        box.run()
        assert sorted(program.ran[3:5]) == [1, 2]
        assert program.ran[5:] == [("then", 3, 0, 0)]
        assert box.counts(KEEPERS).total == 0


def test_a_block_that_raises_cancels_the_batch(program: Program) -> None:
    with in_memory(program.app) as box:
        batch = program.open()
        with suppress(LookupError), batch:
            batch.add(program.part.options(delay="1h").step(1))
            raise LookupError
        with pytest.raises(Conflict):
            batch.add(program.part.step(2))
        box.run()
        assert program.ran == [("finally", 0, 0, 1)]
        with pytest.raises(NotFound):
            batch.cancel()


def test_a_callback_that_is_refused_holds_up_no_other_batch(program: Program) -> None:
    app, ran = program.app, program.ran
    full = check_queue(app.namespace, "full")
    blocked = app.task(queue="full", name="blocked")(lambda: ran.append("blocked"))
    free = app.task(queue="free", name="free")(lambda: ran.append("free"))
    with in_memory(app) as box:
        app.send(configure(full, RulesChange(max_jobs=1)))
        blocked.later("1h")
        for task in (blocked, free):
            app.batch(queue="mail", then=task.step()).open().close()
        box.run()
        assert ran == ["free"]
        app.send(configure(full, RulesChange(max_jobs=2)))
        box.travel("1m")
        box.run()
        assert ran == ["free", "blocked"]
        assert box.counts(KEEPERS).total == 0


def test_the_longest_name_of_a_queue_has_batches_that_end_and_a_longer_one_is_refused(program: Program) -> None:
    app, ran = program.app, program.ran
    with in_memory(app) as box:
        with pytest.raises(InvalidRequest, match="at most 67 characters"):
            app.batch(queue="q" * 68)
        told = {"then": program.tell.step("then", PREVIOUS), "finally_": program.tell.step("finally", PREVIOUS)}
        app.batch(queue="q" * 67, **told).open().close()
        box.run()
        assert ran == [("then", 0, 0, 0), ("finally", 0, 0, 0)]


def test_concurrent_changes_of_a_batch_lose_nothing(program: Program) -> None:
    """One closes it between another's look and change."""
    with in_memory(program.app):
        batch = program.open()
        slow = batch.change(cancelled=True)
        answer = program.app.send(next(slow))
        batch.close()
        call = slow.send(answer)
        with pytest.raises(duetime.MarkMismatch) as refused:
            program.app.send(call)
        call = slow.throw(refused.value)
        with suppress(StopIteration):
            while True:
                call = slow.send(program.app.send(call))
        [job] = program.app.send(get(batch.keepers, [batch.id]))
        assert job is not None
        record = read_keeper(job.body)
        assert record is not None
        assert (record.closed, record.cancelled) == (True, True)


@pytest.mark.parametrize("url", ["sqlite", "redis"], indirect=True)
def test_a_large_batch_is_shifted_and_cancelled_half_way_with_exact_counts(sample: Any, scale: int) -> None:
    size = 3_000 if scale == 1 else 10_000 * scale
    with sample.app, duetime.connect(sample.app.url) as client:
        batch = sample.app.batch(queue="default").open()
        queue = client.queue(batch.queue)
        sample.plain.options(queue=batch.queue).bulk([(str(number),) for number in range(size // 3)], delay="10m")
        queue.bulk([f"plain {number}".encode() for number in range(size // 3, size)])
        before = {job.id: job.due_at for job in every_job(queue)}
        assert (len(before), batch.status().waiting) == (size, size)

        assert batch.shift("1h") == size
        assert {job.id: job.due_at for job in every_job(queue)} == {id: due + 3_600_000 for id, due in before.items()}
        assert batch.shift("-70m") == size
        done = 0
        while done < size // 2:
            leased = queue.reserve(limit=min(500, size // 2 - done))
            assert all(isinstance(one, duetime.Moved) for one in queue.ack(leased))
            done += len(leased)
        [held] = queue.reserve()

        status = batch.cancel()
        assert (status.total, status.done, status.cancelled) == (size, done, size - done - 1)
        assert (status.waiting, status.running, status.state) == (0, 1, "cancelled")
        held.ack()
        assert queue.status().counts.total == 0


def every_job(queue: Any) -> list[duetime.Job]:
    found: list[duetime.Job] = []
    for state in ("ready", "delayed"):
        cursor = None
        while True:
            page = queue.list_jobs(state, cursor=cursor, limit=500)
            found += page.jobs
            cursor = page.cursor
            if cursor is None:
                break
    return found


@pytest.mark.parametrize("url", ["redis", "group"], indirect=True)
async def test_callbacks_run_once_although_workers_are_killed(
    start: Start, sample: Any, scale: int, client: duetime.Client
) -> None:
    def is_over() -> bool:
        return client.queue(KEEPERS).status().counts.total == 0

    said = {name: sample.all_done.step(name) for name in ("then", "catch", "finally_")}
    plan = sample.app.batch(queue="default", allow_failures=True, **said)
    async with await plan.open_async() as batch:
        await batch.add_async(*[sample.work.step(number) for number in range(300 * scale)])
        await batch.add_async(sample.hopeless.step())
    options = ("--queue", "default", "-c", "2", "--lease", "1s", "--pool", "threads")
    for number in range(3):
        worker = start(*options)
        await until(lambda: len(worker.noted("ran")) >= 5 + number or is_over())  # noqa: B023
        worker.signal(signal.SIGKILL)
    start(*options), start(*options)

    await until(lambda: [note for one in start.started for note in one.noted("callback", key="finally_")])
    status = await batch.status_async()
    assert (status.state, status.total, status.done, status.failed) == ("ended", 300 * scale + 1, 300 * scale, 1)
    client.queue(batch.queue).purge(["dead"])
    await until(is_over)
    keys = [note["key"] for one in start.started for note in one.noted("callback")]
    assert sorted(keys) == ["catch", "finally_"]
    await sample.app.close_async()


async def test_batches_work_through_a_server(start: Start, server: str, sample: Any) -> None:
    sample.app.client_pusher._place["url"] = server
    with await asyncio.to_thread(sample.app.batch(queue="default", then=sample.all_done.step("then")).open) as batch:
        await asyncio.to_thread(batch.pause)
        await asyncio.to_thread(batch.add, *[sample.member.step(number) for number in range(5)])
    worker = start("--pool", "threads", "--queue", "default", at=server)
    await worker.until_noted("worker_starting")
    assert (await asyncio.to_thread(batch.status)).waiting == 5
    await asyncio.to_thread(batch.resume)
    await worker.until_noted("callback", 1, key="then")
    assert (await asyncio.to_thread(batch.status)).done == 5
