"""The pipeline `ingest`: sealed segments of the journal -> the table `events`, each entry once.

A Structured Streaming query over the journal's folder, checkpointed in the lake: a run takes the segments that are new,
or goes on for ever. What makes it safe to repeat is not the checkpoint but (node, seq): the manifest says which ranges
of every node are in the table, and rows that are there already are left out, so a lost checkpoint, a doubled or a
renamed segment adds nothing. Runs on the driver; rows stay on the executors.
"""

import io
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Struct, field
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from duetime.journal.events import read_line
from duetime.journal.segments import parse
from duetime.model.clock import Duration, duration_ms
from duetime.model.errors import InvalidRequest, InvalidSettings
from duetime.model.ids import IdMaker
from duetime.spark.ingest import transform as ingest
from duetime.spark.ingest.about import (
    DamagedLines,
    EventsAbout,
    about_events,
    find_group_days,
    find_purges,
    known_purges,
    put_ended,
    read_ended,
    replaced_files,
)
from duetime.spark.lake.files import LocalFiles, files_for
from duetime.spark.lake.lake import DataFile, Lake, PublishConflict, Staged, local_lake
from duetime.spark.lake.nodes import NodeState, join_nodes
from duetime.spark.lifecycle.run import about_jobs
from duetime.spark.session import is_connect

PER_BATCH = 4 * 1024**3
"""Bytes of segments per micro-batch; each micro-batch is published in one step."""
MAX_AGE = "3650d"
"""Spark skips files that are older than the newest by more than this; it must not skip a segment that comes late."""
CONCURRENT = ("CONCURRENT_STREAM_LOG_UPDATE", "CONCURRENT_QUERY", "is already active")
"""How Spark says that another run reads this journal into this lake at the moment."""
CONCURRENT_S = 0.5
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


def known_nodes(lake: Lake, about: EventsAbout) -> dict[str, NodeState]:
    """All nodes of which something is in the lake."""
    return {**read_ended(lake, about.ended), **about.nodes}


def find_done(folder: str, journal: str) -> Ingested | None:
    """The answer of a run that has nothing to do, found without Spark. None if there may be something."""
    lake = local_lake(folder)
    if lake is None or urlsplit(journal).scheme not in ("", "file"):
        return None
    manifest = lake.events.manifest()
    known = known_nodes(lake, about_events(manifest))
    sealed = list(LocalFiles().path(journal).rglob("*.journal"))
    for path in sealed:
        segment, node = parse(path), known.get(path.parent.name)
        if segment is None or node is None:
            return None
        if not any(first <= segment.first and segment.last <= last for first, last in node.ranges):
            return None
    return Ingested(version=manifest.version) if sealed and manifest.version else None


def run_ingest(
    lake: Lake,
    journal: str,
    *,
    every: Duration | None = None,
    on_progress: Callable[[Ingested], None] = lambda so_far: None,
) -> Ingested:
    """Take in what is sealed and new; with `every`, again at that interval until the process is interrupted.

    Safe to run again, also during another run.
    """
    if is_connect(lake.spark):
        return _run_far(lake, journal, every)
    total = Ingested(version=lake.events.manifest().version)
    errors: list[BaseException] = []

    def take(lines: DataFrame, number: int) -> None:
        try:
            _add(total, ingest_lines(lake, lines))
        except BaseException as error:  # the query raises it as a Java error, without its text
            errors.append(error)
            raise
        compact(lake)
        on_progress(total)

    while not _follow(lake, journal, take, every, errors):
        time.sleep(CONCURRENT_S)
    return total


def _follow(
    lake: Lake,
    journal: str,
    take: Callable[[DataFrame, int], None],
    every: Duration | None,
    errors: Sequence[BaseException],
) -> bool:
    """Run the query to its end; False if another run holds the checkpoint, so that this one has to try again."""
    query: StreamingQuery | None = None
    try:
        query = _start(lake, journal, take, every)
        query.awaitTermination()
    except KeyboardInterrupt:
        if query:
            query.stop()
        if every is None:
            raise  # only a run without an end ends so; what follows must not take half of the journal for the whole
    except Exception as error:
        if errors:
            raise errors[0] from None
        if any(word in str(error) for word in CONCURRENT):
            return False
        raise
    return True


def _run_far(lake: Lake, journal: str, every: Duration | None) -> Ingested:
    """Over Spark Connect a process next to the server imports batches, so each leaves a file with its counts."""
    if every is not None:
        raise InvalidSettings("--every needs --master; over Spark Connect run it again instead, from a timer")
    total = Ingested(version=lake.events.manifest().version)
    notes = lake.scratch(f"ingest-{IdMaker().make()}")

    def take(lines: DataFrame, number: int) -> None:
        lake.files.create(f"{notes}/{number:012d}", msgspec.json.encode(ingest_lines(lake, lines)))
        compact(lake)

    try:
        _start(lake, journal, take, None).awaitTermination()
        for note in lake.files.list(notes):
            _add(total, msgspec.json.decode(lake.files.read(note.path), type=Ingested))
    finally:
        lake.files.delete(notes)
    return total


