"""`duetime pipeline schedule` and `cancel`: a table becomes jobs, exactly once, or names jobs that are cancelled."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import to_builtins

from duetime.cli.options import Target, flag, option, parse_attributes
from duetime.cli.output import Answer, body_text, preview
from duetime.cli.pipelines.options import SparkOptions
from duetime.cli.progress import show_progress
from duetime.model.clock import rfc3339
from duetime.model.errors import InvalidRequest
from duetime.model.humanise import span
from duetime.model.ids import IdMaker
from duetime.model.job import DEFAULT_TRIES
from duetime.model.masking import mask

if TYPE_CHECKING:
    from duetime.spark.load.batch import Scheduled
    from duetime.spark.load.job_rows import Preview
    from duetime.spark.load.options import LoadOptions
    from duetime.spark.sources import Selection

SHOWN_HOURS = 24
NO_ROWS = "the source has no rows, or --where leaves none"


@dataclass(frozen=True)
class TableRows:
    """The table, and the SQL expressions that choose its rows and name their jobs."""

    source: Annotated[str, option("SOURCE", "Files, a table, a query (select ...) or a jdbc: URL; what Spark reads.")]
    queue: Annotated[str, option("QUEUE", "The queue of the jobs.")]
    id: Annotated[str, option("SQL", "The job's id. Without it: a hash of the batch and the columns.")] = ""
    where: Annotated[str, option("SQL", "Which rows.")] = ""
    format: Annotated[
        str, option("NAME", "parquet, csv, json, orc, jdbc, table, sql ...; else by the source's name.")
    ] = ""
    source_option: Annotated[list[str], option("NAME=VALUE", "An option of Spark's reader; repeatable.")] = field(
        default_factory=list[str]
    )
    dry_run: Annotated[bool, flag("Change nothing; show counts by due hour and some jobs.", "--dry-run")] = False

    def selection(self, body: str = "", due: str = "", columns: Sequence[str] = ()) -> "Selection":
        from duetime.spark.sources import Selection

        options = parse_attributes(self.source_option)
        return Selection(
            self.source, body, self.format, options, self.id, due, self.where, parse_attributes(list(columns))
        )


@dataclass(frozen=True)
class JobExpressions:
    """The SQL expressions that make jobs out of the rows."""

    body: Annotated[str, option("SQL", "The job's body; a struct, map or array becomes JSON.")]
    due: Annotated[str, option("SQL", "When it is due, a timestamp. Without it: now.")] = ""
    column: Annotated[
        list[str],
        option(
            "NAME=SQL",
            "delay, queue, ttl, tries, priority, attributes or if_exists of each row; null: as the options say. "
            "Repeatable.",
        ),
    ] = field(default_factory=list[str])


@dataclass(frozen=True)
class LoadChoices:
    """The options of the jobs (ttl, tries, priority) and of the load itself (batch, rate, bad rows, journal)."""

    batch: Annotated[
        str,
        option(
            "NAME", "A second run of a batch adds nothing. Without it: the queue, today (UTC), a hash of the request."
        ),
    ] = ""
    ttl: Annotated[str, option("DURATION", "Drop a job if it is not done in time; 0 keeps it.")] = "0"
    tries: Annotated[int, option("N", "Deliveries allowed; 0 is unlimited.", min=0)] = DEFAULT_TRIES
    priority: Annotated[str, option("WORD", "high, normal or low.")] = "normal"
    spread: Annotated[str, option("DURATION", "Spread due times over this window, to flatten a spike.")] = "0"
    max_rate: Annotated[
        float, option("N", "The most jobs to push per second; 0: as fast as the store accepts them.", min=0)
    ] = 0
    bad_rows: Annotated[
        str, option("WORD", "fail: push nothing if a row is bad; skip: write bad rows to a file instead.")
    ] = "fail"
    on_change: Annotated[
        str | None,
        option(
            "WORD",
            "Keep a table in step: push only rows that are new or have changed since its last load. The job of a "
            "changed row: keep, replace or reschedule.",
        ),
    ] = None
    withdraw_missing: Annotated[
        bool, flag("Cancel the jobs of rows that are gone since the last load.", "--withdraw-missing")
    ] = False
    journal: Annotated[
        str | None, option("DIR", "The journal's folder, for a store that journals; a server has its own.")
    ] = None


def schedule(table: TableRows, jobs: JobExpressions, choices: LoadChoices, spark: SparkOptions, target: Target) -> None:
    """Make jobs out of the rows of a table, exactly once.

    All rows are checked and written to the lake first, then pushed; an interrupted run continues where it stopped, and
    a finished batch is not pushed again. The values of --id, --due, --body and --where are Spark SQL.

    Examples:
        duetime pipeline schedule --source members.parquet --queue recall --body "struct(member_id, email)" \
            --id "concat('recall-', member_id)" --due "expires_at - interval 3 days" --where "plan = 'pro'" --dry-run
        duetime pipeline schedule --source members.csv --queue recall --body email --spread 10m --max-rate 20000
        duetime pipeline schedule --source jdbc:postgresql://db/crm --source-option dbtable=members --queue q --body id
        duetime pipeline schedule --source members.parquet --queue recall --body email --id member_id \
            --due "expires_at - interval 3 days" --on-change replace --withdraw-missing
    """
    selection = table.selection(jobs.body, jobs.due, jobs.column)
    in_step = choices.on_change is not None or choices.withdraw_missing
    batch = choices.batch or ("" if in_step else default_batch(table.queue, selection, choices, target))
    fields = {
        "batch": batch,
        "ttl": choices.ttl,
        "tries": choices.tries,
        "priority": choices.priority,
        "spread": choices.spread,
        "max_jobs_per_second": choices.max_rate,
        "bad_records": choices.bad_rows,
        "journal": choices.journal,
        "on_change": choices.on_change,
        "withdraw_missing": choices.withdraw_missing,
    }
    _load(table, selection, fields, spark, target)


def cancel(
    table: TableRows,
    spark: SparkOptions,
    target: Target,
    journal: Annotated[str | None, option("DIR", "The journal's folder, for a store that journals.")] = None,
) -> None:
    """Cancel the jobs that the rows of a table name.

    --id is the column or expression with their ids. Rows without a job change nothing.

    Examples:
        duetime pipeline cancel --source left.csv --queue recall --id "concat('recall-', member_id)"
        duetime pipeline cancel --source members.parquet --queue recall --id member_id --where "plan = 'free'" --dry-run
    """
    if not table.id:
        raise InvalidRequest("--id is missing: jobs are cancelled by their id")
    batch = f"cancel-{table.queue[:150]}-{IdMaker().make()}"
    fields = {"batch": batch, "mode": "cancel", "journal": journal}
    _load(table, table.selection(), fields, spark, target)


def _load(
    table: TableRows, selection: "Selection", fields: Mapping[str, Any], spark: SparkOptions, target: Target
) -> None:
    from duetime.spark.load.options import read_options

    where = {"url": target.address, "token": target.secret, "namespace": target.space, "queue": table.queue}
    source = hashlib.sha256(selection.describe().encode()).hexdigest()
    checked = read_options({**fields, **where, "source": source})
    answer, queue, batch = target.answer, f"{target.space}/{table.queue}", checked.batch
    if not table.dry_run and not spark.remote and (done := _find_done(spark.lake_folder, checked)):
        _show(answer, done, queue, batch, spark.lake_folder)
        return
    with spark.session("schedule") as session, show_progress("reading", as_json=target.json) as progress:
        from duetime.spark.load.job_rows import preview as look
        from duetime.spark.load.schedule import load
        from duetime.spark.sources import read_selection

        frame = read_selection(session, selection)
        with progress.follow(session):
            if table.dry_run:
                found: Preview | Scheduled = look(frame, checked)
            else:
                found = load(frame, checked, lake=spark.lake_folder, on_phase=progress.begin)
    _show(answer, found, queue, batch, spark.lake_folder)


def _find_done(lake: str, checked: "LoadOptions") -> "Scheduled | None":
    """A batch that is done is found in a moment, and Spark need not be started."""
    from duetime.spark.load.schedule import find_done

    return find_done(lake, checked)


def default_batch(queue: str, selection: "Selection", choices: LoadChoices, target: Target) -> str:
    """One batch per day for the same selection with the same options, store and namespace."""
    where = (mask(target.address), target.space)
    said = repr((where, selection.describe(), choices.ttl, choices.tries, choices.priority, choices.spread))
    return f"{queue[:150]}-{datetime.now(UTC):%Y-%m-%d}-{hashlib.sha256(said.encode()).hexdigest()[:8]}"


def _show(answer: Answer, found: "Preview | Scheduled", queue: str, batch: str, lake: str) -> None:
    from duetime.spark.load.batch import Scheduled

    if isinstance(found, Scheduled):
        _show_result(answer, found, queue, lake)
    elif answer.as_json:
        answer.document({"batch": batch, "queue": queue, **_preview_document(found)})
    else:
        _print_preview(answer, found, queue, batch)


def _show_result(answer: Answer, done: "Scheduled", queue: str, lake: str) -> None:
    rate = done.rows / done.seconds if done.seconds else 0.0
    document: dict[str, Any] = {
        "batch": done.batch,
        "queue": queue,
        "rows": done.rows,
        "accepted": done.accepted,
        "kept": done.kept,
        "bad": done.bad,
        "rejected": f"{lake}/batches/{done.batch}/rejected" if done.bad else "",
        "repeated": done.repeated,
        "replaced": done.replaced,
        "cancelled": done.cancelled,
        **({"changes": to_builtins(done.changes), "resumed": done.resumed} if done.changes else {}),
        "files": done.files,
        "finished_at": done.finished_at,
        "was_done": done.was_done,
        "seconds": done.seconds,
        "jobs_per_second": round(rate, 1),
    }
    if done.was_done:
        said = f"the batch {done.batch} was done {rfc3339(done.finished_at)} with {done.accepted:,} accepted"
        answer.show(document, f"{queue}: {said}; the source was not read now and nothing was pushed")
        return
    if done.changes:
        answer.show(document, f"{queue}: {_changes_text(done)}")
        return
    if not done.rows and not done.bad:
        answer.show(document, f"{queue}: {NO_ROWS}; nothing was pushed, and no batch was recorded")
        return
    parts = [f"{done.cancelled:,} cancelled" if done.cancelled and not done.accepted else f"{done.accepted:,} accepted"]
    parts += [f"{done.replaced:,} replaced"] if done.replaced else []
    parts += [f"{done.kept:,} kept as they were (--on-change replace updates them)"] if done.kept else []
    parts += [f"{done.bad:,} bad rows written to {document['rejected']}"] if done.bad else []
    parts += [f"{done.repeated:,} of them by an earlier run"] if done.repeated else []
    pace = f" in {span(done.seconds * 1000)} ({rate:,.0f} jobs/s)" if done.seconds else ""
    text = f"{queue}: {', '.join(parts)}{pace}; batch {done.batch}, done {rfc3339(done.finished_at)}"
    answer.show(document, text)


def _changes_text(done: "Scheduled") -> str:
    found = done.changes
    assert found is not None
    parts = [f"{getattr(found, name):,} {name}" for name in ("new", "moved", "withdrawn", "unchanged")]
    parts += [f"{found.missing:,} gone and not withdrawn (--withdraw-missing)"] if found.missing else []
    parts += [f"{done.bad:,} bad"] if done.bad else []
    if not found.new + found.moved + found.withdrawn:
        return f"{', '.join(parts)}; nothing was pushed"
    resumed = f"; the interrupted load {done.resumed} was ended first" if done.resumed else ""
    return f"{', '.join(parts)}; batch {done.batch}, done {rfc3339(done.finished_at)}{resumed}"


def _preview_document(found: "Preview") -> dict[str, Any]:
    return {
        "dry_run": True,
        "rows": found.rows,
        "bad": found.bad,
        "reasons": found.reasons,
        "hours": [{"at": hour.at, "jobs": hour.jobs} for hour in found.hours],
        "sample": [{"id": row["id"], "due_at": row["due_at"], "body": body_text(row["body"])} for row in found.sample],
    }


def _print_preview(answer: Answer, found: "Preview", queue: str, batch: str) -> None:
    bad = f", {found.bad:,} of them bad" if found.bad else ""
    answer.console.print(f"{queue}: {found.rows:,} rows{bad}; nothing was pushed. The batch would be {batch}")
    for reason, count in found.reasons.items():
        answer.console.print(f"  {count:,} bad: {reason}")
    hours = found.hours[:SHOWN_HOURS]
    if not hours:
        raise InvalidRequest("no row can be a job" if found.rows else NO_ROWS)
    answer.table([], {"due from": [rfc3339(hour.at) for hour in hours], "jobs ": [f"{hour.jobs:,}" for hour in hours]})
    if len(found.hours) > SHOWN_HOURS:
        rest = sum(hour.jobs for hour in found.hours[SHOWN_HOURS:])
        answer.console.print(f"... and {rest:,} in {len(found.hours) - SHOWN_HOURS:,} later hours")
    columns = {
        "id": [row["id"] for row in found.sample],
        "due": [rfc3339(row["due_at"]) for row in found.sample],
        "body": [preview(row["body"]) for row in found.sample],
    }
    answer.table([], columns)
