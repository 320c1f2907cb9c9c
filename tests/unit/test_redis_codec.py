"""The packed forms of the Redis store: what Lua writes is what Python reads."""

import asyncio
from collections.abc import Iterator

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duetime.model.clock import MAX_INSTANT, ManualClock
from duetime.model.job import DEFAULT_TRIES, MAX_TRIES, Event, Moved, NewJob, Priority
from duetime.model.names import Queue
from duetime.stores.base import Ask, Mark, Push, Pushed
from duetime.stores.redis import codec, keys
from duetime.stores.redis.store import RedisStore
from tests.plugins.redis_server import RedisServer

pytestmark = pytest.mark.store_kind("redis")

QUEUE = Queue("shop", "mail")
JOBS = f"{keys.prefix(QUEUE)}:jobs"
DAY_MS = 86_400_000

instants = st.integers(1, MAX_INSTANT - 200 * 366 * DAY_MS)
ttls = st.one_of(
    st.just(0),
    st.integers(1, 70_000).map(lambda seconds: seconds * 1000),
    st.integers(1, 70_000).map(lambda minutes: minutes * 60_000),
    st.integers(1, 100 * 366 * DAY_MS),
)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def store(redis_server: RedisServer, runner: asyncio.Runner, clock: ManualClock) -> Iterator[RedisStore]:
    store = runner.run(RedisStore.open(redis_server.url, clock=clock))
    yield store
    runner.run(store.close())


@pytest.fixture(scope="module")
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


@given(
    now=instants,
    ttl_ms=ttls,
    tries=st.sampled_from([0, 1, 2, 3, 5, 10, 25, 4, MAX_TRIES]) | st.integers(0, MAX_TRIES),
    priority=st.sampled_from(Priority),
    born=st.just(0) | instants,
    body=st.binary(max_size=40),
)
@settings(suppress_health_check=list(HealthCheck))
def test_headers(  # noqa: PLR0917
    store: RedisStore,
    runner: asyncio.Runner,
    clock: ManualClock,
    client: redis.Redis,
    now: int,
    ttl_ms: int,
    tries: int,
    priority: Priority,
    born: int,
    body: bytes,
) -> None:
    client.flushall()
    clock.set(now)
    job = NewJob("a", body, ttl_ms=ttl_ms, tries=tries, priority=priority, born=born)
    [pushed] = runner.run(store.push(QUEUE, [Push([job])]))
    assert isinstance(pushed, Pushed)

    raw = client.hget(JOBS, "a")

    assert isinstance(raw, bytes)
    expires_at = now + ttl_ms if ttl_ms else 0
    assert codec.read_header(raw) == codec.Header(born or now, expires_at, tries, priority)
    assert raw[codec.HEADER_BYTES[raw[0]] :] == body
    # And Lua reads it as Python does
    [[delivery]] = runner.run(store.reserve(QUEUE, [Ask(1, 1000)])).deliveries
    assert (delivery.lease.born, delivery.expires_at, delivery.tries) == (born or now, expires_at, tries)
    assert (delivery.priority, delivery.body) == (priority, body)


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({}, 6),
        ({"tries": 1}, 6),
        ({"tries": 0}, 6),
        ({"tries": 3}, 6),
        ({"ttl_ms": 30_000}, 8),
        ({"ttl_ms": DAY_MS}, 8),
        ({"ttl_ms": 45 * DAY_MS}, 8),
        ({"tries": 7}, 8),
        ({"ttl_ms": 1}, 12),
        ({"born": 1}, 9),
    ],
)
def test_a_common_job_has_a_short_header(
    store: RedisStore,
    runner: asyncio.Runner,
    client: redis.Redis,
    clock: ManualClock,
    options: dict[str, int],
    size: int,
) -> None:
    client.flushall()
    clock.set(ManualClock().now_ms())
    runner.run(store.push(QUEUE, [Push([NewJob("a", b"", **options)])]))

    assert client.hstrlen(JOBS, "a") == size


@given(
    error=st.text(max_size=40),
    attributes=st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5), max_size=3),
)
@settings(suppress_health_check=list(HealthCheck))
def test_infos(
    store: RedisStore, runner: asyncio.Runner, client: redis.Redis, error: str, attributes: dict[str, str]
) -> None:
    client.flushall()
    runner.run(store.push(QUEUE, [Push([NewJob("a", b"", attributes=attributes, tries=0)])]))
    for _ in range(2):
        [[delivery]] = runner.run(store.reserve(QUEUE, [Ask(1, 1000)])).deliveries
        runner.run(store.release(delivery.lease, 0, error))

    [job] = runner.run(store.get(QUEUE, ["a"]))

    assert job is not None
    assert (job.error, job.attributes) == (error, attributes)


@given(ids=st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=5, unique=True))
@settings(suppress_health_check=list(HealthCheck))
def test_marks(store: RedisStore, runner: asyncio.Runner, client: redis.Redis, ids: list[str]) -> None:
    client.flushall()
    request = Push([NewJob(job_id, b"", delay_ms=5) for job_id in ids], mark=Mark("m", b"digest", 10_000))
    [first] = runner.run(store.push(QUEUE, [request]))
    others = Push([NewJob(f"{job_id}!", b"") for job_id in ids], mark=request.mark)

    [second] = runner.run(store.push(QUEUE, [others]))

    assert second == Pushed(first.jobs, first.now, repeated=True)


def test_codes_agree_with_lua() -> None:
    assert codec.EVENTS[0] is Event.ACCEPTED
    packed = codec.MOVED.pack(8, 2, 3, 4, 5, 6)
    assert codec.read_moved("a", packed) == Moved(Event.DEAD, "a", 3, 4, 5, "killed", 6)
    assert DEFAULT_TRIES == codec.TRIES_BY_CODE[0]
