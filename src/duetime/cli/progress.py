"""The progress of long work on standard error: rows, rate, time left.

A terminal gets a bar that moves; a log file gets a line every ten seconds; with `--json` there is nothing, so that
programs read only the answer. Used by every pipeline:

    with show_progress("pushing", total=rows, as_json=target.json) as progress:
        progress.advance_to(done)
        ...
    with show_progress("lifecycle", as_json=target.json) as progress, progress.follow(spark):
        frame.write.parquet(...)            # the rows that Spark reads and writes are counted
"""

import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from duetime.cli.output import note
from duetime.model.humanise import span

LINE_EVERY_S = 10.0
POLL_EVERY_S = 0.5


class ProgressDisplay:
    """Shows the progress of one phase after the other. Its methods can be called from any thread."""

    def __init__(self, what: str, total: int | None, unit: str) -> None:
        self.what, self.total, self.unit = what, total, unit
        self.done = 0
        self._started = self._last_line = time.monotonic()

    @property
    def rate(self) -> float:
        """Per second, since the start."""
        return self.done / max(time.monotonic() - self._started, 1e-6)

    @property
    def left_s(self) -> float | None:
        if not self.total or not self.done:
            return None
        return max(self.total - self.done, 0) / self.rate

    def advance_to(self, done: int, *, total: int | None = None) -> None:
        """Set the number of rows that are done; a smaller number is ignored."""
        self.done = max(done, self.done)
        self.total = total if total is not None else self.total
        self.redraw()

    def begin(self, what: str, rows: int = 0) -> None:
        """Starts another phase, of `rows` rows if that is known."""
        self.what, self.done, self.total = what, 0, rows or None
        self._started = time.monotonic()
        self.redraw()

    def redraw(self) -> None:
        """Show it; the base shows nothing."""

    @contextmanager
    def follow(self, spark: Any) -> Generator[None]:
        """Count the rows that Spark's stages have read or written meanwhile. Over Spark Connect nothing is shown."""
        stages = StageRows.of(spark)
        if stages is None:
            yield
            return
        ended, what = threading.Event(), self.what

        def poll() -> None:
            phase, before, seen = what, 0, 0
            while not ended.wait(POLL_EVERY_S):
                last, seen = seen, stages.count()
                if self.what != phase:
                    # The phase began after the last poll, so the rows since then are its own.
                    phase, before = self.what, last
                if seen > before:
                    self.advance_to(min(seen - before, self.total or seen))

        thread = threading.Thread(target=poll, name="duetime-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


class StageRows:
    """Counts the rows of the stages that ran since the first poll, from Spark's own status store."""

    def __init__(self, tracker: Any, store: Any) -> None:
        self._tracker, self._store = tracker, store
        self._rows: dict[int, int] = {}
        self._running: set[int] = set()

    @classmethod
    def of(cls, spark: Any) -> "StageRows | None":
        try:
            context = spark.sparkContext
            return cls(context.statusTracker(), context._jsc.sc().statusStore())
        except Exception:  # Spark Connect has no context, and says so with an error of its own
            return None

    def count(self) -> int:
        active = set[int](self._tracker.getActiveStageIds())
        known = max(self._rows, default=min(active, default=0) - 1)
        # Short stages begin and end between two polls; their numbers are between those of the others.
        for stage in {*active, *self._running, *range(known + 1, max(active, default=known) + 1)}:
            self._rows[stage] = max(self._rows.get(stage, 0), self._rows_of(stage))
        self._running = active
        return sum(self._rows.values())

    def _rows_of(self, stage: int) -> int:
        try:
            found = self._store.lastStageAttempt(stage)
        except Exception:  # a stage that was planned and skipped
            return 0
        read = max(found.inputRecords(), found.shuffleReadRecords())
        return max(read, found.outputRecords(), found.shuffleWriteRecords())


class LineDisplay(ProgressDisplay):
    """Progress for log files: a line now and then."""

    def redraw(self) -> None:
        now = time.monotonic()
        if now - self._last_line < LINE_EVERY_S or not (self.done or self.total):
            return
        self._last_line = now
        of = f" of {self.total:,}" if self.total else ""
        left = "" if self.left_s is None else f", {span(self.left_s * 1000)} left"
        note(f"{self.what}: {self.done:,}{of} {self.unit}, {self.rate:,.0f}/s{left}")


class BarDisplay(ProgressDisplay):
    """Progress for terminals: a bar that moves."""

    def __init__(self, what: str, total: int | None, unit: str) -> None:
        super().__init__(what, total, unit)
        self.bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}  {task.fields[rate]:,.0f}/s", markup=False),
            TimeRemainingColumn(),
            console=Console(stderr=True, highlight=False),
        )
        self._task = self.bar.add_task(what, total=total, unit=unit, rate=0.0)

    def redraw(self) -> None:
        self.bar.update(
            self._task, description=self.what, completed=self.done, total=self.total, unit=self.unit, rate=self.rate
        )


@contextmanager
def show_progress(
    what: str, *, as_json: bool, total: int | None = None, unit: str = "rows"
) -> Generator[ProgressDisplay]:
    """A display that is gone when the block ends."""
    if as_json:
        yield ProgressDisplay(what, total, unit)
    elif sys.stderr.isatty():
        display = BarDisplay(what, total, unit)
        with display.bar:
            yield display
    else:
        yield LineDisplay(what, total, unit)
