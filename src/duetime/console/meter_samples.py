"""Rates and lateness, from the meters of all processes of the server: now, and over the last hour and day.

While it is entered, a task takes a sample every few seconds; every minute one process of the server keeps what was
counted in the registry (rate_history.py), so that the history survives restarts.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from duetime.console.queue_history import KEPT_S as QUEUES_KEPT_S
from duetime.console.queue_history import KIND as QUEUES_KIND
from duetime.console.queue_history import TASKS_KIND, Minute, QueueHistory
from duetime.console.rate_history import MeterGain, RateHistory, RatePoint, quantile, rate_points
from duetime.duties import Rounds, run_duty
from duetime.metrics import snapshots
from duetime.metrics.meters import OTHER, Labels, Reading
from duetime.metrics.siblings import Siblings
from duetime.metrics.snapshots import METRICS
from duetime.model.job import Counts

log = logging.getLogger("duetime.console")

SAMPLE_S = 10.0
POINTS = 360
SPANS_S: Mapping[str, int] = {"hour": 3600, "day": 86_400}
KEEP_S = 60.0
WRITER = "1"
"""Of the processes of a server, which all know the same, the one with this name writes the history."""
LATE_MARK_S = 600.0
"""The lateness of a queue is that of its jobs since the last mark but one."""
SHARED_S = 0.5
"""How long all pages share one sample of the meters."""
MOST_COUNTED = 200
"""How many queues are asked once a minute how many jobs wait."""
BEHIND_BYTES = 1_048_576
BEHIND_S = 600.0
LATENESS = "duetime_job_lateness_seconds"
RUN = "duetime_job_run_seconds"
TASK_RUNS = "duetime_task_runs_total"
TASK_RUN = "duetime_task_run_seconds"
RATES: Mapping[str, Sequence[str]] = {
    "accepted": ("duetime_jobs_pushed_total",),
    "delivered": ("duetime_jobs_delivered_total",),
    "finished": ("duetime_jobs_acked_total",),
    "failed": ("duetime_jobs_released_total", "duetime_jobs_lapsed_total", "duetime_jobs_dead_total"),
}


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

    `journal` is None if no process keeps one. `late_by_queue` has the buckets of each queue; samples of the history
    have none. `by_task` counts the tries of each task by outcome.
    """

    at: float
    sums: Mapping[str, float]
    by_queue: Mapping[str, Mapping[Labels, float]]
    lateness: Sequence[float]
    edges: Sequence[float]
    journal: JournalLag | None = None
    late_by_queue: Mapping[Labels, Sequence[float]] = {}
    run_by_queue: Mapping[Labels, Sequence[float]] = {}
    run_edges: Sequence[float] = ()
    by_task: Mapping[Labels, float] = {}
    run_by_task: Mapping[Labels, Sequence[float]] = {}


