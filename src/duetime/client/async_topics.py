"""Topics through the SDK: queues whose jobs a server delivers to a callback URL.

    topics = AsyncTopics(client)
    await topics.add("mail", "https://shop.example.com/mail", delay="10m")
    await topics.add_job("mail", {"to": "ann"}, id="welcome-17")

Fields are those of `TopicIn` and `TopicChangeIn`.
"""

from typing import Any

from duetime.client import topic_calls
from duetime.client.async_client import AsyncClient
from duetime.model.clock import Instant, instant_ms
from duetime.model.job import Moved
from duetime.model.topic import Status
from duetime.wire.messages import CountersOut, SampleOut, TopicChangeIn, TopicIn, TopicOut


class AsyncTopics:
    """The topics of a client's namespace."""

    def __init__(self, client: AsyncClient) -> None:
        self._send = client.send
        self._namespace = client.namespace
        self._make_id = client.make_id

    async def list_topics(self) -> list[TopicOut]:
        """Return all topics of the namespace, with their counts."""
        return await self._send(topic_calls.list_topics(self._namespace))

    async def counters(self) -> CountersOut:
        """Return how many jobs of all topics were written, notified, deleted and failed, also under php-delayqueue's
        names.
        """
        return await self._send(topic_calls.counters(self._namespace))

    async def add(self, topic: str, callback: str, **fields: Any) -> TopicOut:
        """Create a topic. Raises TopicExists, InvalidCondition."""
        message = topic_calls.read_fields({**fields, "topic": topic, "callback": callback}, TopicIn)
        return await self._send(topic_calls.add(self._namespace, message))

    async def get(self, topic: str) -> TopicOut:
        """Return a topic. Raises TopicNotFound."""
        return await self._send(topic_calls.get(self._namespace, topic))

    async def edit(self, topic: str, **fields: Any) -> TopicOut:
        """Change some fields of a topic. Raises TopicNotFound, InvalidCondition."""
        return await self._send(
            topic_calls.edit(self._namespace, topic, topic_calls.read_fields(fields, TopicChangeIn))
        )

    async def online(self, topic: str) -> TopicOut:
        """Accept jobs again, and continue deliveries after a halt."""
        return await self._send(topic_calls.set_status(self._namespace, topic, Status.ONLINE))

    async def offline(self, topic: str) -> TopicOut:
        """Refuse new jobs. Existing jobs are still delivered."""
        return await self._send(topic_calls.set_status(self._namespace, topic, Status.OFFLINE))

    async def remove(self, topic: str) -> TopicOut:
        """Remove a topic. Its jobs become dead letters when they fall due."""
        return await self._send(topic_calls.remove(self._namespace, topic))

    async def test(self, topic: str, body: Any = None) -> SampleOut:
        """Make one sample call. Returns the request that was sent and the response."""
        return await self._send(topic_calls.sample(self._namespace, topic, topic_calls.body_bytes(body)))

    async def add_job(self, topic: str, body: Any, *, id: str | None = None, due_at: Instant | None = None) -> Moved:
        """Add a job, or replace the one with this id. Raises TopicNotFound, TopicOffline."""
        at = None if due_at is None else instant_ms(due_at)
        return await self._send(
            topic_calls.add_job(self._namespace, topic, id or self._make_id(), topic_calls.body_bytes(body), at)
        )
