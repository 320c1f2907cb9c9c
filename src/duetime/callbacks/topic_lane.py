"""Delivers the jobs of one topic: a lane waits for jobs, takes slots for them, calls the receiver, and settles them.

A lane waits at its queue without holding slots. When a job arrives, the lane takes slots (of its topic, its host, the
process) for it and for the other ready jobs, and waits again when no more are ready; so a topic that is slow or broken
fills its own limits and leaves room for the others. Jobs are acked only after their callback succeeded, many at a
time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

from duetime.callbacks.breaker import Breaker
from duetime.callbacks.caller import Caller
from duetime.callbacks.failing_topics import Streak
from duetime.callbacks.outcome import GONE, CallbackAnswer, Verdict, describe, judge, retry_after_s, retry_delay_ms
from duetime.callbacks.request import CallbackRequest, curl_command, retries_of, retry_error, write_request
from duetime.callbacks.signing import attempt_headers
from duetime.callbacks.slots import Slots
from duetime.callbacks.topic_registry import TopicAddress, TopicRegistry, secrets_of
from duetime.consumer.held_leases import HeldLeases
from duetime.engine.duties import Rounds, run_duty
from duetime.engine.engine import Engine
from duetime.model.clock import Clock
from duetime.model.condition import Condition, parse
from duetime.model.errors import DuetimeError, LeaseLost, StoreUnavailable
from duetime.model.job import Delivery, Event, Lease
from duetime.model.topic import Status, Topic, host_of
from duetime.stores.base import RulesChange

log = logging.getLogger("duetime.courier")
notify_log = logging.getLogger("duetime.notify")

PARK_MS = 600_000
AT_ONCE = 100
"""How many jobs one reserve takes at most."""
HALT_S = 5.0

Alert = Callable[[str, str, str, Sequence[str]], Awaitable[None]]
"""(kind, subject, text, addresses). The kind holds the topic's address, because other topics may share its name."""


@dataclass(frozen=True)
class LaneHost:
    """What topics whose callbacks go to the same host and port share."""

    slots: Slots
    breaker: Breaker


@dataclass(frozen=True)
class LaneTools:
    """What all lanes of a process share."""

    engine: Callable[[str], Engine]
    leases: Callable[[str], HeldLeases]
    caller: Caller
    slots: Slots
    host: Callable[[str], LaneHost]
    alert: Alert
    halt: Callable[[TopicAddress, str], Awaitable[None]]
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    clock: Clock
    zone: tzinfo | None
    lease_ms: int


