"""`duetime backup` and `duetime restore`: a store in one file."""

from pathlib import Path
from typing import Annotated, Any

import typer

from duetime.cli.options import Target, takes_options
from duetime.cli.output import Answer
from duetime.cli.progress import show_progress
from duetime.client.store_link import on_store
from duetime.model.errors import DuetimeError, InvalidRequest
from duetime.transfer.backup_file import check_backup, restore_backup, write_backup


class BackupNotWritten(DuetimeError):
    """The backup's file could not be written."""

    code = "backup_not_written"
    status = 507


BackupFile = Annotated[Path, typer.Argument(metavar="FILE", help="The backup.", dir_okay=False)]


@takes_options
def backup(file: BackupFile, target: Target) -> None:
    """Write everything in a store to one file: jobs, dead letters, rules, tokens, topics, users.

    Also while servers work on it: each job that is there from the beginning to the end is in the file. A job that was
    finished meanwhile may be, too, and would be delivered once more. The file holds bodies and hashes of tokens; only
    its owner may read it. A file that exists is not overwritten.
    """
    with show_progress("backup", as_json=target.json, unit="jobs") as progress:
        try:
            done = on_store(target.address, lambda store: write_backup(store, file, progress.advance_to))
        except OSError as error:
            raise BackupNotWritten(f"cannot write {file}: {error.strerror or error}") from None
    Answer(as_json=target.json).tell(
        {"file": str(file), "jobs": done.jobs, "records": done.records, "queues": done.queues, "sha256": done.sha256},
        f"{file}: {done.jobs:,} jobs in {done.queues:,} queues, {done.records:,} records. sha256 {done.sha256}",
    )


@takes_options
def restore(
    file: BackupFile,
    target: Target,
    check: Annotated[bool, typer.Option("--check", help="Only check that the file is whole.")] = False,
) -> None:
    """Put a backup into an empty store, of any kind. Checks the whole file first, and refuses a store that has jobs.

    Run it again if it was interrupted. Jobs that a consumer held wait until that lease would have ended.
    """
    answer = Answer(as_json=target.json)
    found = check_backup(file)
    document: dict[str, Any] = {"file": str(file), "jobs": found.jobs, "records": found.records, "sha256": found.sha256}
    if check:
        answer.tell({**document, "whole": True}, f"{file} is whole: {found.jobs:,} jobs, {found.records:,} records.")
        return
    if not target.is_chosen:
        raise InvalidRequest("restore into which store? Name it with --url or DUETIME_URL")
    with show_progress("restore", total=found.jobs, as_json=target.json, unit="jobs") as progress:
        on_store(target.address, lambda store: restore_backup(store, file, found, progress.advance_to))
    answer.tell({**document, "restored": True}, f"{found.jobs:,} jobs and {found.records:,} records restored.")
