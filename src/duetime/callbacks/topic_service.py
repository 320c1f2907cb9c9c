"""Topics and their jobs for the protocols and the SDK: the one place where records, totals and samples become messages.

The native API calls it for a pool of the server, the SDK for a store that it opened itself. The counts of a topic are
the totals of its queue. The store keeps them in the same steps that move jobs, so they stay exact if a process dies.

`TopicJobs` has php-delayqueue's three commands without its protocol. Each of them writes a line to the log
`duetime.request`, and every callback one to `duetime.notify`; both name topic, namespace and id, so that the two can be
compared.
"""

import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, tzinfo
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from duetime.callbacks.request import clock_text, fields_of
from duetime.callbacks.targets import AllowedTargets
from duetime.callbacks.topic_registry import KIND, REMOVED_KIND, TopicAddress, TopicRegistry
from duetime.engine.engine import Engine
from duetime.model.clock import SystemClock
from duetime.model.errors import DuetimeError, InvalidTime, JobNotFound, StoreUnavailable, TopicOffline
from duetime.model.job import IfExists, Moved, NewJob, QueueTotals, Totals, chunks
from duetime.model.names import Queue, check_id
from duetime.model.topic import Status, Topic
from duetime.stores.base import parts_of
from duetime.stores.registry import Registry
from duetime.wire.convert import PRIORITY_OUT
from duetime.wire.messages import CountersOut, SampleAnswerOut, SampleOut, SampleRequestOut, TopicCountsOut, TopicOut

log = logging.getLogger("duetime.topics")
request_log = logging.getLogger("duetime.request")

Body = Mapping[str, Any] | bytes
"""Fields, or bytes, which may be a JSON object with fields."""

SHOWN_AS_KEPT = (set(Topic.__struct_fields__) & set(TopicOut.__struct_fields__)) - {"priority", "alert", "secret"}
"""The fields of a topic that its message has under the same name and in the same form."""


class TopicService:
    """`targets` says where sample calls may go; `zone` is the time zone of times without one."""

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
        self._engine = engine
        self._targets = targets or AllowedTargets()
        self._zone = zone

    @classmethod
    def of_engine(cls, engine: Engine) -> "TopicService":
        """For a store that is used without a server: it is the pool `default`, and its registry holds the topics."""
        return cls(lambda: engine.store.registry, lambda _: engine)

    async def list_topics(self, pool: str, namespace: str) -> list[TopicOut]:
        topics = await self.topics.list_topics(pool, namespace)
        totals = await self._known_totals(pool, [Queue(namespace, topic.key) for topic in topics])
        return [topic_out(namespace, topic, one) for topic, one in zip(topics, totals, strict=True)]

    async def counters(self, pool: str, namespace: str) -> CountersOut:
        """The counts of all topics of a namespace by php-delayqueue's names, and their sums. Removed topics are
        included while they have jobs. Raises StoreUnavailable.
        """
        removed, present = [await self.topics.list_topics(pool, namespace, kind) for kind in (REMOVED_KIND, KIND)]
        topics = sorted({topic.key: topic for topic in (*removed, *present)}.values(), key=lambda topic: topic.id)
        totals = await self._totals(pool, [Queue(namespace, topic.key) for topic in topics])
        counted = [
            (topic.id, _counts_out(one.running), _days_out(one)) for topic, one in zip(topics, totals, strict=True)
        ]
        total = _sum_of([running for _, running, _ in counted])
        named = pool_keys(pool, total)
        for topic_id, running, days in counted:
            named |= stat_keys(topic_id, running, days)
        all_days = sorted({day for _, _, days in counted for day in days})
        return CountersOut(
            counters=named,
            totals=total,
            days={day: _sum_of([days[day] for _, _, days in counted if day in days]) for day in all_days},
        )

    async def get(self, address: TopicAddress) -> TopicOut:
        return await self._show(address, await self.topics.get(address))

    async def add(self, address: TopicAddress, topic: Topic) -> TopicOut:
        """Add a topic; the answer shows its secret, if it has one."""
        added = await self.topics.add(address, topic)
        await self._set_rules(address)
        return await self._show(address, added, secret=added.secret)

    async def edit(self, address: TopicAddress, change: Mapping[str, Any]) -> TopicOut:
        """Edit a topic; the answer shows its secret, if that was changed."""
        topic = await self.topics.edit(address, change)
        return await self._show(address, topic, secret=topic.secret if "secret" in change else "")

    async def set_status(self, address: TopicAddress, status: Status) -> TopicOut:
        topic = await self.topics.set_status(address, status)
        await self._set_rules(address)
        return await self._show(address, topic)

    async def remove(self, address: TopicAddress) -> TopicOut:
        """Remove the topic; the answer shows it as it was."""
        topic = await self.topics.remove(address)
        await self._set_rules(address)
        return await self._show(address, topic)

    async def _set_rules(self, address: TopicAddress) -> None:
        """If the topic's pool does not answer, the courier sets them later."""
        try:
            await self.topics.set_rules(self._engine(address.pool), address)
        except DuetimeError as error:
            log.warning("rules_not_set", extra={"topic": address.key, "error": error.message})

    async def sample(self, address: TopicAddress, body: bytes = b"") -> SampleOut:
        """Call the topic's callback once; answers the request and the answer."""
        return await self.sample_of(address, await self.topics.get(address), body)

    async def sample_of(self, address: TopicAddress, topic: Topic, body: bytes = b"") -> SampleOut:
        """Call the callback as `sample` does, for a topic that need not be registered."""
        # Imported late: only the server's extra installs the HTTP client, and the rest of this module works without it.
        from duetime.callbacks.caller import call_sample  # noqa: PLC0415

        sample = await call_sample(topic, address, self._targets, body=body, zone=self._zone)
        request, answer = sample.request, sample.answer
        return SampleOut(
            SampleRequestOut(request.method, request.url, sample.headers, request.body.decode(errors="replace")),
            SampleAnswerOut(
                answer.status, answer.ms, dict(answer.headers), answer.body.decode(errors="replace"), answer.error
            ),
            sample.verdict,
            sample.why,
        )

    async def _show(self, address: TopicAddress, topic: Topic, *, secret: str = "") -> TopicOut:
        [totals] = await self._known_totals(address.pool, [address.queue])
        return topic_out(address.queue.namespace, topic, totals, secret=secret)

    async def _known_totals(self, pool: str, queues: Sequence[Queue]) -> Sequence[QueueTotals | None]:
        """Returns None for each queue while the pool does not answer, so that its topics can be shown and edited."""
        try:
            return await self._totals(pool, queues)
        except DuetimeError as error:
            log.warning("counts_not_read", extra={"pool": pool, "error": error.message})
            return [None] * len(queues)

    async def _totals(self, pool: str, queues: Sequence[Queue]) -> Sequence[QueueTotals]:
        found: list[QueueTotals] = []
        for some in chunks(queues):
            found += await self._engine(pool).store.totals(some)
        return found


