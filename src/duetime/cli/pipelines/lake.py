"""`duetime pipeline ingest`, `lifecycle`, `stats`, `vacuum`: the tables of the lake, made and kept small."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from duetime.cli.options import AnswerForm, flag, option
from duetime.cli.output import Answer
from duetime.cli.pipelines.options import SparkOptions
from duetime.cli.pipelines.sources import JournalSource
from duetime.cli.progress import show_progress
from duetime.model.clock import SystemClock, duration_ms

if TYPE_CHECKING:
    from duetime.spark.ingest.run import Ingested

NAMED = 20


@dataclass(frozen=True)
class IngestOptions:
    every: Annotated[str | None, option("DURATION", "Repeat at this interval until interrupted.")] = None


def ingest(options: IngestOptions, source: JournalSource, spark: SparkOptions, form: AnswerForm) -> None:
    """Load sealed segments of the journal into the table `events`.

    Only what is new is read. Damaged lines are reported with file and line; then the exit code is 1.

    Examples:
        duetime pipeline ingest --journal /var/lib/duetime/journal --lake /srv/lake
        duetime pipeline ingest --journal s3a://logs/duetime --lake s3a://lake/duetime --every 1m
    """
    from duetime.spark.ingest.run import find_done, run_ingest

    answer = form.answer
    journal = source.journal_folder
    if options.every or (done := find_done(spark.lake_folder, journal)) is None:
        with spark.session("ingest") as session:
            from duetime.spark.lake.lake import Lake

            lake = Lake(session, spark.lake_folder)
            with show_progress("ingest", as_json=form.json, unit="events") as progress:
                done = run_ingest(
                    lake, journal, every=options.every, on_progress=lambda so_far: progress.advance_to(so_far.events)
                )
    answer.show(msgspec.to_builtins(done), _text(done))
    if done.damaged:
        raise typer.Exit(1)


def _text(done: "Ingested") -> str:
    repeated = f", {done.repeated:,} known before" if done.repeated else ""
    lines = [f"{done.events:,} new events from {done.segments:,} segments{repeated}."]
    lines += [f"damaged: {one.file}, line {one.line}: {one.problem}" for one in done.damage[:NAMED]]
    if done.damaged > NAMED:
        lines.append(f"... and {done.damaged - NAMED:,} more damaged lines; --json names the first 1,000.")
    return "\n".join(lines)


def lifecycle(spark: SparkOptions, form: AnswerForm) -> None:
    """Update the table `jobs` from the table `events`.

    Only the days of jobs that have new events are written again. Run `ingest` first.

    Examples:
        duetime pipeline lifecycle --lake /srv/lake
        duetime pipeline lifecycle --lake hdfs:///duetime --json
    """
    from duetime.spark.lifecycle.run import find_done, run_lifecycle

    answer = form.answer
    if (done := find_done(spark.lake_folder)) is None:
        with spark.work_on_lake("lifecycle", form) as (lake, _):
            done = run_lifecycle(lake)
    text = f"{done.jobs:,} jobs of {done.days:,} days were brought up to date." if done.days else "Nothing is new."
    answer.show(msgspec.to_builtins(done), text)


@dataclass(frozen=True)
class StatsOptions:
    again: Annotated[bool, flag("Make every day again, not only those that changed.", "--again")] = False
    days: Annotated[int, option(None, "The number of days to show counters of, the latest first.", min=0)] = 1


def stats(options: StatsOptions, spark: SparkOptions, form: AnswerForm) -> None:
    """Update the table `stats`, and show the counters of each topic.

    Reads `events` and `jobs`; run `ingest` and `lifecycle` before. It computes changed days again as a whole, so you
    can run it at any time.

    Examples:
        duetime pipeline stats --lake lake
        duetime pipeline stats --again --json
    """
    answer = form.answer
    with spark.work_on_lake("stats", form) as (lake, _):
        from duetime.spark.stats.run import daily_counters, refresh_stats, total_counters

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


@dataclass(frozen=True)
class VacuumOptions:
    keep: Annotated[str, option("DURATION", "Forget days that are older; 0 keeps them forever.")] = "0"
    bodies: Annotated[str, option("DURATION", "Forget the bodies of ended jobs after this; 0: with their days.")] = "0"
    dry_run: Annotated[bool, flag("Only say what would go.", "--dry-run")] = False


def vacuum(options: VacuumOptions, spark: SparkOptions, form: AnswerForm) -> None:
    """Remove old days, old bodies and unused files of the lake.

    A day stays as long as a job of it lives, with that job's body, because reconcile would need it. Replaced files stay
    for a day, because readers may still use them; the next vacuum deletes them. So do the scratch files of a run that
    was killed, when nothing of them has changed for a day.

    Examples:
        duetime pipeline vacuum --lake /srv/lake --keep 400d --bodies 30d --dry-run
        duetime pipeline vacuum --lake s3a://lake/duetime --bodies 30d
    """
    answer = form.answer
    with spark.work_on_lake("vacuum", form) as (lake, _):
        from duetime.spark.lake.vacuum import vacuum as clean

        keep_ms, bodies_ms = duration_ms(options.keep), duration_ms(options.bodies)
        now_ms = SystemClock().now_ms()
        done = clean(lake, now_ms=now_ms, keep_ms=keep_ms, bodies_ms=bodies_ms, dry_run=options.dry_run)
    verb = "would go" if options.dry_run else "went"
    days = ", ".join(f"{count:,} days of {name}" for name, count in done.days.items() if count)
    parts = [days] if days else []
    parts += [f"the bodies of {done.days_without_bodies:,} days"] if done.days_without_bodies else []
    parts += [f"the rows of {done.batches:,} batches"] if done.batches else []
    parts += [f"{done.runs:,} runs of audit and reconcile"] if done.runs else []
    parts += [f"what {done.scratch:,} killed runs left aside"] if done.scratch else []
    parts += [f"{done.files:,} files that nothing names ({done.bytes:,} bytes)"] if done.files else []
    text = f"{'; '.join(parts)} {verb}." if parts else "Nothing is old enough."
    answer.show({"dry_run": options.dry_run, **msgspec.to_builtins(done)}, text)
