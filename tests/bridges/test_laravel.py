"""Laravel's queues from Python, next to a real Laravel worker on the same Redis or database."""

import asyncio
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from msgspec import structs

import duetime
from duetime.bridges import laravel_worker
from duetime.bridges.laravel import BulkJob, LaravelJob, LaravelQueues, LaravelRedis, connect
from duetime.bridges.laravel_database import LaravelDatabase
from duetime.bridges.laravel_worker import Handler, LaravelWorker
from duetime.bridges.payload import make_payload, next_attempt, read_payload
from duetime.bridges.relay import Relay
from duetime.model.errors import InvalidRequest, LeaseLost
from duetime.model.job import NewJob
from duetime.model.names import Queue
from tests.bridges.laravel_peer import LaravelPeer, database_peer, execute_sqlite, python_worker
from tests.bridges.two_relays import close_and_give_back, push_while_full

PREFIX = "shop_database_"


@pytest.fixture
def laravel(peer: LaravelPeer) -> Iterator[LaravelQueues]:
    queues = connect(peer.url, prefix=PREFIX, handler="Job@fire")
    yield queues
    queues.close()


def until(condition: object, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)


class Worker:
    """Our worker in a thread."""

    def __init__(self, queues: LaravelQueues, **handlers: Handler) -> None:
        self.ran: list[tuple[int, int]] = []
        self.worker = LaravelWorker(queues, {"Job@fire": self._handle, **handlers}, tries=5)

    def _handle(self, job: LaravelJob) -> None:
        self.ran.append((job.data["n"], job.attempts))

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self.worker.run_async()))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self.worker.stop)
        self._thread.join(60)
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


# --- payloads


def test_only_the_digits_of_attempts_change() -> None:
    data = b'{"attempts":7,"list":[],"big":12345678901234567890,"f":1700000000.123456,"s":"\\"}"}'
    text = b'{"job":"A","data":' + data + b',"attempts": 9,"x":1}'
    assert next_attempt(text) == text.replace(b'"attempts": 9', b'"attempts": 10')


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"job":"A"}', b'{"job":"A","attempts":null}', b'{"job":"A","attempts":1.5}']
)
def test_a_payload_that_laravel_would_lose_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidRequest):
        next_attempt(text)


@pytest.mark.parametrize(
    ("backoff", "attempt", "wait"), [("3", 1, 3), ("1,5,10", 2, 5), ("1,5,10", 9, 10), (None, 1, 7), ("x", 1, 7)]
)
def test_the_backoff_of_an_attempt(backoff: str | None, attempt: int, wait: int) -> None:
    payload = read_payload(json.dumps({"job": "A", "backoff": backoff}).encode())
    assert payload.backoff_s(attempt, 7) == wait


def test_the_delay_of_a_payload_before_laravel_8_is_its_backoff() -> None:
    assert read_payload(b'{"job":"A","delay":4,"attempts":0}').backoff_s(1, 7) == 4
    assert read_payload(b'{"job":"A","delay":4,"attempts":0,"backoff":null}').backoff_s(1, 7) == 7


@pytest.mark.parametrize("fields", [{"maxTries": "3"}, {"timeout": 2.5}, {"retryUntil": 1.5e9}, {"failOnTimeout": 1}])
def test_a_payload_that_php_would_run_is_read(fields: dict[str, object]) -> None:
    next_attempt(json.dumps({"job": "A", "attempts": 0} | fields).encode())


def test_no_attempt_begins_after_retry_until_or_after_the_last_try() -> None:
    def ended(attempts: int, **fields: object) -> bool:
        return read_payload(json.dumps({"job": "A"} | fields).encode()).has_ended(attempts, 2)

    soon = int(time.time()) + 60
    assert [ended(n) for n in (0, 1, 2)] == [False, False, True]
    assert [ended(n, maxTries=1) for n in (0, 1)] == [False, True]
    assert not ended(9, maxTries=0)
    for name in ("retryUntil", "timeoutAt"):
        assert not ended(9, maxTries=1, **{name: soon})
        assert ended(0, **{name: soon - 61})


def test_a_serialized_command_is_known_by_its_class() -> None:
    text = {
        "job": "Illuminate\\Queue\\CallQueuedHandler@call",
        "data": {"commandName": "App\\Mail", "command": "O:8:..."},
    }
    payload = read_payload(json.dumps(text).encode())
    assert payload.names[0] == "App\\Mail"


# --- both directions


