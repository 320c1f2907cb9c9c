"""`duetime move`: everything from one store to another."""

import asyncio
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from duetime.cli.options import Target, argument, check_exists, file_exists, flag, option
from duetime.cli.output import Answer, note, safe
from duetime.cli.progress import show_progress
from duetime.client import event_loop
from duetime.client.store_link import on_store, opened_store
from duetime.client.transport import check_is_store
from duetime.model.clock import duration_ms
from duetime.model.errors import DuetimeError, InvalidRequest
from duetime.model.humanise import counted
from duetime.model.masking import mask
from duetime.stores.open import migrate_store, pending_migrations
from duetime.transfer.backup_file import check_backup, restore_backup, write_backup
from duetime.transfer.registry_records import read_records
from duetime.transfer.store_move import MoveReport, StoreMove, clock_skew_ms, opened, survey

SKEW_MS = 1_000
NAMED = 20


@dataclass(frozen=True)
class MovePlaces:
    source: Annotated[str, option("URL", "The store to move from.", "--from")]
    target: Annotated[str, option("URL", "The store to move to.", "--to")]


@dataclass(frozen=True)
class MoveOptions:
    wait: Annotated[str, option("DURATION", "How long to wait for jobs that consumers of the source still hold.")] = (
        "10m"
    )
    follow: Annotated[bool, flag("Also move what producers push to the source, until interrupted.", "--follow")] = False
    dry_run: Annotated[bool, flag("Only show what would be moved.", "--dry-run")] = False


def move(places: MovePlaces, options: MoveOptions, target: Target) -> None:
    """Move all jobs, rules, tokens, topics and users to another store.

    It works while programs use both stores: it pauses each queue of the source while it moves the jobs of that queue.
    Point consumers and producers at the new store before, during or after the move. Run it again after a crash, or to
    move jobs that were pushed to the source since. The exit code is 1 if jobs are left at the source.

    Examples:
        duetime move --from sqlite:///var/lib/duetime/jobs.db --to redis://localhost --dry-run
        duetime move --from sqlite:///var/lib/duetime/jobs.db --to redis://localhost
        duetime move --from redis://localhost --to postgresql://db/app --follow --json
    """
    check_exists(places.source)
    if options.dry_run:
        event_loop.run(_survey(places, target.answer))
        return
    report = _run(places, options, as_json=target.json)
    _show(report, target.answer)
    if not report.is_complete:
        raise typer.Exit(1)


def _run(places: MovePlaces, options: MoveOptions, *, as_json: bool) -> MoveReport:
    async def run() -> MoveReport:
        stop = asyncio.Event()
        if options.follow:
            loop = asyncio.get_running_loop()
            for one in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(one, stop.set)
        with show_progress("moving", as_json=as_json, unit="jobs") as progress:
            async with opened(places.source, places.target) as (source, target):
                moving = StoreMove(
                    source,
                    target,
                    places.target,
                    wait_s=duration_ms(options.wait) / 1000,
                    progress=lambda done, known: progress.advance_to(done, total=known),
                )
                return await moving.run(follow=lambda: options.follow and not stop.is_set())

    return event_loop.run(run())


async def _survey(places: MovePlaces, answer: Answer) -> None:
    """Opens nothing that would have to be made first: a file that is not there stays so."""
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(opened_store(places.source))
        counts, records = await survey(source), await read_records(source.registry)
        document: dict[str, Any] = {"records": len(records), "jobs": sum(one.total for one in counts.values())}
        text = (
            f"{counted(document['jobs'], 'job')} in {counted(len(counts), 'queue')} "
            f"and {counted(len(records), 'record')} of the registry."
        )
        if file_exists(places.target):
            target = await stack.enter_async_context(opened_store(places.target))
            skew_ms, queues = await clock_skew_ms(source, target), len(await target.queues())
            document |= {"skew_ms": skew_ms, "target_queues": queues}
            text += f" The target has {counted(queues, 'queue')}; its clock is {skew_ms:+,} ms off."
        else:
            text += f" {mask(places.target)} would be made."
    for queue, one in counts.items():
        answer.show(
            {"queue": str(queue), "ready": one.ready, "delayed": one.delayed, "leased": one.leased, "dead": one.dead},
            f"{queue}: {one.ready:,} ready, {one.delayed:,} delayed, {one.leased:,} running, {one.dead:,} failed",
        )
    answer.show(document, text)


