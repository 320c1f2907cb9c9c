"""`duetime pipeline reconcile`: put back what a store lost."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duetime.cli.options import flag
from duetime.cli.output import safe
from duetime.cli.pipelines.options import SparkOptions
from duetime.cli.pipelines.sources import JournalSource, StoreSource, StoreTarget

if TYPE_CHECKING:
    from duetime.spark.reconcile.run import Reconciled


WORDS = {
    "pushed": "put back into the store",
    "repeated": "put back by another run at the same time",
    "expired": "closed as expired",
    "adopted": "adopted: in the store, but their push was never confirmed",
    "present": "found in the store after all",
    "superseded": "closed: a newer job has their id",
    "no_body": "NOT put back: the journal has lost their body",
    "refused": "NOT put back: the store refused them",
    "gone": "not adopted: no longer in the store",
}


@dataclass(frozen=True)
class ReconcileOptions:
    dry_run: Annotated[bool, flag("Only say what would be done.", "--dry-run")] = False


def reconcile(
    options: ReconcileOptions, source: JournalSource, store: StoreSource, spark: SparkOptions, target: StoreTarget
) -> None:
    """Push lost jobs again, with the same id and born.

    Stops with the node's name if the journal has a gap or a node is silent. Asks the store before every push. You can
    run it again, and while producers and consumers are working. The exit code is 1 if something could not be put back.

    Examples:
        duetime pipeline reconcile --journal /var/lib/duetime/journal --lake /srv/lake --url redis://localhost --dry-run
        duetime pipeline reconcile --journal /var/lib/duetime/journal --lake /srv/lake --url redis://localhost
        duetime pipeline reconcile --journal s3a://logs/duetime --url http://duetime:7777 --assume-lost web-1-01JCV7ZK5N
    """
    answer = target.answer
    journal = source.journal_folder
    with spark.work_on_lake("reconcile", target) as (lake, _):
        from duetime.spark.reconcile.run import run_reconcile

        done = run_reconcile(
            lake,
            journal,
            store.compared(target),
            dry_run=options.dry_run,
            assume_lost=store.assume_lost or (),
            on_step=lambda step: target.answer.note(f"{step} ..."),
        )
    answer.show(_document(done), _text(done))
    if not done.is_repaired:
        raise typer.Exit(1)


def _document(done: "Reconciled") -> dict[str, Any]:
    return {
        "run": done.run,
        "folder": done.folder,
        "dry_run": done.dry_run,
        "lost": done.lost,
        "counts": done.counts,
        "refusals": done.refusals,
        "assumed_lost": sorted({one.node for one in done.assumed}),
        "nodes": sorted(done.nodes),
    }


def _text(done: "Reconciled") -> str:
    lines = [f"{done.lost:,} jobs were missing in the store."]
    verb = "would be " if done.dry_run else ""
    lines += [f"  {count:,} {verb}{WORDS[name]}" for name, count in sorted(done.counts.items())]
    lines += [f"refused: {safe(one)}" for one in done.refusals]
    lines += [f"assumed lost: {one.node}: {one.detail}" for one in done.assumed]
    lines.append(f"{done.folder} has the plan{'' if done.dry_run else ' and what became of each job'}.")
    return "\n".join(lines)
