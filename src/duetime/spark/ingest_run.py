"""The pipeline `ingest`: sealed segments of the journal -> the table `events`, each entry once.

A Structured Streaming query over the journal's folder, checkpointed in the lake: a run takes the segments that are new,
or goes on for ever. What makes it safe to repeat is not the checkpoint but (node, seq): the manifest says which ranges
of every node are in the table, and rows that are there already are left out, so a lost checkpoint, a doubled or a
renamed segment adds nothing. Driver code; rows stay on the executors.
"""

import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import Struct, field
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from duetime.clock import Duration, duration_ms
from duetime.errors import InvalidRequest
from duetime.journal.lines import read_line
from duetime.journal.segments import parse
from duetime.spark import ingest
from duetime.spark.lake import Lake, Manifest, PublishConflict, Staged
from duetime.spark.lake_files import files_for
from duetime.spark.lake_nodes import NodeState, join_nodes

PER_BATCH = 4 * 1024**3
"""Bytes of segments per micro-batch: each is one published step."""
MAX_AGE = "3650d"
"""Spark passes over files older than the newest by more than this; a segment that comes late must not be."""
NAMED_DAMAGE = 1000


class Damage(Struct, frozen=True):
    """`seq` is the entry that stood there, 0 where the file's name does not tell."""

    file: str
    line: int
    problem: str
    node: str = ""
    seq: int = 0


class EventsAbout(Struct, frozen=True):
    """What the manifest of `events` says about the journal."""

    nodes: dict[str, NodeState] = field(default_factory=dict[str, NodeState])
    damage: Sequence[Damage] = ()
    damaged: int = 0
    events: int = 0


class Ingested(Struct):
    """What a run did."""

    segments: int = 0
    events: int = 0
    repeated: int = 0
    damaged: int = 0
    damage: list[Damage] = field(default_factory=list[Damage])
    version: int = 0


def about_events(manifest: Manifest) -> EventsAbout:
    return msgspec.convert(manifest.about, EventsAbout)


def run_ingest(
    lake: Lake,
    journal: str,
    *,
    every: Duration | None = None,
    told: Callable[[Ingested], None] = lambda so_far: None,
) -> Ingested:
    """Take in what is sealed and new; with `every`, again at that interval until the process is interrupted.

    Safe to run again, also beside another run.
    """
    total = Ingested(version=lake.events.manifest().version)
    errors: list[BaseException] = []

    def take(lines: DataFrame, number: int) -> None:
        try:
            _add(total, ingest_lines(lake, lines))
        except BaseException as error:  # it comes out of the query as a Java error without its own words
            errors.append(error)
            raise
        told(total)

    query = _start(lake, journal, take, every)
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
    except Exception:
        if errors:
            raise errors[0] from None
        raise
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
    damage = find_damage(lake, observed["bad_files"])
    done = Ingested(segments=len(observed["files"]), damage=damage, damaged=len(damage))
    while True:
        try:
            return _publish(lake, staged, done)
        except PublishConflict:
            continue


def _publish(lake: Lake, staged: Staged, done: Ingested) -> Ingested:
    manifest = lake.events.manifest()
    about = about_events(manifest)
    incoming, rows, doubled = extents(staged.read())
    overlapping = [name for name, state in incoming.items() if state.overlaps(about.nodes.get(name, NodeState()))]
    if doubled or overlapping:
        rows_before = rows
        known = lake.events.read(manifest=manifest).where(F.col("node").isin(overlapping))
        fresh = staged.read().transform(ingest.once).transform(ingest.new_only, known)
        doubled_in, staged = staged, lake.events.stage(fresh)
        doubled_in.drop()
        incoming, rows, _ = extents(staged.read())
        done.repeated += rows_before - rows
    known_places = {(one.file, one.line) for one in about.damage}
    damage = [one for one in done.damage if (one.file, one.line) not in known_places]
    if not rows and not damage:
        staged.drop()
        done.version = manifest.version
        return done
    new_about = EventsAbout(
        nodes=join_nodes(about.nodes, incoming),
        damage=[*about.damage, *damage][:NAMED_DAMAGE],
        damaged=about.damaged + len(damage),
        events=about.events + rows,
    )
    published = lake.events.publish(staged, after=manifest, about=msgspec.to_builtins(new_about))
    done.events, done.version = rows, published.version
    return done


def extents(events: DataFrame) -> tuple[dict[str, NodeState], int, bool]:
    """Per node what there is; how many rows; whether any (node, seq) stands twice."""
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


def find_damage(lake: Lake, files: Iterable[str]) -> list[Damage]:
    """Where the damage in these files is. On the driver, a file at a time: there are few such files."""
    found: list[Damage] = []
    for file in sorted(map(unquote, files)):  # Spark escapes the paths that it tells
        content = files_for(lake.spark, file).read(file)
        for number, line in enumerate(_lines(content), 1):
            try:
                read_line(line)
            except ValueError as error:
                found.append(_damage(file, number, str(error)))
            if len(found) == NAMED_DAMAGE:
                return found
    return found


def _lines(content: bytes) -> Iterator[bytes]:
    """Newlines end a line, and nothing else does."""
    return iter(io.BytesIO(content))


def _damage(file: str, line: int, problem: str) -> Damage:
    segment = parse(Path(file))
    return Damage(
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
