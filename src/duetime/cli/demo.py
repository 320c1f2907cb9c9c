"""`duetime demo`: the whole story in twenty seconds, on a store that lives in a temporary folder.

Three jobs: one is delayed, one fails once and is tried again, one fails for good and is retried.
Every line on the screen is what the store answered, and the lateness at the end is measured, not claimed. Nothing
leaves this machine and nothing is left behind.
"""

import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from duetime.cli.options import Target, flag
from duetime.cli.output import Answer
from duetime.client import Client, connect
from duetime.client.client import LeasedJob, QueueClient
from duetime.model.errors import DuetimeError
from duetime.model.job import Event, Moved

FAST = 0.1
"""How long a second of the story lasts with --fast."""
LENGTH_S = 20.0
QUEUE = "demo"
JOBS = ("reminder", "invoice", "webhook")
MARKS = {
    "delayed": ("·", "cyan"),
    "ready": ("○", "green"),
    "running": ("█", "yellow"),
    "failed": ("x", "red"),
    "done": ("✓", "bold green"),
}


class StoryBroken(DuetimeError):
    """The demo did not go as it must."""

    code = "demo_failed"


@dataclass(frozen=True)
class Moment:
    """At `at_s` the job went into `state`."""

    at_s: float
    job: str
    state: str
    text: str


@dataclass
class Timeline:
    """What happened so far. Written by the story, read by the screen's own thread."""

    scale: float
    moments: list[Moment] = field(default_factory=list[Moment])
    lateness_ms: list[float] = field(default_factory=list[float])
    lock: threading.Lock = field(default_factory=threading.Lock)
    start: float = field(default_factory=time.monotonic)

    def now_s(self) -> float:
        """Seconds of the story, which are shorter than real ones with --fast."""
        return (time.monotonic() - self.start) / self.scale

    def add(self, job: str, state: str, text: str) -> Moment:
        moment = Moment(self.now_s(), job, state, text)
        with self.lock:
            self.moments.append(moment)
        return moment

    def seen(self) -> list[Moment]:
        with self.lock:
            return list(self.moments)


class Story:
    """The steps, in order. `show` is called with each as it happens."""

    def __init__(self, client: Client, timeline: Timeline, show: Callable[[Moment], None]) -> None:
        self._client = client
        self._queue: QueueClient = client.queue(QUEUE)
        self._time = timeline
        self._show = show

    def run(self) -> None:
        self._push("reminder", 5.0, tries=5)
        self._push("invoice", 1.5, tries=5)
        self._fail(self._take("invoice"), 4.0, "mail server busy")
        self._finish(self._take("reminder"))
        self._finish(self._take("invoice"))
        self._pause(1.0)
        self._push("webhook", 0.0, tries=2)
        self._fail(self._take("webhook"), 2.0, "connection refused")
        self._fail(self._take("webhook"), 2.0, "connection refused")
        self._pause(4.0)
        self._retry("webhook")
        self._finish(self._take("webhook"))

    def _push(self, job: str, delay_s: float, *, tries: int) -> None:
        self._queue.push(f"the body of {job}", id=job, delay=delay_s * self._time.scale, tries=tries)
        due = f"due in {delay_s:g} s" if delay_s else "due now"
        self._say(job, "delayed" if delay_s else "ready", f"pushed, {due}, {tries} tries")

    def _take(self, job: str) -> LeasedJob:
        """Wait for the next job as a consumer does; the store decides when, and it must be this one."""
        delivery = self._queue.pop(ttr="30s", wait=10)
        arrived_ms = time.time_ns() / 1_000_000
        if delivery is None or delivery.lease.id != job:
            raise StoryBroken(f"expected {job}, got {delivery.lease.id if delivery else 'nothing'}")
        late_ms = arrived_ms - delivery.due_at
        self._time.lateness_ms.append(late_ms)
        self._say(job, "running", f"delivered, try {delivery.used} of {delivery.tries}, {late_ms:.1f} ms after due")
        self._pause(1.0)
        return delivery

    def _finish(self, delivery: LeasedJob) -> None:
        self._client.ack(delivery)
        self._say(delivery.lease.id, "done", "done")

    def _fail(self, delivery: LeasedJob, retry_s: float, error: str) -> None:
        moved: Moved = self._client.release(delivery, delay=retry_s * self._time.scale, error=error)
        if moved.event is Event.DEAD:
            self._say(delivery.lease.id, "failed", f"failed ({error}), no tries left")
        else:
            self._say(delivery.lease.id, "delayed", f"failed ({error}), tried again in {retry_s:g} s")

    def _retry(self, job: str) -> None:
        if [moved.id for moved in self._queue.dead.respawn([job])] != [job]:
            raise StoryBroken(f"{job} was not among the failed jobs")
        self._say(job, "ready", "retried by an operator: ready again, with all its tries")

    def _say(self, job: str, state: str, text: str) -> None:
        self._show(self._time.add(job, state, text))

    def _pause(self, seconds: float) -> None:
        time.sleep(seconds * self._time.scale)


