"""Calls in a blocking caller's own thread: when they are made, who hears of them, and what an interruption leaves."""

import asyncio
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import redis

from duetime import connect
from duetime.client.client import Client
from duetime.client.embedded_transport import SyncEmbedded
from duetime.client.store_calls import journal_nodes
from duetime.engine import Engine
from duetime.engine.recorder import Recorder, StoreCall
from duetime.engine.requests import AckRequest, PushRequest
from duetime.journal.events import Entry
from duetime.journal.reader import read_journal
from duetime.model.clock import ManualClock
from duetime.model.errors import BodyTooLarge, InvalidRequest, JobExists, LeaseLost, StoreUnavailable
from duetime.model.job import Lease, NewJob
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed
from duetime.stores.one_job import FastPathBackoff
from duetime.stores.open import open_store
from duetime.stores.redis.one_job import BlockingRedis
from tests.faults.redis_vocabulary import dump, lease_one, opened, push_one
from tests.plugins.until import until

QUEUE = Queue("default", "mail")


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        found = str(request.getfixturevalue("redis_url"))
        with redis.Redis.from_url(found) as client:
            client.flushall()
        return found
    return f"sqlite://{tmp_path}/jobs.db?synchronous=off&reserve=0"


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with connect(url) as client:
        queue = client.queue("mail")
        queue.push("first")
        with queue.take():  # the queue is known now, and the engine is registered
            pass
        yield client


def transport(client: Client) -> SyncEmbedded:
    return cast(SyncEmbedded, client._transport.get())


def engine_of(client: Client) -> Engine:
    found = transport(client)._inner.engine
    assert found is not None
    return found


@pytest.fixture
def loop_calls(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows with every call that goes through the event loop."""
    calls: list[object] = []
    run = asyncio.run_coroutine_threadsafe
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", lambda *given: (calls.append(given), run(*given))[1])
    return calls


def test_one_job_at_a_time_needs_no_event_loop(client: Client, loop_calls: list[object]) -> None:
    queue = client.queue("mail")

    def is_direct() -> bool:
        loop_calls.clear()
        moved = queue.later("0s", "hello", ttl="1h")
        job = queue.pop()
        assert job is not None
        assert (job.id, job.body, job.attempt) == (moved.id, b"hello", 1)
        job.ack()
        assert queue.pop() is None
        return not loop_calls

    # The reaper may write in the same instant, but not each time.
    asyncio.run(until(is_direct))


def test_a_consumer_finishes_a_job_and_takes_the_next_in_one_step(client: Client, loop_calls: list[object]) -> None:
    queue = client.queue("mail")

    def is_direct() -> bool:
        pushed = [queue.push(f"{number}").id for number in range(5)]
        loop_calls.clear()
        taken, job = list[str](), queue.pop()
        while job:
            taken.append(job.id)
            job = queue.pop(ack=job)
        answer = not loop_calls
        assert taken == pushed
        assert queue.size() == 0
        return answer

    asyncio.run(until(is_direct))
    totals = queue.totals().running
    assert totals.accepted == totals.delivered == totals.acked


def test_blocking_calls_are_refused_with_the_usual_errors(client: Client) -> None:
    queue = client.queue("mail")
    queue.push("a", id="taken")
    with pytest.raises(JobExists):
        queue.push("b", id="taken", if_exists="error")
    with pytest.raises(BodyTooLarge):
        queue.push(b"x" * 5_000_000)
    job = queue.pop()
    assert job is not None
    with pytest.raises(LeaseLost):
        client.ack(Lease(job.lease.queue, job.lease.id, job.lease.born, job.lease.attempt + 1))
    client.ack(job)
    client.ack(job)
    assert queue.size() == 0


def test_a_push_wakes_a_waiting_consumer_of_the_same_program(client: Client) -> None:
    queue = client.queue("mail")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(queue.pop, wait=60)
        asyncio.run(until(lambda: engine_of(client).parked == 1))
        queue.push("wake up")

        job = waiting.result(60)
        assert job is not None
        assert job.body == b"wake up"


def test_many_threads_push_and_take_each_job_once(client: Client) -> None:
    queue = client.queue("mail")
    taken: list[str] = []

    def work(number: int) -> None:
        for index in range(25):
            queue.push(f"{number}/{index}")
            with queue.take(60) as job:
                taken.append(job.text())

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))

    assert sorted(taken) == sorted(f"{number}/{index}" for number in range(8) for index in range(25))
    assert queue.size() == 0


def test_after_the_close_nothing_is_done(client: Client) -> None:
    engine = engine_of(client)
    client.close()
    with pytest.raises(StoreUnavailable):
        engine.run_blocking(PushRequest(QUEUE, Push([NewJob("late", b"")])))
    with pytest.raises(StoreUnavailable):
        engine.run_blocking(AckRequest(QUEUE, [Lease(QUEUE, "late", 1, 1)]))


# --- interruptions


class Interrupted(Exception):
    pass


@pytest.fixture
def alarm() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Interrupts this thread in a moment; what it is given is called before that, in the signal's handler."""

    def arm(before: Callable[[], object]) -> None:
        def ring(*_: object) -> None:
            before()
            raise Interrupted

        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.05)

    old = signal.getsignal(signal.SIGALRM)
    yield arm
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, old)


