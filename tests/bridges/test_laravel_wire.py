"""The wire rules of Laravel's Redis driver that need no PHP: keys, bytes, scores and tokens."""

import asyncio
import json
import math
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

import duetime
from duetime.bridges import laravel as laravel_module
from duetime.bridges.laravel import MIGRATED, BulkJob, LaravelRedis
from duetime.bridges.laravel_worker import LaravelCache, LaravelWorker
from duetime.bridges.relay import BATCH, Relay
from duetime.model.errors import InvalidRequest, LeaseLost, QueueFull
from duetime.model.names import Queue
from duetime.stores.base import RulesChange
from tests.plugins.redis_topologies import RedisCluster

FIELDS = [
    "uuid", "displayName", "job", "maxTries", "maxExceptions", "failOnTimeout", "backoff", "timeout", "data",
    "createdAt", "id", "attempts", "delay",
]  # fmt: skip


@pytest.fixture
def theirs(redis_url: str) -> redis.Redis:
    return redis.Redis.from_url(redis_url)


@pytest.fixture
def laravel(redis_url: str) -> Iterator[LaravelRedis]:
    queues = LaravelRedis(redis_url, prefix="shop_")
    yield queues
    queues.close()


def payload(n: int, **fields: object) -> bytes:
    return json.dumps({"job": "A", "data": {"n": n}, "attempts": 0} | fields).encode()


def test_keys_have_the_prefix(laravel: LaravelRedis, theirs: redis.Redis) -> None:
    laravel.push("A@b")
    laravel.later(60, "A@b")
    assert sorted(theirs.keys()) == [
        b"shop_queues:default",
        b"shop_queues:default:delayed",
        b"shop_queues:default:notify",
    ]


@pytest.mark.parametrize(("name", "key"), [("mail", "queues:{mail}"), ("{eu}:mail", "queues:{eu}:mail")])
def test_a_name_without_a_tag_gets_braces_on_a_cluster(redis_cluster: RedisCluster, name: str, key: str) -> None:
    port = redis_cluster.primaries[0].port
    laravel = LaravelRedis(f"redis+cluster://127.0.0.1:{port}")
    laravel.push("A@b", queue=name)
    laravel.later(0.001, "A@b", queue=name)
    assert laravel._redis.call("LLEN", key) == 1
    assert laravel._redis.call("ZCARD", f"{key}:delayed") == 1
    for _ in range(2):
        job = laravel.pop(name, wait=5)
        assert job
        job.delete()
    assert laravel.clear(name) == 0
    laravel.close()


def test_a_payload_has_the_fields_of_laravel(laravel: LaravelRedis, theirs: redis.Redis) -> None:
    """Equal jobs differ in their text, because equal texts are one member of a zset."""
    text = {"to": "Ann \x01 \N{SNOWMAN}", "list": [], "big": 12345678901234567890}
    for _ in range(2):
        laravel.later(1.5, "Mail@send", text, tries=3, backoff=[1, 5], timeout=9, max_exceptions=2)
    texts = theirs.zrange("shop_queues:default:delayed", 0, -1)
    assert len(texts) == 2
    made = json.loads(texts[0])
    assert list(made) == FIELDS
    assert (made["displayName"], made["job"], made["attempts"], made["delay"]) == ("Mail", "Mail@send", 0, 2)
    assert (made["maxTries"], made["backoff"], made["timeout"], made["maxExceptions"]) == (3, "1,5", 9, 2)
    assert made["data"] == text
    assert "\N{SNOWMAN}".encode() in texts[0]


def test_delays_are_rounded_up_to_seconds(laravel: LaravelRedis, theirs: redis.Redis) -> None:
    began = time.time()
    laravel.later(0.2, "A@b")
    laravel.later(datetime.now(UTC) + timedelta(seconds=5.2), "A@b")
    laravel.later(-3, "A@b")
    laravel.later(datetime.now(UTC) - timedelta(hours=1), "A@b")
    scores = sorted(score for _, score in theirs.zrange("shop_queues:default:delayed", 0, -1, withscores=True))
    assert all(score == math.floor(score) for score in scores)
    assert scores[3] >= began + 5.2
    assert scores[2] >= began + 0.2
    assert scores[0] <= scores[1] <= math.ceil(time.time())


