"""A batch on disk: what was accepted, that pushing began, and how it ended.

    <lake>/batches/<batch>/files-<run>/part-*.parquet     the rows, sorted, with a reason where one is bad
    <lake>/batches/<batch>/_accepted                      which of those folders won, its files, rows and check sum
    <lake>/batches/<batch>/_pushing                       the epoch of the store when the first push was about to happen
    <lake>/batches/<batch>/_accepted.<run>, _pushing.<run>    the same for what was missing after a reconcile
    <lake>/batches/<batch>/_progress/                     how many rows are pushed, while it is under way
    <lake>/batches/<batch>/_manifest                      the end: a batch with this is never pushed again
    <lake>/batches/<batch>/rejected/                      bad rows with their reasons, if they were skipped

Each of the small files, those of the progress apart, is created whole or not at all, never over another one, and never
changed. Runs on the driver.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

import msgspec
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession

from duetime.model.errors import Conflict
from duetime.spark.lake.files import Files, LocalFiles, check_shared, files_for
from duetime.spark.lake.in_place import BOUNDED, write_in_place
from duetime.stores.bulk import Loaded

# --- progress
#
# How many rows of a batch are pushed while it is under way, for programs that read its folder, such as the console.
#
# <lake>/batches/<batch>/_progress/before           rows that an earlier round had pushed
# <lake>/batches/<batch>/_progress/<file's number>  rows of that accepted file that its task has pushed
#
# The sum over these files is what is pushed. A task that runs again counts its file from the beginning, and steps
# that were pushed before count as well, so nothing is counted twice. Only lakes that are local folders have it,
# mounted ones included. Nothing relies on these files: a task that cannot write them goes on.


PROGRESS = "_progress"
BEFORE = "before"
WRITE_S = 0.5


class PushedRows(Struct, frozen=True):
    rows: int


class RowProgress:
    """Counts what one task pushed. `folder` is where it is written, empty if progress is not shown."""

    def __init__(self, folder: str, name: str) -> None:
        self._path = LocalFiles().path(folder) / name if folder else None
        self._rows = 0
        self._written_at = 0.0

    def count(self, answer: Loaded) -> None:
        """Add a step; writes at most every half a second."""
        self._rows += answer.step.last - answer.step.first
        if self._path is not None and time.monotonic() - self._written_at >= WRITE_S:
            self.write()

    def write(self) -> None:
        if self._path is None:
            return
        self._written_at = time.monotonic()
        try:
            write_rows(self._path, self._rows)
        except OSError:
            self._path = None


def write_rows(path: Path, rows: int) -> None:
    """Replaces the file in one step, so that a reader never sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}")
    aside.write_bytes(msgspec.json.encode(PushedRows(rows)))
    aside.replace(path)


Record = TypeVar("Record", bound=Struct)

ROWS_PER_FILE = 250_000
FILE_OPTIONS: Mapping[str, str] = {"maxRecordsPerFile": str(ROWS_PER_FILE), **BOUNDED} | {
    f"parquet.enable.dictionary#{column}": "false" for column in ("id", "body", "due_at")
}
"""Parquet makes no dictionary for columns whose values do not repeat: it would be work for nothing."""


class AcceptedFile(Struct, frozen=True):
    """`name` is relative to the batch's folder."""

    name: str
    bytes: int


class Changes(Struct, frozen=True):
    """Rows of a table, compared with its last load. `missing` rows are gone, and their jobs were left as they are."""

    new: int
    moved: int
    withdrawn: int
    unchanged: int
    missing: int = 0


class Accepted(Struct, frozen=True):
    """`checksum` is over ids, bodies, queues and given times; `options` is a digest of what changes the jobs.

    `source` is a digest of what the rows are from. `at` is the store's time. `rows` does not count rows of a table that
    have not changed. `number` is the number of the table's load, 0 if the rows were not compared.
    """

    folder: str
    files: list[AcceptedFile]
    rows: int
    bad: int
    checksum: str
    options: str
    at: int
    source: str = ""
    number: int = 0
    changes: Changes | None = None


class PushingBegun(Struct, frozen=True):
    """The store's epoch and time when the first push was about to happen, and the node of the journal's entries."""

    epoch: str
    at: int
    node: str = ""


class LostNode(Struct, frozen=True):
    node: str


class ReconcileRun(Struct, frozen=True):
    """What a reconcile's summary says about the store, when it was scanned, and what was compared with it.

    `scanned_at` is the store's time. `journal` is the folder that was read, and `pool` the store's name in it; a run of
    an earlier release tells neither. The nodes of `assumed_lost` are those that the operator gave up.
    """

    run: str
    dry_run: bool = True
    epoch: str = ""
    scanned_at: int = 0
    namespaces: Sequence[str] = ()
    journal: str = ""
    pool: str = ""
    assumed_lost: Sequence[LostNode] = ()


class Scheduled(Struct, frozen=True):
    """How a batch ended. `kept` rows met a job with their id; `repeated` rows were pushed before this run.

    `seconds` is the time of the push phase. `options` and `source` are digests, as in Accepted; `named` is the source
    as the caller named it. `was_done`: the batch had ended before this run, which read no source and pushed nothing.
    `replaced` and `cancelled` count jobs, `changes` counts rows. `resumed` names the load of the table that this run
    found unfinished and ended first. `queue` is that of the options; rows may name others.
    """

    batch: str
    namespace: str
    rows: int
    accepted: int
    kept: int
    bad: int
    files: int
    epoch: str
    finished_at: int
    repeated: int = 0
    seconds: float = 0.0
    options: str = ""
    source: str = ""
    named: str = ""
    was_done: bool = False
    replaced: int = 0
    cancelled: int = 0
    changes: Changes | None = None
    resumed: str = ""
    queue: str = ""


