"""The figures that pages show live: jobs by state, rates, lateness, and how they were in the last hour and day.

Rates and lateness come from the meters of all processes of the server, jobs by state from the stores. Stores are only
asked while somebody looks at a page, every few seconds at most, and less often the longer their answer takes; all pages
share one answer. Where there are many queues no page waits for it: it shows the last answer, or says that it counts.
The history is kept in the registry minute by minute (rate_history.py); numbers by day come from the stores' totals.
"""

import asyncio
import heapq
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from itertools import pairwise
from typing import NamedTuple

import msgspec

from duetime.callbacks.failing_topics import TopicTrouble
from duetime.console.rate_history import MeterGain, RateHistory, RatePoint, quantile, rate_points
from duetime.engine.pools import Pools
from duetime.errors import DuetimeError, NoAnswer
from duetime.job import STEP_JOBS, Counts, Totals
from duetime.metrics import snapshots
from duetime.metrics.ended_processes import METRICS
from duetime.metrics.meters import Labels, Reading
from duetime.metrics.siblings import Siblings
from duetime.names import Queue

log = logging.getLogger("duetime.console")

SAMPLE_S = 10.0
POINTS = 360
SPANS_S: Mapping[str, int] = {"hour": 3600, "day": 86_400}
KEEP_S = 60.0
WRITER = "1"
"""Of the processes of a server, which all know the same, the one with this name writes the history."""
LOOK_S = 2.0
PER_WATCHER_S = 0.1
"""Each open page adds this to the time between two refreshes, so that many pages cost no more than a few."""
SHARE = 20
"""An answer of the stores is used for at least this many times as long as it took."""
MANY_QUEUES = 2_000
"""With at most so many queues, a page that is opened asks the stores anew and waits for their answer."""
MANY_WAIT_S = 0.1
"""How long a page waits for an answer about more queues than that."""
SHARED_S = 0.5
"""How long all pages share one sample of the meters."""
STORE_S = 5.0
TOTALS_S = 30.0
MOST_QUEUES = 20_000
NEVER = -1e9
BUSIEST = 8
PROCESS_STATE = "console-state"
BEHIND_BYTES = 1_048_576
BEHIND_S = 600.0
LATENESS = "duetime_job_lateness_seconds"
RATES: Mapping[str, Sequence[str]] = {
    "accepted": ("duetime_jobs_pushed_total",),
    "delivered": ("duetime_jobs_delivered_total",),
    "finished": ("duetime_jobs_acked_total",),
    "failed": ("duetime_jobs_released_total", "duetime_jobs_lapsed_total", "duetime_jobs_dead_total"),
}


class LiveQueue(NamedTuple):
    """A queue as its store described it. `head` is when its earliest waiting job is or was due."""

    pool: str
    queue: Queue
    counts: Counts
    head: int | None

    @property
    def late_ms(self) -> int:
        return max(self.counts.now - self.head, 0) if self.head is not None and self.counts.ready else 0


class QueueLook(NamedTuple):
    """What the stores said about all queues of all pools. `problems` has the pools that did not answer.

    `at` is when it ended, in monotonic seconds; `took_s` is how long the stores took. Looks with the same `fingerprint`
    show the same.
    """

    lines: Sequence[LiveQueue]
    problems: Mapping[str, DuetimeError]
    at: float
    took_s: float
    fingerprint: int = 0

    @property
    def is_known(self) -> bool:
        """False until the stores have answered for the first time."""
        return self.at > NEVER

    @property
    def lasts_s(self) -> float:
        """How long this answer is used. A pool that does not answer is asked again soon: waiting for it is no work."""
        return LOOK_S if self.problems else max(LOOK_S, self.took_s * SHARE)


class LookSums(NamedTuple):
    """All queues of a look together; `busiest` has those with the most ready, leased and dead jobs."""

    counts: Counts
    queues: int
    latest: LiveQueue | None
    busiest: Sequence[LiveQueue]


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


