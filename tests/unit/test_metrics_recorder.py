"""What a watched store counts: every event, every time, and nothing twice."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from duetime.engine import Engine
from duetime.engine.pools import Pools
from duetime.engine.recorder import ALL_QUEUES, Recorders, StoreCall
from duetime.metrics.meters import OTHER, Meters, Snapshot
from duetime.metrics.recorder import COUNTERS, MAX_RUNNING, MAX_TASKS, VERBS, MetricsRecorder, PoolMeters, TimedStore
from duetime.metrics.scraper import Scraper
from duetime.model.errors import LeaseLost, StoreUnavailable
from duetime.model.job import Delivery, Event, IfExists, Lease, NewJob, Priority, State
from duetime.model.names import Queue
from duetime.server.process import PoolRecorders
from duetime.server.supervision.siblings import Alone
from duetime.stores.base import Ask, GiveBack, Mark, Push, Store
from duetime.stores.forwarding import ForwardingStore
from duetime.stores.memory.store import MemoryStore
from tests.faults.store_faults import FaultyStore
from tests.plugins.serving import read_samples
from tests.plugins.until import until

QUEUE = Queue("ns", "q")


class Hands:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms


class RecordingStore(ForwardingStore):
    """Records every call, as an engine does."""

    def __init__(self, inner: Store, recorders: Recorders) -> None:
        super().__init__(inner)
        self._recorders = recorders

    async def _call(self, verb: str, call: Any, *args: Any, **options: Any) -> Any:
        about = args[0]
        queue = about.queue if isinstance(about, Lease) else about if isinstance(about, Queue) else ALL_QUEUES
        asked = [about] if isinstance(about, Lease) else args[1] if len(args) > 1 else ()
        return await self._recorders.run(StoreCall(verb, queue, asked), lambda: call(*args, **options))


class Bench:
    """`store` and its recorder, without an engine's duties beside."""

    def __init__(self, max_queues: int = 1000) -> None:
        self.clock = Hands()
        self.meters = Meters(max_queues)
        self.pool = PoolMeters(self.meters, "default")
        self.faulty = FaultyStore(MemoryStore(self.clock))
        self.timed = TimedStore(self.faulty, self.pool)
        self.recorder = MetricsRecorder(self.pool)
        self.store = RecordingStore(self.timed, Recorders([self.recorder]))

    async def push(self, *ids: str, queue: Queue = QUEUE, **options: object) -> None:
        jobs = [NewJob(job_id, b"x", **options) for job_id in ids]  # type: ignore[arg-type]
        await self.store.push(queue, [Push(jobs)])

    async def reserve(self, limit: int = 1, ttr_ms: int = 60_000) -> list[Lease]:
        reserved = await self.store.reserve(QUEUE, [Ask(limit, ttr_ms)])
        return [delivery.lease for deliveries in reserved.deliveries for delivery in deliveries]

    def counted(self, queue: Queue = QUEUE) -> dict[str, float]:
        """The counters of a queue that are not zero."""
        found = {
            name: value(self.meters.snapshot(), f"duetime_jobs_{name}_total", "default", *queue) for name in COUNTERS
        }
        return {name: number for name, number in found.items() if number}


def value(snapshot: Snapshot, name: str, *labels: str) -> float:
    return series(snapshot, name).get(labels, [0])[0]


def series(snapshot: Snapshot, name: str) -> dict[tuple[str, ...], list[float]]:
    [reading] = [reading for reading in snapshot.readings if reading.description.name == name]
    return reading.series


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_it_has_every_verb_of_the_contract(bench: Bench) -> None:
    for name in vars(Store):
        if not name.startswith("_"):
            assert name in vars(ForwardingStore), name