def hold(client: Client) -> Callable[[], None]:
    """Stops the store; the answer lets it go on."""
    url = client._url
    if url.startswith("redis"):
        other = redis.Redis.from_url(url)
        other.client_pause(60_000, all=False)
        return lambda: (other.client_unpause(), other.close(), None)[-1]
    other = sqlite3.connect(
        url.removeprefix("sqlite://").partition("?")[0], isolation_level=None, check_same_thread=False
    )
    other.execute("BEGIN IMMEDIATE")
    return other.close


def test_a_caller_that_is_interrupted_keeps_no_lease(
    client: Client, alarm: Callable[[Callable[[], object]], None]
) -> None:
    queue = client.queue("mail")
    queue.push("mine")
    alarm(hold(client))
    with pytest.raises(Interrupted):
        queue.pop(ttr="10m")

    asyncio.run(until(lambda: queue.counts().leased == 0 and queue.counts().ready == 1))
    with queue.take(60) as job:
        assert job.body == b"mine"


def test_a_signal_handler_may_not_call_the_client_during_a_call(client: Client) -> None:
    queue, rings = client.queue("mail"), list[int]()
    release, program = hold(client), threading.get_ident()

    def ring(number: int, _: object) -> None:
        rings.append(number)
        try:
            with pytest.raises(InvalidRequest, match="signal handler"):
                queue.push("from the handler")
        finally:
            release()

    def interrupt() -> None:
        while program not in transport(client)._calling:
            time.sleep(0.001)
        signal.pthread_kill(program, signal.SIGALRM)

    old = signal.signal(signal.SIGALRM, ring)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        queue.push("from the program")
    finally:
        thread.join()
        signal.signal(signal.SIGALRM, old)

    assert rings == [signal.SIGALRM]
    assert queue.size() == 1
    queue.push("again")


def test_a_signal_handler_may_use_the_client_between_calls(client: Client) -> None:
    queue = client.queue("mail")
    old = signal.signal(signal.SIGALRM, lambda *_: queue.push("from the handler"))
    try:
        signal.raise_signal(signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, old)
    assert queue.size() == 1


# --- who records it


class Watcher(Recorder):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def after(self, call: StoreCall, outcome: Any) -> Any:
        self.heard.append(call.verb)
        return outcome


async def test_a_recorder_gets_the_calls_of_blocking_callers(url: str) -> None:
    store, watcher = await open_store(url), Watcher()
    async with Engine(store, recorders=[watcher]) as engine:
        engine.open_blocking()
        for job_id in ("first", "second"):
            request = PushRequest(QUEUE, Push([NewJob(job_id, b"")]))
            assert (await asyncio.to_thread(engine.run_blocking, request)).jobs[0].id == job_id
        assert watcher.heard.count("push") == 2
    await store.close()


