"""`duetime pipeline ingest`: the journal's sealed segments into the lake."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duetime.cli.options import AnswerForm, takes_options
from duetime.cli.pipelines.options import SparkOptions
from duetime.cli.pipelines.sources import JournalSource
from duetime.cli.progress import show_progress

if TYPE_CHECKING:
    from duetime.spark.ingest.run import Ingested

NAMED = 20


@dataclass(frozen=True)
class IngestOptions:
    every: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Go on, looking so often, until interrupted.", show_default=False),
    ] = None


@takes_options
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
    if options.every or spark.remote or (done := find_done(spark.lake_folder, journal)) is None:
        with spark.session("ingest") as session:
            from duetime.spark.lake.lake import Lake

            lake = Lake(session, spark.lake_folder)
            with show_progress("ingest", as_json=form.json, unit="events") as progress:
                done = run_ingest(
                    lake, journal, every=options.every, on_progress=lambda so_far: progress.advance_to(so_far.events)
                )
    answer.show(_document(done), _text(done))
    if done.damaged:
        raise typer.Exit(1)


def _document(done: "Ingested") -> dict[str, Any]:
    return {
        "segments": done.segments,
        "events": done.events,
        "repeated": done.repeated,
        "damaged": done.damaged,
        "damage": [{"file": one.file, "line": one.line, "problem": one.problem} for one in done.damage],
        "version": done.version,
    }


def _text(done: "Ingested") -> str:
    repeated = f", {done.repeated:,} known before" if done.repeated else ""
    lines = [f"{done.events:,} new events from {done.segments:,} segments{repeated}."]
    lines += [f"damaged: {one.file}, line {one.line}: {one.problem}" for one in done.damage[:NAMED]]
    if done.damaged > NAMED:
        lines.append(f"... and {done.damaged - NAMED:,} more damaged lines; --json names the first 1,000.")
    return "\n".join(lines)