async def test_the_life_of_jobs(bench: Bench) -> None:
    await bench.push("a", "b", "c", "d", "e", "f")
    await bench.push("a")
    await bench.store.push(
        QUEUE, [Push([NewJob("b", b"y")], IfExists.REPLACE), Push([NewJob("b", b"y")], IfExists.ERROR)]
    )
    leases = {lease.id: lease for lease in await bench.reserve(5)}
    assert len(leases) == 5
    names = sorted(leases)
    await bench.store.ack(QUEUE, [leases[names[0]]])
    await bench.store.release(leases[names[1]], 60_000, "")
    await bench.store.kill(leases[names[2]], "")
    await bench.store.give_back(QUEUE, [GiveBack(leases[names[3]])])
    await bench.store.cancel(QUEUE, [names[4], "nobody"])
    with pytest.raises(LeaseLost):
        await bench.store.release(leases[names[0]], 0, "")
    await bench.store.respawn(QUEUE, ids=None, limit=1, ttl_ms=0, tries=None)
    await bench.store.reschedule(QUEUE, [names[1], "nobody"], delay_ms=5, due_at=None)
    await bench.store.purge(QUEUE, list(State), limit=None)
    assert bench.counted() == {
        "pushed": 7,
        "kept": 1,
        "delivered": 5,
        "acked": 1,
        "released": 1,
        "dead": 1,
        "given_back": 1,
        "cancelled": 1,
        "respawned": 1,
        "rescheduled": 1,
        "purged": 4,
    }


async def test_an_ack_by_id_alone_is_an_ack(bench: Bench) -> None:
    async with Engine(bench.timed, recorders=[bench.recorder]) as engine:
        await engine.push(QUEUE, [NewJob("a", b""), NewJob("b", b"")])
        await engine.reserve([QUEUE])
        await engine.ack_by_id(QUEUE, ["a", "nobody"])
        await engine.cancel(QUEUE, ["b"])
    assert bench.counted() == {"pushed": 2, "delivered": 1, "acked": 1, "cancelled": 1}
    run = series(bench.meters.snapshot(), "duetime_job_run_seconds")["default", *QUEUE]
    assert sum(run[:-1]) == 1


async def test_a_repeated_push_is_not_counted_again(bench: Bench) -> None:
    for _ in range(3):
        await bench.store.push(QUEUE, [Push([NewJob("a", b"x")], mark=Mark("m", b"d", 60_000))])
    assert bench.counted() == {"pushed": 1}


async def test_what_the_reaper_moves(bench: Bench) -> None:
    await bench.push("lapses", "dies", tries=2)
    await bench.push("expires", delay_ms=100, ttl_ms=200)
    await bench.reserve(2, ttr_ms=50)
    bench.clock.ms += 60
    await bench.store.reap(500)
    await bench.reserve(1, ttr_ms=50)
    bench.clock.ms += 500
    await bench.store.reap(500)
    counted = bench.counted()
    assert (counted["lapsed"], counted["dead"], counted["expired"]) == (2, 1, 1)
    snapshot = bench.meters.snapshot()
    assert value(snapshot, "duetime_reaper_passes_total", "default") == 2
    assert value(snapshot, "duetime_reaper_last_pass_timestamp_seconds", "default") == bench.clock.ms / 1000


async def test_an_expired_job_is_counted_wherever_it_is_met(bench: Bench) -> None:
    await bench.push("met by reserve", "met by push", ttl_ms=10)
    bench.clock.ms += 20
    await bench.push("met by push")
    await bench.reserve(2)
    assert bench.counted() == {"pushed": 3, "expired": 2, "delivered": 1}


async def test_lateness_wait_and_run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [0.0]
    monkeypatch.setattr("duetime.metrics.recorder.now_s", lambda: seconds[0])
    await bench.push("a", delay_ms=30_000)
    bench.clock.ms += 30_007
    [lease] = await bench.reserve()
    seconds[0] = 7.0
    await bench.store.release(lease, 0, "")
    [lease] = await bench.reserve()
    seconds[0] = 7.5
    await bench.store.ack(QUEUE, [lease])
    snapshot, labels = bench.meters.snapshot(), ("default", *QUEUE)
    late = series(snapshot, "duetime_job_lateness_seconds")[labels]
    wait = series(snapshot, "duetime_job_wait_seconds")[labels]
    run = series(snapshot, "duetime_job_run_seconds")[labels]
    assert (sum(late[:-1]), late[-1], late[3]) == (2, pytest.approx(0.007), 1), "7 ms fall between 5 and 10"
    assert (sum(wait[:-1]), wait[-1]) == (1, pytest.approx(30.007)), "only the first delivery"
    assert (sum(run[:-1]), run[-1]) == (2, pytest.approx(7.5))


