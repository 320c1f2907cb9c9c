"""`duetime pipeline run`: the pipelines that run regularly, one after the other in one Spark session."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from duetime.cli.options import flag, option
from duetime.cli.output import note, safe
from duetime.cli.pipelines.options import SparkOptions, local_file
from duetime.cli.pipelines.sources import JournalSource, StoreSource, StoreTarget
from duetime.model.clock import duration_ms
from duetime.model.humanise import span

if TYPE_CHECKING:
    from duetime.spark.lake.lake import Lake
    from duetime.spark.rounds import Round, RoundPlan, RoundWatcher


@dataclass(frozen=True)
class RunOptions:
    every: Annotated[str | None, option("DURATION", "Repeat at this interval until interrupted.")] = None
    report: Annotated[Path | None, option("FILE", "Write the report there at the end.", parser=local_file)] = None
    last: Annotated[str, option("DURATION", "The report's period, which ends now.")] = "7d"
    journal_only: Annotated[bool, flag("Audit the journal alone, without a store.", "--journal-only")] = False
    health: Annotated[Path | None, option("FILE", "What the last round did, as JSON.", parser=local_file)] = None
    metrics: Annotated[
        Path | None, option("FILE", "The same for Prometheus (textfile collector).", parser=local_file)
    ] = None
    lineage: Annotated[
        str | None,
        option(
            "NAMESPACE",
            "Send OpenLineage events of each step, as jobs of this namespace; OPENLINEAGE_URL says where to.",
        ),
    ] = None


def run(
    options: RunOptions, source: JournalSource, store: StoreSource, spark: SparkOptions, target: StoreTarget
) -> None:
    """Run ingest, lifecycle, stats, audit and report, once or repeatedly.

    A step that fails ends its round. With --every the next round starts from the beginning. Without it the exit code is
    1 if something is wrong: a failed step, a damaged line, an audit that is not sound. An unexpected error, such as a
    lost Spark session, ends the command after it is written to the health file. Nodes of the journal that have ended
    and are whole in the lake leave the store's registry.

    Examples:
        duetime pipeline run --journal /var/lib/duetime/journal --lake /srv/lake --url redis://localhost --every 15m
        duetime pipeline run --journal /srv/journal --lake /srv/lake --journal-only --report report.html --json
    """
    answer = target.answer
    journal, every_ms = source.journal_folder, duration_ms(options.every) if options.every else 0
    with spark.session("run") as session:
        from duetime.spark.lake.lake import Lake
        from duetime.spark.rounds import RoundPlan, health_text, metrics_text, replace_file, run_round

        lake = Lake(session, spark.lake_folder)
        plan = RoundPlan(
            journal,
            None if options.journal_only else store.compared(target),
            options.report,
            duration_ms(options.last),
            store.assume_lost or (),
        )

        def write_files(made: "Round") -> None:
            if options.health:
                replace_file(options.health, health_text(made, every_ms))
            if options.metrics:
                replace_file(options.metrics, metrics_text(made))

        watcher = _lineage(lake, plan, options.lineage) if options.lineage else None
        number = 1
        while True:
            made = run_round(
                lake,
                plan,
                number=number,
                on_step=lambda step, number=number: answer.note(f"round {number}: {step} ..."),
                ended=write_files,
                watcher=watcher,
            )
            answer.show(msgspec.to_builtins(made), _text(made))
            if not every_ms:
                break
            number += 1
            time.sleep(max(0, made.started_at + every_ms - made.ended_at) / 1000)
    if not made.ok:
        raise typer.Exit(1)


def _lineage(lake: "Lake", plan: "RoundPlan", namespace: str) -> "RoundWatcher":
    from duetime.spark.openlineage_events import LineageEvents, OpenLineageClient

    return LineageEvents(lake, plan, namespace=namespace, complain=note, client=OpenLineageClient())


def _text(made: "Round") -> str:
    steps = ", ".join(f"{name} {span(step.seconds * 1000)}" for name, step in made.steps.items())
    counts = made.steps["ingest"].numbers if "ingest" in made.steps else {}
    verdict = "ok" if made.ok else f"NOT ok: {safe(made.problem)}"
    return f"round {made.number}: {verdict}; {counts.get('events', 0):,} new events; {steps}"
