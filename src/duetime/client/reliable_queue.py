"""A queue of messages that are acknowledged, and a fan-out to several such queues, after Redisson's.

It is an ordinary queue with Redisson's names: every other part of Duetime can push and take its jobs. Settings of the
queue (caps, disabled operations) are kept with the queue and apply to all programs. Settings of messages (delivery
limit, visibility, ttl, delay, mode) apply to the program that sets them.

    queue = ReliableQueue(client, "orders", QueueSettings(delivery_limit=3, visibility="1m"))
    queue.add({"order": 17}, priority=9)
    for message in queue.poll_many(10, timeout="5s"):
        ship(message.value)
        queue.acknowledge(message)
"""

import hashlib
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal

from duetime.client import calls, checks
from duetime.client.client import Client, LeasedJob
from duetime.client.collections import Codec, Collection, Taken
from duetime.model.clock import Duration, duration_ms
from duetime.model.errors import InvalidRequest, LeaseLost, QueueFull, StoreUnavailable, TopicOffline
from duetime.model.job import (
    MAX_BODY,
    MAX_TRIES,
    STEP_JOBS,
    Delivery,
    IfExists,
    Job,
    NewJob,
    Priority,
    State,
    check_whole,
)
from duetime.model.names import check_id
from duetime.stores.base import Mark, QueueRules, RulesChange
from duetime.wire.messages import MAX_CAP

PAUSE_S = 0.05
"""Time between two polls of a queue that is full, or whose only message another consumer has."""
LONGEST_PARK_MS = 60_000

Operation = Literal["add", "poll"]


class ProcessingMode(StrEnum):
    """SEQUENTIAL: one message at a time is delivered, and the next only when no consumer holds one."""

    PARALLEL = "parallel"
    SEQUENTIAL = "sequential"


class QueueEvent(StrEnum):
    """Events for listeners, which are notified of operations on their own ReliableQueue."""

    ADDED = "added"
    POLLED = "polled"
    REMOVED = "removed"
    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"
    REJECTED = "rejected"
    MOVED = "moved"
    CONFIGURED = "configured"
    FULL = "full"
    DISABLED = "disabled"
    ENABLED = "enabled"


Listener = Callable[[QueueEvent, Any], None]
"""Called with the event and its subject: the ids of messages, the settings, or the name of an operation."""


@dataclass(frozen=True)
class QueueSettings:
    """Redisson's settings of a queue, with its defaults; 0 means no limit.

    `max_size` and `max_message_size` are stored with the queue when a ReliableQueue is configured with them.
    """

    delivery_limit: int = 10
    visibility: Duration = "30s"
    time_to_live: Duration = 0
    delay: Duration = 0
    max_size: int = 0
    max_message_size: int = 0
    processing_mode: ProcessingMode = ProcessingMode.PARALLEL


@dataclass(frozen=True)
class MessageOptions:
    """Options of one message; None means the setting of the queue. `priority` is 0 (lowest) to 9.

    A message with `deduplicate_by` ("id", or "hash" of its payload) is added once within `deduplicate_for`, even if it
    is already gone.
    """

    id: str | None = None
    delay: Duration | None = None
    time_to_live: Duration | None = None
    delivery_limit: int | None = None
    priority: int | None = None
    headers: Mapping[str, str] | None = None
    deduplicate_by: Literal["id", "hash"] | None = None
    deduplicate_for: Duration = "5m"


@dataclass(frozen=True)
class MessageCounts:
    """Messages that can be polled, that are delayed, that consumers hold, and that are dead letters."""

    ready: int
    delayed: int
    unacknowledged: int
    dead: int


