"""What the SDK says to a mistake: the same, by the same class of error, on a store and through a server."""

import functools
import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import duetime
from duetime.client.topics import Topics
from duetime.model.errors import InvalidId, InvalidRequest, InvalidSettings, InvalidTime
from duetime.model.job import Event, IfExists, Lease, Moved, NewJob, State
from duetime.model.names import Queue
from duetime.stores.base import RulesChange
from duetime.stores.finishes import Finish
from tests.plugins.serving import serving

Misuse = Callable[[Any], object]
LEASE = Lease(Queue("default", "misuse"), "a", 1, 1)


@pytest.fixture(scope="module")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("misuse"), "--dev") as served:
        yield served.api


@pytest.fixture(params=["embedded", "remote"])
def client(request: pytest.FixtureRequest) -> Iterator[duetime.Client]:
    url = "memory:" if request.param == "embedded" else request.getfixturevalue("server_url")
    with duetime.connect(url) as connected:
        yield connected


@pytest.mark.parametrize(
    ("misuse", "kind", "says"),
    [
        (lambda queue: queue.push("x", dealy=3), TypeError, "dealy.*delay"),
        (lambda queue: queue.push("x", colour="red"), TypeError, "colour"),
        (lambda queue: queue.later("1h", "x", trys=3), TypeError, "trys.*tries"),
        (lambda queue: queue.bulk(["x"], priorty=1), TypeError, "priorty.*priority"),
        (lambda queue: queue.bulk("text"), InvalidRequest, "must be a list, got 'text'"),
        (lambda queue: queue.bulk({"a": 1}), InvalidRequest, "a list of one"),
        (lambda queue: queue.bulk(iter(["a", "b"]), id="x"), InvalidRequest, "'x' can be the id of one job, not of 2"),
        (lambda queue: queue.call("x", wait=0, tll=3), TypeError, "tll.*ttl"),
        (lambda queue: queue.push("x", id=5), InvalidId, "5"),
        (lambda queue: queue.push("x", id=""), InvalidId, "1 to"),
        (lambda queue: queue.push("x", tries=1.5), InvalidRequest, "tries"),
        (lambda queue: queue.push("x", tries="3"), InvalidRequest, "tries"),
        (lambda queue: queue.push("x", tries=True), InvalidRequest, "tries"),
        (lambda queue: queue.push("x", tries=70_000), InvalidRequest, "tries"),
        (lambda queue: queue.push("x", priority="urgent"), InvalidRequest, "high, normal or low"),
        (lambda queue: queue.push("x", priority=7), InvalidRequest, "priority"),
        (lambda queue: queue.push("x", if_exists="kepe"), InvalidRequest, "keep, replace or error"),
        (lambda queue: queue.push("x", attributes={"a": 1}), InvalidRequest, "attribute"),
        (lambda queue: queue.push("x", attributes=["a"]), InvalidRequest, "attributes"),
        (lambda queue: queue.later(None, "x"), InvalidTime, "duration"),
        (lambda queue: queue.push("x", due_at=1_800_000_000), InvalidTime, "milliseconds"),
        (lambda queue: queue.push("x", due_at=1_800_000_000.5), InvalidTime, "give 1800000000500"),
        (lambda queue: queue.bulk([NewJob("a", b"", due_at=1_800_000_000)]), InvalidTime, "give 1800000000000"),
        (lambda queue: queue.reschedule("a", due_at=1_800_000_000), InvalidTime, "milliseconds"),
        (lambda queue: queue.push({"a": math.nan}), InvalidRequest, "JSON"),
        (lambda queue: queue.push({"a": math.inf}), InvalidRequest, "JSON"),
        (lambda queue: queue.push({"a": object()}), InvalidRequest, "JSON"),
        (
            lambda queue: queue.push(functools.reduce(lambda inner, _: [inner], range(100_000), 0)),
            InvalidRequest,
            "JSON",
        ),
        (lambda queue: queue.push("x", delay=timedelta.max), InvalidTime, "at most 136 years"),
        (lambda queue: queue.bulk([NewJob("a", b"", attributes={"a": 1})]), InvalidRequest, "attribute"),  # type: ignore[dict-item]
        (lambda queue: queue.bulk([NewJob("a", b"", attributes=5)]), InvalidRequest, "attributes must be"),  # type: ignore[arg-type]
        (lambda queue: queue.bulk([NewJob("a", b"", born="x")]), InvalidRequest, "born"),  # type: ignore[arg-type]
        (lambda queue: queue.bulk([NewJob("a", "text")]), InvalidRequest, "body of job 'a' must be bytes"),  # type: ignore[arg-type]
        (lambda queue: queue.bulk([NewJob("a", b"", priority=9)]), InvalidRequest, "priority must be"),  # type: ignore[arg-type]
        (lambda queue: queue.bulk([NewJob("a", b"", priority="high")]), InvalidRequest, "priority must be"),  # type: ignore[arg-type]
        (lambda queue: queue.bulk([NewJob("a", b"", delay_ms=1.5)]), InvalidTime, "delay_ms"),  # type: ignore[arg-type]
        (lambda queue: queue.bulk([NewJob("a", b"", ttl_ms=None)]), InvalidTime, "ttl_ms"),  # type: ignore[arg-type]
        (lambda queue: queue.finish([Finish(LEASE, [NewJob("a", "text")])]), InvalidRequest, "must be bytes"),  # type: ignore[arg-type]
        (lambda queue: queue.ack([Lease("mail", "a", 1, 1)]), InvalidRequest, "queue of a lease must be a Queue"),  # type: ignore[arg-type]
        (lambda queue: queue.due_histogram([5, 3]), InvalidRequest, "edges must rise"),
        (lambda queue: queue.due_histogram([5, 5]), InvalidRequest, "edges must rise"),
        (lambda queue: queue.due_histogram([5]), InvalidRequest, "must be 2 to 1001"),
        (lambda queue: queue.due_histogram(range(1_002)), InvalidRequest, "must be 2 to 1001"),
        (lambda queue: queue.push("\ud800"), InvalidRequest, "UTF-8"),
        (lambda queue: queue.push({"a": "\ud800"}), InvalidRequest, "JSON"),
        (lambda queue: queue.push("x", attributes={"a": "\ud800"}), InvalidRequest, "UTF-8"),
        (lambda queue: queue.push("x", id="\ud800"), InvalidId, "id"),
        (lambda queue: queue.list_jobs("redy"), InvalidRequest, "delayed, ready, leased or dead"),
        (lambda queue: queue.list_jobs(State.READY, limit=0), InvalidRequest, "limit"),
        (lambda queue: queue.list_jobs(State.READY, limit=1_001), InvalidRequest, "limit"),
        (lambda queue: queue.list_jobs(State.READY, limit="5"), InvalidRequest, "limit"),
        (lambda queue: queue.dead.list_jobs(limit=-1), InvalidRequest, "limit"),
        (lambda queue: queue.reserve(limit=0), InvalidRequest, "limit"),
        (lambda queue: queue.reserve(limit=1_001), InvalidRequest, "limit"),
        (lambda queue: queue.reserve(limit=1.0), InvalidRequest, "limit"),
        (lambda queue: queue.purge(["redy"]), InvalidRequest, "delayed, ready, leased or dead"),
        (lambda queue: queue.cancel(5), InvalidId, "5"),
        (lambda queue: queue.get(""), InvalidId, "1 to"),
        (lambda queue: queue.bulk(None), InvalidRequest, "jobs must be a list, got None"),
        (lambda queue: queue.ack(None), InvalidRequest, "leases must be a list, got None"),
        (lambda queue: queue.ack([None]), InvalidRequest, "leased job must be .*, got None"),
        (lambda queue: queue.ack("abc"), InvalidRequest, "leases must be a list, got 'abc'"),
        (lambda queue: queue.pop(ack="abc"), InvalidRequest, "leased job must be .*, got 'abc'"),
        (lambda queue: queue.finish(None), InvalidRequest, "finishes must be a list, got None"),
        (lambda queue: queue.finish([5]), InvalidRequest, "Finish, got 5"),
        (lambda queue: queue.get([]), InvalidId, r"must be text, got \[\]"),
        (lambda queue: queue.get_many("abc"), InvalidRequest, "ids must be a list, got 'abc'"),
        (lambda queue: queue.results(None), InvalidRequest, "ids must be a list, got None"),
        (lambda queue: queue.dead.respawn("abc"), InvalidRequest, "ids must be a list, got 'abc'"),
        (lambda queue: queue.dead.respawn(tries="5"), InvalidRequest, "tries must be"),
        (lambda queue: queue.dead.delete("abc"), InvalidRequest, "ids must be a list, got 'abc'"),
        (lambda queue: queue.dead.clear(limit="5"), InvalidRequest, "limit must be a whole number"),
        (lambda queue: queue.purge("ready"), InvalidRequest, "states must be a list, got 'ready'"),
        (lambda queue: queue.purge(limit=0), InvalidRequest, "limit must be a whole number"),
        (lambda queue: queue.list_jobs("ready", cursor=5), InvalidRequest, "cursor must be"),
        (lambda queue: queue.list_jobs("ready", cursor="\ud800"), InvalidRequest, "cursor must be"),
        (lambda queue: queue.due_histogram(None), InvalidRequest, "edges must be a list, got None"),
        (lambda queue: queue.due_histogram(["x", "y"]), InvalidRequest, "edge must be a whole number"),
        (lambda queue: queue.configure(5), InvalidRequest, "RulesChange, got 5"),
        (lambda queue: queue.configure(RulesChange(max_jobs="x")), InvalidRequest, "max_jobs"),  # type: ignore[arg-type]
    ],
)
def test_a_mistake_is_refused_and_nothing_is_pushed(
    client: duetime.Client, misuse: Misuse, kind: type[Exception], says: str
) -> None:
    queue = client.queue("misuse")
    with pytest.raises(kind, match=says) as caught:
        misuse(queue)
    assert type(caught.value) is kind
    assert queue.counts().total == 0


