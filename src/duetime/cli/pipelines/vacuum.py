"""`duetime pipeline vacuum`: forget what is old, and delete files that nothing names any more."""

from dataclasses import dataclass
from typing import Annotated

import msgspec
import typer

from duetime.cli.options import AnswerForm, takes_options
from duetime.cli.pipelines.options import SparkOptions
from duetime.cli.progress import show_progress
from duetime.model.clock import SystemClock, duration_ms


@dataclass(frozen=True)
class VacuumOptions:
    keep: Annotated[
        str, typer.Option(metavar="DURATION", help="Forget days that are older; 0 keeps them for ever.")
    ] = "0"
    bodies: Annotated[
        str, typer.Option(metavar="DURATION", help="Forget the bodies of ended jobs after this; 0: with their days.")
    ] = "0"
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False


@takes_options
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
    with spark.session("vacuum") as session:
        from duetime.spark.lake.lake import Lake
        from duetime.spark.lake.vacuum import vacuum as clean

        lake = Lake(session, spark.lake_folder)
        with show_progress("vacuum", as_json=form.json) as progress, progress.follow(session):
            done = clean(
                lake,
                now_ms=SystemClock().now_ms(),
                keep_ms=duration_ms(options.keep),
                bodies_ms=duration_ms(options.bodies),
                dry_run=options.dry_run,
            )
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