async def test_runs_are_counted_per_task(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [0.0]
    monkeypatch.setattr("duetime.metrics.recorder.now_s", lambda: seconds[0])
    bodies = (
        b'{"displayName":"Send \\"it\\"","job":"shop.send","data":{}}',
        b'{"job": "shop.send"}',
        b'{"data":{"job":"no"}}',
        b'{"job":"a\x00b"}',  # no JSON, so no name
    )
    await bench.store.push(QUEUE, [Push([NewJob(str(at), body) for at, body in enumerate(bodies)])])
    leases = {lease.id: lease for lease in await bench.reserve(4)}
    seconds[0] = 3.0
    await bench.store.ack(QUEUE, [leases["0"], leases["2"], leases["3"]])
    await bench.store.kill(leases["1"], "")
    snapshot = bench.meters.snapshot()
    assert series(snapshot, "duetime_task_runs_total") == {
        ("default", "ns", "shop.send", "done"): [1],
        ("default", "ns", "shop.send", "failed"): [1],
    }
    [(labels, run)] = series(snapshot, "duetime_task_run_seconds").items()
    assert (labels, sum(run[:-1]), run[-1]) == (("default", "ns", "shop.send"), 2, 6.0)


async def test_only_so_many_tasks_are_shown_by_name(bench: Bench) -> None:
    for number in range(MAX_TASKS + 5):
        delivery = _delivery(str(number), b'{"job":"t%d"}' % number)
        bench.pool.started([delivery], 0.0)
        bench.pool.ended(delivery.lease, Event.ACKED, 1.0)
    runs = series(bench.meters.snapshot(), "duetime_task_runs_total")
    assert runs["default", OTHER, OTHER, "done"] == [5]
    assert len(runs) == 2 * (MAX_TASKS + 1)


async def test_times_of_runs_are_kept_for_a_bounded_number_of_jobs(bench: Bench) -> None:
    for number in range(MAX_RUNNING + 5):
        bench.pool.started([_delivery(str(number))], 0.0)
    assert len(bench.pool._started) == MAX_RUNNING
    bench.pool.ended(_delivery("0").lease, Event.ACKED, 1.0)
    bench.pool.ended(_delivery(str(MAX_RUNNING)).lease, Event.ACKED, 1.0)
    run = series(bench.meters.snapshot(), "duetime_job_run_seconds")["default", *QUEUE]
    assert sum(run[:-1]) == 1


def _delivery(job_id: str, body: bytes = b"") -> Delivery:
    return Delivery(Lease(QUEUE, job_id, 1, 1), body, 0, 0, Priority.NORMAL, 1, 1)


async def test_calls_are_timed_and_failures_counted(bench: Bench) -> None:
    bench.faulty.down("push")
    with pytest.raises(StoreUnavailable):
        await bench.push("a")
    await bench.reserve()
    snapshot = bench.meters.snapshot()
    calls = series(snapshot, "duetime_store_call_seconds")
    assert set(calls) == {("default", verb) for verb in VERBS}
    assert {verb: sum(counts[:-1]) for (_, verb), counts in calls.items() if sum(counts[:-1])} == {
        "push": 1,
        "reserve": 1,
    }
    assert series(snapshot, "duetime_store_call_errors_total") == {("default", "push", StoreUnavailable.code): [1]}


async def test_queues_beyond_the_limit_are_counted_together() -> None:
    bench = Bench(max_queues=2)
    for name in ("a", "b", "c", "d", "a"):
        await bench.push("x" + name, queue=Queue("ns", name))
    assert bench.counted(Queue("ns", "a")) == {"pushed": 1, "kept": 1}
    assert bench.counted(Queue("other", "other")) == {"pushed": 2}
    assert bench.counted(Queue("ns", "c")) == {}
    assert len(bench.pool.queues) == 2


async def test_requests_that_share_a_call_are_counted() -> None:
    meters = Meters()
    pool = PoolMeters(meters, "default")
    store = FaultyStore(MemoryStore())
    async with Engine(TimedStore(store, pool), recorders=[MetricsRecorder(pool)]) as engine:
        gate = asyncio.Event()
        store.slow("push", request=gate)
        pushes = [asyncio.create_task(engine.push(QUEUE, [NewJob("0", b"")]))]
        await until(lambda: any(call.verb == "push" for call in store.calls))
        pushes += [asyncio.create_task(engine.push(QUEUE, [NewJob(str(number), b"")])) for number in range(1, 6)]
        for _ in range(3):
            await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*pushes)
    sizes = series(meters.snapshot(), "duetime_batch_requests")["default", "push"]
    assert (sizes[0], sizes[3], sizes[-1]) == (1, 1, 6), "one alone, then five together"


