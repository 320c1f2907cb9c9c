"""The courier of a server process: it runs a lane for each topic, which delivers the topic's jobs to its callback URL.

It follows the process's copy of the registry, so a topic that any process adds, edits, halts or removes is known here
within a second. It also renews the leases of calls under way. When it is left, no new calls start and running calls
may finish; the jobs of calls that do not finish in time are given back. Several couriers on one store are safe,
because a job is leased to one of them.
"""

import asyncio
import importlib
import logging
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from functools import partial
from typing import TYPE_CHECKING, Any

from duetime.callbacks.failing_topics import Streaks, TopicTrouble
from duetime.callbacks.limits import Breaker, Slots
from duetime.callbacks.targets import AllowedTargets, Network
from duetime.callbacks.topic_lane import Alert, LaneHost, LaneTools, RemovedTopicLane, TopicLane, delivers
from duetime.callbacks.topic_registry import KIND, REMOVED_KIND, TopicAddress, TopicRegistry
from duetime.consumer.held_leases import HeldLeases
from duetime.duties import Rounds, run_duty
from duetime.engine.pools import Pools
from duetime.engine.registry_copy import RegistryCopy
from duetime.model.clock import Clock, SystemClock
from duetime.model.errors import TopicNotFound
from duetime.model.priority_shares import DEFAULT_SHARES, Shares
from duetime.model.topic import Status, Topic, host_of

if TYPE_CHECKING:
    from duetime.callbacks.caller import Caller

log = logging.getLogger("duetime.courier")

FOLLOW_EVERY_S = 0.1
"""The pause after a check of all topics: the registry may change more often than that is worth."""


@dataclass(frozen=True)
class CourierOptions:
    """Options of one process: limits, length of a lease, allowed networks, time for a stop."""

    in_flight: int = 500
    per_host: int = 100
    shares: Shares = DEFAULT_SHARES
    lease_ms: int = 15_000
    allowed: tuple[Network, ...] = ()
    zone: tzinfo | None = None
    grace_s: float = 30.0


async def log_alert(kind: str, subject: str, text: str, addresses: Sequence[str]) -> None:
    """Write an alert to the log, for couriers that have nowhere to send it."""
    log.warning("alert", extra={"kind": kind, "subject": subject, "addresses": ",".join(addresses)})


