"""`task.options(...)`: options for one call, above those of the task."""

from typing import Any

import pytest

import duetime
from duetime.model.errors import InvalidName, InvalidRequest
from duetime.model.job import Priority, State
from duetime.testing import in_memory
from duetime.wire.payload import read
from tests.worker.conftest import Start, stored


def test_every_option_reaches_the_job(app: duetime.App) -> None:
    @app.task(tries=3)
    def send(to: str) -> None: ...

    pushed = send.options(
        queue="urgent", priority="high", ttl="1h", id="mail-17", tries=1, delay="10m", headers={"tenant": "a"}
    ).delay("ann")

    job = stored(app, "mail-17", "urgent")
    assert pushed.id == "mail-17"
    assert (job.priority, job.tries, job.attributes) == (Priority.HIGH, 1, {"tenant": "a"})
    assert job.due_at - job.born == 600_000
    assert job.expires_at - job.born == 3_600_000
    assert read(job.body).maxTries == 1


def test_they_hold_for_that_call_alone_and_add_up(app: duetime.App) -> None:
    @app.task(tries=3)
    def send(to: str) -> None: ...

    urgent = send.options(queue="urgent", headers={"tenant": "a"})
    job = stored(app, urgent.options(tries=7, headers={"locale": "de"}).delay("ann").id, "urgent")
    plain = stored(app, send.delay("ann").id)

    assert (job.tries, job.attributes) == (7, {"tenant": "a", "locale": "de"})
    assert (plain.tries, plain.attributes) == (3, {})


def test_a_time_of_the_call_itself_wins_over_the_delay(app: duetime.App) -> None:
    @app.task
    def send(to: str) -> None: ...

    delayed = send.options(delay="10m")
    later = delayed.later("5m", "ann")
    at = delayed.at("2090-01-01T00:00:00Z", "ann")
    [bulk] = delayed.bulk([("ann",)])
    [now] = delayed.bulk([("ann",)], delay=0)

    assert later.due_at - later.born == 300_000
    assert at.due_at == 3_786_912_000_000
    assert bulk.due_at - bulk.born == 600_000
    assert stored(app, now.id).state is State.READY


async def test_bulk_and_the_twins_have_them_too(app: duetime.App) -> None:
    @app.task
    def send(to: str) -> None: ...

    low = send.options(queue="slow", priority=Priority.LOW, ttl="1d")
    many = low.bulk([("ann",), {"to": "bob"}]) + await low.bulk_async([("eve",)])
    many.append(await low.delay_async("joe"))
    jobs = [stored(app, one.id, "slow") for one in many]

    assert [(job.priority, job.expires_at - job.born) for job in jobs] == [(Priority.LOW, 86_400_000)] * 4
    await app.close_async()


def test_what_does_not_fit_is_refused_where_it_is_written(app: duetime.App) -> None:
    @app.task
    def send(to: str) -> None: ...

    @app.task(unique_for="1h")
    def once(to: str) -> None: ...

    @app.task(retry_until="1h")
    def for_an_hour(to: str) -> None: ...

    wrong: dict[str, Any] = {"priorty": "high"}
    with pytest.raises(TypeError, match="there is no option 'priorty'; did you mean 'priority'"):
        send.options(**wrong)
    wrong = {"quue": "mail"}
    with pytest.raises(TypeError, match="did you mean 'queue'"):
        app.task(**wrong)(lambda: None)
    for options in ({"tries": -1}, {"priority": "first"}, {"headers": {"a": 1}}, {"headers": {"": "a"}}):
        wrong = dict(options)
        with pytest.raises(InvalidRequest):
            send.options(**wrong)
    with pytest.raises(InvalidName):
        send.options(queue="no such queue")
    with pytest.raises(InvalidRequest, match="cannot use id='a' for 2 calls"):
        send.options(id="a").bulk([("ann",), ("bob",)])
    with pytest.raises(InvalidRequest, match="unique"):
        once.options(id="a")
    with pytest.raises(InvalidRequest, match="retry_until"):
        for_an_hour.options(tries=2)


def test_tests_run_the_queues_that_calls_name(app: duetime.App) -> None:
    ran: list[tuple[str, str]] = []

    @app.task
    def send(to: str) -> None:
        job = duetime.current_job()
        ran.append((job.queue, job.headers["tenant"]))

    with in_memory(app) as box:
        send.options(queue="elsewhere", headers={"tenant": "a"}).delay("ann")
        box.run()

    assert ran == [("elsewhere", "a")]


@pytest.mark.parametrize("pool", ["processes", "threads", "asyncio"])
async def test_headers_arrive_in_every_pool(start: Start, sample: Any, pool: str) -> None:
    worker = start("--pool", pool, "--queue", "urgent")
    sample.shows_headers.options(queue="urgent", headers={"tenant": "ü 1"}).delay()
    sample.shows_headers_gently.options(queue="urgent", headers={"tenant": "ü 2"}).delay()

    notes = await worker.until_noted("headers", 2)
    assert sorted(note["headers"]["tenant"] for note in notes) == ["ü 1", "ü 2"]
