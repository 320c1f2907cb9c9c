"""Several Redis as one pool: one that is down takes only its share with it, one that comes or goes strands nothing."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC
from functools import partial

import pytest
import redis.asyncio

from duetime.callbacks.courier import Courier
from duetime.callbacks.topic_registry import TopicAddress, TopicRegistry
from duetime.callbacks.topic_service import TopicJobs
from duetime.engine import Engine
from duetime.engine.pools import Pools
from duetime.engine.registry_copy import RegistryCopy
from duetime.model.errors import InvalidSettings, StoreFull, StoreUnavailable
from duetime.model.job import Event, IfExists, NewJob
from duetime.model.names import Queue
from duetime.model.settings import group_url
from duetime.model.topic import Status, Topic
from duetime.stores.group.layout import home
from duetime.stores.open import open_store
from tests.courier.conftest import OPTIONS
from tests.courier.receiver import Receiver
from tests.plugins.redis_server import RedisServer
from tests.plugins.until import until

pytestmark = pytest.mark.store_kind("group")

QUEUE = Queue("shop", "mail")
IDS = [f"job-{n}" for n in range(60)]
StartRedis = Callable[..., RedisServer]


@asynccontextmanager
async def group(members: dict[str, RedisServer], *drain: str) -> AsyncIterator[Engine]:
    store = await open_store(group_url("wide", {name: server.url for name, server in members.items()}, drain))
    try:
        async with Engine(store) as engine:
            yield engine
    finally:
        await store.close()


@pytest.fixture
def three(start_redis: StartRedis) -> dict[str, RedisServer]:
    return {name: start_redis() for name in "abc"}


async def push_all(engine: Engine) -> None:
    for job_id in IDS:
        await engine.push(QUEUE, [NewJob(job_id, b"x")])


async def drain_all(engine: Engine) -> list[str]:
    seen: list[str] = []
    while deliveries := await engine.reserve([QUEUE], limit=20):
        await engine.ack([delivery.lease for delivery in deliveries])
        seen += [delivery.lease.id for delivery in deliveries]
    return sorted(seen)


async def test_jobs_are_spread_and_each_comes_once(three: dict[str, RedisServer]) -> None:
    async with group(three) as engine:
        await push_all(engine)
        for name, server in three.items():
            own = await open_store(server.url)
            [counts] = await own.counts([QUEUE])
            await own.close()
            assert counts.ready == sum(home(QUEUE, job_id, ("a", "b", "c")) == name for job_id in IDS) > 0
        assert await drain_all(engine) == sorted(IDS)
        [counts] = await engine.store.counts([QUEUE])
        assert counts.total == 0


async def test_one_down_affects_only_its_share(three: dict[str, RedisServer]) -> None:
    async with group(three) as engine:
        await push_all(engine)
        held = await engine.reserve([QUEUE], limit=60)
        assert len(held) == 60
        three["b"].stop()
        lost = {job_id for job_id in IDS if home(QUEUE, job_id, ("a", "b", "c")) == "b"}
        refused: set[str] = set()
        for delivery in held:
            try:
                await engine.ack([delivery.lease])
            except StoreUnavailable:
                refused.add(delivery.lease.id)
        assert refused == lost
        for job_id in IDS:
            if job_id in lost:
                with pytest.raises(StoreUnavailable, match="member b"):
                    await engine.push(QUEUE, [NewJob(job_id, b"again")])
            else:
                await engine.push(QUEUE, [NewJob(job_id, b"again")])
        assert await drain_all(engine) == sorted(set(IDS) - lost)
        with pytest.raises(StoreUnavailable):
            await engine.store.counts([QUEUE])

        three["b"].start()

        async def is_back() -> bool:
            try:
                await engine.push(QUEUE, [NewJob(min(lost), b"back")])
            except StoreUnavailable:
                return False
            return True

        await until(is_back)
        [delivery] = await engine.reserve([QUEUE], wait_ms=10_000)
        assert delivery.lease.id == min(lost)


async def test_a_group_starts_while_one_is_down(three: dict[str, RedisServer]) -> None:
    three["c"].stop()
    async with group(three) as engine:
        alive = [job_id for job_id in IDS if home(QUEUE, job_id, ("a", "b", "c")) != "c"]
        for job_id in alive:
            await engine.push(QUEUE, [NewJob(job_id, b"x")])
        assert await drain_all(engine) == sorted(alive)


async def test_a_consumer_that_waits_is_woken_by_any_member(three: dict[str, RedisServer]) -> None:
    async with group(three) as engine, group(three) as other:
        for job_id in IDS[:6]:
            await other.push(QUEUE, [NewJob(job_id, b"x", delay_ms=20)])
            [delivery] = await engine.reserve([QUEUE], wait_ms=10_000)
            assert delivery.lease.id == job_id
            await engine.ack([delivery.lease])


async def test_what_was_there_before_a_member_came_is_found_and_delivered(three: dict[str, RedisServer]) -> None:
    two = {name: three[name] for name in "ab"}
    async with group(two) as engine:
        await push_all(engine)
    moved = [job_id for job_id in IDS if home(QUEUE, job_id, ("a", "b", "c")) == "c"]
    async with group(three) as engine:
        assert len([job for job in await engine.store.get(QUEUE, IDS) if job]) == 60
        kept = await engine.push(QUEUE, [NewJob(moved[0], b"again")])
        assert kept.jobs[0].event is Event.KEPT
        replaced = await engine.push(QUEUE, [NewJob(moved[1], b"new")], if_exists=IfExists.REPLACE)
        assert replaced.jobs[0].event is Event.REPLACED
        assert [answer and answer.event for answer in await engine.cancel(QUEUE, moved[2:4])] == [Event.CANCELLED] * 2
        assert await drain_all(engine) == sorted(set(IDS) - set(moved[2:4]))
        await engine.push(QUEUE, [NewJob(moved[0], b"x")])
    own = await open_store(three["c"].url)
    [counts] = await own.counts([QUEUE])
    await own.close()
    assert counts.ready == 1


async def test_a_member_that_drains_takes_nothing_new_and_loses_nothing(three: dict[str, RedisServer]) -> None:
    async with group(three) as engine:
        await push_all(engine)
    async with group(three, "c") as engine:
        await engine.push(QUEUE, [NewJob(f"new-{n}", b"x") for n in range(30)])
        own = await open_store(three["c"].url)
        [counts] = await own.counts([QUEUE])
        await own.close()
        assert counts.ready == sum(home(QUEUE, job_id, ("a", "b", "c")) == "c" for job_id in IDS)
        assert len(await drain_all(engine)) == 90


async def test_a_member_with_jobs_cannot_be_left_out_and_an_empty_one_can(three: dict[str, RedisServer]) -> None:
    two = {name: three[name] for name in "ab"}
    async with group(three) as engine:
        await push_all(engine)
    with pytest.raises(InvalidSettings, match="member c may still have jobs"):
        async with group(two):
            pass
    async with group(three, "c") as engine:
        assert len(await drain_all(engine)) == 60
    async with group(three, "c"):
        pass
    async with group(two) as engine:
        await push_all(engine)
        assert len(await drain_all(engine)) == 60


async def test_callbacks_of_one_that_is_down_wait_and_all_others_are_made_once(start_redis: StartRedis) -> None:
    members = {name: start_redis(appendonly="yes", appendfsync="always") for name in "abc"}
    wide = group_url("wide", {name: server.url for name, server in members.items()}, [])
    place = TopicAddress("wide", QUEUE)
    async with AsyncExitStack() as stack:
        receiver = await stack.enter_async_context(Receiver())
        pools = await stack.enter_async_context(Pools({"default": "memory:", "wide": wide}, open_store=open_store))
        registry_copy = await stack.enter_async_context(RegistryCopy(lambda: pools.registry))
        courier = await stack.enter_async_context(Courier(pools, registry_copy, options=OPTIONS))
        topics = TopicRegistry(lambda: pools.registry, registry_copy)
        topic_jobs = TopicJobs(pools.engine, topics, zone=UTC)
        await topics.add(place, Topic(key="mail", callback=receiver.url))

        def called() -> list[str]:
            return sorted(call.fields["id"] for call in receiver.calls)

        for job_id in IDS[:30]:
            await topic_jobs.add(place, job_id, {"id": job_id})
        await receiver.got(30)

        await topics.set_status(place, Status.ONLINE, halted="until one is down")
        await until(lambda: not courier.streaks())
        for job_id in IDS[30:]:
            await topic_jobs.add(place, job_id, {"id": job_id})
        members["b"].stop()
        await topics.set_status(place, Status.ONLINE)
        lost = {job_id for job_id in IDS[30:] if home(QUEUE, job_id, ("a", "b", "c")) == "b"}
        assert lost
        await receiver.got(60 - len(lost))
        assert called() == sorted(set(IDS) - lost)

        members["b"].start()
        await receiver.got(60)
        assert called() == sorted(IDS)

        # The lane opened while one was down; its queue is kept there as well.
        async def is_kept(url: str) -> bool:
            store = await open_store(url)
            try:
                return (await store.configure(QUEUE)).kept
            finally:
                await store.close()

        for server in members.values():
            await until(partial(is_kept, server.url))

        async def is_drained() -> bool:
            [counts] = await pools.engine("wide").store.counts([QUEUE])
            return counts.total == 0

        await until(is_drained)
        assert len(receiver.calls) == 60


async def test_a_full_member_delivers_and_the_group_starts_with_it(three: dict[str, RedisServer]) -> None:
    async with group(three) as engine:
        await push_all(engine)
    own = await open_store(three["b"].url)
    await own.registry.delete("group", "wide")  # so that the start finds no record there, and no room for one
    await own.close()
    await fill_up(three["b"])
    async with group(three) as engine:
        on_b = next(f"new-{n}" for n in range(1000) if home(QUEUE, f"new-{n}", ("a", "b", "c")) == "b")
        with pytest.raises(StoreFull, match="member b"):
            await engine.push(QUEUE, [NewJob(on_b, b"x")])
        assert await drain_all(engine) == sorted(IDS)


async def fill_up(server: RedisServer) -> None:
    async with redis.asyncio.Redis.from_url(server.url) as client:
        await client.config_set("maxmemory-policy", "noeviction")
        await client.config_set("maxmemory", 1)


async def test_a_member_that_hangs_holds_up_nobody_once_it_is_known(three: dict[str, RedisServer]) -> None:
    async with group(three) as engine:
        await push_all(engine)
        three["b"].pause()
        try:
            alive = sorted(job_id for job_id in IDS if home(QUEUE, job_id, ("a", "b", "c")) != "b")
            assert await drain_all(engine) == alive
        finally:
            three["b"].resume()
        await until(lambda: is_up(engine))
        assert len(await drain_all(engine)) == len(IDS) - len(alive)


async def is_up(engine: Engine) -> bool:
    return not (await engine.store.ping()).problems
