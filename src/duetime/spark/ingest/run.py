"""The pipeline `ingest`: sealed segments of the journal -> the table `events`, each entry once.

(node, seq) makes a run safe to repeat: the manifest of `events` says which entries of every node are in the table. A
segment's name says which entries it holds, so a run lists the folders of the living nodes and reads the segments that
are new. Rows that are in the table already are left out, so a segment that is there twice or was renamed adds nothing.
Runs on the driver; rows stay on the executors.
"""

import io
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Struct, field, structs
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from duetime.journal.events import read_line
from duetime.journal.segments import parse
from duetime.model.clock import Duration, duration_ms
from duetime.model.errors import InvalidRequest
from duetime.spark.ingest import transform as ingest
from duetime.spark.ingest.about import (
    DamagedLines,
    EventsAbout,
    Purge,
    about_events,
    known_nodes,
    put_ended,
    read_ended,
    replaced_files,
)
from duetime.spark.lake.files import Files, FoundFile, LocalFiles, files_for
from duetime.spark.lake.lake import DataFile, Lake, PublishConflict, Staged, local_lake
from duetime.spark.lake.nodes import NodeState, join_nodes
from duetime.spark.lifecycle.run import about_jobs

PER_BATCH = 4 * 1024**3
"""Bytes of segments that are read and published in one step."""
NAMED_DAMAGE = 1000
CROWDED = 64
"""A day with more files than this is written anew, as a few files."""
FILE_BYTES = 128 * 1024**2


class Ingested(Struct):
    """What a run did."""

    segments: int = 0
    events: int = 0
    repeated: int = 0
    damaged: int = 0
    damage: list[DamagedLines] = field(default_factory=list[DamagedLines])
    version: int = 0


def find_done(folder: str, journal: str) -> Ingested | None:
    """The answer of a run that has nothing to do, found without Spark. None if there may be something."""
    lake = local_lake(folder)
    if lake is None or urlsplit(journal).scheme not in ("", "file"):
        return None
    files = LocalFiles()
    home, version = files.home(journal), lake.events.manifest().version
    if not version or not files.list(home) or new_segments(lake, files, home):
        return None
    return Ingested(version=version)


def run_ingest(
    lake: Lake,
    journal: str,
    *,
    every: Duration | None = None,
    on_progress: Callable[[Ingested], None] = lambda so_far: None,
) -> Ingested:
    """Load what is sealed and new; with `every`, again at that interval until the process is interrupted.

    Safe to run again, also during another run.
    """
    files = files_for(lake.spark, journal)
    home = files.home(journal)
    total = Ingested(version=lake.events.manifest().version)
    try:
        while True:
            found = new_segments(lake, files, home)
            if not found and not files.list(home):
                raise InvalidRequest(f"there is no journal in {journal}")
            for segments in _batches(found):
                _add(total, ingest_segments(lake, segments))
                compact(lake)
                on_progress(total)
            if every is None:
                return total
            time.sleep(duration_ms(every) / 1000)
    except KeyboardInterrupt:
        if every is None:  # the caller must not take half of the journal for all of it
            raise
        return total


def new_segments(lake: Lake, files: Files, journal: str) -> list[FoundFile]:
    """The sealed segments that are not in the lake, the oldest first.

    The folder of a node that has ended, and is complete in the lake, is not listed.
    """
    about = about_events(lake.events.manifest())
    ended = read_ended(lake, about.ended)
    known, others = {**ended, **about.nodes}, set(about.others)
    found = _sealed(files, journal, ended)
    new = (one for one in found if one.path not in others and not _is_known(one.path, known))
    return sorted(new, key=lambda one: (one.changed_at, one.path))


def _sealed(files: Files, folder: str, ended: Collection[str]) -> Iterator[FoundFile]:
    for one in files.list(folder):
        if one.name.startswith((".", "_")):
            continue
        if one.is_folder:
            if one.name not in ended:
                yield from _sealed(files, one.path, ended)
        elif one.name.endswith(".journal"):
            yield one


