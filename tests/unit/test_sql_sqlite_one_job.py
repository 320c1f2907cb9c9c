"""The fast path of SQLite for one job: what it leaves behind, and what a signal may do in the middle of a call."""

import asyncio
import fcntl
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing, closing, contextmanager
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import msgspec
import pytest

from duetime.client import AsyncClient, Client
from duetime.model.clock import ManualClock
from duetime.model.errors import DuetimeError, StoreFull
from duetime.model.job import Delivery, IfExists, Lease, NewJob, Priority
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, RulesChange, Wake
from duetime.stores.sqlite.step import SqliteStep
from duetime.stores.sqlite.store import SqliteStore
from tests.contract.vocabulary import give_back_one
from tests.plugins.until import until

QUEUE = Queue("default", "mail")
DAY_MS = 86_400_000
PLACES = ("sqlite/blocking.py", "sqlite/step.py", "sqlite/connection.py")


async def open_store(path: Path, clock: ManualClock | None = None) -> SqliteStore:
    # Without a reserve no push is passed on because it is time to look at the disk.
    store = await SqliteStore.open(path, clock=clock, synchronous="OFF", reserve=0)
    await store.push(QUEUE, [Push([NewJob("first", b"")])])  # the queue and its day are known then
    return store


def dump(path: Path) -> dict[str, list[Any]]:
    with closing(sqlite3.connect(path)) as connection:
        return {
            table: sorted(map(repr, connection.execute(f"SELECT * FROM {table}")))
            for table in ("queues", "jobs", "bodies", "totals", "discarded", "forgotten")
        } | {"wakes": connection.execute("SELECT wakes FROM meta").fetchall()}


# --- what it leaves behind


def random_request(chance: Random, number: int) -> Push:
    """Mostly plain; an id that was used before, attributes, a large body, a ttl that has no room for the delay."""
    delay_ms = chance.choice([0, 0, 1, 5, 1000])
    job = NewJob(
        f"{chance.randrange(number + 1) if chance.random() < 0.1 else number:05}",
        chance.randbytes(chance.choice([0, 100, 800, 801, 5000])),
        delay_ms=delay_ms,
        due_at=chance.choice([None, None, None, 5]),
        ttl_ms=chance.choice([0, 0, 3, 1000, 5000]),
        tries=chance.choice([0, 1, 20]),
        priority=chance.choice(list(Priority)),
        attributes=chance.choice([{}, {}, {"trace": "ä"}]),
    )
    return Push([job], chance.choice(list(IfExists)))