class BatchConflict(Conflict):
    """A batch of this name is something else."""

    code = "batch_conflict"


class ReconcileFirst(Conflict):
    """It cannot be known any more what of the batch was pushed."""

    code = "reconcile_first"


class Batch:
    """One batch's folder."""

    def __init__(self, files: Files, lake: str, name: str) -> None:
        self._files = files
        self.name = name
        self.lake = files.home(lake)
        self.home = f"{self.lake}/batches/{name}"
        self.rejected = f"{self.home}/rejected"

    @classmethod
    def open(cls, spark: SparkSession, lake: str, name: str) -> Self:
        batch = cls(files_for(spark, lake), lake, name)
        check_shared(spark, batch._files, batch.lake)
        return batch

    def accepted(self) -> Accepted | None:
        return self._read("_accepted", Accepted)

    def accepted_later(self, run: str) -> Accepted | None:
        """The rows that were missing after a reconcile, if they were written down."""
        return self._read(f"_accepted.{run}", Accepted)

    def pushing(self, run: str) -> PushingBegun | None:
        return self._read(f"_pushing.{run}".rstrip("."), PushingBegun)

    def later_rounds(self) -> list[str]:
        """The reconciles after which pushing began again, in their order."""
        names = (one.name.partition("_pushing.")[2] for one in self._files.list(self.home))
        return sorted(name for name in names if name)

    def reconciled(self, namespace: str, *, epoch: str, after: int) -> str | None:
        """The latest reconcile of the store that scanned it after a time and tells which journal it read; None if
        there was none.
        """
        for folder in sorted(self._files.list(f"{self.lake}/reconcile"), reverse=True):
            try:
                found = self.reconcile_run(folder.name)
            except (FileNotFoundError, NotADirectoryError):
                continue
            if found.dry_run or not found.journal or (found.epoch, found.scanned_at > after) != (epoch, True):
                continue
            if not found.namespaces or namespace in found.namespaces:
                return found.run
        return None

    def reconcile_run(self, run: str) -> ReconcileRun:
        """Raises FileNotFoundError or NotADirectoryError if there is no such run."""
        summary = self._files.read(f"{self.lake}/reconcile/{run}/summary.json")
        return msgspec.json.decode(summary, type=ReconcileRun)

    def manifest(self) -> Scheduled | None:
        return self._read("_manifest", Scheduled)

    def accept(self, record: Accepted) -> Accepted:
        """Record the accepted files. The first run to come wins, and its record is returned.

        Raises BatchConflict if the winner accepted other rows.
        """
        winner = self._create("_accepted", record)
        if winner.folder != record.folder:
            self._files.delete(f"{self.home}/{record.folder}")
            if winner.checksum != record.checksum:
                raise BatchConflict(
                    f"the batch {self.name!r} was accepted with other rows by another run; give this one another name",
                    batch=self.name,
                )
        return winner

    def accept_later(self, record: Accepted, run: str) -> Accepted:
        """Record the missing rows. The first run to come wins: after one reconcile all runs miss the same rows."""
        winner = self._create(f"_accepted.{run}", record)
        if winner.folder != record.folder:
            self._files.delete(f"{self.home}/{record.folder}")
        return winner

    def begin(self, record: PushingBegun, run: str) -> PushingBegun:
        return self._create(f"_pushing.{run}".rstrip("."), record)

    def finish(self, record: Scheduled) -> Scheduled:
        finished = self._create("_manifest", record)
        self._files.delete(f"{self.home}/{PROGRESS}")
        return finished

    def begin_progress(self, before: int) -> str:
        """The folder in which tasks write how far they are, empty unless the lake is a local folder.

        `before` rows were pushed by earlier rounds.
        """
        if not isinstance(self._files, LocalFiles):
            return ""
        folder = f"{self.home}/{PROGRESS}"
        self._files.delete(folder)
        write_rows(self._files.path(folder) / BEFORE, before)
        return folder

    def write_rows(self, rows: DataFrame, folder: str) -> list[AcceptedFile]:
        """Write rows to a folder that no other run uses; returns the files that count, in the order of their tasks."""
        where = f"{self.home}/{folder}"
        notes = f"{where}/_staging-{folder}"
        written = write_in_place(rows.sparkSession, rows, where, files=self._files, notes=notes, options=FILE_OPTIONS)
        return [AcceptedFile(f"{folder}/{one.path}", one.bytes) for one in written]

    def paths(self, accepted: Accepted) -> list[str]:
        """The accepted files. Raises BatchConflict if one is gone or has another size."""
        found = self._files.list(f"{self.home}/{accepted.folder}")
        there = {f"{accepted.folder}/{one.name}": one.size for one in found}
        for file in accepted.files:
            if there.get(file.name) != file.bytes:
                raise BatchConflict(f"{self.home}/{file.name} is not the file that was accepted", batch=self.name)
        return [f"{self.home}/{file.name}" for file in accepted.files]

    def forget(self, folder: str) -> None:
        self._files.delete(f"{self.home}/{folder}")

    def _create(self, name: str, record: Record) -> Record:
        try:
            self._files.create(f"{self.home}/{name}", msgspec.json.encode(record))
        except FileExistsError:
            there = self._read(name, type(record))
            assert there is not None
            return there
        return record

    def _read(self, name: str, kind: type[Record]) -> Record | None:
        try:
            return msgspec.json.decode(self._files.read(f"{self.home}/{name}"), type=kind)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise BatchConflict(f"{self.home}/{name} is damaged: {error}", batch=self.name) from None
