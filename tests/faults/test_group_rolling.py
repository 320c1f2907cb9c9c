"""Two processes whose settings of a group differ, as during a rolling restart.

Members are SQLite files; each `group` is what a process of its own would open.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from duetime.model.errors import InvalidSettings, LeaseLost, StoreUnavailable
from duetime.model.job import Event, Lease, Moved, NewJob
from duetime.model.names import Queue
from duetime.model.settings import group_url
from duetime.stores.base import Ask, Push, Pushed, Store
from duetime.stores.group.layout import home
from duetime.stores.open import open_store
from duetime.stores.registry import set_drain
from tests.contract.vocabulary import give_back_one
from tests.plugins.until import until

pytestmark = pytest.mark.store_kind("group")

QUEUE = Queue("shop", "mail")
IDS = [f"job-{n}" for n in range(40)]
ON_C = [job_id for job_id in IDS if home(QUEUE, job_id, ("a", "b", "c")) == "c"]
ON_D = [job_id for job_id in IDS if home(QUEUE, job_id, ("a", "b", "c", "d")) == "d"]


class Files:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def url(self, name: str) -> str:
        return f"sqlite://{self._folder}/{name}.db?synchronous=off"

    @asynccontextmanager
    async def group(self, names: str, *drain: str) -> AsyncIterator[Store]:
        store = await open_store(group_url("wide", {name: self.url(name) for name in names}, drain))
        try:
            yield store
        finally:
            await store.close()

    async def total(self, name: str) -> int:
        own = await open_store(self.url(name))
        [counts] = await own.counts([QUEUE])
        await own.close()
        return counts.total


@pytest.fixture(autouse=True)
def sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duetime.stores.group.members.READ_AGAIN_S", 0.02)
    monkeypatch.setattr("duetime.stores.group.members.SPREAD_S", 1.0)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def push(store: Store, *ids: str) -> list[Event]:
    answers = await store.push(QUEUE, [Push([NewJob(job_id, b"x")]) for job_id in ids])
    return [answer.jobs[0].event for answer in answers if isinstance(answer, Pushed)]


async def lease_all(store: Store) -> dict[str, Lease]:
    reserved = await store.reserve(QUEUE, [Ask(500, 60_000)])
    return {delivery.lease.id: delivery.lease for delivery in reserved.deliveries[0]}


async def test_a_process_that_does_not_drain_yet_acks_what_one_that_does_has_pushed(files: Files) -> None:
    async with files.group("abc") as old, files.group("abc", "c") as new:
        await push(new, *IDS)
        leases = await lease_all(old)
        assert set(leases) == set(IDS)
        assert ids_acked(await old.ack(QUEUE, list(leases.values()))) == set(IDS)
        assert [await files.total(name) for name in "abc"] == [0, 0, 0]


async def test_a_process_that_drains_an_empty_member_acks_what_others_still_push_to_it(files: Files) -> None:
    async with files.group("abc", "c"):
        pass
    async with files.group("abc", "c") as new, files.group("abc") as old:
        await push(old, *IDS)
        leases = await lease_all(new)
        assert ids_acked(await new.ack(QUEUE, list(leases.values()))) == set(IDS)
        assert [await files.total(name) for name in "abc"] == [0, 0, 0]


def ids_acked(answers: object) -> set[str]:
    assert isinstance(answers, list | tuple)
    return {one.id for one in answers if isinstance(one, Moved)}


async def test_every_verb_on_a_lease_finds_it_wherever_it_is(files: Files) -> None:
    async with files.group("abc") as old, files.group("abc", "c") as new:
        await push(new, *ON_C)
        leases = await lease_all(old)
        one, two, three, four = (leases[job_id] for job_id in ON_C[:4])
        assert await old.extend(one, 60_000)
        assert (await old.release(one, 0)).event is Event.RELEASED
        assert (await give_back_one(old, two)).event is Event.GIVEN_BACK
        assert (await old.kill(three)).event is Event.DEAD
        assert [job and job.id for job in await old.get(QUEUE, ON_C[:4])] == ON_C[:4]
        [moved] = await old.reschedule(QUEUE, [ON_C[0]], delay_ms=1000)
        assert isinstance(moved, Moved)
        [cancelled] = await old.cancel(QUEUE, [four.id])
        assert isinstance(cancelled, Moved)


async def test_an_id_that_one_process_has_pushed_is_kept_by_the_other(files: Files) -> None:
    async with files.group("abc") as old:
        await push(old, "somewhere")
        async with files.group("abc", "c") as new:
            assert await push(new, *ON_C) == [Event.ACCEPTED] * len(ON_C)
            assert await push(old, *ON_C) == [Event.KEPT] * len(ON_C)
            assert await files.total("c") <= 1


async def test_a_member_is_not_forgotten_while_a_process_pushes_to_it(files: Files) -> None:
    async with files.group("abc") as old:
        async with files.group("abc", "c"):
            pass
        await push(old, *IDS)
    async with files.group("abc", "c"):
        pass
    with pytest.raises(InvalidSettings, match="member c may still have jobs"):
        async with files.group("ab"):
            pass


async def test_a_lease_on_a_member_that_this_process_does_not_name_is_not_called_gone(files: Files) -> None:
    async with files.group("abc") as old, files.group("abcd") as new:
        await push(new, *ON_D)
        leases = await lease_all(new)
        [answer] = await old.ack(QUEUE, [leases[ON_D[0]]])
        assert isinstance(answer, StoreUnavailable)
        assert "member d" in answer.message
        with pytest.raises(StoreUnavailable, match="member d"):
            await old.release(leases[ON_D[0]], 0)
        [refused] = await old.push(QUEUE, [Push([NewJob(ON_D[0], b"x")])])
        assert isinstance(refused, StoreUnavailable)
        [acked] = await new.ack(QUEUE, [leases[ON_D[0]]])
        assert isinstance(acked, Moved)


async def test_a_member_named_everywhere_before_it_takes_jobs_refuses_nothing(files: Files) -> None:
    async with files.group("abcd", "d") as old, files.group("abcd") as new:
        await push(new, *ON_D)
        assert await push(old, *IDS) == [Event.KEPT if job_id in ON_D else Event.ACCEPTED for job_id in IDS]
        leases = await lease_all(old)
        assert ids_acked(await old.ack(QUEUE, list(leases.values()))) == set(IDS)
        with pytest.raises(LeaseLost):
            await old.release(leases[IDS[0]], 0)


async def drain(stores: list[Store], member: str, *, drains: bool, until_it_is: str) -> None:
    """As an operator does in the console; returns when all processes follow."""
    await set_drain(stores[0].registry, "wide", member, drains=drains)
    for store in stores:

        async def follows(store: Store = store) -> bool:
            return (await store.ping()).members[member].drain == until_it_is

        await until(follows)


async def test_a_member_drains_while_the_servers_run_and_can_be_taken_out_when_it_is_empty(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime.stores.group.members.EMPTY_S", 0.05)
    async with files.group("abc") as one, files.group("abc") as other:
        await push(one, ON_C[0])
        await drain([one, other], "c", drains=True, until_it_is="draining")

        assert await push(other, *IDS) == [Event.KEPT if job_id == ON_C[0] else Event.ACCEPTED for job_id in IDS]
        assert await files.total("c") == 1
        leases = await lease_all(one)
        assert len(leases) == len(IDS)
        assert all(isinstance(one, Moved) for one in await other.ack(QUEUE, list(leases.values())))
        await drain([one, other], "c", drains=True, until_it_is="empty")
    async with files.group("ab") as smaller:
        assert await push(smaller, *ON_C) == [Event.ACCEPTED] * len(ON_C)


async def test_a_process_that_starts_later_drains_what_the_record_says_until_it_ends(files: Files) -> None:
    async with files.group("abc") as one:
        await drain([one], "c", drains=True, until_it_is="draining")
        async with files.group("abc") as later:
            assert (await later.ping()).members["c"].drain == "draining"
            await push(later, *ON_C)
            assert await files.total("c") == 0
            await drain([one, later], "c", drains=False, until_it_is="")
            assert await push(one, *IDS) == [Event.KEPT if job_id in ON_C else Event.ACCEPTED for job_id in IDS]
            await push(later, *[f"new-{job_id}" for job_id in IDS])
            assert await files.total("c") > 0


async def test_not_all_members_drain(files: Files) -> None:
    async with files.group("ab") as store:
        await set_drain(store.registry, "wide", "a", drains=True)
        await drain([store], "a", drains=True, until_it_is="draining")
        await set_drain(store.registry, "wide", "b", drains=True)
        assert await push(store, *IDS) == [Event.ACCEPTED] * len(IDS)
