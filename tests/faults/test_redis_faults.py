"""The Redis store when things go wrong: foreign data, no room, lost scripts, lost connections."""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest
import redis

from duetime.model.clock import ManualClock
from duetime.model.errors import DuetimeError, StoreDamaged, StoreFull, StoreUnavailable
from duetime.model.job import Counts, Event, Moved, NewJob, State
from duetime.model.names import Queue
from duetime.stores.base import Ask, Mark, Push, Pushed, RulesChange, Wake
from duetime.stores.finishes import Finish, Finished, Join
from duetime.stores.redis import keys
from duetime.stores.redis.store import RedisStore
from tests.contract.vocabulary import give_back_one
from tests.faults.redis_vocabulary import PREFIX, QUEUE, Verb, dump, lease_one, opened, push_one
from tests.plugins.redis_server import RedisServer

pytestmark = pytest.mark.store_kind("redis")

DEADLINE_S = 60


VERBS: dict[str, Verb] = {
    "push": lambda store, _: push_one(store, "new"),
    "push with a mark": lambda store, _: store.push(QUEUE, [Push([NewJob("new", b"")], mark=Mark("m", b"d", 1000))]),
    "reserve": lambda store, _: store.reserve(QUEUE, [Ask(1, 1000)]),
    "ack": lambda store, lease: store.ack(QUEUE, [lease]),
    "release": lambda store, lease: store.release(lease, 0, "failed"),
    "give_back": give_back_one,
    "kill": lambda store, lease: store.kill(lease, "failed"),
    "extend": lambda store, lease: store.extend(lease, 1000),
    "cancel": lambda store, _: store.cancel(QUEUE, ["ready"]),
    "reschedule": lambda store, _: store.reschedule(QUEUE, ["ready"], delay_ms=1000),
    "respawn": lambda store, _: store.respawn(QUEUE),
    "purge": lambda store, _: store.purge(QUEUE, [State.READY]),
    "purge everything": lambda store, _: store.purge(QUEUE, list(State)),
    "counts": lambda store, _: store.counts([QUEUE]),
    "get": lambda store, _: store.get(QUEUE, ["ready"]),
    "list": lambda store, _: store.list_jobs(QUEUE, State.READY),
    "configure": lambda store, _: store.configure(QUEUE, RulesChange(paused=True)),
}
SUFFIXES = ["jobs", "wait:1", "wait:2", "wait:3", "leases", "dead", "tries", "ttl", "info", "meta", "damaged"]
UNUSED_BY_ONE_PUSH = {"leases", "dead", "tries", "ttl", "info", "damaged"}
"""The script for one plain job neither reads nor writes these. Every other push looks at all of them."""


@pytest.mark.parametrize("suffix", [*SUFFIXES, "mark:m", "agenda"])
async def test_foreign_data_under_a_key(redis_url: str, suffix: str) -> None:
    async with opened(redis_url) as store:
        # Given a queue with jobs in every state, and a list where one of its keys should be
        await push_one(store, "leased")
        lease = await lease_one(store)
        await push_one(store, "dead")
        await store.kill(await lease_one(store), "hopeless")
        await push_one(store, "ready", ttl_ms=60_000)
        with redis.Redis.from_url(redis_url) as client:
            key = keys.companion(PREFIX) if suffix == "agenda" else f"{PREFIX}:{suffix}"
            client.delete(key)
            client.rpush(key, "foreign")
        before = dump(redis_url)

        # Then every verb says so and changes nothing
        for name, verb in VERBS.items():
            if suffix == "mark:m" and name != "push with a mark":
                continue
            if name == "push" and suffix in UNUSED_BY_ONE_PUSH:
                continue
            with pytest.raises(StoreDamaged, match="WRONGTYPE"):
                await verb(store, lease)
            assert dump(redis_url) == before, name


async def test_check_names_what_is_broken(redis_url: str) -> None:
    async with opened(redis_url) as store:
        await push_one(store, "twice")
        await push_one(store, "lost")
        with redis.Redis.from_url(redis_url) as client:
            client.zadd(f"{PREFIX}:dead", {"twice": 1})
            client.zrem(f"{PREFIX}:wait:2", "lost")

        problems = list(await store.check())

        assert any("'twice' is in 2 places" in problem for problem in problems)
        assert any("'lost' is in 0 places" in problem for problem in problems)