class ReliableQueue(Collection):
    """Messages that stay until they are acknowledged."""

    _states = (State.READY, State.DELAYED, State.LEASED)

    def __init__(
        self, client: Client, name: str, settings: QueueSettings | None = None, *, codec: Codec | None = None
    ) -> None:
        super().__init__(client, name, codec)
        self._listeners: dict[QueueEvent, list[Listener]] = {}
        self._counters: Counter[str] = Counter()
        self._settings = QueueSettings()
        if settings is not None:
            self.configure(settings)

    # --- settings

    @property
    def settings(self) -> QueueSettings:
        return self._settings

    def configure(self, settings: QueueSettings) -> QueueRules:
        """Use these settings from now on. The size limits apply to all programs that use the queue."""
        checks.instance("settings", settings, QueueSettings)
        check_whole("delivery_limit", settings.delivery_limit, 0, MAX_TRIES)
        check_whole("max_size", settings.max_size, 0, MAX_CAP)
        check_whole("max_message_size", settings.max_message_size, 0, MAX_BODY)
        for duration in (settings.visibility, settings.time_to_live, settings.delay):
            duration_ms(duration)
        if settings.processing_mode not in list(ProcessingMode):
            words = " or ".join(ProcessingMode)
            raise InvalidRequest(f"processing_mode must be {words}, got {settings.processing_mode!r:.40}")
        rules = self._queue.configure(RulesChange(max_jobs=settings.max_size, max_body=settings.max_message_size))
        self._settings = settings
        self._notify(QueueEvent.CONFIGURED, settings)
        return rules

    def change(self, **settings: Any) -> QueueRules:
        """Change some settings while the queue is in use."""
        checks.check_options(settings, QueueSettings.__annotations__.keys())
        return self.configure(replace(self._settings, **settings))

    def disable(self, operation: Operation) -> None:
        """Let `add` raise TopicOffline, or let `poll` find nothing, in all programs that use the queue."""
        self._switch(operation, off=True)

    def enable(self, operation: Operation) -> None:
        """Allow `add` or `poll` again, in all programs that use the queue."""
        self._switch(operation, off=False)

    def _switch(self, operation: Operation, *, off: bool) -> None:
        if operation not in ("add", "poll"):
            raise InvalidRequest(f"operation must be 'add' or 'poll', got {operation!r}")
        self._queue.configure(RulesChange(offline=off) if operation == "add" else RulesChange(paused=off))
        self._notify(QueueEvent.DISABLED if off else QueueEvent.ENABLED, operation)

    # --- producers

    def add(
        self, value: Any, *, timeout: Duration = 0, options: MessageOptions | None = None, **more: Any
    ) -> str | None:
        """Add a message. Returns its id, or None if the queue stays full until the timeout. You can give the fields of
        MessageOptions by name. Raises TopicOffline if `add` is disabled.
        """
        checks.check_options(more, MessageOptions.__annotations__.keys())
        options = options or MessageOptions()
        checks.instance("options", options, MessageOptions)
        added = self.add_many([value], timeout=timeout, options=replace(options, **more))
        return added[0] if added else None

    def add_many(
        self, values: Sequence[Any], *, timeout: Duration = 0, options: MessageOptions | None = None
    ) -> list[str]:
        """Add all messages in one step, or none (an empty list) if there is no room for them within the timeout."""
        chosen, values = options or MessageOptions(), list(checks.items("values", values))
        checks.instance("options", chosen, MessageOptions)
        if len(values) > STEP_JOBS or (len(values) > 1 and (chosen.id or chosen.deduplicate_by)):
            raise InvalidRequest(f"add must have at most {STEP_JOBS} messages, and only one if it has an id")
        jobs = [self._job(value, chosen) for value in values]
        deadline = time.monotonic() + duration_ms(timeout) / 1000
        while jobs:
            self._counters["additions"] += 1
            try:
                pushed = self._client.send(
                    calls.push(self._queue.name, jobs, IfExists.KEEP, _deduplication(jobs[0], chosen))
                )
            except QueueFull:
                self._notify(QueueEvent.FULL, [job.id for job in jobs])
                if time.monotonic() >= deadline:
                    return []
                time.sleep(PAUSE_S)
                continue
            if not pushed.repeated:
                self._note("added", QueueEvent.ADDED, [moved.id for moved in pushed.jobs])
            return [moved.id for moved in pushed.jobs]
        return []

    def _job(self, value: Any, options: MessageOptions) -> NewJob:
        chosen, own = self._settings, options
        limit = chosen.delivery_limit if own.delivery_limit is None else own.delivery_limit
        delay_ms = duration_ms(chosen.delay if own.delay is None else own.delay)
        life_ms = duration_ms(chosen.time_to_live if own.time_to_live is None else own.time_to_live)
        return NewJob(
            self._client.make_id() if own.id is None else check_id(own.id),
            self._codec.encode(value),
            delay_ms,
            # The time to live begins when the message is visible.
            ttl_ms=delay_ms + life_ms if life_ms else 0,
            tries=check_whole("delivery_limit", limit, 0, MAX_TRIES),
            priority=_priority(own.priority),
            attributes={} if own.headers is None else checks.attributes(own.headers),
        )

    # --- consumers

    def poll(
        self, timeout: Duration = 0, *, visibility: Duration | None = None, acknowledge: bool = False
    ) -> Taken | None:
        """Take the next message. Returns None if there is none in time. Other consumers do not see it for `visibility`;
        with `acknowledge` it is already removed.
        """
        found = self.poll_many(1, timeout, visibility=visibility, acknowledge=acknowledge)
        return found[0] if found else None

    def poll_many(
        self, count: int, timeout: Duration = 0, *, visibility: Duration | None = None, acknowledge: bool = False
    ) -> list[Taken]:
        """Take up to `count` messages. Waits up to the timeout for the first one. In the mode SEQUENTIAL it takes at
        most one.
        """
        ttr = self._settings.visibility if visibility is None else visibility
        check_whole("count", count, 1, sys.maxsize)
        self._counters["polls"] += 1
        sequential = self._settings.processing_mode == ProcessingMode.SEQUENTIAL
        jobs = self._alone(ttr, timeout) if sequential else self._parked(count, ttr, timeout)
        found = [self._message(job) for job in jobs]
        self._note("polled", QueueEvent.POLLED, [message.id for message in found])
        if acknowledge and found:
            self.acknowledge(*found)
        return found

    def _parked(self, count: int, ttr: Duration, timeout: Duration) -> list[Delivery]:
        jobs = self._queue.reserve(limit=min(count, STEP_JOBS), ttr=ttr, wait=timeout)
        return [job.delivery for job in jobs]

    def _alone(self, ttr: Duration, timeout: Duration) -> list[Delivery]:
        """The first message, unless a consumer holds one.

        The queue's exact totals prove it: no consumer held a message after `before` was read, and there was exactly one
        delivery since, which is this one. A consumer that finds more deliveries gives its message back; if two do so at
        the same time, a random pause decides which of them is first the next time.
        """
        deadline = time.monotonic() + duration_ms(timeout) / 1000
        while True:
            before = self._queue.totals().running.delivered
            left_ms = max(0, int((deadline - time.monotonic()) * 1000))
            jobs: Sequence[LeasedJob] = ()
            if not self._queue.counts().leased:
                jobs = self._queue.reserve(ttr=ttr, wait=f"{min(left_ms, LONGEST_PARK_MS)}ms")
            if jobs and self._queue.totals().running.delivered == before + 1:
                return [jobs[0].delivery]
            for job in jobs:
                job.give_back()
            if time.monotonic() >= deadline:
                return []
            time.sleep(PAUSE_S * random.random())

    def _message(self, delivery: Delivery) -> Taken:
        return Taken(self._client, delivery, self._codec.decode(delivery.body))

    def acknowledge(self, *messages: Taken) -> int:
        """Remove messages. Returns how many this consumer still held. Repeating it is not an error."""
        self._counters["acknowledgements"] += 1
        answers = self._queue.ack(messages)
        gone = [one.id for one, answer in zip(messages, answers, strict=True) if not isinstance(answer, LeaseLost)]
        for message in messages:
            message.mark_settled()
        self._note("acknowledged", QueueEvent.ACKNOWLEDGED, gone)
        return len(gone)

    def failed(self, *messages: Taken, delay: Duration = 0, error: str = "") -> None:
        """Deliver messages again after the delay. One that has reached its delivery limit becomes a dead letter."""
        _check_taken(messages)
        for message in messages:
            message.release(delay, error=error)
        self._note("failed", QueueEvent.FAILED, [message.id for message in messages])

    def rejected(self, *messages: Taken, error: str = "") -> None:
        """Move messages to the dead letters."""
        _check_taken(messages)
        for message in messages:
            message.kill(error=error)
        self._note("rejected", QueueEvent.REJECTED, [message.id for message in messages])

    # --- management

    def counts(self) -> MessageCounts:
        """Return the number of messages in each state."""
        counts = self._queue.counts()
        return MessageCounts(counts.ready, counts.delayed, counts.leased, counts.dead)

    def size(self) -> int:
        """How many messages can be polled now."""
        return self.counts().ready

    def count_delayed_messages(self) -> int:
        """Return the number of messages that are not due yet."""
        return self.counts().delayed

    def count_unacknowledged_messages(self) -> int:
        """Return the number of messages that were polled and not acknowledged yet."""
        return self.counts().unacknowledged

    def get(self, message_id: str) -> Job | None:
        """Return a message in any state, without taking it."""
        return self._queue.get_many([message_id])[0]

    def get_all(self, ids: Sequence[str]) -> list[Job | None]:
        """Return messages in any state, in the order of the ids, and None for each id without a message."""
        return self._queue.get_many(ids)

    def list_all(self) -> list[Job]:
        """Return all messages except dead letters, without taking them."""
        return list(self._jobs())

    def remove_id(self, job_id: str) -> bool:
        """Remove a message in any state, also one that a consumer holds."""
        removed = super().remove_id(job_id)
        self._counters["removals"] += 1
        self._note("removed", QueueEvent.REMOVED, [job_id] if removed else [])
        return removed

    def move_to(self, name: str, ids: Sequence[str] | None = None, *, count: int = STEP_JOBS) -> int:
        """Move messages by id, or the next `count` that can be polled, to another queue. Returns their number.

        Each is added there before it is removed here, so a crash in between leaves it in both.
        """
        target = self._client.queue(name)
        self._counters["movements"] += 1
        found = self._queue.get_many(ids) if ids is not None else self._queue.list_jobs(State.READY, limit=count).jobs
        moved: list[str] = []
        for job in found:
            if job is None or job.state is State.LEASED:
                continue
            target.bulk([_as_new(job)])
            if super().remove_id(job.id):
                moved.append(job.id)
        self._note("moved", QueueEvent.MOVED, moved)
        return len(moved)

    def clear(self) -> int:
        """Remove all messages, also those that consumers hold; dead letters stay."""
        return self._queue.clear()

    def dead_letters(self) -> list[Job]:
        """Return the oldest 500 messages that were rejected or have reached their delivery limit."""
        return list(self._queue.dead.list_jobs(limit=STEP_JOBS).jobs)

    def dead_letter_sources(self) -> list[str]:
        """Return the queues of this namespace that have dead letters. Each queue keeps its own."""
        return [status.queue.name for status in self._client.queues() if status.counts.dead]

    # --- listeners and counters

    def add_listener(self, event: QueueEvent, listener: Listener) -> None:
        """Call `listener` at each such event of this object."""
        checks.check_callable("listener", listener)
        self._of(event).append(listener)

    def remove_listener(self, event: QueueEvent, listener: Listener) -> None:
        """Does nothing if the listener was not added."""
        with suppress(ValueError):
            self._of(event).remove(listener)

    def _of(self, event: QueueEvent) -> list[Listener]:
        if event not in list(QueueEvent):
            raise InvalidRequest(f"event must be one of {', '.join(QueueEvent)}, got {event!r:.40}")
        return self._listeners.setdefault(event, [])

    def metrics(self) -> dict[str, int]:
        """Return counts of what was done through this object: polls, polled, additions, added, removals, removed,
        movements, moved, acknowledgements, acknowledged, failed, rejected.
        """
        return dict(self._counters)

    def _note(self, what: str, event: QueueEvent, ids: Sequence[str]) -> None:
        if ids:
            self._counters[what] += len(ids)
            self._notify(event, ids)

    def _notify(self, event: QueueEvent, about: Any) -> None:
        for listener in self._listeners.get(event, []):
            listener(event, about)


