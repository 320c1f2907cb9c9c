"""The lake: a folder of tables in Parquet, each published by one atomic manifest.

    <table>/_files/date=.../*.parquet   the data, with files that were replaced or are not published yet
    <table>/_delta_log/                 the manifests, which make the table one of Delta Lake (`delta.py`)
    <table>/current/date=.../*.parquet  in a local folder: hard links to the files of the newest manifest

A run writes its files in place, under names of its own, and then creates the next manifest, which lists every file of
the table. Readers use the newest manifest only: they see all of a run or nothing of it, and a run that dies leaves
nothing but files that no manifest names. Manifests are numbered: of two runs that publish at the same time one wins,
and the other raises `PublishConflict` and starts from what the first one made. A program that reads Parquet files
without a manifest skips names that begin with an underscore, so it finds `current` alone. Runs on the driver; executors
write the files.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import msgspec
from msgspec import Struct, field
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from duetime.model.clock import SystemClock
from duetime.model.errors import Conflict, InvalidSettings
from duetime.model.ids import IdMaker
from duetime.spark import schemas
from duetime.spark.lake import delta
from duetime.spark.lake.files import Files, LocalFiles, check_shared, files_for
from duetime.spark.lake.in_place import NUMBERS, OPTIONS, WrittenFile, write_in_place

FORMAT = 1
"""The format of manifests and tables: docs/formats.md says when it changes."""
DATA = "_files"
CURRENT, VERSIONS = "current", "_versions"
STAGING = "_staging"
SCRATCH = "_scratch"
KEPT_MANIFESTS = 20
KEPT_LINKS = 2
"""The folder of links that `current` names, and the one before it, which a reader may have found."""
LITTER_MS = 24 * 3_600_000
"""How long a file that no manifest names any more is left for readers that still use it."""


class PublishConflict(Conflict):
    """Another run published this table in the meantime."""

    code = "publish_conflict"


class StagedTooOld(Conflict):
    """What was written cannot be published any more."""

    code = "staged_too_old"


class DataFile(Struct, frozen=True):
    """`path` is relative to the table; `since` is the version of the manifest that first named the file."""

    path: str
    bytes: int
    since: int

    @property
    def date(self) -> str:
        """The partition, `2026-11-15`."""
        return unquote(self.path.partition("/")[0].partition("=")[2])


class Dropped(Struct, frozen=True):
    path: str
    at: int


class Manifest(Struct, frozen=True):
    """One state of a table. `about` belongs to the pipeline that writes it: how far it has read, what it noticed.

    `format` is greater than FORMAT if a release that is older than the writer must not use the table.
    """

    version: int = 0
    written_at: int = 0
    table_id: str = ""
    files: Sequence[DataFile] = ()
    dropped: Sequence[Dropped] = ()
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])
    format: int = 1

    def dates(self) -> set[str]:
        return {file.date for file in self.files}


class Table:
    """One table of the lake, partitioned by `date`."""

    def __init__(
        self, spark: SparkSession, folder: str, schema: StructType, options: Mapping[str, str] = OPTIONS
    ) -> None:
        """`options` are those of Spark's Parquet writer."""
        self._spark, self._options = spark, options
        self.files: Files = files_for(spark, folder)
        self.home = self.files.home(folder)
        self.folder = f"{self.home}/{DATA}"
        self.schema = schema

    def manifest(self) -> Manifest:
        """The newest manifest; an empty one of version 0 if nothing was published yet."""
        while names := self._manifest_names():
            try:
                commit = self.files.read(f"{self.home}/{delta.LOG}/{names[-1]}")
                manifest = msgspec.convert(delta.manifest_of(commit), Manifest)
            except FileNotFoundError:  # deleted since it was listed, so there is a newer one
                continue
            if manifest.format > FORMAT:
                raise InvalidSettings(
                    f"{self.home} has format {manifest.format}, this release reads up to {FORMAT}: upgrade Duetime"
                )
            return manifest
        return Manifest()

    def read(self, *, manifest: Manifest | None = None, only: Callable[[DataFile], bool] | None = None) -> DataFrame:
        """The table as a manifest has it; `only` chooses among its files."""
        manifest = manifest or self.manifest()
        return self.read_files(file.path for file in manifest.files if only is None or only(file))

    def read_files(self, paths: Iterable[str]) -> DataFrame:
        """Files by their paths below the table's folder, whether they are published or not."""
        chosen = [f"{self.folder}/{path}" for path in paths]
        if not chosen:
            return schemas.frame(self._spark, [], self.schema)
        return self._spark.read.schema(self.schema).option("basePath", self.folder).parquet(*chosen)

    def stage(self, rows: DataFrame) -> "Staged":
        """Write rows to files that no reader sees until they are published."""
        begun_at = SystemClock().now_ms()
        notes = f"{self.folder}/{STAGING}/{IdMaker().make()}"
        written = write_in_place(self._spark, rows, self.folder, files=self.files, notes=notes, options=self._options)
        return Staged(self, written, begun_at)

    def publish(
        self,
        staged: "Staged | None",
        *,
        after: Manifest,
        about: Mapping[str, Any],
        replaces: Callable[[DataFile], bool] = lambda file: False,
        drops: Sequence[str] = (),
        since: int | None = None,
    ) -> Manifest:
        """Make the staged rows part of the table, and drop the files that they replace, in one step.

        `drops` are paths of other files below the table's folder that `about` has named until now. Rows that are not
        new but only written anew keep the version of the manifest that they came with: `since`.
        Raises PublishConflict if `after` is not the newest manifest any more; nothing is changed then, and what is
        staged can be published later. Raises StagedTooOld where a vacuum may have deleted what is staged.
        """
        now, version = SystemClock().now_ms(), after.version + 1
        if version <= self.manifest().version:
            raise PublishConflict(f"{self.folder} was published by another run")
        if staged and staged.begun_at < now - LITTER_MS:
            raise StagedTooOld(f"writing to {self.folder} took more than a day; run it again")
        added = [DataFile(one.path, one.bytes, since or version) for one in staged.files] if staged else []
        gone = [file for file in after.files if replaces(file)]
        dropped = [Dropped(path, now) for path in (*(file.path for file in gone), *drops)]
        old = [one for one in after.dropped if one.at < now - LITTER_MS]
        manifest = Manifest(
            version=version,
            written_at=now,
            table_id=after.table_id or str(uuid4()),
            files=[*(file for file in after.files if file not in gone), *added],
            dropped=[*(one for one in after.dropped if one not in old), *dropped],
            about=about,
        )
        actions = [
            *(() if after.version else self._head(manifest)),
            *(delta.remove(f"{DATA}/{file.path}", now) for file in gone),
            *(_add(file, now) for file in added),
        ]
        try:
            commit = delta.commit(msgspec.to_builtins(manifest), now, actions)
            self.files.create(delta.commit_path(self.home, version), commit)
        except FileExistsError:
            raise PublishConflict(f"{self.home} was published by another run") from None
        if staged:
            staged.is_published = True
        self._sweep(old, now)
        if version % delta.CHECKPOINT_EVERY == 0:
            self._write_checkpoint(manifest)
        if isinstance(self.files, LocalFiles):
            self._link_current(self.files.path(self.home), manifest)
        return manifest

    def _head(self, manifest: Manifest) -> list[delta.Action]:
        return delta.head(manifest.table_id, self.schema.json(), manifest.written_at)

    def _write_checkpoint(self, manifest: Manifest) -> None:
        """Write a checkpoint, then delete the commits and checkpoints that it makes unnecessary."""
        version = manifest.version
        actions = [*self._head(manifest), *(_add(file, manifest.written_at) for file in manifest.files)]
        with suppress(FileExistsError):
            self.files.create(delta.checkpoint_path(self.home, version), delta.checkpoint(actions))
        pointer = f"{self.home}/{delta.LOG}/_last_checkpoint"
        self.files.delete(pointer)
        with suppress(FileExistsError):
            self.files.create(pointer, delta.last_checkpoint(version, len(actions)))
        first_kept = delta.commit_path("", version - KEPT_MANIFESTS).rpartition("/")[2]
        for file in self.files.list(f"{self.home}/{delta.LOG}"):
            if file.name[:1].isdigit() and file.name.partition(".")[0] < first_kept.partition(".")[0]:
                self.files.delete(file.path)

    def _link_current(self, home: Path, manifest: Manifest) -> None:
        """Make `current` a folder with exactly the files of the manifest, for programs that read a folder of Parquet
        files. A folder of hard links is made, and a symbolic link to it takes the place of the last one in one step.
        Where the file system has no links there is no such folder.
        """
        made = home / VERSIONS / f"{manifest.version:012d}"
        link = home / f".{CURRENT}.{IdMaker().make()}"
        try:
            made.mkdir(parents=True, exist_ok=True)
            for folder in {file.path.rpartition("/")[0] for file in manifest.files}:
                (made / folder).mkdir(parents=True, exist_ok=True)
            for file in manifest.files:
                (made / file.path).hardlink_to(home / DATA / file.path)
            link.symlink_to(made.relative_to(home))
            if self.manifest().version == manifest.version:
                link.replace(home / CURRENT)
        except OSError:  # no links here, or a vacuum deleted a file of a manifest that is not the newest any more
            link.unlink(missing_ok=True)
            if self.manifest().version == manifest.version:
                (home / CURRENT).unlink(missing_ok=True)
        for old in self.files.list(f"{self.home}/{VERSIONS}")[:-KEPT_LINKS]:
            self.files.delete(old.path)

    def _sweep(self, old: Sequence[Dropped], now: int) -> None:
        for one in old:
            self.files.delete(f"{self.folder}/{one.path}")
        for folder in self.files.list(f"{self.folder}/{STAGING}"):
            if folder.changed_at < now - LITTER_MS:
                self.files.delete(folder.path)

    def _manifest_names(self) -> list[str]:
        found = self.files.list(f"{self.home}/{delta.LOG}")
        return sorted(one.name for one in found if one.name.endswith(".json") and not one.name.startswith("."))


