"""`duetime top`: the queues of a namespace, live.

Counts are exact. Rates are what can be known from counts alone: `in` and `out` are lower bounds, because a job that is
pushed and finished between two samples is not counted; the header says so with a "≥". Lateness is how long the
oldest ready job has been due. It comes from two due histograms and is right to about three percent, at a
cost that does not depend on the length of the queue, and never fetches a body.
"""

import itertools
import select
import sys
import time
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from duetime.bridges.foreign import ForeignQueues, Sizes, open_bridge
from duetime.cli.options import Target, check_exists, flag, option
from duetime.cli.output import Answer, queue_document
from duetime.cli.queues import SomeQueues, describe_rules, status_document
from duetime.client import Client
from duetime.client.calls import QueueStatus, size
from duetime.client.client import QueueClient
from duetime.model.clock import duration_ms, rfc3339
from duetime.model.errors import DuetimeError, InvalidRequest, StoreUnavailable
from duetime.model.humanise import counted, span
from duetime.model.job import DAY_MS, Counts, sum_counts
from duetime.model.masking import mask
from duetime.model.names import Queue

WINDOW = 10
"""Rates are averages over this number of samples."""
SHORTEST_MS = 100
FRAME_LINES = 6
"""Lines of the screen that show no queues."""
LATENESS_STEPS = 32

_UNITS_MS = (1, 1_000, 60_000, 3_600_000, DAY_MS, 1_000 * DAY_MS)
_AGES_MS = sorted({unit * factor for unit in _UNITS_MS for factor in (1, 2, 5, 10, 30, 100, 300)})


@dataclass(frozen=True)
class TopLine:
    """A queue at one instant. Rates are None until there were two samples."""

    status: QueueStatus
    late_ms: int | None
    in_per_s: float | None
    out_per_s: float | None


@dataclass(frozen=True)
class TopFrame:
    """`totals` are of all queues, also of the `hidden` ones that have no row."""

    now: int
    rows: Sequence[TopLine]
    totals: Counts
    hidden: int = 0
    others: Sequence[tuple[str, str, Sizes]] = ()
    """Queues of other systems: bridge, queue, sizes."""


