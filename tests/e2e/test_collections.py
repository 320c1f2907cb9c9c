"""Redisson's collections, method by method, on a store and through a server.

tests/docs/test_collections_page.py wants every method of the tables in docs/collections.md to be used here.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import duetime
from duetime import (
    BlockingQueue,
    DelayedQueue,
    MessageOptions,
    NewJob,
    ProcessingMode,
    QueueEvent,
    QueueSettings,
    ReliableFanout,
    ReliableQueue,
)
from duetime.client.client import QueueClient
from duetime.client.reliable_queue import MessageCounts
from duetime.model.errors import InvalidId, InvalidRequest
from tests.plugins.serving import serving

D: Any = duetime
"""The package without its types, for calls that they refuse."""


@pytest.fixture(scope="module")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("values"), "--dev") as served:
        yield served.api


@pytest.fixture(params=["store", "server"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[duetime.Client]:
    """In a namespace of its own."""
    url = f"sqlite://{tmp_path}/values.db" if request.param == "store" else request.getfixturevalue("server_url")
    with duetime.connect(url, namespace=f"n{uuid.uuid4().hex}") as connected:
        yield connected


# --- the delayed queue


def test_delayed_values_are_listed_in_due_order(client: duetime.Client) -> None:
    queue = DelayedQueue(client, "names")
    for name, delay in (("late", "2h"), ("soon", "1h"), ("last", "3h")):
        queue.offer(name, delay, id=f"id-{name}")
    queue.offer("late", "9h", id="id-late")
    with pytest.raises(duetime.InvalidTime):
        queue.offer("never", "-1s")

    assert [queue.get(index) for index in (0, 1, 2, -1)] == ["soon", "late", "last", "last"]
    for index in (3, -4):
        with pytest.raises(IndexError):
            queue.get(index)
    assert (queue.peek(), queue.element()) == ("soon", "soon")
    assert (queue.size(), len(queue), queue.is_empty()) == (3, 3, False)
    assert sorted(queue.read_all()) == sorted(queue) == ["last", "late", "soon"]
    assert (queue.contains("soon"), "x" in queue, queue.contains_all(["soon", "last"])) == (True, False, True)
    assert (queue.contains_id("id-soon"), queue.contains_id("id-x")) == (True, False)
    assert 3500 < queue.get_delay("id-soon") <= 3600
    queue.reschedule("id-soon", "5h")
    assert queue.get_delay("id-soon") > 17_000
    assert queue.size_in_memory() == sum(len(f'"{name}"id-{name}') for name in ("late", "soon", "last"))
    queue.destroy()
    assert queue.poll() == "late"
    assert queue.poll_many(5) == ["last", "soon"]
    with pytest.raises(LookupError):
        queue.element()


def test_delayed_values_are_removed_copied_and_moved(client: duetime.Client) -> None:
    queue, copy = DelayedQueue(client, "names"), DelayedQueue(client, "copies")
    for number in range(6):
        queue.offer(number, "1h", id=f"id-{number}")
    assert (queue.copy("copies"), queue.copy("copies"), copy.size()) == (6, 6, 6)
    assert [copy.get_delay(f"id-{n}") > 3500 for n in range(6)] == [True] * 6
    for job_id, value in queue.entries():
        if value == 0:
            queue.remove_id(job_id)
    assert (queue.remove(1), queue.remove(1)) == (True, False)
    assert (queue.remove_all([2, 9]), queue.retain_all([3, 4])) == (True, True)
    assert sorted(queue) == [3, 4]

    ready = BlockingQueue(client, "ready")
    ready.offer("first")
    assert queue.poll_last_and_offer_first_to("ready") == 4
    assert (list(ready), list(queue)) == ([4, "first"], [3])
    assert (queue.clear(), queue.size(), queue.poll_last_and_offer_first_to("ready")) == (1, 0, None)


@pytest.mark.parametrize("name", ["add", "add_all", "index_of", "move", "expire", "clear_expire"])
def test_operations_that_a_delayed_queue_lacks_are_refused(client: duetime.Client, name: str) -> None:
    with pytest.raises(NotImplementedError, match="offer"):
        getattr(DelayedQueue(client, "names"), name)("x")


def test_a_delayed_value_with_a_ttl_is_gone_after_it(client: duetime.Client) -> None:
    DelayedQueue(client, "names").offer("short", "1ms", ttl="1ms")
    ready = BlockingQueue(client, "names")
    deadline = time.monotonic() + 60
    while client.queue("names").counts().expired == 0 and time.monotonic() < deadline:
        assert ready.size() <= 1
    assert ready.poll() is None


# --- the blocking queue


@pytest.mark.parametrize(
    ("misuse", "kind", "says"),
    [
        (lambda c: D.BlockingQueue(c, "bad").offer(object()), InvalidRequest, "written as JSON"),
        (lambda c: D.BlockingQueue(c, "bad").offer("\ud800"), InvalidRequest, "written as JSON"),
        (lambda c: D.BlockingQueue(c, "bad").offer("x", id=5), InvalidId, "must be text, got 5"),
        (lambda c: D.BlockingQueue(c, "bad").remove_all(None), InvalidRequest, "values must be a list, got None"),
        (
            lambda c: D.BlockingQueue(c, "bad").contains_all("ab"),
            InvalidRequest,
            "values must be a list, got 'ab'",
        ),
        (
            lambda c: D.BlockingQueue(c, "bad").poll_from_any("ab"),
            InvalidRequest,
            "names must be a list, got 'ab'",
        ),
        (
            lambda c: D.BlockingQueue(c, "bad").poll_last_from_any(5),
            InvalidRequest,
            "names must be a list, got 5",
        ),
        (lambda c: D.BlockingQueue(c, "bad").drain_to([], "5"), InvalidRequest, "limit must be a whole number"),
        (lambda c: D.BlockingQueue(c, "bad").move("other", None), InvalidRequest, "count must be a whole number"),
        (lambda c: D.BlockingQueue(c, "bad").add_listener("x", print), InvalidRequest, "event must be"),
        (lambda c: D.DelayedQueue(c, "bad").get("0"), InvalidRequest, "index must be a whole number"),
        (lambda c: D.DelayedQueue(c, "bad").poll_many(2.5), InvalidRequest, "limit must be a whole number"),
        (lambda c: c.schedules.put("x", queue="bad", every="1h", priority="\ud800"), InvalidRequest, "surrogates"),
        (lambda c: D.ReliableQueue(c, "bad", 5), InvalidRequest, "settings must be a QueueSettings, got 5"),
        (
            lambda c: D.ReliableQueue(c, "bad", D.QueueSettings(delivery_limit="3")),
            InvalidRequest,
            "delivery_limit",
        ),
        (lambda c: D.ReliableQueue(c, "bad", QueueSettings(delay="soon")), duetime.InvalidTime, "soon"),
        (lambda c: D.ReliableQueue(c, "bad").change(delivery=3), TypeError, "did you mean 'delivery_limit'"),
        (lambda c: D.ReliableQueue(c, "bad").add("x", ttl="1h"), TypeError, "no option 'ttl'"),
        (lambda c: D.ReliableQueue(c, "bad").add("x", priority="high"), InvalidRequest, "priority must be"),
        (lambda c: D.ReliableQueue(c, "bad").add("x", id=5), InvalidId, "must be text, got 5"),
        (
            lambda c: D.ReliableQueue(c, "bad").add("x", options={"id": "a"}),
            InvalidRequest,
            "a MessageOptions, got",
        ),
        (lambda c: D.ReliableQueue(c, "bad").add_many("ab"), InvalidRequest, "values must be a list, got 'ab'"),
        (lambda c: D.ReliableQueue(c, "bad").poll_many(None), InvalidRequest, "count must be a whole number"),
        (lambda c: D.ReliableQueue(c, "bad").add_listener("gone", print), InvalidRequest, "event must be one of"),
        (lambda c: D.ReliableQueue(c, "bad").get([]), InvalidId, "must be text"),
        (lambda c: D.ReliableQueue(c, "bad").acknowledge(None), InvalidRequest, "leased job must be"),
        (lambda c: D.ReliableQueue(c, "bad").failed("x"), InvalidRequest, "message must be a Taken, got 'x'"),
        (lambda c: D.ReliableQueue(c, "bad").rejected(None), InvalidRequest, "message must be a Taken, got None"),
        (
            lambda c: D.ReliableQueue(c, "bad", QueueSettings(processing_mode="serial")),  # type: ignore[arg-type]
            InvalidRequest,
            "processing_mode must be parallel or sequential, got 'serial'",
        ),
        (
            lambda c: D.ReliableQueue(c, "bad").add("x", deduplicate_by="body"),
            InvalidRequest,
            "deduplicate_by must be id or hash, got 'body'",
        ),
        (lambda c: D.ReliableQueue(c, "bad").add_listener("added", 5), InvalidRequest, "listener must be a function"),
        (lambda c: D.ReliableFanout(c).subscribe("bad", only=5), InvalidRequest, "only must be a function"),
        (lambda c: BlockingQueue(c, "bad", codec=5), InvalidRequest, "encode of the codec must be a function"),
        (lambda c: BlockingQueue(c, "bad").subscribe(5), InvalidRequest, "consumer must be a function"),
        (lambda c: BlockingQueue(c, "bad").subscribe(print, ttr="soon"), duetime.InvalidTime, "soon"),
        (lambda c: BlockingQueue(c, "bad").add_listener("added", 5), InvalidRequest, "listener must be a function"),
    ],
)
def test_a_mistake_is_refused_and_adds_nothing(
    client: duetime.Client, misuse: Callable[[duetime.Client], object], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says) as caught:
        misuse(client)
    assert type(caught.value) is kind
    assert client.queue("bad").counts().total == 0


def test_no_value_is_lost_if_it_cannot_be_put_anywhere(client: duetime.Client) -> None:
    queue = BlockingQueue(client, "kept")
    queue.offer("kept")
    with pytest.raises(InvalidRequest, match="target must be a MutableSequence, got 5"):
        queue.drain_to(5)  # type: ignore[arg-type]
    assert list(queue) == ["kept"]


def test_a_value_that_cannot_be_decoded_does_not_stop_drain_to_forever(client: duetime.Client) -> None:
    client.queue("mixed").push("no JSON", id="bad")
    queue = BlockingQueue(client, "mixed")
    with pytest.raises(ValueError, match="Expecting value"):
        queue.drain_to([])
    queue.offer("good")
    values: list[Any] = []
    assert queue.drain_to(values) == 1
    assert values == ["good"]
    assert [job.id for job in client.queue("mixed").dead.list_jobs().jobs] == ["bad"]


def test_a_value_that_cannot_be_decoded_is_not_removed(client: duetime.Client) -> None:
    plain = client.queue("odd")
    delayed, ready = DelayedQueue(client, "odd"), BlockingQueue(client, "odd")
    delayed.offer("good", "1h")
    plain.push("no JSON", id="later", delay="2h")
    plain.push("no JSON", id="now")
    assert delayed.poll_many(2) == ["good"]  # it was removed, so it is returned
    for poll in (
        delayed.poll,
        lambda: ready.poll_last_from_any([]),
        lambda: ready.poll_last_and_offer_first_to("other"),
    ):
        with pytest.raises(ValueError, match="Expecting value"):
            poll()
    assert [job.id for job in plain.get_many(["later", "now"]) if job] == ["later", "now"]
    assert client.queue("other").counts().total == 0
    plain.purge()


def test_ready_values_first_in_first_out(client: duetime.Client) -> None:
    queue = BlockingQueue(client, "names")
    heard: list[tuple[str, str]] = []
    hear = {
        "added": lambda value: heard.append(("added", value)),
        "removed": lambda value: heard.append(("gone", value)),
    }
    queue.add_listener("added", hear["added"])
    queue.add_listener("removed", hear["removed"])
    queue.offer("ann")
    queue.add("bob")
    queue.put("cid")
    queue.offer("dan")
    assert (queue.peek(), queue.element(), queue.index_of("cid"), queue.index_of("x")) == ("ann", "ann", 2, -1)
    assert (queue.read_all(), queue.size(), queue.is_empty()) == (["ann", "bob", "cid", "dan"], 4, False)
    assert (queue.contains("bob"), queue.contains_all(["ann", "x"]), queue.remaining_capacity()) == (True, False, None)
    assert queue.remove("bob")
    assert queue.take(lease=False) == "ann"
    assert heard == [("added", name) for name in ("ann", "bob", "cid", "dan")] + [("gone", "bob"), ("gone", "ann")]
    queue.remove_listener("added", hear["added"])
    with queue.take("1m") as taken:
        assert taken.value == "cid"
    polled = queue.poll("1m")
    assert polled is not None
    polled.release()
    assert [one.value for one in queue.poll_many(5)] == ["dan"]
    assert (queue.poll(), queue.poll("1ms"), queue.clear()) == (None, None, 0)
    with pytest.raises(TimeoutError):
        queue.take("1ms")


def test_listeners_are_called_for_every_removal(client: duetime.Client) -> None:
    queue, gone = BlockingQueue(client, "names"), list[str]()
    for name in "abcdefghij":
        queue.offer(name, id=name)
    queue.add_listener("removed", gone.append)
    with queue.take():
        assert gone == []  # it may come back
    polled = queue.poll()
    assert polled is not None
    polled.ack()
    assert queue.drain_to([], 1) == 1
    assert queue.remove_all(["d", "x"])
    assert queue.move("other") == 1
    assert queue.remove_id("f")
    assert not queue.remove_id("x")
    assert queue.poll_last_from_any() == ("names", "j")
    assert queue.poll_last_and_offer_first_to("other") == "i"
    assert queue.clear() == 2
    assert gone == ["a", "b", "c", "d", "e", "f", "j", "i", "g", "h"]


def test_a_poll_of_a_long_delayed_queue_reads_one_value(
    client: duetime.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, limits = DelayedQueue(client, "names"), list[int]()
    client.queue("names").bulk([NewJob(f"{n:04}", b"%d" % n, delay_ms=3_600_000 + n) for n in range(1200)])
    list_jobs = QueueClient.list_jobs

    def counted(self: QueueClient, *arguments: Any, **options: Any) -> Any:
        limits.append(options["limit"])
        return list_jobs(self, *arguments, **options)

    monkeypatch.setattr(QueueClient, "list_jobs", counted)
    assert (queue.poll(), queue.get(0), queue.peek()) == (0, 1, 1)
    assert limits == [1, 1, 1]
    assert (queue.get(1000), queue.get(-1)) == (1001, 1199)


async def test_the_async_collections_answer_alike(tmp_path: Path) -> None:
    async with duetime.connect_async(f"sqlite:{tmp_path / 'jobs.db'}") as client:
        delayed, queue = duetime.AsyncDelayedQueue(client, "names"), duetime.AsyncBlockingQueue(client, "names")
        gone: list[str] = []
        queue.add_listener("removed", gone.append)
        await delayed.offer("soon", "1ms")
        await delayed.offer("later", "1h")
        async with await queue.take("1m") as taken:
            assert taken.value == "soon"
        assert (await delayed.get(0), await delayed.size(), [one async for one in delayed]) == ("later", 1, ["later"])
        await queue.offer("a", id="a")
        await queue.offer("b", id="b")
        assert (await queue.contains("b"), await queue.index_of("b"), await queue.remove("b")) == (True, 1, True)
        assert (await queue.poll_last_from_any(), await queue.poll()) == (("names", "a"), None)
        assert (await delayed.poll(), await delayed.is_empty()) == ("later", True)
        assert gone == ["soon", "b", "a"]


def test_values_of_several_queues(client: duetime.Client) -> None:
    one, two = BlockingQueue(client, "one"), BlockingQueue(client, "two")
    for name in ("a", "b", "c"):
        one.offer(name)
    two.offer("z")
    assert one.poll_last_from_any(["two"]) == ("one", "c")
    assert one.poll_last_and_offer_first_to("two") == "b"
    assert (list(one), list(two)) == (["a"], ["b", "z"])
    assert (one.move("two", 5), one.move("two"), list(two)) == (1, 0, ["b", "z", "a"])
    taken = one.poll_from_any(["two"], limit=2)
    assert [(each.queue.name, each.value) for each in taken] == [("two", "b"), ("two", "z")]
    moved: list[str] = []
    assert (two.drain_to(moved), moved) == (1, ["a"])
    assert one.poll_last_from_any(["two"], "1ms") is None


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "error", [ValueError("not yet"), SystemExit("not yet"), NoText()], ids=["error", "exit", "no text"]
)
def test_a_subscriber_gets_every_value_and_failed_ones_again(client: duetime.Client, error: BaseException) -> None:
    queue, got, done = BlockingQueue(client, "names"), list[str](), threading.Event()

    def consume(value: str) -> None:
        got.append(value)
        if got.count("ann") == 1 and value == "ann":
            raise error
        if sorted(got) == ["ann", "ann", "bob"]:
            done.set()

    subscription = queue.subscribe(consume)
    queue.offer("ann")
    queue.offer("bob")
    assert done.wait(60)
    subscription.close()
    assert queue.size() == 0


def test_a_take_goes_on_when_the_server_was_away(tmp_path: Path) -> None:
    """The first server goes; another one begins on the same port while the consumer waits."""
    got: list[str] = []
    with serving(tmp_path, "--dev") as first:
        client = duetime.connect(first.api)
        queue = BlockingQueue(client, "names")
        waiting = threading.Thread(target=lambda: got.append(queue.take("2m", lease=False)))
        waiting.start()
    with client, serving(tmp_path, "--dev", "--port", first.api.rpartition(":")[2]):
        queue.offer("ann")
        waiting.join(120)
    assert got == ["ann"]


# --- the reliable queue


def test_messages_are_acknowledged_failed_and_rejected(client: duetime.Client) -> None:
    queue = ReliableQueue(client, "orders", QueueSettings(delivery_limit=2, visibility="1m"))
    first = queue.add({"order": 1}, headers={"from": "shop"})
    assert first is not None
    message = queue.poll("1m")
    assert message is not None
    assert (message.id, message.value, dict(message.attributes)) == (first, {"order": 1}, {"from": "shop"})
    assert queue.counts() == MessageCounts(0, 0, 1, 0)
    queue.failed(message, error="busy")
    again = queue.poll("1m", visibility="2m")
    assert again is not None
    assert (again.attempt, again.error) == (2, "busy")
    queue.failed(again)
    [dead] = queue.dead_letters()
    assert (dead.id, dead.reason, queue.dead_letter_sources()) == (first, "tries", ["orders"])

    ids = queue.add_many(["a", "b", "c"])
    found = queue.poll_many(5, "1m")
    assert [one.id for one in found] == ids
    assert queue.acknowledge(*found[:2]) == 2
    assert queue.acknowledge(*found[:2]) == 2  # repeating it is no error
    queue.rejected(found[2], error="wrong")
    assert [one.error for one in queue.dead_letters() if one.id == ids[2]] == ["wrong"]
    queue.add("gone at once")
    assert [one.value for one in queue.poll_many(1, acknowledge=True)] == ["gone at once"]
    assert (queue.size(), queue.count_unacknowledged_messages()) == (0, 0)


def test_a_message_that_is_not_acknowledged_comes_again(client: duetime.Client) -> None:
    queue = ReliableQueue(client, "orders")
    queue.add("a")
    lost = queue.poll(visibility="1ms")
    again = queue.poll("1m")
    assert lost is not None
    assert again is not None
    assert (again.id, again.attempt) == (lost.id, 2)
    assert queue.acknowledge(lost) == 0


def test_messages_have_delay_life_priority_and_limit(client: duetime.Client) -> None:
    queue = ReliableQueue(client, "orders", QueueSettings(delay="1h", time_to_live="1h", delivery_limit=7))
    delayed = queue.add("later")
    now = [queue.add(n, delay=0, time_to_live=0, priority=n, delivery_limit=0) for n in (0, 5, 9)]
    assert delayed is not None
    assert None not in now
    job = queue.get(delayed)
    assert job is not None
    assert (job.tries, job.expires_at - job.born) == (7, 7_200_000)
    assert [one.priority.name for one in queue.get_all([str(each) for each in now]) if one] == ["LOW", "NORMAL", "HIGH"]
    assert (queue.size(), queue.count_delayed_messages(), len(queue.list_all())) == (3, 1, 4)
    with pytest.raises(duetime.InvalidRequest, match="0 to 9"):
        queue.add("x", priority=10)
    assert (queue.contains("later"), queue.remove_id(delayed), queue.contains("later")) == (True, True, False)
    assert (queue.move_to("others", [str(now[0]), "unknown"]), queue.move_to("others", count=1)) == (1, 1)
    assert (client.queue("others").counts().ready, queue.clear()) == (2, 1)


def test_a_message_is_added_once_within_the_interval(client: duetime.Client) -> None:
    queue = ReliableQueue(client, "orders")
    first = queue.add("a", id="17", deduplicate_by="id")
    taken = queue.poll()
    assert taken is not None
    queue.acknowledge(taken)
    assert queue.add("another", id="17", deduplicate_by="id") == first
    hashed = queue.add("same", deduplicate_by="hash", deduplicate_for="1h")
    assert queue.add("same", options=MessageOptions(deduplicate_by="hash", deduplicate_for="1h")) == hashed
    assert (queue.size(), queue.metrics()["added"]) == (1, 2)
    with pytest.raises(duetime.InvalidRequest):
        queue.add("x", deduplicate_by="id")


def test_a_full_queue_lets_producers_wait(client: duetime.Client) -> None:
    queue = ReliableQueue(client, "orders", QueueSettings(max_size=1, max_message_size=20))
    full: list[object] = []
    queue.add_listener(QueueEvent.FULL, lambda event, about: full.append(about))
    assert queue.add("a") is not None
    assert (queue.add("b"), len(full)) == (None, 1)
    added: list[str | None] = []
    producer = threading.Thread(target=lambda: added.append(queue.add("c", timeout="1m")))
    producer.start()
    message = queue.poll()
    assert message is not None
    queue.acknowledge(message)
    producer.join(60)
    assert [one is not None for one in added] == [True]
    with pytest.raises(duetime.BodyTooLarge):
        queue.add("x" * 30)
    queue.change(max_size=0)
    assert (queue.settings.max_size, queue.add("d") is not None) == (0, True)


def test_add_and_poll_are_disabled_for_everybody(client: duetime.Client) -> None:
    queue, other = ReliableQueue(client, "orders"), ReliableQueue(client, "orders")
    heard: list[tuple[str, object]] = []
    for event in (QueueEvent.DISABLED, QueueEvent.ENABLED):
        queue.add_listener(event, lambda event, about: heard.append((event.value, about)))
    queue.add("a")
    queue.disable("add")
    with pytest.raises(duetime.TopicOffline):
        other.add("b")
    queue.disable("poll")
    assert other.poll() is None
    queue.enable("add")
    queue.enable("poll")
    assert other.add("b") is not None
    assert len(other.poll_many(5)) == 2
    assert heard == [("disabled", "add"), ("disabled", "poll"), ("enabled", "add"), ("enabled", "poll")]
    with pytest.raises(duetime.InvalidRequest):
        queue.disable("all")  # pyright: ignore[reportArgumentType]


def test_every_event_reaches_its_listeners_and_counters(client: duetime.Client) -> None:
    queue, heard = ReliableQueue(client, "orders"), list[str]()

    def hear(event: QueueEvent, about: object) -> None:
        heard.append(event.value)

    for event in QueueEvent:
        queue.add_listener(event, hear)
    queue.configure(QueueSettings())
    queue.add_many(["a", "b", "c", "d", "e"])
    one, two, three = queue.poll_many(3)
    queue.acknowledge(one)
    queue.failed(two, delay="1h")
    queue.rejected(three)
    queue.remove_id(two.id)
    queue.move_to("others", count=1)
    assert heard == ["configured", "added", "polled", "acknowledged", "failed", "rejected", "removed", "moved"]
    assert queue.metrics() == {
        "additions": 1,
        "added": 5,
        "polls": 1,
        "polled": 3,
        "acknowledgements": 1,
        "acknowledged": 1,
        "failed": 1,
        "rejected": 1,
        "removals": 1,
        "removed": 1,
        "movements": 1,
        "moved": 1,
    }
    queue.remove_listener(QueueEvent.ADDED, hear)
    queue.add("f")
    assert heard[-1] == "moved"


def test_a_sequential_queue_delivers_one_message_at_a_time(client: duetime.Client) -> None:
    settings = QueueSettings(processing_mode=ProcessingMode.SEQUENTIAL)
    count, in_hands, most, order = 12, 0, 0, list[int]()
    lock = threading.Lock()
    ReliableQueue(client, "steps", settings).add_many(list(range(count)))

    def consume() -> None:
        nonlocal in_hands, most
        queue = ReliableQueue(client, "steps", settings)
        while len(order) < count:
            message = queue.poll("100ms")
            if message is None:
                continue
            with lock:
                in_hands += 1
                most = max(most, in_hands)
                order.append(message.value)
            with lock:
                in_hands -= 1
            queue.acknowledge(message)

    threads = [threading.Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert (most, order) == (1, list(range(count)))


def test_a_sequential_queue_keeps_its_order_next_to_a_consumer_that_gives_back(
    client: duetime.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = ReliableQueue(client, "steps", QueueSettings(processing_mode=ProcessingMode.SEQUENTIAL))
    queue.add_many(["first", "second"])
    reserve, interruptions = QueueClient.reserve, 1

    def reserve_while_another_has_the_first(self: QueueClient, **options: Any) -> Any:
        nonlocal interruptions
        if not interruptions:
            return reserve(self, **options)
        interruptions -= 1
        [other] = reserve(self)
        found = reserve(self, **options)
        other.give_back()
        return found

    monkeypatch.setattr(QueueClient, "reserve", reserve_while_another_has_the_first)
    message = queue.poll("10s")
    assert message is not None
    assert (message.value, interruptions) == ("first", 0)


def test_a_fanout_publishes_to_queues_whose_filter_accepts(client: duetime.Client) -> None:
    fanout = ReliableFanout(client)
    everything = fanout.subscribe("all")
    large = fanout.subscribe("large", lambda value: value["total"] > 100)
    closed = fanout.subscribe("closed")
    closed.disable("add")
    published = fanout.publish({"total": 5})
    assert list(published) == ["all"]
    both = fanout.publish({"total": 500}, MessageOptions(id="500"))
    assert both == {"all": "500", "large": "500"}
    closed.enable("add")
    assert set(fanout.publish({"total": 500}, MessageOptions(id="500"))) == {"all", "large", "closed"}
    assert (everything.size(), large.size(), closed.size()) == (2, 1, 1)
    assert (fanout.unsubscribe("large"), fanout.unsubscribe("large")) == (True, False)
    assert fanout.subscribers() == ["all", "closed"]
