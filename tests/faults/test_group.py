"""Several Redis as one pool: one that is down takes only its share with it, one that comes or goes strands nothing."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from duetime.engine import Engine
from duetime.errors import InvalidSettings, StoreUnavailable
from duetime.job import Event, IfExists, NewJob
from duetime.names import Queue
from duetime.settings_file import group_url
from duetime.stores.group_layout import home
from duetime.stores.open import open_store
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
