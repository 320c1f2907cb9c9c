"""Single-job calls of the batcher: when they are made, who hears of them, and callers that go away."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import redis

from duetime.engine import Engine
from duetime.engine.recorder import Recorder, StoreCall
from duetime.engine.requests import AckRequest, PushRequest, Request, ReserveRequest
from duetime.model.errors import JobExists, StoreDamaged, StoreUnavailable
from duetime.model.job import Event, IfExists, Moved, NewJob, Priority
from duetime.model.names import Queue
from duetime.stores.base import RulesChange
from duetime.stores.open import open_store
from duetime.stores.redis import keys
from duetime.stores.redis.codec import RECORD
from duetime.stores.redis.pipe import ASLEEP, Login, Lost, Pipe
from tests.faults.losing_proxy import LosingProxy
from tests.plugins.redis_server import RedisServer
from tests.plugins.until import until

pytestmark = pytest.mark.store_kind("redis")

QUEUE = Queue("shop", "mail")


@pytest.fixture
def client(redis_url: str) -> Any:
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
        yield client
        client.client_unpause()


async def begun(engine: Engine) -> None:
    """The queue is there, and Redis has the scripts."""
    await engine.push(QUEUE, [NewJob("begin", b"")])
    await engine.push(QUEUE, [NewJob("again", b"")])
    for _ in range(2):
        [delivery] = await engine.reserve([QUEUE])
        await engine.ack([delivery.lease])
    engine.store.one_job.backoff.clear()  # type: ignore[union-attr]


@pytest.fixture
async def engine(redis_url: str, client: redis.Redis) -> AsyncIterator[Engine]:
    store = await open_store(redis_url)
    async with Engine(store) as engine:
        await begun(engine)
        yield engine
    await store.close()


def calls(engine: Engine) -> int:
    """Store calls that were made by a runner."""
    return sum(lane.calls - lane.single_calls for lane in engine._batcher.lanes.values())


def is_busy(engine: Engine, kind: type[Request[Any]]) -> bool:
    return bool(engine._batcher.lanes[kind].singles)


async def test_a_lone_caller_needs_no_task(engine: Engine) -> None:
    before = calls(engine)
    await engine.push(QUEUE, [NewJob("a", b"body")])
    [delivery] = await engine.reserve([QUEUE], wait_ms=1000)
    [moved] = await engine.ack([delivery.lease])

    assert (delivery.lease.id, delivery.body) == ("a", b"body")
    assert moved is not None
    assert await engine.reserve([QUEUE]) == []
    assert calls(engine) == before


async def test_unusual_requests_use_the_general_verbs(engine: Engine) -> None:
    await engine.push(QUEUE, [NewJob("a", b"")])
    with pytest.raises(JobExists):
        await engine.push(QUEUE, [NewJob("a", b"")], if_exists=IfExists.ERROR)
    await engine.push(QUEUE, [NewJob("urgent", b"", priority=Priority.HIGH)])
    found = [(await engine.reserve([QUEUE]))[0].lease for _ in range(2)]

    assert {lease.id for lease in found} == {"a", "urgent"}
    assert all(await engine.ack(found))


async def test_many_concurrent_callers_share_calls(engine: Engine) -> None:
    before = calls(engine)
    await asyncio.gather(*(engine.push(QUEUE, [NewJob(str(number), b"")]) for number in range(100)))
    found = await asyncio.gather(*(engine.reserve([QUEUE]) for _ in range(100)))
    await asyncio.gather(*(engine.ack([one.lease for one in some]) for some in found))

    assert sorted(int(one.lease.id) for some in found for one in some) == list(range(100))
    assert 0 < calls(engine) - before < 60
    assert (await engine.store.counts([QUEUE]))[0].leased == 0


async def test_a_cancelled_reserve_of_one_job_keeps_no_lease(engine: Engine, client: redis.Redis) -> None:
    await engine.push(QUEUE, [NewJob("a", b"")])
    client.client_pause(60_000, all=False)
    asking = asyncio.create_task(engine.reserve([QUEUE], ttr_ms=600_000))
    await until(lambda: is_busy(engine, ReserveRequest))
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking
    client.client_unpause()

    [delivery] = await engine.reserve([QUEUE], wait_ms=60_000)
    assert delivery.lease.id == "a"


async def test_a_push_whose_caller_was_cancelled_wakes_consumers(engine: Engine, client: redis.Redis) -> None:
    waiting = asyncio.create_task(engine.reserve([QUEUE], wait_ms=60_000))
    await until(lambda: engine.parked == 1)
    client.client_pause(60_000, all=False)
    pushing = asyncio.create_task(engine.push(QUEUE, [NewJob("a", b"")]))
    await until(lambda: is_busy(engine, PushRequest))
    pushing.cancel()
    with suppress(asyncio.CancelledError):
        await pushing
    client.client_unpause()

    [delivery] = await waiting
    assert delivery.lease.id == "a"


async def test_an_answer_that_is_lost_is_unknown(engine: Engine, client: redis.Redis) -> None:
    client.client_pause(60_000, all=False)
    pushing = asyncio.create_task(engine.push(QUEUE, [NewJob("a", b"")]))
    await until(lambda: is_busy(engine, PushRequest))
    client.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(StoreUnavailable) as lost:
        await pushing
    client.client_unpause()

    assert lost.value.fields["unknown"] is True
    await engine.push(QUEUE, [NewJob("b", b"")])


async def test_an_ack_whose_answer_is_lost_is_repeated(engine: Engine, client: redis.Redis) -> None:
    await engine.push(QUEUE, [NewJob("a", b"")])
    [delivery] = await engine.reserve([QUEUE])
    client.client_pause(60_000, all=False)
    acking = asyncio.create_task(engine.ack([delivery.lease]))
    await until(lambda: is_busy(engine, AckRequest))
    client.client_kill_filter(_type="normal", skipme=True)
    client.client_unpause()

    assert await acking in ([None], [Moved(Event.ACKED, "a", delivery.lease.born, 1)])
    assert (await engine.store.counts([QUEUE]))[0].total == 0


async def test_an_ack_that_is_lost_with_its_redis_is_unknown(client: redis.Redis, redis_server: RedisServer) -> None:
    async with LosingProxy(redis_server.port) as proxy:
        store = await open_store(f"{proxy.url}?timeout=1")
        async with Engine(store) as engine:
            await begun(engine)
            await engine.push(QUEUE, [NewJob("a", b"")])
            [delivery] = await engine.reserve([QUEUE])
            proxy.loses_next, proxy.on_loss = True, proxy.leave
            with pytest.raises(StoreUnavailable) as lost:
                await engine.ack([delivery.lease])
        await store.close()
    assert lost.value.outcome_unknown


async def test_an_answer_that_cannot_be_read_reaches_its_caller(redis_url: str, client: redis.Redis) -> None:
    """Previously neither the caller nor the engine's end got an answer."""
    store, tries = await open_store(redis_url), f"{keys.prefix(QUEUE)}:tries"
    async with asyncio.timeout(20):
        async with Engine(store) as engine:
            await begun(engine)
            await engine.push(QUEUE, [NewJob("a", b"")])
            [delivery] = await engine.reserve([QUEUE])
            await engine.release(delivery.lease)
            record = bytearray(client.hget(tries, "a"))  # type: ignore[arg-type]
            record[RECORD.size - 17] = 9  # the priority, before two instants of eight bytes
            client.hset(tries, "a", bytes(record))
            with pytest.raises(StoreDamaged, match="cannot be read"):
                await engine.reserve([QUEUE])
            await engine.push(QUEUE, [NewJob("b", b"")])
    await store.close()


