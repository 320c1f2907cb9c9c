"""Many topics at once: limits, shares, breakers, leases that are renewed, and a stop that loses nothing."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from duetime.callbacks.courier import Courier, CourierOptions
from duetime.callbacks.limits import Breaker, Slots
from duetime.callbacks.topic_lane import TopicLane
from duetime.model.job import NewJob, Priority, State
from duetime.model.topic import Success
from tests.courier.conftest import LOOPBACK, World
from tests.courier.receiver import OK, Receiver, Says
from tests.plugins.ports import find_free_port
from tests.plugins.until import until


async def test_a_topic_has_at_most_its_own_calls_under_way(world: World, receiver: Receiver) -> None:
    go = receiver.hold()
    await world.topic(in_flight=3)
    await world.add_many(10)

    await receiver.got(3)
    counts = await world.counts()
    assert (counts.leased, len(receiver.calls)) == (3, 3)
    go.set()
    await receiver.got(10)
    await until(lambda: world.courier.in_flight == 0)

    assert receiver.most_at_once == 3


class TestPerHost:
    @pytest.fixture
    def options(self) -> CourierOptions:
        return CourierOptions(allowed=LOOPBACK, per_host=4, grace_s=2)

    async def test_a_host_has_a_limit_over_all_its_topics(self, world: World, receiver: Receiver) -> None:
        go = receiver.hold()
        for key in ("a", "b"):
            await world.topic(key)
        for number in range(20):
            await world.add(str(number), key="ab"[number % 2])

        await receiver.got(4)
        go.set()
        await receiver.got(20)

        assert receiver.most_at_once == 4


async def test_a_slow_topic_does_not_hold_up_a_fast_one(world: World, receiver: Receiver) -> None:
    never = asyncio.Event()
    receiver.answer = lambda call: Says(hold=never) if call.path == "/slow" else OK
    await world.topic("slow", in_flight=5, timeout_ms=60_000)
    await world.topic("fast")
    await world.add_many(50, key="slow")
    await receiver.got(5)

    await world.add_many(50, key="fast")
    await world.all_gone(50, key="fast")

    assert Counter(call.path for call in receiver.calls)["/slow"] == 5
    never.set()


class TestFewSlots:
    @pytest.fixture
    def options(self) -> CourierOptions:
        return CourierOptions(allowed=LOOPBACK, in_flight=1, grace_s=2)

    async def test_topics_share_what_is_scarce_by_their_priority(self, world: World, receiver: Receiver) -> None:
        """Three topics with more than enough jobs get 5 : 3 : 2 of the calls."""
        go = asyncio.Event()
        receiver.answer = lambda call: Says(hold=go) if call.path == "/first" else OK
        await world.topic("first")
        await world.add("1", key="first")
        await receiver.got(1)  # takes the only slot until all others stand in line
        for key, priority in (("high", 1), ("normal", 2), ("low", 3)):
            await world.topic(key, priority=Priority(priority))
            await world.add_many(60, key=key)
        await until(lambda: all(world.courier._tools.slots._lines[one] for one in Priority))

        go.set()
        await receiver.got(101)

        shares = Counter(call.path for call in receiver.calls[1:101])
        assert abs(shares["/high"] - 50) <= 2
        assert abs(shares["/normal"] - 30) <= 2
        assert abs(shares["/low"] - 20) <= 2

    async def test_within_a_topic_jobs_share_by_their_priority(self, world: World, receiver: Receiver) -> None:
        await world.engine.push(
            world.place("mail").queue,
            [
                NewJob(f"{name}-{number}", b'{"p":"%b"}' % name.encode(), priority=priority)
                for name, priority in (("h", Priority.HIGH), ("n", Priority.NORMAL), ("l", Priority.LOW))
                for number in range(50)
            ],
        )
        await world.topic()
        await receiver.got(50)

        shares = Counter(call.fields["p"] for call in receiver.calls[:50])
        assert abs(shares["h"] - 25) <= 2
        assert abs(shares["n"] - 15) <= 2
        assert abs(shares["l"] - 10) <= 2


class TestOneNamespaceIsSlow:
    @pytest.fixture
    def options(self) -> CourierOptions:
        return CourierOptions(allowed=LOOPBACK, in_flight=8, per_host=8, grace_s=2)

    async def test_a_namespace_leaves_half_of_the_slots_to_others(self, world: World, receiver: Receiver) -> None:
        never = asyncio.Event()
        receiver.answer = lambda call: Says(hold=never) if call.path.startswith("/slow") else OK
        await world.topic("other/fast", callback=f"{receiver.url}/fast")
        for key in ("slow-1", "slow-2", "slow-3"):
            await world.topic(key, timeout_ms=600_000, priority=Priority.HIGH)
            await world.add_many(10, key=key)
        await receiver.got(4)

        await world.add_many(20, key="other/fast")
        await world.all_gone(20, key="other/fast")

        assert sum(call.path.startswith("/slow") for call in receiver.calls) == 4
        never.set()

    async def test_a_namespace_that_is_alone_has_all_slots(self, world: World, receiver: Receiver) -> None:
        never = receiver.hold()
        await world.topic(timeout_ms=600_000)
        await world.add_many(20)

        await receiver.got(8)
        assert world.courier.in_flight == 8
        never.set()


async def test_slots_that_are_shared_go_to_the_namespaces_in_turn() -> None:
    slots = Slots(4)
    slots.share(is_shared=True)
    assert await slots.acquire(9, Priority.HIGH, "a") == 2
    blocked = asyncio.create_task(slots.acquire(1, Priority.HIGH, "a"))
    await asyncio.sleep(0)
    assert await slots.acquire(9, Priority.LOW, "b") == 2

    slots.release(1, "b")
    await asyncio.sleep(0)
    assert not blocked.done()
    slots.release(1, "a")
    assert await blocked == 1
    assert await slots.acquire(9, Priority.LOW, "b") == 1
    slots.release(2, "a")
    slots.release(2, "b")
    assert slots.used == 0


async def test_slots_that_are_free_again_go_to_those_who_wait() -> None:
    slots = Slots(2)
    assert await slots.acquire(5, Priority.LOW, "a") == 2
    waiting = [asyncio.create_task(slots.acquire(1, priority, "a")) for priority in (Priority.LOW, Priority.HIGH)]
    await asyncio.sleep(0)
    gone = asyncio.create_task(slots.acquire(1, Priority.HIGH, "a"))
    await asyncio.sleep(0)
    gone.cancel()

    slots.release(2, "a")
    assert await asyncio.gather(*waiting) == [1, 1]
    slots.release(2, "a")
    assert slots.used == 0


async def test_a_cancelled_wait_gives_its_slot_back() -> None:
    slots = Slots(1)
    await slots.acquire(1, Priority.HIGH, "a")
    waiting = asyncio.create_task(slots.acquire(1, Priority.HIGH, "a"))
    await asyncio.sleep(0)
    slots.release(1, "a")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    assert slots.used == 0


def test_a_breaker_opens_probes_and_closes() -> None:
    now = [0.0]
    breaker = Breaker(lambda: now[0], threshold=3)
    for _ in range(3):
        assert (breaker.pauses, breaker.wait_s()) == (0, 0)
        breaker.failed()

    assert breaker.pauses == 1
    assert 0.7 < breaker.wait_s() <= 1
    now[0] += 1
    assert breaker.wait_s() == 0
    breaker.begin()
    assert breaker.wait_s() > 0  # until the probe has ended
    breaker.failed()
    assert breaker.wait_s() > 1.5
    now[0] += 2
    breaker.begin()
    breaker.abandoned()
    assert (breaker.pauses, breaker.wait_s()) == (2, 0)
    breaker.begin()
    breaker.succeeded()
    assert (breaker.pauses, breaker.wait_s()) == (0, 0)
    breaker.pause(10)
    assert breaker.wait_s() == 10


async def test_a_receiver_that_is_down_is_left_alone_and_its_jobs_keep(world: World) -> None:
    port = find_free_port()
    topic = await world.topic("down", callback=f"http://127.0.0.1:{port}/", in_flight=5, schedule="1h")
    await world.add_many(60, key="down")

    lane = world.lane("down")
    assert lane
    await until(lambda: lane.breaker.pauses)
    await until(lambda: world.courier.in_flight == 0)
    counts = await world.counts("down")

    assert topic.in_flight == 5
    assert counts.ready >= 40  # they were not used up on a receiver that does not answer
    assert counts.delayed >= 10
    jobs = await world.engine.store.get(world.place("down").queue, [str(number) for number in range(60)])
    assert "no connection" in next(job.error for job in jobs if job and job.error)


async def test_retry_after_holds_the_whole_topic(world: World, receiver: Receiver) -> None:
    receiver.answer = lambda call: Says(b"busy", 429, {"retry-after": "100"})
    await world.topic(success=Success.BOTH, schedule="1ms")
    await world.add("1")
    job = await world.waits("1")

    lane = world.lane("mail")
    assert lane
    assert lane.breaker.wait_s() > 90
    assert job.due_at >= receiver.calls[0].at_ms + 100_000


async def test_a_rate_spreads_the_calls(world: World, receiver: Receiver) -> None:
    await world.topic(rate=10)
    await world.add_many(10)

    calls = await receiver.got(10)

    assert calls[9].at_ms - calls[0].at_ms >= 450  # of 900, because a busy receiver notes the first one late


LEASE_MS = 1500
"""Short, and longer than a busy machine holds up this process."""


class TestShortLease:
    @pytest.fixture
    def options(self) -> CourierOptions:
        return CourierOptions(allowed=LOOPBACK, lease_ms=LEASE_MS, grace_s=2)

    async def test_the_lease_is_renewed_while_a_call_runs(self, world: World, receiver: Receiver) -> None:
        go = receiver.hold()
        await world.topic(timeout_ms=60_000)
        await world.add("1")
        await receiver.got(1)
        first = await world.job("1")
        assert first

        async def outlived_its_first_lease() -> bool:
            job = await world.job("1")
            return job is not None and job.lease_until >= first.lease_until + LEASE_MS

        await until(outlived_its_first_lease, every_s=0.02)
        go.set()
        await world.gone("1")

        assert len(receiver.calls) == 1


class TestShortLeaseAndFewSlots:
    @pytest.fixture
    def options(self) -> CourierOptions:
        return CourierOptions(allowed=LOOPBACK, lease_ms=LEASE_MS, in_flight=1, grace_s=2)

    async def test_a_job_that_waits_for_room_keeps_its_lease(self, world: World, receiver: Receiver) -> None:
        go = receiver.hold()
        await world.topic("first", timeout_ms=60_000)
        await world.add("1", key="first")
        await receiver.got(1)
        await world.topic("second", timeout_ms=60_000)
        await world.add("2", key="second")
        seen: list[int] = []

        async def renewed() -> bool:
            job = await world.job("2", "second")
            if job and job.lease_until:
                seen.append(job.lease_until)
            return bool(seen) and seen[-1] >= seen[0] + LEASE_MS

        await until(renewed, every_s=0.02)
        job = await world.job("2", "second")
        assert job
        assert job.attempt == 1
        go.set()
        await world.gone("2", key="second")

    async def test_a_job_that_is_deleted_while_it_waits_for_room_is_not_called_for(
        self, world: World, receiver: Receiver
    ) -> None:
        go = receiver.hold()
        await world.topic("first", timeout_ms=60_000)
        await world.add("1", key="first")
        await receiver.got(1)
        await world.topic("second", timeout_ms=60_000)
        await world.add("2", key="second")
        await until(lambda: world.courier.held == 2)

        await world.service.jobs.delete(world.place("second"), "2")
        await until(lambda: world.courier.held == 1)  # the renewal noticed
        go.set()
        await world.gone("1", key="first")
        await world.add("3", key="second")
        await world.gone("3", key="second")

        assert [call.path for call in receiver.calls] == ["/first", "/second"]
        await until(lambda: world.courier.in_flight == 0)


async def test_a_job_that_is_deleted_during_its_call_is_not_counted(world: World, receiver: Receiver) -> None:
    go = receiver.hold()
    topic = await world.topic()
    await world.add("1")
    await receiver.got(1)

    await world.service.jobs.delete(world.place("mail"), "1")
    await world.add("1")
    go.set()
    await receiver.got(2)
    await world.gone("1")

    async def counted() -> bool:
        return await world.totals(topic) == {"written": 2, "notified": 1, "deleted": 1, "failed": 0}

    await until(counted)


async def test_a_stop_finishes_what_runs_and_starts_nothing_new(world: World, receiver: Receiver) -> None:
    go = receiver.hold()
    await world.topic(in_flight=2)
    await world.add_many(5)
    await receiver.got(2)

    stop = asyncio.create_task(world.courier.__aexit__())
    await until(lambda: not world.courier._lanes)
    go.set()
    await stop

    counts = await world.counts()
    assert (len(receiver.calls), counts.ready, counts.leased) == (2, 3, 0)


class TestOnAFile:
    """An ack takes its time there."""

    @pytest.fixture
    def store_url(self, tmp_path: Path) -> str:
        return f"sqlite://{tmp_path}/jobs.db"

    async def test_a_stop_also_acks_what_it_finished(self, world: World, receiver: Receiver) -> None:
        go = receiver.hold()
        topic = await world.topic()
        await world.add_many(5)
        await receiver.got(5)

        stop = asyncio.create_task(world.courier.__aexit__())
        await until(lambda: not world.courier._lanes)
        go.set()
        await stop

        assert (await world.counts()).total == 0

        async def counted() -> bool:
            return (await world.totals(topic))["notified"] == 5

        await until(counted)


class TestShortGrace:
    @pytest.fixture
    def options(self) -> CourierOptions:
        return CourierOptions(allowed=LOOPBACK, grace_s=0.05)

    async def test_what_does_not_end_in_time_is_given_back(self, world: World, receiver: Receiver) -> None:
        never = receiver.hold()
        await world.topic(timeout_ms=60_000)
        await world.add("1")
        await receiver.got(1)

        await world.courier.__aexit__()
        job = await world.job("1")

        assert job
        assert (job.state, job.used) == (State.READY, 0)
        never.set()


async def test_two_couriers_share_the_work(world: World, receiver: Receiver) -> None:
    async with Courier(world.pools, world.registry_copy, options=CourierOptions(allowed=LOOPBACK, grace_s=2)):
        await world.topic()
        await world.add_many(100)
        await receiver.got(100)
        await until(lambda: world.courier.in_flight == 0)

    assert len(receiver.calls) == 100


async def test_an_edit_ends_the_patience_that_a_receiver_asked_for(world: World, receiver: Receiver) -> None:
    # Given a topic whose receiver does not want to be called for a day
    receiver.answer = lambda call: Says(b"no", 503, {"retry-after": "86400"}) if call.path == "/mail" else OK
    await world.topic(success=Success.BOTH)
    lane = world.lane("mail")
    assert isinstance(lane, TopicLane)
    await world.add("1")
    await world.waits("1")
    await world.add("2")
    await until(lambda: lane.breaker.wait_s() > 80_000)

    # When it gets another one
    await world.topics.edit(world.place("mail"), {"callback": f"{receiver.url}/other"})

    # Then that is called at once
    await world.gone("2")
    assert [call.path for call in receiver.calls] == ["/mail", "/other"]


async def test_the_answer_of_an_old_receiver_does_not_hold_calls_to_the_new_one(
    world: World, receiver: Receiver
) -> None:
    go = asyncio.Event()
    patience = Says(b"no", 503, {"retry-after": "86400"}, hold=go)
    receiver.answer = lambda call: patience if call.path == "/mail" else OK
    await world.topic(success=Success.BOTH)
    lane = world.lane("mail")
    assert isinstance(lane, TopicLane)
    await world.add("1")
    await receiver.got(1)

    await world.topics.edit(world.place("mail"), {"callback": f"{receiver.url}/other"})
    await until(lambda: lane.topic.callback.endswith("/other"))
    go.set()
    await world.waits("1")
    await world.add("2")

    await world.gone("2")
