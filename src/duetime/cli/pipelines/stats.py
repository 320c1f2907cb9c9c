"""`duetime pipeline stats`: the lake's numbers per queue and minute, and the counters of each topic."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from duetime.cli.options import AnswerForm, takes_options
from duetime.cli.output import Answer
from duetime.cli.pipelines.options import SparkOptions
from duetime.cli.progress import show_progress


@dataclass(frozen=True)
class StatsOptions:
    again: Annotated[bool, typer.Option("--again", help="Make every day again, not only those that changed.")] = False
    days: Annotated[int, typer.Option(min=0, help="The number of days to show counters of, the latest first.")] = 1


@takes_options
def stats(options: StatsOptions, spark: SparkOptions, form: AnswerForm) -> None:
    """Update the table `stats`, and show the counters of each topic.

    Reads `events` and `jobs`; run `ingest` and `lifecycle` before. It computes changed days again as a whole, so you
    can run it at any time.

    Examples:
        duetime pipeline stats --lake lake
        duetime pipeline stats --again --json
    """
    answer = form.answer
    with spark.session("stats") as session, show_progress("stats", as_json=form.json) as progress:
        from duetime.spark.lake.lake import Lake
        from duetime.spark.stats.run import daily_counters, refresh_stats, total_counters

        lake = Lake(session, spark.lake_folder)
        with progress.follow(session):
            done = refresh_stats(lake, again=options.again)
            manifest = lake.stats.manifest()
            table = lake.stats.read(manifest=manifest)
            totals = [row.asDict() for row in total_counters(table).orderBy("namespace", "queue").collect()]
            days = sorted(manifest.dates(), reverse=True)[: options.days]
            shown = lake.stats.read(manifest=manifest, only=lambda file: file.date in days)
            daily = [
                row.asDict() | {"date": str(row.date)}
                for row in daily_counters(shown).orderBy("namespace", "queue").collect()
            ]
    if form.json:
        answer.document({"dates": list(done.dates), "version": done.version, "totals": totals, "days": daily})
        return
    made = f"{len(done.dates)} days were made" if done.dates else "nothing has changed"
    answer.console.print(f"stats: {made}, {len(totals)} queues in {spark.lake_folder}")
    _print_counters(answer, [{"date": "total", **row} for row in totals] + daily)


def _print_counters(answer: Answer, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    rows.sort(key=lambda row: (row["namespace"], row["queue"], row["date"] != "total", row["date"]))
    numbers = {f"{name} ": [f"{row[name]:,}" for row in rows] for name in ("written", "notified", "deleted", "failed")}
    columns = {
        "queue": [f"{row['namespace']}/{row['queue']}" for row in rows],
        "day": [row["date"] for row in rows],
        **numbers,
    }
    answer.table(rows, columns)
