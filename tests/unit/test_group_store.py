"""What a group makes of its members' lists and registries."""

import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from duetime.model.clock import ManualClock
from duetime.model.job import Event, NewJob, State
from duetime.model.names import Queue
from duetime.stores.base import Ask, Cursor, Push, Store
from duetime.stores.finishes import Finish, Finished, Join
from duetime.stores.forwarding import ForwardingStore, Later
from duetime.stores.group.layout import Layouts, home, merge, read, without, write
from duetime.stores.group.registry import STATE, CopyState
from duetime.stores.group.store import GroupStore
from duetime.stores.memory.store import MemoryStore
from duetime.stores.registry import GROUP_COPY

QUEUE = Queue("shop", "mail")
CLOCK = ManualClock()


async def _open_member() -> MemoryStore:
    return MemoryStore(CLOCK)


async def test_a_list_goes_on_after_any_job_of_any_member() -> None:
    """The console goes on after the last job that it shows, wherever that job lives."""
    group = await GroupStore.open("g", dict.fromkeys("abc", _open_member))
    names = [f"{n:02}" for n in range(30)]
    await group.push(QUEUE, [Push([NewJob(name, b"", delay_ms=1000 + n) for n, name in enumerate(names)])])

    everything = (await group.list_jobs(QUEUE, State.DELAYED)).jobs
    assert [job.id for job in everything] == names
    for place, job in enumerate(everything):
        page = await group.list_jobs(QUEUE, State.DELAYED, cursor=str(Cursor.of(job)))
        assert [other.id for other in page.jobs] == names[place + 1 :]
    await group.close()


async def test_copies_of_the_registry_go_on_after_a_clock_that_was_ahead() -> None:
    """A process whose clock was an hour ahead died while it wrote a copy."""
    members = {name: MemoryStore() for name in "ab"}

    async def open_member(name: str) -> MemoryStore:
        return members[name]

    group = await GroupStore.open("g", {name: partial(open_member, name) for name in members})
    record = await members["b"].registry.get(GROUP_COPY, STATE)
    assert record is not None
    ahead = msgspec.structs.replace(msgspec.json.decode(record.value, type=CopyState), busy_until=time.time() + 3600)
    await members["b"].registry.put(GROUP_COPY, STATE, msgspec.json.encode(ahead))

    await group.registry.put("topic", "t", b"new")

    assert [one.key for one in await members["b"].registry.list_records(f"{GROUP_COPY}:topic")] == ["t"]
    await group.close()


async def test_an_id_that_a_join_would_push_is_kept_wherever_it_is() -> None:
    """Clients of /v1 choose the ids of jobs that follow, so they may live on another member than the jobs that join."""
    group = await GroupStore.open("g", dict.fromkeys("abc", _open_member))
    for n in range(8):
        taken = f"taken-{n}"
        await group.push(QUEUE, [Push([NewJob(f"first-{n}", b""), NewJob(taken, b"there before", delay_ms=60_000)])])
        [[delivery]] = (await group.reserve(QUEUE, [Ask(1, 60_000)])).deliveries
        join = Join(f"j{n}", 1, [NewJob(taken, b"again"), NewJob(f"first-{n}~>new", b"")], 60_000)

        [finished] = await group.finish(QUEUE, [Finish(delivery.lease, join=join)])

        assert isinstance(finished, Finished)
        assert [(one.id, one.event) for one in finished.then] == [
            (taken, Event.KEPT),
            (f"first-{n}~>new", Event.ACCEPTED),
        ]
        [[new]] = (await group.reserve(QUEUE, [Ask(1, 60_000)])).deliveries
        await group.ack(QUEUE, [new.lease])
    [counts] = await group.counts([QUEUE])
    assert counts.total == 8
    await group.close()


class _SeenHeads(ForwardingStore):
    """Remembers whether a caller said that consumers wait."""

    waiting = False

    def heads(self, queues: Sequence[Queue], *, waiting: bool = False) -> Later[Sequence[int | None]]:
        self.waiting = self.waiting or waiting
        return super().heads(queues, waiting=waiting)


async def test_a_reserve_that_finds_no_job_makes_every_member_poll_for_wakes() -> None:
    """Only one is asked for jobs. A job that another process pushes to another one must not be found a second late."""
    members = {name: _SeenHeads(MemoryStore(CLOCK)) for name in "abc"}

    async def open_member(name: str) -> Store:
        return members[name]

    group = await GroupStore.open("g", {name: partial(open_member, name) for name in members})
    await group.reserve(QUEUE, [Ask(1, 60_000)])

    assert {name: member.waiting for name, member in members.items()} == dict.fromkeys("abc", True)
    await group.close()


# --- where the jobs of a group live


IDS = [f"job-{n}" for n in range(3000)]


def test_homes_never_change() -> None:
    found = [home(QUEUE, job_id, ("a", "b", "c")) for job_id in IDS[:12]]
    assert "".join(found) == "aabacaacbaab"


def test_shares_are_even() -> None:
    shares = Counter(home(QUEUE, job_id, ("a", "b", "c")) for job_id in IDS)
    assert all(900 < share < 1100 for share in shares.values())


@given(st.sets(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=6), st.text(min_size=1, max_size=20))
def test_a_new_member_moves_only_its_own_share(names: set[str], job_id: str) -> None:
    before = home(QUEUE, job_id, tuple(sorted(names)))
    after = home(QUEUE, job_id, tuple(sorted(names | {"new"})))
    assert after in {before, "new"}


def test_a_job_is_searched_at_its_home_and_then_at_earlier_homes() -> None:
    layouts = merge(("a", "b", "c"), [("a", "b"), ("a", "b", "c"), ("a",)])
    assert layouts.earlier == (("a",), ("a", "b"))
    for job_id in IDS[:100]:
        homes = layouts.homes(QUEUE, job_id)
        assert homes[0] == home(QUEUE, job_id, ("a", "b", "c"))
        assert set(homes) == {home(QUEUE, job_id, one) for one in (("a", "b", "c"), ("a", "b"), ("a",))}
        assert len(homes) == len(set(homes))


def test_a_member_that_is_empty_is_forgotten() -> None:
    layouts = merge(("a", "b"), [("a", "b", "c"), ("c",)])
    assert without(layouts, ["c"]) == Layouts(("a", "b"))


def test_layouts_are_read_as_they_were_written() -> None:
    layouts = merge(("a", "b"), [("a",)])
    assert list(read(write(layouts))) == [("a", "b"), ("a",)]