class JournalLag(NamedTuple):
    """`backlog` bytes wait to be written; `failing` processes cannot write; `ship_lag_s` is how old the oldest sealed
    segment without a copy is.
    """

    backlog: int
    failing: int
    ship_lag_s: float

    @property
    def is_behind(self) -> bool:
        return bool(self.failing) or self.backlog > BEHIND_BYTES or self.ship_lag_s > BEHIND_S


class MeterSample(NamedTuple):
    """What all processes had counted at `at` (epoch seconds): in all, by queue, and by bucket of lateness.

    `journal` is None if no process keeps one.
    """

    at: float
    sums: Mapping[str, float]
    by_queue: Mapping[str, Mapping[Labels, float]]
    lateness: Sequence[float]
    edges: Sequence[float]
    journal: JournalLag | None = None


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
        self._pools = pools
        self._siblings = siblings
        self._history = history
        self._sample_s = sample_s
        self._keep_s = keep_s
        self._samples: deque[MeterSample] = deque(maxlen=POINTS + 1)
        self._kept: MeterSample | None = None
        self._task: asyncio.Task[None] | None = None
        self._look = QueueLook((), {}, NEVER, 0.0)
        self._looking: asyncio.Task[None] | None = None
        self._listing = asyncio.Lock()
        self._has_many = False
        self._sums: dict[tuple[str, str], tuple[float, LookSums]] = {}
        self._sampled: tuple[float, MeterSample] | None = None
        self._sampling = asyncio.Lock()
        self._totals: dict[tuple[str, str], dict[date, Totals]] = {}
        self._running: dict[str, Totals] = {}
        self._totals_at = -TOTALS_S
        self._adding_up: asyncio.Task[None] | None = None
        self.watchers = 0
        self.troubles: Callable[[], Sequence[TopicTrouble]] = lambda: ()
        siblings.handle(PROCESS_STATE, self._tell)

    async def __aenter__(self) -> "LiveFigures":
        self._task = asyncio.create_task(self._keep_history())
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [task for task in (self._task, self._adding_up, self._looking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def loops(self) -> Sequence[asyncio.Task[None]]:
        return (self._task,) if self._task is not None else ()

    # --- rates and lateness

    async def _keep_history(self) -> None:
        while True:
            try:
                await self._remember(await self._sample())
            except Exception:
                # A missing figure must not stop the server.
                log.exception("console_sample_failed")
            await asyncio.sleep(self._sample_s)

    async def _remember(self, sample: MeterSample) -> None:
        self._samples.append(sample)
        if self._siblings.name != WRITER:
            return
        before = self._kept = self._kept or sample
        if sample.at - before.at >= self._keep_s:
            self._kept = sample
            await self._history.write(gain_between(before, sample))

    async def _sample(self) -> MeterSample:
        replies = await self._siblings.ask_all(METRICS)
        found: list[snapshots.Snapshot] = []
        for reply in replies:
            with suppress(msgspec.MsgspecError):  # from a process of another version
                found.append(snapshots.decode(reply.body))
        readings = {one.description.name: one for one in snapshots.merge(found).readings}
        by_queue = {name: _by_queue(readings, metrics) for name, metrics in RATES.items()}
        sums = {name: sum(series.values()) for name, series in by_queue.items()}
        late = readings.get(LATENESS)
        edges = late.description.edges if late else ()
        counts = [sum(column) for column in zip(*late.series.values(), strict=True)][:-1] if late else []
        late_by = counts or [0.0] * (len(edges) + 1)
        return MeterSample(time.time(), sums, by_queue, late_by, edges, _journal_lag(readings))

    async def now(self) -> tuple[RatePoint, Mapping[str, Mapping[Labels, float]]]:
        """The rates since the latest sample of the history that is old enough to compare with, in all and by queue."""
        sample = await self._shared_sample()
        known = list(self._samples)
        before = next((one for one in reversed(known) if sample.at - one.at >= self._sample_s / 2), None)
        before = before or (known[0] if known else sample)
        seconds = max(sample.at - before.at, 1.0)
        by_queue = {
            name: {labels: (value - before.by_queue[name].get(labels, 0)) / seconds for labels, value in series.items()}
            for name, series in sample.by_queue.items()
        }
        gain = gain_between(before, sample)
        rates = {name: count / gain.seconds for name, count in gain.counts.items()}
        return RatePoint(gain.at, rates, quantile(gain.lateness, 0.5), quantile(gain.lateness, 0.99)), by_queue

    async def _shared_sample(self) -> MeterSample:
        async with self._sampling:
            if self._sampled is None or time.monotonic() - self._sampled[0] >= SHARED_S:
                sample = await self._sample()
                self._sampled = time.monotonic(), sample
            return self._sampled[1]

    async def journal(self) -> JournalLag | None:
        return (await self._shared_sample()).journal

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

    def history(self, span: str) -> list[RatePoint]:
        """Points of the last hour or day: what this process knows, before that and of other servers what was kept."""
        since = time.time() - SPANS_S[span]
        gains, samples = self._history.read(since), list(self._samples)
        own = [gain_between(before, after) for before, after in pairwise(samples)]
        if own:
            begin = samples[0].at
            kept = [gain for gain in gains.get(self._history.server, []) if gain.at <= begin]
            gains[self._history.server] = [*kept, *own]
        return rate_points(gains, since=since, width_s=SPANS_S[span] / POINTS)

    # --- jobs by state

    async def look_for_page(self, *, is_partial: bool) -> QueueLook:
        """A page that is opened asks the stores anew unless there are many queues; a refresh takes what there is."""
        return await self.look(fresh=not is_partial)

    async def look(self, *, fresh: bool = False) -> QueueLook:
        """The last answer of the stores, or a new one if that is too old.

        `fresh` asks them in any case, unless there are many queues. With many queues the last answer is returned if
        the new one is not there soon.
        """
        async with self._listing:
            if not self._has_many and self._looking is not None:
                await asyncio.wait({self._looking})
            is_old = time.monotonic() - self._look.at >= self._look.lasts_s
            if (self._looking is None or self._looking.done()) and (is_old or (fresh and not self._has_many)):
                began = time.monotonic()
                queues = await self._list_all()
                self._has_many = sum(len(found) for found in queues.values() if isinstance(found, list)) > MANY_QUEUES
                self._looking = asyncio.create_task(self._count(queues, began))
        if self._looking is not None:
            await asyncio.wait({self._looking}, timeout=MANY_WAIT_S if self._has_many else None)
        return self._look

    async def _list_all(self) -> dict[str, list[Queue] | DuetimeError]:
        names = self._pools.names
        return dict(zip(names, await asyncio.gather(*(self._list_pool(name) for name in names)), strict=True))

    async def _list_pool(self, pool: str) -> list[Queue] | DuetimeError:
        try:
            async with asyncio.timeout(STORE_S):
                return list(await self._pools.engine(pool).store.queues())[:MOST_QUEUES]
        except DuetimeError as error:
            return error
        except TimeoutError:
            return _no_answer(pool)

    async def _count(self, queues: Mapping[str, list[Queue] | DuetimeError], began: float) -> None:
        listed = {pool: found for pool, found in queues.items() if isinstance(found, list)}
        answers: dict[str, list[LiveQueue] | DuetimeError] = dict(
            zip(listed, await asyncio.gather(*(self._count_pool(*one) for one in listed.items())), strict=True)
        )
        answers |= {pool: found for pool, found in queues.items() if isinstance(found, DuetimeError)}
        lines = [line for answer in answers.values() if isinstance(answer, list) for line in answer]
        problems = {pool: one for pool, one in answers.items() if isinstance(one, DuetimeError)}
        fingerprint = hash((tuple((one.pool, one.queue, *_shown(one)) for one in lines), tuple(sorted(problems))))
        ended = time.monotonic()
        self._look = QueueLook(lines, problems, ended, ended - began, fingerprint)

    async def _count_pool(self, pool: str, queues: Sequence[Queue]) -> list[LiveQueue] | DuetimeError:
        lines: list[LiveQueue] = []
        # Many queues take many steps, and each of them may take as long as all of a few.
        patience_s = STORE_S * max(1, len(queues) / MANY_QUEUES)
        try:
            async with asyncio.timeout(patience_s):
                store = self._pools.engine(pool).store
                for at in range(0, len(queues), STEP_JOBS):
                    chunk = queues[at : at + STEP_JOBS]
                    counted, heads = await store.counts(chunk), await store.heads(chunk)
                    lines += [LiveQueue(pool, *line) for line in zip(chunk, counted, heads, strict=True)]
        except DuetimeError as error:
            return error
        except TimeoutError:
            return _no_answer(pool)
        return lines

    def sums(self, look: QueueLook, pool: str, namespace: str, sees: Callable[[str, str], bool]) -> LookSums:
        """What a look shows in all, for sessions that see this pool and namespace; added up once per look."""
        known = self._sums.get((pool, namespace))
        if known is None or known[0] != look.at:
            lines = [line for line in look.lines if sees(line.pool, line.queue.namespace)]
            states = ("delayed", "ready", "leased", "dead")
            sums = LookSums(
                Counts(**{name: sum(getattr(line.counts, name) for line in lines) for name in states}),
                len(lines),
                max(lines, key=lambda line: line.late_ms, default=None),
                heapq.nlargest(BUSIEST, lines, lambda one: one.counts.ready + one.counts.leased + one.counts.dead),
            )
            self._sums = {key: one for key, one in self._sums.items() if one[0] == look.at}
            known = self._sums[pool, namespace] = look.at, sums
        return known[1]

    async def names(self) -> tuple[list[tuple[str, Queue]], Mapping[str, DuetimeError]]:
        """All queues by pool, without their counts; and the pools that did not answer."""
        found: list[tuple[str, Queue]] = []
        problems: dict[str, DuetimeError] = {}
        for pool in self._pools.names:
            try:
                found += [(pool, queue) for queue in await self._pools.engine(pool).store.queues()]
            except DuetimeError as error:
                problems[pool] = error
        return found, problems

    async def lines_of(self, places: Sequence[tuple[str, Queue]]) -> list[LiveQueue]:
        """These queues as they are now, in this order."""
        by_pool: dict[str, list[Queue]] = {}
        for pool, queue in places:
            by_pool.setdefault(pool, []).append(queue)
        lines: dict[tuple[str, Queue], LiveQueue] = {}
        for pool, queues in by_pool.items():
            store = self._pools.engine(pool).store
            counted, heads = await store.counts(queues), await store.heads(queues)
            for line in zip(queues, counted, heads, strict=True):
                lines[pool, line[0]] = LiveQueue(pool, *line)
        return [lines[place] for place in places]

    async def changes(self, draining: asyncio.Event) -> AsyncIterator[LiveChange]:
        """One after each look at the stores. Ends when the server drains."""
        self.watchers += 1
        seen: int | None = None
        try:
            while not draining.is_set():
                look, (point, _) = await self.look(), await self.now()
                yield LiveChange(look.fingerprint != seen or any(point.rates.values()), sorted(look.problems))
                seen = look.fingerprint
                with suppress(TimeoutError):
                    async with asyncio.timeout(look.lasts_s + self.watchers * PER_WATCHER_S):
                        await draining.wait()
        finally:
            self.watchers -= 1

    # --- totals by day

    async def days(self, sees: Callable[[str, str], bool], *, within_s: float = 0.25) -> dict[date, Totals] | None:
        """The totals of all queues by day; None while they are being added up for the first time."""
        if not await self._totals_known(within_s):
            return None
        found: dict[date, Totals] = {}
        for (pool, namespace), by_day in self._totals.items():
            if sees(pool, namespace):
                for day, totals in by_day.items():
                    found[day] = add_totals(found.get(day, Totals()), totals)
        return found

    async def pool_totals(self, *, within_s: float = 0.25) -> Mapping[str, Totals]:
        """The running totals of each pool; empty while they are being added up for the first time."""
        return self._running if await self._totals_known(within_s) else {}

    async def _totals_known(self, within_s: float) -> bool:
        if time.monotonic() - self._totals_at >= TOTALS_S and (self._adding_up is None or self._adding_up.done()):
            self._adding_up = asyncio.create_task(self._add_up())
        if self._adding_up is not None:
            await asyncio.wait({self._adding_up}, timeout=within_s)
        return self._totals_at >= 0

    async def _add_up(self) -> None:
        sums: dict[tuple[str, str], dict[date, Totals]] = {}
        running: dict[str, Totals] = {}
        for pool in self._pools.names:
            try:
                store = self._pools.engine(pool).store
                queues = (await store.queues())[:MOST_QUEUES]
                for at in range(0, len(queues), STEP_JOBS):
                    chunk = queues[at : at + STEP_JOBS]
                    for queue, totals in zip(chunk, await store.totals(chunk), strict=True):
                        running[pool] = add_totals(running.get(pool, Totals()), totals.running)
                        into = sums.setdefault((pool, queue.namespace), {})
                        for day, one in totals.days.items():
                            into[day] = add_totals(into.get(day, Totals()), one)
            except DuetimeError as error:
                log.info("console_totals_failed", extra={"pool": pool, "error": error.message})
                return
        self._totals, self._running, self._totals_at = sums, running, time.monotonic()


def _no_answer(pool: str) -> NoAnswer:
    return NoAnswer(f"the pool {pool!r} did not answer in time")


def add_totals(one: Totals, other: Totals) -> Totals:
    return Totals(*[getattr(one, name) + getattr(other, name) for name in Totals.__struct_fields__])


def _shown(line: LiveQueue) -> tuple[int, int, int, int, int]:
    counts = line.counts
    return counts.delayed, counts.ready, counts.leased, counts.dead, line.late_ms // 1000


def _journal_lag(readings: Mapping[str, Reading]) -> JournalLag | None:
    names = ("duetime_journal_backlog_bytes", "duetime_journal_failing", "duetime_journal_ship_lag_seconds")
    if names[0] not in readings:
        return None
    backlog, failing, lag = (sum(value[0] for value in readings[name].series.values()) for name in names)
    return JournalLag(int(backlog), int(failing), lag)


def _by_queue(readings: Mapping[str, Reading], metrics: Sequence[str]) -> dict[Labels, float]:
    found: dict[Labels, float] = {}
    for metric in metrics:
        if metric in readings:
            for labels, value in readings[metric].series.items():
                found[labels] = found.get(labels, 0) + value[0]
    return found


def gain_between(before: MeterSample, after: MeterSample) -> MeterGain:
    """What was counted between two samples. A counter that began anew has gained nothing that is known."""
    counts = {name: max(value - before.sums.get(name, 0), 0) for name, value in after.sums.items()}
    gained = list(after.lateness)
    if len(before.lateness) == len(gained):
        gained = [max(new - old, 0) for new, old in zip(after.lateness, before.lateness, strict=True)]
    # The last bucket has no upper edge; its jobs are shown at the highest edge there is.
    edges = [*after.edges, after.edges[-1]] if after.edges else []
    lateness = [(edge, count) for edge, count in zip(edges, gained, strict=False) if count]
    return MeterGain(after.at, max(after.at - before.at, 1.0), counts, lateness)