def test_php_runs_what_python_pushes(peer: LaravelPeer, laravel: LaravelQueues) -> None:
    laravel.push("Job@fire", {"n": 1})
    laravel.later("1s", "Job@fire", {"n": 2})
    assert (laravel.size(), laravel.pending_size(), laravel.delayed_size()) == (2, 1, 1)
    assert peer.run("sizes", "default") == "2\n"
    with peer.working():
        until(lambda: peer.runs() == {1: 1, 2: 1})
    until(lambda: laravel.size() == 0)


def test_python_runs_what_php_pushes(peer: LaravelPeer, laravel: LaravelQueues) -> None:
    peer.run("push", "default", 20, 2)
    with Worker(laravel) as worker:
        until(lambda: len(worker.ran) == 20)
        until(lambda: laravel.size() == 0)
    assert sorted(worker.ran) == [(n, 1) for n in range(20)]


def failed_deletes(peer: LaravelPeer, count: int) -> float:
    """How many jobs may be repeated because PHP's delete failed: in SQLite it reads before it writes, so that it may
    fail with "database is locked".
    """
    return count / 20 if peer.url.startswith("sqlite") else 0


@pytest.mark.timeout(600)
def test_both_sides_share_the_work_and_a_killed_one_loses_nothing(
    peer: LaravelPeer, laravel: LaravelQueues, scale: int
) -> None:
    count, retry_after_s = 100 * scale, 15
    peer.config["connection"]["retry_after"] = retry_after_s
    peer.run("push", "default", count, 2)
    with Worker(laravel) as ours:
        with peer.working() as php:
            until(lambda: len(peer.runs()) + len(ours.ran) > count / 4)
            php.kill()
        with peer.working():
            # A job that was killed before it wrote its line comes back after `retry_after`.
            until(lambda: set(peer.runs()) | {n for n, _ in ours.ran} == set(range(count)), 60 + retry_after_s)
            until(lambda: laravel.pending_size() + laravel.delayed_size() == 0)
    ran = peer.runs() + Counter(n for n, _ in ours.ran)
    # The killed worker may have been cut off after it wrote its line and before it deleted the job. Such a job comes
    # back after `retry_after`, too.
    repeated = sum(ran.values()) - count + laravel.reserved_size()
    assert 0 <= repeated <= 1 + failed_deletes(peer, count)


@pytest.mark.parametrize("producer", ["php", "python"])
@pytest.mark.timeout(600)
def test_every_job_is_done_and_none_early_with_kill_9_of_either_side(
    peer: LaravelPeer, tmp_path: Path, scale: int, producer: str
) -> None:
    count, retry_after_s = 100 * scale, 5
    peer.config["connection"]["retry_after"] = retry_after_s
    ours = connect(peer.url, prefix=PREFIX, retry_after=retry_after_s)
    if producer == "php":
        peer.run("push", "default", count, 4)
    else:
        for n in range(count):
            delay_s = random.uniform(0, 4)
            ours.later(delay_s, "Job@fire", {"n": n, "due": time.time() + delay_s})
    log = tmp_path / "python.log"
    ran = Counter[int]()

    def read() -> int:
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        assert all(early == "0" for _, _, early in lines)
        ran.clear()
        ran.update(peer.runs() + Counter(int(n) for n, _, _ in lines))
        return len(ran)

    arguments = ["laravel", peer.url, log, PREFIX, f"{retry_after_s}s"]
    with python_worker(*arguments) as python, peer.working() as php:
        until(lambda: read() > count / 4)
        python.kill()
        php.kill()
    with python_worker(*arguments) as python, peer.working() as php:
        until(lambda: read() > count / 2)
        php.kill()
        until(lambda: read() == count and ours.size() == 0, 120)
        python.kill()
    assert set(ran) == set(range(count))
    # A worker that is killed between its last line and the end of that job leaves it to another one: Python's runs 4.
    assert 0 <= sum(ran.values()) - count <= 6 + failed_deletes(peer, count)
    ours.close()


def test_a_reservation_that_ends_is_taken_over_and_the_first_holder_is_refused(peer: LaravelPeer) -> None:
    first = connect(peer.url, prefix=PREFIX, retry_after="1s")
    first.push("Job@fire", {"n": 1})
    held = first.pop()
    assert held
    second: LaravelJob | None = None
    while second is None:
        second = first.pop(wait="3s")
    assert (second.data, second.attempts) == ({"n": 1}, 2)
    for late in (held.delete, held.release, held.fail, held.extend):
        with pytest.raises(LeaseLost):
            late()
    second.delete()
    assert first.size() == 0
    first.close()


