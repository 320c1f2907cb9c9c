"""Schedules that were made with the API: when they run, how often, and what changes them."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from duetime.client.schedule_calls import schedule_in
from duetime.engine import Engine
from duetime.engine.schedules import SCHEDULES, ScheduleRunner, Schedules, Tick, push_run, read_tick
from duetime.model.clock import ManualClock
from duetime.model.errors import InvalidRequest, InvalidTime, ScheduleDeclared, ScheduleNotFound
from duetime.model.job import NewJob, State
from duetime.model.names import Queue
from duetime.stores.base import RulesChange, Store
from duetime.wire.messages import ScheduleOut
from duetime.wire.payload import TICKS, read

pytestmark = pytest.mark.store_only

HOUR = 3_600_000
REPORTS = Queue("shop", "reports")


class Pool:
    """An engine with two runners, as two servers of a pool have them."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        self.engine, self.clock = engine, clock
        self.schedules = Schedules(engine, clock)
        self.runners = [ScheduleRunner(clock), ScheduleRunner(clock)]

    async def put(self, name: str = "report", **fields: Any) -> ScheduleOut:
        fields = {"queue": "reports", "every": "1h", **fields}
        if "cron" in fields:
            del fields["every"]
        return await self.schedules.put("shop", name, schedule_in(fields))

    async def pass_time(self, duration: str) -> None:
        self.clock.advance(duration)
        for runner in self.runners:
            while await runner.run_once(self.engine) == 0.0:
                pass

    async def runs(self) -> list[int]:
        """The instants of the runs that wait, in hours."""
        page = await self.engine.store.list_jobs(REPORTS, State.READY)
        return sorted(int(job.id.removeprefix("report@")) // HOUR for job in page.jobs)


@pytest.fixture
async def pool(store: Store, clock: ManualClock) -> AsyncIterator[Pool]:
    clock.set(clock.now_ms() // HOUR * HOUR + HOUR // 2)
    async with Engine(store) as engine:
        yield Pool(engine, clock)


async def test_each_run_is_pushed_once_and_on_time(pool: Pool) -> None:
    made = await pool.put(body={"kind": "short"}, tries=2, priority="low", attributes={"trace": "7"}, ttl="1d")
    first = pool.clock.now_ms() // HOUR + 1
    assert (made.next_at, made.last_at, made.paused, made.declared) == (first * HOUR, 0, False, False)
    await pool.pass_time("29m")
    assert await pool.runs() == []
    await pool.pass_time("1m")
    await pool.pass_time("1m")
    assert await pool.runs() == [first]
    [job] = (await pool.engine.store.list_jobs(REPORTS, State.READY)).jobs
    assert (job.body, job.tries, job.due_at, job.attributes) == (b'{"kind":"short"}', 2, first * HOUR, {"trace": "7"})
    shown = await pool.schedules.get("shop", "report")
    assert (shown.next_at, shown.last_at, shown.last_state) == ((first + 1) * HOUR, first * HOUR, State.READY)
    assert [one.name for one in await pool.schedules.list_schedules("shop")] == ["report"]
    assert await pool.schedules.list_schedules("other") == []


async def test_a_process_that_dies_between_push_and_ack_pushes_nothing_twice(pool: Pool) -> None:
    await pool.put()
    pool.clock.advance("30m")
    [delivery] = await pool.engine.reserve([SCHEDULES], ttr_ms=1000)
    tick = read_tick(delivery.body)
    assert tick
    await push_run(pool.engine, tick, tick.run_at)
    [run] = await pool.engine.reserve([REPORTS])
    await pool.engine.ack([run.lease])
    # The process dies here: its lease expires, and another one gets the tick of a run that is pushed and done already.
    pool.clock.advance("2s")
    await pool.engine.store.reap()
    await pool.pass_time("0")
    assert await pool.runs() == []
    assert (await pool.schedules.get("shop", "report")).next_at == tick.run_at + HOUR


@pytest.mark.parametrize(("missed", "count"), [("last", 1), ("all", 3), ("none", 0)])
async def test_missed_runs(pool: Pool, missed: str, count: int) -> None:
    await pool.put(missed=missed)
    await pool.pass_time("3h")
    now = pool.clock.now_ms() // HOUR
    assert await pool.runs() == list(range(now - count + 1, now + 1))


async def test_no_run_while_the_last_one_is_unfinished(pool: Pool) -> None:
    await pool.put(overlap="skip")
    await pool.pass_time("1h")
    await pool.pass_time("1h")
    assert len(await pool.runs()) == 1
    [delivery] = await pool.engine.reserve([REPORTS])
    await pool.pass_time("1h")
    assert await pool.runs() == []
    await pool.engine.ack([delivery.lease])
    await pool.pass_time("1h")
    assert len(await pool.runs()) == 1


async def test_a_schedule_is_paused_run_resumed_changed_and_removed(pool: Pool) -> None:
    await pool.put()
    assert (await pool.schedules.pause("shop", "report")).next_at == 0
    await pool.pass_time("3h")
    assert await pool.runs() == []
    assert (await pool.put(every="2h")).paused
    ran = await pool.schedules.run("shop", "report")
    assert (ran.last_id, ran.last_state, ran.paused) == (f"report@{pool.clock.now_ms()}", State.READY, True)
    resumed = await pool.schedules.resume("shop", "report")
    assert resumed.next_at == (pool.clock.now_ms() // (2 * HOUR) + 1) * 2 * HOUR
    await pool.pass_time("2h")
    assert len(await pool.runs()) == 2
    assert (await pool.schedules.delete("shop", "report")).name == "report"
    await pool.pass_time("2h")
    assert len(await pool.runs()) == 2
    with pytest.raises(ScheduleNotFound):
        await pool.schedules.get("shop", "report")


async def test_a_span_of_the_past_is_backfilled_once(pool: Pool) -> None:
    await pool.put()
    await pool.pass_time("1h")
    [ran] = await pool.runs()
    for pushed in (3, 0):
        done = await pool.schedules.backfill("shop", "report", (ran - 3) * HOUR, ran * HOUR + 1)
        assert (done.runs, done.pushed) == (4, pushed)
    assert await pool.runs() == [ran - 3, ran - 2, ran - 1, ran]
    assert (await pool.schedules.get("shop", "report")).last_at == ran * HOUR
    now = pool.clock.now_ms()
    for since, until in ((now, now - HOUR), (now, now + HOUR), (now - 501 * HOUR, now)):
        with pytest.raises(InvalidRequest):
            await pool.schedules.backfill("shop", "report", since, until)
    with pytest.raises(ScheduleNotFound):
        await pool.schedules.backfill("shop", "other", now - HOUR, now)


async def test_a_backfill_pushes_no_run_while_the_one_before_it_is_unfinished(pool: Pool) -> None:
    await pool.put(overlap="skip")
    now = pool.clock.now_ms() // HOUR
    for expected in ([now - 2], [now - 1], [now], []):
        for pushed in (len(expected), 0):
            done = await pool.schedules.backfill("shop", "report", (now - 2) * HOUR, now * HOUR + 1)
            assert (done.runs, done.pushed) == (3, pushed)
        assert await pool.runs() == expected
        await pool.engine.ack([delivery.lease for delivery in await pool.engine.reserve([REPORTS], limit=10)])


async def test_putting_an_equal_schedule_again_loses_no_run(pool: Pool) -> None:
    await pool.put()
    pool.clock.advance("40m")
    await pool.put()
    await pool.pass_time("0")
    assert await pool.runs() == [pool.clock.now_ms() // HOUR]


async def test_the_run_of_a_task_is_a_job_that_workers_know(pool: Pool) -> None:
    made = await pool.put(task="shop.report", arguments={"kind": "short"}, cron="*/30 * * * *", tz="Asia/Shanghai")
    assert (made.schedule, made.task) == ("cron */30 * * * * Asia/Shanghai", "shop.report")
    await pool.pass_time("30m")
    [job] = (await pool.engine.store.list_jobs(REPORTS, State.READY)).jobs
    payload = read(job.body)
    assert (payload.name, bytes(payload.data), payload.maxTries) == ("shop.report", b'{"kind":"short"}', 5)


async def test_a_run_that_is_refused_waits_and_delays_no_other(pool: Pool) -> None:
    await pool.engine.store.configure(REPORTS, RulesChange(offline=True))
    await pool.put()
    await pool.put("other", queue="others")
    await pool.pass_time("30m")
    assert (await pool.engine.store.counts([Queue("shop", "others")]))[0].ready == 1
    await pool.engine.store.configure(REPORTS, RulesChange(offline=False))
    await pool.pass_time("10s")
    assert await pool.runs() == [pool.clock.now_ms() // HOUR]


async def test_schedules_of_programs_have_the_same_shape(pool: Pool) -> None:
    tick = Tick(schedule="every 1h", missed="last", queue="reports", run_at=pool.clock.now_ms() + HOUR, task="report")
    await pool.engine.push(Queue("shop", TICKS), [tick.job("daily report"), NewJob("junk", b"{")])
    await pool.put()
    declared, made = await pool.schedules.list_schedules("shop")
    assert (declared.name, declared.declared, made.name, made.declared) == ("daily report", True, "report", False)
    with pytest.raises(ScheduleDeclared):
        await pool.put("daily report")
    assert (await pool.schedules.pause("shop", "daily report")).paused
    with pytest.raises(InvalidRequest, match="resume it first"):
        await pool.schedules.run("shop", "daily report")
    assert not (await pool.schedules.resume("shop", "daily report")).paused
    asked = await pool.schedules.run("shop", "daily report")
    assert asked.next_at == pool.clock.now_ms()
    assert (await pool.schedules.delete("shop", "daily report")).declared


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"every": "10ms"}, InvalidRequest),
        ({"every": "soon"}, InvalidTime),
        ({"cron": "* * *"}, InvalidRequest),
        ({"cron": "0 9 * * *", "tz": "Mars/Olympus"}, InvalidRequest),
        ({"queue": "a b"}, InvalidRequest),
        ({"task": "t", "body": "x"}, InvalidRequest),
        ({"arguments": {}}, InvalidRequest),
        ({"missed": "some"}, InvalidRequest),
        ({"colour": "red"}, InvalidRequest),
    ],
)
async def test_a_wrong_schedule_is_refused(pool: Pool, fields: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        await pool.put(**fields)
    with pytest.raises(InvalidRequest):
        await pool.put("x" * 115)


@pytest.mark.parametrize("schedule", ["every junk", "cron x * * * * UTC", "cron 0 0 31 2 * UTC", "never", ""])
async def test_a_schedule_that_cannot_be_read_is_a_dead_letter(pool: Pool, schedule: str) -> None:
    tick = Tick(schedule=schedule, missed="last", queue="reports", run_at=1, namespace="shop", name="report")
    await pool.engine.push(SCHEDULES, [tick.job("shop/report")])
    await pool.pass_time("1s")
    [job] = await pool.engine.store.get(SCHEDULES, ["shop/report"])
    assert job is not None
    assert (job.state, job.error) == (State.DEAD, "not a schedule")


async def test_a_schedule_of_an_unknown_time_zone_waits_for_a_server_that_knows_it(pool: Pool) -> None:
    tick = Tick(
        schedule="cron * * * * * Mars/Base", missed="last", queue="reports", run_at=1, namespace="shop", name="report"
    )
    await pool.engine.push(SCHEDULES, [tick.job("shop/report")])
    await pool.pass_time("1s")
    [job] = await pool.engine.store.get(SCHEDULES, ["shop/report"])
    assert job is not None
    assert job.state is State.DELAYED
