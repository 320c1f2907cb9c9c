"""The figures that pages show live, and the stream that says when an open page should ask for itself again."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from duetime.callbacks.failing_topics import TopicTrouble
from duetime.console.meter_samples import KEEP_S, SAMPLE_S, MeterSamples
from duetime.console.queue_snapshots import QueueSnapshots
from duetime.console.rate_history import RateHistory
from duetime.console.sums import DayTotals, DueAheadSums, RetryingCounts
from duetime.engine.pools import Pools
from duetime.metrics.meters import Labels
from duetime.metrics.recorder import MetricsRecorder
from duetime.metrics.siblings import Siblings
from duetime.model.errors import DuetimeError
from duetime.model.job import Counts, Job, Lease
from duetime.model.names import Queue

PER_WATCHER_S = 0.1
"""Each open page adds this to the time between two refreshes, so that many pages cost no more than a few."""
PROCESS_STATE = "console-state"
RUNNING = "console-running"


class LiveChange(NamedTuple):
    """`is_new`: pages have something new to show. `away` names the pools that do not answer."""

    is_new: bool
    away: Sequence[str]


class ProcessState(msgspec.Struct, frozen=True):
    """What a server process says of itself: duties that hang in a round and consumers that wait, both by pool, and the
    topics whose calls fail.
    """

    stuck: Mapping[str, list[str]]
    parked: Mapping[str, int]
    troubles: Sequence[TopicTrouble]


class LiveFigures:
    """An async context manager: while it is entered, a task records the history."""

    def __init__(
        self,
        pools: Pools,
        siblings: Siblings,
        history: RateHistory,
        *,
        sample_s: float = SAMPLE_S,
        keep_s: float = KEEP_S,
    ) -> None:
        self.meters = MeterSamples(siblings, history, self._count, sample_s=sample_s, keep_s=keep_s)
        self.snapshots = QueueSnapshots(pools)
        self.totals = DayTotals(pools)
        self.due = DueAheadSums(pools, self.snapshots)
        self.retrying = RetryingCounts(pools, self.snapshots)
        self._pools = pools
        self._siblings = siblings
        self.watchers = 0
        self.closers: list[Callable[[], Awaitable[None]]] = []
        self.troubles: Callable[[], Sequence[TopicTrouble]] = lambda: ()
        siblings.handle(PROCESS_STATE, self._tell)
        siblings.handle(RUNNING, self._report_running)

    async def __aenter__(self) -> "LiveFigures":
        await self.meters.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        for close in self.closers:
            await close()
        await self.meters.__aexit__()
        await self.snapshots.close()
        for sums in (self.totals, self.due, self.retrying):
            await sums.close()

    async def _count(self, queues: Sequence[Labels]) -> dict[Labels, Counts]:
        """How many jobs these queues have, of pools that answer."""
        found: dict[Labels, Counts] = {}
        for pool in {labels[0] for labels in queues}:
            chosen = [labels for labels in queues if labels[0] == pool]
            with suppress(DuetimeError):
                store = self._pools.engine(pool).store
                counts = await store.counts([Queue(*labels[1:]) for labels in chosen])
                found |= dict(zip(chosen, counts, strict=True))
        return found

    @property
    def loops(self) -> Sequence[asyncio.Task[None]]:
        return self.meters.loops

    async def processes(self) -> list[ProcessState]:
        """What each process of the server says of itself."""
        found: list[ProcessState] = []
        for reply in await self._siblings.ask_all(PROCESS_STATE):
            with suppress(msgspec.MsgspecError):  # from a process of another version
                found.append(msgspec.json.decode(reply.body, type=ProcessState))
        return found

    async def _tell(self, question: bytes) -> bytes:
        stuck: dict[str, list[str]] = {}
        for name in self._pools.names:
            with suppress(DuetimeError):  # a pool that is not open does nothing that could hang
                if duties := self._pools.engine(name).stuck:
                    stuck[name] = duties
        return msgspec.json.encode(ProcessState(stuck, self._pools.parked(), self.troubles()))

    async def running_s(self, leased: Sequence[tuple[str, Job]]) -> list[float | None]:
        """How long ago each of these jobs of these pools was delivered, if a process of this server did that."""
        leases = [(pool, Lease(job.queue, job.id, job.born, job.attempt)) for pool, job in leased]
        found: list[float | None] = [None] * len(leases)
        for reply in await self._siblings.ask_all(RUNNING, msgspec.json.encode(leases)):
            with suppress(msgspec.MsgspecError):  # from a process of another version
                known_here = msgspec.json.decode(reply.body, type=list[float | None])
                found = [known if one is None else one for known, one in zip(found, known_here, strict=True)]
        return found

    async def _report_running(self, question: bytes) -> bytes:
        leases = msgspec.json.decode(question, type=list[tuple[str, Lease]])
        return msgspec.json.encode([self._running_here(pool, lease) for pool, lease in leases])

    def _running_here(self, pool: str, lease: Lease) -> float | None:
        with suppress(DuetimeError):  # a pool that is not open has delivered nothing
            for recorder in self._pools.engine(pool).recorders.all:
                if isinstance(recorder, MetricsRecorder):
                    return recorder.running_s(lease)
        return None

    async def changes(self, draining: asyncio.Event, *, every_s: float = 0) -> AsyncIterator[LiveChange]:
        """One after each snapshot of the stores, at most every `every_s`. Ends when the server drains."""
        self.watchers += 1
        seen: int | None = None
        try:
            while not draining.is_set():
                snapshot, (point, _) = await self.snapshots.read(), await self.meters.now()
                yield LiveChange(snapshot.fingerprint != seen or any(point.rates.values()), sorted(snapshot.problems))
                seen = snapshot.fingerprint
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(snapshot.lasts_s, every_s) + self.watchers * PER_WATCHER_S):
                        await draining.wait()
        finally:
            self.watchers -= 1