async def without_fast_paths(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this store serves every request by the general verbs."""
    general = await store._write(lambda step: step.connection)  # type: ignore[attr-defined]

    def only_for_others(fast: Callable[..., Any]) -> Callable[..., Any]:
        return lambda step, *of: None if step.connection is general else fast(step, *of)

    for verb in ("fast_push", "fast_reserve", "fast_ack"):
        monkeypatch.setattr(SqliteStep, verb, only_for_others(getattr(SqliteStep, verb)))


@pytest.mark.parametrize("seed", range(4))
async def test_fast_paths_do_the_same_as_the_verbs(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first store is called in another thread, the second in its writer's thread, the third by the verbs."""
    chance, number = Random(seed), 0
    clocks = ManualClock(), ManualClock(), ManualClock()
    stores = [await open_store(tmp_path / f"{name}.db", clock) for name, clock in zip("abc", clocks, strict=True)]
    await without_fast_paths(stores[2], monkeypatch)
    direct, asked, answered = stores[0].one_job.blocking(), 0, 0
    held: list[Lease] = []

    async def both(call: str, of: Any, short: Callable[[Any], Any]) -> Any:
        nonlocal asked, answered
        asked += 1
        done = await asyncio.to_thread(short, of)
        answered += done is not None
        answers = [
            [done] if store is stores[0] and done is not None else await general(store, call, of) for store in stores
        ]
        assert plain(answers[0]) == plain(answers[1]) == plain(answers[2])
        return answers[0][0]

    for _ in range(250):
        match chance.randrange(8):
            case 0 | 1 | 2:
                number += 1
                await both("push", random_request(chance, number), lambda request: direct.push(QUEUE, request))
            case 3 | 4:
                ask = Ask(1, chance.choice([10, 60_000]), chance.choice([(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0)]))
                got = await both("reserve", ask, lambda one: direct.reserve(QUEUE, one, no_orphan))
                held += [delivery.lease for delivery in got.deliveries[0]]
            case 5 if held:
                of = held.pop(chance.randrange(len(held))), Ask(1, 60_000, chance.choice([(0, 1, 0), (0, 0, 0)]))
                got = await both("ack_and_reserve", of, lambda one: direct.ack_and_reserve(*one, no_orphan))
                held += [delivery.lease for delivery in got.deliveries[0]]
            case 6 if held:
                await both("ack", held.pop(chance.randrange(len(held))), direct.ack)
            case _:
                step = chance.choice([0, 1, 1, 7, 2000, DAY_MS if chance.random() < 0.05 else 3])
                for clock, store in zip(clocks, stores, strict=True):
                    clock.advance(step / 1000)
                    await look_after(store, step, number)

    assert dump(tmp_path / "a.db") == dump(tmp_path / "b.db") == dump(tmp_path / "c.db")
    assert answered > asked / 2, "most of it is usual"
    for store in stores:
        assert list(await store.check()) == []
        await store.close()


async def look_after(store: SqliteStore, step: int, number: int) -> None:
    if step == 7:
        await store.reap()
    elif step == 2000:
        await store.configure(QUEUE, RulesChange(strict=number % 2 == 0, paused=number % 10 == 0))


async def general(store: SqliteStore, call: str, of: Any) -> list[Any]:
    if call == "ack_and_reserve":
        lease, of = of
        await store.ack(QUEUE, [lease])
        call = "reserve"
    answer = await getattr(store, call)(QUEUE, [of])
    return [answer] if call == "reserve" else list(answer)


def plain(answers: list[Any]) -> Any:
    """Errors are equal if they say the same, and a list is as good as a tuple."""
    [answer] = answers
    return (type(answer), str(answer)) if isinstance(answer, DuetimeError) else msgspec.json.encode(answer)


def no_orphan(delivery: Delivery) -> None:
    raise AssertionError(f"nobody was interrupted, but {delivery} has no caller")


# --- others on the same file


async def test_calls_decline_while_others_write_or_wait_to_write(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    store = await open_store(path)
    direct = store.one_job.blocking()
    jobs = (Push([NewJob(f"job {number}", b"")]) for number in range(10))

    assert await asyncio.to_thread(direct.push, QUEUE, next(jobs))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert await asyncio.to_thread(direct.push, QUEUE, next(jobs)) is None
        other.execute("ROLLBACK")
    assert await asyncio.to_thread(direct.push, QUEUE, next(jobs))
    turn = os.open(f"{path}-wake/turn", os.O_RDWR)
    fcntl.flock(turn, fcntl.LOCK_EX)
    assert await asyncio.to_thread(direct.push, QUEUE, next(jobs)) is None
    os.close(turn)
    assert await asyncio.to_thread(direct.push, QUEUE, next(jobs))
    await store.close()
    assert direct.push(QUEUE, next(jobs)) is None


async def test_a_push_wakes_the_consumers_of_other_programs(tmp_path: Path) -> None:
    clock = ManualClock()
    store = await open_store(tmp_path / "jobs.db", clock)
    other = await SqliteStore.open(tmp_path / "jobs.db", clock=clock)
    async with aclosing(other.wakeups()) as wakes:  # pyright: ignore[reportArgumentType]
        assert await anext(wakes) == Wake()
        direct = store.one_job.blocking()
        later, sooner = NewJob("later", b"", due_at=7), NewJob("sooner", b"", due_at=5)
        for job in (later, NewJob("no sooner", b"", due_at=7), sooner):
            assert await asyncio.to_thread(direct.push, QUEUE, Push([job]))
        async with asyncio.timeout(60):
            while (heard := await anext(wakes)) == Wake(QUEUE, 7):
                pass
        assert heard in (Wake(QUEUE, 5), Wake()), "or the poll of the file was quicker than the datagram"
    assert sqlite_wakes(tmp_path / "jobs.db") == 3
    await other.close()
    await store.close()


def sqlite_wakes(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT wakes FROM meta").fetchone()[0])


async def test_pushes_to_a_disk_that_is_nearly_full_are_refused(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "jobs.db", synchronous="OFF", reserve=2**60)
    direct, request = store.one_job.blocking(), Push([NewJob("a", b"")])
    assert await asyncio.to_thread(direct.push, QUEUE, request) is None
    assert isinstance((await store.push(QUEUE, [request]))[0], StoreFull)
    await store.close()


async def test_a_push_checks_a_small_disk_itself(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "jobs.db", synchronous="OFF", reserve=2**20)
    for name in ("first", "second"):  # the reserve file is as large as it may be then
        await store.push(QUEUE, [Push([NewJob(name, bytes(200_000))])])
    direct = store.one_job.blocking()
    for number in range(3):
        assert await asyncio.to_thread(direct.push, QUEUE, Push([NewJob(f"job {number}", b"")]))
    await store.close()


@pytest.mark.parametrize(
    ("synchronous", "reserve", "pages"), [("FULL", 0, 1000), ("NORMAL", 0, 4000), ("FULL", 2**20, 64)]
)
async def test_a_lone_caller_whose_commits_are_synced_keeps_the_log_short(
    tmp_path: Path, synchronous: str, reserve: int, pages: int
) -> None:
    store = await SqliteStore.open(tmp_path / "jobs.db", synchronous=synchronous, reserve=reserve)
    connection = store._connect_blocking()
    assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (pages,)
    connection.close()
    await store.close()


# --- in the middle of a call


@contextmanager
def at_step(wanted: int, action: Callable[[], object]) -> Iterator[list[int]]:
    """Does the action once, where Python would run a signal's handler: after a call of a built-in function, or at the
    begin of a function of the store. The list counts these places.
    """
    seen = [0]

    def look(frame: FrameType, event: str, _: object) -> None:
        if event in {"call", "c_return"} and frame.f_code.co_filename.endswith(PLACES):
            seen[0] += 1
            if seen[0] == wanted:
                sys.setprofile(None)
                action()

    sys.setprofile(look)
    try:
        yield seen
    finally:
        sys.setprofile(None)


class Interrupted(Exception):
    pass


def interrupt() -> None:
    raise Interrupted


@pytest.mark.parametrize("acks", [False, True])
async def test_a_caller_that_is_interrupted_anywhere_keeps_no_lease(tmp_path: Path, acks: bool) -> None:
    clock = ManualClock()
    store = await open_store(tmp_path / "jobs.db", clock)
    direct, orphans = store.one_job.blocking(), list[Delivery]()
    assert await asyncio.to_thread(direct.ack, Lease(QUEUE, "none", 1, 1)) is None  # the connection is open then

    async def held_lease() -> Lease:
        """Of a job that is due before all others."""
        await store.push(QUEUE, [Push([NewJob("held", b"", due_at=1)])])
        return (await store.reserve(QUEUE, [Ask(1, 60_000)])).deliveries[0][0].lease

    def reserve(wanted: int) -> bool:
        with at_step(wanted, interrupt):
            try:
                if lease:
                    return direct.ack_and_reserve(lease, Ask(1, 60_000), orphans.append) is None
                return direct.reserve(QUEUE, Ask(1, 60_000), orphans.append) is None
            except Interrupted:
                return True

    for wanted in range(1, 1000):
        lease = await held_lease() if acks else None
        is_over = not await asyncio.to_thread(reserve, wanted)
        if lease:  # done, or not yet; both or none
            [moved] = await store.ack(QUEUE, [lease])
            assert (moved is None) == bool(orphans or is_over)
        leased = (await store.counts([QUEUE]))[0].leased
        if is_over:
            break
        assert leased == len(orphans)
        for orphan in orphans:
            await give_back_one(store, orphan.lease)
        orphans.clear()
    else:
        raise AssertionError("the call has no end")
    assert wanted > 5
    assert leased == 1
    await store.close()


def in_a_fork() -> None:
    """As a handler would: the child uses SQLite only after it has closed what it inherited, and so it just ends."""
    if not (child := os.fork()):
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("verb", ["push", "reserve", "ack", "ack_and_reserve"])
async def test_a_handler_may_fork_anywhere(tmp_path: Path, verb: str) -> None:
    """A transaction that is under way at the fork is undone: the call declines, and so do later ones."""
    clock = ManualClock()
    store = await open_store(tmp_path / "jobs.db", clock)
    orphans: list[Delivery] = []

    async def in_the_middle(wanted: int) -> tuple[int, object]:
        direct = store.one_job.blocking()
        lease = Lease(QUEUE, "none", 1, 1)
        if verb.startswith("ack"):
            lease = (await store.reserve(QUEUE, [Ask(1, 60_000)])).deliveries[0][0].lease

        def call() -> tuple[int, object]:
            direct.ack(Lease(QUEUE, "none", 1, 1))  # the connection is open then
            with at_step(wanted, in_a_fork) as seen:
                match verb:
                    case "push":
                        answer: object = direct.push(QUEUE, Push([NewJob(f"caller {wanted}", b"")]))
                    case "reserve":
                        answer = direct.reserve(QUEUE, Ask(1, 60_000), orphans.append)
                    case "ack":
                        answer = direct.ack(lease)
                    case _:
                        answer = direct.ack_and_reserve(lease, Ask(1, 60_000), orphans.append)
            direct.close()
            return seen[0], answer

        before = (await store.totals([QUEUE]))[0].running
        places, answer = await asyncio.to_thread(call)
        after = (await store.totals([QUEUE]))[0].running
        assert (answer is None) == (before == after)
        return places, answer

    await store.push(QUEUE, [Push([NewJob(f"{number:03}", b"") for number in range(400)])])
    places, _ = await in_the_middle(0)
    answers = [(await in_the_middle(wanted))[1] for wanted in range(1, places + 1)]
    assert None in answers, "no fork came within a transaction"
    assert len([answer for answer in answers if answer]) >= 2, "no fork came before or after a transaction"
    assert orphans == []
    assert list(await store.check()) == []
    await store.close()


# --- the connection


def openers(path: Path) -> int:
    """How often this process has the file open."""
    links = [Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return sum(os.readlink(link) == str(path) for link in links if link.is_symlink())


async def test_the_connection_is_opened_before_the_first_call(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "jobs.db")
    before = openers(tmp_path / "jobs.db")
    direct = store.one_job.blocking()
    await until(lambda: openers(tmp_path / "jobs.db") > before)
    direct.close()
    assert await asyncio.to_thread(direct.push, QUEUE, Push([NewJob("late", b"")])) is None
    await store.close()
    assert openers(tmp_path / "jobs.db") == 0


async def test_calls_that_are_closed_while_they_open_leave_nothing_open(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "jobs.db")
    for _ in range(20):
        store.one_job.blocking().close()
    await store.close()
    assert openers(tmp_path / "jobs.db") == 0


async def test_an_asyncio_program_opens_no_connection_for_other_threads(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with AsyncClient(f"sqlite://{path}?synchronous=OFF") as client:
        await client.queue("mail").push(b"")
        assert openers(path) == 3, "the writer's, the reader's and the one that watches"
    with Client(f"sqlite://{path}?synchronous=OFF") as blocking:
        blocking.queue("mail").push(b"")
        blocking.queue("mail").push(b"")
        assert openers(path) == 4