class MeterSamples:
    """An async context manager: while it is entered, a task records the history."""

    def __init__(
        self,
        siblings: Siblings,
        history: RateHistory,
        count: Callable[[Sequence[Labels]], Awaitable[Mapping[Labels, Counts]]],
        *,
        sample_s: float,
        keep_s: float,
    ) -> None:
        self._siblings = siblings
        self._history = history
        self._count = count
        self._watched: Sequence[Labels] = ()
        self.queues = QueueHistory(history.records.of_kind(QUEUES_KIND, QUEUES_KEPT_S))
        self.tasks = QueueHistory(history.records.of_kind(TASKS_KIND, QUEUES_KEPT_S))
        self._sample_s = sample_s
        self._keep_s = keep_s
        self._gains: deque[MeterGain] = deque(maxlen=POINTS)
        self._recent: deque[MeterSample] = deque(maxlen=3)
        self._late_marks: deque[tuple[float, Mapping[Labels, Sequence[float]]]] = deque(maxlen=2)
        self._run_marks: deque[Mapping[Labels, Sequence[float]]] = deque(maxlen=2)
        self._kept: MeterSample | None = None
        self._minute: MeterSample | None = None
        self._sampled: tuple[float, MeterSample] | None = None
        self._sampling = asyncio.Lock()
        self._now: tuple[MeterSample, tuple[RatePoint, Mapping[str, Mapping[Labels, float]]]] | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "MeterSamples":
        self._task = asyncio.create_task(run_duty(Rounds("console samples", self._keep_history)))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.loops:
            task.cancel()
        await asyncio.gather(*self.loops, return_exceptions=True)

    @property
    def loops(self) -> Sequence[asyncio.Task[None]]:
        return (self._task,) if self._task is not None else ()

    async def _keep_history(self) -> float:
        try:
            await self._remember(await self._sample())
        except Exception:
            # A missing figure must not stop the server.
            log.exception("console_sample_failed")
        return self._sample_s

    async def _remember(self, sample: MeterSample) -> None:
        if self._recent:
            self._gains.append(gain_between(self._recent[-1], sample))
        # Only the last few samples are kept: they know the queues apart, of which there may be a thousand.
        self._recent.append(sample)
        if not self._late_marks or sample.at - self._late_marks[-1][0] >= LATE_MARK_S:
            self._late_marks.append((sample.at, sample.late_by_queue))
            self._run_marks.append(sample.run_by_queue)
        await self._remember_queues(sample)
        if self._siblings.name != WRITER:
            return
        before = self._kept = self._kept or sample
        if sample.at - before.at >= self._keep_s:
            self._kept = sample
            await self._history.write(gain_between(before, sample))

    async def _remember_queues(self, sample: MeterSample) -> None:
        """Once a minute: what each queue gained, and how many jobs wait in those that moved or had jobs before."""
        before = self._minute = self._minute or sample
        if sample.at - before.at < self._keep_s:
            return
        self._minute = sample
        gains = queue_gains(before, sample)
        busiest = sorted(gains, key=lambda labels: -sum(gains[labels].counts.values()))
        seconds = sample.at - before.at
        counts = await self._count(list(dict.fromkeys([*busiest, *self._watched]))[:MOST_COUNTED])
        self._watched = [labels for labels, one in counts.items() if one.ready or one.delayed]
        for labels, one in counts.items():
            gain = gains.get(labels) or MeterGain(sample.at, seconds, {}, ())
            gains[labels] = msgspec.structs.replace(gain, backlog=one.ready)
        minute = Minute(sample.at, seconds, gains)
        tasks = Minute(sample.at, seconds, task_gains(before, sample))
        self.queues.remember(minute)
        self.tasks.remember(tasks)
        if self._siblings.name == WRITER:
            await self.queues.write(minute)
            await self.tasks.write(tasks)

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
        late_by_queue = {labels: counts[:-1] for labels, counts in late.series.items()} if late else {}
        run, tasks, task_run = readings.get(RUN), readings.get(TASK_RUNS), readings.get(TASK_RUN)
        return MeterSample(
            time.time(),
            sums,
            by_queue,
            late_by,
            edges,
            _journal_lag(readings),
            late_by_queue,
            {labels: counts[:-1] for labels, counts in run.series.items()} if run else {},
            run.description.edges if run else (),
            {labels: value[0] for labels, value in tasks.series.items()} if tasks else {},
            {labels: counts[:-1] for labels, counts in task_run.series.items()} if task_run else {},
        )

    async def now(self) -> tuple[RatePoint, Mapping[str, Mapping[Labels, float]]]:
        """The rates since the latest sample of the history that is old enough to compare with, in all and by queue."""
        sample = await self._shared_sample()
        if self._now is not None and self._now[0] is sample:
            return self._now[1]
        known = list(self._recent)
        before = next((one for one in reversed(known) if sample.at - one.at >= self._sample_s / 2), None)
        before = before or (known[0] if known else sample)
        seconds = max(sample.at - before.at, 1.0)
        by_queue = {
            name: {labels: (value - before.by_queue[name].get(labels, 0)) / seconds for labels, value in series.items()}
            for name, series in sample.by_queue.items()
        }
        gain = gain_between(before, sample)
        rates = {name: count / gain.seconds for name, count in gain.counts.items()}
        point = RatePoint(gain.at, rates, quantile(gain.lateness, 0.5), quantile(gain.lateness, 0.99))
        self._now = sample, (point, by_queue)
        return self._now[1]

    async def lateness(self, queues: Sequence[Labels]) -> list[tuple[float | None, float | None]]:
        """Median and p99 in seconds of the jobs that were delivered since the last mark but one, for each queue."""
        sample = await self._shared_sample()
        before: Mapping[Labels, Sequence[float]] = self._late_marks[0][1] if self._late_marks else {}
        return [_quantiles(sample.edges, sample.late_by_queue, before, labels) for labels in queues]

    async def run_times(self, queues: Sequence[Labels]) -> list[tuple[float | None, float | None]]:
        """Median and p99 in seconds of how long jobs ran, of those that ended since the last mark but one."""
        sample = await self._shared_sample()
        before: Mapping[Labels, Sequence[float]] = self._run_marks[0] if self._run_marks else {}
        return [_quantiles(sample.run_edges, sample.run_by_queue, before, labels) for labels in queues]

    async def _shared_sample(self) -> MeterSample:
        async with self._sampling:
            if self._sampled is None or time.monotonic() - self._sampled[0] >= SHARED_S:
                sample = await self._sample()
                self._sampled = time.monotonic(), sample
            return self._sampled[1]

    async def journal(self) -> JournalLag | None:
        return (await self._shared_sample()).journal

    async def history(self, span: str) -> list[RatePoint]:
        """Points of the last hour or day: what this process knows, before that and of other servers what was kept."""
        since = time.time() - SPANS_S[span]
        gains, own = self._history.read(since), [*self._gains]
        if own:
            begin = own[0].at - own[0].seconds
            kept = [gain for gain in gains.get(self._history.server, []) if gain.at <= begin]
            gains[self._history.server] = [*kept, *own]
        return await asyncio.to_thread(rate_points, gains, since=since, width_s=SPANS_S[span] / POINTS)


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
    return MeterGain(after.at, max(after.at - before.at, 1.0), counts, _with_edges(after.edges, gained))