def test_a_program_stays_without_the_journal_that_begins_during_its_life(url: str, tmp_path: Path) -> None:
    with connect(url) as early:
        early.queue("mail").push("early")
        with connect(url, journal=str(tmp_path / "journal")) as late:
            late.queue("mail").push("late", id="late")
            nodes = late.send(journal_nodes("default"))
        early.queue("mail").push("unrecorded")
    assert sorted(node.journal for node in nodes.values()) == [False, True]
    entries = [item for item in read_journal(tmp_path / "journal") if isinstance(item, Entry) and item.id]
    assert [entry.id for entry in entries] == ["late"]


# --- Redis alone


@pytest.mark.store_kind("redis")
def test_an_answer_that_is_lost_is_not_taken_for_a_refusal() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            for _ in range(3):
                caller, _ = listener.accept()
                caller.recv(65_536)
                caller.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        direct = BlockingRedis.of(f"redis://127.0.0.1:{listener.getsockname()[1]}", None, FastPathBackoff())
        assert direct is not None
        with pytest.raises(StoreUnavailable) as lost:
            direct.push(QUEUE, Push([NewJob("a", b"")]))
        assert lost.value.fields["unknown"] is True
        with pytest.raises(StoreUnavailable):
            direct.ack(Lease(QUEUE, "a", 1, 1))
        with pytest.raises(StoreUnavailable):
            direct.ack_and_reserve(Lease(QUEUE, "a", 1, 1), Ask(1, 60_000), lambda _: None)
        thread.join()
    assert direct.push(QUEUE, Push([NewJob("a", b"")])) is None, "nobody listens, so nothing was done"


@pytest.mark.store_kind("redis")
async def test_a_connection_that_redis_closed_is_made_anew(redis_url: str) -> None:
    store = await open_store(redis_url)
    await store.push(QUEUE, [Push([NewJob("first", b"")])])
    direct = BlockingRedis.of(redis_url, None, FastPathBackoff())
    assert direct is not None
    await store.push(QUEUE, [Push([NewJob("known script", b"")])])
    await store.reserve(QUEUE, [Ask(1, 60_000)])
    assert isinstance(direct.push(QUEUE, Push([NewJob("a", b"")])), Pushed)
    with redis.Redis.from_url(redis_url) as client:
        client.client_kill_filter(_type="normal", skipme=True)
    assert isinstance(direct.push(QUEUE, Push([NewJob("b", b"")])), Pushed)
    direct.close()
    await store.close()


@pytest.mark.store_kind("redis")
@pytest.mark.parametrize("url", ["redis+cluster://host", "redis+sentinel://host/service"])
def test_other_topologies_have_no_direct_calls(url: str) -> None:
    assert BlockingRedis.of(url, None, FastPathBackoff()) is None


@pytest.mark.store_kind("redis")
@pytest.mark.parametrize("case", ["ready", "delayed", "delivered before", "last"])
async def test_the_script_next_one_leaves_what_ack_and_reserve_leave(redis_url: str, case: str) -> None:
    dumps: list[dict[bytes, bytes]] = []
    answers: list[object] = []
    for is_short in (True, False):
        with redis.Redis.from_url(redis_url) as client:
            client.flushall()
        clock = ManualClock()
        async with opened(redis_url, clock) as store:
            await push_one(store, "done")
            lease = await lease_one(store)
            clock.advance("5s")
            if case != "last":
                await push_one(store, "next", delay_ms=60_000 if case == "delayed" else 0, tries=7)
            if case == "delivered before":
                await store.release(await lease_one(store), 0, "")
            clock.advance("1s")
            ask, direct = Ask(1, 60_000, (0, 1, 0)), store.one_job.blocking()
            assert direct is not None
            if is_short:
                answers.append(direct.ack_and_reserve(lease, ask, lambda _: None))
                assert direct.ack_and_reserve(lease, ask, lambda _: None) is None, "the lease is gone"
            else:
                await store.ack(lease.queue, [lease])
                answers.append(await store.reserve(lease.queue, [ask]))
            direct.close()
        dumps.append({key: value for key, value in dump(redis_url).items() if key != b"dt:epoch"})
    assert msgspec.json.encode(answers[0]) == msgspec.json.encode(answers[1])
    assert dumps[0] == dumps[1]
