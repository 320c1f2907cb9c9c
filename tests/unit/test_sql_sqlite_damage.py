"""Rows of a SQLite file that are no jobs: they are set aside, counted and told, and everything else is served."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from duetime.model.clock import ManualClock
from duetime.model.errors import StoreDamaged
from duetime.model.job import Event, NewJob, State
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed
from duetime.stores.sqlite.store import SqliteStore

pytestmark = pytest.mark.store_kind("sqlite")

QUEUE = Queue("shop", "mail")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(tmp_path / "jobs.db", clock=clock, synchronous="OFF")
    yield opened
    await opened.close()


async def push(store: SqliteStore, *ids: str) -> None:
    [answer] = await store.push(QUEUE, [Push([NewJob(job_id, b"body", ttl_ms=60_000) for job_id in ids])])
    assert isinstance(answer, Pushed)


def damage(folder: Path, change: str, job_id: str = "a") -> None:
    with closing(sqlite3.connect(folder / "jobs.db")) as connection, connection:
        connection.execute(f"UPDATE jobs SET {change} WHERE id = ?", [job_id])


def set_aside(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    told = [record for record in caplog.records if record.message == "damaged_job_set_aside"]
    return [(record.queue, record.job) for record in told]  # type: ignore[attr-defined]


@pytest.mark.parametrize("change", ["tries = 'many'", "born = 'yesterday'", "attempt = 1.5", "expires_at = 'never'"])
async def test_a_reserve_sets_it_aside_and_serves_the_rest(
    store: SqliteStore, tmp_path: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    await push(store, "a", "b", "c")
    damage(tmp_path, change)

    # Then looking at it finds nothing, and the rest
    nothing, found = await store.get(QUEUE, ["a", "b"])
    assert nothing is None
    assert found is not None
    page = await store.list_jobs(QUEUE, State.READY, limit=2)
    assert page.cursor is not None
    rest = await store.list_jobs(QUEUE, State.READY, cursor=page.cursor)
    assert [job.id for job in (*page.jobs, *rest.jobs)] == ["b", "c"]

    # And a reserve gives the others, and says what it met
    [deliveries] = (await store.reserve(QUEUE, [Ask(10, 1000)])).deliveries
    assert [delivery.lease.id for delivery in deliveries] == ["b", "c"]
    assert set_aside(caplog) == [("shop/mail", "a")]
    [counts] = await store.counts([QUEUE])
    assert (counts.ready, counts.leased, counts.damaged) == (0, 2, 1)
    assert any("was set aside" in problem for problem in await store.check())

    # And its id can be used again; a purge of the queue removes it
    await push(store, "a")
    [[again]] = (await store.reserve(QUEUE, [Ask(10, 1000)])).deliveries
    assert again.lease.id == "a"
    await store.purge(QUEUE, list(State))
    assert list(await store.check()) == []


async def test_a_damaged_lease_does_not_hold_up_the_reaper(
    store: SqliteStore, tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    await push(store, "a", "b")
    await store.reserve(QUEUE, [Ask(2, 1000)])
    damage(tmp_path, "tries = 'many'")
    clock.advance("1s")

    moved = (await store.reap()).moved[QUEUE]

    assert [(one.event, one.id) for one in moved] == [(Event.LEASE_EXPIRED, "b")]
    assert set_aside(caplog) == [("shop/mail", "a")]
    [counts] = await store.counts([QUEUE])
    assert (counts.ready, counts.leased, counts.damaged) == (1, 0, 1)


async def test_attributes_that_cannot_be_read_are_left_out(store: SqliteStore, tmp_path: Path) -> None:
    await push(store, "a")
    damage(tmp_path, "attributes = 'no JSON'")

    [found] = await store.get(QUEUE, ["a"])
    assert found is not None
    assert dict(found.attributes) == {}
    [[delivery]] = (await store.reserve(QUEUE, [Ask(1, 1000)])).deliveries
    assert (delivery.body, dict(delivery.attributes)) == (b"body", {})


@pytest.mark.parametrize("change", ["born = 'yesterday'", "expires_at = 'never'", "used = 1.5"])
async def test_a_push_takes_the_place_of_a_damaged_job(
    store: SqliteStore, tmp_path: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    await push(store, "a", "b")
    damage(tmp_path, change)

    await push(store, "a")

    assert set_aside(caplog) == [("shop/mail", "a")]
    [moved, other] = await store.cancel(QUEUE, ["a", "b"])
    assert [one and one.event for one in (moved, other)] == [Event.CANCELLED, Event.CANCELLED]


@pytest.mark.parametrize("column", ["paused", "max_jobs", "floor", "jobs", "leased", "reap_at"])
async def test_a_queue_that_cannot_be_read_holds_up_no_other(
    store: SqliteStore, tmp_path: Path, clock: ManualClock, column: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A rule or count that is no number is damage: the error names it, and the reaper serves the other queues."""
    other = Queue("shop", "other")
    for queue in (QUEUE, other):
        await store.push(queue, [Push([NewJob("a", b""), NewJob("b", b"")])])
        await store.reserve(queue, [Ask(1, 1000)])
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection, connection:
        connection.execute(f"UPDATE queues SET {column} = 'x' WHERE name = 'mail'")

    for call in (push(store, "c", "d"), store.reserve(QUEUE, [Ask(2, 1000)]), store.counts([QUEUE])):
        with pytest.raises(StoreDamaged, match=f"the row of the queue shop/mail cannot be read.*{column} 'x'"):
            await call
    clock.advance("1s")
    reaped = await store.reap()
    assert [(queue, one.id) for queue, moved in reaped.moved.items() for one in moved] == [(other, "a")]
    assert reaped.next_at is None or reaped.next_at > reaped.now


async def test_a_queue_that_cannot_be_read_delays_no_round_of_the_reaper(
    store: SqliteStore, tmp_path: Path, clock: ManualClock
) -> None:
    for queue in (QUEUE, Queue("shop", "one"), Queue("shop", "other")):
        await store.push(queue, [Push([NewJob("a", b"")])])
        await store.reserve(queue, [Ask(1, 1000)])
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection, connection:
        connection.execute("UPDATE queues SET paused = 'x', reap_at = 1 WHERE name = 'mail'")
    clock.advance("1s")

    reaped = await store.reap(2)
    assert len(reaped.moved) == 1
    assert reaped.next_at is not None
    assert reaped.next_at <= reaped.now
    reaped = await store.reap(3)
    assert len(reaped.moved) == 1