def queue_gains(before: MeterSample, after: MeterSample) -> dict[Labels, MeterGain]:
    """What each queue gained between two samples, of those in which anything happened."""
    found: dict[Labels, MeterGain] = {}
    for labels in after.by_queue["accepted"]:
        counts = {
            name: max(series.get(labels, 0) - before.by_queue[name].get(labels, 0), 0)
            for name, series in after.by_queue.items()
        }
        if any(counts.values()) and labels[1] != OTHER:
            late = _gained(after.late_by_queue, before.late_by_queue, labels)
            run = _gained(after.run_by_queue, before.run_by_queue, labels)
            found[labels] = MeterGain(
                after.at,
                max(after.at - before.at, 1.0),
                {name: count for name, count in counts.items() if count},
                _with_edges(after.edges, late),
                _with_edges(after.run_edges, run),
            )
    return found


def task_gains(before: MeterSample, after: MeterSample) -> dict[Labels, MeterGain]:
    """What each task did between two samples, of those of which a try ended."""
    found: dict[Labels, MeterGain] = {}
    for labels in after.run_by_task:
        counts = {
            name: max(after.by_task.get((*labels, outcome), 0) - before.by_task.get((*labels, outcome), 0), 0)
            for name, outcome in (("finished", "done"), ("failed", "failed"))
        }
        if any(counts.values()) and labels[1] != OTHER:
            run = _with_edges(after.run_edges, _gained(after.run_by_task, before.run_by_task, labels))
            found[labels] = MeterGain(after.at, max(after.at - before.at, 1.0), counts, (), run)
    return found


def _gained(
    now: Mapping[Labels, Sequence[float]], before: Mapping[Labels, Sequence[float]], labels: Labels
) -> list[float]:
    gained = list(now.get(labels, ()))
    if labels in before:
        gained = [max(new - old, 0) for new, old in zip(gained, before[labels], strict=True)]
    return gained


def _quantiles(
    edges: Sequence[float],
    now: Mapping[Labels, Sequence[float]],
    before: Mapping[Labels, Sequence[float]],
    labels: Labels,
) -> tuple[float | None, float | None]:
    spread = _with_edges(edges, _gained(now, before, labels))
    return quantile(spread, 0.5, edges), quantile(spread, 0.99, edges)


def _with_edges(edges: Sequence[float], counts: Sequence[float]) -> list[tuple[float, float]]:
    """Buckets that are not empty, each with its upper edge; the last bucket has none, and gets twice the highest."""
    upper = [*edges, edges[-1] * 2] if edges else []
    return [(edge, count) for edge, count in zip(upper, counts, strict=False) if count]