async def test_a_damaged_queue_does_not_hold_up_the_reaper(redis_url: str) -> None:
    clock = ManualClock()
    queues = [Queue("shop", f"queue-{number}") for number in range(100)]
    async with opened(redis_url, clock) as store:
        for queue in queues:
            await store.push(queue, [Push([NewJob("a", b"")])])
            await store.reserve(queue, [Ask(1, 1000)])
        with redis.Redis.from_url(redis_url) as client:
            client.delete(f"{keys.prefix(queues[0])}:tries")
            client.rpush(f"{keys.prefix(queues[0])}:tries", "foreign")
        clock.advance("1s")

        moved = (await store.reap()).moved

        assert set(moved) == set(queues[1:])
        with pytest.raises(StoreDamaged, match="WRONGTYPE"):
            await store.reap()


# --- no room


def fill_up(url: str) -> None:
    """From now on everything that needs room is refused."""
    with redis.Redis.from_url(url) as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 1)


async def test_a_full_redis_refuses_only_pushes(start_redis: Callable[..., RedisServer]) -> None:
    clock = ManualClock()
    server = start_redis()
    async with opened(server.url, clock) as store:
        # Given jobs in every state and no room for anything more
        names = ["acked", "released", "given back", "killed", "extended", "lapsed", "expired in hand", "finished"]
        for name in names:
            await push_one(store, name, ttl_ms=5000 if name == "expired in hand" else 0)
        reserved = await store.reserve(QUEUE, [Ask(100, 60_000)])
        leases = {delivery.lease.id: delivery.lease for delivery in reserved.deliveries[0]}
        for name in ("ready", "cancelled", "rescheduled", "again"):
            await push_one(store, name)
        await push_one(store, "expired", ttl_ms=2000)
        fill_up(server.url)

        # Then pushes are refused, each on its own, and what needs no room is answered
        assert isinstance(await push_one(store, "new"), StoreFull)
        kept, refused = await store.push(QUEUE, [Push([NewJob("ready", b"")]), Push([NewJob("new", b"")])])
        assert isinstance(kept, Pushed)
        assert kept.jobs[0].event is Event.KEPT
        assert refused == StoreFull()

        # And everything else goes on
        assert (await store.release(leases["released"], 0, "failed")).event is Event.RELEASED
        assert (await give_back_one(store, leases["given back"])).event is Event.GIVEN_BACK
        assert (await store.kill(leases["killed"], "hopeless")).event is Event.DEAD
        assert await store.extend(leases["extended"], 90_000)
        assert [moved is not None for moved in await store.ack(QUEUE, [leases["acked"]])] == [True]
        join = Join("all", 1, [NewJob("joined", b"x" * 2000)], 60_000)
        followed = Finish(leases["finished"], [NewJob("next", b"x" * 2000)], b"a result", 60_000, join)
        [finished] = await store.finish(QUEUE, [followed])
        assert isinstance(finished, Finished)
        assert [(moved.id, moved.event) for moved in finished.then] == [
            ("next", Event.ACCEPTED),
            ("joined", Event.ACCEPTED),
        ]
        [kept] = await store.results(QUEUE, ["finished"])
        assert kept is not None
        assert kept.result == b"a result"
        assert [moved is not None for moved in await store.cancel(QUEUE, ["cancelled"])] == [True]
        assert [moved is not None for moved in await store.reschedule(QUEUE, ["rescheduled"], delay_ms=1)] == [True]
        assert len(await store.respawn(QUEUE)) == 1
        assert (await store.configure(QUEUE, RulesChange(paused=True))).paused
        assert not (await store.configure(QUEUE, RulesChange(paused=False))).paused
        clock.advance("3s")
        [counts] = await store.counts([QUEUE])
        assert (counts.ready, counts.leased, counts.expired) == (8, 3, 1)
        assert [moved.event for moved in (await store.reap()).moved[QUEUE]] == [Event.EXPIRED]
        [deliveries] = (await store.reserve(QUEUE, [Ask(100, 60_000)])).deliveries
        assert len(deliveries) == 8
        assert all(await store.ack(QUEUE, [delivery.lease for delivery in deliveries]))
        clock.advance("2m")
        events = sorted(moved.event for moved in (await store.reap()).moved[QUEUE])
        assert events == [Event.EXPIRED, Event.LEASE_EXPIRED, Event.LEASE_EXPIRED]
        assert (await store.purge(QUEUE, [State.DELAYED])).removed == 0
        assert (await store.purge(QUEUE, [State.READY])).removed == 2
        assert list(await store.check()) == []


