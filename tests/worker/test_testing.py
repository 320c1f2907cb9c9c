"""`duetime.testing`, used as its users would."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

import duetime
from duetime.model.errors import InvalidRequest
from duetime.model.job import State
from duetime.testing import in_memory, inline
from duetime.worker.runs import Ended

SENT: list[tuple[str, str]] = []

app = duetime.App("redis://nobody-is-there:1/0")


@app.task(queue="mail", tries=2, backoff="10s")
def send(to: str, text: str = "hello") -> None:
    if to == "nobody":
        raise ConnectionError("no such address")
    if to == "later":
        raise duetime.Retry(after="1m")
    if to == "never":
        raise duetime.Cancel
    SENT.append((to, text))


@app.task(queue="people")
async def greet_all(names: list[str]) -> None:
    for name in names:
        await send.delay_async(name)


@app.task(queue="people", unique_for="1h")
def once(name: str) -> None:
    SENT.append((name, "once"))


@app.task
def endless() -> None:
    endless.delay()


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    SENT.clear()


def test_pushes_are_kept_and_can_be_asked_for() -> None:
    with in_memory(app) as box:
        box.assert_nothing_pushed()
        send.delay("ann")
        send.later("10m", "bob", text="bye")
        [first] = box.assert_pushed(send, to="ann")
        assert (first.queue, first.arguments) == ("mail", {"to": "ann"})
        assert box.assert_pushed(send, text="bye")[0].due_at == box.now + 600_000
        box.assert_pushed(send, times=2)
        box.assert_not_pushed(send, to="eve")
        box.assert_not_pushed(greet_all)
        with pytest.raises(AssertionError, match="must be pushed 3 times"):
            box.assert_pushed(send, times=3)
        with pytest.raises(AssertionError, match="pushed were"):
            box.assert_pushed(greet_all)
        with pytest.raises(AssertionError, match="must not be pushed"):
            box.assert_not_pushed(send, to="ann")
        with pytest.raises(AssertionError, match="nothing must be pushed"):
            box.assert_nothing_pushed()
    assert SENT == []


def test_jobs_run_when_they_are_due() -> None:
    with in_memory(app) as box:
        send.later("10m", "ann")
        assert box.run() == []
        box.travel("9m")
        assert box.run() == []
        box.travel("1m")
        [ran] = box.run()
        assert (ran.task, ran.attempt, ran.is_done) == (send.name, 1, True)
        assert SENT == [("ann", "hello")]
        assert box.counts("mail").total == 0


def test_the_test_sets_the_time() -> None:
    with in_memory(app, now="2030-01-01T00:00:00Z") as box:
        send.at(datetime(2030, 1, 2, tzinfo=UTC), "ann")
        box.travel_to("2030-01-02T00:00:00Z")
        assert [ran.is_done for ran in box.run("mail")] == [True]


def test_failures_follow_the_workers_rules_to_the_dead_letters() -> None:
    with in_memory(app) as box:
        send.delay("nobody")
        [first] = box.run()
        assert (first.ended, first.failure and first.failure.kind) == (Ended.RAISED, "ConnectionError")
        assert box.run() == []
        box.travel("10s")
        [second] = box.run()
        assert second.attempt == 2
        [dead] = box.jobs("mail", State.DEAD)
        assert "no such address" in dead.error
        send.delay("later")
        box.run()
        [waiting] = box.jobs("mail", State.DELAYED)
        assert waiting.due_at == box.now + 60_000


def test_tasks_that_push_tasks_run_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duetime.testing.MOST_RUNS", 100)
    with in_memory(app) as box:
        greet_all.delay(["ann", "bob"])
        assert len(box.run()) == 3
        assert SENT == [("ann", "hello"), ("bob", "hello")]
        endless.delay()
        with pytest.raises(AssertionError, match="no end"):
            box.run()


def test_unique_tasks_are_unique_here_too() -> None:
    with in_memory(app) as box:
        once.delay("ann")
        once.delay("ann")
        assert [one.kept for one in box.pushed(once)] == [False, True]
        assert len(box.run()) == 1


def test_arguments_that_do_not_fit_are_refused_as_ever() -> None:
    with in_memory(app) as box:
        with pytest.raises(InvalidRequest):
            send.delay(7)  # type: ignore[arg-type]
        box.assert_nothing_pushed()


def test_inline_runs_immediately_and_raises() -> None:
    with inline(app):
        send.delay("ann")
        send.later("10m", "bob")
        send.delay("never")
        assert SENT == [("ann", "hello"), ("bob", "hello")]
        with pytest.raises(ConnectionError):
            send.delay("nobody")
        send.bulk([("dora",), {"to": "emil"}])
        greet_all.delay(["carl"])
        assert [to for to, _ in SENT[-3:]] == ["dora", "emil", "carl"]


async def test_inline_in_a_running_loop() -> None:
    with inline(app):
        await greet_all.delay_async(["ann"])
    assert SENT == [("ann", "hello")]


def test_after_the_block_the_app_is_as_before(tmp_path: Path) -> None:
    own = duetime.App(f"sqlite://{tmp_path}/jobs.db")
    task = own.task(name="task")(lambda: None)
    with in_memory(own):
        task.delay()
    with own:
        task.delay()
    with duetime.connect(own.url) as client:
        assert client.queue("default").counts().ready == 1
