"""The seam for observers: what they are told, what they may prevent, and what an answer waits for."""

import asyncio
from asyncio import Future
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from duetime.engine import Engine
from duetime.engine.observers import Observer
from duetime.model.errors import DuetimeError, JournalFull, StoreUnavailable
from duetime.model.job import Lease, Moved, State
from duetime.model.names import Queue
from duetime.stores.base import Purged, Push, Pushed, Reaped, Reserved
from duetime.stores.forwarding import ForwardingStore
from duetime.stores.memory.store import MemoryStore
from tests.faults.store_faults import FaultyStore
from tests.plugins.until import until
from tests.simulation.engine_room import QUEUE, job, push


class Watcher(Observer):
    """Writes down what it is told. Refuses verbs, and promises what is never kept unless `kept` is set."""

    def __init__(self, *, must_hear_all: bool = False) -> None:
        self.must_hear_all = must_hear_all
        self.heard: list[tuple[str, object]] = []
        self.refused: dict[str, DuetimeError] = {}
        self.under_way: set[int] = set()
        self.promised: Future[None] | None = None

    def admit(self, verb: str) -> None:
        if error := self.refused.get(verb):
            raise error

    def began(self, call: int) -> None:
        self.under_way.add(call)

    def ended(self, call: int) -> None:
        self.under_way.remove(call)

    async def pushed(
        self, queue: Queue, requests: Sequence[Push], answers: Sequence[Pushed | DuetimeError]
    ) -> Sequence[Pushed | DuetimeError]:
        self.heard.append(("pushed", len(requests)))
        return answers

    def reserved(self, queue: Queue, reserved: Reserved) -> None:
        self.heard.append(("reserved", sum(map(len, reserved.deliveries))))

    def acked(self, queue: Queue, leases: Sequence[Lease], answers: Sequence[object], joins: object = ()) -> None:
        self.heard.append(("acked", len(answers)))

    async def acked_by_id(self, queue: Queue, ids: Sequence[str], answers: Sequence[object]) -> None:
        self.heard.append(("acked_by_id", [answer is not None for answer in answers]))

    def settled(self, verb: str, lease: Lease, moved: Moved) -> None:
        self.heard.append((verb, moved.id))

    def moved(self, queue: Queue, answers: Sequence[object]) -> None:
        self.heard.append(("moved", [one.event.value for one in answers if isinstance(one, Moved)]))

    def reaped(self, reaped: Reaped) -> None:
        self.heard.append(("reaped", len(reaped.moved)))

    def purged(self, queue: Queue, states: Sequence[State], purged: Purged) -> None:
        self.heard.append(("purged", purged.removed))

    def notified(self, lease: Lease, *, status: int, ms: int) -> None:
        self.heard.append(("notified", status))

    def grouped(self, verb: str, requests: int) -> None:
        self.heard.append(("grouped", verb))

    def promise(self) -> Future[None] | None:
        return self.promised

    async def close(self) -> None:
        self.heard.append(("close", None))

    def told(self, *, without: Sequence[str] = ("grouped", "reaped")) -> list[tuple[str, object]]:
        heard, self.heard = self.heard, []
        return [one for one in heard if one[0] not in without]


async def test_observers_are_told_what_each_verb_did() -> None:
    watcher, second = Watcher(), Watcher()
    async with Engine(MemoryStore(), observers=[watcher, second]) as engine:
        await push(engine, *"abcdefg")
        [a, b, c, d] = await engine.reserve([QUEUE], limit=4)
        await engine.ack([a.lease])
        engine.observers.notified(b.lease, status=200, ms=3)
        await engine.release(b.lease)
        await engine.give_back(c.lease)
        await engine.kill(d.lease)
        await engine.respawn(QUEUE)
        await engine.reschedule(QUEUE, ["e"], delay_ms=5000)
        await engine.cancel(QUEUE, ["f", "nobody"])
        await engine.ack_by_id(QUEUE, ["g", "nobody"])
        await engine.purge(QUEUE, list(State))
        await until(lambda: any(name == "reaped" for name, _ in watcher.heard))
    told = watcher.told()
    assert told == [
        ("pushed", 1),
        ("reserved", 4),
        ("acked", 1),
        ("notified", 200),
        ("release", "b"),
        ("give_back", "c"),
        ("kill", "d"),
        ("moved", ["respawned"]),
        ("moved", ["rescheduled"]),
        ("moved", ["cancelled"]),
        ("acked_by_id", [True, False]),
        ("purged", 4),
        ("close", None),
    ]
    assert second.told() == told
    assert not watcher.under_way