def _start(lake: Lake, journal: str, take: Callable[[DataFrame, int], None], every: Duration | None) -> StreamingQuery:
    files = files_for(lake.spark, journal)
    home = files.home(journal)
    if not files.list(home):
        raise InvalidRequest(f"there is no journal in {journal}")
    lines = (
        lake.spark.readStream.format("text")
        .option("lineSep", "\n")
        .option("pathGlobFilter", "*.journal")
        .option("recursiveFileLookup", True)
        .option("maxFileAge", MAX_AGE)
        .option("maxBytesPerTrigger", PER_BATCH)
        .load(home)
        .select("value", F.col("_metadata.file_path").alias("file"))
    )
    # By default a new run would stop another run of this session, which would then believe that it is done.
    lake.spark.conf.set("spark.sql.streaming.stopActiveRunOnRestart", False)
    checkpoint = f"{lake.folder}/_checkpoints/ingest-{zlib.crc32(home.encode()):08x}"
    writer = lines.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
    if every is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{duration_ms(every)} milliseconds").start()


def ingest_lines(lake: Lake, lines: DataFrame) -> Ingested:
    """Publish the entries of some lines (value, file) that are not in the table yet, and note the damaged ones."""
    seen = Observation()
    read = lines.transform(ingest.read_lines).observe(seen, *ingest.damage_seen())
    staged = lake.events.stage(read.transform(ingest.good_events))
    observed = seen.get
    damage, damaged_files = find_damage(lake, observed["bad_files"].splitlines())
    done = Ingested(segments=observed["files"], damage=damage, damaged=sum(damaged_files.values()))
    while True:
        try:
            return _publish(lake, staged, done, damaged_files)
        except PublishConflict:
            continue


def _publish(lake: Lake, staged: Staged, done: Ingested, damaged_files: Mapping[str, int]) -> Ingested:
    """Publish the staged rows that are new. Raises PublishConflict, and keeps them staged, if another run is first."""
    manifest = lake.events.manifest()
    about = about_events(manifest)
    incoming, rows, doubled = extents(staged.read())
    chosen, repeated = staged, 0
    nodes = known_nodes(lake, about)
    known = {name: nodes[name] for name, state in incoming.items() if name in nodes and state.overlaps(nodes[name])}
    if doubled or known:
        # The ranges tell, not the table's rows: a vacuum may have removed old ones.
        chosen = lake.events.stage(staged.read().transform(ingest.once).transform(ingest.without_known, known))
        before = rows
        incoming, rows, _ = extents(chosen.read())
        repeated = before - rows
    known_places = {(one.file, one.line) for one in about.damage}
    damage = [one for one in done.damage if (one.file, one.line) not in known_places]
    version = manifest.version
    if rows or damage or not damaged_files.keys() <= about.damaged_files.keys():
        touched = {name: state for name, state in nodes.items() if name in incoming or name in about.nodes}
        left, ended = put_ended(lake, join_nodes(touched, incoming), about.ended)
        new_about = EventsAbout(
            nodes=left,
            ended=ended,
            damage=[*about.damage, *damage][:NAMED_DAMAGE],
            damaged_files={**about.damaged_files, **damaged_files},
            events=about.events + rows,
            purges=sorted({*known_purges(lake, manifest), *find_purges(chosen.read())}),
            group_days=sorted({*about.group_days, *find_group_days(chosen.read())}),
        )
        try:
            published = lake.events.publish(
                chosen,
                after=manifest,
                about=msgspec.to_builtins(new_about),
                drops=replaced_files(about.ended, ended),
            )
        except PublishConflict:
            if chosen is not staged:
                chosen.drop()
            raise
        version = published.version
    chosen.drop()
    staged.drop()
    done.events, done.repeated, done.version = rows, repeated, version
    return done


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
    extent: dict[str, Any] = {row["node"]: row for row in ingest.node_extents(events).collect()}
    rows = sum(row["entries"] for row in extent.values())
    doubled = any(row["entries"] != row["distinct"] for row in extent.values())
    ranges: dict[str, list[tuple[int, int]]] = {}
    if holes := [name for name, row in extent.items() if row["last"] - row["first"] + 1 != row["distinct"]]:
        distinct = events.where(F.col("node").isin(holes)).select("node", "seq").distinct()
        for row in ingest.node_ranges(distinct).collect():
            ranges.setdefault(row["node"], []).append((row["first"], row["last"]))
    beats: dict[str, dict[str, int]] = {}
    for row in ingest.node_beats(events).collect():
        beats.setdefault(row["node"], {})[row["pool"]] = row["beat_at"]
    found = {
        name: NodeState(
            ranges=sorted(ranges.get(name, [(row["first"], row["last"])])),
            beats=beats.get(name, {}),
            closed=row["closed"],
            first_at=row["first_at"],
        )
        for name, row in extent.items()
    }
    return found, rows, doubled


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