# --- counters of jobs on the page of metrics: for queues with a name of their own they are the totals of the store


A, B, C = (Queue("shop", name) for name in "abc")


class Process:
    """A server process on a store that outlives it."""

    def __init__(self, store: Store, max_queues: int = 1000) -> None:
        self.meters = Meters(max_queues)

        async def open_store(_: str) -> Store:
            return store

        self.pools = Pools({"default": "x:"}, open_store=open_store, watch=PoolRecorders(self.meters).watch)
        self.scraper = Scraper(self.pools, Alone(), self.meters)

    async def push(self, queue: Queue, *ids: str) -> None:
        await self.pools.engine("default").push(queue, [NewJob(job_id, b"x") for job_id in ids])

    async def counted(self, name: str) -> dict[str, float]:
        """A counter's values by queue."""
        samples = read_samples((await self.scraper.text()).decode())
        return {
            dict(labels)["queue"]: value
            for (metric, labels), value in samples.items()
            if metric == f"duetime_jobs_{name}_total"
        }


@pytest.fixture
async def store() -> AsyncIterator[FaultyStore]:
    faulty = FaultyStore(MemoryStore())
    yield faulty
    assert await faulty.check() == []


async def test_counters_go_on_where_an_earlier_process_ended(store: FaultyStore) -> None:
    async with (first := Process(store)).pools:
        await first.push(A, "1", "2")
    async with (second := Process(store)).pools:
        assert await second.counted("pushed") == {"a": 2}
        await second.push(A, "3")
        await second.push(B, "1")
        assert await second.counted("pushed") == {"a": 3, "b": 1}
        assert await second.counted("delivered") == {"a": 0, "b": 0}


async def test_counters_are_of_all_servers_of_a_store(store: FaultyStore) -> None:
    one, other = Process(store), Process(store)
    async with one.pools, other.pools:
        await one.push(A, "1")
        await other.push(A, "2")
        assert await one.counted("pushed") == await other.counted("pushed") == {"a": 2}


async def test_queues_without_a_name_of_their_own_are_counted_by_the_process(store: FaultyStore) -> None:
    async with (process := Process(store, max_queues=1)).pools:
        for queue in (A, B, C):
            await process.push(queue, "1", "2")
        assert await process.counted("pushed") == {"a": 2, "other": 4}
        await process.pools.engine("default").purge(B, list(State))
        assert await process.counted("pushed") == {"a": 2, "other": 4}


async def test_a_pool_that_does_not_answer_shows_no_counters(store: FaultyStore) -> None:
    async with (process := Process(store)).pools:
        await process.push(A, "1")
        store.down("totals")
        assert await process.counted("pushed") == {}
        assert await process.counted("kept") == {"a": 0}
        store.heal()
        assert await process.counted("pushed") == {"a": 1}