def test_a_failing_job_waits_for_its_backoff_and_fails_after_its_tries(
    peer: LaravelPeer, laravel: LaravelQueues
) -> None:
    attempts: list[int] = []

    def fail(job: LaravelJob) -> None:
        attempts.append(job.attempts)
        raise ValueError("no")

    laravel.push("Fails", {"n": 1}, tries=2, backoff=[1])
    with Worker(laravel, Fails=fail):
        until(lambda: attempts == [1, 2] and laravel.size() == 0)


def test_a_job_whose_retry_until_has_passed_fails(peer: LaravelPeer, laravel: LaravelQueues) -> None:
    ran: list[int] = []
    for n, ends_at in enumerate((time.time() - 5, time.time() + 60)):
        text = json.loads(make_payload("Late", {"n": n}, time.time()))
        laravel.push_raw(json.dumps(text | {"retryUntil": int(ends_at)}).encode())
    with Worker(laravel, Late=lambda job: ran.append(job.data["n"])):
        until(lambda: laravel.size() == 0)
    assert ran == [1]


@pytest.mark.parametrize("has_uuid", [True, False])
def test_a_failed_job_is_in_the_table_of_failed_jobs(tmp_path: Path, has_uuid: bool) -> None:
    """A table that was made before Laravel 8 has no uuid."""
    url = f"sqlite:{tmp_path / 'laravel.db'}"
    database_peer(url, tmp_path)
    if not has_uuid:
        execute_sqlite(url, "CREATE TABLE old AS SELECT * FROM failed_jobs")
        execute_sqlite(url, "ALTER TABLE old DROP COLUMN uuid")
    laravel = LaravelDatabase(url, failed_table="failed_jobs" if has_uuid else "old", connection="shop")
    laravel.push("A@b", {"n": 1})
    execute_sqlite(url, "INSERT INTO jobs VALUES (9, 'default', 'no json', 0, NULL, 0, 0)")
    job = laravel.pop()
    assert job
    job.fail("it broke")
    assert laravel.pop() is None
    columns = "connection, queue, payload, exception"
    broken, unread = execute_sqlite(url, f"SELECT {columns} FROM {'failed_jobs' if has_uuid else 'old'}")
    assert (broken[0], broken[1], json.loads(broken[2])["data"], broken[3]) == ("shop", "default", {"n": 1}, "it broke")
    assert unread[2] == "no json"
    assert laravel.size() == 0
    laravel.close()


def test_unknown_jobs_are_left_to_php(
    peer: LaravelPeer, laravel: LaravelQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those with one try, which is what PHP's workers allow if the job says nothing."""
    monkeypatch.setattr(laravel_worker, "UNKNOWN_DELAY_S", 1)
    laravel.push("Job@fire", {"n": 1}, tries=1)
    worker = LaravelWorker(laravel, {"Nothing": lambda _: None})
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(worker.run_async()))
    thread.start()
    until(lambda: laravel.delayed_size() == 1)
    loop.call_soon_threadsafe(worker.stop)
    thread.join(60)
    loop.close()
    with peer.working():
        until(lambda: peer.runs() == {1: 1})


def test_a_payload_that_cannot_be_read_is_set_aside(redis_url: str) -> None:
    laravel = LaravelRedis(redis_url)
    laravel._redis.call("RPUSH", "queues:default", b"no json")
    laravel.push("Job@fire", {"n": 1})
    job = laravel.pop()
    assert job is not None
    assert job.data == {"n": 1}
    assert laravel.sizes("default").quarantined == 1
    laravel.close()


# --- relay


def test_jobs_are_relayed_with_their_due_times_and_a_killed_relay_repeats_nothing(
    peer: LaravelPeer, laravel: LaravelQueues, tmp_path: Path
) -> None:
    laravel.push("Job@fire", {"n": 0})
    laravel.later("1h", "Job@fire", {"n": 1})
    ours = Queue("default", "moved")
    with duetime.connect(f"sqlite:{tmp_path / 'ours.db'}") as client:
        batch = laravel.hold("default", 10)
        assert batch is not None
        assert laravel.size() == 0
        relay = Relay(laravel, client)
        # Killed between the push and the end of the batch: the job that ran meanwhile does not come again.
        forget, laravel.forget = laravel.forget, lambda *_: None  # type: ignore[method-assign]
        relay._fetch("default", ours)
        job = client.queue("moved").pop()
        assert job is not None
        assert read_payload(job.body).data == {"n": 0}
        job.ack()
        laravel.forget = forget  # type: ignore[method-assign]
        assert relay.to_duetime("default", ours, follow=False) == 2
        assert laravel.hold("default", 10) is None
        counts = client.queue("moved").counts()
        assert (counts.ready, counts.delayed) == (0, 1)
        [waiting] = client.queue("moved").list_jobs("delayed").jobs
        assert 3_595_000 < waiting.due_at - time.time() * 1000 <= 3_601_000