def _is_known(path: str, nodes: Mapping[str, NodeState]) -> bool:
    """Returns True if the lake has all entries that the names of a segment and its folder promise."""
    file = Path(path)
    segment, node = parse(file), nodes.get(file.parent.name)
    if segment is None or node is None:
        return False
    return any(first <= segment.first and segment.last <= last for first, last in node.ranges)


def _batches(segments: Iterable[FoundFile]) -> Iterator[list[str]]:
    """Paths of segments of up to PER_BATCH bytes."""
    batch, size = list[str](), 0
    for one in segments:
        if batch and size + one.size > PER_BATCH:
            yield batch
            batch, size = [], 0
        batch.append(one.path)
        size += one.size
    if batch:
        yield batch


@dataclass(frozen=True)
class _Loaded:
    """What was found in segments: their paths, the damage, and what the manifest notes about their entries."""

    paths: Sequence[str]
    damage: Sequence[DamagedLines]
    damaged_files: Mapping[str, int]
    purges: Sequence[Purge]
    group_days: Sequence[str]


def read_segments(spark: SparkSession, paths: Sequence[str]) -> tuple[DataFrame, Observation]:
    """The lines of segments, as `ingest.read_lines` has them. `bad_files` of the observation is for `find_damage`."""
    reader = spark.read.format("text").option("lineSep", "\n").option("__globPaths__", "false")
    lines = reader.load(list(paths)).select("value", F.col("_metadata.file_path").alias("file"))
    seen = Observation()
    return lines.transform(ingest.read_lines).observe(seen, ingest.bad_files()), seen


def noted_purges(noted: Observation) -> list[Purge]:
    """The purges among EVENTS that were observed with `ingest.noted`."""
    return msgspec.json.decode(noted.get["purges"], type=list[Purge], strict=False)


def ingest_segments(lake: Lake, paths: Sequence[str]) -> Ingested:
    """Publish the entries of some segments that are not in the table yet, and note the damaged lines."""
    lines, seen = read_segments(lake.spark, paths)
    noted = Observation()
    with lake.events.stage(lines.transform(ingest.good_events).observe(noted, *ingest.noted())) as staged:
        damage, damaged_files = find_damage(lake, seen.get["bad_files"].splitlines())
        loaded = _Loaded(paths, damage, damaged_files, noted_purges(noted), noted.get["group_days"].splitlines())
        while True:
            try:
                return _publish(lake, staged, loaded)
            except PublishConflict:
                continue


def _publish(lake: Lake, staged: Staged, loaded: _Loaded) -> Ingested:
    """Publish the staged rows that are new. Raises PublishConflict, and keeps them staged, if another run is first."""
    manifest = lake.events.manifest()
    about = about_events(manifest)
    incoming, rows, doubled = extents(staged.read())
    chosen, repeated = staged, 0
    nodes = known_nodes(lake, about)
    known = {name: nodes[name] for name, state in incoming.items() if name in nodes and state.overlaps(nodes[name])}
    if doubled or known:
        # The ranges decide, not the table's rows: a vacuum may have removed old ones.
        chosen = lake.events.stage(staged.read().transform(ingest.once).transform(ingest.without_known, known))
        before = rows
        incoming, rows, _ = extents(chosen.read())
        repeated = before - rows
    with nullcontext() if chosen is staged else chosen:
        known_places = {(one.file, one.line) for one in about.damage}
        damage = [one for one in loaded.damage if (one.file, one.line) not in known_places]
        touched = {name: state for name, state in nodes.items() if name in incoming or name in about.nodes}
        joined = join_nodes(touched, incoming)
        others = {path for path in loaded.paths if not _is_known(path, {**nodes, **joined})} - set(about.others)
        version = manifest.version
        if rows or damage or others or not loaded.damaged_files.keys() <= about.damaged_files.keys():
            left, ended = put_ended(lake, joined, about.ended)
            new_about = EventsAbout(
                nodes=left,
                ended=ended,
                others=[*about.others, *sorted(others)],
                damage=[*about.damage, *damage][:NAMED_DAMAGE],
                damaged_files={**about.damaged_files, **loaded.damaged_files},
                events=about.events + rows,
                purges=sorted({*about.purges, *loaded.purges}),
                group_days=sorted({*about.group_days, *loaded.group_days}),
            )
            version = lake.events.publish(
                chosen,
                after=manifest,
                about=msgspec.to_builtins(new_about),
                drops=replaced_files(about.ended, ended),
            ).version
    return Ingested(
        segments=len(loaded.paths),
        events=rows,
        repeated=repeated,
        damaged=sum(loaded.damaged_files.values()),
        damage=list(loaded.damage),
        version=version,
    )