@pytest.mark.parametrize("kind", [iter, set])
def test_leases_and_finishes_of_any_collection_are_settled(client: duetime.Client, kind: Any) -> None:
    queue = client.queue("generators")
    queue.bulk(["a", "b", "c", "d"])
    jobs = queue.reserve(limit=4)
    assert all(isinstance(answer, Moved) for answer in queue.ack(kind(jobs[:2])))
    if kind is iter:  # a Finish cannot be in a set
        assert len(queue.finish(kind([Finish(job.lease) for job in jobs[2:]]))) == 2
        assert queue.counts().leased == 0
    queue.purge()


@pytest.mark.parametrize(
    "misuse",
    [
        lambda client: client.schedules.put("n", queue="q", every="1h", task="shop.send", arguments=5),
        lambda client: client.schedules.put("n", queue="q", every="1h", task="shop.send", arguments=["to"]),
        lambda client: Topics(client).add_job("t", object()),
        lambda client: Topics(client).test("t", {"a": math.nan}),
        lambda client: Topics(client).add(5, "http://127.0.0.1:1/"),
        lambda client: Topics(client).get(None),
    ],
)
def test_wrong_schedules_and_topics_are_refused(client: duetime.Client, misuse: Misuse) -> None:
    with pytest.raises(InvalidRequest):
        misuse(client)


