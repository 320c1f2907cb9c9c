"""A receiver, and a courier on a memory store that may call it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC
from ipaddress import ip_network
from typing import Any

import pytest
from msgspec import structs

from duetime.callbacks.courier import Courier, CourierOptions
from duetime.callbacks.topic_lane import RemovedTopicLane, TopicLane
from duetime.callbacks.topic_registry import TopicAddress, TopicRegistry
from duetime.callbacks.topic_service import TopicService
from duetime.engine import Engine
from duetime.engine.pools import Pools
from duetime.engine.registry_copy import RegistryCopy
from duetime.model.job import Counts, Job, State
from duetime.model.names import Queue
from duetime.model.topic import Topic
from duetime.stores.open import open_store
from duetime.wire.convert import topic_of
from duetime.wire.messages import TopicIn
from tests.courier.receiver import Receiver
from tests.plugins.until import until

LOOPBACK = (ip_network("127.0.0.0/8"),)
OPTIONS = CourierOptions(allowed=LOOPBACK, zone=UTC, grace_s=2)


@dataclass
class World:
    """One server process's worth of callbacks, and the words that tests are written in."""

    pools: Pools
    registry_copy: RegistryCopy
    courier: Courier
    service: TopicService
    receiver: Receiver
    alerts: list[tuple[str, str, str, tuple[str, ...]]] = field(default_factory=list)

    @property
    def engine(self) -> Engine:
        return self.pools.engine("default")

    @property
    def topics(self) -> TopicRegistry:
        return self.service.topics

    def place(self, key: str) -> TopicAddress:
        """`mail` is a topic of the namespace shop, `other/mail` of another."""
        namespace, _, name = key.rpartition("/")
        return TopicAddress("default", Queue(namespace or "shop", name))

    def lane(self, key: str) -> TopicLane | RemovedTopicLane | None:
        return self.courier._lanes.get(self.place(key), (None, None))[0]

    async def topic(self, key: str = "mail", **fields: Any) -> Topic:
        """Add a topic with php-delayqueue's rules and return once the courier knows it."""
        callback = fields.pop("callback", f"{self.receiver.url}/{key}")
        return await self._add(key, Topic(key=self.place(key).queue.name, callback=callback, **fields))

    async def new_topic(self, key: str = "mail", **fields: Any) -> Topic:
        """Add a topic as the native API does and return once the courier knows it."""
        return await self._add(key, topic_of(TopicIn(topic=key, callback=f"{self.receiver.url}/{key}", **fields)))

    async def _add(self, key: str, new: Topic) -> Topic:
        topic = await self.topics.add(self.place(key), new)
        await until(lambda: isinstance(self.lane(key), TopicLane))
        return topic

    async def add(self, job_id: str, key: str = "mail", **body: Any) -> None:
        await self.service.jobs.add(self.place(key), job_id, body)

    async def add_many(self, count: int, key: str = "mail") -> None:
        for number in range(count):
            await self.add(str(number), key)

    async def all_gone(self, count: int, key: str = "mail") -> None:
        for number in range(count):
            await self.gone(str(number), key)

    async def job(self, job_id: str, key: str = "mail") -> Job | None:
        [job] = await self.engine.store.get(self.place(key).queue, [job_id])
        return job

    async def counts(self, key: str = "mail") -> Counts:
        [counts] = await self.engine.store.counts([self.place(key).queue])
        return counts

    async def gone(self, job_id: str, key: str = "mail") -> None:
        """Return once the job is acked."""

        async def is_gone() -> bool:
            return await self.job(job_id, key) is None

        await until(is_gone)

    async def waits(self, job_id: str, key: str = "mail", *, attempt: int = 1) -> Job:
        """Return the job once it waits for its next attempt."""
        return await self._in(job_id, key, {State.DELAYED, State.READY}, attempt)

    async def dead(self, job_id: str, key: str = "mail") -> Job:
        return await self._in(job_id, key, {State.DEAD}, 0)

    async def _in(self, job_id: str, key: str, states: set[State], attempt: int) -> Job:
        found: list[Job] = []

        async def is_there() -> bool:
            job = await self.job(job_id, key)
            if job and job.state in states and job.attempt >= attempt:
                found.append(job)
            return bool(found)

        await until(is_there)
        return found[0]

    async def totals(self, topic: Topic) -> dict[str, int]:
        """The topic's counts, as an administrator sees them."""
        shown = await self.service.get(self.place(topic.key))
        assert shown.totals
        return structs.asdict(shown.totals)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as running:
        yield running


@pytest.fixture
def options() -> CourierOptions:
    return OPTIONS


@pytest.fixture
def store_url() -> str:
    return "memory:"


@pytest.fixture
async def world(receiver: Receiver, options: CourierOptions, store_url: str) -> AsyncIterator[World]:
    alerts: list[tuple[str, str, str, tuple[str, ...]]] = []

    async def alert(kind: str, subject: str, text: str, addresses: Any) -> None:
        alerts.append((kind, subject, text, tuple(addresses)))

    async with (
        Pools({"default": store_url}, open_store=open_store) as pools,
        RegistryCopy(lambda: pools.registry) as registry_copy,
    ):
        async with Courier(pools, registry_copy, options=options, alert=alert) as courier:
            service = TopicService(
                lambda: pools.registry,
                pools.engine,
                topics=TopicRegistry(lambda: pools.registry, registry_copy),
                zone=UTC,
            )
            yield World(pools, registry_copy, courier, service, receiver, alerts)
        assert await pools.engine("default").store.check() == []
