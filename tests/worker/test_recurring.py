"""Recurring tasks: workers as real processes, and ticks that the test plays itself."""

import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

import duetime
from duetime.client import AsyncClient
from duetime.client.calls import push
from duetime.model.clock import ManualClock
from duetime.model.errors import InvalidRequest, LeaseLost
from duetime.model.job import IfExists, NewJob, State
from duetime.model.names import check_queue
from duetime.stores.base import RulesChange
from duetime.testing import in_memory
from duetime.worker.current_job import CurrentJob
from duetime.worker.middleware import encrypted
from duetime.worker.middleware_chain import PendingJob
from duetime.worker.recurring import TICKS, Scheduler
from tests.plugins.until import until
from tests.worker.conftest import Start

SAMPLE = "tests.worker.recurring_sample:app"


@pytest.mark.parametrize("url", ["redis"], indirect=True)
async def test_each_run_is_pushed_once_by_two_workers_and_goes_on_when_one_is_killed(start: Start) -> None:
    options = ("--queue", "beats", "--pool", "threads")
    one, two = start(*options, place=SAMPLE), start(*options, place=SAMPLE)

    def beats() -> list[str]:
        return [note["id"] for worker in (one, two) for note in worker.noted("beat")]

    await until(lambda: len(beats()) >= 2, every_s=0.02)
    one.process.kill()
    one.process.wait()
    seen = len(beats())
    await until(lambda: len(beats()) >= seen + 2, every_s=0.02)
    two.signal(signal.SIGTERM)
    two.process.wait()
    found = beats()
    assert len(found) == len(set(found))
    instants = sorted(int(one.removeprefix("beat@")) for one in found)
    assert all(instant % 1000 == 0 for instant in instants)


# --- ticks that the test plays, on a clock that it turns


HOUR = 3_600_000


class Program:
    def __init__(self, app: duetime.App, client: AsyncClient, clock: ManualClock) -> None:
        self.app = app
        self.client = client
        self.clock = clock
        self.scheduler = Scheduler(app, client)

    async def tick(self) -> None:
        for delivery in await self.client.queue(TICKS).reserve(limit=10):
            await self.scheduler.handle(delivery)

    async def runs(self, queue_name: str = "reports") -> list[str]:
        queue = self.client.queue(queue_name)
        pages = [await queue.list_jobs(state) for state in (State.READY, State.DELAYED)]
        return sorted(job.id for page in pages for job in page.jobs)

    async def has_run(self, name: str, queue: str) -> bool:
        return any(job_id.startswith(f"{name}@") for job_id in await self.runs(queue))


class Unpushable:
    """A middleware that fails when the job is pushed, if it is told so."""

    def __init__(self, how: str) -> None:
        self._how = how

    def pushing(self, job: PendingJob) -> None:
        if self._how == "a broken task":
            raise ZeroDivisionError

    def __call__(self, job: CurrentJob, call: Callable[[], Any]) -> Any:
        return call()


@asynccontextmanager
async def program(url: str, clock: ManualClock, **options: str) -> AsyncIterator[Program]:
    app = duetime.App(url, clock=clock)

    @app.every("1h", **options)  # type: ignore[arg-type]
    @app.task(queue="reports", name="report")
    def report(kind: str = "short") -> None: ...

    async with duetime.connect_async(url) as client:
        yield Program(app, client, clock)


