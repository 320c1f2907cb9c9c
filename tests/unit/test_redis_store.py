"""What only the Redis store can get wrong: its indexes, its bounds, its memory."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest
import redis

from duetime.engine import Engine, request_reply
from duetime.model.clock import ManualClock
from duetime.model.job import DAY_MS, STEP_BYTES, STEP_JOBS, Event, IfExists, Lease, NewJob, Priority, State, Totals
from duetime.model.names import Queue
from duetime.stores.base import IDLE_MS, Ask, Push, Pushed, Wake
from duetime.stores.redis import keys
from duetime.stores.redis.codec import STATE
from duetime.stores.redis.store import RedisStore
from tests.faults.redis_vocabulary import opened

pytestmark = pytest.mark.store_kind("redis")

QUEUE = Queue("shop", "mail")
PREFIX = keys.prefix(QUEUE)
MIB = 1_048_576


@pytest.fixture
def client(redis_url: str) -> Any:
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
async def store(redis_url: str, clock: ManualClock) -> AsyncIterator[RedisStore]:
    store = await RedisStore.open(redis_url, clock=clock)
    try:
        yield store
        assert list(await store.check()) == []
    finally:
        await store.close()


async def push(store: RedisStore, *jobs: NewJob) -> Pushed:
    [answer] = await store.push(QUEUE, [Push(jobs)])
    assert isinstance(answer, Pushed), answer
    return answer


# --- the sweep


async def test_a_delayed_job_with_a_ttl_costs_no_index_entry(
    store: RedisStore, client: redis.Redis, clock: ManualClock
) -> None:
    await push(store, *(NewJob(f"{n}", b"", delay_ms=n, ttl_ms=86_400_000) for n in range(100)))

    clock.advance("1h")
    assert (await store.counts([QUEUE]))[0].ready == 100
    await store.reap()

    assert not client.exists(f"{PREFIX}:ttl")


async def test_jobs_that_fell_due_are_swept_once_they_can_have_expired(
    store: RedisStore, client: redis.Redis, clock: ManualClock
) -> None:
    jobs = [
        NewJob(f"{n}", b"", delay_ms=1000 * n, ttl_ms=1000 * n + 5000, priority=Priority(1 + n % 3)) for n in range(9)
    ]
    await push(store, *jobs)

    clock.advance("9s")
    counts = (await store.counts([QUEUE]))[0]

    assert (counts.ready, counts.expired) == (5, 4)
    assert client.zcard(f"{PREFIX}:ttl") == 4
    assert [moved.id for moved in (await store.reap()).moved[QUEUE]] == ["0", "1", "2", "3"]


async def test_a_sweep_in_small_steps_misses_nothing(store: RedisStore, clock: ManualClock) -> None:
    # Given many jobs in one millisecond, some of which go while the sweep is under way
    jobs = [NewJob(f"{n:03}", b"", ttl_ms=1000 + n % 7, priority=Priority(1 + n % 3)) for n in range(200)]
    await push(store, *jobs)
    clock.advance("1003ms")
    removed = 0
    for step in range(1000):
        answer = await store._scripts.run("counts", PREFIX, clock.now_ms(), 3, STEP_BYTES)
        if len(answer) > 1:
            break
        removed += len([moved for moved in await store.cancel(QUEUE, [f"{(step * 37) % 200:03}"]) if moved])
        await push(store, NewJob(f"new-{step}", b"", ttl_ms=1))
    clock.advance("2s")

    counts = (await store.counts([QUEUE]))[0]

    assert removed > 0
    assert counts.ready == 0
    assert counts.expired == 200 - removed + step
    reaped = [moved for _ in range(3) for moved in (await store.reap()).moved.get(QUEUE, [])]
    assert len(reaped) == counts.expired


async def test_the_reaper_sleeps_until_something_can_expire(store: RedisStore, clock: ManualClock) -> None:
    now = clock.now_ms()
    await push(store, NewJob("a", b"", delay_ms=10_000, ttl_ms=60_000))

    assert (await store.reap()).next_at == now + 60_001
    clock.advance("10s")
    assert (await store.reap()).next_at == now + 60_001
    clock.advance("50s")
    assert (await store.reap()).moved == {}
    clock.advance("1ms")
    reaped = await store.reap()
    assert [moved.event for moved in reaped.moved[QUEUE]] == [Event.EXPIRED]
    assert reaped.next_at == reaped.now + IDLE_MS  # to forget the queue
    clock.set(reaped.next_at)
    assert (await store.reap()).next_at is None


async def test_the_reaper_serves_more_queues_than_one_round_takes(store: RedisStore, clock: ManualClock) -> None:
    queues = [Queue("shop", f"queue-{number}") for number in range(300)]
    for queue in queues:
        await store.push(queue, [Push([NewJob("a", b""), NewJob("b", b"")])])
        await store.reserve(queue, [Ask(2, 1000)])
    clock.advance("1s")

    seen: dict[Queue, int] = {}
    calls = 0
    while len(moved := (await store.reap(100)).moved) > 0:
        assert sum(map(len, moved.values())) <= 100
        for queue, some in moved.items():
            seen[queue] = seen.get(queue, 0) + len(some)
        calls += 1

    assert seen == dict.fromkeys(queues, 2)
    assert calls == 6


# --- bounds


async def test_a_request_larger_than_a_chunk(store: RedisStore) -> None:
    jobs = [NewJob(f"{n:05}", b"x", tries=1, attributes={"n": f"{n}"} if n % 1000 == 0 else {}) for n in range(5000)]

    assert len((await push(store, *jobs)).jobs) == 5000

    assert (await store.counts([QUEUE]))[0].ready == 5000
    killed = 0
    while deliveries := (await store.reserve(QUEUE, [Ask(1000, 1000)])).deliveries[0]:
        assert len(deliveries) <= STEP_JOBS
        for delivery in deliveries[:2]:
            await store.kill(delivery.lease)
            killed += 1
        assert None not in await store.ack(QUEUE, [delivery.lease for delivery in deliveries[2:]])
    assert (await store.counts([QUEUE]))[0].dead == killed


async def test_large_bodies_are_handled_a_few_at_a_time(store: RedisStore) -> None:
    names = [f"{n:02}" for n in range(20)]
    for name in names:
        await push(store, NewJob(name, name.encode() * (MIB // 2), tries=1))

    found: list[str] = []
    while len(found) < len(names):
        some = [job for job in await store.get(QUEUE, names[len(found) :]) if job]
        assert sum(len(job.body) for job in some) <= STEP_BYTES
        found += [job.body[:2].decode() for job in some]
    assert found == names
    shown: list[str] = []
    cursor = None
    while True:
        page = await store.list_jobs(QUEUE, State.READY, cursor=cursor)
        assert sum(len(job.body) for job in page.jobs) <= STEP_BYTES
        shown += [job.id for job in page.jobs]
        if not (cursor := page.cursor):
            break
    assert shown == names

    [deliveries] = (await store.reserve(QUEUE, [Ask(20, 60_000)])).deliveries
    assert [delivery.lease.id for delivery in deliveries] == names[:4]
    assert [moved is not None for moved in await store.reschedule(QUEUE, names[4:], delay_ms=10)] == [True] * 16
    kept = (await push(store, *(NewJob(name, b"") for name in names))).jobs
    assert [moved.reason for moved in kept] == ["leased"] * 4 + ["waiting"] * 16
    assert [moved.id for moved in await store.cancel(QUEUE, names) if moved] == names


async def test_a_million_jobs_in_one_instant_are_paged_through_in_order(store: RedisStore, scale: int) -> None:
    count = 3000 * scale
    jobs = [NewJob(f"{n:06}", b"", delay_ms=1000, priority=Priority(1 + n % 3)) for n in range(count)]
    await push(store, *jobs)

    seen: list[str] = []
    cursor = None
    while True:
        page = await store.list_jobs(QUEUE, State.DELAYED, cursor=cursor, limit=499)
        seen += [job.id for job in page.jobs]
        # What goes between two pages must not shift the rest.
        await store.cancel(QUEUE, [page.jobs[-1].id, page.jobs[0].id])
        if not (cursor := page.cursor):
            break

    assert seen == [job.id for job in jobs]


# --- what it costs


async def test_a_delayed_job_takes_little_memory(store: RedisStore, client: redis.Redis) -> None:
    count = 16_000  # just below a power of two, as a million is: Redis's tables are nearly full
    for first in range(0, count, STEP_JOBS):
        ids = [f"01J{n:023}" for n in range(first, first + STEP_JOBS)]
        jobs = [NewJob(name, b"x" * 100, delay_ms=60_000 + n, ttl_ms=86_400_000) for n, name in enumerate(ids)]
        await push(store, *jobs)

    used = sum(client.memory_usage(key, samples=0) for key in client.scan_iter(f"{PREFIX}:*"))

    assert used / count <= 312


@pytest.mark.parametrize("how", ["purge", "reap"])
async def test_a_drained_store_is_as_small_as_it_was(
    store: RedisStore, client: redis.Redis, clock: ManualClock, how: str
) -> None:
    # Given queues that were used once each, as for answers to calls
    queues = [Queue("shop", f"answer-{n}") for n in range(300)]
    for queue in queues:
        jobs = [NewJob(f"{n}", b"", ttl_ms=5000, attributes={"a": "b"}) for n in range(3)]
        await store.push(queue, [Push(jobs)])
        [deliveries] = (await store.reserve(queue, [Ask(3, 1000)])).deliveries
        assert None not in await store.ack(queue, [delivery.lease for delivery in deliveries])
        assert (await store.reserve(queue, [Ask(3, 1000)])).deliveries == [[]]

    # When each is purged, or nobody uses them for a while
    clock.advance(f"{IDLE_MS}ms")
    for queue in queues:
        if how == "purge":
            await store.purge(queue, list(State))
    while (await store.reap()).next_at is not None:
        pass

    # Then nothing is left of them but a floor per partition, also after somebody has looked for them; and the totals
    # of queues that were not purged, for a while
    await store.counts(queues)
    await store.get(queues[0], ["0"])
    assert (await store.reserve(queues[0], [Ask(1, 1000)])).deliveries == [[]]
    left = {key.decode() for key in client.scan_iter("*")}
    totals = {key for key in left if key.endswith(":totals")}
    assert len(totals) == (300 if how == "reap" else 0)
    assert all(30 < cast(int, client.pttl(key)) / DAY_MS <= 31 for key in totals)
    assert left - totals <= {"dt:epoch", *(f"dt:{{{partition:02}}}:floor" for partition in range(keys.PARTITIONS))}


async def test_looking_for_and_purging_an_unknown_queue_makes_none(store: RedisStore, client: redis.Redis) -> None:
    await store.purge(QUEUE, list(State))
    await store.purge(QUEUE, [State.READY])
    await store.counts([QUEUE])
    await store.reserve(QUEUE, [Ask(1, 1000)])

    assert {key.decode() for key in client.scan_iter("*")} == {"dt:epoch", f"{PREFIX[:7]}:floor"}


async def test_calls_and_their_answers_leave_nothing(
    store: RedisStore, client: redis.Redis, clock: ManualClock
) -> None:
    async with Engine(store) as engine:
        before = set(client.scan_iter("*"))
        for number in range(20):
            job = NewJob(f"call-{number}", b"question")
            answers = await request_reply.begin_call(engine, QUEUE, job, IfExists.KEEP)
            [asked] = await engine.reserve([QUEUE])
            await engine.push(answers, [NewJob("answer", b"answer", ttl_ms=60_000)])
            await engine.ack([asked.lease])
            [answer] = await engine.reserve([answers])
            # A native call purges its queue. One of the lmstfy API does not, so that is left to the reaper.
            if number % 2:
                await request_reply.end_call(engine, answer, is_received=True)
            else:
                await engine.ack([answer.lease])
        clock.advance(f"{IDLE_MS + 1000}ms")  # borns rise by one with each call, as the clock stands still
        await engine.store.reap()

        assert list(await engine.store.queues()) == []
        left = {key.decode() for key in set(client.scan_iter("*")) - before}
        # Totals of queues with one answer each go after a day
        totals = {key for key in left if key.endswith(":totals")}
        assert len(totals) == 11
        assert sum(cast(int, client.pttl(key)) <= DAY_MS for key in totals) == 10
        assert all(key.endswith(":floor") for key in left - totals)


async def test_jobs_from_before_there_were_totals_count_when_counting_begins(
    store: RedisStore, client: redis.Redis
) -> None:
    # Given jobs that an older release has left behind
    await store.push(QUEUE, [Push([NewJob(name, b"") for name in ("dead", "leased", "waiting")])])
    [[dead, leased]] = (await store.reserve(QUEUE, [Ask(2, 60_000)])).deliveries
    await store.kill(dead.lease)
    client.delete(f"{PREFIX}:totals")
    client.hset(f"{PREFIX}:meta", "state", cast(bytes, client.hget(f"{PREFIX}:meta", "state"))[: STATE.size])

    # When the first of them moves
    await store.ack(QUEUE, [leased.lease])

    # Then the totals leave room for the others
    [totals] = await store.totals([QUEUE])
    assert totals.running == Totals(accepted=3, delivered=1, dead=1, acked=1)
    assert list(await store.check()) == []


async def test_totals_of_a_day_survive_a_queue_that_was_forgotten_on_it(
    store: RedisStore, client: redis.Redis, clock: ManualClock
) -> None:
    # Given a queue that was empty and idle until it was forgotten
    await store.push(QUEUE, [Push([NewJob("a", b"")])])
    [[delivery]] = (await store.reserve(QUEUE, [Ask(1, 60_000)])).deliveries
    await store.ack(QUEUE, [delivery.lease])
    clock.advance("20m")
    await store.reap()
    assert not client.exists(f"{PREFIX}:meta")

    # When it is used again on the same day, and on the next
    for name in ("b", "c"):
        await store.push(QUEUE, [Push([NewJob(name, b"")])])
        clock.advance("1d")

    # Then all that happened counts, once
    [totals] = await store.totals([QUEUE])
    assert totals.running == Totals(accepted=3, delivered=1, acked=1)
    assert [day.accepted for day in totals.days.values()] == [2, 1]


async def test_totals_that_others_wrote_hold_nothing_up(store: RedisStore, client: redis.Redis) -> None:
    for field, value in (("0", "short"), ("today", b"\0" * 54), ("20000", "")):
        client.hset(f"{PREFIX}:totals", field, value)

    await store.push(QUEUE, [Push([NewJob("a", b"")])])

    [totals] = await store.totals([QUEUE])
    assert totals.running == Totals(accepted=1)


async def test_totals_are_kept_without_a_command_of_their_own(store: RedisStore, client: redis.Redis) -> None:
    def calls(command: str) -> int:
        return cast(dict[str, Any], client.info("commandstats")).get(f"cmdstat_{command}", {}).get("calls", 0)

    await store.push(QUEUE, [Push([NewJob("first", b"")])])
    client.config_resetstat()

    await store.push(QUEUE, [Push([NewJob(f"{number}", b"") for number in range(400)])])

    assert calls("hget") == 0
    assert calls("hgetall") == 0
    assert calls("hset") <= 3, "the jobs (with the member that makes it a table), the state with the day's totals"


# --- one plain job


def dump(client: redis.Redis) -> dict[bytes, bytes | None]:
    return {key: client.dump(key) for key in sorted(cast(list[bytes], client.keys("dt:{*")))}


ONE_BY_ONE = [
    NewJob("first", b"body"),
    NewJob("delayed", b"x" * 300, delay_ms=5000),
    NewJob("earlier", b"", delay_ms=1),
    NewJob("ttl in seconds", b"b", delay_ms=1000, ttl_ms=65_535_000),
    NewJob("ttl in minutes", b"b", ttl_ms=7 * DAY_MS),
    NewJob("ttl to the millisecond", b"b", delay_ms=10, ttl_ms=86_400_001),
    NewJob("tries of its own", b"b", tries=77),
    NewJob("unlimited", b"\0\xff", tries=0, ttl_ms=60_000),
    NewJob("first", b"kept"),
    NewJob("attributes", b"b", attributes={"a": "1"}),
    NewJob("urgent", b"b", priority=Priority.HIGH),
    NewJob("after the urgent one", b"b", delay_ms=7),
    NewJob("at a time", b"b", due_at=1_900_000_000_000),
]


async def test_one_job_is_stored_as_by_the_general_script(redis_url: str, client: redis.Redis) -> None:
    """The short script and the general one leave the same bytes behind and give the same answers."""
    found: list[tuple[list[object], dict[bytes, bytes | None]]] = []
    for is_short in (True, False):
        client.flushall()
        clock = ManualClock()
        answers: list[object] = []
        async with opened(redis_url, clock) as store:
            for job in ONE_BY_ONE:
                store._backoff._until = {} if is_short else {("push_one", QUEUE): float("inf")}
                answers += await store.push(QUEUE, [Push([job], IfExists.KEEP)])
                answers += await store.push(QUEUE, [Push([job], IfExists.ERROR)])
                clock.advance("1ms")
            clock.advance("1d")
            answers += await store.push(QUEUE, [Push([NewJob("next day", b"b")])])
        found.append((answers, dump(client)))
    assert str(found[0][0]) == str(found[1][0])
    assert found[0][1] == found[1][1]
    scripts = client.info("commandstats")
    assert scripts["cmdstat_hsetnx"]["calls"] > 5, "the short script has run"


async def test_one_job_is_leased_and_acked_as_by_the_general_scripts(redis_url: str, client: redis.Redis) -> None:
    """The short scripts and the general ones leave the same bytes behind and give the same answers."""
    short = await leases_and_acks(redis_url, client, spared=())
    short_reads = client.info("commandstats")["cmdstat_hget"]["calls"]
    general = await leases_and_acks(redis_url, client, spared=("reserve_one", "ack_one"))

    assert str(short[0]) == str(general[0])
    assert short[1] == general[1]
    assert short_reads > client.info("commandstats")["cmdstat_hget"]["calls"] + 10, "the short scripts have run"


async def leases_and_acks(
    url: str, client: redis.Redis, *, spared: Sequence[str]
) -> tuple[list[object], dict[bytes, bytes | None]]:
    """All answers, and what is in Redis afterwards."""
    client.flushall()
    client.config_resetstat()
    clock = ManualClock()
    seen: list[object] = []
    async with opened(url, clock) as store:

        async def take(ttr_ms: int = 60_000) -> Lease | None:
            store._backoff._until = {(name, QUEUE): float("inf") for name in spared}
            reserved = await store.reserve(QUEUE, [Ask(1, ttr_ms, (0, 1, 0))])
            seen.append(reserved)
            return reserved.deliveries[0][0].lease if reserved.deliveries[0] else None

        async def ack(*leases: Lease | None) -> None:
            for lease in leases:
                store._backoff._until = {(name, QUEUE): float("inf") for name in spared}
                seen.extend(await store.ack(QUEUE, [cast(Lease, lease)]))

        await take()
        plain = [NewJob("a", b"1"), NewJob("b", b"2", ttl_ms=86_400_000), NewJob("c", b"\0" * 300, tries=77)]
        for job in [*plain, NewJob("later", b"", delay_ms=90_000)]:
            await store.push(QUEUE, [Push([job])])
            clock.advance("1ms")
        first, second, third = await take(), await take(30_000), await take(90_000)
        await store.release(cast(Lease, second), 0, "")
        again = await take(1000)
        await take()
        await ack(first, second, again, first, third)
        await store.push(QUEUE, [Push([NewJob("expires", b"", delay_ms=5, ttl_ms=9)])])
        clock.advance("20ms")
        await take()
        clock.advance("90s")
        await ack(await take())
        await store.push(QUEUE, [Push([NewJob("next day", b"b")])])
        clock.advance("1d")
        await ack(await take())
        await store.push(QUEUE, [Push([NewJob("failed", b"b")])])
        await store.release(cast(Lease, await take()), 0, "an error")
        await ack(await take())
        await store.push(QUEUE, [Push([NewJob("urgent", b"b", priority=Priority.HIGH), NewJob("normal", b"b")])])
        await ack(await take(), await take())
    return seen, dump(client)


async def test_the_short_script_wakes_consumers_for_an_earlier_job(store: RedisStore, client: redis.Redis) -> None:
    await push(store, NewJob("later", b"", delay_ms=60_000))
    listener = client.pubsub(ignore_subscribe_messages=True)
    listener.subscribe(keys.WAKE)
    listener.get_message(timeout=10)
    store._backoff.clear()
    for delay_ms in (90_000, 30_000, 45_000, 10_000):
        await push(store, NewJob(f"in {delay_ms}", b"", delay_ms=delay_ms))
    heard = [listener.get_message(timeout=10), listener.get_message(timeout=10)]
    now = store._now()
    assert [one["data"].decode() for one in heard if one] == [f"{QUEUE} {now + 30_000}", f"{QUEUE} {now + 10_000}"]
    assert listener.get_message(timeout=0.05) is None
    assert client.info("commandstats")["cmdstat_hsetnx"]["calls"] >= 4
    listener.close()


async def test_requests_of_one_job_each_go_as_one(store: RedisStore, client: redis.Redis) -> None:
    """A request that is refused takes no other with it."""
    await push(store, NewJob("taken", b""))
    jobs = [NewJob("a", b"1", delay_ms=5), NewJob("taken", b"2"), NewJob("late", b"", delay_ms=2000, ttl_ms=1000)]
    refused = await store.push(QUEUE, [Push([job], IfExists.ERROR) for job in jobs])
    assert [type(answer).__name__ for answer in refused] == ["Pushed", "JobExists", "ExpiresBeforeDue"]
    fine = await store.push(QUEUE, [Push([NewJob("b", b"")]), Push([NewJob("a", b"")]), Push([NewJob("b", b"x")])])
    assert [[moved.event for moved in answer.jobs] for answer in fine if isinstance(answer, Pushed)] == [
        [Event.ACCEPTED],
        [Event.KEPT],
        [Event.KEPT],
    ]
    [job] = [job for job in await store.get(QUEUE, ["b"]) if job]
    assert job.body == b""


async def test_messages_of_others_on_our_channels_end_no_subscription(store: RedisStore, client: redis.Redis) -> None:
    """A Redis may be shared, and its users may publish on any channel."""
    wakes, versions = store.wakeups(), store.registry.watch()
    assert await anext(wakes) == Wake()
    assert await anext(versions) == 0
    for message in (b"", b"shop/mail", b"shop/mail soon", b"\xff 1", b"shop/mail " + b"9" * 5000, b"1.5"):
        client.publish(keys.WAKE, message)
        client.publish(keys.REGISTRY_CHANGED, message)
    await push(store, NewJob("a", b""))
    written = await store.registry.put("topic", "a", b"")

    assert (await anext(wakes)).queue == QUEUE
    assert await anext(versions) == written.version


# --- the registry


async def test_counters_of_others_are_not_transferred(store: RedisStore, client: redis.Redis) -> None:
    """The lines that tasks log are in names of counters, of which there may be thousands."""
    life_ms = 60_000
    for number in range(2_000):
        await store.registry.increment(f"others/{number}/{'x' * 500}", 1, life_ms=life_ms)
    await store.registry.increment("mine[1]*/a", 3)
    await store.registry.increment("mine[1]*/b", 5, life_ms=life_ms)

    before = client.info("stats")["total_net_output_bytes"]
    found = await store.registry.counters("mine[1]*/")
    sent = client.info("stats")["total_net_output_bytes"] - before

    assert found == {"mine[1]*/a": 3, "mine[1]*/b": 5}
    assert sent < 100_000
    assert len(await store.registry.counters()) == 2_002