# --- drawing


def draw_chart(timeline: Timeline, *, width: int, until_s: float) -> RenderableType:
    """One line per job, time from left to right."""
    seen = timeline.seen()
    grid = Table.grid(padding=(0, 1))
    for job in JOBS:
        grid.add_row(Text(f"{job:>9}"), _bar([one for one in seen if one.job == job], width, until_s))
    grid.add_row(Text("seconds", style="dim", justify="right"), Text(_axis(width), style="dim"))
    legend = Text.assemble(*(part for state, mark in MARKS.items() for part in ((mark[0], mark[1]), f" {state}   ")))
    return Group(grid, Text(""), legend)


def _bar(moments: list[Moment], width: int, until_s: float) -> Text:
    bar = Text()
    for column in range(width):
        at_s = column * LENGTH_S / width
        started = [one for one in moments if one.at_s <= at_s + LENGTH_S / width]
        ended = started and started[-1].state == "done" and started[-1].at_s < at_s
        if at_s > until_s or not started or ended:
            bar.append(" ")
        else:
            bar.append(*MARKS[started[-1].state])
    return bar


def _axis(width: int) -> str:
    axis = [" "] * (width + 3)
    for second in range(0, int(LENGTH_S) + 1, 5):
        label = str(second)
        at = round(second * width / LENGTH_S)
        axis[at : at + len(label)] = label
    return "".join(axis).rstrip()


def line_of(moment: Moment) -> Text:
    return Text.assemble((f"{moment.at_s:5.1f}s ", "dim"), (f"{moment.job:>9}  ", MARKS[moment.state][1]), moment.text)


class Screen:
    """Redraws while the story runs, so that time is seen to pass also when nothing happens."""

    def __init__(self, console: Console, timeline: Timeline) -> None:
        self.finished = False
        self._console = console
        self._timeline = timeline

    def __rich__(self) -> RenderableType:
        width = max(20, min(80, self._console.width - 14))
        lines = [line_of(moment) for moment in self._timeline.seen()]
        if not self.finished:
            # The latest lines must stay visible; at the end all are printed.
            lines = lines[-max(1, self._console.height - 10) :]
        chart = draw_chart(self._timeline, width=width, until_s=self._timeline.now_s())
        return Group(Text("A queue, three jobs, twenty seconds", style="bold"), Text(""), chart, Text(""), *lines)


def summary(timeline: Timeline, seconds: float) -> dict[str, Any]:
    late = timeline.lateness_ms
    return {
        "jobs": len(JOBS),
        "deliveries": len(late),
        "lateness_ms": {
            "min": round(min(late), 3),
            "median": round(median(late), 3),
            "max": round(max(late), 3),
        },
        "early": sum(one < 0 for one in late),
        "seconds": round(seconds, 3),
    }


def describe_summary(sums: dict[str, Any]) -> str:
    late = sums["lateness_ms"]
    return (
        f"{sums['jobs']} jobs, {sums['deliveries']} deliveries, none early, none lost. Lateness: "
        f"median {late['median']:.1f} ms, worst {late['max']:.1f} ms.\n"
        "Try it yourself: duetime serve --dev, then duetime push demo hello --delay 5s"
    )


def demo(
    target: Target,
    fast: Annotated[bool, flag("Ten times as fast.", "--fast")] = False,
) -> None:
    """Watch a delayed job, a retry and a failed job in twenty seconds.

    It uses a store in a temporary folder, which it deletes at the end. It needs no server and no network.
    """
    answer = target.answer
    timeline = Timeline(FAST if fast else 1.0)
    live = not target.json and sys.stdout.isatty()
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="duetime-demo-") as folder,
        connect(f"sqlite://{Path(folder).resolve() / 'demo.db'}") as client,
    ):
        client.queue(QUEUE).counts()  # the file is made before the clock starts
        timeline.start = time.monotonic()
        console = answer.console
        screen = Screen(console, timeline)
        with Live(screen, console=console, refresh_per_second=10) if live else nullcontext():
            Story(client, timeline, _printer(answer, live=live)).run()
            screen.finished = True
        until_s = timeline.now_s()
        if left := client.queue(QUEUE).counts().total:
            raise StoryBroken(f"{left} jobs are left over")
    if not live and not target.json:
        console.print(draw_chart(timeline, width=60, until_s=until_s))
    sums = summary(timeline, time.monotonic() - started)
    if sums["early"]:
        raise StoryBroken("a job was delivered before it was due")
    answer.show(sums, "\n" + describe_summary(sums))


def _printer(answer: Answer, *, live: bool) -> Callable[[Moment], None]:
    def show(moment: Moment) -> None:
        if answer.as_json:
            answer.document(
                {"at_s": round(moment.at_s, 3), "job": moment.job, "state": moment.state, "text": moment.text}
            )
        elif not live:
            answer.console.print(line_of(moment))

    return show