class Courier:
    """An async context manager. Setting `draining` stops it from reserving jobs before it is left."""

    def __init__(
        self,
        pools: Pools,
        registry_copy: RegistryCopy,
        *,
        options: CourierOptions | None = None,
        alert: Alert = log_alert,
        draining: asyncio.Event | None = None,
    ) -> None:
        self._pools = pools
        self._registry_copy = registry_copy
        self._version = -1
        self._options = options or CourierOptions()
        self._draining = draining or asyncio.Event()
        self._topics = TopicRegistry(lambda: pools.registry, registry_copy)
        self._clock: Clock = SystemClock()
        self._hosts: dict[str, LaneHost] = {}
        self._lanes: dict[TopicAddress, tuple[TopicLane | RemovedTopicLane, asyncio.Task[None]]] = {}
        self._leases: dict[str, HeldLeases] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._work: set[asyncio.Task[None]] = set()
        self._duties: list[asyncio.Task[None]] = []
        self._slots = Slots(self._options.in_flight, self._options.shares)
        self._alert = alert
        self._caller: Caller | None = None
        self._tools: LaneTools | None = None

    async def __aenter__(self) -> "Courier":
        self._duties = [
            # A record that cannot be read must not end all deliveries.
            asyncio.create_task(run_duty(Rounds("courier", self._follow), survives_bugs=True)),
            asyncio.create_task(self._drain()),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop_reserving()
        await self._finish_work()
        for task in (*self._work, *self._duties):
            task.cancel()
        await asyncio.gather(*self._work, *self._duties, return_exceptions=True)
        for leases in self._leases.values():
            await leases.give_back_all()
        if self._caller is not None:
            await self._caller.__aexit__(None, None, None)

    async def _finish_work(self) -> None:
        """Wait for the calls under way, and for the acks that follow them, at most `grace_s`."""
        deadline = self._clock.monotonic() + self._options.grace_s
        while self._work and (left := deadline - self._clock.monotonic()) > 0:
            await asyncio.wait(self._work, timeout=left)

    @property
    def loops(self) -> list[asyncio.Task[None]]:
        """The tasks that run for as long as the courier does."""
        return self._duties

    def streaks(self) -> Streaks:
        """The failures in a row of each topic's calls, by the topic's address."""
        lanes = [lane for lane, _ in self._lanes.values()]
        return {lane.address: (lane.topic, lane.streak) for lane in lanes if isinstance(lane, TopicLane)}

    def troubles(self) -> list[TopicTrouble]:
        """The topics whose last calls failed, or that are not called for a while."""
        lanes = [lane for lane, _ in self._lanes.values() if isinstance(lane, TopicLane)]
        return [
            TopicTrouble(lane.address.key, lane.streak.failures, lane.streak.since, lane.streak.why, lane.pause_s)
            for lane in lanes
            if lane.streak.failures or lane.pause_s
        ]

    @property
    def in_flight(self) -> int:
        return self._slots.used

    @property
    def held(self) -> int:
        """How many leases this courier holds."""
        return sum(len(leases) for leases in self._leases.values())

    def _leases_in(self, pool: str) -> HeldLeases:
        leases = self._leases.get(pool)
        if leases is None:
            engine = partial(self._pools.engine, pool)
            leases = HeldLeases(engine, self._options.lease_ms, self._spawn, self._clock.monotonic)
            self._leases[pool] = leases
            self._duties.append(asyncio.create_task(run_duty(leases)))
        return leases

    def _host(self, name: str) -> LaneHost:
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = LaneHost(
                Slots(self._options.per_host, self._options.shares), Breaker(self._clock.monotonic)
            )
        return host

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("delivery_broke", exc_info=error)

    # --- which lanes there are

    async def _follow(self) -> float | None:
        self._version = await self._registry_copy.changed(self._version)
        await self._match()
        return None if self._draining.is_set() else FOLLOW_EVERY_S

    async def _match(self) -> None:
        """Start and close lanes until every topic that delivers, and every removed one that has jobs left, has one."""
        known, gone = self._topics.known(KIND), self._topics.known(REMOVED_KIND)
        if not self._options.in_flight:
            return
        topics = {address: topic for address, topic in known.items() if delivers(topic)}
        removed = {address: topic for address, topic in gone.items() if address not in known}
        for address, (lane, task) in list(self._lanes.items()):
            wanted = topics if isinstance(lane, TopicLane) else removed
            if address not in wanted or task.done():
                await self._close(address)
        if topics or removed:
            tools = self._tools = self._tools or await self._make_tools()
            for address, topic in topics.items():
                if address.pool in self._pools:
                    await self._open(address, topic, tools)
            for address, topic in removed.items():
                if address not in self._lanes and address.pool in self._pools:
                    self._run(RemovedTopicLane(address, topic, tools))
        self._share_slots(topics)

    async def _make_tools(self) -> LaneTools:
        """The HTTP client takes longer to import than the rest of a server's start, so that it waits for the first
        topic.
        """
        module = await asyncio.to_thread(importlib.import_module, "duetime.callbacks.caller")
        caller: Caller = module.Caller(AllowedTargets(self._options.allowed))
        self._caller = await caller.__aenter__()
        return LaneTools(
            topics=self._topics,
            engine=self._pools.engine,
            leases=self._leases_in,
            caller=caller,
            slots=self._slots,
            host=self._host,
            alert=self._alert,
            halt=self._halt,
            spawn=self._spawn,
            clock=self._clock,
            zone=self._options.zone,
            lease_ms=self._options.lease_ms,
        )

    def _share_slots(self, topics: Mapping[TopicAddress, Topic]) -> None:
        """Where several namespaces have topics, let each use at most half of the slots."""
        callers: dict[str, set[str]] = {}
        for address, topic in topics.items():
            callers.setdefault(host_of(topic.callback), set()).add(address.queue.namespace)
        for name, host in self._hosts.items():
            host.slots.share(is_shared=len(callers.get(name, ())) > 1)
        self._slots.share(is_shared=len({address.queue.namespace for address in topics}) > 1)

    async def _open(self, address: TopicAddress, topic: Topic, tools: LaneTools) -> None:
        """Run the topic's lane. An edited topic restarts it; its calls continue."""
        lane, _ = self._lanes.get(address, (None, None))
        if lane is None:
            self._run(TopicLane(address, topic, tools))
        elif isinstance(lane, TopicLane) and lane.topic is not topic:
            await self._close(address)
            lane.set_topic(topic)
            self._run(lane)

    def _run(self, lane: TopicLane | RemovedTopicLane) -> None:
        if self._draining.is_set():
            return
        self._lanes[lane.address] = lane, asyncio.create_task(lane.run())

    async def _close(self, address: TopicAddress) -> None:
        """Let a lane reserve no more jobs; its calls continue."""
        _, task = self._lanes.pop(address)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        task.cancel()
        [ended] = await asyncio.gather(task, return_exceptions=True)
        if isinstance(ended, Exception):
            log.error("lane_broke", exc_info=ended, extra={"topic": address.key})

    async def _halt(self, address: TopicAddress, why: str) -> None:
        log.warning("topic_halted", extra={"topic": address.key, "why": why})
        try:
            await self._topics.set_status(address, Status.OFFLINE, halted=why)
            await self._topics.set_rules(self._pools.engine(address.pool), address)
        except TopicNotFound:
            return

    async def _drain(self) -> None:
        await self._draining.wait()
        await self._stop_reserving()

    async def _stop_reserving(self) -> None:
        self._draining.set()
        for address in list(self._lanes):
            if address in self._lanes:
                await self._close(address)
        # Another task may be closing lanes, too. A lane that ends may start a give-back, which must begin before the
        # work is waited for.
        await asyncio.gather(*self._closing, return_exceptions=True)