def test_each_job_of_a_bulk_has_its_own_delay(laravel: LaravelRedis) -> None:
    ids = laravel.bulk([BulkJob("A@b", {"n": 1}), BulkJob("A@b", {"n": 2}, delay=60)], tries=2)
    assert len(set(ids)) == 2
    assert (laravel.pending_size(), laravel.delayed_size()) == (1, 1)


def test_a_reserved_payload_differs_in_the_digits_of_attempts_alone(laravel: LaravelRedis, theirs: redis.Redis) -> None:
    text = b'{"job":"A","x":{"attempts":4},"data":{"f":1700000000.123456,"l":[]}, "attempts" : 9 ,"unknown":"\\/"}'
    laravel.push_raw(text)
    before = time.time()
    job = laravel.pop()
    assert job
    [(reserved, until)] = theirs.zrange("shop_queues:default:reserved", 0, -1, withscores=True)
    assert reserved == text.replace(b": 9 ", b": 10 ")
    assert before + 90 <= until <= math.ceil(time.time()) + 90
    assert theirs.llen("shop_queues:default:notify") == 0
    job.extend()
    job.release(1)
    assert theirs.zrange("shop_queues:default:delayed", 0, -1) == [reserved]
    with pytest.raises(LeaseLost):
        job.release()
    assert (laravel.reserved_size(), laravel.delayed_size()) == (0, 1)


@pytest.mark.parametrize("text", [b"no json", b"[]", payload(1, attempts=None), b'{"job":"A"}'])
def test_what_laravel_would_lose_is_set_aside_and_reported(
    laravel: LaravelRedis, theirs: redis.Redis, caplog: pytest.LogCaptureFixture, text: bytes
) -> None:
    theirs.rpush("shop_queues:default", text)
    assert laravel.pop() is None
    assert theirs.lrange("shop_queues:default:poison", 0, -1) == [text]
    assert laravel.sizes("default").quarantined == 1
    assert "laravel_payload_set_aside" in caplog.text
    with pytest.raises(InvalidRequest):
        laravel.push_raw(text)


def test_order_is_kept_and_due_jobs_are_moved_in_bounded_steps(laravel: LaravelRedis, theirs: redis.Redis) -> None:
    due = int(time.time()) - 10_000
    theirs.zadd("shop_queues:default:delayed", {payload(n): due + n for n in range(3 * MIGRATED)})
    first = laravel.pop()
    assert first
    assert theirs.llen("shop_queues:default") == MIGRATED - 1
    assert theirs.llen("shop_queues:default:notify") == MIGRATED - 1
    order = [first.data["n"]]
    while job := laravel.pop():
        order.append(job.data["n"])
    assert order == list(range(3 * MIGRATED))


def test_a_job_without_a_token_is_found_and_a_token_without_a_job_is_harmless(
    laravel: LaravelRedis, theirs: redis.Redis
) -> None:
    theirs.rpush("shop_queues:default:notify", "1", "1", "1")
    timer = threading.Timer(0.2, lambda: theirs.rpush("shop_queues:default", payload(1)))
    timer.start()
    job = laravel.pop(wait=10)
    timer.join()
    assert job


def test_a_push_to_a_lower_queue_wakes_a_waiting_pop(laravel: LaravelRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laravel_module, "SLICE_S", 120.0)  # no check in between finds it
    began, timer = time.monotonic(), threading.Timer(0.2, lambda: laravel.push("A@b", queue="low"))
    timer.start()
    found = laravel.reserve(["high", "low"], 1, 120)
    timer.join()
    assert [job.queue for job in found] == ["low"]
    assert time.monotonic() - began < 60


def test_clear_answers_the_old_count(laravel: LaravelRedis, theirs: redis.Redis) -> None:
    for n in range(3):
        laravel.push("A@b", n)
    laravel.later(60, "A@b")
    assert laravel.pop()
    assert laravel.clear() == 4
    assert theirs.keys() == []


# --- the application's cache

RESTART, PAUSED = "shop_cache_illuminate:queue:restart", "shop_cache_illuminate:queue:paused:redis:default"


