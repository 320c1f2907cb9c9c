"""What each verb writes into the journal, compared whole, on every store."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from duetime.engine import Engine
from duetime.journal.events import Draft, Entry
from duetime.journal.journal import Journal
from duetime.journal.options import JournalOptions
from duetime.journal.reader import read_journal
from duetime.journal.recorder import READ_AT_ONCE, open_journal_recorder
from duetime.model.clock import ManualClock
from duetime.model.errors import JobExists, LeaseLost
from duetime.model.job import Event, IfExists, Lease, NewJob, Priority, State
from duetime.stores.base import Mark, Push, Reaped, RulesChange, Store
from duetime.stores.finishes import Finish, Finished, Join, SeenJoin
from duetime.stores.open import open_store
from tests.simulation.engine_room import QUEUE

STORE_KINDS = ["memory", "sqlite", "redis", "postgres", "mysql"]
QUIET = {Event.HEARTBEAT, Event.CLOSED}
T0 = 1_800_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0)


@pytest.fixture
async def store(store_url: str, clock: ManualClock) -> AsyncIterator[Store]:
    opened = await open_store(store_url, clock=clock)
    yield opened
    await opened.close()


class Scene:
    """An engine with a journal, and what it has written."""

    def __init__(self, engine: Engine, journal: Journal, clock: ManualClock) -> None:
        self.engine = engine
        self.clock = clock
        self._journal = journal
        self._seen = 0

    async def written(self) -> list[Draft]:
        """What was written since the last look, without what a node says about itself."""
        await asyncio.to_thread(self._journal.writer.flush)
        items = list(read_journal(self._journal.options.folder))
        assert all(isinstance(item, Entry) for item in items), items
        entries = [item for item in items if isinstance(item, Entry)]
        assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
        fresh = [entry for entry in entries if entry.seq > self._seen and entry.event not in QUIET]
        self._seen = len(entries)
        return [_draft(entry) for entry in fresh]

    async def leased(self, *ids: str, **options: object) -> list[Lease]:
        await self.engine.push(QUEUE, [NewJob(one, b"hello", **options) for one in ids])
        found = await self.engine.reserve([QUEUE], limit=len(ids), ttr_ms=1000)
        assert [delivery.lease.id for delivery in found] == list(ids)
        await self.written()
        return [delivery.lease for delivery in found]


def _draft(entry: Entry) -> Draft:
    return msgspec.convert(
        {name: value for name in Draft.__struct_fields__ if (value := getattr(entry, name)) is not msgspec.UNSET}, Draft
    )


def said(event: Event, job_id: str, *, ts: int = T0, born: int = T0, **fields: object) -> Draft:
    return Draft(ts=ts, event=event, namespace="shop", queue="mail", id=job_id, born=born, **fields)


def accepted(job_id: str, *, event: Event = Event.ACCEPTED, due_at: int = T0, **fields: object) -> Draft:
    return said(event, job_id, **{"due_at": due_at, "priority": 2, "tries": 5, "body": "hello", **fields})


def sure_of_time(drafts: list[Draft], ts: int) -> list[Draft]:
    """Verbs whose answers carry no time are stamped with what is known of the store's clock, which stands still here
    while the loop's goes on.
    """
    assert all(0 <= draft.ts - ts < 60_000 for draft in drafts)
    return [msgspec.structs.replace(draft, ts=ts) for draft in drafts]


@pytest.fixture
async def scene(store: Store, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Scene]:
    async with (
        Journal(JournalOptions(tmp_path / "journal", reserve=0)) as journal,
        Engine(store, recorders=await open_journal_recorder(store, journal, "default")) as engine,
    ):
        yield Scene(engine, journal, clock)


async def test_push(scene: Scene) -> None:
    job = NewJob(
        "b",
        b"\xff",
        delay_ms=5000,
        ttl_ms=9000,
        tries=3,
        priority=Priority.HIGH,
        attributes={"trace": "x"},
    )
    await scene.engine.push(QUEUE, [NewJob("a", b"hello"), job], mark=Mark("spring/7/0", b"1", 60_000))
    assert await scene.written() == [
        accepted("a", batch="spring"),
        said(
            Event.ACCEPTED,
            "b",
            due_at=T0 + 5000,
            ttl=9000,
            tries=3,
            priority=1,
            attributes={"trace": "x"},
            body_b64="/w==",
            batch="spring",
        ),
    ]


async def test_refused_pushes_are_not_recorded(scene: Scene) -> None:
    await scene.engine.push(QUEUE, [NewJob("a", b"hello")])
    await scene.written()
    with pytest.raises(JobExists):
        await scene.engine.push(QUEUE, [NewJob("a", b"hello")], if_exists=IfExists.ERROR)
    assert await scene.written() == []


RICH = NewJob("rich", b"\xff", delay_ms=5000, ttl_ms=9000, tries=3, priority=Priority.HIGH, attributes={"trace": "x"})


def rich(**fields: object) -> Draft:
    told = {"due_at": T0 + 5000, "ttl": 9000, "tries": 3, "priority": 1, "attributes": {"trace": "x"}}
    return said(Event.ACCEPTED, "rich", **{**told, "body_b64": "/w==", "reason": "repeated", **fields})


async def test_a_push_that_a_dead_process_stored_is_written_when_it_is_repeated(scene: Scene, store: Store) -> None:
    # Given a process that died between the store and the journal
    mark = Mark("spring/7/0", b"1", 60_000)
    push = Push([NewJob("a", b"hello"), RICH], mark=mark)
    await store.push(QUEUE, [push])
    scene.clock.advance("1s")

    # Then the answer to the repetition is on record with all that it promises, once
    for _ in range(2):
        assert (await scene.engine.push(QUEUE, push.jobs, mark=mark)).repeated
    assert await scene.written() == [
        accepted("a", ts=T0 + 1000, reason="repeated", batch="spring"),
        rich(ts=T0 + 1000, batch="spring"),
    ]


async def test_finish_records_follow_ups_before_the_end(scene: Scene) -> None:
    [a, b] = await scene.leased("a", "b")
    [first, second] = await scene.engine.finish(
        [Finish(a, [NewJob("a2", b"hello")], b"result", 1000), Finish(b, [NewJob("b2", b"hello", delay_ms=5)])]
    )
    assert isinstance(first, Finished)
    assert isinstance(second, Finished)
    assert sure_of_time(await scene.written(), T0) == [
        accepted("a2", born=first.then[0].born),
        accepted("b2", born=second.then[0].born, due_at=T0 + 5),
        said(Event.ACKED, "a", attempt=1),
        said(Event.ACKED, "b", attempt=1),
    ]


async def test_follow_ups_of_a_join_are_recorded_with_the_last_finish(scene: Scene, store: Store) -> None:
    [a, b] = await scene.leased("g~>a", "g~>b")
    both = Join("g", 2, [NewJob("g~>all", b"hello")], 60_000)
    await scene.engine.finish([Finish(a, join=both)])
    seen = SeenJoin("g", 2, "g~>all", 60_000)
    first = said(Event.ACKED, "g~>a", attempt=1, join=msgspec.structs.replace(seen, seen=1))
    assert sure_of_time(await scene.written(), T0) == [first]

    # Also if the process that finished the last one died before it could write
    [last] = await store.finish(QUEUE, [Finish(b, join=both)])
    assert isinstance(last, Finished)
    assert await scene.engine.finish([Finish(b, join=both)]) == [None]
    assert sure_of_time(await scene.written(), T0) == [
        accepted("g~>all", born=last.then[0].born, reason="repeated"),
        said(Event.ACKED, "g~>b", attempt=1, reason="repeated", join=seen),
    ]


async def test_a_lost_lease_finishes_nothing_in_the_journal(scene: Scene) -> None:
    [a] = await scene.leased("a")
    await scene.engine.release(a)
    await scene.written()
    [answer] = await scene.engine.finish([Finish(a, [NewJob("b", b"hello")])])
    assert isinstance(answer, LeaseLost)
    assert await scene.written() == []


async def test_a_finish_that_a_dead_process_made_is_written_when_it_is_repeated(scene: Scene, store: Store) -> None:
    # Given a process that died between the store and the journal
    [a] = await scene.leased("a")
    finish = Finish(a, [NewJob("b", b"hello"), NewJob("gone", b"hello", delay_ms=5000)])
    [made] = await store.finish(QUEUE, [finish])
    assert isinstance(made, Finished)
    await store.cancel(QUEUE, ["gone"])

    # Then its repetition is answered when the journal has both what followed and the end
    assert await scene.engine.finish([finish]) == [None]
    assert sure_of_time(await scene.written(), T0) == [
        accepted("b", born=made.then[0].born, reason="repeated"),
        said(Event.ACKED, "a", attempt=1, reason="repeated"),
    ]


@pytest.mark.parametrize("made_ids", [False, True])
async def test_a_mark_is_repeated_after_its_jobs_are_gone(scene: Scene, store: Store, made_ids: bool) -> None:
    mark = Mark("spring", b"1", 60_000)
    await store.push(QUEUE, [Push([NewJob("a", b"hello")], mark=mark)])
    [delivery] = await scene.engine.reserve([QUEUE])
    await scene.engine.ack([delivery.lease])
    await scene.written()
    # A push whose ids are made on its way has others when it is repeated; else another id is another job
    await scene.engine.push(QUEUE, [NewJob("other", b"hello")], mark=mark, made_ids=made_ids)
    again = accepted("a", reason="repeated", batch="spring")
    assert await scene.written() == ([again] if made_ids else [])
    if not made_ids:
        await scene.engine.push(QUEUE, [NewJob("a", b"hello")], mark=mark)
        assert await scene.written() == [again]


async def test_a_replacement_that_is_repeated_still_ends_the_other(scene: Scene, store: Store) -> None:
    await scene.engine.push(QUEUE, [NewJob("a", b"old")])
    await scene.written()
    scene.clock.advance("1s")
    push, now = Push([NewJob("a", b"hello")], IfExists.REPLACE, Mark("spring", b"1", 60_000)), T0 + 1000
    await store.push(QUEUE, [push])
    await scene.engine.push(QUEUE, push.jobs, if_exists=IfExists.REPLACE, mark=push.mark)
    told = accepted("a", event=Event.REPLACED, ts=now, born=now, due_at=now, was=T0, reason="repeated", batch="spring")
    assert await scene.written() == [told]


async def test_a_kept_job_is_written_as_the_store_has_it(scene: Scene, store: Store) -> None:
    await store.push(QUEUE, [Push([RICH])])
    scene.clock.advance("1s")
    kept = said(Event.KEPT, "rich", ts=T0 + 1000, due_at=T0 + 5000, reason="waiting")
    await scene.engine.push(QUEUE, [NewJob("rich", b"another")])
    assert await scene.written() == [kept, rich(ts=T0 + 1000)]
    # From now on this process knows that it is on record
    await scene.engine.push(QUEUE, [NewJob("rich", b"another")])
    assert await scene.written() == [kept]
    # But not another job under the same id
    await store.cancel(QUEUE, ["rich"])
    await store.push(QUEUE, [Push([NewJob("rich", b"hello")])])
    await scene.engine.push(QUEUE, [NewJob("rich", b"another")])
    assert [(draft.event, draft.born, draft.reason) for draft in await scene.written()] == [
        (Event.KEPT, T0 + 1000, "waiting"),
        (Event.ACCEPTED, T0 + 1000, "repeated"),
    ]


@pytest.mark.parametrize("state", ["leased", "dead"])
async def test_a_kept_job_that_is_not_waiting(scene: Scene, store: Store, state: str) -> None:
    await store.push(QUEUE, [Push([NewJob("a", b"hello")])])
    [delivery] = await scene.engine.reserve([QUEUE])
    if state == "dead":
        await scene.engine.kill(delivery.lease)
    await scene.written()
    await scene.engine.push(QUEUE, [NewJob("a", b"hello")])
    [kept, again] = await scene.written()
    assert (kept.event, kept.reason) == (Event.KEPT, state)
    assert (again.event, again.reason, again.attempt, again.body) == (Event.ACCEPTED, "repeated", 1, "hello")


async def test_many_kept_jobs_and_a_new_one(scene: Scene, store: Store) -> None:
    jobs = [NewJob(f"j{number}", b"hello") for number in range(2 * READ_AT_ONCE + 1)]
    await store.push(QUEUE, [Push(jobs)])
    await scene.engine.push(QUEUE, [*jobs, NewJob("new", b"hello"), jobs[0]])
    written = await scene.written()
    again = [draft for draft in written if draft.reason == "repeated"]
    assert again == [accepted(job.id, reason="repeated") for job in jobs]
    assert accepted("new") in written


async def test_kept_jobs_that_do_not_fit_into_one_read(scene: Scene, store: Store) -> None:
    jobs = [NewJob(f"j{number}", b"x" * 1_000_000) for number in range(6)]
    for job in jobs:
        await store.push(QUEUE, [Push([job])])
    await scene.engine.push(QUEUE, [NewJob(job.id, b"small") for job in jobs])
    again = [draft for draft in await scene.written() if draft.reason == "repeated"]
    assert [(draft.id, draft.body) for draft in again] == [(job.id, job.body.decode()) for job in jobs]


async def test_a_replaced_job(scene: Scene) -> None:
    await scene.leased("a")
    scene.clock.advance("500ms")
    await scene.engine.push(QUEUE, [NewJob("a", b"hello")], if_exists=IfExists.REPLACE)
    now = T0 + 500
    assert await scene.written() == [
        accepted("a", event=Event.REPLACED, ts=now, born=now, due_at=now, was=T0),
    ]


async def test_a_job_that_takes_the_place_of_an_expired_one(scene: Scene) -> None:
    scene.engine._reaper._reap = _never_reap
    await scene.engine.push(QUEUE, [NewJob("a", b"hello", ttl_ms=1000)])
    await scene.written()
    scene.clock.advance("2s")
    await scene.engine.push(QUEUE, [NewJob("a", b"hello")])
    now = T0 + 2000
    written = await scene.written()
    assert written == [
        said(Event.EXPIRED, "a", ts=now),
        accepted("a", ts=now, born=now, due_at=now, reason="expired", was=T0),
    ]


async def _never_reap(limit: int) -> Reaped:
    return await asyncio.get_running_loop().create_future()


async def test_deliver(scene: Scene) -> None:
    await scene.engine.push(QUEUE, [NewJob("a", b"hello")])
    await scene.written()
    scene.clock.advance("1s")
    await scene.engine.reserve([QUEUE])
    assert await scene.engine.reserve([QUEUE]) == []
    assert await scene.written() == [said(Event.DELIVERED, "a", ts=T0 + 1000, attempt=1, due_at=T0)]


async def test_deliver_to_a_waiting_consumer(scene: Scene) -> None:
    consumer = asyncio.create_task(scene.engine.reserve([QUEUE], wait_ms=20_000))
    await scene.engine.push(QUEUE, [NewJob("a", b"hello")])
    await consumer
    assert await scene.written() == [
        accepted("a"),
        said(Event.DELIVERED, "a", attempt=1, due_at=T0),
    ]


async def test_jobs_that_a_reserve_ends_are_recorded(scene: Scene) -> None:
    scene.engine._reaper._reap = _never_reap
    await scene.engine.push(QUEUE, [NewJob("a", b"hello", ttl_ms=1000), NewJob("b", b"hello")])
    await scene.written()
    scene.clock.advance("2s")
    await scene.engine.reserve([QUEUE])
    now = T0 + 2000
    assert await scene.written() == [
        said(Event.EXPIRED, "a", ts=now),
        said(Event.DELIVERED, "b", ts=now, attempt=1, due_at=T0),
    ]


async def test_ack(scene: Scene) -> None:
    a, b = await scene.leased("a", "b")
    await scene.engine.ack([a, b, a, Lease(QUEUE, "b", 1, 1)])
    assert sure_of_time(await scene.written(), T0) == [
        said(Event.ACKED, "a", attempt=1),
        said(Event.ACKED, "b", attempt=1),
        said(Event.ACKED, "a", attempt=1, reason="repeated"),
        said(Event.ACKED, "b", born=1, attempt=1, reason="repeated"),
    ]


async def test_an_ack_that_a_dead_process_made_is_written_when_it_is_repeated(scene: Scene, store: Store) -> None:
    [a] = await scene.leased("a")
    await store.ack(QUEUE, [a])
    assert await scene.engine.ack([a]) == [None]
    assert sure_of_time(await scene.written(), T0) == [said(Event.ACKED, "a", attempt=1, reason="repeated")]


async def test_an_ack_of_a_lost_lease_is_not_written(scene: Scene) -> None:
    [a] = await scene.leased("a")
    await scene.engine.release(a)
    await scene.written()
    [answer] = await scene.engine.ack([a])
    assert isinstance(answer, LeaseLost)
    assert await scene.written() == []


async def test_ack_by_id(scene: Scene) -> None:
    [_, dead] = await scene.leased("a", "dead")
    await scene.engine.kill(dead)
    await scene.engine.push(QUEUE, [NewJob("b", b"hello")])
    await scene.written()
    await scene.engine.ack_by_id(QUEUE, ["a", "b", "none", "dead"])
    assert sure_of_time(await scene.written(), T0) == [
        said(Event.ACKED, "a", attempt=1, reason="unfenced"),
        said(Event.ACKED, "b", reason="unfenced"),
        said(Event.ACKED, "none", born=0, reason="repeated"),
        said(Event.DELETED, "dead", attempt=1),
    ]


async def test_cancel(scene: Scene) -> None:
    await scene.leased("a")
    await scene.engine.push(QUEUE, [NewJob("b", b"hello")])
    await scene.written()
    await scene.engine.cancel(QUEUE, ["a", "b", "none"])
    assert sure_of_time(await scene.written(), T0) == [
        said(Event.CANCELLED, "a", attempt=1, reason="running"),
        said(Event.CANCELLED, "b"),
    ]


async def test_release_and_give_back(scene: Scene) -> None:
    a, b = await scene.leased("a", "b")
    await scene.engine.release(a, delay_ms=3000, error="x" * 3000 + "\nTimeoutError: no answer")
    await scene.engine.give_back([b])
    with pytest.raises(LeaseLost):
        await scene.engine.release(a)
    assert sure_of_time(await scene.written(), T0) == [
        said(Event.RELEASED, "a", attempt=1, due_at=T0 + 3000, error="x" * (2048 - 24) + "\nTimeoutError: no answer"),
        said(Event.GIVEN_BACK, "b", attempt=1, due_at=T0),
    ]


async def test_kill_respawn_and_delete(scene: Scene) -> None:
    a, _ = await scene.leased("a", "b")
    await scene.engine.kill(a, error="no")
    await scene.engine.respawn(QUEUE, ids=["a", "b", "none"])
    [delivery] = await scene.engine.reserve([QUEUE])
    await scene.engine.kill(delivery.lease)
    await scene.engine.cancel(QUEUE, ["a"])
    assert sure_of_time(await scene.written(), T0) == [
        said(Event.DEAD, "a", attempt=1, reason="killed", error="no"),
        said(Event.RESPAWNED, "a", attempt=1, due_at=T0),
        said(Event.DELIVERED, "a", attempt=2, due_at=T0),
        said(Event.DEAD, "a", attempt=2, reason="killed"),
        said(Event.DELETED, "a", attempt=2),
    ]


async def test_a_release_without_tries_left_is_a_death(scene: Scene) -> None:
    [a] = await scene.leased("a", tries=1)
    await scene.engine.release(a)
    assert sure_of_time(await scene.written(), T0) == [said(Event.DEAD, "a", attempt=1, reason="tries")]


async def test_reschedule(scene: Scene) -> None:
    await scene.leased("leased")
    await scene.engine.push(QUEUE, [NewJob("a", b"hello")])
    await scene.written()
    await scene.engine.reschedule(QUEUE, ["a", "leased", "none"], delay_ms=7000)
    assert sure_of_time(await scene.written(), T0) == [said(Event.RESCHEDULED, "a", due_at=T0 + 7000)]


async def test_extend_and_configure_say_nothing(scene: Scene) -> None:
    [a] = await scene.leased("a")
    await scene.engine.extend(a, 5000)
    await scene.engine.store.configure(QUEUE, RulesChange(strict=True))
    assert await scene.written() == []


async def test_leases_and_jobs_that_the_reaper_ends_are_recorded(scene: Scene) -> None:
    await scene.leased("last", tries=1)
    await scene.leased("again")
    await scene.engine.push(QUEUE, [NewJob("old", b"hello", ttl_ms=1000)])
    await scene.written()
    scene.clock.advance("2s")
    scene.engine._reaper.run_within(0)
    now, written = T0 + 2000, list[Draft]()
    while len(written) < 3:
        written += await scene.written()
    assert sorted(written, key=lambda draft: draft.id) == [
        said(Event.LEASE_EXPIRED, "again", ts=now, attempt=1, due_at=now),
        said(Event.DEAD, "last", ts=now, attempt=1, reason="tries"),
        said(Event.EXPIRED, "old", ts=now),
    ]


async def test_purge(scene: Scene) -> None:
    await scene.engine.push(QUEUE, [NewJob(f"j{number}", b"hello") for number in range(3)])
    await scene.written()
    assert await scene.engine.purge(QUEUE, [State.READY, State.DELAYED]) == 3
    assert await scene.engine.purge(QUEUE, [State.READY]) == 0
    assert await scene.written() == [
        Draft(ts=T0, event=Event.PURGED, namespace="shop", queue="mail", reason="delayed,ready")
    ]


async def test_a_verb_whose_caller_goes_away_is_on_record(scene: Scene) -> None:
    [a] = await scene.leased("a")
    killing = asyncio.create_task(scene.engine.kill(a))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    killing.cancel()
    await asyncio.wait([killing])
    assert killing.cancelled()
    written = list[Draft]()
    while not written:
        written = await scene.written()
    assert sure_of_time(written, T0) == [said(Event.DEAD, "a", attempt=1, reason="killed")]
