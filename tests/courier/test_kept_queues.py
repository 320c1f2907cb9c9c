"""The queue of a topic is kept with its totals for as long as there is the topic, or jobs of it."""

from duetime.callbacks.topic_lane import RemovedTopicLane
from duetime.callbacks.topic_registry import REMOVED_KIND
from tests.courier.conftest import World
from tests.plugins.until import until


async def kept(world: World) -> bool:
    return (await world.engine.store.configure(world.place("mail").queue)).kept


async def test_the_queue_of_a_topic_that_was_there_before_is_kept(world: World) -> None:
    # The registry alone adds it, as releases did that knew nothing of kept queues.
    await world.topic()

    await until(lambda: kept(world))


async def test_the_queue_of_a_removed_topic_is_kept_until_its_last_job_is_gone(world: World) -> None:
    await world.topic(delay_ms=3_600_000)
    await until(lambda: kept(world))
    await world.add("1")

    await world.service.remove(world.place("mail"))
    await until(lambda: isinstance(world.lane("mail"), RemovedTopicLane))
    assert await kept(world)
    assert (await world.service.counters("default", "shop")).totals.written == 1

    await world.engine.reschedule(world.place("mail").queue, ["1"], delay_ms=0)
    assert (await world.dead("1")).error == "the topic was removed"
    await until(lambda: not world.topics.known(REMOVED_KIND))
    assert not await kept(world)


async def test_a_topic_that_is_added_while_its_removal_ends_has_a_kept_queue(world: World) -> None:
    await world.topic()
    await until(lambda: kept(world))
    topic = await world.topics.get(world.place("mail"))
    lane = RemovedTopicLane(world.place("mail"), topic, world.courier._tools)

    assert await lane._round() is None

    assert await kept(world)