async def test_a_redis_that_fills_up_and_is_drained(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(maxmemory="6mb", maxmemory_policy="noeviction")
    async with opened(server.url) as store:
        pushed, body = 0, b"x" * 1000
        while True:
            jobs = [NewJob(f"{pushed + number}", body) for number in range(200)]
            [answer] = await store.push(QUEUE, [Push(jobs)])
            if isinstance(answer, DuetimeError):
                break
            pushed += 200
        assert answer == StoreFull()

        drained = 0
        while deliveries := (await store.reserve(QUEUE, [Ask(100, 60_000)])).deliveries[0]:
            assert all(await store.ack(QUEUE, [delivery.lease for delivery in deliveries]))
            drained += len(deliveries)

        assert drained == pushed > 1000
        assert isinstance(await push_one(store, "new"), Pushed)
        assert list(await store.check()) == []


# --- scripts and connections


async def test_scripts_that_redis_forgot(redis_url: str) -> None:
    queues = [QUEUE, Queue("shop", "sms"), Queue("shop", "fax")]
    async with opened(redis_url) as store:
        for verb in (
            lambda: push_one(store, "a"),
            lambda: store.counts(queues),
            lambda: store.heads(queues),
            lambda: store.registry.put("kind", "key", b""),
        ):
            with redis.Redis.from_url(redis_url) as client:
                client.script_flush()
            await verb()

        assert [count.ready for count in await store.counts(queues)] == [1, 0, 0]


async def test_a_script_that_thousands_miss_at_once_is_sent_once(redis_url: str) -> None:
    async with opened(redis_url) as store:
        with redis.Redis.from_url(redis_url) as client:
            client.script_flush()
            client.config_resetstat()
            queues = [Queue("shop", f"queue{number}") for number in range(3000)]
            answers = await asyncio.gather(*(store.reserve(queue, [Ask(1, 1000)]) for queue in queues))

            assert [answer.deliveries for answer in answers] == [[[]]] * len(queues)
            assert client.info("commandstats")["cmdstat_eval"]["calls"] == 2, "the short script and the general one"


async def test_connections_that_redis_closed(redis_url: str) -> None:
    async with opened(redis_url) as store:
        await push_one(store, "a")
        with redis.Redis.from_url(redis_url) as client:
            client.client_kill_filter(_type="normal", skipme=True)
        await asyncio.sleep(0.05)  # let the end of the connection arrive

        assert isinstance(await push_one(store, "b"), Pushed)


async def test_a_redis_that_is_down(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(appendonly="yes", appendfsync="always")
    async with opened(server.url) as store:
        await push_one(store, "a")
        epoch = (await store.ping()).epoch
        server.kill()
        await asyncio.sleep(0.05)  # let the end of the connection arrive

        # Verbs fail fast, and say that nothing was done
        begun = time.monotonic()
        with pytest.raises(StoreUnavailable) as failure:
            await push_one(store, "b")
        assert not failure.value.outcome_unknown
        with pytest.raises(StoreUnavailable):
            await store.counts([QUEUE])
        assert time.monotonic() - begun < DEADLINE_S

        # And find it again by themselves
        server.start()
        assert (await store.counts([QUEUE]))[0].ready == 1
        assert (await store.ping()).epoch == epoch


async def test_a_redis_that_does_not_answer(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis()
    async with opened(f"{server.url}?timeout=2") as store:
        await push_one(store, "a")
        server.pause()
        try:
            # Sent, and no answer: nobody knows
            with pytest.raises(StoreUnavailable) as failure:
                await push_one(store, "b")
            assert failure.value.outcome_unknown
            with pytest.raises(StoreUnavailable):
                await store.counts([QUEUE])
        finally:
            server.resume()

        async with asyncio.timeout(DEADLINE_S):
            while (await store.counts([QUEUE]))[0].ready < 2:  # noqa: ASYNC110  # it was done after all
                await asyncio.sleep(0.01)


async def test_a_redis_that_falls_in_the_middle_of_a_large_call(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis()
    async with opened(server.url) as store:
        run, calls = store._scripts.run, 0

        async def run_and_fall(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls % 2 == 0:
                raise StoreUnavailable(unknown=False)
            return await run(*arguments, **options)

        store._scripts.run = run_and_fall  # type: ignore[method-assign]
        halves = [Push([NewJob(f"{half}-{n}", b"") for n in range(500)]) for half in range(2)]
        names = [job.id for push in halves for job in push.jobs]

        # What was done is told, and what was not as well
        done, failed = await store.push(QUEUE, halves)
        assert isinstance(done, Pushed)
        assert isinstance(failed, StoreUnavailable)
        assert not failed.outcome_unknown
        removed = await store.cancel(QUEUE, names)
        assert [type(answer) for answer in removed] == [Moved] * 500 + [StoreUnavailable] * 500
        store._scripts.run = run
        await store.push(QUEUE, halves)
        [deliveries] = (await store.reserve(QUEUE, [Ask(1, 60_000)])).deliveries
        lease = deliveries[0].lease
        store._scripts.run = run_and_fall  # type: ignore[method-assign]
        finished = await store.ack(QUEUE, [lease, lease, lease])
        assert [type(answer) for answer in finished] == [Moved, StoreUnavailable, StoreUnavailable]


async def test_a_replica_refuses_writes(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis()
    async with opened(server.url) as store:
        await push_one(store, "a")
        with redis.Redis.from_url(server.url) as client:
            client.execute_command("REPLICAOF", "127.0.0.1", "1")

        with pytest.raises(StoreUnavailable, match="read only") as failure:
            await push_one(store, "b")
        assert not failure.value.outcome_unknown


async def test_a_cancelled_call_takes_no_other_calls_answer(redis_url: str) -> None:
    async with opened(redis_url) as store:
        for number in range(20):
            task = asyncio.create_task(push_one(store, f"{number}"))
            for _ in range(number):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

            assert (await store.ping()).kind == "redis"
            assert isinstance((await store.counts([QUEUE]))[0], Counts)


async def test_many_calls_share_a_connection(redis_url: str) -> None:
    async with opened(redis_url) as store:
        answers = await asyncio.gather(*(push_one(store, f"{number}") for number in range(50)))

        assert all(isinstance(answer, Pushed) for answer in answers)
        with redis.Redis.from_url(redis_url) as client:
            assert len(client.client_list(_type="normal")) <= 2


async def test_a_password(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(requirepass="secret")
    async with opened(server.url) as store:
        assert isinstance(await push_one(store, "a"), Pushed)
    with pytest.raises(StoreUnavailable):
        await RedisStore.open(f"redis://:wrong@127.0.0.1:{server.port}/0")
    with pytest.raises(StoreUnavailable):
        await RedisStore.open(f"redis://127.0.0.1:{server.port}/0")


async def test_wakes_after_a_lost_subscription(redis_url: str) -> None:
    async with opened(redis_url) as store, aclosing(store.wakeups()) as wakes, asyncio.timeout(DEADLINE_S):
        assert await anext(wakes) == Wake()
        with redis.Redis.from_url(redis_url) as client:
            client.client_kill_filter(_type="pubsub")

        assert await anext(wakes) == Wake()
        await push_one(store, "a")
        assert (await anext(wakes)).queue == QUEUE


async def test_the_registry_is_watched_over_a_lost_subscription(redis_url: str) -> None:
    async with opened(redis_url) as store, aclosing(store.registry.watch()) as versions, asyncio.timeout(DEADLINE_S):
        assert await anext(versions) == 0
        await store.registry.put("kind", "key", b"1")
        assert await anext(versions) == 1
        with redis.Redis.from_url(redis_url) as client:
            client.client_kill_filter(_type="pubsub")
        assert await anext(versions) == 1
