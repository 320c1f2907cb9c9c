"""Redisson's queues from Python, next to a real Redisson on the same keys."""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import duetime
from duetime.bridges.redisson import TRANSFERRED, Redisson, RedissonDelayedQueue, pack, unpack
from duetime.bridges.relay import Relay
from duetime.model.errors import InvalidRequest, StoreUnavailable
from duetime.model.names import Queue
from tests.bridges.laravel_peer import python_worker
from tests.plugins.ci import missing_service
from tests.plugins.processes import guard, release
from tests.plugins.redis_server import RedisServer

SOURCE = Path(__file__).with_name("RedissonPeer.java")
JARS = Path(sys.prefix) / "jars" / "redisson"
OLD = b"\x00" * 8 + (5).to_bytes(8, "little") + b"hello"


@pytest.fixture
def redisson(redis_url: str) -> Iterator[Redisson]:
    with Redisson(redis_url) as client:
        yield client


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of the Java peer, compiled once."""
    if shutil.which("javac") is None or not JARS.exists():
        missing_service("a JDK or Redisson is not installed")
    folder = tmp_path_factory.mktemp("java")
    path = os.pathsep.join([f"{JARS}/*", str(folder)])
    subprocess.run(["javac", "-cp", path, "-d", str(folder), str(SOURCE)], check=True, timeout=120)
    return ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", path, "RedissonPeer"]


@contextmanager
def taking(program: list[str], url: str, queue: str, log: Path) -> Iterator[subprocess.Popen[str]]:
    java = subprocess.Popen([*program, url, queue, "take", str(log)], stdout=subprocess.PIPE, text=True)
    guard(java.pid)
    assert java.stdout
    assert java.stdout.readline() == "taking\n"
    try:
        yield java
    finally:
        java.kill()
        java.wait(60)
        release(java.pid)
        java.stdout.close()


# --- without Java


def test_elements_are_packed_as_redis_packs_them(redisson: Redisson) -> None:
    element = pack(b"hello")
    assert unpack(element) == b"hello"
    packed = redisson.redis.call("EVAL", "return struct.pack('Bc0Lc0', 8, ARGV[1], 5, 'hello')", 0, element[1:9])
    assert packed == element
    assert unpack(OLD) == b"hello"
    assert unpack(b"x" * 20) is None


def test_a_value_arrives_when_it_is_due_and_not_before(redisson: Redisson) -> None:
    began = time.monotonic()
    redisson.delayed_queue("mail").offer("late", "300ms")
    redisson.delayed_queue("mail").offer("soon", "100ms")
    queue = redisson.blocking_queue("mail")
    assert queue.take() == "soon"
    assert time.monotonic() - began >= 0.1
    assert queue.take() == "late"
    assert time.monotonic() - began >= 0.3
    assert redisson.sizes("mail").total == 0


def test_a_nearer_element_is_not_held_up_by_one_that_is_due_later(redisson: Redisson) -> None:
    redisson.delayed_queue("mail").offer("in an hour", "1h")
    redisson.delayed_queue("mail").offer("now", 0)
    assert redisson.blocking_queue("mail").poll("60s") == "now"


def test_an_offer_writes_the_same_bytes_to_both_keys_and_announces_a_new_head(redisson: Redisson) -> None:
    keys = redisson.keys("mail")
    queue = RedissonDelayedQueue(redisson, keys)  # without a mover
    pubsub = redisson.redis.subscribe(keys.channel)
    began = time.time() * 1000
    for delay in ("1h", "2h", "30m"):
        queue.offer("same", delay)
    announced: list[bytes] = []
    while message := redisson.redis.message(pubsub, 1):
        if message["type"] == "message":
            announced.append(message["data"])
    pubsub.close()
    waiting = dict(redisson.redis.members(keys.timeouts))
    listed = list(redisson.redis.values(keys.elements))
    assert len(set(listed)) == 3
    assert set(listed) == set(waiting)
    first, _, third = (waiting[element] for element in listed)
    assert announced == [f"{first:.0f}".encode(), f"{third:.0f}".encode()]
    assert began + 3_600_000 <= first <= time.time() * 1000 + 3_600_001


@pytest.mark.parametrize(
    ("name", "list_key", "values"),
    [
        ("mail", "redisson_delay_queue:{app:mail}", "app:mail"),
        ("{eu}:x", "redisson_delay_queue:app:{eu}:x", "app:{eu}:x"),
    ],
)
def test_the_name_mapper_comes_first_and_braces_are_added_once(
    redis_url: str, name: str, list_key: str, values: str
) -> None:
    with Redisson(redis_url, name_mapper=lambda name: f"app:{name}") as redisson:
        redisson.delayed_queue(name).offer("x", "1h")
        redisson.blocking_queue(name).offer("y")
        assert [redisson.redis.call("LLEN", key) for key in (list_key, values)] == [1, 1]


def test_a_step_moves_a_hundred_elements_in_due_order_and_tells_the_next(redisson: Redisson) -> None:
    keys = redisson.keys("mail")
    for n in reversed(range(150)):
        element = pack(str(n).encode())
        redisson.redis.call("ZADD", keys.timeouts, 1000 + n, element)
        redisson.redis.call("RPUSH", keys.elements, element)
    redisson.redis.call("ZADD", keys.timeouts, int(time.time() * 1000) + 60_000, pack(b"later"))
    given = [keys.timeouts, keys.elements, keys.values, keys.quarantine]
    assert redisson.redis.run("redisson_transfer", given, [TRANSFERRED]) == [100, 0, 0]
    moved, _, wait_ms = redisson.redis.run("redisson_transfer", given, [TRANSFERRED])
    assert moved == 50
    assert 55_000 < wait_ms <= 60_000
    assert list(redisson.redis.values(keys.values)) == [str(n).encode() for n in range(150)]
    assert redisson.redis.call("LLEN", keys.elements) == 0


def test_removal_acts_on_both_keys(redisson: Redisson) -> None:
    waiting = redisson.delayed_queue("mail")
    for value in ("a", "b", "a", "c"):
        waiting.offer(value, "1h")
    assert waiting.read_all() == ["a", "b", "a", "c"]
    assert waiting.remove("a")
    assert not waiting.remove("x")
    assert (waiting.contains("b"), waiting.peek(), waiting.poll()) == (True, "b", "b")
    assert waiting.size() == redisson.sizes("mail").delayed == 2
    waiting.clear()
    assert (waiting.size(), waiting.poll()) == (0, None)


def test_an_element_that_nobody_can_read_stops_nothing(redisson: Redisson) -> None:
    keys = redisson.keys("mail")
    for element in (b"garbage", OLD):
        redisson.redis.call("ZADD", keys.timeouts, 1, element)
        redisson.redis.call("RPUSH", keys.elements, element)
    assert redisson.blocking_queue("mail").poll("60s") == "hello"
    assert redisson.sizes("mail").quarantined == 1
    assert redisson.redis.call("LLEN", keys.elements) == 0


@pytest.mark.parametrize(("codec", "value"), [("string", {"to": "ann"}), ("json", {1, 2})])
def test_a_value_that_the_codec_cannot_write_is_refused(redis_url: str, codec: str, value: object) -> None:
    with Redisson(redis_url, codec=codec) as redisson, pytest.raises(InvalidRequest):  # type: ignore[arg-type]
        redisson.delayed_queue("mail").offer(value, "1s")


def test_a_value_that_the_codec_cannot_read_is_not_lost(redis_url: str) -> None:
    with Redisson(redis_url) as java:
        java.blocking_queue("mail").offer("no json")
        java.delayed_queue("mail").offer("no json", "1h")
    with Redisson(redis_url, codec="json") as redisson:
        for poll in (redisson.blocking_queue("mail").poll, redisson.delayed_queue("mail").poll):
            with pytest.raises(InvalidRequest):
                poll()
        sizes = redisson.sizes("mail")
        assert (sizes.ready, sizes.delayed, sizes.quarantined) == (0, 1, 1)


def test_a_negative_delay_is_refused(redisson: Redisson) -> None:
    with pytest.raises(InvalidRequest):
        redisson.delayed_queue("mail").offer("x", -1)


def test_elements_are_relayed_with_their_due_times_and_once(redis_url: str, tmp_path: Path) -> None:
    with Redisson(redis_url) as writer:
        writer.delayed_queue("mail").offer("later", "1h")
        writer.blocking_queue("mail").offer("ready")
    with Redisson(redis_url) as redisson, duetime.connect(f"sqlite:{tmp_path / 'ours.db'}") as client:
        relay, ours = Relay(redisson, client), Queue("default", "moved")
        forget, redisson.forget = redisson.forget, lambda *_: None  # type: ignore[method-assign]
        assert relay._fetch("mail", ours) == 2
        job = client.queue("moved").pop()
        assert job is not None
        assert job.body == b"ready"
        job.ack()
        redisson.forget = forget  # type: ignore[method-assign]
        assert relay.to_duetime("mail", ours, follow=False) == 2
        counts = client.queue("moved").counts()
        assert (counts.ready, counts.delayed) == (0, 1)
        assert redisson.sizes("mail").total == 0


def test_values_that_are_too_large_stay_there(redis_url: str, tmp_path: Path) -> None:
    large = "x" * (5 << 20)
    with Redisson(redis_url) as writer:
        for value in (large, "small"):
            writer.delayed_queue("mail").offer(value, "1h")
            writer.blocking_queue("mail").offer(value)
    with Redisson(redis_url) as redisson, duetime.connect(f"sqlite:{tmp_path / 'ours.db'}") as client:
        assert Relay(redisson, client).to_duetime("mail", Queue("default", "moved"), follow=False) == 2
        sizes = redisson.sizes("mail")
        assert (sizes.ready, sizes.delayed) == (1, 1)
        assert sizes.oldest_due_at is not None
        assert 3_500_000 < sizes.oldest_due_at - time.time() * 1000 < 3_601_000
        assert (redisson.blocking_queue("mail").poll(), redisson.delayed_queue("mail").poll()) == (large, large)


def test_an_element_that_is_put_back_as_the_head_is_announced(redisson: Redisson) -> None:
    """A Java mover that has met an empty queue waits for a message."""
    keys = redisson.keys("mail")
    queue = RedissonDelayedQueue(redisson, keys)  # without a mover
    for delay in ("1h", "2h"):
        queue.offer("x", delay)
    batch = redisson.hold("mail", 2)
    assert batch
    pubsub = redisson.redis.subscribe(keys.channel)
    redisson.forget("mail", batch, [0, 1])
    announced: list[bytes] = []
    while message := redisson.redis.message(pubsub, 1):
        if message["type"] == "message":
            announced.append(message["data"])
    pubsub.close()
    first = redisson.redis.head_score(keys.timeouts)
    assert announced == [f"{first:.0f}".encode()]


def test_a_take_goes_on_after_an_outage(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis()
    taken: list[str] = []
    with Redisson(server.url) as redisson:
        queue = redisson.blocking_queue("mail")
        thread = threading.Thread(target=lambda: taken.append(queue.take()))
        thread.start()
        server.kill()
        server.start()
        while thread.is_alive():
            with suppress(StoreUnavailable):
                queue.offer("x")
            thread.join(1)
    assert taken == ["x"]


def test_our_jobs_are_accepted_once(redisson: Redisson, tmp_path: Path) -> None:
    with duetime.connect(f"sqlite:{tmp_path / 'ours.db'}") as client:
        client.queue("mine").push("hello")
        [leased] = client.queue("mine").reserve()
        redisson.accept("mail", [leased.delivery])
        leased.give_back()
        assert Relay(redisson, client).from_duetime(Queue("default", "mine"), "mail", follow=False) == 1
    assert redisson.blocking_queue("mail").read_all() == ["hello"]


# --- with Java


def has_some(redisson: Redisson) -> bool:
    """Asks twice: a value that becomes ready between the two counts of one answer is in neither."""
    return any(redisson.sizes("mail").total for _ in range(2))


def test_python_takes_what_java_offers(redisson: Redisson, redis_url: str, program: list[str]) -> None:
    subprocess.run([*program, redis_url, "mail", "offer", "50", "1500"], check=True, timeout=120)
    queue = redisson.blocking_queue("mail")
    assert sorted(queue.poll("60s") for _ in range(50)) == sorted(f"java-{n}" for n in range(50))
    assert redisson.sizes("mail").total == 0


def test_a_java_mover_is_set_to_what_python_offers(
    redisson: Redisson, redis_url: str, program: list[str], tmp_path: Path
) -> None:
    """Java is alone in moving: its timer for the far element is replaced when a nearer one is announced.

    Both are offered after Java has looked for the first one, because Redisson sets its timer by the answer to that look
    even if a nearer element was announced before the answer came.
    """
    queue, log = RedissonDelayedQueue(redisson, redisson.keys("mail")), tmp_path / "taken.log"
    client = redisson.redis
    client.call("CONFIG", "RESETSTAT")
    with taking(program, redis_url, "mail", log):
        # The first script that runs here is that look.
        while not any(name.startswith("cmdstat_eval") for name in client.call("INFO", "commandstats")):
            time.sleep(0.02)
        queue.offer("far", "1h")
        queue.offer("near", "300ms")
        deadline = time.monotonic() + 30
        while not log.exists() or log.read_text() != "near\n":
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert queue.read_all() == ["far"]


def test_both_sides_move_and_take_and_a_killed_one_loses_nothing_that_waits(
    redisson: Redisson, redis_url: str, program: list[str], tmp_path: Path, scale: int
) -> None:
    count, log = 200 * scale, tmp_path / "taken.log"
    delayed, queue = redisson.delayed_queue("mail"), redisson.blocking_queue("mail")
    for n in range(count):
        delayed.offer(f"python-{n}", f"{500 + n * 10 // scale}ms")
    taken: Counter[str] = Counter()
    with taking(program, redis_url, "mail", log) as java:
        while not log.exists() or log.read_text().count("\n") < count / 10:
            if value := queue.poll():
                taken[value] += 1
            time.sleep(0.002)
        java.kill()
    while has_some(redisson):
        if value := queue.poll("1s"):
            taken[value] += 1
    taken += Counter(log.read_text().split())
    # A value that Redis had sent to the killed program may be gone: this queue has no acknowledgement.
    assert set(taken.values()) == {1}
    assert count - 2 <= len(taken) <= count
    assert redisson.sizes("mail").total == 0


def test_java_offers_and_a_python_process_that_is_killed_loses_nothing_that_waits(
    redisson: Redisson, redis_url: str, program: list[str], tmp_path: Path, scale: int
) -> None:
    count, log = 100 * scale, tmp_path / "taken.log"
    subprocess.run([*program, redis_url, "mail", "offer", str(count), "4000"], check=True, timeout=120)
    with python_worker("redisson", redis_url, log, "mail") as python:
        deadline = time.monotonic() + 60
        while not log.exists() or log.read_text().count("\n") < count / 10:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        python.kill()
    queue, taken = redisson.blocking_queue("mail"), Counter[str]()
    while has_some(redisson):
        if value := queue.poll("1s"):
            taken[value] += 1
    taken += Counter(log.read_text().split())
    assert set(taken.values()) == {1}
    assert count - 2 <= len(taken) <= count
    assert redisson.sizes("mail").total == 0