@pytest.fixture
def clock() -> ManualClock:
    """Near the store's own, which decides what is due."""
    return ManualClock(int(time.time() * 1000) // HOUR * HOUR + HOUR // 2)


async def due_now(one: Program) -> None:
    """The store's clock cannot be turned from here: bring the tick forward instead."""
    await one.client.queue(TICKS).reschedule("report", delay=0)


async def test_a_tick_is_planted_once_and_waits_for_the_next_run(tmp_path: Path, clock: ManualClock) -> None:
    url = f"sqlite://{tmp_path}/jobs.db"
    async with program(url, clock) as one, program(url, clock) as other:
        await one.scheduler.plant()
        await other.scheduler.plant()
        [tick] = (await one.client.queue(TICKS).list_jobs(State.DELAYED)).jobs
        assert (tick.id, tick.due_at) == ("report", clock.now_ms() + HOUR // 2)


async def test_a_crash_between_push_and_putting_back_runs_nothing_twice(tmp_path: Path, clock: ManualClock) -> None:
    clock = ManualClock(clock.now_ms() - HOUR)
    async with program(f"sqlite://{tmp_path}/jobs.db", clock) as one:
        await one.scheduler.plant()
        clock.advance("1h")
        [tick] = await one.client.queue(TICKS).reserve()
        await one.scheduler.handle(tick)
        [run] = await one.runs()
        [delivery] = await one.client.queue("reports").reserve()
        await one.client.ack(delivery)
        # The worker that died had the same tick: what it pushes is known, though the job is gone.
        with pytest.raises(LeaseLost):
            await one.scheduler.handle(tick)
        assert await one.runs() == []
        assert run == f"report@{clock.now_ms() // HOUR * HOUR}"
        [tick_again] = (await one.client.queue(TICKS).list_jobs(State.DELAYED)).jobs
        assert tick_again.due_at == clock.now_ms() + HOUR // 2


@pytest.mark.parametrize(("missed", "count"), [("last", 1), ("all", 3), ("none", 0)])
async def test_runs_that_were_missed_while_no_worker_ran(
    tmp_path: Path, clock: ManualClock, missed: str, count: int
) -> None:
    async with program(f"sqlite://{tmp_path}/jobs.db", clock, missed=missed) as one:
        await one.scheduler.plant()
        await due_now(one)
        clock.advance("3h")
        await one.tick()
        assert len(await one.runs()) == count
        [tick] = (await one.client.queue(TICKS).list_jobs(State.DELAYED)).jobs
        assert tick.due_at == clock.now_ms() + HOUR // 2


async def test_missed_runs_survive_a_worker_that_dies_with_the_tick(tmp_path: Path, clock: ManualClock) -> None:
    clock = ManualClock(clock.now_ms() - 3 * HOUR)
    async with program(f"sqlite://{tmp_path}/jobs.db", clock, missed="all") as one:
        await one.scheduler.plant()
        clock.advance("3h")
        await one.client.queue(TICKS).reserve(ttr="1ms")
        [tick] = await one.client.queue(TICKS).reserve(wait="60s")
        await one.scheduler.handle(tick)
        assert len(await one.runs()) == 3


async def test_missed_runs_survive_a_program_that_does_not_know_the_schedule(
    tmp_path: Path, clock: ManualClock
) -> None:
    clock = ManualClock(clock.now_ms() - 3 * HOUR)
    url = f"sqlite://{tmp_path}/jobs.db"
    async with program(url, clock, missed="all") as one, program(url, clock) as other:
        other.app.schedules.clear()
        await one.scheduler.plant()
        clock.advance("3h")
        await other.tick()
        await due_now(one)
        await one.tick()
        assert len(await one.runs()) == 3


async def test_a_program_that_puts_back_an_old_tick_too_late_changes_nothing(
    tmp_path: Path, clock: ManualClock
) -> None:
    url = f"sqlite://{tmp_path}/jobs.db"
    async with program(url, clock) as old, program(url, clock) as new:
        await old.scheduler.plant()
        await due_now(old)
        [tick] = await old.client.queue(TICKS).reserve()
        new.app.schedules.clear()
        new.app.cron("0 0 1 1 *", name="report")(new.app.tasks["report"])
        await new.scheduler.plant()
        planted = await new.client.queue(TICKS).get("report")
        with pytest.raises(LeaseLost):
            await old.scheduler.handle(tick)
        kept = await new.client.queue(TICKS).get("report")
        assert (kept.body, kept.due_at) == (planted.body, planted.due_at)


@pytest.mark.parametrize("first", ["a full queue", "a broken task"])
async def test_a_schedule_that_cannot_run_holds_up_no_other(
    tmp_path: Path, clock: ManualClock, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime.worker.recurring.PAUSE_S", 0.5)
    async with program(f"sqlite://{tmp_path}/jobs.db", clock) as one:

        def breaks() -> None: ...

        app, full = one.app, one.client.queue("full")
        if first == "a full queue":
            await full.configure(RulesChange(max_jobs=1))
            await full.push("x", delay="1h")
        app.every("1h", name="a")(app.task(queue="full", name="a", middleware=[Unpushable(first)])(breaks))
        await one.scheduler.plant()
        await one.client.queue(TICKS).reschedule("a", delay=0)
        await due_now(one)
        async with one.scheduler:
            await until(one.runs)
            waiting = await one.client.queue(TICKS).get("a")
            assert waiting.state is State.DELAYED
            if first == "a full queue":
                await full.configure(RulesChange(max_jobs=2))
                await until(lambda: one.has_run("a", "full"))


async def test_a_schedule_that_was_changed_starts_anew(tmp_path: Path, clock: ManualClock) -> None:
    url = f"sqlite://{tmp_path}/jobs.db"
    async with program(url, clock) as one:
        await one.scheduler.plant()
        one.app.schedules.clear()
        one.app.cron("0 0 1 1 *", name="report")(one.app.tasks["report"])
        await one.scheduler.plant()
        [tick] = (await one.client.queue(TICKS).list_jobs(State.DELAYED)).jobs
        assert tick.due_at > clock.now_ms() + HOUR


async def test_a_recurring_task_may_be_encrypted(tmp_path: Path, clock: ManualClock) -> None:
    async with program(f"sqlite://{tmp_path}/jobs.db", clock) as one:
        secret = one.app.task(name="secret", queue="secrets", middleware=[encrypted(Fernet.generate_key())])
        one.app.every("1h")(secret(lambda card="4111": None))
        await one.scheduler.plant()
        await one.client.queue(TICKS).reschedule("secret", delay=0)
        await one.tick()
        [job_id] = await one.runs("secrets")
        run = await one.client.queue("secrets").get(job_id)
        with in_memory(one.app) as box:
            queue = check_queue(one.app.namespace, "secrets")
            one.app.send(push(queue, [NewJob(run.id, run.body)], IfExists.KEEP))
            assert [end.failure for end in box.run("secrets")] == [None]


async def test_a_tick_that_was_purged_or_killed_comes_back(tmp_path: Path, clock: ManualClock) -> None:
    async with program(f"sqlite://{tmp_path}/jobs.db", clock) as one:
        ticks = one.client.queue(TICKS)
        await one.scheduler.plant()
        await ticks.clear()
        await one.scheduler.replant()
        await one.scheduler.replant()
        assert [job.id for job in (await ticks.list_jobs(State.DELAYED)).jobs] == ["report"]
        await due_now(one)
        [tick] = await ticks.reserve()
        await one.client.kill(tick)
        await one.scheduler.plant()
        assert [job.id for job in (await ticks.list_jobs(State.DELAYED)).jobs] == ["report"]


async def test_a_tick_of_another_program_is_left_to_it(tmp_path: Path, clock: ManualClock) -> None:
    async with program(f"sqlite://{tmp_path}/jobs.db", clock) as one:
        await one.scheduler.plant()
        await due_now(one)
        one.app.schedules.clear()
        await one.tick()
        [tick] = (await one.client.queue(TICKS).list_jobs(State.DELAYED)).jobs
        assert tick.id == "report"
        assert await one.runs() == []


async def test_a_tick_that_cannot_be_read_is_replaced_or_a_dead_letter(tmp_path: Path, clock: ManualClock) -> None:
    async with program(f"sqlite://{tmp_path}/jobs.db", clock) as one:
        ticks = one.client.queue(TICKS)
        await ticks.push("junk", id="report")
        await ticks.push({"schedule": "every junk", "missed": "last", "queue": "a", "run_at": 1}, id="stranger")
        for _ in range(2):
            await one.tick()
        assert [job.id for job in (await ticks.list_jobs(State.DELAYED)).jobs] == ["report"]
        assert [job.id for job in (await ticks.dead.list_jobs()).jobs] == ["stranger"]


def test_wrong_recurring_tasks_are_refused(tmp_path: Path) -> None:
    app = duetime.App(f"sqlite://{tmp_path}/jobs.db")
    with pytest.raises(InvalidRequest, match="must have a default"):

        @app.every("1h")
        def needs(argument: int) -> None: ...

    @app.cron("0 9 * * *", tz="Asia/Shanghai")
    def fine() -> None: ...

    with pytest.raises(InvalidRequest, match="schedule name must be unique"):
        app.every("1h")(fine)
    app.every("1h", name="twice a day")(fine)


async def test_the_longest_name_of_a_schedule_runs_and_a_longer_one_is_refused(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with program(f"sqlite://{tmp_path}/jobs.db", clock) as one:
        task = one.app.tasks["report"]
        with pytest.raises(InvalidRequest, match="at most 114 characters"):
            one.app.every("1h", name="a" * 115)(task)
        one.app.every("1h", name="a" * 114)(task)
        await one.scheduler.plant()
        await one.client.queue(TICKS).reschedule("a" * 114, delay=0)
        await one.tick()
        assert await one.has_run("a" * 114, "reports")