class QueueSampler:
    """Samples all queues repeatedly and computes rates."""

    def __init__(
        self, client: Client, only: Sequence[str] = (), bridges: Sequence[tuple[str, ForeignQueues]] = ()
    ) -> None:
        self._client, self._bridges = client, bridges
        self._only = frozenset(only)
        self._history: dict[Queue, deque[Counts]] = {}

    def sample(self, room: int | None = None) -> TopFrame:
        """`room`: how many queues can be shown; if there are more, the busiest are."""
        statuses = [one for one in self._client.queues() if not self._only or one.queue.name in self._only]
        for status in statuses:
            self._history.setdefault(status.queue, deque(maxlen=WINDOW + 1)).append(status.counts)
        known = {status.queue for status in statuses}
        self._history = {queue: seen for queue, seen in self._history.items() if queue in known}
        busiest = sorted(statuses, key=lambda one: (-one.counts.ready - one.counts.leased, one.queue))[:room]
        rows = [self._row(status) for status in sorted(busiest, key=lambda one: one.queue)]
        totals = sum_counts([status.counts for status in statuses])
        others = [
            (name, *one) for name, foreign in self._bridges for one in foreign.list_sizes(foreign.names()).items()
        ]
        return TopFrame(totals.now or time.time_ns() // 1_000_000, rows, totals, len(statuses) - len(rows), others)

    def _row(self, status: QueueStatus) -> TopLine:
        coming, going = flow(list(self._history[status.queue]))
        late = oldest_late_ms(self._client.queue(status.queue.name), status.counts) if status.counts.ready else None
        return TopLine(status, late, coming, going)


def flow(samples: Sequence[Counts]) -> tuple[float | None, float | None]:
    """Jobs per second that at least came in and went out, over the given samples."""
    elapsed_ms = samples[-1].now - samples[0].now
    if len(samples) < 2 or elapsed_ms <= 0:
        return None, None
    # What expired has left the other counts without being finished by anyone; it went out all the same.
    changes = [after.total - before.total for before, after in itertools.pairwise(samples)]
    seconds = elapsed_ms / 1000
    return sum(max(0, change) for change in changes) / seconds, sum(max(0, -change) for change in changes) / seconds


def oldest_late_ms(queue: QueueClient, counts: Counts) -> int | None:
    """How long the job with the earliest due time has been ready; None if it has gone meanwhile."""
    edges = [0, *(counts.now - age for age in reversed(_AGES_MS) if age < counts.now), counts.now, counts.now + 1]
    bucket = _first_bucket(queue, edges)
    if bucket is None:
        return None
    low, high = bucket
    width = high - low
    if width > LATENESS_STEPS:
        finer = [low + width * step // LATENESS_STEPS for step in range(LATENESS_STEPS + 1)]
        low, high = _first_bucket(queue, finer) or bucket
    return max(0, counts.now - low)


def _first_bucket(queue: QueueClient, edges: Sequence[int]) -> tuple[int, int] | None:
    for low, high, found in zip(edges, edges[1:], queue.due_histogram(edges), strict=False):
        if found:
            return low, high
    return None


# --- drawing


def draw(frame: TopFrame, target: Target, problem: str = "") -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    table.add_column("queue", no_wrap=True, overflow="ellipsis")
    for name in ("ready", "delayed", "running", "failed", "expired", "in/s ≥", "out/s ≥", "late"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in frame.rows:
        table.add_row(*_cells(row))
    for name, queue, sizes in frame.others:
        cells = _number(sizes.ready, "green"), _number(sizes.delayed, "cyan"), _number(sizes.reserved, "yellow")
        unknown = [Text("-", style="dim")] * 4
        table.add_row(Text(f"{name}: {queue}"), *cells, *unknown, _lateness(_late_there(sizes, frame.now)), Text(""))
    totals = frame.totals
    head = Text.assemble(("Duetime", "bold"), f"  {target.space} at {mask(target.address)}  {rfc3339(frame.now)}")
    sums = Text(
        f"{counted(len(frame.rows) + frame.hidden, 'queue')}: {totals.ready:,} ready, {totals.delayed:,} delayed, "
        f"{totals.leased:,} running, {totals.dead:,} failed",
        style="dim",
    )
    body = table if frame.rows or frame.others else Text(f"no queues in {target.space} yet", style="dim")
    foot: list[Text] = [Text(f"and {counted(frame.hidden, 'less busy queue')}", style="dim")] if frame.hidden else []
    foot += [Text(problem, style="bold red")] if problem else []
    return Group(head, sums, Text(""), body, *foot)


def _late_there(sizes: Sizes, now: int) -> int | None:
    return max(0, now - sizes.oldest_due_at) if sizes.oldest_due_at is not None else None


def _cells(row: TopLine) -> list[Text]:
    counts, rules = row.status.counts, row.status.rules
    return [
        Text(row.status.queue.name, style="dim" if rules.paused else ""),
        _number(counts.ready, "green"),
        _number(counts.delayed, "cyan"),
        _number(counts.leased, "yellow"),
        _number(counts.dead, "red"),
        _number(counts.expired, "magenta"),
        _rate(row.in_per_s),
        _rate(row.out_per_s),
        _lateness(row.late_ms),
        Text(describe_rules(rules), style="yellow"),
    ]


def _number(value: int, style: str) -> Text:
    return Text(f"{value:,}", style=style if value else "dim")


def _rate(value: float | None) -> Text:
    if value is None:
        return Text("-", style="dim")
    return Text(f"{value:,.1f}" if value < 100 else f"{value:,.0f}", style="" if value else "dim")


def _lateness(late_ms: int | None) -> Text:
    if late_ms is None:
        return Text("-", style="dim")
    return Text(span(late_ms), style="red" if late_ms >= 60_000 else "yellow" if late_ms >= 1_000 else "")


def frame_document(frame: TopFrame) -> dict[str, Any]:
    return {
        "now": frame.now,
        "totals": msgspec.structs.asdict(frame.totals),
        "queues": [
            {
                **status_document(row.status),
                "late_ms": row.late_ms,
                "in_per_s_at_least": row.in_per_s,
                "out_per_s_at_least": row.out_per_s,
            }
            for row in frame.rows
        ],
        "bridges": [
            {"bridge": name, "queue": queue, **msgspec.to_builtins(sizes), "late_ms": _late_there(sizes, frame.now)}
            for name, queue, sizes in frame.others
        ],
    }


# --- the loop


@contextmanager
def single_keys() -> Generator[bool]:
    """Keys arrive without Enter and without echo; False if there is no keyboard."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield False
        return
    import termios  # noqa: PLC0415 (not on Windows)
    import tty  # noqa: PLC0415

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield True
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def wants_to_leave(seconds: float, *, keyboard: bool) -> bool:
    """Wait, but not longer than until q is pressed."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if not keyboard:
            time.sleep(left)
        elif select.select([sys.stdin], [], [], left)[0]:
            key = sys.stdin.read(1)
            if key in ("q", "Q", ""):
                return True
    return False


def top(
    target: Target,
    queues: SomeQueues = None,
    interval: Annotated[str, option("DURATION", "Time between two samples.")] = "1s",
    once: Annotated[bool, flag("Print once and exit.", "--once")] = False,
    bridge: Annotated[list[str] | None, option("SYSTEM+URL", "Also queues of another system; repeatable.")] = None,
) -> None:
    """Watch the queues of the namespace: counts, rates, lateness. Press q to leave.

    "in/s ≥" and "out/s ≥" are lower bounds: a job that comes and goes between two samples is not seen. "late" is how
    long the oldest ready job has been due.

    Examples:
        duetime top
        duetime top mail --interval 5s
        duetime top --once --json
        duetime top --bridge 'laravel+redis://localhost?prefix=laravel_database_'
    """
    interval_ms = duration_ms(interval)
    if interval_ms < SHORTEST_MS:
        raise InvalidRequest(f"--interval must be at least {SHORTEST_MS} ms, got {interval!r}")
    with target.connect() as client, ExitStack() as stack:
        bridges = [open_bridge(one) for one in bridge or ()]
        for _, foreign in bridges:
            stack.callback(foreign.close)
        sampler = QueueSampler(client, queues or (), bridges)
        frame = sampler.sample()
        answer = target.answer
        if once or target.json or not sys.stdout.isatty():
            _stream(sampler, frame, target, answer, pause_s=0 if once else interval_ms / 1000)
        else:
            _watch(sampler, frame, target, interval_ms / 1000)


def _stream(sampler: QueueSampler, frame: TopFrame, target: Target, answer: Answer, *, pause_s: float) -> None:
    """Frame after frame, for a pipe; only one without a pause."""
    while True:
        if answer.as_json:
            answer.document(frame_document(frame))
        else:
            answer.console.print(draw(frame, target), soft_wrap=False)
        if not pause_s:
            return
        try:
            time.sleep(pause_s)
        except KeyboardInterrupt:
            return
        frame = sampler.sample()


def _watch(sampler: QueueSampler, frame: TopFrame, target: Target, pause_s: float) -> None:
    console = Console(highlight=False)
    with single_keys() as keyboard, Live(console=console, screen=True, auto_refresh=False) as live:
        problem = ""
        try:
            while True:
                live.update(draw(frame, target, problem), refresh=True)
                if wants_to_leave(pause_s, keyboard=keyboard):
                    return
                try:
                    frame, problem = sampler.sample(max(1, console.height - FRAME_LINES)), ""
                except StoreUnavailable as error:
                    # What was last seen stays on the screen, with the reason why it is old.
                    problem = f"no answer since {rfc3339(frame.now)}: {error.message}"
        except KeyboardInterrupt:
            return


class QueueBusy(DuetimeError):
    """A queue is over its threshold."""

    code = "queue_busy"
    status = 409


@dataclass(frozen=True)
class Thresholds:
    most: Annotated[int, option("N", "Jobs, failed ones excluded; 0: no limit.", "--max")] = 1000
    max_failed: Annotated[int, option("N", "Failed jobs; 0: no limit.")] = 0
    max_late: Annotated[str, option("TIME", "How long a job may have been due; 0: no limit.")] = "0"


def monitor(
    thresholds: Thresholds,
    target: Target,
    queues: SomeQueues = None,
) -> None:
    """Compare queues with thresholds; the exit code is 1 if one is exceeded.

    Examples:
        duetime monitor mail --max 1000
        duetime monitor --max-failed 1 --max-late 5m --json
    """
    check_exists(target.address)
    with target.connect() as client:
        found = [client.queue(name).status() for name in queues] if queues else client.queues()
    found = sorted(found, key=lambda status: status.queue)
    late_ms = duration_ms(thresholds.max_late)
    alerts = [_alerts(one, thresholds, late_ms) for one in found]
    documents = [
        {
            **queue_document(one.queue),
            "size": size(one.counts),
            "ready": one.counts.ready,
            "delayed": one.counts.delayed,
            "leased": one.counts.leased,
            "dead": one.counts.dead,
            "late_ms": one.late_ms,
            "paused": one.rules.paused,
            "alerts": alert,
        }
        for one, alert in zip(found, alerts, strict=True)
    ]
    columns = {
        "queue": [one.queue.name for one in found],
        "size ": [f"{size(one.counts):,}" for one in found],
        "ready ": [f"{one.counts.ready:,}" for one in found],
        "delayed ": [f"{one.counts.delayed:,}" for one in found],
        "running ": [f"{one.counts.leased:,}" for one in found],
        "failed ": [f"{one.counts.dead:,}" for one in found],
        "late ": [span(one.late_ms) if one.late_ms else "-" for one in found],
        "status": [f"ALERT: {', '.join(alert)}" if alert else "OK" for alert in alerts],
    }
    target.answer.table(documents, columns)
    if busy := [one.queue.name for one, alert in zip(found, alerts, strict=True) if alert]:
        raise QueueBusy(f"over a threshold: {', '.join(busy)}", queues=busy)


def _alerts(one: QueueStatus, thresholds: Thresholds, late_ms: int) -> Sequence[str]:
    over = (
        (thresholds.most, size(one.counts), "size"),
        (thresholds.max_failed, one.counts.dead, "failed"),
        (late_ms, one.late_ms, "late"),
    )
    return [name for limit, value, name in over if limit and value >= limit]
