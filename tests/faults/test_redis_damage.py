"""Entries under our keys that are no jobs: they are set aside, counted and logged, and everything else is served."""

import re
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import redis

from duetime.model.clock import ManualClock
from duetime.model.errors import LeaseLost, StoreDamaged
from duetime.model.job import Counts, Event, IfExists, Moved, NewJob, State
from duetime.stores.base import Ask, Push, Pushed
from duetime.stores.redis import keys
from duetime.stores.redis.store import RedisStore
from tests.faults.redis_vocabulary import PREFIX, QUEUE, lease_one, push_one

pytestmark = pytest.mark.store_kind("redis")

Damage = Callable[[redis.Redis, str], object]

VALUES: dict[str, Damage] = {
    "no body": lambda client, name: client.hdel(f"{PREFIX}:jobs", name),
    "an empty value": lambda client, name: client.hset(f"{PREFIX}:jobs", name, ""),
    "a cut header": lambda client, name: client.hset(f"{PREFIX}:jobs", name, b"\x02\x00\x00"),
    "no header": lambda client, name: client.hset(f"{PREFIX}:jobs", name, b"\x00 it is none of ours"),
    "a cut record": lambda client, name: client.hset(f"{PREFIX}:tries", name, b"\x00\x00"),
    "an odd record": lambda client, name: client.hset(f"{PREFIX}:tries", name, b"\x09" * 36),
}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(redis_url: str, clock: ManualClock) -> AsyncIterator[RedisStore]:
    opened = await RedisStore.open(redis_url, clock=clock)
    yield opened
    await opened.close()


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as opened:
        yield opened


async def counts(store: RedisStore) -> Counts:
    [counted] = await store.counts([QUEUE])
    return counted


