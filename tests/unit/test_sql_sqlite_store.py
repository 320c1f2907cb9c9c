"""What only the SQLite store does: large purges, sweeping, bounded pages."""

import _sqlite3
import ctypes
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from duetime.model.clock import ManualClock
from duetime.model.errors import LeaseLost, StoreDamaged
from duetime.model.job import DAY_MS, STEP_BYTES, STEP_JOBS, TOTAL_DAYS, Counts, Event, IfExists, NewJob, State
from duetime.model.names import Queue
from duetime.stores.base import Ask, Mark, Push, Pushed, RulesChange
from duetime.stores.finishes import Finish
from duetime.stores.sql.verbs import CLOCK_ERROR_MS, PURGED_MS
from duetime.stores.sqlite import connection
from duetime.stores.sqlite.step import INLINE_BYTES, SqliteStep
from duetime.stores.sqlite.store import SqliteStore

QUEUE = Queue("shop", "mail")


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(tmp_path / "jobs.db", clock=clock, synchronous="OFF")
    yield opened
    await opened.close()


async def push(store: SqliteStore, *ids: str, body: bytes = b"x", mark: Mark | None = None) -> None:
    [answer] = await store.push(QUEUE, [Push([NewJob(job_id, body) for job_id in ids], mark=mark)])
    assert isinstance(answer, Pushed)


async def rows(store: SqliteStore, table: str) -> int:
    (count,) = await store._read(lambda step: step.connection.execute(f"SELECT count(*) FROM {table}").fetchone())
    return count


async def test_a_large_queue_is_purged_immediately_and_its_rows_in_small_steps(
    store: SqliteStore, clock: ManualClock
) -> None:
    for batch in range(3):
        await push(store, *[f"{batch}-{n}" for n in range(STEP_JOBS)])

    purged = await store.purge(QUEUE, list(State))
    assert (purged.removed, purged.more) == (3 * STEP_JOBS, False)
    assert await store.counts([QUEUE]) == [Counts(now=clock.now_ms())]
    assert await store.get(QUEUE, ["0-0"]) == [None]
    assert await store.queues() == []

    # The id comes again while the old job's row is still there
    await push(store, "0-0")
    assert await rows(store, "jobs") == 3 * STEP_JOBS + 1
    assert await store.check() == []

    left = []
    while (reaped := await store.reap()).next_at is not None:
        assert reaped.next_at <= clock.now_ms()
        left.append(await rows(store, "jobs"))
    assert left == [2 * STEP_JOBS + 1, STEP_JOBS + 1, 1]
    assert await rows(store, "discarded") == 0
    [job] = await store.get(QUEUE, ["0-0"])
    assert job is not None
    assert await store.check() == []


async def test_the_reaper_sweeps_old_results(store: SqliteStore, clock: ManualClock) -> None:
    await push(store, "a", "b")
    [[a, b]] = (await store.reserve(QUEUE, [Ask(2, 60_000)])).deliveries
    await store.finish(QUEUE, [Finish(a.lease, (), b"x", 1000), Finish(b.lease, (), b"x", 2000)])
    clock.advance(1)
    await store.reap()
    assert await rows(store, "results") == 1


async def test_the_reaper_sweeps_old_marks_and_counters(store: SqliteStore, clock: ManualClock) -> None:
    await push(store, "a", mark=Mark("short", b"1", 1000))
    await push(store, "b", mark=Mark("long", b"1", CLOCK_ERROR_MS))
    await store.registry.increment("short", life_ms=1000)
    await store.registry.increment("for ever")
    clock.advance(2)
    await store.reap()
    assert (await rows(store, "marks"), await rows(store, "counters")) == (2, 1)
    clock.advance(CLOCK_ERROR_MS // 1000)
    await store.reap()
    assert await rows(store, "marks") == 1


async def test_a_page_ends_at_its_bound_of_bytes(store: SqliteStore) -> None:
    large = b"x" * (STEP_BYTES // 2)
    for job_id in "abc":
        await push(store, job_id, body=large)
    first = await store.list_jobs(QUEUE, State.READY)
    assert [job.id for job in first.jobs] == ["a", "b"]
    second = await store.list_jobs(QUEUE, State.READY, cursor=first.cursor)
    assert [job.id for job in second.jobs] == ["c"]
    assert second.cursor is None


@pytest.mark.parametrize("text", ["", "\0", 'a "quoted" \\ line\n', "\x01\x1f\x7f", "snow ☃ and 𝄞", "[1, null]"])
async def test_any_text_and_any_bytes_come_back_as_they_were(store: SqliteStore, text: str) -> None:
    body = bytes(range(256)) + text.encode()
    await store.push(QUEUE, [Push([NewJob("a", body, attributes={f"key {text}": text})])])
    [[first]] = (await store.reserve(QUEUE, [Ask(1, 1000)])).deliveries
    await store.release(first.lease, 0, text)
    [[second]] = (await store.reserve(QUEUE, [Ask(1, 1000)])).deliveries
    assert (second.body, second.attributes, second.error) == (body, {f"key {text}": text}, text)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("UPDATE queues SET jobs = 7", "counts 7 jobs, 0 leased, 0 dead, but a walk finds [2, 0, 0]"),
        ("UPDATE jobs SET place = 1 WHERE id = 'a'", "the fields of 'a' do not fit place 1"),
        ("UPDATE jobs SET queue = 99 WHERE id = 'a'", "queue 99: 'a' belongs to no queue"),
        ("UPDATE jobs SET expires_at = 5 WHERE id = 'a'", "the reaper comes at 0 and is needed at 6"),
    ],
)
async def test_check_names_each_problem(store: SqliteStore, change: str, problem: str) -> None:
    await push(store, "a", "b")
    assert await store.check() == []
    await store._write(lambda step: step.connection.execute(change))
    assert any(problem in found for found in await store.check())