class ReliableFanout:
    """Publishes a message to many reliable queues, each with its filter."""

    def __init__(self, client: Client, codec: Codec | None = None) -> None:
        self._client = client
        self._codec = codec
        self._queues: dict[str, tuple[ReliableQueue, Callable[[Any], bool]]] = {}

    def subscribe(
        self, name: str, only: Callable[[Any], bool] = lambda value: True, settings: QueueSettings | None = None
    ) -> ReliableQueue:
        """Send every message for which `only` is true to this queue."""
        checks.check_callable("only", only)
        queue = ReliableQueue(self._client, name, settings, codec=self._codec)
        self._queues[name] = queue, only
        return queue

    def unsubscribe(self, name: str) -> bool:
        """Send no more messages to this queue. Returns whether it was subscribed."""
        return self._queues.pop(name, None) is not None

    def subscribers(self) -> list[str]:
        """Return the names of the subscribed queues."""
        return sorted(self._queues)

    def publish(self, value: Any, options: MessageOptions | None = None) -> dict[str, str]:
        """Add the message to every queue whose filter accepts it. Returns its id by queue name. A queue that is full,
        disabled or unavailable is missing in the result: publish again with the same id to reach it.
        """
        chosen = options or MessageOptions()
        chosen = chosen if chosen.id else replace(chosen, id=self._client.make_id())
        taken: dict[str, str] = {}
        for name, (queue, only) in self._queues.items():
            if not only(value):
                continue
            try:
                added = queue.add(value, options=chosen)
            except (TopicOffline, StoreUnavailable):
                continue
            if added is not None:
                taken[name] = added
        return taken


