"""Delivers the jobs of one topic: a lane reserves jobs, acquires slots, calls the receiver and reports the results.

A lane waits at its queue for one job, without holding slots. When the job arrives, the lane acquires slots of the host
and the process for it. If a second job is ready then, the lane reserves as many jobs as there are free slots, until no
more are ready. So a topic that is slow or broken fills its own limits and leaves room for the others. Jobs are acked
only after their callback succeeded, many at a time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import tzinfo
from typing import TYPE_CHECKING, Any

from duetime.callbacks.limits import Breaker, Slots, note_answer
from duetime.callbacks.outcome import (
    GONE,
    CallbackAnswer,
    Streak,
    Verdict,
    describe,
    judge,
    retry_after_s,
    retry_delay_ms,
)
from duetime.callbacks.request import CallbackRequest, curl_command, retries_of, retry_error, write_request
from duetime.callbacks.topic_registry import TopicAddress, TopicRegistry
from duetime.consumer.held_leases import HeldLeases
from duetime.duties import Duty, Rounds, run_duty
from duetime.engine.engine import Engine
from duetime.model.clock import Clock
from duetime.model.condition import Condition, parse
from duetime.model.errors import DuetimeError, LeaseLost, StoreUnavailable
from duetime.model.job import Delivery, Event, Lease
from duetime.model.topic import Topic, host_of
from duetime.stores.base import RulesChange

if TYPE_CHECKING:
    from duetime.callbacks.caller import Caller

log = logging.getLogger("duetime.courier")
notify_log = logging.getLogger("duetime.notify")

PARK_MS = 600_000
MAX_RESERVED = 100
"""The most jobs of one reserve."""
HALT_S = 5.0
RULES_AFTER_S = 2.0
"""How long after a change of a topic its lane checks the rules of its queue."""

Alert = Callable[[str, str, str, Sequence[str]], Awaitable[None]]
"""(kind, subject, text, addresses). The kind holds the topic's address, because other topics may share its name."""


@dataclass(frozen=True)
class LaneHost:
    """Limits that all topics with callbacks to one host and port share."""

    slots: Slots
    breaker: Breaker


@dataclass(frozen=True)
class LaneTools:
    """Objects that all lanes of a process share."""

    topics: TopicRegistry
    engine: Callable[[str], Engine]
    leases: Callable[[str], HeldLeases]
    caller: "Caller"
    slots: Slots
    host: Callable[[str], LaneHost]
    alert: Alert
    halt: Callable[[TopicAddress, str], Awaitable[None]]
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    clock: Clock
    zone: tzinfo | None
    lease_ms: int


