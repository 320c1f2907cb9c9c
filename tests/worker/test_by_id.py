"""Jobs by the id that their pusher chose: cancel, reschedule, replace, and the queues of an App."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django as django_package
import pytest
from django.conf import settings
from django.db import transaction

import duetime
from duetime.model.errors import InvalidRequest, JobExists, JobNotFound
from duetime.model.job import Event, State
from duetime.testing import in_memory
from duetime.worker.after_commit import django
from duetime.worker.handle import TaskStatus

NOON = "2090-01-01T12:00:00Z"
NOON_MS = 3_786_955_200_000


@pytest.fixture
def remind(app: duetime.App) -> Any:
    @app.task(name="remind", queue="mail")
    def remind(text: str = "") -> None: ...

    return remind


def test_a_task_cancels_and_reschedules_by_id(app: duetime.App, remind: Any) -> None:
    remind.options(id="a").later("10m")
    remind.options(id="b", queue="urgent").later("10m")

    assert remind.reschedule("a", due_at=NOON).due_at == NOON_MS
    assert app.queue("mail").get("a").due_at == NOON_MS
    assert [remind.cancel("a"), remind.cancel("a")] == [True, False]
    with pytest.raises(JobNotFound):
        remind.reschedule("a", "1m")
    assert not remind.cancel("b")  # it is in another queue than the task's
    assert remind.options(queue="urgent").cancel("b")


async def test_the_twins_do_the_same(app: duetime.App, remind: Any) -> None:
    await remind.options(id="a").later_async("10m")

    assert (await remind.reschedule_async("a", due_at=NOON)).due_at == NOON_MS
    assert [await remind.cancel_async("a"), await remind.cancel_async("a")] == [True, False]
    await app.close_async()


def test_an_id_that_is_taken_is_kept_replaced_or_an_error(app: duetime.App, remind: Any) -> None:
    first = remind.options(id="a").delay("first")

    kept = remind.options(id="a").delay("second")
    replaced = remind.options(id="a", if_exists="replace").delay("third")
    with pytest.raises(JobExists):
        remind.options(id="a", if_exists="error").delay("fourth")

    assert (kept.event, kept.born) == (Event.KEPT, first.born)
    assert (replaced.event, replaced.born > first.born) == (Event.REPLACED, True)
    assert b"third" in app.queue("mail").get("a").body
    with pytest.raises(InvalidRequest, match="if_exists"):
        remind.options(if_exists="overwrite")


def test_a_unique_task_takes_no_if_exists(app: duetime.App) -> None:
    @app.task(name="once", unique_for="1h")
    def once() -> None: ...

    with pytest.raises(InvalidRequest, match="unique"):
        once.options(if_exists="replace")


def test_the_answer_shows_that_a_kept_job_has_another_due_time(remind: Any) -> None:
    remind.options(id="a").at(NOON)
    same = remind.options(id="a").at(NOON)
    other = remind.options(id="a").at("2090-01-01T13:00:00Z")
    sooner = remind.options(id="a").later("10m")
    new = remind.options(id="b").later("10m")

    assert (same.event, same.is_due_as_asked, new.is_due_as_asked) == (Event.KEPT, True, True)
    assert (other.is_due_as_asked, other.due_at) == (False, NOON_MS)
    assert not sooner.is_due_as_asked
    assert "due at 2090-01-01T12:00:00.000Z" in repr(other)
    assert "due at" not in repr(same)


def test_a_kept_job_that_is_due_already_is_due_as_asked(remind: Any) -> None:
    remind.options(id="a").delay()
    assert remind.options(id="a").delay().is_due_as_asked


def test_the_store_in_memory_covers_all_of_it(app: duetime.App, remind: Any) -> None:
    real = remind.options(id="a").later("10m", "real")
    with in_memory(app) as box:
        assert not remind.cancel("a")
        assert remind.options(id="a").later("10m").event is Event.ACCEPTED
        assert remind.options(id="a", if_exists="replace").later("10m", "two").event is Event.REPLACED
        remind.reschedule("a", "1m")
        assert [one.id for one in app.queue("mail").list_jobs("delayed").jobs] == ["a"]
        box.travel("1m")
        assert [one.id for one in box.run()] == ["a"]
        app.queue("mail").push({"plain": True}, id="b")
        leased = app.queue("mail").pop()
        assert leased is not None
        leased.ack()
        assert app.queue("mail").size() == 0
    assert real.status() is TaskStatus.DELAYED
    assert app.queue("mail").get("a").state is State.DELAYED


def test_a_body_that_is_no_task_is_a_dead_letter_in_memory_too(app: duetime.App, remind: Any) -> None:
    with in_memory(app) as box:
        app.queue("mail").push("no task", id="b")
        [ran] = box.run()
        assert not ran.is_done
        assert [job.id for job in app.queue("mail").dead.list_jobs().jobs] == ["b"]


@pytest.fixture
def atomic(tmp_path: Path) -> Iterator[Any]:
    if not settings.configured:
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "app.db")}
        settings.configure(DATABASES={"default": database})
        django_package.setup()
    from django.db import connections

    yield transaction.atomic
    connections.close_all()


def test_a_handle_shows_that_its_push_waits_for_the_commit(app: duetime.App, remind: Any, atomic: Any) -> None:
    app.after_commit(django())
    with atomic():
        handle = remind.options(id="a").later("10m")
        assert (handle.is_pushed, handle.status()) == (False, TaskStatus.UNCOMMITTED)
        assert "not pushed" in repr(handle)
        for early in (handle.cancel, lambda: handle.reschedule("1m"), handle.get):
            with pytest.raises(InvalidRequest, match="not pushed"):
                early()
    assert (handle.is_pushed, handle.status(), handle.event) == (True, TaskStatus.DELAYED, Event.ACCEPTED)
    assert handle.born > 0
    assert handle.cancel()


def test_a_handle_whose_push_was_rolled_back_is_not_pushed(app: duetime.App, remind: Any, atomic: Any) -> None:
    app.after_commit(django())
    with atomic():
        handle = remind.delay()
        transaction.set_rollback(True)
    assert not handle.is_pushed
    assert asyncio.run(handle.status_async()) is TaskStatus.UNCOMMITTED