class TopicLane:
    """Delivers the jobs of one topic. `set_topic` may replace the topic; calls under way keep to the old one, but the
    new retry condition judges their answers.
    """

    def __init__(self, address: TopicAddress, topic: Topic, tools: LaneTools) -> None:
        self.address = address
        self.streak = Streak()
        self._tools = tools
        self._leases = tools.leases(address.pool)
        self._in_flight = 0
        self._freed = asyncio.Event()
        self._edited = asyncio.Event()
        self._edited_rules = asyncio.Event()
        self._next_start = 0.0
        self.set_topic(topic)

    def set_topic(self, topic: Topic) -> None:
        """Use an edited topic. A pause after failed calls ends, because the edit may have mended their cause."""
        self.topic = topic
        self._breaker = Breaker(self._tools.clock.monotonic)
        self._edited.set()
        self._edited_rules.set()
        self.condition: Condition = parse(topic.retry_if)
        self._host = self._tools.host(host_of(topic.callback))
        self._freed.set()

    @property
    def pause_s(self) -> float:
        """How long no call may be made, because a circuit breaker is open."""
        return max(self._breaker.wait_s(), self._host.breaker.wait_s())

    # --- taking jobs

    async def run(self) -> None:
        """Deliver until cancelled. A cancelled lane holds no job that it has not begun to deliver."""
        keeping = asyncio.create_task(run_duty(Rounds(f"queue rules of {self.address.key}", self._keep_rules)))
        try:
            await run_duty(Rounds(f"callbacks of {self.address.key}", self._round))
        finally:
            keeping.cancel()

    async def _keep_rules(self) -> float | None:
        """Mark the topic's queue as kept, because its totals are the topic's counts, and as offline while the topic is;
        then wait for the next edit. Whoever changes the topic does this, too, unless a part of the store was down.
        """
        self._edited_rules.clear()
        rules = RulesChange(kept=True, offline=self.topic.status is Status.OFFLINE)
        try:
            await self._tools.engine(self.address.pool).configure(self.address.queue, rules)
        except DuetimeError:
            raise
        except Exception:
            log.exception("queue_not_kept", extra={"topic": self.address.key})
            return None
        await self._edited_rules.wait()
        return 0.0

    async def _round(self) -> float:
        """Wait for a job, then deliver until no more are ready."""
        await self._until_allowed()
        engine = self._tools.engine(self.address.pool)
        found = await engine.reserve([self.address.queue], limit=1, ttr_ms=self._tools.lease_ms, wait_ms=PARK_MS)
        if not found:
            return 0.0
        lease = found[0].lease
        # The wait for a slot may be longer than a lease, so the lease is renewed meanwhile.
        self._leases.add(lease)
        try:
            await self._until_allowed()
            _, host = await self._acquire_slots(1)
        except BaseException:
            self._tools.spawn(self._give_back(lease))
            raise
        if lease in self._leases:
            self._start(found, host)
        else:
            # The lease was lost during the wait: the job was removed, or another consumer has it.
            self._release_slots(1, host)
        while await self._fill(engine):
            pass
        return 0.0

    async def _give_back(self, lease: Lease) -> None:
        with suppress(LeaseLost):
            await self._leases.give_back(lease)

    async def _fill(self, engine: Engine) -> bool:
        """Deliver as many ready jobs as there are slots for; False if fewer were ready."""
        wanted = await self._until_allowed()
        granted, host = await self._acquire_slots(wanted)
        try:
            found = await engine.reserve([self.address.queue], limit=granted, ttr_ms=self._tools.lease_ms)
        except BaseException:
            self._release_slots(granted, host)
            raise
        if len(found) < granted:
            self._release_slots(granted - len(found), host)
        self._start(found, host)
        return len(found) == granted

    async def _until_allowed(self) -> int:
        """Wait until the topic's own limits and the breakers let calls through; answers how many."""
        while True:
            wanted = min(self.topic.in_flight - self._in_flight, AT_ONCE)
            if wanted <= 0:
                self._freed.clear()
                await self._freed.wait()
                continue
            wait_s = max(self._breaker.wait_s(), self._host.breaker.wait_s(), self._rate_wait_s())
            if wait_s > 0:
                self._edited.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._edited.wait()
                continue
            wanted = self._host.breaker.allowance(self._breaker.allowance(wanted))
            if wanted:
                return 1 if self.topic.rate else wanted

    def _rate_wait_s(self) -> float:
        return max(self._next_start - self._tools.clock.monotonic(), 0.0) if self.topic.rate else 0.0

    async def _acquire_slots(self, wanted: int) -> tuple[int, LaneHost]:
        """Take 1 to `wanted` slots, of the process and of the host alike. A lane that waits for slots of the process
        holds only one of its host meanwhile.
        """
        host, namespace = self._host, self.address.queue.namespace
        await host.slots.acquire(1, self.topic.priority, namespace)
        try:
            in_process = await self._tools.slots.acquire(wanted, self.topic.priority, namespace)
        except BaseException:
            host.slots.release(1, namespace)
            raise
        granted = 1 + host.slots.acquire_free(in_process - 1, namespace)
        if granted < in_process:
            self._tools.slots.release(in_process - granted, namespace)
        self._in_flight += granted
        return granted, host

    def _release_slots(self, count: int, host: LaneHost) -> None:
        host.slots.release(count, self.address.queue.namespace)
        self._tools.slots.release(count, self.address.queue.namespace)
        self._in_flight -= count
        self._freed.set()

    def _start(self, found: Sequence[Delivery], host: LaneHost) -> None:
        """Start the calls. `host` is where their slots were taken; the topic may have got another host since."""
        now = self._tools.clock.monotonic()
        if self.topic.rate:
            self._next_start = max(self._next_start, now) + len(found) / self.topic.rate
        for delivery in found:
            self._breaker.begin()
            host.breaker.begin()
            self._leases.add(delivery.lease)
            self._tools.spawn(self._deliver(delivery, self.topic, host))

    # --- one delivery

    async def _deliver(self, delivery: Delivery, topic: Topic, host: LaneHost) -> None:
        """Whatever happens, the lease is not renewed for ever: it is acked, released, or left to expire. Only the lease
        of a cancelled delivery stays held; the courier gives it back.
        """
        about = {"topic": self.address.key, "id": delivery.lease.id}
        try:
            if await self._attempt(delivery, topic, host):
                return
        except LeaseLost:
            log.info("lease_lost", extra=about)
        except DuetimeError as error:
            log.warning("not_settled", extra={**about, "error": error.message})
        except Exception as error:
            # A fault of our own counts as a failed attempt, so that the job ends at the cap and an alert is sent.
            log.exception("delivery_broke", extra=about)
            try:
                await self._report_fault(delivery, topic, f"the delivery broke: {type(error).__name__}: {error}")
            except Exception:
                log.exception("not_settled", extra=about)
        self._leases.drop(delivery.lease)

    async def _attempt(self, delivery: Delivery, topic: Topic, host: LaneHost) -> bool:
        """Call, and settle a failure. True: the call succeeded, and its lease is among those to be acked."""
        try:
            request = write_request(topic, delivery, self._tools.zone)
            answer = await self._call(request, topic)
        except BaseException:
            self._breaker.abandoned()
            host.breaker.abandoned()
            raise
        finally:
            self._release_slots(1, host)
        self._update_breakers(answer, host)
        verdict = judge(topic, self.condition, answer)
        await self._log(delivery, topic, answer, verdict)
        if verdict is Verdict.DONE:
            self.streak.worked()
            self._leases.ack(delivery.lease)
            return True
        patience_s = retry_after_s(answer, now_ms=self._tools.clock.now_ms())
        if patience_s and topic.callback == self.topic.callback:
            self._breaker.hold(patience_s)
        self.streak.failed(describe(verdict, answer))
        await self._report_failure(delivery, topic, request, answer, verdict)
        return False

    async def _call(self, request: CallbackRequest, topic: Topic) -> CallbackAnswer:
        now_ms = self._tools.clock.now_ms()
        headers = attempt_headers(secrets_of(topic, now_ms), request, now_ms=now_ms)
        return await self._tools.caller.attempt(request, topic, headers=headers)

    def _update_breakers(self, answer: CallbackAnswer, host: LaneHost) -> None:
        """Any answer shows that the receiver lives; only a call without an answer counts as a failure."""
        if not answer.error:
            host.breaker.succeeded()
            self._breaker.succeeded()
        elif answer.unreachable:
            host.breaker.failed()
            self._breaker.failed()
        else:
            host.breaker.abandoned()
            self._breaker.failed()

    async def _log(self, delivery: Delivery, topic: Topic, answer: CallbackAnswer, verdict: Verdict) -> None:
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

    async def _report_failure(
        self,
        delivery: Delivery,
        topic: Topic,
        request: CallbackRequest,
        answer: CallbackAnswer,
        verdict: Verdict,
    ) -> None:
        if answer.status == GONE:
            # The halt reaches every process within a second; until then this lane makes no calls.
            self._breaker.hold(HALT_S)
            await self._tools.halt(self.address, "the receiver answered 410 Gone")
            await self._leases.give_back(delivery.lease)
            title = f"the topic {topic.name or topic.key} is halted"
            await self._tools.alert(f"halted/{self.address.key}", title, self._gone(), topic.alert)
            return
        delay_ms = self._delay_ms(delivery, topic, answer, verdict)
        await self._retry(delivery, topic, describe(verdict, answer), delay_ms, request)

    async def _report_fault(self, delivery: Delivery, topic: Topic, why: str) -> None:
        self.streak.failed(why)
        delay_ms = self._delay_ms(delivery, topic, CallbackAnswer(error=why), Verdict.EMPTY)
        await self._retry(delivery, topic, why, delay_ms, None)

    def _delay_ms(self, delivery: Delivery, topic: Topic, answer: CallbackAnswer, verdict: Verdict) -> int | None:
        number = retries_of(delivery)
        return retry_delay_ms(topic, verdict, number, answer, now_ms=self._tools.clock.now_ms())

    async def _retry(
        self, delivery: Delivery, topic: Topic, why: str, delay_ms: int | None, request: CallbackRequest | None
    ) -> None:
        """Release the job for its next attempt, or kill it if this was the last (`delay_ms` is None)."""
        number = retries_of(delivery)
        gave_up = f"gave up after {number + 1} attempts: {why}"
        if delay_ms is None:
            moved = await self._leases.kill(delivery.lease, error=gave_up)
        else:
            moved = await self._leases.release(delivery.lease, delay_ms=delay_ms, error=retry_error(number + 1, why))
        if moved.event is Event.DEAD:
            await self._alert(delivery, topic, request, gave_up)

    def _gone(self) -> str:
        return (
            f"topic: {self.address.queue}\nIts receiver answered 410 Gone: it takes no new jobs, and those that it has "
            f"wait.\nGo on: duetime topic online {self.topic.key} --namespace {self.address.queue.namespace}\n"
        )

    async def _alert(self, delivery: Delivery, topic: Topic, request: CallbackRequest | None, why: str) -> None:
        log.warning("gave_up", extra={"topic": self.address.key, "id": delivery.lease.id, "why": why})
        title = topic.name or topic.key
        curl = curl_command(request) if request else ""
        text = f"topic: {title} ({self.address.queue})\njob: {delivery.lease.id}\n{why}\n\n{curl}\n"
        await self._tools.alert(
            f"callback/{self.address.key}", f"a callback of {title} failed for good", text, topic.alert
        )


