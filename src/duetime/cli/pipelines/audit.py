"""`duetime pipeline audit`: prove that nothing was lost, or name what was."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from duetime.cli.options import flag, option
from duetime.cli.output import Answer, safe
from duetime.cli.pipelines.options import SparkOptions
from duetime.cli.pipelines.sources import JournalSource, StoreSource, StoreTarget
from duetime.cli.progress import show_progress

if TYPE_CHECKING:
    from duetime.spark.audit.run import Audited


@dataclass(frozen=True)
class AuditOptions:
    journal_only: Annotated[bool, flag("Without a store: the journal alone.", "--journal-only")] = False
    show: Annotated[int, option("N", "The most jobs to name; --json names all.")] = 50


def audit(
    options: AuditOptions, source: JournalSource, store: StoreSource, spark: SparkOptions, target: StoreTarget
) -> None:
    """Compare the journal with the store: find jobs that were lost.

    Names every job that was lost, doubled, delivered early or acked twice, and every gap of the journal; then the exit
    code is 1. Jobs whose push was never confirmed are listed and are no error. Changes nothing but the lake.

    Examples:
        duetime pipeline audit --journal /var/lib/duetime/journal --lake /srv/lake --url redis://localhost
        duetime pipeline audit --journal /var/lib/duetime/journal --url http://127.0.0.1:7777 --json
        duetime pipeline audit --journal s3a://logs/duetime --lake s3a://lake/duetime --journal-only
    """
    answer = target.answer
    journal = source.journal_folder
    with spark.session("audit") as session:
        from duetime.spark.audit.run import first_findings, read_findings, run_audit
        from duetime.spark.lake.lake import Lake

        lake = Lake(session, spark.lake_folder)
        compared = None if options.journal_only else store.compared(target)
        with show_progress("audit", as_json=target.json) as progress, progress.follow(session):
            audited = run_audit(
                lake,
                journal,
                compared,
                assume_lost=store.assume_lost or (),
                on_step=lambda step: answer.note(f"{step} ..."),
            )
        if target.json:
            _documents(answer, audited, read_findings(lake, audited))
        else:
            _show(answer, audited, first_findings(lake, audited, options.show))
    if not audited.is_sound:
        raise typer.Exit(1)


def law_document(audited: "Audited") -> dict[str, Any]:
    names = [name for name in (audited.law[0] if audited.law else {}) if name not in LAW_KEY]
    return {name: audited.total(name) for name in names}


LAW_KEY = ("pool", "namespace", "queue", "batch")
NAMED_NODES = 5


def _documents(answer: Answer, audited: "Audited", findings: Iterable[dict[str, Any]]) -> None:
    """Print JSON lines: one per queue and batch, one per problem of the journal, one per finding, one for the whole."""
    for row in audited.law:
        answer.document({"law": row})
    for problem in audited.problems:
        answer.document({"problem": {"kind": problem.kind, "node": problem.node, "detail": problem.detail}})
    for finding in findings:
        answer.document({"finding": finding})
    answer.document(
        {
            "sound": audited.is_sound,
            "run": audited.run,
            "folder": audited.folder,
            "law": law_document(audited),
            "found": audited.found,
            "problems": len(audited.problems),
            "assumed_lost": audited.assumed_lost,
        }
    )


def law_text(audited: "Audited") -> str:
    """The conservation law with its numbers."""
    sums = law_document(audited)
    right = [name for name in sums if name not in ("accepted", "adopted", "lost")]
    words = f"{sums.get('accepted', 0):,} accepted + {sums.get('adopted', 0):,} adopted"
    sign = "=" if not sums.get("lost") else "≠"
    tail = f"   ({sums['lost']:,} lost)" if sums.get("lost") else ""
    return f"{words} {sign} " + " + ".join(f"{sums[name]:,} {name}" for name in right) + tail


def verdict_text(audited: "Audited") -> str:
    """The verdict, and what to do if the journal is not complete: then nothing is proved."""
    if audited.is_sound:
        return f"{audited.verdict}: every accepted job is accounted for."
    if not audited.problems:
        return f"{audited.verdict}."
    lost = ", and jobs that they finished count as lost here" if audited.found.get("lost") else ""
    nodes = sorted({one.node for one in audited.problems})
    more = f" and {len(nodes) - NAMED_NODES} more" if len(nodes) > NAMED_NODES else ""
    return (
        f"{audited.verdict}: entries of {', '.join(nodes[:NAMED_NODES])}{more} are missing{lost}. Bring their segments "
        "to this journal and run it again, or say --assume-lost NODE if they are gone for good."
    )


def _show(answer: Answer, audited: "Audited", findings: Sequence[dict[str, Any]]) -> None:
    numbers = [name for name in law_document(audited)]
    rows = audited.law
    columns: dict[str, list[str | Text]] = {
        "QUEUE": [f"{row['namespace']}/{row['queue']}" for row in rows],
        "BATCH": [safe(row["batch"]) or "-" for row in rows],
        **{f"{name.upper()} ": [f"{row[name]:,}" for row in rows] for name in numbers},
    }
    if rows:
        answer.table(rows, columns)
        answer.console.print("\n" + law_text(audited))
    for problem in audited.problems:
        answer.console.print(f"{problem.kind}: node {problem.node}: {problem.detail}")
    for one in findings:
        name = f"{one['namespace']}/{one['queue']} {safe(one['id'])} (born {one['born']})"
        answer.console.print(f"{one['kind']}: {name}: {one['detail']}")
    if more := sum(audited.found.values()) - len(findings):
        answer.console.print(f"... and {more:,} more; --json names all, and {audited.folder} has them.")
    if audited.assumed_lost:
        answer.console.print(f"Assumed lost, and not read: {', '.join(audited.assumed_lost)}")
    answer.console.print(verdict_text(audited))
