"""Topics that are halted, removed, edited or added again while their jobs wait."""

import pytest

from duetime.callbacks.topic_lane import RemovedTopicLane, TopicLane
from duetime.model.job import Lease, Moved, State
from duetime.model.topic import Status
from tests.courier.conftest import World
from tests.courier.receiver import OK, Receiver, Says
from tests.plugins.until import until


async def test_gone_halts_the_topic_until_it_is_put_online(world: World, receiver: Receiver) -> None:
    receiver.answer = lambda call: Says(b"", 410)
    await world.topic()

    await world.add("1")
    await until(lambda: world.lane("mail") is None)
    topic = await world.topics.get(world.place("mail"))

    assert (topic.status, topic.halted) == (Status.OFFLINE, "the receiver answered 410 Gone")
    job = await world.waits("1")
    assert (job.state, job.used) == (State.READY, 0)
    await until(lambda: world.alerts)
    assert world.alerts[0][:2] == ("halted/default/shop/mail", "the topic mail is halted")
    receiver.answer = lambda call: OK
    await world.topics.set_status(world.place("mail"), Status.ONLINE)
    await world.gone("1")


async def test_jobs_of_a_removed_topic_go_to_the_dead_letters(world: World, receiver: Receiver) -> None:
    await world.topic(delay_ms=3_600_000)
    await world.add("now")
    await world.add("later")
    await world.topics.remove(world.place("mail"))
    await until(lambda: isinstance(world.lane("mail"), RemovedTopicLane))

    await world.engine.reschedule(world.place("mail").queue, ["now"])
    job = await world.dead("now")

    assert (job.reason, job.error) == ("killed", "the topic was removed")
    assert receiver.calls == []
    # Added again in time, what is not due yet is delivered after all.
    await world.topic()
    await until(lambda: isinstance(world.lane("mail"), TopicLane))
    await world.engine.reschedule(world.place("mail").queue, ["later"])
    await world.gone("later")


async def test_who_has_not_heard_that_a_topic_is_back_leaves_its_jobs_alone(world: World, receiver: Receiver) -> None:
    """Another process knows of a topic that was added again only a moment later."""
    topic = await world.topic()
    place = world.place("mail")
    await world.courier._stop_reserving()
    stale = RemovedTopicLane(place, topic, world.courier._tools)
    await world.add("1")

    await stale.run()

    job = await world.job("1")
    assert job
    assert (job.state, job.used) == (State.READY, 0)


async def test_a_removed_topic_ends_also_if_a_job_is_deleted_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await world.topic()
    await world.courier._stop_reserving()
    await world.add_many(3)
    await world.topics.remove(world.place("mail"))
    lane, kill = RemovedTopicLane(world.place("mail"), topic, world.courier._tools), world.engine.kill

    async def delete_first(lease: Lease, *, error: str = "") -> Moved:
        if lease.id == "0":
            await world.engine.cancel(lease.queue, ["0"])
        return await kill(lease, error=error)

    monkeypatch.setattr(world.engine, "kill", delete_first)
    assert await lane._round() is not None

    assert (await world.counts()).dead == 2


async def test_a_change_is_known_without_a_restart(world: World, receiver: Receiver) -> None:
    await world.topic()
    await world.topics.edit(world.place("mail"), {"callback": f"{receiver.url}/new"})
    lane = world.lane("mail")
    assert lane
    await until(lambda: lane.topic.callback.endswith("/new"))

    await world.add("1")
    [call] = await receiver.got(1)

    assert call.path == "/new"
