"""The queue of a topic that is offline has the rule `offline`, and no process sets it by an older copy of the topic."""

import asyncio
from typing import Any

import pytest

from duetime.callbacks import topic_lane
from duetime.model.names import Queue
from duetime.model.topic import Status
from duetime.stores.base import QueueRules, RulesChange
from tests.courier.conftest import World
from tests.plugins.until import until


@pytest.mark.parametrize("last", [Status.ONLINE, Status.OFFLINE])
async def test_a_late_courier_leaves_the_rules_of_a_newer_status(
    world: World, monkeypatch: pytest.MonkeyPatch, last: Status
) -> None:
    """The courier begins to set the rules of one status, and the topic gets another one meanwhile."""
    monkeypatch.setattr(topic_lane, "RULES_AFTER_S", 0.0)
    first = Status.OFFLINE if last is Status.ONLINE else Status.ONLINE
    await world.service.add(world.place("mail"), await world.topic("other"))
    store, courier_goes_on = world.engine.store, asyncio.Event()
    configure, test_task, held, written = store.configure, asyncio.current_task(), [0], list[object]()

    async def slow_for_the_courier(queue: Queue, change: RulesChange | None = None) -> QueueRules:
        if queue.name == "mail" and asyncio.current_task() is not test_task:
            held[0] += 1
            await courier_goes_on.wait()
            if change is not None:
                written.append(change.offline)
        return await configure(queue, change)

    await until(lambda: world.lane("mail") is not None)
    monkeypatch.setattr(store, "configure", slow_for_the_courier)
    await world.service.set_status(world.place("mail"), first)
    await until(lambda: held[0] > 0)
    await world.service.set_status(world.place("mail"), last)
    courier_goes_on.set()

    async def has_followed() -> bool:
        lane: Any = world.lane("mail")
        return lane is not None and lane.topic.status is last and held[0] > 1

    await until(has_followed)
    assert (first is Status.OFFLINE) not in written
    assert (await configure(world.place("mail").queue)).offline is (last is Status.OFFLINE)


async def test_a_courier_leaves_the_rules_to_the_process_that_changes_the_status(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would write the status that it read, perhaps after the next change of the status was answered."""
    monkeypatch.setattr(topic_lane, "RULES_AFTER_S", 3600.0)
    await world.topic("mail")
    store, test_task, others = world.engine.store, asyncio.current_task(), list[object]()
    configure = store.configure

    async def watched(queue: Queue, change: RulesChange | None = None) -> QueueRules:
        if asyncio.current_task() is not test_task:
            others.append(change)
        return await configure(queue, change)

    monkeypatch.setattr(store, "configure", watched)
    for status in (Status.OFFLINE, Status.ONLINE):
        await world.service.set_status(world.place("mail"), status)

        async def has_followed(status: Status = status) -> bool:
            lane: Any = world.lane("mail")
            return lane is not None and lane.topic.status is status

        await until(has_followed)
        for _ in range(20):
            await asyncio.sleep(0)
    assert others == []
