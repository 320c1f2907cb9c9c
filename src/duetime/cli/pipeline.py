"""`duetime pipeline NAME`: the data pipelines on Spark, on one screen.

Each command lives in `cli/pipelines/<name>.py`, imports Spark inside its function and is added to PIPELINES here.
"""

import typer

from duetime.cli.commands import Command, add_commands
from duetime.cli.pipelines import (
    audit,
    demo,
    forecast,
    ingest,
    lifecycle,
    package,
    reconcile,
    replay,
    report,
    run,
    schedule,
    stats,
    vacuum,
)

PIPELINES: tuple[Command, ...] = (
    Command("schedule", schedule.schedule, *schedule.EXAMPLES),
    Command("run", run.run, *run.EXAMPLES),
    Command("ingest", ingest.ingest, *ingest.EXAMPLES),
    Command("lifecycle", lifecycle.lifecycle, *lifecycle.EXAMPLES),
    Command("audit", audit.audit, *audit.EXAMPLES),
    Command("reconcile", reconcile.reconcile, *reconcile.EXAMPLES),
    Command("stats", stats.stats, *stats.EXAMPLES),
    Command("report", report.report, *report.EXAMPLES),
    Command("forecast", forecast.forecast, *forecast.EXAMPLES),
    Command("replay", replay.replay, *replay.EXAMPLES),
    Command("vacuum", vacuum.vacuum, *vacuum.EXAMPLES),
    Command("demo", demo.demo, *demo.EXAMPLES),
    Command("package", package.package, *package.EXAMPLES),
)


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        name="pipeline", help="Pipelines on Spark: schedule tables, audit, repair, report.", no_args_is_help=True
    )
    add_commands(group, PIPELINES)
    app.add_typer(group, rich_help_panel="Data")