def test_a_batch_of_two_relays_is_pushed_once_although_the_queue_was_full(
    peer: LaravelPeer, laravel: LaravelQueues, tmp_path: Path
) -> None:
    laravel.bulk([BulkJob("Job@fire", {"n": n}) for n in range(4)])
    other = connect(peer.url, prefix=PREFIX)
    with duetime.connect(f"sqlite:{tmp_path / 'ours.db'}") as client:
        push_while_full(laravel, other, "default", client)
    other.close()


def test_a_refused_batch_of_two_relays_is_given_back_after_a_while(
    laravel: LaravelQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    laravel.bulk([BulkJob("Job@fire", {"n": n}) for n in range(4)])
    close_and_give_back(laravel, "default", monkeypatch)


def test_a_body_that_is_too_large_stays_there(laravel: LaravelQueues, tmp_path: Path) -> None:
    for n, size in enumerate((1, 5 << 20, 1)):
        laravel.later("1h" if n else 0, "Job@fire", {"n": n, "text": "x" * size})
    refused: list[str] = []
    with duetime.connect(f"sqlite:{tmp_path / 'ours.db'}") as client:
        relay = Relay(laravel, client, refuse=lambda job, _: refused.append(job.id))
        assert relay.to_duetime("default", Queue("default", "moved"), follow=False) == 2
        assert client.queue("moved").size() == 2
    sizes = laravel.sizes("default")
    assert (len(refused), sizes.total, sizes.delayed) == (1, 1, 1)
    assert sizes.oldest_due_at is not None
    assert 3_500_000 < sizes.oldest_due_at - time.time() * 1000 < 3_602_000


def test_our_jobs_run_in_php_once(peer: LaravelPeer, laravel: LaravelQueues, tmp_path: Path) -> None:
    with duetime.connect(f"sqlite:{tmp_path / 'ours.db'}") as client:
        for n in range(3):
            client.queue("mine").push({"n": n})
        leased = client.queue("mine").reserve(limit=3)
        laravel.accept("default", [job.delivery for job in leased])
        for job in leased:
            job.give_back()
        # The relay was killed after PHP's side accepted the jobs and before they were acked here.
        assert Relay(laravel, client).from_duetime(Queue("default", "mine"), "default", follow=False) == 3
        assert client.queue("mine").size() == 0
    assert laravel.size() == 3
    with peer.working():
        until(lambda: peer.runs() == {0: 1, 1: 1, 2: 1})


def test_ids_that_differ_in_case_or_blanks_are_different_jobs(laravel: LaravelQueues) -> None:
    """MySQL compares texts without case and without blanks at the end."""
    with duetime.connect("memory:") as client:
        client.queue("mine").bulk([NewJob(name, b"{}") for name in ("a", "A", "a ")])
        leased = client.queue("mine").reserve(limit=3)
        same = [structs.replace(job.delivery, lease=structs.replace(job.lease, born=7)) for job in leased]
        laravel.accept("default", [one for one in same for _ in range(2)])
    assert laravel.size() == 3


def test_a_body_that_is_no_payload_needs_a_handler(peer: LaravelPeer, tmp_path: Path) -> None:
    laravel = connect(peer.url, prefix=PREFIX)
    with duetime.connect(f"sqlite:{tmp_path / 'ours.db'}") as client:
        client.queue("mine").push({"n": 1})
        leased = client.queue("mine").reserve()
        with pytest.raises(InvalidRequest, match="handler"):
            laravel.accept("default", [job.delivery for job in leased])
    assert laravel.size() == 0
    laravel.close()


def test_a_body_that_laravel_cannot_have_stops_no_other_one(laravel: LaravelQueues, tmp_path: Path) -> None:
    refused: list[str] = []
    with duetime.connect(f"sqlite:{tmp_path / 'ours.db'}") as client:
        queue = client.queue("mine")
        for n, body in enumerate((b"text", b"\xff\x00", b'{"n":1}')):
            queue.push(body, id=str(n))
        relay = Relay(laravel, client, refuse=lambda job, _: refused.append(job.id))
        assert relay.from_duetime(Queue("default", "mine"), "default", follow=False) == 2
        assert refused == ["1"]
        [left] = queue.list_jobs("delayed").jobs
        assert (left.id, left.used) == ("1", 0)
    assert laravel.size() == 2


def test_the_same_id_makes_the_same_uuid() -> None:
    texts = [make_payload("A@b", {}, 0, job_id="x") for _ in range(2)]
    assert read_payload(texts[0]).uuid == read_payload(texts[1]).uuid
