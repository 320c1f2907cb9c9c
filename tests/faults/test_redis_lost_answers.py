"""Redis did something and its answer was lost: the store says so, and never that nothing happened."""

from collections.abc import Callable

import pyarrow as pa
import pytest
import redis

from duetime.model.clock import ManualClock
from duetime.model.errors import StoreUnavailable
from duetime.model.job import Event, NewJob, Priority
from duetime.stores.base import Mark, RulesChange
from duetime.stores.bulk import Failed, JobColumns, LoadStep
from duetime.stores.finishes import Finish, Finished, Join
from duetime.stores.redis.bulk import RedisBulk
from duetime.stores.redis.store import RedisStore
from tests.faults.losing_proxy import LosingProxy
from tests.faults.redis_vocabulary import QUEUE, Verb, dump, lease_one, opened, push_one
from tests.plugins.redis_server import RedisServer

pytestmark = pytest.mark.store_kind("redis")


async def know_the_scripts(store: RedisStore) -> None:
    """Else the answer that is lost could be that Redis does not know the script, and nothing was done."""
    for job_id in ("first", "second"):  # a queue that is known may be served by another script than a new one
        await push_one(store, job_id)
        lease = await lease_one(store)
        await store.extend(lease, 1000)
        await store.ack(QUEUE, [lease])
    await store.counts([QUEUE])


async def test_a_lost_answer(redis_server: RedisServer, redis_url: str) -> None:
    assert redis_url == redis_server.url
    clock = ManualClock()
    async with LosingProxy(redis_server.port) as proxy, opened(proxy.url, clock) as store:
        await know_the_scripts(store)
        # In the millisecond of an earlier born, the short script's answer is only that the general one must push.
        clock.advance("1s")

        # What cannot be repeated says that it may have happened
        proxy.loses_next = True
        with pytest.raises(StoreUnavailable) as failure:
            await push_one(store, "a")
        assert failure.value.outcome_unknown
        assert (await store.counts([QUEUE]))[0].ready == 1

        # Reading is repeated
        proxy.loses_next = True
        assert (await store.counts([QUEUE]))[0].ready == 1

        # So are verbs that bear it
        lease = await lease_one(store)
        proxy.loses_next = True
        assert await store.extend(lease, 5000)
        proxy.loses_next = True
        assert list(await store.ack(QUEUE, [lease])) == [None]  # gone already: by the first attempt
        assert proxy.lost == 4
        assert (await store.counts([QUEUE]))[0].total == 0


async def test_a_finish_whose_answer_is_lost_happened_once(redis_server: RedisServer, redis_url: str) -> None:
    assert redis_url == redis_server.url
    async with LosingProxy(redis_server.port) as proxy, opened(proxy.url) as store:
        await know_the_scripts(store)
        await push_one(store, "known")
        await store.finish(QUEUE, [Finish(await lease_one(store))])
        both = Join("both", 2, [NewJob("joined", b"")], 60_000)
        await push_one(store, "a")
        await push_one(store, "b")

        # The finish is repeated by the store itself, and the repetition finds that it has happened
        lease = await lease_one(store)
        proxy.loses_next = True
        first = await store.finish(QUEUE, [Finish(lease, [NewJob("next", b"", delay_ms=60_000)], b"r", 60_000, both)])
        assert list(first) == [None]
        assert [job is not None for job in await store.get(QUEUE, ["a", "next", "joined"])] == [False, True, False]
        [kept] = await store.results(QUEUE, ["a"])
        assert kept is not None
        assert kept.result == b"r"

        # So the join counted it once
        [second] = await store.finish(QUEUE, [Finish(await lease_one(store), join=both)])
        assert isinstance(second, Finished)
        assert (second.joined, [moved.id for moved in second.then]) == (2, ["joined"])
        assert proxy.lost == 1


async def test_a_reserve_whose_answer_is_lost_lapses(redis_server: RedisServer, redis_url: str) -> None:
    assert redis_url == redis_server.url
    clock = ManualClock()
    async with LosingProxy(redis_server.port) as proxy, opened(proxy.url, clock) as store:
        await know_the_scripts(store)
        await push_one(store, "a")
        proxy.loses_next = True
        with pytest.raises(StoreUnavailable) as failure:
            await lease_one(store)
        assert failure.value.outcome_unknown

        clock.advance("60s")
        assert [moved.event for moved in (await store.reap()).moved[QUEUE]] == [Event.LEASE_EXPIRED]
        assert (await lease_one(store)).attempt == 2


BULK = LoadStep(0, 2, Mark("batch/0", b"digest", 60_000, brief=True))

REPEATED: dict[str, Verb] = {
    "ack": lambda store, lease: store.ack(QUEUE, [lease]),
    "extend": lambda store, lease: store.extend(lease, 90_000),
    "bulk push": lambda store, _: load(store),
    "configure": lambda store, _: store.configure(QUEUE, RulesChange(strict=True)),
}


async def load(store: RedisStore) -> None:
    columns = JobColumns(
        pa.array(["b1", "b2"], pa.string()),
        pa.array([b"", b""], pa.binary()),
        pa.array([1, 2], pa.int64()),
        0,
        5,
        Priority.NORMAL,
    )
    [answer] = [one async for one in RedisBulk(store).load(QUEUE, columns, [BULK])]
    if isinstance(answer, Failed):
        raise answer.error


@pytest.mark.parametrize(
    ("verb", "then"),
    [
        *((verb, then) for verb in REPEATED for then in ("is away", "has forgotten the scripts and is away")),
        *((verb, "refuses") for verb in ("extend", "configure")),  # the others have nothing left to write
    ],
)
async def test_a_lost_answer_is_never_told_as_if_nothing_had_happened(
    start_redis: Callable[..., RedisServer], verb: str, then: str
) -> None:
    server = start_redis()
    async with LosingProxy(server.port) as proxy, opened(f"{proxy.url}?timeout=2") as store:
        await know_the_scripts(store)
        await load(store)
        await store.cancel(QUEUE, ["b1", "b2"])
        await store.configure(QUEUE, RulesChange(max_jobs=1000))
        await push_one(store, "a")
        lease = await lease_one(store)
        with redis.Redis.from_url(server.url) as client:
            for key in client.scan_iter("*:mark:*"):
                client.delete(key)
            before = dump(server.url)

            # Given a first attempt that takes effect and whose answer is lost, and repetitions that fail
            def fall() -> None:
                if then == "is away":
                    proxy.refuse()
                elif then == "refuses":
                    client.config_set("min-replicas-to-write", "1")
                else:
                    client.script_flush()
                    proxy.refuse(after=1)  # the answer that says so

            proxy.loses_next, proxy.on_loss = True, fall
            with pytest.raises(StoreUnavailable) as failure:
                await REPEATED[verb](store, lease)
            assert failure.value.outcome_unknown
            assert dump(server.url) != before, "it had taken effect"


async def test_many_commands_whose_answers_were_lost(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis()
    async with LosingProxy(server.port) as proxy, opened(proxy.url) as store:
        await know_the_scripts(store)
        proxy.loses_next, proxy.on_loss = True, proxy.refuse
        with pytest.raises(StoreUnavailable) as failure:
            await store.counts([QUEUE])
        assert failure.value.outcome_unknown
