"""Pushes that wait for a commit, with real SQLAlchemy and Django on SQLite."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import duetime
from duetime.testing import Box, in_memory
from duetime.worker.after_commit import django, sqlalchemy


def make_app() -> tuple[duetime.App, Any]:
    app = duetime.App("memory:")

    @app.task(name="note")
    def note(text: str) -> None: ...

    return app, note


def texts(box: Box) -> list[str]:
    return [one.arguments["text"] for one in box.pushes]


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[scoped_session[Session]]:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/app.db")
    sessions = scoped_session(sessionmaker(engine))
    yield sessions
    sessions.remove()
    engine.dispose()


def test_sqlalchemy_commit_and_rollback(sessions: scoped_session[Session]) -> None:
    app, note = make_app()
    with in_memory(app) as box:
        app.after_commit(sqlalchemy(sessions))
        note.delay("outside")
        assert texts(box) == ["outside"]
        with sessions.begin():
            assert note.delay("committed").born == 0
            assert [one.born for one in note.bulk([("too",)])] == [0]
            assert texts(box) == ["outside"]
        assert texts(box) == ["outside", "committed", "too"]
        sessions.begin()
        note.delay("rolled back")
        sessions.rollback()
        with sessions.begin():
            note.delay("next")
        assert texts(box) == ["outside", "committed", "too", "next"]


def test_sqlalchemy_savepoints(sessions: scoped_session[Session]) -> None:
    app, note = make_app()
    with in_memory(app) as box:
        app.after_commit(sqlalchemy(sessions))
        with sessions.begin():
            note.delay("outer")
            with sessions.begin_nested():
                note.delay("kept")
            assert texts(box) == []
            lost = sessions.begin_nested()
            note.delay("lost")
            inner = sessions.begin_nested()
            note.delay("lost too")
            inner.commit()
            lost.rollback()
        assert texts(box) == ["outer", "kept"]


async def test_an_async_push_waits_too(sessions: scoped_session[Session]) -> None:
    app, note = make_app()
    with in_memory(app) as box:
        app.after_commit(sqlalchemy(sessions))
        with sessions.begin():
            await note.delay_async("later")
            await note.bulk_async([("many",)])
            assert texts(box) == []
        await asyncio.sleep(0)
        assert texts(box) == ["later", "many"]


@pytest.fixture
def django_database(tmp_path: Path) -> Iterator[None]:
    from django import setup
    from django.conf import settings
    from django.db import connections

    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "django.db")}
    if not settings.configured:
        settings.configure(DATABASES={"default": database})
        setup()
    yield
    connections.close_all()


def test_django_commit_rollback_and_savepoint(django_database: None) -> None:
    from django.db import transaction

    app, note = make_app()

    def undo(text: str) -> None:
        with transaction.atomic():
            note.delay(text)
            transaction.set_rollback(True)

    with in_memory(app) as box:
        app.after_commit(django())
        note.delay("outside")
        with transaction.atomic():
            note.delay("committed")
            undo("lost")
            assert texts(box) == ["outside"]
        assert texts(box) == ["outside", "committed"]
        undo("rolled back")
        assert texts(box) == ["outside", "committed"]


def test_an_error_of_the_push_comes_out_of_the_commit(sessions: scoped_session[Session]) -> None:
    app, note = make_app()

    class Broken:
        def push(self, outgoing: object) -> Any:
            raise duetime.DuetimeError("no store")

    app.pusher = Broken()  # type: ignore[assignment]
    app.after_commit(sqlalchemy(sessions))
    sessions.begin()
    note.delay("x")
    with pytest.raises(duetime.DuetimeError, match="no store"):
        sessions.commit()
