"""Reports topics whose callbacks keep failing, for one alert at the start and one when a call works again.

Each process knows only its own calls. A process that sees failures may report a problem, but only a process that saw a
call work since then, or that finds no jobs left to deliver, may report its end. Then the other processes forget the
failures that they have counted, so that they do not report the same problem again.
"""

import asyncio
import time
from collections.abc import Callable, Mapping

import msgspec

from duetime.alerts.problems import FIRING, AlertReport, Firing, Problem
from duetime.callbacks.outcome import Streak
from duetime.callbacks.topic_registry import TopicAddress, TopicRegistry
from duetime.engine.pools import Pools
from duetime.engine.registry_copy import RegistryCopy
from duetime.model.errors import DuetimeError
from duetime.model.topic import Topic

PREFIX = "callback/"
"""The start of the keys of these problems; no pool's name has a slash, so no other problem's key begins with it."""
AFTER_S = 30.0
"""How long failures must last: a receiver that restarts fails many calls together, and that is no problem."""
COUNT_S = 2.0


class TopicTrouble(msgspec.Struct, frozen=True):
    """A topic whose calls fail, as a courier sees it. `topic` is the key of its address, `since` is epoch seconds.

    `pause_s` is how long no call is made, because the circuit breaker of the topic or of its host is open.
    """

    topic: str
    failures: int
    since: float
    why: str
    pause_s: float


Streaks = Mapping[TopicAddress, tuple[Topic, Streak]]


class FailingCallbacks:
    """A check for the watchdog. `failures` in a row, over at least `after_s`, are a problem; 0 means never."""

    def __init__(
        self,
        streaks: Callable[[], Streaks],
        pools: Pools,
        registry_copy: RegistryCopy,
        *,
        failures: int,
        after_s: float = AFTER_S,
    ) -> None:
        self._streaks = streaks
        self._topics = TopicRegistry(lambda: pools.registry, registry_copy)
        self._pools = pools
        self._registry_copy = registry_copy
        self._failures = failures
        self._after_s = after_s
        self._recorded: set[str] = set()

    async def __call__(self) -> AlertReport:
        records = self._registry_copy.list_records(FIRING, PREFIX)
        recorded = {record.key: msgspec.json.decode(record.value, type=Firing) for record in records}
        known = {PREFIX + address.key: (address, *found) for address, found in self._streaks().items()}
        for key in self._recorded - set(recorded):
            if key in known:
                known[key][2].forget()
        self._recorded = set(recorded)
        problems: dict[str, Problem] = {}
        delivering = {PREFIX + address.key for address, topic in self._topics.known().items() if not topic.halted}
        ended = recorded.keys() - delivering
        for key, (address, topic, streak) in known.items():
            failing = bool(self._failures) and streak.is_long(self._failures, self._after_s)
            if not failing and key not in recorded:
                continue
            if await self._is_drained(address):
                streak.forget()
                ended.add(key)
            elif failing:
                problems[key] = _problem(address, topic, streak)
            elif streak.worked_at > recorded[key].since:
                ended.add(key)
        return AlertReport(problems, ended)

    async def _is_drained(self, address: TopicAddress) -> bool:
        """Returns whether the topic's queue has no jobs left to deliver. False if the store does not answer."""
        try:
            async with asyncio.timeout(COUNT_S):
                [counts] = await self._pools.engine(address.pool).store.counts([address.queue])
        except (DuetimeError, TimeoutError):
            return False
        return counts.delayed + counts.ready + counts.leased == 0


def _problem(address: TopicAddress, topic: Topic, streak: Streak) -> Problem:
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(streak.since))
    return Problem(
        f"callbacks of {topic.name or topic.key} fail",
        f"topic: {address.queue} (pool {address.pool})\ncallback: {topic.callback}\n"
        f"{streak.failures} attempts in a row failed since {since}, the last one: {streak.why}\n"
        "Its jobs wait for their next attempt; nothing is lost. Try one call: "
        f"duetime topic test {topic.key} --namespace {address.queue.namespace}",
        topic.alert,
    )