def topic_out(namespace: str, topic: Topic, totals: QueueTotals | None, *, secret: str = "") -> TopicOut:
    same = {name: getattr(topic, name) for name in SHOWN_AS_KEPT}
    return TopicOut(
        **same,
        namespace=namespace,
        topic=topic.key,
        priority=PRIORITY_OUT[topic.priority],
        signed=bool(topic.secret),
        totals=None if totals is None else _counts_out(totals.running),
        days={} if totals is None else _days_out(totals),
        alert=list(topic.alert),
        secret=secret,
    )


def _counts_out(totals: Totals) -> TopicCountsOut:
    """Failed callbacks are the releases (those that are repeated) and the dead letters (those that failed last)."""
    return TopicCountsOut(
        written=totals.accepted,
        notified=totals.acked,
        deleted=totals.cancelled,
        failed=totals.released + totals.dead,
    )


def _days_out(totals: QueueTotals) -> dict[str, TopicCountsOut]:
    return {f"{day:%Y%m%d}": _counts_out(one) for day, one in sorted(totals.days.items())}


def _sum_of(counts: Iterable[TopicCountsOut]) -> TopicCountsOut:
    sums = Counter[str]()
    for one in counts:
        sums.update(structs.asdict(one))
    return TopicCountsOut(**sums)


def stat_keys(topic_id: int, running: TopicCountsOut, days: Mapping[str, TopicCountsOut]) -> dict[str, int]:
    """A topic's counters by the names that php-delayqueue's scripts know; `total_notfiy` is its own spelling."""
    keys = {
        f"{topic_id}:total_write": running.written,
        f"{topic_id}:total_notfiy": running.notified,
        f"{topic_id}:total_del": running.deleted,
    }
    for day, one in days.items():
        daily = {"tw": one.written, "tn": one.notified, "te": one.failed, "tdel": one.deleted}
        keys |= {f"{topic_id}:{name}:{day}": count for name, count in daily.items() if count}
    return keys


def pool_keys(pool: str, counts: TopicCountsOut) -> dict[str, int]:
    """The counters that php-delayqueue keeps of a Redis, which is a pool here."""
    names = {"write": counts.written, "notify": counts.notified, "del": counts.deleted}
    return {f"redis:{pool}:dq_{name}_total_nums": count for name, count in names.items()}


class TopicJob(NamedTuple):
    """A job for a topic. It is due at `fix_time` (`Y-m-d H:i:s`) or `due_at`, else after the topic's delay."""

    id: str
    body: Body
    fix_time: str = ""
    due_at: int | None = None