def _check_taken(messages: Sequence[Taken]) -> None:
    for message in messages:
        checks.instance("message", message, Taken)


def _priority(number: int | None) -> Priority:
    """Maps Redisson's 0 to 9 to the three priorities."""
    if number is None:
        return Priority.NORMAL
    check_whole("priority", number, 0, 9)
    return Priority.LOW if number < 4 else Priority.NORMAL if number < 7 else Priority.HIGH


def _deduplication(job: NewJob, options: MessageOptions) -> Mark | None:
    if options.deduplicate_by is None:
        return None
    if options.deduplicate_by not in ("id", "hash"):
        raise InvalidRequest(f"deduplicate_by must be id or hash, got {options.deduplicate_by!r:.40}")
    if options.deduplicate_by == "id" and options.id is None:
        raise InvalidRequest("message must have an id for deduplication by id")
    key = job.id if options.deduplicate_by == "id" else hashlib.sha256(job.body).hexdigest()
    return Mark(f"/dedup/{options.deduplicate_by}/{key}", b"", duration_ms(options.deduplicate_for))


def _as_new(job: Job) -> NewJob:
    """The same message for another queue, with its due time and the tries that are left."""
    tries = max(job.tries - job.used, 1) if job.tries and job.state is not State.DEAD else job.tries
    return NewJob(
        job.id, job.body, due_at=job.due_at, tries=tries, priority=job.priority, attributes=dict(job.attributes)
    )
