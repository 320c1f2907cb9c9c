"""A group of stores with members that are down, damaged, full or hung: each takes only its share with it.

What a verb did on one member is told, whatever happens on another; and what a verb could not find out is told as that.
"""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from duetime.engine import Engine
from duetime.journal.events import Entry, body_of
from duetime.journal.journal import Journal
from duetime.journal.options import JournalOptions
from duetime.journal.reader import read_journal
from duetime.journal.recorder import open_journal_recorder
from duetime.model.clock import ManualClock
from duetime.model.errors import (
    DuetimeError,
    JobExists,
    LeaseLost,
    StoreDamaged,
    StoreFull,
    StoreUnavailable,
)
from duetime.model.job import Event, IfExists, Lease, Moved, NewJob, State
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed, RulesChange
from duetime.stores.group.layout import home
from duetime.stores.group.store import GroupStore
from duetime.stores.memory.store import MemoryStore
from tests.contract.vocabulary import give_back_one
from tests.faults.store_faults import FaultyStore
from tests.plugins.until import until

pytestmark = pytest.mark.store_kind("group")

QUEUE = Queue("shop", "mail")
IDS = [f"job-{n}" for n in range(60)]
ABC = ("a", "b", "c")
PROBLEMS = [StoreUnavailable("gone"), StoreDamaged("foreign data"), StoreFull("no room")]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process has to read of a new layout."""
    monkeypatch.setattr("duetime.stores.group.members.SPREAD_S", 0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def members(clock: ManualClock) -> dict[str, FaultyStore]:
    return {name: FaultyStore(MemoryStore(clock)) for name in ABC}


async def open_group(members: dict[str, FaultyStore], names: str = "abc", *drain: str) -> GroupStore:
    def opener(name: str):
        async def open_it() -> FaultyStore:
            return members[name]

        return open_it

    return await GroupStore.open("wide", {name: opener(name) for name in names}, drain)


@pytest.fixture
async def group(members: dict[str, FaultyStore]) -> AsyncIterator[GroupStore]:
    store = await open_group(members)
    yield store
    await store.close()


def at(name: str, layout: tuple[str, ...] = ABC) -> list[str]:
    return [job_id for job_id in IDS if home(QUEUE, job_id, layout) == name]


async def push(store: GroupStore, *ids: str, if_exists: IfExists = IfExists.KEEP) -> list[Pushed | DuetimeError]:
    return list(await store.push(QUEUE, [Push([NewJob(job_id, b"x")], if_exists) for job_id in ids]))


async def lease_all(store: GroupStore, ttr_ms: int = 60_000) -> dict[str, Lease]:
    reserved = await store.reserve(QUEUE, [Ask(500, ttr_ms)])
    return {delivery.lease.id: delivery.lease for delivery in reserved.deliveries[0]}


def ids_of(answers: object) -> set[str]:
    assert isinstance(answers, list | tuple)
    return {one.id for one in answers if isinstance(one, Moved)}


# --- one member cannot serve, the others do


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda one: one.code)
@pytest.mark.parametrize("verb", ["heads", "reserve"])
async def test_a_reserve_gives_what_the_others_leased(
    group: GroupStore, members: dict[str, FaultyStore], verb: str, problem: DuetimeError
) -> None:
    await push(group, *IDS)
    members["b"].fail(verb, error=problem)
    leases = await lease_all(group)
    assert set(leases) == set(IDS) - set(at("b"))
    [counts] = await members["a"].inner.counts([QUEUE])
    assert counts.leased == len(at("a"))


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda one: one.code)
async def test_a_reap_tells_what_the_others_moved(
    group: GroupStore, members: dict[str, FaultyStore], clock: ManualClock, problem: DuetimeError
) -> None:
    await push(group, *IDS)
    await lease_all(group, ttr_ms=1000)
    clock.advance(2000)
    members["b"].fail("reap", error=problem)
    reaped = await group.reap(500)
    assert {one.id for one in reaped.moved[QUEUE]} == set(IDS) - set(at("b"))


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda one: one.code)
@pytest.mark.parametrize("verb", ["heads", "queues"])
async def test_a_look_over_all_members_passes_over_one(
    group: GroupStore, members: dict[str, FaultyStore], verb: str, problem: DuetimeError
) -> None:
    await push(group, *IDS)
    members["a"].fail(verb, error=problem)
    assert await group.queues() == [QUEUE]
    [head] = await group.heads([QUEUE])
    assert head is not None


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda one: one.code)
async def test_a_push_is_refused_for_the_share_of_one_member(
    group: GroupStore, members: dict[str, FaultyStore], problem: DuetimeError
) -> None:
    members["b"].fail("push", error=problem)
    answers = dict(zip(IDS, await push(group, *IDS), strict=True))
    assert {job_id for job_id, answer in answers.items() if isinstance(answer, Pushed)} == set(IDS) - set(at("b"))
    assert all(type(answers[job_id]) is type(problem) for job_id in at("b"))
    assert all("member b: " in str(answers[job_id]) for job_id in at("b"))


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda one: one.code)
async def test_a_request_that_one_member_took_and_another_refused_says_so(
    group: GroupStore, members: dict[str, FaultyStore], problem: DuetimeError
) -> None:
    members["b"].fail("push", error=problem)
    [answer] = await group.push(QUEUE, [Push([NewJob(job_id, b"x") for job_id in IDS])])
    assert isinstance(answer, DuetimeError)
    assert answer.fields["unknown"] is True
    assert f"{60 - len(at('b'))} of 60 jobs were pushed" in answer.message


@pytest.mark.parametrize("lost", ["a", "b"])
@pytest.mark.parametrize("refusal", [*PROBLEMS, JobExists("taken")], ids=lambda one: one.code)
async def test_a_push_whose_answer_one_member_lost_is_unknown_whatever_the_other_says(
    members: dict[str, FaultyStore], refusal: DuetimeError, lost: str
) -> None:
    group = await open_group(members, "ab")
    try:
        members[lost].lose_answers("push")
        members["ab".replace(lost, "")].fail("push", error=refusal)
        if isinstance(refusal, JobExists):
            members["ab".replace(lost, "")].heal()
            await push(group, *at("ab".replace(lost, ""), ("a", "b"))[:1])
        [answer] = await group.push(QUEUE, [Push([NewJob(job_id, b"x") for job_id in IDS], IfExists.ERROR)])
        assert isinstance(answer, StoreUnavailable)
        assert answer.outcome_unknown
        [counts] = await members[lost].inner.counts([QUEUE])
        assert counts.ready == len(at(lost, ("a", "b")))
    finally:
        await group.close()


@pytest.mark.parametrize("lost", ["a", "b"])
@pytest.mark.parametrize("verb", ["respawn", "respawn by id", "purge", "configure"])
async def test_a_change_whose_answer_one_member_lost_is_unknown_whatever_the_other_says(
    members: dict[str, FaultyStore], verb: str, lost: str
) -> None:
    group = await open_group(members, "ab")
    name, other = verb.split(maxsplit=1)[0], "ab".replace(lost, "")
    try:
        async with Engine(group) as engine:
            await push(group, *IDS)
            await kill_all(group)
            members[lost].lose_answers(name)
            members[other].down(name)
            change = {
                "respawn": partial(engine.respawn, QUEUE, limit=100),
                "respawn by id": partial(engine.respawn, QUEUE, ids=IDS),
                "purge": partial(engine.purge, QUEUE, [State.DEAD]),
                "configure": partial(engine.store.configure, QUEUE, RulesChange(paused=True)),
            }[verb]
            with pytest.raises(StoreUnavailable) as raised:
                await change()
            assert raised.value.outcome_unknown
    finally:
        await group.close()


async def test_an_ack_whose_answer_the_home_lost_is_unknown_although_the_earlier_home_is_down(
    members: dict[str, FaultyStore],
) -> None:
    group = await open_group(members, "abc", "c")
    try:
        moved = next(job_id for job_id in at("a", ("a", "b")) if job_id in at("c"))
        await push(group, moved)
        leases = await lease_all(group)
        members["a"].lose_answers("ack")
        members["c"].down("ack")
        [answer] = await group.ack(QUEUE, [leases[moved]])
        assert isinstance(answer, StoreUnavailable)
        assert answer.outcome_unknown
    finally:
        await group.close()


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda one: one.code)
async def test_an_ack_is_refused_for_the_share_of_one_member(
    group: GroupStore, members: dict[str, FaultyStore], problem: DuetimeError
) -> None:
    await push(group, *IDS)
    leases = await lease_all(group)
    members["b"].fail("ack", "cancel", error=problem)
    answers = dict(zip(leases, await group.ack(QUEUE, list(leases.values())), strict=True))
    assert {job_id for job_id, answer in answers.items() if isinstance(answer, Moved)} == set(IDS) - set(at("b"))
    assert all(isinstance(answers[job_id], StoreUnavailable) for job_id in at("b"))
    [cancelled] = await group.cancel(QUEUE, at("b")[:1])
    assert isinstance(cancelled, StoreUnavailable)


async def test_one_damaged_member_at_the_start_does_not_stop_the_others(members: dict[str, FaultyStore]) -> None:
    members["b"].fail("ping", error=StoreDamaged("foreign data"))
    store = await open_group(members)
    try:
        await push(store, *IDS)
        assert set(await lease_all(store)) == set(IDS) - set(at("b"))
        members["b"].heal()
        await until(lambda: pushed_again(store, at("b")[0]))
    finally:
        await store.close()


async def pushed_again(store: GroupStore, job_id: str) -> bool:
    [answer] = await push(store, job_id)
    return isinstance(answer, Pushed)


async def test_a_record_of_the_group_that_cannot_be_read_is_damage_and_heals(members: dict[str, FaultyStore]) -> None:
    await members["b"].registry.put("group", "wide", b"not ours")
    store = await open_group(members)
    try:
        [answer] = await push(store, at("b")[0])
        assert isinstance(answer, StoreUnavailable)
        await members["b"].registry.delete("group", "wide")
        await until(lambda: pushed_again(store, at("b")[0]))
    finally:
        await store.close()


# --- verbs that go over all members tell what happened


async def kill_all(store: GroupStore) -> None:
    for lease in (await lease_all(store)).values():
        await store.kill(lease)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda one: one.code)
@pytest.mark.parametrize("by_id", [True, False])
async def test_a_respawn_tells_what_happened_and_who_failed(
    group: GroupStore, members: dict[str, FaultyStore], problem: DuetimeError, by_id: bool
) -> None:
    await push(group, *IDS)
    await kill_all(group)
    members["b"].fail("respawn", error=problem)
    answers = await group.respawn(QUEUE, ids=IDS if by_id else None, limit=60)
    assert ids_of(answers) == set(IDS) - set(at("b"))
    [failed] = [one for one in answers if not isinstance(one, Moved)]
    assert "member b: " in failed.message


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda one: one.code)
async def test_a_purge_tells_what_happened_and_who_failed(
    group: GroupStore, members: dict[str, FaultyStore], problem: DuetimeError
) -> None:
    await push(group, *IDS)
    members["a"].fail("purge", error=problem)
    purged = await group.purge(QUEUE, list(State))
    assert purged.removed == 60 - len(at("a"))
    [failed] = purged.problems
    assert "member a: " in failed.message
    assert not purged.more


async def test_a_respawn_and_a_purge_that_no_member_answers_are_refused(
    group: GroupStore, members: dict[str, FaultyStore]
) -> None:
    for member in members.values():
        member.fail("respawn", "purge", error=StoreUnavailable("gone"))
    with pytest.raises(StoreUnavailable):
        await group.respawn(QUEUE, limit=10)
    with pytest.raises(StoreUnavailable):
        await group.purge(QUEUE, list(State))


async def test_the_engine_says_how_many_were_respawned_and_purged_before_it_failed(
    group: GroupStore, members: dict[str, FaultyStore]
) -> None:
    async with Engine(group) as engine:
        await push(group, *IDS)
        await kill_all(group)
        members["b"].down("respawn", "purge")
        with pytest.raises(StoreUnavailable, match=f"{60 - len(at('b'))} jobs were respawned; member b") as respawned:
            await engine.respawn(QUEUE, limit=60)
        assert respawned.value.outcome_unknown
        with pytest.raises(StoreUnavailable, match=f"{60 - len(at('b'))} jobs were removed; member b") as purged:
            await engine.purge(QUEUE, list(State))
        assert purged.value.outcome_unknown


async def test_a_change_of_rules_that_one_member_missed_says_so(
    group: GroupStore, members: dict[str, FaultyStore]
) -> None:
    members["b"].down("configure")
    with pytest.raises(StoreUnavailable, match="changed on a, c; member b") as failed:
        await group.configure(QUEUE, RulesChange(paused=True))
    assert failed.value.outcome_unknown
    assert (await members["a"].inner.configure(QUEUE)).paused


async def test_a_ping_answers_for_those_that_serve_and_names_the_others(
    group: GroupStore, members: dict[str, FaultyStore]
) -> None:
    before = await group.ping()
    assert not before.problems
    members["b"].down()
    info = await group.ping()
    assert list(info.problems) == ["b"]
    assert info.epoch == before.epoch


async def test_consumers_of_several_queues_are_served_while_one_member_is_down(
    group: GroupStore, members: dict[str, FaultyStore]
) -> None:
    other = Queue("shop", "other")
    async with Engine(group) as engine:
        members["b"].down()
        waiting = asyncio.create_task(engine.reserve([other, QUEUE], wait_ms=20_000))
        await until(lambda: members["a"].count("heads"))
        await engine.push(QUEUE, [NewJob(at("a")[0], b"x")])
        [delivery] = await waiting
        assert delivery.lease.id == at("a")[0]


# --- homes that changed


@pytest.fixture
def moved() -> list[str]:
    """Ids whose home is c once c is there, and was a before."""
    return [job_id for job_id in at("c") if home(QUEUE, job_id, ("a", "b")) == "a"]


@pytest.fixture
async def grown(members: dict[str, FaultyStore], moved: list[str]) -> AsyncIterator[GroupStore]:
    """A group to which c came when jobs were on a already."""
    two = await open_group(members, "ab")
    await push(two, *moved)
    await two.close()
    store = await open_group(members)
    yield store
    await store.close()


async def test_a_lease_on_an_earlier_home_is_in_reach_while_the_new_home_is_down(
    grown: GroupStore, members: dict[str, FaultyStore], moved: list[str]
) -> None:
    leases = await lease_all(grown)
    assert len(moved) >= 5
    members["c"].down()
    [acked] = await grown.ack(QUEUE, [leases[moved[0]]])
    assert isinstance(acked, Moved)
    assert acked.event is Event.ACKED
    assert await grown.extend(leases[moved[1]], 60_000)
    assert (await grown.release(leases[moved[1]], 0)).event is Event.RELEASED
    assert (await give_back_one(grown, leases[moved[2]])).event is Event.GIVEN_BACK
    assert (await grown.kill(leases[moved[3]])).event is Event.DEAD
    [cancelled] = await grown.cancel(QUEUE, [moved[4]])
    assert isinstance(cancelled, Moved)
    assert [job and job.id for job in await grown.get(QUEUE, [moved[1]])] == [moved[1]]


async def test_what_may_be_on_a_member_that_is_down_is_not_called_gone(
    grown: GroupStore, members: dict[str, FaultyStore], moved: list[str]
) -> None:
    leases = await lease_all(grown)
    members["a"].down()
    [acked] = await grown.ack(QUEUE, [leases[moved[0]]])
    assert isinstance(acked, StoreUnavailable)
    [cancelled] = await grown.cancel(QUEUE, [moved[0]])
    assert isinstance(cancelled, StoreUnavailable)
    with pytest.raises(StoreUnavailable):
        await grown.release(leases[moved[0]], 0)
    with pytest.raises(StoreUnavailable):
        await grown.get(QUEUE, [moved[0]])


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda one: one.code)
@pytest.mark.parametrize("if_exists", list(IfExists))
async def test_an_id_never_stands_twice_because_its_old_home_cannot_be_asked(
    grown: GroupStore, members: dict[str, FaultyStore], moved: list[str], if_exists: IfExists, problem: DuetimeError
) -> None:
    members["a"].fail("get", error=problem)
    elsewhere = at("b")[0]
    refused, accepted = await push(grown, moved[0], elsewhere, if_exists=if_exists)
    assert type(refused) is type(problem)
    assert not refused.fields.get("unknown")
    assert isinstance(accepted, Pushed)
    assert await members["c"].inner.get(QUEUE, [moved[0]]) == [None]


async def test_an_id_that_its_home_knows_is_decided_there(
    grown: GroupStore, members: dict[str, FaultyStore], moved: list[str]
) -> None:
    await grown.cancel(QUEUE, [moved[0]])
    await push(grown, moved[0])
    members["a"].down()
    [kept] = await push(grown, moved[0])
    assert isinstance(kept, Pushed)
    assert kept.jobs[0].event is Event.KEPT
    [refused] = await push(grown, moved[0], if_exists=IfExists.ERROR)
    assert isinstance(refused, JobExists)


async def test_a_lease_that_nobody_holds_is_lost_and_an_ack_of_what_is_gone_is_no_error(group: GroupStore) -> None:
    await push(group, *IDS)
    leases = await lease_all(group)
    await group.ack(QUEUE, [leases[IDS[0]]])
    assert await group.ack(QUEUE, [leases[IDS[0]]]) == [None]
    with pytest.raises(LeaseLost):
        await group.release(leases[IDS[0]], 0)


async def test_what_a_failed_push_left_on_other_members_is_on_record(
    group: GroupStore, members: dict[str, FaultyStore], tmp_path: Path
) -> None:
    members["b"].fail("push", error=PROBLEMS[0])
    async with (
        Journal(JournalOptions(tmp_path)) as journal,
        Engine(group, recorders=await open_journal_recorder(group, journal, "wide")) as engine,
    ):
        with pytest.raises(type(PROBLEMS[0])) as caught:
            await engine.push(QUEUE, [NewJob(job_id, job_id.encode()) for job_id in IDS])
    assert caught.value.fields["unknown"]
    entries = [item for item in read_journal(tmp_path) if isinstance(item, Entry) and item.event is Event.ACCEPTED]
    assert {(entry.id, body_of(entry)) for entry in entries} == {
        (job_id, job_id.encode()) for job_id in set(IDS) - set(at("b"))
    }


async def test_jobs_of_a_failed_push_reach_consumers_that_wait(
    group: GroupStore, members: dict[str, FaultyStore]
) -> None:
    members["b"].fail("push", error=PROBLEMS[0])
    seen = list[str]()
    async with Engine(group) as engine:
        waiting = asyncio.create_task(engine.reserve([QUEUE], limit=len(IDS), wait_ms=60_000))
        await until(lambda: engine.parked)
        with pytest.raises(type(PROBLEMS[0])):
            await engine.push(QUEUE, [NewJob(job_id, b"x") for job_id in IDS])
        found = await waiting
        while found:
            seen += [delivery.lease.id for delivery in found]
            found = await engine.reserve([QUEUE], limit=len(IDS))
    assert set(seen) == set(IDS) - set(at("b"))