def _show(report: MoveReport, answer: Answer) -> None:
    for one in report.queues:
        document = {"queue": str(one.queue), "moved": one.moved, "left": one.left, "verified": one.is_verified}
        moved = ", ".join(f"{count:,} {state}" for state, count in one.moved.items())
        end = "verified" if one.is_verified else f"{one.left:,} LEFT AT THE SOURCE" if one.left else "NOT VERIFIED"
        answer.show(document, f"{one.queue}: {moved}; {end}")
    for problem in report.problems[:NAMED]:
        note(f"duetime: not moved: {safe(problem)}")
    for name in report.other_records[:NAMED]:
        note(f"duetime: the target has another value for {safe(name)}, and keeps it")
    if abs(report.skew_ms) > SKEW_MS:
        note(f"duetime: the target's clock is {report.skew_ms:+,} ms from the source's, and so are deliveries")
    answer.show(
        {
            "moved": report.moved,
            "left": report.left,
            "records": report.records,
            "other_records": report.other_records,
            "problems": report.problems,
            "skew_ms": report.skew_ms,
            "complete": report.is_complete,
        },
        f"moved {counted(report.moved, 'job')} and {counted(report.records, 'record')}"
        + (
            "; nothing is left at the source."
            if report.is_complete
            else f"; left at the source: {counted(report.left, 'job')}. Run it again."
        ),
    )


class BackupNotWritten(DuetimeError):
    """The backup's file could not be written."""

    code = "backup_not_written"
    status = 507


BackupFile = Annotated[Path, argument("FILE", "The backup.", dir_okay=False)]


def backup(file: BackupFile, target: Target) -> None:
    """Write all jobs, rules, tokens, topics and users of a store to one file.

    You can run it while servers use the store: the file has every job that exists from the beginning to the end of the
    backup. It may also have jobs that were finished during the backup; a restore delivers these again. The file holds
    bodies and hashes of tokens; only its owner may read it. A file that exists is not overwritten.

    Examples:
        duetime backup jobs.backup --url redis://localhost
    """
    check_exists(target.address)
    with show_progress("backup", as_json=target.json, unit="jobs") as progress:
        try:
            done = on_store(target.address, lambda store: write_backup(store, file, progress.advance_to))
        except OSError as error:
            raise BackupNotWritten(f"cannot write {file}: {error.strerror or error}") from None
    target.answer.show(
        {"file": str(file), "jobs": done.jobs, "records": done.records, "queues": done.queues, "sha256": done.sha256},
        f"{file}: {counted(done.jobs, 'job')} in {counted(done.queues, 'queue')}, {counted(done.records, 'record')}. "
        f"sha256 {done.sha256}",
    )


def restore(
    file: BackupFile,
    target: Target,
    check: Annotated[bool, flag("Only check that the file is complete.", "--check")] = False,
) -> None:
    """Load a backup into an empty store of any kind.

    Checks the file first, and refuses a store that has jobs. Run it again if it was interrupted. A job that was leased
    is delivered when its lease would have ended.

    Examples:
        duetime restore jobs.backup --check
        duetime restore jobs.backup --url postgresql://db/app
    """
    answer = target.answer
    found = check_backup(file)
    document: dict[str, Any] = {"file": str(file), "jobs": found.jobs, "records": found.records, "sha256": found.sha256}
    if check:
        answer.show(
            {**document, "complete": True},
            f"{file} is complete: {counted(found.jobs, 'job')}, {counted(found.records, 'record')}.",
        )
        return
    if not target.is_chosen:
        raise InvalidRequest("restore must have the URL of a store: give it with --url or DUETIME_URL")
    with show_progress("restore", total=found.jobs, as_json=target.json, unit="jobs") as progress:
        on_store(target.address, lambda store: restore_backup(store, file, found, progress.advance_to))
    answer.show(
        {**document, "restored": True}, f"restored {counted(found.jobs, 'job')} and {counted(found.records, 'record')}."
    )


def migrate(
    target: Target,
    sql: Annotated[bool, flag("Print the statements and change nothing.", "--sql")] = False,
) -> None:
    """Create or upgrade the tables of PostgreSQL, MariaDB, MySQL or SQLite.

    A server does this when it starts, if its database user has the rights. With --sql another user can: pass the output
    to psql in one transaction, or to the client of MariaDB or MySQL. Servers of the previous release continue to work
    on upgraded tables.

    Examples:
        duetime migrate --url postgresql://db/app
        duetime migrate --sql --url postgresql://db/app | psql --single-transaction app
    """
    check_is_store(target.address, "migrate must have the URL of a store, got the URL of a server")
    answer = target.answer
    pending = pending_migrations(target.address)
    if sql:
        for one in pending:
            answer.show({"name": one.name, "sql": one.script}, f"-- {one.name}\n{one.script}")
        return
    if pending:
        migrate_store(target.address)
    for one in pending:
        answer.show({"name": one.name, "applied": True}, f"applied {one.name}")
    if not pending and not target.json:
        answer.console.print("the tables are up to date")