def set_aside(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    told = [record for record in caplog.records if record.message == "damaged_job_set_aside"]
    return [(record.queue, record.job) for record in told]  # type: ignore[attr-defined]


@pytest.mark.parametrize("damage", VALUES)
async def test_a_reserve_sets_it_aside_and_serves_the_rest(
    store: RedisStore, client: redis.Redis, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a damaged job in front of two good ones, all three with a ttl
    for name in ("a", "b", "c"):
        await push_one(store, name, ttl_ms=60_000)
    VALUES[damage](client, "a")

    # Then looking at it finds nothing, and the rest
    [nothing, found] = await store.get(QUEUE, ["a", "b"])
    assert nothing is None
    assert found is not None
    page = await store.list_jobs(QUEUE, State.READY)
    assert [job.id for job in page.jobs] == ["b", "c"]
    assert any("'a'" in problem for problem in await store.check())

    # And a reserve gives the others, and says what it met
    [deliveries] = (await store.reserve(QUEUE, [Ask(10, 1000)])).deliveries
    assert [delivery.lease.id for delivery in deliveries] == ["b", "c"]
    assert set_aside(caplog) == [("shop/mail", "a")]
    counted = await counts(store)
    assert (counted.ready, counted.leased, counted.damaged) == (0, 2, 1)
    assert list(await store.check()) == [f"shop/mail: 1 damaged entries were set aside in {PREFIX}:damaged"]

    # And its id can be used again
    assert isinstance(await push_one(store, "a"), Pushed)
    assert (await lease_one(store)).id == "a"


async def test_an_entry_that_stands_in_no_place_is_not_found(store: RedisStore, client: redis.Redis) -> None:
    await push_one(store, "a")
    client.zrem(f"{PREFIX}:wait:2", "a")

    assert list(await store.get(QUEUE, ["a"])) == [None]
    assert list((await store.list_jobs(QUEUE, State.READY)).jobs) == []


@pytest.mark.parametrize("damage", VALUES)
@pytest.mark.parametrize("if_exists", IfExists)
async def test_a_push_takes_the_place_of_a_damaged_entry(
    store: RedisStore, client: redis.Redis, damage: str, if_exists: IfExists
) -> None:
    await push_one(store, "a", ttl_ms=60_000)
    VALUES[damage](client, "a")

    [pushed] = await store.push(QUEUE, [Push([NewJob("a", b"new")], if_exists)])

    assert isinstance(pushed, Pushed)
    assert pushed.jobs[0].event is Event.ACCEPTED
    [[delivery]] = (await store.reserve(QUEUE, [Ask(10, 1000)])).deliveries
    assert delivery.body == b"new"


@pytest.mark.parametrize("damage", ["no record", "a cut record"])
async def test_a_lease_without_a_record(
    store: RedisStore, client: redis.Redis, clock: ManualClock, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        await push_one(store, name)
    [[lease, other]] = [
        [delivery.lease for delivery in given] for given in (await store.reserve(QUEUE, [Ask(2, 1000)])).deliveries
    ]
    if damage == "no record":
        client.hdel(f"{PREFIX}:tries", "a")
    else:
        client.hset(f"{PREFIX}:tries", "a", client.hget(f"{PREFIX}:tries", "a")[:20])

    # Nobody holds it any more
    with pytest.raises(LeaseLost):
        await store.release(lease, 0)
    clock.advance("1s")

    # And the reaper takes back the other one
    assert (await store.reap()).moved == {
        QUEUE: [Moved(Event.LEASE_EXPIRED, "b", other.born, 1, due_at=clock.now_ms())]
    }
    assert set_aside(caplog) == [("shop/mail", "a")]
    assert (await counts(store)).damaged == 1
    assert (await store.reap()).moved == {}


async def test_a_dead_letter_without_a_record(
    store: RedisStore, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        await push_one(store, name)
        await store.kill(await lease_one(store))
    client.hdel(f"{PREFIX}:tries", "a")

    moved = [*await store.respawn(QUEUE, limit=1), *await store.respawn(QUEUE, limit=1)]

    assert [one.id for one in moved] == ["b"]
    assert set_aside(caplog) == [("shop/mail", "a")]


@pytest.mark.parametrize("note", [b"", b"\x00", b"\xff\xffshort", b"\x00\x00not msgpack", b"\x00\x01\xff"])
async def test_attributes_that_cannot_be_read_are_left_out(store: RedisStore, client: redis.Redis, note: bytes) -> None:
    await push_one(store, "a", attributes={"k": "v"})
    client.hset(f"{PREFIX}:info", "a", note)

    [found] = await store.get(QUEUE, ["a"])
    assert found is not None
    [[delivery]] = (await store.reserve(QUEUE, [Ask(1, 1000)])).deliveries

    assert dict(found.attributes) == dict(delivery.attributes) == {}
    assert (delivery.body, bool(delivery.error)) == (b"body", note != b"")


async def test_a_queue_that_cannot_be_read_is_logged(
    store: RedisStore, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    await push_one(store, "a")
    client.hset(f"{PREFIX}:meta", "state", "foreign")

    with pytest.raises(StoreDamaged):
        await store.reserve(QUEUE, [Ask(1, 1000)])

    assert [record.message for record in caplog.records] == ["store_damaged"]


async def test_a_purge_of_the_queue_removes_what_was_set_aside(store: RedisStore, client: redis.Redis) -> None:
    await push_one(store, "a")
    client.hdel(f"{PREFIX}:jobs", "a")
    await store.reserve(QUEUE, [Ask(1, 1000)])
    assert (await counts(store)).damaged == 1

    await store.purge(QUEUE, list(State))

    assert await counts(store) == Counts(now=(await counts(store)).now)


@pytest.mark.parametrize("name", [b"\xff/x", b"x", b""])
async def test_a_foreign_name_among_the_queues_is_named(store: RedisStore, client: redis.Redis, name: bytes) -> None:
    client.zadd("dt:{07}:queues", {name: 1})

    with pytest.raises(StoreDamaged, match=re.escape(repr(name))):
        await store.queues()


@pytest.mark.parametrize("name", [b"\xff/x", b"x", b""])
async def test_a_foreign_name_among_the_queues_does_not_stop_the_reaper(
    store: RedisStore, client: redis.Redis, clock: ManualClock, name: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a lease that has ended, and a name that is no queue's before its queue
    await push_one(store, "a")
    await store.reserve(QUEUE, [Ask(1, 1000)])
    clock.advance("1s")
    agenda = keys.companion(keys.prefix(QUEUE))
    client.zadd(agenda, {name: 1})

    # Then it ends in the next round, and no round is repeated immediately
    await store.reap()
    reaped = await store.reap()
    assert [moved.event for moved in reaped.moved[QUEUE]] == [Event.LEASE_EXPIRED]
    again = await store.reap()
    assert again.moved == {}
    assert again.next_at is None or again.next_at > again.now

    # And the name stays; the log names it once
    assert client.zscore(agenda, name) is not None
    assert [record.message for record in caplog.records] == ["reaper_skips_queue"]


async def test_a_record_that_cannot_be_read_is_damage(store: RedisStore, client: redis.Redis) -> None:
    await store.registry.put("kind", "key", b"value")
    client.hset("dt:{registry}:records:kind", "key", b"short")

    for read in (store.registry.get("kind", "key"), store.registry.list_records("kind"), store.registry.changes()):
        with pytest.raises(StoreDamaged, match="record 'key' of the kind 'kind'"):
            await read


@pytest.mark.parametrize("key", ["version", "forgotten"])
async def test_a_version_that_cannot_be_read_is_damage(store: RedisStore, client: redis.Redis, key: str) -> None:
    await store.registry.put("kind", "key", b"value")
    client.set(f"dt:{{registry}}:{key}", "x")

    with pytest.raises(StoreDamaged):
        await store.registry.changes()
