"""The SDK on an embedded engine: real stores, no server."""

import asyncio
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest

import duetime
from duetime.model.errors import InvalidRequest, InvalidTime, JobExists, JobNotFound, LeaseLost, NoAnswer
from duetime.model.job import Event, IfExists, NewJob, State

STORE_KINDS = ["memory", "sqlite"]


@pytest.fixture
def client(store_url: str) -> Iterator[duetime.Client]:
    with duetime.connect(store_url) as client:
        yield client


def test_a_delayed_job_arrives_when_due_and_not_before(client: duetime.Client) -> None:
    queue = client.queue("mail")
    moved = queue.later("200ms", {"to": "ann"})
    assert queue.pop() is None
    delivery = queue.pop(wait="5s")
    assert delivery is not None
    assert delivery.body == b'{"to":"ann"}'
    assert delivery.due_at == moved.due_at
    assert delivery.lease_until - 60_000 >= moved.due_at
    client.ack(delivery)
    client.ack(delivery)
    assert queue.counts().total == 0


def test_a_pop_finishes_the_job_before(client: duetime.Client) -> None:
    queue, other = client.queue("mail"), client.queue("other")
    for number in range(3):
        queue.push(f"{number}")
    first = queue.pop()
    assert first is not None
    with first:  # the block leaves a job alone that was finished in it
        second = queue.pop(ack=first)
        assert first._is_settled
    assert second is not None
    assert (second.body, queue.counts().leased, queue.size()) == (b"1", 1, 2)

    with pytest.raises(LeaseLost):
        queue.pop(ack=msgspec.structs.replace(second.lease, attempt=2))
    with pytest.raises(InvalidTime):
        queue.pop(ack=second, wait=-1)
    assert (queue.counts().leased, queue.counts().ready) == (1, 1)

    assert other.pop(ack=second) is None
    third = queue.pop(ack=second)  # again, which is no error
    assert third is not None
    moved = queue.later("100ms", "late")
    late = queue.pop(ack=third, wait="60s")
    assert late is not None
    assert late.id == moved.id
    assert queue.pop(ack=late) is None
    totals = queue.totals().running
    assert (totals.accepted, totals.delivered, totals.acked, queue.size()) == (4, 4, 4, 0)


def test_laravels_methods(client: duetime.Client) -> None:
    queue = client.queue("default")
    client.push_on("default", "ready")
    client.later_on("default", "1h", "later")
    queue.push_raw(b"\x00\xff", id="raw")
    assert queue.get("raw").body == b"\x00\xff"
    assert (queue.size(), queue.pending_size(), queue.delayed_size(), queue.reserved_size()) == (3, 2, 1, 0)
    first = queue.pop()
    assert first is not None
    assert queue.reserved_size() == 1
    assert queue.oldest_pending() is not None
    assert queue.clear() == 3
    assert queue.oldest_pending() is None


def test_bulk_honours_each_jobs_own_options(client: duetime.Client) -> None:
    queue = client.queue("bulk")
    moved = queue.bulk([NewJob("own", b"1", delay_ms=60_000), *("x" for _ in range(1200))])
    assert len(moved) == 1201
    counts = queue.counts()
    assert (counts.delayed, counts.ready) == (1, 1200)
    with pytest.raises(JobExists):
        queue.bulk([NewJob("own", b"2")], if_exists=IfExists.ERROR)


def test_cancel_reschedule_and_missing_jobs(client: duetime.Client) -> None:
    queue = client.queue("plans")
    queue.push("x", id="x", delay="1h")
    assert queue.reschedule("x", delay="2h").event is Event.RESCHEDULED
    assert queue.cancel("x").event is Event.CANCELLED
    for call in (queue.cancel, queue.get, lambda job_id: queue.reschedule(job_id, delay=0)):
        with pytest.raises(JobNotFound):
            call("x")
    with pytest.raises(InvalidRequest, match="delay or due_at"):
        queue.push("x", delay=1, due_at="2030-01-01T00:00:00Z")


async def test_the_async_client_closes_from_another_task(store_url: str) -> None:
    client = duetime.connect_async(store_url)
    await client.queue("a").push("x")
    assert (await client.queue("a").counts()).ready == 1
    await asyncio.create_task(client.close())


def test_a_subscription_renews_the_lease_of_a_value_that_takes_long(client: duetime.Client) -> None:
    ready = duetime.BlockingQueue(client, "values")
    seen: list[object] = []
    began, go = threading.Event(), threading.Event()

    def consumer(value: object) -> None:
        seen.append(value)
        began.set()
        assert go.wait(60)

    subscription = ready.subscribe(consumer, ttr="1s")
    ready.offer("slow", id="slow")
    assert began.wait(60)
    first = client.queue("values").get("slow").lease_until
    while client.queue("values").get("slow").lease_until < first + 1000:
        time.sleep(0.02)
    go.set()
    subscription.close()
    assert seen == ["slow"]
    assert client.queue("values").counts().total == 0


def test_a_call_waits_for_its_answer(client: duetime.Client) -> None:
    queue = client.queue("sums")

    def worker() -> None:
        delivery = queue.pop(wait="10s")
        assert delivery is not None
        client.queue(delivery.lease.id).push(b"answer to " + delivery.body, attributes={"by": "worker"})
        client.ack(delivery)

    thread = threading.Thread(target=worker)
    thread.start()
    answer = queue.call("1+1", wait="10s")
    thread.join()
    assert (answer.body, answer.attributes) == (b"answer to 1+1", {"by": "worker"})
    assert [status.queue.name for status in client.queues()] == ["sums"]
    with pytest.raises(NoAnswer):
        queue.call("nobody", wait="10ms", id="unheard")
    assert queue.get("unheard").state is State.READY


def test_the_oldest_pending_is_the_oldest_of_all_priorities(client: duetime.Client) -> None:
    queue = client.queue("mixed")
    assert queue.oldest_pending() is None
    queue.push("later", delay="1h")
    assert queue.oldest_pending() is None
    queue.push("low", due_at=1_000, priority=duetime.Priority.LOW)
    queue.push("high", due_at=2_000, priority=duetime.Priority.HIGH)
    assert queue.oldest_pending() == 1_000