def _add(file: DataFile, at: int) -> delta.Action:
    return delta.add(f"{DATA}/{file.path}", file.date, file.bytes, at)


class Staged:
    """Files that a run has written and that no manifest names yet. As a context it drops them if that stays so."""

    def __init__(self, table: Table, files: Sequence[WrittenFile], begun_at: int) -> None:
        self._table, self.files, self.begun_at = table, files, begun_at
        self.is_published = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        self.drop()

    def read(self) -> DataFrame:
        return self._table.read_files(file.path for file in self.files)

    def drop(self) -> None:
        """Delete the files; what is published stays."""
        for file in () if self.is_published else self.files:
            self._table.files.delete(f"{self._table.folder}/{file.path}")


class Lake:
    """The folder with all tables."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self.spark = spark
        self.files = files_for(spark, folder)
        self.folder = self.files.home(folder)
        check_shared(spark, self.files, self.folder)
        self.events = Table(spark, f"{self.folder}/events", schemas.EVENTS)
        self.jobs = Table(spark, f"{self.folder}/jobs", schemas.JOBS, NUMBERS)
        self.stats = Table(spark, f"{self.folder}/stats", schemas.STATS)
        self.closed = Table(spark, f"{self.folder}/closed", schemas.CLOSED)

    def scratch(self, run: str) -> str:
        """A folder for files that only this run needs."""
        return f"{self.folder}/{SCRATCH}/{run}"


def local_lake(folder: str) -> Lake | None:
    """A lake on this machine's disk without a session, for its manifests alone. None if it may be elsewhere."""
    without_session: Any = None
    is_local = urlsplit(folder).scheme in ("", "file")
    return Lake(without_session, LocalFiles().home(folder)) if is_local else None