async def test_an_observer_may_refuse_a_verb_before_the_store_is_asked() -> None:
    store, watcher = FaultyStore(MemoryStore()), Watcher()
    watcher.refused = {"push": JournalFull("no room"), "kill": StoreUnavailable("not now")}
    async with Engine(store, observers=[watcher]) as engine:
        with pytest.raises(JournalFull):
            await push(engine, "a")
        with pytest.raises(StoreUnavailable, match="not now"):
            await engine.kill(Lease(QUEUE, "a", 1, 1))
        assert store.count("push") == store.count("kill") == 0
        await engine.cancel(QUEUE, ["a"])
    assert not watcher.under_way


class BrokenWatcher(Watcher):
    """Has a bug in the hook of this name, which breaks it once."""

    def __init__(self, hook: str) -> None:
        super().__init__()
        self.broken_hook: str | None = hook

    def _run(self, hook: str) -> None:
        if hook == self.broken_hook:
            self.broken_hook = None
            raise ValueError("a bug")

    @property
    def must_prepare(self) -> bool:
        return self.broken_hook == "prepare"

    async def prepare(self, verb: str) -> None:
        self._run("prepare")

    def admit(self, verb: str) -> None:
        self._run("admit")

    def reaped(self, reaped: Reaped) -> None:
        self._run("reaped")
        super().reaped(reaped)

    async def pushed(
        self, queue: Queue, requests: Sequence[Push], answers: Sequence[Pushed | DuetimeError]
    ) -> Sequence[Pushed | DuetimeError]:
        self._run("pushed")
        return await super().pushed(queue, requests, answers)


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


@pytest.mark.parametrize("hook", ["prepare", "admit", "reaped", "pushed"])
async def test_a_bug_of_an_observer_does_not_end_the_reaper(hook: str) -> None:
    store, broken, other = OutboxStore(), BrokenWatcher(hook), Watcher()
    async with Engine(store, observers=[broken, other]):
        await until(lambda: "receipt" in store.recorded)
        assert broken.broken_hook is None
        assert {"reaped", "pushed"} <= {name for name, _ in broken.heard}
        assert {"reaped", "pushed"} <= {name for name, _ in other.heard}


async def test_an_answer_waits_for_the_promises_of_all_observers() -> None:
    watchers = [Watcher(), Watcher()]
    store = FaultyStore(MemoryStore())
    async with Engine(store, observers=watchers) as engine:
        await push(engine, "a")
        [a] = await engine.reserve([QUEUE])
        for watcher in watchers:
            watcher.promised = asyncio.get_running_loop().create_future()
        await engine.release(a.lease)  # it may happen again, so nobody waits for its record
        waiting = [asyncio.create_task(push(engine, "b")), asyncio.create_task(engine.cancel(QUEUE, ["a"]))]
        await until(lambda: store.count("cancel") == 1 and all(len(watcher.heard) >= 6 for watcher in watchers))
        for watcher in watchers:
            assert not any(task.done() for task in waiting)
            assert watcher.promised
            watcher.promised.set_result(None)
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)


@pytest.mark.parametrize("must_hear_all", [False, True])
async def test_a_step_whose_caller_goes_is_told_to_those_who_must_hear_all(must_hear_all: bool) -> None:
    store, watcher = FaultyStore(MemoryStore()), Watcher(must_hear_all=must_hear_all)
    gate = asyncio.Event()
    async with Engine(store, observers=[watcher]) as engine:
        await push(engine, "a")
        [a] = await engine.reserve([QUEUE])
        store.slow("kill", answer=gate)
        killing = asyncio.create_task(engine.kill(a.lease))
        await until(lambda: store.count("kill") == 1)
        killing.cancel()
        await asyncio.wait([killing])
        gate.set()
    assert (("kill", "a") in watcher.told()) == must_hear_all, "the engine's end waits for it"
    assert not watcher.under_way


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
