"""Topics as the API and the SDK show them: the one place where records, counts and samples become messages.

The native door calls it for a pool of the server, the SDK for a store that it opened itself.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from typing import Any

from duetime.callbacks.targets import AllowedTargets
from duetime.callbacks.topic_counts import KIND, Count, ProcessCounts, add_up
from duetime.callbacks.topic_jobs import TopicJobs
from duetime.callbacks.topic_registry import TopicPlace, TopicRegistry
from duetime.engine.engine import Engine
from duetime.job import Moved
from duetime.names import DEFAULT_POOL, Queue
from duetime.stores.registry import Registry
from duetime.topic import Status, Topic
from duetime.wire.convert import priority_out
from duetime.wire.topics import (
    CountersOut,
    SampleAnswerOut,
    SampleOut,
    SampleRequestOut,
    TopicCountsOut,
    TopicOut,
)


class TopicService:
    """`targets` is where sample calls may go; `zone` that of times without one."""

    def __init__(
        self,
        registry: Callable[[], Registry],
        engine: Callable[[str], Engine],
        *,
        topics: TopicRegistry | None = None,
        targets: AllowedTargets | None = None,
        zone: tzinfo | None = None,
    ) -> None:
        self.topics = topics or TopicRegistry(registry)
        self.jobs = TopicJobs(engine, self.topics, zone=zone)
        self._registry = registry
        self._targets = targets or AllowedTargets()
        self._zone = zone

    @classmethod
    def of_engine(cls, engine: Engine) -> "TopicService":
        """For a store that is used without a server: its one pool is called default."""
        return cls(lambda: engine.store.registry, lambda _: engine)

    async def list_topics(self, pool: str, namespace: str) -> list[TopicOut]:
        topics = await self.topics.list_topics(pool, namespace)
        counts = await self._counts([topic.id for topic in topics])
        return [topic_out(namespace, topic, counts.get(topic.id)) for topic in topics]

    async def counters(self, pool: str, namespace: str) -> CountersOut:
        """Of all topics of a namespace, removed ones included, by php-delayqueue's names; and their sums."""
        every = add_up(await self._registry().list_records(KIND))
        prefix = f"{namespace}/"
        ours = {number: one for number, one in every.items() if one.pool == pool and one.queue.startswith(prefix)}
        total = pool_counts(ours).get(pool, ProcessCounts(pool, ""))
        named = pool_keys(pool, total)
        for number, one in sorted(ours.items()):
            named |= stat_keys(number, one)
        return CountersOut(
            counters=named,
            totals=_counts_out(total.totals),
            days={day: _counts_out(one) for day, one in sorted(total.days.items())},
        )

    async def get(self, place: TopicPlace) -> TopicOut:
        return await self._show(place, await self.topics.get(place))

    async def add(self, place: TopicPlace, topic: Topic) -> TopicOut:
        """With its secret, if it has one."""
        added = await self.topics.add(place, topic)
        return topic_out(place.queue.namespace, added, None, secret=added.secret)

    async def edit(self, place: TopicPlace, change: Mapping[str, Any]) -> TopicOut:
        """With its secret, if that was changed."""
        topic = await self.topics.edit(place, change)
        return await self._show(place, topic, secret=topic.secret if "secret" in change else "")

    async def set_status(self, place: TopicPlace, status: Status) -> TopicOut:
        return await self._show(place, await self.topics.set_status(place, status))

    async def remove(self, place: TopicPlace) -> TopicOut:
        """Removes the topic and shows it as it was."""
        return await self._show(place, await self.topics.remove(place))

    async def add_job(
        self, place: TopicPlace, job_id: str, body: bytes, *, fix_time: str = "", due_at: int | None = None
    ) -> Moved:
        return await self.jobs.add(place, job_id, body, fix_time=fix_time, due_at=due_at)

    async def sample(self, place: TopicPlace, body: bytes = b"") -> SampleOut:
        """Call once, and tell what was sent and what came back."""
        # Imported late: only the server's extra brings the HTTP client, and an SDK without it can do all the rest.
        from duetime.callbacks.sample import call_sample  # noqa: PLC0415

        topic = await self.topics.get(place)
        sample = await call_sample(topic, place, self._targets, body=body, zone=self._zone)
        letter, answer = sample.letter, sample.answer
        return SampleOut(
            SampleRequestOut(letter.method, letter.url, sample.headers, letter.body),
            SampleAnswerOut(
                answer.status, answer.ms, dict(answer.headers), answer.body.decode(errors="replace"), answer.error
            ),
            sample.verdict,
            sample.why,
        )

    async def _show(self, place: TopicPlace, topic: Topic, *, secret: str = "") -> TopicOut:
        counts = await self._counts([topic.id])
        return topic_out(place.queue.namespace, topic, counts.get(topic.id), secret=secret)

    async def _counts(self, topic_ids: Sequence[int]) -> Mapping[int, ProcessCounts]:
        return add_up(await self._registry().list_records(KIND), topic_ids) if topic_ids else {}