@pytest.fixture
def cache(redis_url: str) -> LaravelCache:
    return LaravelCache(redis_url, prefix="shop_cache_")


def test_a_worker_ends_after_queue_restart(laravel: LaravelRedis, theirs: redis.Redis, cache: LaravelCache) -> None:
    theirs.set(RESTART, 1_700_000_000)
    laravel.push("A", 1)
    ran = threading.Event()
    worker = LaravelWorker(laravel, {"A": lambda _: ran.set()}, cache=cache)
    thread = threading.Thread(target=lambda: asyncio.run(worker.run_async()))
    thread.start()
    assert ran.wait(30)
    assert thread.is_alive()
    theirs.set(RESTART, 1_700_000_001)
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize("flag", [PAUSED, "shop_cache_illuminate:queues:paused"])
def test_a_paused_queue_is_left_alone(
    laravel: LaravelRedis, theirs: redis.Redis, cache: LaravelCache, flag: str
) -> None:
    theirs.set(flag, "b:1;")
    laravel.push("A", 1)
    ran = threading.Event()
    worker = LaravelWorker(laravel, {"A": lambda _: ran.set()}, cache=cache)
    thread = threading.Thread(target=lambda: asyncio.run(worker.run_async()))
    thread.start()
    assert not ran.wait(0.3)
    assert laravel.pending_size() == 1
    theirs.delete(flag)
    assert ran.wait(30)
    theirs.set(RESTART, 1)
    thread.join(30)


