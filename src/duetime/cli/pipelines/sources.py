"""The options that say where a pipeline reads: the journal's folder, and the store that it is compared with."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from duetime.cli.options import Target, option
from duetime.model.clock import duration_ms
from duetime.model.errors import InvalidRequest

if TYPE_CHECKING:
    from duetime.spark.audit.run import ComparedStore


@dataclass(frozen=True)
class JournalSource:
    PANEL = "Journal and store"

    journal: Annotated[
        str | None,
        option(
            "DIR",
            "The journal: the folder that servers write or ship to; any file system of Spark's. DUETIME_JOURNAL.",
        ),
    ] = None

    @property
    def journal_folder(self) -> str:
        found = self.journal or os.environ.get("DUETIME_JOURNAL")
        if not found:
            raise InvalidRequest("the folder of the journal must be given: name it with --journal or DUETIME_JOURNAL")
        return found


@dataclass(frozen=True)
class StoreTarget(Target):
    """The store or server that the journal is compared with."""

    # An audit of one namespace proves less, so the default of the other commands does not narrow it.
    namespace: Annotated[
        str | None,
        option(
            "NAME",
            "Compare this namespace alone; else all namespaces of the pool. DUETIME_NAMESPACE is not read.",
        ),
    ] = None


@dataclass(frozen=True)
class StoreSource:
    """How to compare the journal with the store; which store it is, the command's `--url` says."""

    PANEL = JournalSource.PANEL

    pool: Annotated[
        str | None,
        option(
            "NAME",
            "The pool whose entries are compared with the store; else the one that the store or the server names.",
        ),
    ] = None
    grace: Annotated[str, option("DURATION", "Jobs with an entry this fresh are left to the next run.")] = "10s"
    wait: Annotated[
        str,
        option(
            "DURATION",
            "How long the nodes' entries may take to arrive; twice journal_segment_age where servers ship them.",
        ),
    ] = "130s"
    assume_lost: Annotated[
        list[str] | None,
        option(
            "NODE",
            "Go on without waiting for this node or its missing entries; it stays in the report. Repeatable.",
        ),
    ] = None

    def compared(self, target: Target) -> "ComparedStore":
        from duetime.spark.audit.run import ComparedStore

        return ComparedStore(
            target.address,
            token=target.secret,
            pool=self.pool,
            namespaces=[target.namespace] if target.namespace else [],
            grace_ms=duration_ms(self.grace),
            wait_s=duration_ms(self.wait) / 1000,
        )