class TopicLane(Duty):
    """Delivers the jobs of one topic. `set_topic` replaces the topic while the lane does not run; calls under way keep
    to the old one, but the new retry condition judges their answers.
    """

    def __init__(self, address: TopicAddress, topic: Topic, tools: LaneTools) -> None:
        self.address = address
        self.name = f"callbacks of {address.key}"
        self.streak = Streak()
        self._tools = tools
        self._leases = tools.leases(address.pool)
        self._calls = 0
        self._call_ended = asyncio.Event()
        self._full_reserves = 0
        self._next_start = 0.0
        self.set_topic(topic)

    def set_topic(self, topic: Topic) -> None:
        """Use an edited topic. A pause after failed calls ends, because the edit may have removed their cause."""
        self.topic = topic
        self.breaker = Breaker(self._tools.clock.monotonic)
        self.host = self._tools.host(host_of(topic.callback))
        self._condition: Condition = parse(topic.retry_if)

    @property
    def pause_s(self) -> float:
        """How long no call may be made, because a circuit breaker is open."""
        return max(self.breaker.wait_s(), self.host.breaker.wait_s())

    # --- reserving jobs

    async def run(self) -> None:
        """Deliver until cancelled. A cancelled lane holds no job that it has not begun to deliver."""
        setting_rules = asyncio.create_task(
            run_duty(
                Rounds(f"queue rules of {self.address.key}", self._set_rules),
                first_after_s=RULES_AFTER_S,
                survives_bugs=True,
            )
        )
        try:
            await run_duty(self)
        finally:
            setting_rules.cancel()

    async def _set_rules(self) -> None:
        """Each change of the topic sets them as well, but cannot while the pool is down. This lane waits for that, so
        that it does not write the rules of a status that the topic has no more.
        """
        await self._tools.topics.set_rules(self._tools.engine(self.address.pool), self.address)

    async def run_once(self) -> float:
        """Reserve jobs and start their calls: one job, which is the cheapest call of a store, or as many as have free
        slots after two reserves in a row that brought all they asked for.
        """
        limit = await self._until_allowed()
        if self._full_reserves < 2:
            limit = 1
        wait_ms = 0 if self._full_reserves else PARK_MS
        found = await self._tools.engine(self.address.pool).reserve(
            [self.address.queue], limit=limit, ttr_ms=self._tools.lease_ms, wait_ms=wait_ms
        )
        self._full_reserves = self._full_reserves + 1 if len(found) == limit else 0
        for delivery in found:
            # The wait for a slot may be longer than a lease, so the lease is renewed during the wait.
            self._leases.add(delivery.lease)
        try:
            while found:
                granted = await self._acquire_slots(min(await self._until_allowed(), len(found)))
                self._start(found[:granted])
                found = found[granted:]
        except BaseException:
            for delivery in found:
                self._tools.spawn(self._give_back(delivery.lease))
            raise
        return 0.0

    async def _until_allowed(self) -> int:
        """Wait until the limits of the topic and the breakers allow a call; returns how many calls they allow."""
        while True:
            limit = min(self.topic.in_flight - self._calls, MAX_RESERVED)
            is_probing = self.breaker.pauses or self.host.breaker.pauses
            wait_s = self._wait_s() if is_probing or self.topic.rate else 0.0
            if limit > 0 and not wait_s:
                namespace = self.address.queue.namespace
                free = min(self.host.slots.free(namespace), self._tools.slots.free(namespace))
                return 1 if is_probing or self.topic.rate else min(limit, max(free, 1))
            self._call_ended.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s or None):
                    await self._call_ended.wait()

    def _wait_s(self) -> float:
        rate_wait_s = self._next_start - self._tools.clock.monotonic() if self.topic.rate else 0.0
        return max(self.pause_s, rate_wait_s)

    async def _acquire_slots(self, wanted: int) -> int:
        """Acquire 1 to `wanted` slots of the process and of the host alike. While it waits for slots of the
        process, a lane holds only one slot of its host.
        """
        slots, host_slots, namespace = self._tools.slots, self.host.slots, self.address.queue.namespace
        await host_slots.acquire(1, self.topic.priority, namespace)
        try:
            in_process = await slots.acquire(wanted, self.topic.priority, namespace)
        except BaseException:
            host_slots.release(1, namespace)
            raise
        granted = 1 + host_slots.acquire_free(in_process - 1, namespace)
        if granted < in_process:
            slots.release(in_process - granted, namespace)
        self._calls += granted
        return granted

    def _release_slot(self, host: LaneHost) -> None:
        host.slots.release(1, self.address.queue.namespace)
        self._tools.slots.release(1, self.address.queue.namespace)
        self._calls -= 1
        self._call_ended.set()

    def _start(self, found: Sequence[Delivery]) -> None:
        """Start the calls of jobs that have slots. Skips a job that was removed while it waited for its slot, or that
        another consumer has now: its lease is lost.
        """
        if self.topic.rate:
            self._next_start = max(self._next_start, self._tools.clock.monotonic()) + len(found) / self.topic.rate
        for delivery in found:
            if delivery.lease not in self._leases:
                self._release_slot(self.host)
                continue
            self.breaker.begin()
            self.host.breaker.begin()
            self._tools.spawn(self._deliver(delivery, self.topic, self.host))

    async def _give_back(self, lease: Lease) -> None:
        with suppress(LeaseLost):
            await self._leases.give_back(lease)

    # --- one delivery

    async def _deliver(self, delivery: Delivery, topic: Topic, host: LaneHost) -> None:
        """Call the receiver and report the outcome. Afterwards the lease is not renewed any more: it was acked or
        released, or it expires. Only the lease of a cancelled delivery stays held; the courier gives it back.
        """
        try:
            if await self._attempt(delivery, topic, host):
                return
        except LeaseLost:
            log.info("lease_lost", extra=self._about(delivery))
        except DuetimeError as error:
            log.warning("not_reported", extra={**self._about(delivery), "error": error.message})
        except Exception as error:
            # A fault of our own counts as a failed attempt, so that the job ends at the cap and an alert is sent.
            log.exception("delivery_broke", extra=self._about(delivery))
            why = f"delivery failed: {type(error).__name__}: {error}"
            try:
                self.streak.failed(why)
                await self._retry(delivery, topic, why, CallbackAnswer(error=why), Verdict.ERROR)
            except Exception:
                log.exception("not_reported", extra=self._about(delivery))
        self._leases.drop(delivery.lease)

    def _about(self, delivery: Delivery) -> dict[str, str]:
        return {"topic": self.address.key, "id": delivery.lease.id}

    async def _attempt(self, delivery: Delivery, topic: Topic, host: LaneHost) -> bool:
        """Make the call and report its result. True: the call succeeded, and its lease is among those to be acked."""
        breaker = self.breaker
        try:
            request = write_request(topic, delivery, self._tools.zone)
            answer = await self._tools.caller.attempt(request, topic, now_ms=self._tools.clock.now_ms())
        except BaseException:
            breaker.abandoned()
            host.breaker.abandoned()
            raise
        finally:
            self._release_slot(host)
        note_answer(breaker, host.breaker, answer)
        verdict = judge(topic, self._condition, answer)
        await self._record(delivery, topic, answer, verdict)
        if verdict is Verdict.DONE:
            self.streak.worked()
            self._leases.ack(delivery.lease)
            return True
        patience_s = retry_after_s(answer, now_ms=self._tools.clock.now_ms())
        if patience_s and topic.callback == self.topic.callback:
            self.breaker.pause(patience_s)
        why = describe(verdict, answer)
        self.streak.failed(why)
        if answer.status == GONE:
            await self._halt(delivery, topic)
        else:
            await self._retry(delivery, topic, why, answer, verdict, request)
        return False

    async def _record(self, delivery: Delivery, topic: Topic, answer: CallbackAnswer, verdict: Verdict) -> None:
        if notify_log.isEnabledFor(logging.INFO):
            notify_log.info(
                "notified" if verdict is Verdict.DONE else "notify_failed",
                extra={
                    "topic": topic.key,
                    "namespace": self.address.queue.namespace,
                    "id": delivery.lease.id,
                    "retry": retries_of(delivery),
                    "status": answer.status,
                    "ms": answer.ms,
                    "verdict": str(verdict),
                },
            )
        with suppress(StoreUnavailable):  # a pool that is closed now may be open again for the ack
            recorders = self._tools.engine(self.address.pool).recorders
            await recorders.notified(delivery.lease, status=answer.status, ms=answer.ms)

    # --- failure

    async def _halt(self, delivery: Delivery, topic: Topic) -> None:
        # The halt reaches every process within a second; until then this lane makes no calls.
        self.breaker.pause(HALT_S)
        await self._tools.halt(self.address, "the receiver answered 410 Gone")
        await self._leases.give_back(delivery.lease)
        text = (
            f"topic: {self.address.queue}\nIts receiver answered 410 Gone: it accepts no new jobs, and its jobs wait.\n"
            f"To resume: duetime topic online {topic.key} --namespace {self.address.queue.namespace}\n"
        )
        title = f"the topic {topic.name or topic.key} is halted"
        await self._tools.alert(f"halted/{self.address.key}", title, text, topic.alert)

    async def _retry(
        self,
        delivery: Delivery,
        topic: Topic,
        why: str,
        answer: CallbackAnswer,
        verdict: Verdict,
        request: CallbackRequest | None = None,
    ) -> None:
        """Release the job for its next attempt, or kill it if this was the last one, and send an alert."""
        number = retries_of(delivery)
        gave_up = f"gave up after {number + 1} attempts: {why}"
        delay_ms = retry_delay_ms(topic, verdict, number, answer, now_ms=self._tools.clock.now_ms())
        if delay_ms is None:
            moved = await self._leases.kill(delivery.lease, error=gave_up)
        else:
            moved = await self._leases.release(delivery.lease, delay_ms=delay_ms, error=retry_error(number + 1, why))
        if moved.event is not Event.DEAD:
            return
        log.warning("gave_up", extra={**self._about(delivery), "why": gave_up})
        title = topic.name or topic.key
        curl = curl_command(request) if request else ""
        text = f"topic: {title} ({self.address.queue})\njob: {delivery.lease.id}\n{gave_up}\n\n{curl}\n"
        await self._tools.alert(
            f"callback/{self.address.key}", f"a callback of {title} failed for good", text, topic.alert
        )