async def test_a_queue_that_was_paused_once_has_single_calls_again(engine: Engine) -> None:
    await engine.store.configure(QUEUE, RulesChange(paused=True))
    await engine.store.configure(QUEUE, RulesChange(paused=False))
    before = calls(engine)
    await engine.push(QUEUE, [NewJob("a", b"")])
    [delivery] = await engine.reserve([QUEUE])
    await engine.ack([delivery.lease])
    assert calls(engine) == before


async def test_an_engine_that_stops_waits_for_the_answer(redis_url: str, client: redis.Redis) -> None:
    store = await open_store(redis_url)
    async with Engine(store) as engine:
        await begun(engine)
        client.client_pause(60_000, all=False)
        pushing = asyncio.create_task(engine.push(QUEUE, [NewJob("a", b"")]))
        await until(lambda: is_busy(engine, PushRequest))
        asyncio.get_running_loop().call_later(0.05, client.client_unpause)

    assert (await pushing).jobs[0].id == "a"
    with pytest.raises(StoreUnavailable):
        await engine.push(QUEUE, [NewJob("b", b"")])
    await store.close()


class Watcher(Recorder):
    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []

    def after(self, call: StoreCall, outcome: Any) -> Any:
        self.heard.append((call.verb, call.callers))
        return outcome


async def test_recorders_get_single_calls(redis_url: str, client: redis.Redis) -> None:
    store, watcher = await open_store(redis_url), Watcher()
    async with Engine(store, recorders=[watcher]) as engine:
        await begun(engine)
        before, watcher.heard = calls(engine), []
        await engine.push(QUEUE, [NewJob("a", b"")])
        [delivery] = await engine.reserve([QUEUE])
        await engine.ack([delivery.lease])
        assert [one for one in watcher.heard if one[0] != "reap"] == [("push", 1), ("reserve", 1), ("ack", 1)]
        assert calls(engine) == before
    await store.close()


async def test_an_event_loop_stays_awake_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[float] = []
    stay_awake = Pipe._stay_awake
    monkeypatch.setattr(Pipe, "_stay_awake", lambda *given: (turns.append(given[2]), stay_awake(*given)))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pipe = await Pipe.dial("127.0.0.1", silent.getsockname()[1], Login(), 60)
        answer = asyncio.get_running_loop().create_future()
        pipe.post_lone(b"*1\r\n$4\r\nPING\r\n", answer)
        await until(lambda: pipe._asleep == ASLEEP)
        turned = len(turns)
        for _ in range(3):
            await asyncio.sleep(0)
        assert 0 < turned == len(turns)
        pipe.close()
    assert isinstance(answer.exception(), Lost)