def place_of(namespace: str, key: str, pool: str = DEFAULT_POOL) -> TopicPlace:
    return TopicPlace(pool, Queue(namespace, key))


def topic_out(namespace: str, topic: Topic, counts: ProcessCounts | None, *, secret: str = "") -> TopicOut:
    days = {} if counts is None else {day: _counts_out(one) for day, one in sorted(counts.days.items())}
    return TopicOut(
        namespace=namespace,
        topic=topic.key,
        id=topic.id,
        callback=topic.callback,
        method=topic.method,
        delay_ms=topic.delay_ms,
        timeout_ms=topic.timeout_ms,
        schedule=topic.schedule,
        cap=topic.cap,
        success=topic.success,
        priority=priority_out(topic.priority),
        status=topic.status,
        in_flight=topic.in_flight,
        verify_tls=topic.verify_tls,
        signed=bool(topic.secret),
        totals=_counts_out({} if counts is None else counts.totals),
        days=days,
        name=topic.name,
        retry_if=topic.retry_if,
        lift_cap=topic.lift_cap,
        alert=list(topic.alert),
        creator=topic.creator,
        halted=topic.halted,
        rate=topic.rate,
        secret=secret,
    )


def _counts_out(counts: Mapping[str, int]) -> TopicCountsOut:
    return TopicCountsOut(**{str(what): counts.get(what, 0) for what in Count})


def stat_keys(topic_id: int, counts: ProcessCounts) -> dict[str, int]:
    """php-delayqueue's own names for a topic's counters, as its scripts know them."""
    names = {Count.WRITTEN: "total_write", Count.NOTIFIED: "total_notfiy", Count.DELETED: "total_del"}
    daily = {Count.WRITTEN: "tw", Count.NOTIFIED: "tn", Count.FAILED: "te", Count.DELETED: "tdel"}
    keys = {f"{topic_id}:{name}": counts.totals.get(what, 0) for what, name in names.items()}
    for day, sums in counts.days.items():
        keys |= {f"{topic_id}:{name}:{day}": sums[what] for what, name in daily.items() if what in sums}
    return keys


def pool_keys(pool: str, counts: ProcessCounts) -> dict[str, int]:
    """Those of a Redis, which for us is a pool."""
    names = {Count.WRITTEN: "write", Count.NOTIFIED: "notify", Count.DELETED: "del"}
    return {f"redis:{pool}:dq_{name}_total_nums": counts.totals.get(what, 0) for what, name in names.items()}


def pool_counts(counts: Mapping[int, ProcessCounts]) -> dict[str, ProcessCounts]:
    """The counts of all topics of each pool, removed ones included."""
    pools: dict[str, ProcessCounts] = {}
    for one in counts.values():
        pools.setdefault(one.pool, ProcessCounts(one.pool, "")).absorb(one)
    return pools