class RemovedTopicLane:
    """Sends the jobs of a removed topic to the dead letters as they fall due; after the last it deletes the record."""

    def __init__(self, address: TopicAddress, topic: Topic, tools: LaneTools) -> None:
        self.address = address
        self.topic = topic
        self._tools = tools

    async def run(self) -> None:
        """Returns when the last job is gone, or the topic was added again."""
        await run_duty(Rounds(f"jobs of the removed topic {self.address.key}", self._round))

    async def _round(self) -> float | None:
        engine = self._tools.engine(self.address.pool)
        [counts] = await engine.store.counts([self.address.queue])
        if counts.delayed + counts.ready + counts.leased == 0:
            await engine.store.configure(self.address.queue, RulesChange(kept=False, offline=False))
            await self._tools.topics.forget(self.address)
            # The topic may have been added again, and then its queue must be kept.
            await self._tools.topics.set_rules(engine, self.address)
            return None
        found = await engine.reserve(
            [self.address.queue], limit=MAX_RESERVED, ttr_ms=self._tools.lease_ms, wait_ms=min(PARK_MS, 60_000)
        )
        if found and await self._tools.topics.exists(self.address):
            # The topic was added again; as soon as this process sees that, a TopicLane delivers its jobs.
            await engine.give_back_all(found)
            return None
        for delivery in found:
            with suppress(LeaseLost):  # somebody else removed the job
                await engine.kill(delivery.lease, error="the topic was removed")
        return 0.0


def delivers(topic: Topic) -> bool:
    """Returns whether the topic's jobs are delivered: unless it is halted, also while it is offline."""
    return not topic.halted
