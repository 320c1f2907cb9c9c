"""Recorders: what they record, what they may refuse, and what an answer waits for."""

import asyncio
from asyncio import Future
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from duetime.engine import Engine
from duetime.engine.recorder import Notified, Recorder, StoreCall
from duetime.model.errors import DuetimeError, JournalFull, StoreUnavailable
from duetime.model.job import Lease, Moved, State
from duetime.stores.base import Purged, Push, Pushed, Reaped, Reserved
from duetime.stores.forwarding import ForwardingStore
from duetime.stores.memory.store import MemoryStore
from tests.faults.store_faults import FaultyStore
from tests.plugins.until import until
from tests.simulation.engine_room import QUEUE, job, push


class Watcher(Recorder):
    """Writes down what it records. Refuses verbs, and never finishes a flush unless `pending` is resolved."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, object]] = []
        self.batches: list[tuple[str, int]] = []
        self.refused: dict[str, DuetimeError] = {}
        self.under_way: set[StoreCall] = set()
        self.pending: Future[None] | None = None

    def before(self, call: StoreCall) -> None:
        if error := self.refused.get(call.verb):
            raise error
        self.under_way.add(call)

    def after(self, call: StoreCall, outcome: Any) -> Any:
        if call.verb != "notify":
            self.under_way.remove(call)
        self.batches.append((call.verb, call.callers))
        self.heard.append((call.verb, self._told(call, outcome)))
        return outcome

    def _told(self, call: StoreCall, outcome: Any) -> object:
        match outcome:
            case Exception():
                return "failed"
            case Moved() | Purged() | Notified() | Reaped():
                told = {Moved: "id", Purged: "removed", Notified: "status", Reaped: "pushed"}
                return getattr(outcome, told[type(outcome)])
            case Reserved():
                return sum(map(len, outcome.deliveries))
            case _:
                return [one.event.value if isinstance(one, Moved) else type(one).__name__ for one in outcome]

    def flushed(self) -> Future[None] | None:
        return self.pending

    async def close(self) -> None:
        self.heard.append(("close", None))

    def told(self, *, without: Sequence[str] = ("reap",)) -> list[tuple[str, object]]:
        heard, self.heard = self.heard, []
        return [one for one in heard if one[0] not in without]


async def test_recorders_get_the_outcome_of_each_verb() -> None:
    watcher, second = Watcher(), Watcher()
    async with Engine(MemoryStore(), recorders=[watcher, second]) as engine:
        await push(engine, *"abcdefg")
        [a, b, c, d] = await engine.reserve([QUEUE], limit=4)
        await engine.ack([a.lease])
        await engine.recorders.notified(b.lease, status=200, ms=3)
        await engine.release(b.lease)
        await engine.give_back([c.lease])
        await engine.kill(d.lease)
        await engine.respawn(QUEUE)
        await engine.reschedule(QUEUE, ["e"], delay_ms=5000)
        await engine.cancel(QUEUE, ["f", "nobody"])
        await engine.ack_by_id(QUEUE, ["g", "nobody"])
        await engine.purge(QUEUE, list(State))
        await until(lambda: any(name == "reap" for name, _ in watcher.heard))
    told = watcher.told()
    assert told == [
        ("push", ["Pushed"]),
        ("reserve", 4),
        ("ack", ["acked"]),
        ("notify", 200),
        ("release", "b"),
        ("give_back", ["given_back"]),
        ("kill", "d"),
        ("respawn", ["respawned"]),
        ("reschedule", ["rescheduled"]),
        ("cancel", ["cancelled", "NoneType"]),
        ("ack_by_id", ["acked", "NoneType"]),
        ("purge", 4),
        ("close", None),
    ]
    assert second.told() == told
    assert not watcher.under_way


async def test_an_observer_may_refuse_a_verb_before_the_store_is_asked() -> None:
    store, watcher = FaultyStore(MemoryStore()), Watcher()
    watcher.refused = {"push": JournalFull("no room"), "kill": StoreUnavailable("not now")}
    async with Engine(store, recorders=[watcher]) as engine:
        with pytest.raises(JournalFull):
            await push(engine, "a")
        with pytest.raises(StoreUnavailable, match="not now"):
            await engine.kill(Lease(QUEUE, "a", 1, 1))
        assert store.count("push") == store.count("kill") == 0
        await engine.cancel(QUEUE, ["a"])
    assert not watcher.under_way


class BrokenWatcher(Watcher):
    """Has a bug in the method of this name, which breaks it once."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.broken: str | None = method

    def _run(self, method: str) -> None:
        if method == self.broken:
            self.broken = None
            raise ValueError("a bug")

    def before(self, call: StoreCall) -> None:
        self._run("before")
        super().before(call)

    def after(self, call: StoreCall, outcome: Any) -> Any:
        outcome = super().after(call, outcome)
        self._run("after")
        return outcome

    def flushed(self) -> Future[None] | None:
        self._run("flushed")
        return None