def test_a_job_fails_after_its_exceptions(laravel: LaravelRedis, theirs: redis.Redis, cache: LaravelCache) -> None:
    attempts: list[int] = []

    def fail(job: Any) -> None:
        attempts.append(job.attempts)
        raise ValueError

    laravel.push("A", 1, tries=9, max_exceptions=2)
    worker = LaravelWorker(laravel, {"A": fail}, cache=cache)
    thread = threading.Thread(target=lambda: asyncio.run(worker.run_async()))
    thread.start()
    deadline = time.monotonic() + 30
    while not theirs.llen("shop_queues:default:failed"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    theirs.set(RESTART, 1)
    thread.join(30)
    assert attempts == [1, 2]
    assert theirs.keys("shop_cache_job-exceptions:*") == []


# --- relay


def test_a_batch_is_bounded_by_bytes(laravel: LaravelRedis) -> None:
    for n in range(5):
        laravel.push_raw(payload(n, text="x" * 400_000))
    batch = laravel.hold("default", BATCH)
    assert batch
    assert len(batch.jobs) == 3


def test_jobs_behind_refused_ones_are_relayed(
    laravel: LaravelRedis, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than a batch holds, each larger than a batch should be, and some with the same text."""
    monkeypatch.setattr("duetime.bridges.relay.HELD_BYTES", 1000)
    for n in range(8):
        laravel.push_raw(payload(n // 2, text="x" * 2000))
    for n in range(3):
        laravel.push("A@b", n)
    with duetime.connect(f"sqlite:{tmp_path / 'ours.db'}") as client:
        client.queue("moved").configure(RulesChange(max_body=1500))
        assert Relay(laravel, client).to_duetime("default", Queue("default", "moved"), follow=False) == 3
    assert laravel.size() == 4  # equal texts are one member of the delayed zset


def test_jobs_whose_reservation_has_ended_are_relayed(
    laravel: LaravelRedis, theirs: redis.Redis, tmp_path: Any
) -> None:
    """Nobody else moves them back once the last worker is gone."""
    for n in range(2):
        laravel.push("A@b", n, tries=3)
        assert laravel.pop()
    first = theirs.zrange("shop_queues:default:reserved", 0, 0)[0]
    theirs.zadd("shop_queues:default:reserved", {first: int(time.time()) - 1})
    with duetime.connect(f"sqlite:{tmp_path / 'ours.db'}") as client:
        assert Relay(laravel, client).to_duetime("default", Queue("default", "moved"), follow=False) == 1
        [job] = client.queue("moved").list_jobs("ready").jobs
    assert (job.body, job.tries) == (first, 2)
    assert laravel.sizes("default").reserved == 1


@pytest.mark.parametrize(
    ("fields", "tries"),
    [({}, 1), ({"maxTries": 3}, 3), ({"maxTries": 0}, 0), ({"maxTries": 10**6}, 65_535), ({"maxTries": -1}, 1)]
    + [({name: time.time() + 600, "maxTries": 1}, 0) for name in ("retryUntil", "timeoutAt")],
)
def test_a_relayed_job_keeps_its_tries(laravel: LaravelRedis, fields: dict[str, Any], tries: int) -> None:
    laravel.push_raw(payload(1, **fields))
    batch = laravel.hold("default", 1)
    assert batch
    assert batch.jobs[0].tries == tries


def test_a_full_queue_is_waited_for_and_the_rest_stays_there(laravel: LaravelRedis, tmp_path: Any) -> None:
    count, most, waits = 40, 5, list[str]()
    for n in range(count):
        laravel.push("A@b", n)
    ours, url = Queue("default", "moved"), f"sqlite:{tmp_path / 'ours.db'}"
    with duetime.connect(url) as client, duetime.connect(url) as other:
        queue = client.queue("moved")
        queue.configure(RulesChange(max_jobs=most))
        with pytest.raises(QueueFull):
            Relay(laravel, client).to_duetime("default", ours, follow=False)
        sizes = laravel.sizes("default")
        assert (sizes.ready + sizes.delayed, sizes.held) == (count, 0)
        done = set[bytes]()
        relay = Relay(laravel, other, wait=waits.append, stop=lambda: len(done) == count)
        thread = threading.Thread(target=relay.to_duetime, args=["default", ours], kwargs={"follow": True})
        thread.start()
        while len(done) < count:
            with queue.take() as job:
                assert job.body not in done
                done.add(job.body)
            assert queue.counts().total <= most
        thread.join(60)
    assert laravel.sizes("default").total == 0
    assert waits
    assert "queue is full" in waits[0]


def test_two_relays_of_one_queue_double_and_lose_nothing(laravel: LaravelRedis, tmp_path: Any, redis_url: str) -> None:
    count, url = 3000, f"sqlite:{tmp_path / 'ours.db'}"
    laravel.bulk([BulkJob("A@b", n) for n in range(count)])
    moved: list[int] = []

    def relay() -> None:
        theirs = LaravelRedis(redis_url, prefix="shop_")
        with duetime.connect(url) as client:
            moved.append(Relay(theirs, client).to_duetime("default", Queue("default", "moved"), follow=False))
        theirs.close()

    with duetime.connect(url) as client:
        threads = [threading.Thread(target=relay) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        totals = client.queue("moved").totals().running
    assert totals.accepted == count
    assert laravel.sizes("default").total == 0


def test_a_batch_that_was_left_behind_is_counted_as_held(laravel: LaravelRedis) -> None:
    for n in range(3):
        laravel.push("A@b", n)
    assert laravel.hold("default", 2)
    sizes = laravel.sizes("default")
    assert (sizes.ready, sizes.held, sizes.total) == (1, 2, 3)


def test_a_relay_goes_on_after_its_source_was_restarted(start_redis: Any, tmp_path: Any) -> None:
    server = start_redis(appendonly="yes", appendfsync="always")
    laravel, waits, url = LaravelRedis(server.url), threading.Event(), f"sqlite:{tmp_path / 'ours.db'}"
    laravel.bulk([BulkJob("A@b", n) for n in range(600)])
    with duetime.connect(url) as client, duetime.connect(url) as other:
        queue = client.queue("moved")
        relay = Relay(laravel, other, wait=lambda _: waits.set(), stop=lambda: queue.totals().running.accepted >= 700)
        thread = threading.Thread(
            target=relay.to_duetime, args=["default", Queue("default", "moved")], kwargs={"follow": True}
        )
        thread.start()
        server.kill()
        assert waits.wait(60)
        server.start()
        again = LaravelRedis(server.url)
        again.bulk([BulkJob("A@b", n) for n in range(100)])
        thread.join(60)
        assert queue.totals().running.accepted == queue.size() == 700
        assert again.sizes("default").total == 0
        again.close()
    laravel.close()