class TopicJobs:
    """A job takes its delay and priority from its topic. Its tries are unlimited, because the topic's cap ends them.

    `zone` is the time zone of times without one; None means the server's own.
    """

    def __init__(self, engine: Callable[[str], Engine], topics: TopicRegistry, *, zone: tzinfo | None = None) -> None:
        self._engine = engine
        self._topics = topics
        self._zone = zone
        self._clock = SystemClock()

    async def add(
        self,
        address: TopicAddress,
        job_id: str,
        body: Body,
        *,
        fix_time: str = "",
        due_at: int | None = None,
    ) -> Moved:
        """Add a job, or replace the one with this id. It is due at `fix_time` (`Y-m-d H:i:s`) or `due_at`, else after
        the topic's delay.

        Raises TopicNotFound, TopicOffline, InvalidTime and what a push raises.
        """
        with _logged_refusal("add", address, job_id):
            [added] = await self.add_all(address, [TopicJob(job_id, body, fix_time, due_at)])
            if isinstance(added, StoreUnavailable):
                raise added
        return added

    async def add_all(self, address: TopicAddress, given: Sequence["TopicJob"]) -> Sequence[Moved | StoreUnavailable]:
        """Add jobs with different ids, all or none; in a group of stores, the error is the answer for the jobs of a
        member that is down. Raises what `add` raises, and logs no refusal.
        """
        topic = await self._topics.find(address)
        if topic.status is not Status.ONLINE:
            raise TopicOffline.of_queue()
        jobs = [self._job(topic, one) for one in given]
        added: Sequence[Moved | StoreUnavailable]
        try:
            added = (await self._engine(address.pool).push(address.queue, jobs, if_exists=IfExists.REPLACE)).jobs
        except StoreUnavailable as error:
            done = {moved.id: moved for _, pushed in parts_of(error) for moved in pushed.jobs}
            if not done:
                raise
            added = [done.get(job.id, error) for job in jobs]
        for moved in added:
            if isinstance(moved, Moved):
                _log("added", address, moved.id, due_at=moved.due_at, moved=str(moved.event))
        return added

    def _job(self, topic: Topic, given: "TopicJob") -> NewJob:
        job_id, body, fix_time, at = given
        check_id(job_id)
        if fix_time:
            at = read_clock_text(fix_time, self._zone)
        kept = body if isinstance(body, bytes) else msgspec.json.encode(body)
        if topic.php_fields and (fields := fields_of(kept or b"{}")) is not None:
            now = self._clock.now_ms()
            fields["notify_time"] = clock_text(at if at is not None else now + topic.delay_ms, self._zone)
            fields.setdefault("dq_set_time", clock_text(now, self._zone))
            kept = msgspec.json.encode(fields)
        delay_ms = 0 if at is not None else topic.delay_ms
        return NewJob(job_id, kept, delay_ms=delay_ms, due_at=at, tries=0, priority=topic.priority)

    async def get(self, address: TopicAddress, job_id: str) -> bytes:
        """The stored body, also while the topic is offline. Raises JobNotFound."""
        with _logged_refusal("get", address, job_id):
            [job] = await self._engine(address.pool).store.get(address.queue, [check_id(job_id)])
            if job is None:
                raise JobNotFound.of(job_id, address.queue)
        _log("got", address, job_id)
        return job.body

    async def delete(self, address: TopicAddress, job_id: str) -> Moved:
        """Remove a job in any state, also while the topic is offline. Raises JobNotFound."""
        with _logged_refusal("delete", address, job_id):
            [moved] = await self._engine(address.pool).cancel(address.queue, [job_id])
            if moved is None:
                raise JobNotFound.of(job_id, address.queue)
        _log("deleted", address, job_id)
        return moved


def read_clock_text(text: str, zone: tzinfo | None) -> int:
    """`2026-11-15 09:00:00` as epoch milliseconds. Raises InvalidTime."""
    try:
        at = datetime.strptime(text.strip(), "%Y-%m-%d %H:%M:%S")
        return int(at.replace(tzinfo=zone).timestamp()) * 1000
    except (ValueError, OverflowError):
        raise InvalidTime(f"fix_time must be like 2026-11-15 09:00:00, got {text[:40]!r}") from None


@contextmanager
def _logged_refusal(verb: str, address: TopicAddress, job_id: str) -> Generator[None]:
    try:
        yield
    except DuetimeError as error:
        _log(f"{verb}_refused", address, job_id, why=error.code)
        raise


def _log(event: str, address: TopicAddress, job_id: str, **fields: Any) -> None:
    if request_log.isEnabledFor(logging.INFO):
        known = {"topic": address.queue.name, "namespace": address.queue.namespace, "id": job_id}
        request_log.info(event, extra={**known, **fields})
