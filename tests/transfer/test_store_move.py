"""A move between stores: everything arrives as it was, once, whatever happens on the way."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duetime.model.clock import ManualClock
from duetime.model.errors import Conflict, InvalidRequest, StoreUnavailable
from duetime.model.job import IfExists, Job, Moved, NewJob, Priority, State
from duetime.model.names import Queue
from duetime.stores.base import Ask, Page, Push, RulesChange, Store, Withdrawal
from duetime.stores.finishes import Finish, Join, JoinCount
from duetime.stores.forwarding import ForwardingStore
from duetime.stores.memory.store import MemoryStore
from duetime.stores.open import open_store
from duetime.transfer import transfer_lock
from duetime.transfer.registry_records import read_counters
from duetime.transfer.store_move import MoveReport, StoreMove, opened
from duetime.transfer.transfer_lock import TransferLock
from tests.faults.store_faults import FaultyStore
from tests.plugins.until import until

QUEUE, OTHER = Queue("shop", "mail"), Queue("default", "sms")
HOUR = 3_600_000
ATTRIBUTES = {"trace": "abc", "ü": "☃"}


async def fill(store: Store) -> None:
    """Jobs of every kind, rules, records and counters."""
    now = (await store.ping()).now
    await store.push(
        QUEUE,
        [
            Push(
                [
                    NewJob("fails", b"\x00\xff", tries=2, attributes=ATTRIBUTES),
                    NewJob("again", b"x", tries=4),
                    NewJob("no-error", b"", tries=1),
                ]
            )
        ],
    )
    reserved = await store.reserve(QUEUE, [Ask(3, 60_000)])
    leases = {delivery.lease.id: delivery.lease for delivery in reserved.deliveries[0]}
    await store.kill(leases["fails"], "boom: ü")
    await store.release(leases["again"], HOUR, "busy")
    await store.release(leases["no-error"], 0)
    await store.push(
        QUEUE,
        [
            Push(
                [
                    NewJob("ready", b"hello", priority=Priority.HIGH, attributes=ATTRIBUTES),
                    NewJob("delayed", b"hello", due_at=now + HOUR, ttl_ms=2 * HOUR, tries=0, priority=Priority.LOW),
                    NewJob("big", b"b" * 900_000, delay_ms=HOUR),
                ]
            )
        ],
    )
    await store.push(OTHER, [Push([NewJob(f"{number:04}", b"y", delay_ms=HOUR + number)]) for number in range(1200)])
    await store.raise_joins(QUEUE, [JoinCount("g~>join", 2, HOUR), JoinCount("h~>join", 1, HOUR)])
    await store.configure(QUEUE, RulesChange(strict=True, max_jobs=50))
    await store.configure(OTHER, RulesChange(paused=True))
    await store.registry.put("token", "shop/1", b"secret hash")
    await store.registry.put("topic", "shop/mail", b"{}")
    await store.registry.increment("topic/shop/mail/done", 7)


async def everything(store: Store) -> dict[str, Any]:
    """All that must be the same in another store. How often a job was delivered in this life shows in its attempt."""
    jobs: dict[str, Any] = {}
    for queue in await store.queues():
        for state in State:
            cursor: str | None = None
            while True:
                page = await store.list_jobs(queue, state, cursor=cursor, limit=500)
                jobs |= {f"{queue}/{job.id}": shape(job) for job in page.jobs}
                cursor = page.cursor
                if cursor is None:
                    break
    records = {(one.kind, one.key): one.value for one in (await store.registry.changes(0)).records}
    return {
        "jobs": jobs,
        "joins": {one.name: one.count for one in await store.joins(QUEUE)},
        "rules": [(queue, await store.configure(queue)) for queue in sorted(await store.queues())],
        "records": {key: value for key, value in records.items() if key[0] in ("token", "topic")},
        "counters": {n: v for n, v in (await store.registry.counters()).items() if n.startswith("topic/")},
    }


def shape(job: Job) -> Any:
    kept = ("id", "born", "state", "body", "priority", "attempt", "reason", "attributes")
    fields = msgspec.structs.asdict(job)
    # A ttl goes over as a duration, so that the end of a job is later by the time of a call.
    lasts = round((job.expires_at - job.born) / HOUR, 2) if job.expires_at else 0
    is_dead = job.state is State.DEAD
    left = job.tries - job.used if job.tries and not is_dead else job.tries
    return [fields[name] for name in kept] + ([job.error] if is_dead else [job.due_at]) + [left, lasts]


async def move(source: Store, target: Store, wait_s: float = 0) -> MoveReport:
    return await StoreMove(source, target, "redis://new", wait_s=wait_s).run()


@pytest.fixture
async def stores(
    tmp_path: Path, redis_url: str, postgres_url: str, mysql_url: str
) -> AsyncIterator[Callable[[str], Any]]:
    urls = {
        "sqlite": f"sqlite://{tmp_path}/jobs.db",
        "redis": redis_url,
        "postgres": postgres_url,
        "mysql": mysql_url,
        "group": f"group:two?a=sqlite%3A%2F%2F{tmp_path}%2Fa.db&b=sqlite%3A%2F%2F{tmp_path}%2Fb.db",
    }
    async with AsyncExitStack() as stack:

        async def opening(kind: str) -> Store:
            store = await open_store(urls[kind])
            stack.push_async_callback(store.close)
            return store

        yield opening


class Slow(ForwardingStore):
    """Lets others run before each withdrawal."""

    async def withdraw(self, queue: Queue, withdrawals: Sequence[Withdrawal]) -> Any:
        await asyncio.sleep(0.4)
        return await super().withdraw(queue, withdrawals)


async def test_round_trip_through_every_store(stores: Callable[[str], Any]) -> None:
    source = await stores("sqlite")
    await fill(source)
    before = await everything(source)
    assert len(before["jobs"]) == 1206
    for kind in ("redis", "postgres", "group", "mysql", "sqlite"):
        target = await stores(kind)
        report = await move(source, target)
        assert (report.problems, report.left, report.moved, report.is_complete) == ([], 0, 1206, True), kind
        assert await everything(target) == before, kind
        assert (await everything(source))["jobs"] == {}
        assert list(await target.check()) == []
        source = target


@pytest.mark.parametrize("verb", ["push", "withdraw", "list_jobs", "configure"])
@pytest.mark.parametrize("side", ["source", "target"])
async def test_a_move_that_breaks_anywhere_is_finished_by_the_next_and_doubles_nothing(side: str, verb: str) -> None:
    """Each call of the verb fails once, before or after it took effect. Consumers at the target go on meanwhile."""
    for at in range(12):
        for lost in (False, True):
            inner, end = MemoryStore(), MemoryStore()
            await inner.push(QUEUE, [Push([NewJob(f"{n:02}", b"x") for n in range(30)])])
            await inner.push(OTHER, [Push([NewJob("dead", b"x")])])
            [[delivery]] = (await inner.reserve(OTHER, [Ask(1, 1000)])).deliveries
            await inner.kill(delivery.lease, "boom")
            source, target = FaultyStore(inner), FaultyStore(end)
            faulty = source if side == "source" else target
            breaks(faulty, verb, at, lost=lost)
            seen: list[str] = []
            try:
                report = await move(source, target)
            except StoreUnavailable:
                faulty.heal()
                seen += await consume(end)
                report = await move(source, target)
            seen += await consume(end)
            assert report.is_complete
            assert sorted(seen) == sorted(f"{n:02}" for n in range(30)), (at, lost)
            [counts, dead] = await end.counts([QUEUE, OTHER])
            assert (counts.total, dead.dead, dead.total) == (0, 1, 1)
            [letter] = (await end.list_jobs(OTHER, State.DEAD)).jobs
            assert (letter.error, letter.reason, letter.attempt) == ("boom", "killed", 1)


def breaks(store: FaultyStore, verb: str, at: int, *, lost: bool) -> None:
    calls = 0
    real = getattr(store.inner, verb)

    async def once(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != at + 1:
            return await real(*args, **options)
        if lost:
            await real(*args, **options)
        raise StoreUnavailable("gone", unknown=lost)

    setattr(store, verb, once)
    store.heal = lambda: delattr(store, verb)  # type: ignore[method-assign]


async def consume(store: Store) -> list[str]:
    reserved = await store.reserve(QUEUE, [Ask(500, 60_000)])
    leases = [delivery.lease for delivery in reserved.deliveries[0]]
    await store.ack(QUEUE, leases)
    return [lease.id for lease in leases]


async def test_a_job_that_changes_while_it_is_copied_arrives_as_it_became() -> None:
    source, target = MemoryStore(), MemoryStore()
    jobs = [NewJob(name, b"old", delay_ms=HOUR) for name in ("rescheduled", "replaced", "cancelled")]
    await source.push(QUEUE, [Push(jobs)])
    push, now = target.push, (await source.ping()).now

    async def meddle(queue: Queue, requests: Any) -> Any:
        answers = await push(queue, requests)
        if not meddled:
            meddled.append(True)
            await source.reschedule(QUEUE, ["rescheduled"], due_at=now + 5 * HOUR)
            await source.push(QUEUE, [Push([NewJob("replaced", b"new", delay_ms=HOUR)], IfExists.REPLACE)])
            await source.cancel(QUEUE, ["cancelled"])
        return answers

    meddled: list[bool] = []
    target.push = meddle  # type: ignore[method-assign]
    report = await move(source, target)
    assert report.is_complete
    left = {job.id: (job.body, job.due_at) for job in (await target.list_jobs(QUEUE, State.DELAYED)).jobs}
    assert left["rescheduled"] == (b"old", now + 5 * HOUR)
    assert left["replaced"][0] == b"new"
    assert set(left) == {"rescheduled", "replaced"}


class ChangedOnTheWay(ForwardingStore):
    """A source where a job changes just before its copied state would be withdrawn."""

    def __init__(self, inner: Store, change: Callable[[], Awaitable[object]]) -> None:
        super().__init__(inner)
        self._changes = [change]

    async def withdraw(
        self, queue: Queue, withdrawals: Sequence[Withdrawal]
    ) -> Sequence[Moved | StoreUnavailable | None]:
        if self._changes:
            await self._changes.pop()()
        return await super().withdraw(queue, withdrawals)


class MissesOneWithdraw(ForwardingStore):
    """A target that answers one withdraw as a group does whose member is down."""

    missed = False

    async def withdraw(
        self, queue: Queue, withdrawals: Sequence[Withdrawal]
    ) -> Sequence[Moved | StoreUnavailable | None]:
        if self.missed:
            return await super().withdraw(queue, withdrawals)
        self.missed = True
        return [StoreUnavailable("member b: down") for _ in withdrawals]


@pytest.mark.parametrize("change", ["reschedule", "replace"])
@pytest.mark.parametrize("fault", ["crash", "member down"])
async def test_an_outdated_copy_that_could_not_be_taken_back_is_replaced_by_the_next_try(
    change: str, fault: str
) -> None:
    old, new = MemoryStore(), MemoryStore()
    await old.push(QUEUE, [Push([NewJob("a", b"x", delay_ms=HOUR)])])
    changes = {
        "reschedule": partial(old.reschedule, QUEUE, ["a"], delay_ms=10 * HOUR),
        "replace": partial(old.push, QUEUE, [Push([NewJob("a", b"y", delay_ms=10 * HOUR)], IfExists.REPLACE)]),
    }
    source = ChangedOnTheWay(old, changes[change])
    if fault == "crash":
        target = FaultyStore(new)
        target.down("withdraw")
        with pytest.raises(StoreUnavailable):
            await move(source, target)
        target.heal()
        [changed] = await old.get(QUEUE, ["a"])
        report = await move(old, target)
    else:
        target = MissesOneWithdraw(new)
        report = await move(source, target)
        changed = None
    assert (report.moved, report.left, report.problems) == (1, 0, [])
    [job] = await new.get(QUEUE, ["a"])
    assert job is not None
    assert job.due_at - (await new.ping()).now > 9 * HOUR
    assert job.body == (b"x" if change == "reschedule" else b"y")
    assert changed is None or shape(changed) == shape(job)


async def test_a_job_that_is_changed_back_while_it_is_copied_is_not_lost() -> None:
    source, target = MemoryStore(), MemoryStore()
    due_at = (await source.ping()).now + HOUR
    await source.push(QUEUE, [Push([NewJob("a", b"x", due_at=due_at)])])

    class Back(ChangedOnTheWay):
        async def list_jobs(self, queue: Queue, state: State, *, cursor: str | None = None, limit: int = 100) -> Page:
            if not self._changes:
                await source.reschedule(QUEUE, ["a"], due_at=due_at)
            return await super().list_jobs(queue, state, cursor=cursor, limit=limit)

    report = await move(Back(source, partial(source.reschedule, QUEUE, ["a"], due_at=due_at + HOUR)), target)
    assert (report.moved, report.left) == (1, 0)
    [job] = await target.get(QUEUE, ["a"])
    assert job is not None
    assert job.due_at == due_at


async def test_an_id_that_both_stores_have_stays_at_the_source_until_one_of_them_is_gone() -> None:
    source, target = MemoryStore(), MemoryStore()
    await source.push(QUEUE, [Push([NewJob("a", b"here"), NewJob("b", b"here")])])
    await asyncio.sleep(0.002)
    await target.push(QUEUE, [Push([NewJob("a", b"there")])])
    report = await move(source, target)
    assert (report.moved, report.left, report.is_complete) == (1, 1, False)
    assert "another job with this id" in report.problems[0]
    assert (await move(source, target)).left == 1
    await target.cancel(QUEUE, ["a"])
    again = await move(source, target)
    assert (again.moved, again.left, again.is_complete) == (1, 0, True)
    bodies = {job.id: job.body for job in (await target.list_jobs(QUEUE, State.READY)).jobs}
    assert bodies == {"a": b"here", "b": b"here"}


JOIN = Join("g~>join", 3, [NewJob("g~>then", b"all are done")], HOUR)


async def finish_one(store: Store) -> None:
    [[delivery]] = (await store.reserve(QUEUE, [Ask(1, HOUR)])).deliveries
    await store.finish(QUEUE, [Finish(delivery.lease, join=JOIN)])


async def test_a_group_of_which_some_are_done_and_one_is_held_ends_at_the_target() -> None:
    source, target = MemoryStore(), MemoryStore()
    await source.push(
        QUEUE, [Push([NewJob(f"g~>{number}", b"x") for number in range(3)]), Push([NewJob("other", b"")])]
    )
    await finish_one(source)
    [[held]] = (await source.reserve(QUEUE, [Ask(1, HOUR)])).deliveries
    moving = asyncio.create_task(move(source, target, wait_s=60))
    await until(lambda: is_there(target, "other"))
    # A member at the target would be counted without the one that is held here.
    assert not await is_there(target, "g~>2")
    await source.finish(QUEUE, [Finish(held.lease, join=JOIN)])
    assert (await moving).is_complete
    await target.cancel(QUEUE, ["other"])
    await finish_one(target)
    assert [job.id for job in (await target.list_jobs(QUEUE, State.READY)).jobs] == ["g~>then"]


async def is_there(store: Store, job_id: str) -> bool:
    [job] = await store.get(QUEUE, [job_id])
    return job is not None


async def test_of_two_moves_at_once_one_is_refused_and_nothing_is_lost() -> None:
    """Each would withdraw the copies of jobs that the other has just moved."""
    source, target = MemoryStore(), MemoryStore()
    count = 3000
    for first in range(0, count, 500):
        jobs = [NewJob(f"{n:04}", b"x", delay_ms=HOUR) for n in range(first, first + 500)]
        await source.push(QUEUE, [Push(jobs)])
    ends = await asyncio.gather(move(Slow(source), target), move(Slow(source), target), return_exceptions=True)
    assert [type(end) for end in ends].count(Conflict) == 1
    assert [one.total for one in await target.counts([QUEUE])] == [count]
    assert [one.total for one in await source.counts([QUEUE])] == [0]


async def test_a_move_that_was_overtaken_changes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = MemoryStore(), MemoryStore()
    await source.push(QUEUE, [Push([NewJob("a", b"x", delay_ms=HOUR)])])
    lock = TransferLock(source.registry, "move")
    async with lock:
        await source.registry.delete("transfer-lock", "current")
        assert (await move(source, target)).moved == 1
        monkeypatch.setattr(transfer_lock, "LOCK_S", 0)
        with pytest.raises(Conflict, match="has taken over"):
            await lock.check()


async def test_the_lock_of_a_move_that_was_killed_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_lock, "LOCK_S", 0.2)
    source, target = MemoryStore(), MemoryStore()
    await source.push(QUEUE, [Push([NewJob("a", b"x", delay_ms=HOUR)])])
    await TransferLock(source.registry, "move").__aenter__()
    assert (await move(source, target)).moved == 1


async def test_leased_jobs_are_waited_for() -> None:
    source, target = MemoryStore(), MemoryStore()
    await source.push(QUEUE, [Push([NewJob("acked", b"x"), NewJob("released", b"x", tries=3)])])
    [leased] = (await source.reserve(QUEUE, [Ask(2, 60_000)])).deliveries
    assert (await move(source, target)).left == 2
    leases = {delivery.lease.id: delivery.lease for delivery in leased}
    moving = asyncio.create_task(move(source, target, wait_s=60))
    await asyncio.sleep(0)
    await source.ack(QUEUE, [leases["acked"]])
    await source.release(leases["released"], 0, "busy")
    report = await moving
    assert (report.is_complete, report.moved) == (True, 1)
    [job] = (await target.list_jobs(QUEUE, State.READY)).jobs
    assert (job.id, job.attempt, job.tries - job.used) == ("released", 1, 2)


async def test_a_store_moved_there_and_back_serves_again() -> None:
    one, two = MemoryStore(), MemoryStore()
    await one.push(QUEUE, [Push([NewJob("a", b"x")])])
    for source, target in ((one, two), (two, one), (one, two), (two, one)):
        assert (await move(source, target)).is_complete
        assert (await source.configure(QUEUE)).paused
        assert not (await target.configure(QUEUE)).paused
    assert await consume(one) == ["a"]


async def test_two_targets_and_the_same_store_are_refused(tmp_path: Path) -> None:
    source, first, second = MemoryStore(), MemoryStore(), MemoryStore()
    await source.push(QUEUE, [Push([NewJob("a", b"x")])])
    await source.reserve(QUEUE, [Ask(1, 60_000)])
    assert (await move(source, first)).left == 1
    with pytest.raises(Conflict, match="is not done"):
        await move(source, second)
    url = f"sqlite://{tmp_path}/jobs.db"
    with pytest.raises(InvalidRequest, match="different stores"):
        async with opened(url, f"{url}?synchronous=OFF"):
            pass
    with pytest.raises(InvalidRequest, match="between stores"):
        async with opened("http://127.0.0.1:7777", url):
            pass


async def test_a_counter_that_ends_while_counters_are_read_does_not_live_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of counters live for a minute: what tasks log, and the beats of workers."""
    clock = ManualClock()
    registry = MemoryStore(clock).registry
    await registry.increment("ends", 1, life_ms=60_000)
    await registry.increment("stays", 2)
    find = registry.counters

    async def find_slowly(prefix: str = "") -> Mapping[str, int]:
        found = await find(prefix)
        clock.advance("1m")
        return found

    monkeypatch.setattr(registry, "counters", find_slowly)

    assert await read_counters(registry) == {"stays": 2}
