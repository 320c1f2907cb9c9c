"""The watchdog: checks the pools every second and raises alerts.

A pool that does not answer three times in a row is down. Every ten seconds it also checks what grows slowly: memory
near its limit, dead letters that become more, jobs that wait longer past their due time than they should. Every server
process has one; `alerts/problems.py` makes sure that only one of them sends alerts.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

from duetime.alerts.problems import AlertReport, Alerts, Problem
from duetime.duties import Duty, run_duty
from duetime.engine.pools import Pools
from duetime.model.clock import Clock, SystemClock
from duetime.model.errors import DuetimeError
from duetime.model.job import chunks
from duetime.model.names import Queue
from duetime.stores.base import Store, StoreInfo

log = logging.getLogger("duetime.watchdog")

CHECK_EVERY_S = 1.0
PING_S = 2.0
STRIKES = 3
"""Failed checks in a row before a pool counts as down."""
SLOW_EVERY = 10
"""Rounds between two scans of what grows slowly, at least."""
QUEUES_PER_ROUND = 500
"""A scan of more queues than SLOW_EVERY times this is made less often, so that it costs no larger share of a core."""
WINDOW_S = 300.0
"""The time over which the growth of dead letters is measured."""


class WatchTargets(Struct, frozen=True):
    """The limits beyond which an alert is raised. Zero switches a check off."""

    memory_percent: int = 90
    dead_growth: int = 10
    lateness_s: float = 600.0


async def nothing_more() -> AlertReport:
    return AlertReport()


class Seen(NamedTuple):
    at: float
    dead: int


class GrowthWindow:
    """The dead letters of a queue over the last WINDOW_S, and since when they are counted."""

    def __init__(self, first: Seen) -> None:
        self.since = first.at
        self.seen = deque([first])

    def gained(self, now: Seen) -> int:
        self.seen.append(now)
        while self.seen[0].at < now.at - WINDOW_S:
            self.seen.popleft()
        return now.dead - min(one.dead for one in self.seen)


def rounds_between_scans(queues: int) -> int:
    """How many rounds pass between two scans of this many queues."""
    return max(SLOW_EVERY, queues // QUEUES_PER_ROUND)


class Watchdog(Duty):
    """An async context manager: inside it the rounds run."""

    name = "watchdog"

    def __init__(
        self,
        pools: Pools,
        alerts: Alerts,
        targets: WatchTargets,
        *,
        more: Callable[[], Awaitable[AlertReport]] = nothing_more,
        ping_s: float = PING_S,
        clock: Clock | None = None,
    ) -> None:
        """A pool that takes longer than `ping_s` to answer counts as down. `more` returns what others
        report; only they can report its end, and none of their keys begins like those of a pool.
        """
        self._pools = pools
        self._alerts = alerts
        self._targets = targets
        self._more = more
        self._ping_s = ping_s
        self._strikes: dict[str, int] = {}
        self._slow: dict[str, Mapping[str, Problem]] = {}
        self._clock = clock or SystemClock()
        self._dead: dict[tuple[str, Queue], GrowthWindow] = {}
        self._last_checked_at: dict[str, float] = {}
        self._queues: dict[str, int] = {}
        self._unsure: dict[str, set[str]] = {}
        """Keys of problems, by pool, about which this process cannot tell yet."""
        self._rounds = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Watchdog":
        self._task = asyncio.create_task(run_duty(self, survives_bugs=True))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def run_once(self) -> float:
        """Check all pools. Raises DuetimeError."""
        round_number, names = self._rounds, self._pools.names
        self._rounds += 1
        waits = {name: rounds_between_scans(self._queues.get(name, 0)) for name in names}
        found = await asyncio.gather(*(self._check(name, slow=round_number % waits[name] == 0) for name in names))
        more = await self._more()
        problems: dict[str, Problem] = dict(more.problems)
        for one in found:
            problems.update(one)
        await self._alerts.judge(problems, self._can_tell, more.ended)
        return CHECK_EVERY_S

    def _can_tell(self, key: str) -> bool:
        """Does this process know enough of a pool's problem to say that it is over?"""
        name, _, what = key.partition(":")
        if name not in self._pools.names or self._strikes.get(name, 0):
            return False
        if what.startswith("down:"):  # one of the pool's stores
            return not self._strikes.get(key, 0)
        return what == "down" or (name in self._last_checked_at and key not in self._unsure[name])

    async def _check(self, name: str, *, slow: bool) -> Mapping[str, Problem]:
        """The problems of a pool. One that is down keeps its slow problems, which cannot be checked."""
        try:
            async with asyncio.timeout(self._ping_s):
                store = self._pools.engine(name).store
                info = await store.ping()
        except (DuetimeError, TimeoutError) as error:
            self._strikes[name] = self._strikes.get(name, 0) + 1
            why = error.message if isinstance(error, DuetimeError) else f"no answer within {self._ping_s:g} s"
            down = self._strikes[name] >= STRIKES
            return {**self._slow.get(name, {}), **({f"{name}:down": _down(name, why)} if down else {})}
        self._strikes[name] = 0
        if slow:
            try:
                async with asyncio.timeout(SLOW_EVERY * CHECK_EVERY_S):
                    self._slow[name] = await self._scan(name, store, info)
            except (DuetimeError, TimeoutError) as error:
                log.info("watchdog_scan_failed", extra={"pool": name, "error": str(error)})
        return {**self._slow.get(name, {}), **dict(self._parts_down(name, info))}

    def _parts_down(self, name: str, info: StoreInfo) -> Iterator[tuple[str, Problem]]:
        """The stores of a pool that do not answer while its others serve."""
        keys = {f"{name}:down:{part}": error for part, error in info.problems.items()}
        for key in [key for key in self._strikes if key.startswith(f"{name}:down:") and key not in keys]:
            del self._strikes[key]
        for key, error in keys.items():
            self._strikes[key] = self._strikes.get(key, 0) + 1
            if self._strikes[key] >= STRIKES:
                yield key, _part_down(name, error.message)

    async def _scan(self, name: str, store: Store, info: StoreInfo) -> Mapping[str, Problem]:
        problems = dict(self._memory(name, info))
        unsure: set[str] = set()
        queues = await store.queues()
        self._queues[name] = len(queues)
        for chunk in chunks(queues):
            waiting: list[Queue] = []
            for queue, counts in zip(chunk, await store.counts(chunk), strict=True):
                if counts.ready:
                    waiting.append(queue)
                if self._targets.dead_growth:
                    problems.update(self._growth(name, queue, counts.dead, unsure))
                if counts.damaged:
                    problems[f"{name}:damaged:{queue}"] = _damaged(name, queue, counts.damaged)
            if self._targets.lateness_s and waiting:
                for queue, head in zip(waiting, await store.heads(waiting), strict=True):
                    problems.update(self._late(name, queue, head, info.now))
        self._last_checked_at[name], self._unsure[name] = self._clock.monotonic(), unsure
        return problems

    def _memory(self, name: str, info: StoreInfo) -> Iterator[tuple[str, Problem]]:
        limit = self._targets.memory_percent
        if limit and info.max_bytes and info.used_bytes * 100 >= info.max_bytes * limit:
            share = info.used_bytes * 100 // info.max_bytes
            yield (
                f"{name}:memory",
                Problem(
                    f"pool {name} has used {share} % of its room",
                    f"{info.used_bytes:,} of {info.max_bytes:,} bytes. When it is full, pushes are refused; deliveries "
                    "go on. Give it more room, or look for a queue that nobody drains: duetime top.",
                ),
            )

    def _growth(self, name: str, queue: Queue, dead: int, unsure: set[str]) -> Iterator[tuple[str, Problem]]:
        key, now = (name, queue), self._clock.monotonic()
        if not dead:
            self._dead.pop(key, None)
            return
        if key not in self._dead:
            # A queue that is new since the last scan had no dead letters then; before the first scan nothing is known.
            before = self._last_checked_at.get(name)
            self._dead[key] = GrowthWindow(Seen(now, dead) if before is None else Seen(before, 0))
        window = self._dead[key]
        grown = window.gained(Seen(now, dead))
        if grown < self._targets.dead_growth <= dead and now - window.since < WINDOW_S:
            # They may be new to the process that reported them, and were there when this one began.
            unsure.add(f"{name}:dead:{queue}")
        if grown >= self._targets.dead_growth:
            yield (
                f"{name}:dead:{queue}",
                Problem(
                    f"{queue} gained {grown} dead letters",
                    f"Within {WINDOW_S / 60:g} minutes; now there are {dead} (pool {name}). "
                    f"See why: duetime failed list {queue.name} --namespace {queue.namespace}",
                ),
            )

    def _late(self, name: str, queue: Queue, head: int | None, now: int) -> Iterator[tuple[str, Problem]]:
        if head is not None and now - head >= self._targets.lateness_s * 1000:
            yield (
                f"{name}:late:{queue}",
                Problem(
                    f"{queue} is {(now - head) // 1000} s late",
                    f"Its earliest job has been due for that long (pool {name}, target "
                    f"{self._targets.lateness_s:g} s): consumers are missing, slow or paused.",
                ),
            )


def _damaged(name: str, queue: Queue, count: int) -> Problem:
    return Problem(
        f"{queue} holds {count} entries that cannot be read as jobs",
        f"They were set aside, and the rest is served (pool {name}). Somebody else wrote to the store, or it is "
        "damaged. See where they are: duetime doctor --deep",
    )


def _down(name: str, why: str) -> Problem:
    return Problem(
        f"pool {name} is down",
        f"{why}. Pushes to it are refused and its jobs wait; nothing that was accepted is lost. Other pools work on.",
    )


def _part_down(name: str, why: str) -> Problem:
    return Problem(
        f"pool {name} misses one of its stores",
        f"{why}. Pushes of its share are refused and its jobs wait; nothing that was accepted is lost. "
        "The pool's other stores work on.",
    )
