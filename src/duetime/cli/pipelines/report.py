"""`duetime pipeline report`: one HTML file about a period."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from duetime.cli.options import AnswerForm, option
from duetime.cli.pipelines.options import SparkOptions, local_file
from duetime.cli.progress import show_progress
from duetime.model.clock import SystemClock, duration_ms, instant_ms
from duetime.model.errors import InvalidRequest
from duetime.model.humanise import span


@dataclass(frozen=True)
class ReportOptions:
    last: Annotated[str, option("DURATION", "The period that ends now.")] = "7d"
    since: Annotated[str | None, option("TIME", "Its start, a day or an instant (UTC).")] = None
    until: Annotated[str | None, option("TIME", "Its end, not part of it; now if not given.")] = None
    late_after: Annotated[
        str, option("DURATION", "99 of 100 deliveries should not be later than this.", "--target")
    ] = "50ms"
    out: Annotated[
        Path | None, option("FILE", "Where to write; named after the period if not given.", parser=local_file)
    ] = None


def report(options: ReportOptions, spark: SparkOptions, form: AnswerForm) -> None:
    """Write one HTML file on lateness, throughput, retries and losses.

    Reads `stats`, `jobs` and `events`. The file needs no network and no other file; it prints well, light or dark.

    Examples:
        duetime pipeline report --last 7d
        duetime pipeline report --since 2026-11-01 --until 2026-12-01 --out november.html
        duetime pipeline report --last 1h --target 100ms --json
    """
    answer = form.answer
    now = SystemClock().now_ms()
    start, end = read_period(options, now)
    with spark.session("report") as session, show_progress("report", as_json=form.json) as progress:
        from duetime.spark.lake.lake import Lake
        from duetime.spark.report.run import Asked, default_name, make_report, summary, write_file

        asked = Asked(start, end, max(duration_ms(options.late_after), 1))
        with progress.follow(session):
            made = make_report(Lake(session, spark.lake_folder), asked, written_at=now)
        path = options.out or Path(default_name(made))
        write_file(made, path)
    counts = made.whole.counts
    answer.show(
        {"file": str(path), **summary(made)},
        f"{path}: {counts['accepted']:,} accepted, {counts['delivered']:,} delivered, {counts['acked']:,} acked, "
        f"p99 {span(made.whole.p99) if made.whole.p99 is not None else '-'} late",
    )


def read_period(options: ReportOptions, now: int) -> tuple[int, int]:
    end = read_time(options.until) if options.until else now
    start = read_time(options.since) if options.since else end - duration_ms(options.last)
    if start >= end:
        raise InvalidRequest("the period ends before it begins: see --since and --until")
    return start, end


def read_time(text: str) -> int:
    """A day (its midnight, UTC) or an instant."""
    try:
        return int(datetime.strptime(text.strip(), "%Y-%m-%d").replace(tzinfo=UTC).timestamp() * 1000)
    except ValueError:
        return instant_ms(text)