class RemovedTopicLane:
    """Sends the jobs of a removed topic to the dead letters as they fall due; after the last it deletes the record."""

    def __init__(self, address: TopicAddress, topic: Topic, tools: LaneTools, topics: TopicRegistry) -> None:
        self.address = address
        self.topic = topic
        self._tools = tools
        self._topics = topics

    async def run(self) -> None:
        """Returns when the last job is gone, or the topic was added again."""
        await run_duty(Rounds(f"jobs of the removed topic {self.address.key}", self._round))

    async def _round(self) -> float | None:
        engine = self._tools.engine(self.address.pool)
        [counts] = await engine.store.counts([self.address.queue])
        if counts.delayed + counts.ready + counts.leased == 0:
            await engine.configure(self.address.queue, RulesChange(kept=False, offline=False))
            await self._topics.forget(self.address)
            if await self._topics.exists(self.address):
                # The topic was added again meanwhile, so its queue must be kept again.
                await engine.configure(self.address.queue, RulesChange(kept=True))
            return None
        found = await engine.reserve(
            [self.address.queue], limit=AT_ONCE, ttr_ms=self._tools.lease_ms, wait_ms=min(PARK_MS, 60_000)
        )
        if found and await self._topics.exists(self.address):
            # The topic was added again; as soon as this process learns that, a TopicLane delivers its jobs.
            for delivery in found:
                with suppress(LeaseLost):
                    await self._tools.leases(self.address.pool).give_back(delivery.lease)
            return None
        for delivery in found:
            with suppress(LeaseLost):  # somebody else removed the job
                await engine.kill(delivery.lease, error="the topic was removed")
        return 0.0


def delivers(topic: Topic) -> bool:
    """Whether the topic's jobs are delivered. Being offline only refuses new jobs; a halt stops deliveries."""
    return not topic.halted