def test_a_list_of_queues_is_no_text(client: duetime.Client) -> None:
    with pytest.raises(InvalidRequest, match="queues must be a list, got 'mail'"):
        client.reserve("mail")


@pytest.mark.parametrize("settle", ["ack", "release", "give_back", "kill", "extend"])
@pytest.mark.parametrize("leased", [None, 5, "a-job"])
def test_a_wrong_lease_settles_nothing(client: duetime.Client, settle: str, leased: Any) -> None:
    with pytest.raises(InvalidRequest, match="leased job must be a job from pop"):
        getattr(client, settle)(leased)


@pytest.mark.parametrize("settle", ["release", "kill"])
def test_the_error_of_a_job_is_text(client: duetime.Client, settle: str) -> None:
    queue = client.queue("errors")
    queue.push("x", id="x")
    [job] = queue.reserve()
    with pytest.raises(InvalidRequest, match="error must be text, got None"):
        getattr(client, settle)(job, error=None)
    # The name of a file may hold what no UTF-8 can say, and so may the exception that names it.
    getattr(client, settle)(job, error="no such file: \udcff")
    assert queue.get("x").error == "no such file: ?"
    queue.purge()


@pytest.mark.parametrize("name", [5, None, b"mail", "", "a/b"])
def test_a_name_that_no_queue_can_have(client: duetime.Client, name: Any) -> None:
    with pytest.raises(duetime.InvalidName):
        client.queue(name)


@pytest.mark.parametrize("option", [{"token": 5}, {"journal": 5}])
@pytest.mark.parametrize("url", ["memory:", "http://127.0.0.1:1"])
def test_a_wrong_option_of_a_client_is_refused_before_it_is_used(url: str, option: Any) -> None:
    for opened in (duetime.connect, duetime.connect_async, duetime.App):
        with pytest.raises(InvalidSettings, match="must be text, got int"):
            opened(url, **option)


@pytest.mark.parametrize("url", [None, 5, b"memory:"])
def test_a_url_that_is_no_text(url: Any) -> None:
    for connect in (duetime.connect, duetime.connect_async):
        with pytest.raises(InvalidSettings, match="URL of a store or server must be text, got"):
            connect(url)


def test_words_for_priorities_states_and_taken_ids(client: duetime.Client) -> None:
    queue = client.queue("words")
    first = queue.push("a", id="a", priority="high")
    assert queue.push("b", id="a", if_exists="keep").event is Event.KEPT
    assert queue.push("c", id="a", if_exists=IfExists.REPLACE).event is Event.REPLACED
    with pytest.raises(duetime.JobExists):
        queue.later("1h", "d", id="a", if_exists="error")
    assert [job.body for job in queue.list_jobs("ready").jobs] == [b"c"]
    assert first.event is Event.ACCEPTED
    queue.purge(["ready"])


def test_a_delay_that_is_over_is_none(client: duetime.Client) -> None:
    queue = client.queue("over")
    queue.later(-1, "a")
    queue.later(timedelta(seconds=-1), "b")
    queue.later(datetime(2020, 1, 1, tzinfo=UTC), "c")
    queue.push("d", delay=None, due_at=None)
    assert queue.counts().ready == 4
    queue.purge()


def test_a_closed_client_always_raises_client_closed(client: duetime.Client) -> None:
    queue = client.queue("closed")
    client.close()
    client.close()
    for use in (lambda: queue.push("x"), queue.counts, queue.pop, client.queues):
        with pytest.raises(duetime.ClientClosed):
            use()


@pytest.mark.parametrize("body", ["text", {"n": 1}, b"\xff"])
def test_a_call_is_pushed_whatever_its_body_is(client: duetime.Client, body: Any) -> None:
    queue = client.queue("calls")
    with pytest.raises(duetime.NoAnswer):
        queue.call(body, wait="10ms")
    assert queue.purge() == 1