def compact(lake: Lake, crowded: int = CROWDED) -> int:
    """Write days that consist of many small files anew, as a few large ones; returns how many days.

    Takes only files that `lifecycle` has read, so that it does not take their rows for new ones. If another run
    publishes meanwhile, nothing is done, and a later run does it.
    """
    manifest = lake.events.manifest()
    known = about_jobs(lake.jobs.manifest()).events_version
    days: dict[str, list[DataFile]] = {}
    for file in manifest.files:
        if file.since <= known:
            days.setdefault(file.date, []).append(file)
    days = {day: files for day, files in days.items() if len(files) > crowded}
    chosen = {file for files in days.values() for file in files}
    if not chosen:
        return 0
    parts = sum(file.bytes for file in chosen) // FILE_BYTES + 1
    staged = lake.events.stage(lake.events.read(manifest=manifest, only=lambda file: file in chosen).coalesce(parts))
    try:
        lake.events.publish(
            staged,
            after=manifest,
            about=manifest.about,
            replaces=lambda file: file in chosen,
            since=max(file.since for file in chosen),
        )
    except PublishConflict:
        staged.drop()
        return 0
    return len(days)


def extents(events: DataFrame) -> tuple[dict[str, NodeState], int, bool]:
    """What the rows have of each node; how many rows there are; whether any (node, seq) is there twice."""
    found = dict[str, NodeState]()
    rows, distinct = 0, dict[str, int]()
    for row in ingest.node_extents(events).collect():
        part = NodeState(
            ranges=[(row["first"], row["last"])],
            beats={row["pool"]: row["beat_at"]} if row["beat_at"] else {},
            closed=row["closed"],
            first_at=row["first_at"],
        )
        name = row["node"]
        found[name] = join_nodes(found, {name: part})[name]
        rows += row["entries"]
        distinct[name] = distinct.get(name, 0) + row["distinct"]
    if holes := [name for name, node in found.items() if node.entries != distinct[name]]:
        named = events.where(F.col("node").isin(holes)).select("node", "seq").distinct()
        ranges = dict[str, list[Any]]()
        for row in ingest.node_ranges(named).collect():
            ranges.setdefault(row["node"], []).append((row["first"], row["last"]))
        found |= {name: structs.replace(found[name], ranges=sorted(ranges[name])) for name in holes}
    return found, rows, rows != sum(distinct.values())


def find_damage(lake: Lake, files: Iterable[str]) -> tuple[list[DamagedLines], dict[str, int]]:
    """The first NAMED_DAMAGE damaged lines of these files, and how many each file has. The driver reads one file after
    the other, because there are few.
    """
    found: list[DamagedLines] = []
    counts: dict[str, int] = {}
    for file in sorted(map(unquote, files)):  # Spark escapes the paths that it reports
        content = files_for(lake.spark, file).read(file)
        for number, line in enumerate(_lines(content), 1):
            try:
                read_line(line)
            except ValueError as error:
                counts[file] = counts.get(file, 0) + 1
                if len(found) < NAMED_DAMAGE:
                    found.append(_damage(file, number, str(error)))
    return found, counts


def _lines(content: bytes) -> Iterator[bytes]:
    """Only a newline ends a line."""
    return iter(io.BytesIO(content))


def _damage(file: str, line: int, problem: str) -> DamagedLines:
    segment = parse(Path(file))
    return DamagedLines(
        file=file,
        line=line,
        problem=problem,
        node=Path(file).parent.name,
        seq=segment.first + line - 1 if segment else 0,
    )


def _add(total: Ingested, part: Ingested) -> None:
    total.segments += part.segments
    total.events += part.events
    total.repeated += part.repeated
    total.damaged += part.damaged
    total.damage = [*total.damage, *part.damage][:NAMED_DAMAGE]
    total.version = part.version
