"""The options that say where a pipeline reads: the journal's folder, and the store that it is compared with."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from duetime.cli.options import Target
from duetime.clock import duration_ms
from duetime.errors import InvalidRequest

if TYPE_CHECKING:
    from duetime.spark.audit.run import Beside

SOURCE_PANEL = "Journal and store"


@dataclass(frozen=True)
class JournalSource:
    journal: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="The journal: the folder that servers write or ship to; any file system of Spark's. DUETIME_JOURNAL.",
            show_default=False,
            rich_help_panel=SOURCE_PANEL,
        ),
    ] = None

    @property
    def journal_folder(self) -> str:
        found = self.journal or os.environ.get("DUETIME_JOURNAL")
        if not found:
            raise InvalidRequest("where is the journal? Name its folder with --journal or DUETIME_JOURNAL")
        return found


@dataclass(frozen=True)
class StoreSource:
    """How to compare the journal with the store; which store it is, the command's `--url` says."""

    pool: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The pool that a store URL is; else what the store itself says, else default.",
            show_default=False,
            rich_help_panel=SOURCE_PANEL,
        ),
    ] = None
    grace: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="Jobs with an entry this fresh are left to the next run.",
            rich_help_panel=SOURCE_PANEL,
        ),
    ] = "10s"
    assume_lost: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODE",
            help="Go on without the missing entries of this node; it stays in the report. May be repeated.",
            show_default=False,
            rich_help_panel=SOURCE_PANEL,
        ),
    ] = None

    def beside(self, target: Target) -> "Beside":
        from duetime.spark.audit.run import Beside

        return Beside(
            target.address,
            token=target.secret,
            pool=self.pool,
            namespaces=[target.namespace] if target.namespace else [],
            grace_ms=duration_ms(self.grace),
        )
