"""Pushes of a lone caller on PostgreSQL: one statement from the event loop, and what happens when it is disturbed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from duetime.engine import Engine
from duetime.engine.requests import PushRequest
from duetime.model.errors import JobExists, QueueFull, StoreUnavailable
from duetime.model.job import Event, IfExists, NewJob
from duetime.model.names import Queue
from duetime.stores.base import Pushed, RulesChange
from duetime.stores.open import open_store
from duetime.stores.postgres import one_job as one_job_module
from duetime.stores.postgres.one_job import LoopConnection, PostgresOneJob
from tests.plugins.postgres_server import STORE, PostgresServer
from tests.plugins.until import until

pytestmark = pytest.mark.store_kind("postgres")

QUEUE = Queue("shop", "mail")
HOUR_MS = 3_600_000


def one_job(engine: Engine) -> PostgresOneJob:
    return engine.store._one_job  # type: ignore[attr-defined]


def shared_calls(engine: Engine) -> int:
    """Store calls for pushes that were made by a runner."""
    lane = engine._batcher.lanes[PushRequest]
    return lane.calls - lane.single_calls


def connection_of(engine: Engine) -> LoopConnection:
    connection = one_job(engine)._connection
    assert connection is not None
    return connection


def pid_of(engine: Engine) -> int:
    return connection_of(engine)._pgconn.backend_pid


async def begun(engine: Engine) -> None:
    """The queue's id is known, and the connection is open."""
    for number in range(2):
        await engine.push(QUEUE, [NewJob(f"begin-{number}", b"", delay_ms=2 * HOUR_MS)])
    await until(lambda: one_job(engine)._connection is not None)


@pytest.fixture
async def engine(postgres_url: str) -> AsyncIterator[Engine]:
    store = await open_store(postgres_url)
    async with Engine(store) as engine:
        await begun(engine)
        yield engine
    await store.close()


@pytest.fixture
def other(postgres_url: str) -> Any:
    """Somebody else's session."""
    with psycopg.connect(postgres_url.partition("?")[0]) as connection:
        yield connection


def hold(other: "psycopg.Connection[Any]") -> None:
    other.execute("SELECT 1 FROM duetime.queues FOR UPDATE")


async def waits_for_lock(engine: Engine, watcher_url: str) -> None:
    with psycopg.connect(watcher_url.partition("?")[0], autocommit=True) as watcher:
        asked = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        await until(lambda: watcher.execute(asked, (pid_of(engine),)).fetchone() is not None)


async def test_a_lone_push_needs_no_thread(engine: Engine) -> None:
    before = shared_calls(engine)
    pushed = await engine.push(QUEUE, [NewJob("a", b"body", attributes={"k": "v"}, ttl_ms=HOUR_MS, tries=3)])

    assert shared_calls(engine) == before
    [moved] = pushed.jobs
    [job] = await engine.store.get(QUEUE, ["a"])
    assert job is not None
    assert (moved.event, moved.born, moved.due_at) == (Event.ACCEPTED, job.born, job.due_at)
    assert (job.body, job.attributes, job.tries) == (b"body", {"k": "v"}, 3)
    [counts] = await engine.store.counts([QUEUE])
    [totals] = await engine.store.totals([QUEUE])
    assert (counts.ready, counts.delayed, totals.running.accepted) == (1, 2, 3)
    assert await engine.store.check() == []