class OutboxStore(ForwardingStore):
    """Imports a job in each round of the reaper, as a store does for `push_in`."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.recorded: list[str] = []

    async def reap(self, limit: int = 500, *, recorded: Sequence[str] = ()) -> Reaped:
        self.recorded += recorded
        [pushed] = await self.inner.push(QUEUE, [request := Push([job("imported")])])
        assert isinstance(pushed, Pushed)
        reaped = await self.inner.reap(limit)
        return replace(reaped, pushed={QUEUE: [(request, pushed)]}, receipts=["receipt"])


@pytest.mark.parametrize("method", ["before", "after", "flushed"])
async def test_a_bug_of_a_recorder_does_not_end_the_reaper(method: str) -> None:
    store, broken, other = OutboxStore(), BrokenWatcher(method), Watcher()
    async with Engine(store, recorders=[broken, other]):
        await until(lambda: "receipt" in store.recorded)
        assert broken.broken is None
        for one in (broken, other):
            assert any(name == "reap" and told for name, told in one.heard)


async def test_an_answer_waits_for_the_promises_of_all_observers() -> None:
    watchers = [Watcher(), Watcher()]
    store = FaultyStore(MemoryStore())
    async with Engine(store, recorders=watchers) as engine:
        await push(engine, "a")
        [a] = await engine.reserve([QUEUE])
        for watcher in watchers:
            watcher.pending = asyncio.get_running_loop().create_future()
        await engine.release(a.lease)  # it may happen again, so nobody waits for its record
        waiting = [asyncio.create_task(push(engine, "b")), asyncio.create_task(engine.cancel(QUEUE, ["a"]))]
        await until(lambda: store.count("cancel") == 1 and all(len(watcher.heard) >= 6 for watcher in watchers))
        for watcher in watchers:
            assert not any(task.done() for task in waiting)
            assert watcher.pending
            watcher.pending.set_result(None)
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)


async def test_a_step_whose_caller_goes_is_recorded_all_the_same() -> None:
    store, watcher = FaultyStore(MemoryStore()), Watcher()
    gate = asyncio.Event()
    async with Engine(store, recorders=[watcher]) as engine:
        await push(engine, "a")
        [a] = await engine.reserve([QUEUE])
        store.slow("kill", answer=gate)
        killing = asyncio.create_task(engine.kill(a.lease))
        await until(lambda: store.count("kill") == 1)
        killing.cancel()
        await asyncio.wait([killing])
        gate.set()
    assert ("kill", "a") in watcher.told(), "the engine's end waits for it"
    assert not watcher.under_way


async def test_a_failed_step_ends_for_every_recorder_that_began_it() -> None:
    store, first, second = FaultyStore(MemoryStore()), Watcher(), Watcher()
    async with Engine(store, recorders=[first, second]) as engine:
        store.down("push")
        with pytest.raises(StoreUnavailable):
            await push(engine, "a")
        store.heal()
        second.refused = {"push": JournalFull("no room")}
        with pytest.raises(JournalFull):
            await push(engine, "b")
    assert [one for one in first.told() if one[0] == "push"] == [("push", "failed")] * 2
    assert [one for one in second.told() if one[0] == "push"] == [("push", "failed")]
    assert not first.under_way
    assert not second.under_way


async def test_a_forwarding_store_passes_verbs_through_its_hook_and_the_rest_around_it() -> None:
    verbs: list[str] = []

    class Noting(ForwardingStore):
        async def _call(self, verb, call, *args, **options):  # type: ignore[no-untyped-def]
            verbs.append(verb)
            return await call(*args, **options)

    inner = MemoryStore()
    store = Noting(inner)
    await store.push(QUEUE, [Push([job("a")])])
    assert [one.id for one in await store.get(QUEUE, ["a"]) if one] == ["a"]
    assert store.registry is inner.registry
    assert verbs == ["push", "get"]
    await store.close()
