"""`duetime pipeline demo`: the whole story of the pipelines, from a table to a report, with a crash in the middle."""

import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from duetime.cli.options import AnswerForm, option
from duetime.cli.pipelines.audit import law_document, law_text
from duetime.cli.pipelines.options import SparkOptions
from duetime.cli.progress import ProgressDisplay, show_progress
from duetime.model.errors import InvalidRequest
from duetime.model.humanise import span

if TYPE_CHECKING:
    from duetime.spark.demo.story import Ending

LEAST_ROWS = 100


@dataclass(frozen=True)
class DemoOptions:
    rows: Annotated[int, option(None, "How many members, and so reminders.")] = 1_000_000
    store: Annotated[str | None, option("redis|sqlite", "What is lost on the way; Redis where it is installed.")] = None
    window: Annotated[float, option("SECONDS", "In which the first reminders fall due.")] = 30.0
    out: Annotated[Path, option("FILE", "The report.")] = Path("duetime-demo-report.html")
    keep: Annotated[Path | None, option("DIR", "A new folder for table, journal, lake and logs, which stays.")] = None


def demo(options: DemoOptions, spark: SparkOptions, form: AnswerForm) -> None:
    """Schedule a million rows, lose the store, prove and repair the loss.

    A server, a Redis without persistence and a few consumers are started on this machine and ended with the demo; on
    the embedded store (--store sqlite) rows are deleted behind its back instead. Nothing leaves this machine.

    Examples:
        duetime pipeline demo
        duetime pipeline demo --rows 10000 --store sqlite --out demo.html
    """
    answer = form.answer
    if options.rows < LEAST_ROWS:
        raise InvalidRequest(f"--rows must be at least {LEAST_ROWS}")
    if options.store not in (None, "redis", "sqlite"):
        raise InvalidRequest(f"--store must be redis or sqlite, got {options.store!r}")
    began = time.monotonic()
    with _folder(options.keep) as folder, spark.session("demo") as session:
        from duetime.spark.demo.processes import find_redis
        from duetime.spark.demo.story import Demo, DemoPlan

        is_redis = options.store == "redis" or (options.store is None and find_redis() is not None)
        plan = DemoPlan(options.rows, folder, options.out.absolute(), is_redis=is_redis, window_s=options.window)

        @contextmanager
        def stage(title: str) -> Generator[ProgressDisplay]:
            started, short = time.monotonic(), title.partition(":")[0]
            answer.note(f"[{started - began:6.1f} s] {title}")
            with (
                show_progress(f"           {short}", as_json=form.json) as progress,
                progress.follow(session),
            ):
                yield progress
            answer.note(f"           done in {span((time.monotonic() - started) * 1000)}")

        ending = Demo(session, plan, stage, lambda text: answer.note(f"           {text}")).run()
    answer.show(_document(ending, plan.report), _summary(ending, plan.report))
    if not ending.sound.is_sound:
        from duetime.spark.demo.processes import DemoFailed

        raise DemoFailed("the law does not hold after the repair; run it again with --keep DIR and look there")


def _summary(ending: "Ending", path: Path) -> str:
    whole, tally = ending.report.whole, ending.deliveries
    return "\n".join(
        [
            "",
            f"{ending.scheduled.accepted:,} reminders were scheduled. Then the store was lost.",
            "",
            "The conservation law after the crash:",
            f"  {law_text(ending.broken)}",
            "and after reconcile:",
            f"  {law_text(ending.sound)}",
            "",
            f"Consumers got {tally.get('delivered', 0):,} deliveries and acked {tally.get('acked', 0):,}; "
            f"the journal has {whole.counts['delivered']:,} and {whole.counts['acked']:,}.",
            f"Audit: {'nothing is lost, doubled or early' if ending.sound.is_sound else 'the law does not hold'}. "
            f"It took {span(ending.seconds * 1000)}.",
            f"Report: {path}",
        ]
    )


def _document(ending: "Ending", path: Path) -> dict[str, Any]:
    return {
        "scheduled": ending.scheduled.accepted,
        "law_after_crash": law_document(ending.broken),
        "law_after_reconcile": law_document(ending.sound),
        "is_sound": ending.sound.is_sound,
        "deliveries": ending.deliveries,
        "report": str(path),
        "seconds": round(ending.seconds, 1),
    }


@contextmanager
def _folder(keep: Path | None) -> Generator[Path]:
    """Yields the folder that the user wants to keep, or a temporary one that is deleted afterwards."""
    if keep is not None:
        if keep.exists() and any(keep.iterdir()):
            raise InvalidRequest(f"--keep must name a new or empty folder, got {keep}")
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.absolute()
        return
    folder = Path(tempfile.mkdtemp(prefix="duetime-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