async def test_only_a_lone_push_before_all_others_is_announced(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    announced = list[int]()
    monkeypatch.setattr(engine.store._hub, "announce_in_loop", lambda wakes, version: announced.append(len(wakes)))  # type: ignore[attr-defined]
    before = shared_calls(engine)
    await engine.push(QUEUE, [NewJob("later", b"", delay_ms=3 * HOUR_MS)])
    assert announced == []
    await engine.push(QUEUE, [NewJob("first", b"", delay_ms=HOUR_MS)])
    assert announced == [1]
    assert shared_calls(engine) == before


async def test_the_first_push_of_a_day_is_counted(engine: Engine, other: "psycopg.Connection[Any]") -> None:
    """There is no row of the day's totals yet that the statement could update."""
    other.execute("UPDATE duetime.totals SET day = day - 1")
    other.commit()
    await engine.push(QUEUE, [NewJob("first", b"")])
    one_job(engine)._backoff.clear()
    await engine.push(QUEUE, [NewJob("second", b"")])

    other.commit()
    rows = other.execute("SELECT accepted FROM duetime.totals ORDER BY day").fetchall()
    assert rows == [(2,), (2,)]
    assert await engine.store.check() == []


async def test_totals_that_change_during_a_push_are_exact(
    engine: Engine, other: "psycopg.Connection[Any]", postgres_url: str
) -> None:
    other.execute("UPDATE duetime.totals SET delivered = delivered + 1")
    push = asyncio.create_task(engine.push(QUEUE, [NewJob("a", b"")]))
    await waits_for_lock(engine, postgres_url)
    other.commit()
    await push

    assert other.execute("SELECT accepted, delivered FROM duetime.totals").fetchall() == [(3, 1)]


async def test_unusual_pushes_use_the_general_verb(engine: Engine) -> None:
    await engine.push(QUEUE, [NewJob("a", b"")])
    with pytest.raises(JobExists):
        await engine.push(QUEUE, [NewJob("a", b"")], if_exists=IfExists.ERROR)
    one_job(engine)._backoff.clear()
    kept = await engine.push(QUEUE, [NewJob("a", b"other")])
    one_job(engine)._backoff.clear()
    replaced = await engine.push(QUEUE, [NewJob("a", b"new")], if_exists=IfExists.REPLACE)
    await engine.store.configure(QUEUE, RulesChange(max_jobs=3))
    one_job(engine)._backoff.clear()
    with pytest.raises(QueueFull):
        await engine.push(QUEUE, [NewJob("b", b"")])

    assert [kept.jobs[0].event, replaced.jobs[0].event] == [Event.KEPT, Event.REPLACED]
    [job] = await engine.store.get(QUEUE, ["a"])
    assert job is not None
    assert job.body == b"new"


async def test_one_of_many_callers_does_not_go_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others would wait for its commit before they begin theirs. Only the first one cannot know of them."""
    monkeypatch.setattr("duetime.engine.batcher.SHARED_S", 600.0)
    statements: list[int] = []
    connection = connection_of(engine)
    send = connection.send
    connection.send = lambda *given: (statements.append(1), send(*given))  # type: ignore[method-assign]

    async def producer(number: int) -> None:
        for turn in range(10):
            await engine.push(QUEUE, [NewJob(f"{number}-{turn}", b"")])

    await asyncio.gather(*map(producer, range(16)))
    assert len(statements) == 1
    [counts] = await engine.store.counts([QUEUE])
    assert counts.ready == 160


async def test_a_large_body_is_sent_bit_by_bit(engine: Engine) -> None:
    before, body = shared_calls(engine), bytes(range(256)) * 4096
    await engine.push(QUEUE, [NewJob("large", body)])

    [job] = await engine.store.get(QUEUE, ["large"])
    assert job is not None
    assert job.body == body
    assert shared_calls(engine) == before


async def test_a_push_that_meets_another_change_wakes_consumers(
    engine: Engine, other: "psycopg.Connection[Any]", postgres_url: str
) -> None:
    """Somebody takes the earliest job away after the statement has begun: the pushed job is the earliest then."""
    await engine.push(QUEUE, [NewJob("early", b"", delay_ms=HOUR_MS // 2)])
    hold(other)
    other.execute("DELETE FROM duetime.jobs WHERE id = 'early'")
    other.execute("DELETE FROM duetime.bodies WHERE id = 'early'")
    other.execute("UPDATE duetime.queues SET jobs = jobs - 1")
    wakes = engine.store.wakeups()
    await anext(wakes)
    pushing = asyncio.create_task(engine.push(QUEUE, [NewJob("a", b"", delay_ms=HOUR_MS)]))
    await waits_for_lock(engine, postgres_url)
    other.commit()

    [moved] = (await pushing).jobs
    while (wake := await asyncio.wait_for(anext(wakes), 60)).due_at != moved.due_at:
        assert wake.queue is None
    assert await engine.store.check() == []


async def test_a_session_that_was_ended_while_idle_is_replaced(
    engine: Engine, other: "psycopg.Connection[Any]"
) -> None:
    old = connection_of(engine)
    other.execute("SELECT pg_terminate_backend(%s, 60000)", (pid_of(engine),))
    # The event loop has had no turn to hear of it.
    await engine.push(QUEUE, [NewJob("a", b"")])
    await until(lambda: connection_of(engine) is not old)

    before = shared_calls(engine)
    await engine.push(QUEUE, [NewJob("b", b"")])
    assert shared_calls(engine) == before
    assert [job and job.id for job in await engine.store.get(QUEUE, ["a", "b"])] == ["a", "b"]


async def test_a_session_that_is_ended_during_a_push_pushes_once_at_most(
    engine: Engine, other: "psycopg.Connection[Any]", postgres_url: str
) -> None:
    hold(other)
    pushing = asyncio.create_task(engine.push(QUEUE, [NewJob("a", b"")]))
    await waits_for_lock(engine, postgres_url)
    other.execute("SELECT pg_terminate_backend(%s, 60000)", (pid_of(engine),))
    other.commit()
    # The server's farewell and the end of the connection may arrive as one; then the outcome is unknown.
    [answer] = await asyncio.gather(pushing, return_exceptions=True)
    if isinstance(answer, StoreUnavailable) and answer.fields["unknown"]:
        answer = await engine.push(QUEUE, [NewJob("a", b"")])
    assert isinstance(answer, Pushed)

    [counts] = await engine.store.counts([QUEUE])
    assert (counts.ready, counts.delayed) == (1, 2)
    assert await engine.store.check() == []


async def test_an_answer_that_is_lost_is_unknown(start_postgres: Callable[..., PostgresServer]) -> None:
    server = start_postgres()
    store = await open_store(f"{server.url}?{STORE}")
    async with Engine(store) as engine:
        await begun(engine)
        other = psycopg.connect(server.url)
        hold(other)
        pushing = asyncio.create_task(engine.push(QUEUE, [NewJob("a", b"")]))
        await waits_for_lock(engine, server.url)
        server.kill()
        with pytest.raises(StoreUnavailable) as lost:
            await pushing
        other.close()
        assert lost.value.fields["unknown"] is True
        server.start()
        await engine.push(QUEUE, [NewJob("b", b"")])
    await store.close()


async def test_an_answer_that_never_comes_is_awaited_for_a_bounded_time(
    engine: Engine, other: "psycopg.Connection[Any]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_job_module, "STEP_S", 0.1)
    hold(other)  # as if the server's process had stopped
    with pytest.raises(StoreUnavailable) as failure:
        await engine.push(QUEUE, [NewJob("a", b"")])
    assert failure.value.outcome_unknown
    monkeypatch.undo()
    other.rollback()

    # The next ones are served, first by the general way, then over a new connection
    await engine.push(QUEUE, [NewJob("b", b"")])
    await until(lambda: one_job(engine)._connection is not None and connection_of(engine).is_ready())
    await engine.push(QUEUE, [NewJob("c", b"")])


async def test_a_push_whose_caller_has_gone_wakes_consumers(
    engine: Engine, other: "psycopg.Connection[Any]", postgres_url: str
) -> None:
    waiting = asyncio.create_task(engine.reserve([QUEUE], wait_ms=60_000))
    await until(lambda: engine.parked == 1)
    hold(other)
    pushing = asyncio.create_task(engine.push(QUEUE, [NewJob("a", b"")]))
    await waits_for_lock(engine, postgres_url)
    pushing.cancel()
    with suppress(asyncio.CancelledError):
        await pushing
    other.commit()

    [delivery] = await waiting
    assert delivery.lease.id == "a"


async def test_nothing_is_left_open(postgres_url: str, other: "psycopg.Connection[Any]") -> None:
    other.autocommit = True
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'duetime'"
    store = await open_store(postgres_url)
    async with Engine(store) as engine:
        for number in range(2):
            await engine.push(QUEUE, [NewJob(str(number), b"")])
        # The connection is being opened now.
    await store.close()

    await until(lambda: other.execute(count).fetchone() == (0,))


async def test_a_pooler_that_keeps_no_statements_gets_none(postgres_url: str) -> None:
    store = await open_store(f"{postgres_url}&prepare=off")
    async with Engine(store) as engine:
        for number in range(3):
            await engine.push(QUEUE, [NewJob(str(number), b"")])
        assert one_job(engine)._opening is one_job(engine)._connection is None
    await store.close()