@pytest.mark.parametrize("use", ["a purge of an unknown queue", "a temporary queue", "a refused push"])
async def test_rows_of_queues_that_were_purged_go_after_a_while(
    store: SqliteStore, clock: ManualClock, use: str
) -> None:
    await push(store, "stays")
    for n in range(STEP_JOBS + 100):
        queue = Queue("shop", f"temporary-{n}")
        match use:
            case "a temporary queue":
                await store.push(queue, [Push([NewJob("a", b"")])])
                await store.purge(queue, list(State))
            case "a refused push":
                [refused] = await store.push(queue, [Push([NewJob("a", b"", delay_ms=2, ttl_ms=1)])])
                assert not isinstance(refused, Pushed)
            case _:
                await store.purge(queue, list(State))

    for _ in range(2):
        clock.advance(PURGED_MS // 1000)
        await store.reap()

    assert await rows(store, "queues") == 1
    assert await store.check() == []


async def test_a_queue_that_is_forgotten_and_comes_again_repeats_no_born(
    store: SqliteStore, clock: ManualClock
) -> None:
    # Given a lease of a queue that was purged and whose row is gone
    start = clock.now_ms()
    await push(store, "a")
    [[old]] = (await store.reserve(QUEUE, [Ask(1, 60_000)])).deliveries
    await store.ack(QUEUE, [old.lease])
    await store.purge(QUEUE, list(State))
    clock.advance(PURGED_MS // 1000)
    await store.reap()
    assert await rows(store, "queues") == 0

    # When the clock steps back to where that job was born, and the id comes again
    clock.set(start)
    await push(store, "a")

    [[new]] = (await store.reserve(QUEUE, [Ask(1, 60_000)])).deliveries
    assert new.lease.born > old.lease.born
    with pytest.raises(LeaseLost):
        await store.release(old.lease, 0)


async def test_a_queue_with_rules_is_not_forgotten(store: SqliteStore, clock: ManualClock) -> None:
    await store.configure(QUEUE, RulesChange(paused=True))
    await store.purge(QUEUE, list(State))
    clock.advance(PURGED_MS // 1000)
    await store.reap()
    assert (await store.configure(QUEUE)).paused
    assert await store.queues() == [QUEUE]


async def test_the_totals_of_a_forgotten_queue_go_after_its_last_day(store: SqliteStore, clock: ManualClock) -> None:
    for _ in range(TOTAL_DAYS + 1):
        await push(store, "a", "b")
        await store.cancel(QUEUE, ["a", "b"])
        clock.advance("1d")
        await store.reap()
    assert await store.queues() == []
    assert await rows(store, "totals") == TOTAL_DAYS, "one of them for the days that are not shown any more"

    clock.advance(f"{TOTAL_DAYS - 2}d")
    await store.reap()
    [totals] = await store.totals([QUEUE])
    assert totals.running.accepted == 2 * TOTAL_DAYS + 2

    clock.advance("1d")
    await store.reap()
    assert await rows(store, "totals") == 0


# --- large bodies

LARGE = b"y" * (INLINE_BYTES + 1)


async def test_a_large_body_is_delivered_and_ends_with_its_job(store: SqliteStore, clock: ManualClock) -> None:
    await push(store, "acked", "cancelled", "dead", "replaced", "waiting", body=LARGE)
    await push(store, "small", body=b"z" * INLINE_BYTES)
    assert await rows(store, "bodies") == 5

    [[first, _, dead]] = (await store.reserve(QUEUE, [Ask(3, 60_000)])).deliveries
    assert (first.lease.id, first.body, dead.lease.id) == ("acked", LARGE, "dead")
    page = await store.list_jobs(QUEUE, State.READY)
    assert {job.id: job.body[:1] for job in page.jobs} == {"replaced": b"y", "small": b"z", "waiting": b"y"}

    await store.ack(QUEUE, [first.lease])
    await store.cancel(QUEUE, ["cancelled"])
    await store.kill(dead.lease)
    await store.push(QUEUE, [Push([NewJob("replaced", b"small")], if_exists=IfExists.REPLACE)])
    assert await rows(store, "bodies") == 2, "of the dead one and of the waiting one"
    assert await store.check() == []

    await store.purge(QUEUE, list(State))
    assert await rows(store, "bodies") == 0


async def test_a_move_of_a_job_does_not_write_its_large_body(store: SqliteStore, tmp_path: Path) -> None:
    await push(store, "a", body=b"x" * 1_000_000)
    log = tmp_path / "jobs.db-wal"
    await store._write(lambda step: None)
    before = log.stat().st_size
    [[delivery]] = (await store.reserve(QUEUE, [Ask(1, 60_000)])).deliveries
    await store.release(delivery.lease, 0)
    assert log.stat().st_size - before < 100_000


async def test_large_bodies_of_an_older_release_stay_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    store = await SqliteStore.open(path, synchronous="OFF")
    await push(store, "a", body=LARGE)
    await store.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE jobs SET body = (SELECT body FROM bodies)")
        connection.execute("DELETE FROM bodies")

    store = await SqliteStore.open(path, synchronous="OFF")
    [[delivery]] = (await store.reserve(QUEUE, [Ask(1, 60_000)])).deliveries
    assert delivery.body == LARGE
    await store.ack(QUEUE, [delivery.lease])
    assert await store.check() == []
    await store.close()


async def test_a_job_whose_large_body_is_gone_is_set_aside(store: SqliteStore) -> None:
    await push(store, "a", body=LARGE)
    await push(store, "b")
    await store._write(lambda step: step.connection.execute("DELETE FROM bodies"))
    assert await store.check() == ["queue 1: 'a' has no body"]
    [[delivery]] = (await store.reserve(QUEUE, [Ask(2, 60_000)])).deliveries
    assert delivery.lease.id == "b"
    [counts] = await store.counts([QUEUE])
    assert counts.damaged == 1


# --- totals of the day


async def test_totals_over_a_clock_that_steps_back_over_midnight(store: SqliteStore, clock: ManualClock) -> None:
    today = clock.now_ms()
    for number, day in enumerate((0, 1, 0, 1)):
        clock.set(today + day * DAY_MS)
        await push(store, f"job-{number}")
    [totals] = await store.totals([QUEUE])
    assert totals.running.accepted == 4
    assert [day.accepted for day in totals.days.values()] == [2, 2]


async def test_the_reaper_goes_on_at_once_while_more_has_ended_than_one_round_deletes(
    store: SqliteStore, clock: ManualClock
) -> None:
    """It deleted 500 a second. The lines that many tasks log are counters whose life ends faster."""
    for number in range(501):
        await store.registry.increment(f"line {number}", 1, life_ms=1000)
    clock.advance("1s")

    reaped = await store.reap()
    assert reaped.next_at == reaped.now
    reaped = await store.reap()
    assert reaped.next_at is None


# --- rows of a SQLite file that are no jobs: they are set aside, counted and logged, and everything else is served


pytestmark = pytest.mark.store_kind("sqlite")


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
    assert (delivery.body, dict(delivery.attributes)) == (b"x", {})


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


# --- what a SQLite store keeps in memory: its page caches, which are bounded, and nothing that grows with its work


KIB = 1024
SLACK = 1024 * KIB
"""Statements, and the pages of a transaction under way."""


def sqlite_bytes() -> int:
    """What SQLite holds in this process, for all connections."""
    # A module that is built into the interpreter has no file.
    library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
    library.sqlite3_memory_used.restype = ctypes.c_int64
    return int(library.sqlite3_memory_used())


async def test_memory_is_bounded_by_the_page_caches_however_much_passes_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: int
) -> None:
    monkeypatch.setattr(connection, "WRITER_CACHE_KIB", 2048)
    monkeypatch.setattr(connection, "READER_CACHE_KIB", 512)
    before = sqlite_bytes()
    store = await SqliteStore.open(tmp_path / "jobs.db", synchronous="OFF")
    # Given a file that is several times as large as the caches
    for batch in range(100):
        waiting = [NewJob(f"w{batch}-{n}", b"x" * 1000, delay_ms=3_600_000) for n in range(100)]
        await store.push(QUEUE, [Push(waiting)])

    most = 0
    for batch in range(100 * scale):
        await store.push(QUEUE, [Push([NewJob(f"j{batch}-{n}", b"x" * 1000) for n in range(20)])])
        [found] = (await store.reserve(QUEUE, [Ask(20, 60_000)])).deliveries
        await store.ack(QUEUE, [delivery.lease for delivery in found])
        await store.list_jobs(QUEUE, State.DELAYED, limit=100)
        await store.reap()
        most = max(most, sqlite_bytes() - before)
    assert 2048 * KIB < most < (2048 + 512) * KIB + SLACK

    # What remains above the start is pages, which SQLite frees on request.
    def shrink(step: SqliteStep) -> None:
        step.connection.execute("PRAGMA shrink_memory")

    await store._write(shrink)
    await store._read(shrink)
    assert sqlite_bytes() - before < SLACK
    await store.close()
    assert sqlite_bytes() - before < SLACK // 8
