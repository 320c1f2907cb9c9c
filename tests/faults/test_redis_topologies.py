"""The Redis store on a real Cluster and behind real Sentinels, and what it does while nodes move and fall."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

import pytest
from redis.crc import key_slot

from duetime.model.errors import StoreUnavailable
from duetime.model.job import Event, NewJob, State
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, RulesChange, Wake
from duetime.stores.finishes import Finish, Join
from duetime.stores.redis import keys
from duetime.stores.redis.store import RedisStore
from tests.contract.vocabulary import give_back_one
from tests.plugins.redis_server import RedisServer
from tests.plugins.redis_topologies import SERVICE, SLOTS, RedisCluster, SentinelSet, ask

pytestmark = pytest.mark.store_kind("redis")

DEADLINE_S = 90
T = TypeVar("T")


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[RedisStore]:
    store = await RedisStore.open(url)
    try:
        yield store
    finally:
        await store.close()


async def eventually(call: Callable[[], Awaitable[T]]) -> T:
    """The answer, once the store can be reached again."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await call()
            except StoreUnavailable:
                await asyncio.sleep(0.02)


def slot_of(queue: Queue) -> int:
    return key_slot(keys.prefix(queue).encode())


def queues_on_every_node() -> list[Queue]:
    """Two queues per third of the slots."""
    found: dict[int, list[Queue]] = {0: [], 1: [], 2: []}
    number = 0
    while any(len(some) < 2 for some in found.values()):
        queue = Queue("shop", f"queue-{number}")
        number += 1
        some = found[slot_of(queue) * 3 // SLOTS]
        if len(some) < 2:
            some.append(queue)
    return [queue for some in found.values() for queue in some]


async def push(store: RedisStore, queue: Queue, *ids: str, delay_ms: int = 0, ttl_ms: int = 0) -> None:
    jobs = [NewJob(job_id, b"body", delay_ms=delay_ms, ttl_ms=ttl_ms) for job_id in ids]
    [pushed] = await store.push(queue, [Push(jobs)])
    assert [moved.event for moved in pushed.jobs] == [Event.ACCEPTED] * len(ids)  # type: ignore[union-attr]


async def drain(store: RedisStore, queue: Queue) -> list[str]:
    reserved = await eventually(lambda: store.reserve(queue, [Ask(100, 60_000)]))
    leases = [delivery.lease for delivery in reserved.deliveries[0]]
    acked = await eventually(lambda: store.ack(queue, leases))
    assert all(moved is not None for moved in acked)
    return sorted(lease.id for lease in leases)


async def next_wake(wakes: AsyncIterator[Wake], queue: Queue) -> Wake:
    async with asyncio.timeout(DEADLINE_S):
        while (wake := await anext(wakes)).queue != queue:
            pass
    return wake


async def every_verb(store: RedisStore, queue: Queue) -> None:
    await push(store, queue, "acked", "released", "given back", "killed", "kept leased", "finished")
    await push(store, queue, "cancelled", "rescheduled", delay_ms=60_000)
    await push(store, queue, "purged", delay_ms=120_000)
    reserved = await store.reserve(queue, [Ask(10, 60_000)])
    leases = {delivery.lease.id: delivery.lease for delivery in reserved.deliveries[0]}

    assert await store.extend(leases["kept leased"], 90_000) > reserved.now
    [acked] = await store.ack(queue, [leases["acked"]])
    assert acked.event is Event.ACKED  # type: ignore[union-attr]
    join = Join("all", 1, [NewJob("joined", b"")], 60_000)
    [finished] = await store.finish(queue, [Finish(leases["finished"], [NewJob("next", b"")], b"r", 60_000, join)])
    assert [moved.id for moved in finished.then] == ["next", "joined"]  # type: ignore[union-attr]
    assert [kept.result for kept in await store.results(queue, ["finished"]) if kept] == [b"r"]
    assert len(await store.cancel(queue, ["next", "joined"])) == 2
    assert (await store.release(leases["released"], 0, "failed")).event is Event.RELEASED
    assert (await give_back_one(store, leases["given back"])).event is Event.GIVEN_BACK
    assert (await store.kill(leases["killed"], "hopeless")).event is Event.DEAD
    [cancelled] = await store.cancel(queue, ["cancelled"])
    assert cancelled.event is Event.CANCELLED  # type: ignore[union-attr]
    [rescheduled] = await store.reschedule(queue, ["rescheduled"], delay_ms=0)
    assert rescheduled.event is Event.RESCHEDULED  # type: ignore[union-attr]
    assert [moved.id for moved in await store.respawn(queue)] == ["killed"]
    assert (await store.purge(queue, [State.DELAYED])).removed == 1

    [counts] = await store.counts([queue])
    assert (counts.delayed, counts.ready, counts.leased, counts.dead) == (0, 4, 1, 0)
    page = await store.list_jobs(queue, State.READY)
    assert sorted(job.id for job in page.jobs) == ["given back", "killed", "released", "rescheduled"]
    [job] = await store.get(queue, ["released"])
    assert (job.error, job.attempt) == ("failed", 1)  # type: ignore[union-attr]
    assert sum(await store.due_histogram(queue, [0, reserved.now + 1_000_000])) == 4


async def test_every_verb_on_every_node_of_a_cluster(redis_cluster: RedisCluster) -> None:
    queues = queues_on_every_node()
    async with opened(redis_cluster.url) as store:
        for queue in queues:
            await every_verb(store, queue)

        assert list(await store.queues()) == sorted(queues)
        assert all(head is not None for head in await store.heads(queues))
        assert (await store.configure(queues[0], RulesChange(paused=True))).paused
        await store.registry.put("kind", "key", b"value")
        assert [record.key for record in await store.registry.list_records("kind")] == ["key"]
        assert (await store.ping()).kind == "redis"

        # A reaper takes back leases on all nodes.
        for queue in queues[1:]:
            assert (await store.reserve(queue, [Ask(1, 1)])).deliveries[0]
        reaped: set[Queue] = set()
        async with asyncio.timeout(DEADLINE_S):
            while reaped != set(queues[1:]):
                reaped |= set((await store.reap()).moved)
        assert list(await store.check()) == []


async def test_wakes_reach_a_subscriber_from_every_node(redis_cluster: RedisCluster) -> None:
    async with (
        opened(redis_cluster.url) as store,
        opened(redis_cluster.url) as other,
        aclosing(store.wakeups()) as wakes,
    ):
        assert await anext(wakes) == Wake()
        for queue in queues_on_every_node():
            await push(other, queue, "a")
            assert (await next_wake(wakes, queue)).due_at > 0


async def test_a_cluster_is_resharded_under_load(redis_cluster: RedisCluster) -> None:
    queue = queues_on_every_node()[0]
    source, target = redis_cluster.primaries[0], redis_cluster.primaries[1]
    pushed: list[str] = []
    async with opened(redis_cluster.url) as store:
        stop = asyncio.Event()

        async def produce() -> None:
            while not stop.is_set():
                job_id = f"job-{len(pushed)}"
                await eventually(lambda job_id=job_id: push(store, queue, job_id))
                pushed.append(job_id)

        # Given a producer that never stops, when the slot of its queue moves to another node
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(produce())
            await until(lambda: len(pushed) > 20)
            await asyncio.to_thread(redis_cluster.move_slots, [slot_of(queue)], source, target)
            so_far = len(pushed)
            await until(lambda: len(pushed) > so_far + 20)
            stop.set()

        # Then nothing is lost, and the queue is sound at its new place
        [counts] = await store.counts([queue])
        assert counts.ready == len(pushed)
        assert list(await store.check()) == []


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  # what it waits for is in another program
            await asyncio.sleep(0.001)


async def test_a_primary_of_a_cluster_falls(doomed_cluster: RedisCluster) -> None:
    queues = queues_on_every_node()
    async with opened(doomed_cluster.url) as store, aclosing(store.wakeups()) as wakes:
        assert await anext(wakes) == Wake()
        for queue in queues:
            await push(store, queue, "before")
        doomed_cluster.wait_for_replicas()

        await asyncio.to_thread(doomed_cluster.fail_over, 0)

        # The survivors serve on, the fallen one's queues are served by its replica, and wakes come again.
        for queue in queues:
            assert await drain(store, queue) == ["before"]
            await eventually(lambda queue=queue: push(store, queue, "after"))
            assert await drain(store, queue) == ["after"]
        await wakes_work(store, wakes, queues[0])


async def wakes_work(store: RedisStore, wakes: AsyncIterator[Wake], queue: Queue) -> None:
    """A subscription may still be on its way back, so pushes go on until one is heard."""

    async def keep_pushing() -> None:
        while True:
            await eventually(lambda: push_and_drain(store, queue))
            await asyncio.sleep(0.05)

    pusher = asyncio.create_task(keep_pushing())
    try:
        await next_wake(wakes, queue)
    finally:
        pusher.cancel()
        await asyncio.gather(pusher, return_exceptions=True)


async def push_and_drain(store: RedisStore, queue: Queue) -> None:
    await store.push(queue, [Push([NewJob("again", b"")])])
    await store.cancel(queue, ["again"])


async def test_sentinels_name_a_new_primary(sentinel_set: SentinelSet) -> None:
    queue = Queue("shop", "mail")
    async with opened(sentinel_set.url) as store, aclosing(store.wakeups()) as wakes:
        assert await anext(wakes) == Wake()
        epoch = (await store.ping()).epoch
        await push(store, queue, "before")
        sentinel_set.wait_for_replica()

        # When the primary falls
        sentinel_set.primary.kill()
        with pytest.raises(StoreUnavailable):
            await store.push(queue, [Push([NewJob("during", b"")])])

        # Then the store follows to the new one, where everything is
        assert await drain(store, queue) == ["before"]
        assert (await store.ping()).epoch == epoch
        await wakes_work(store, wakes, queue)

        # And the old primary, which comes back as a replica, is left alone
        await asyncio.to_thread(sentinel_set.wait_for_failover)
        sentinel_set.primary.start()
        await eventually(lambda: push(store, queue, "after"))
        assert await drain(store, queue) == ["after"]


async def test_a_demoted_primary_refuses_and_the_store_moves_on(sentinel_set: SentinelSet) -> None:
    queue = Queue("shop", "mail")
    async with opened(sentinel_set.url) as store:
        await push(store, queue, "before")
        sentinel_set.wait_for_replica()

        # When an operator swaps the roles, connections to the old primary stay open and answer READONLY
        await asyncio.to_thread(fail_over_by_hand, sentinel_set)

        await eventually(lambda: push(store, queue, "after"))
        assert await drain(store, queue) == ["after", "before"]


def fail_over_by_hand(sentinel_set: SentinelSet) -> None:
    ask(sentinel_set.sentinels[0], "SENTINEL", "FAILOVER", SERVICE)
    sentinel_set.wait_for_failover()


async def test_the_store_follows_before_the_old_primary_is_demoted(sentinel_set: SentinelSet) -> None:
    """Sentinels demote a healthy primary about ten seconds after they have named another one.

    What the old one accepts until then is lost.
    """
    queue = Queue("shop", "mail")
    async with opened(sentinel_set.url) as store:
        await push(store, queue, "before")
        sentinel_set.wait_for_replica()
        await asyncio.to_thread(fail_over_by_hand, sentinel_set)
        async with opened(sentinel_set.replica.url) as promoted, asyncio.timeout(4):
            for number in itertools.count():
                await push(store, queue, f"after-{number}")
                if (await promoted.get(queue, [f"after-{number}"]))[0] is not None:
                    break
                await asyncio.sleep(0.1)


async def test_no_sentinel_answers(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis()

    with pytest.raises(StoreUnavailable, match="does not know it"):
        await RedisStore.open(f"redis+sentinel://127.0.0.1:{server.port}/main")
