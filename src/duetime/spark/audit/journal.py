"""The journal up to this moment: what is in the lake, and the complete lines of the segments still being written.

Open segments are copied first and the sealed ones ingested afterwards. A segment that is sealed in between is in both,
so entries that the lake has by then are left out of the copy. The table `events` only takes entries of sealed segments.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark.sql import DataFrame, Observation

from duetime.journal.registration import RegisteredNode
from duetime.journal.segments import open_name, parse
from duetime.model.errors import DuetimeError, InvalidRequest
from duetime.model.names import DEFAULT_POOL
from duetime.spark.ingest import transform as ingest
from duetime.spark.ingest.about import DamagedLines, Purge, about_events, known_nodes, read_ended
from duetime.spark.ingest.run import extents, find_damage, noted_purges, read_segments, run_ingest
from duetime.spark.lake.files import Files, files_for
from duetime.spark.lake.lake import Lake, Manifest
from duetime.spark.lake.nodes import Nodes, NodeState, join_nodes, without
from duetime.spark.load.batch_journal import BATCH_NODE
from duetime.spark.schemas import EVENTS, frame
from duetime.spark.store_view import StoreView

# --- segments that are still being written
#
# The complete lines of segments that are still being written, each read once, however often an audit looks.
#
# An audit that waits for a node looks every second, and a segment may have 64 MiB. So each look reads from where the
# one before it ended, and keeps what it found in files of its own. Runs on the driver; executors check the lines.


class OpenSegments:
    """`folder` is for the copies. `read_bytes` counts what was read of the journal."""

    def __init__(self, lake: Lake, files: Files, journal: str, folder: str) -> None:
        self._lake, self._files, self._journal, self._folder = lake, files, journal, folder
        self._places: dict[str, tuple[int, int]] = {}  # by path: the next byte and the number of its entry
        self._looks = 0
        self._kept: list[str] = []
        self._copies: list[str] = []
        self.damage: list[DamagedLines] = []
        self.read_bytes = 0

    def copy(self, ended: Collection[str]) -> dict[str, int]:
        """Copy the lines that are new; answers per node the last entry that a sealed segment's name speaks of.

        `ended` are nodes that write no more; they are not read.
        """
        self._looks += 1
        lasts: dict[str, int] = {}
        for node in self._files.list(self._journal):
            for file in self._files.list(node.path) if node.is_folder and node.name not in ended else []:
                if (segment := parse(Path(file.name))) is None:
                    continue
                if segment.is_open:
                    self._copy(node.name, file.path, segment.first)
                else:
                    lasts[node.name] = max(segment.last, lasts.get(node.name, 0))
        return lasts

    @property
    def has_events(self) -> bool:
        return bool(self._kept)

    def _copy(self, node: str, path: str, first: int) -> None:
        start, seq = self._places.get(path, (0, first))
        try:
            content = self._files.read(path, start)
        except FileNotFoundError:  # sealed since it was listed; the ingest that follows reads it
            return
        complete = content[: content.rfind(b"\n") + 1]  # the last line may not be complete yet
        if not complete:
            return
        # Named after its first entry, so that a damaged line is known by the number of its entry.
        self._copies.append(f"{self._folder}/{self._looks:06d}/{node}/{open_name(seq)}")
        self._lake.files.create(self._copies[-1], complete)
        self._places[path] = start + len(complete), seq + complete.count(b"\n")
        self.read_bytes += len(complete)

    def late(self, known: Nodes) -> tuple[DataFrame, Sequence[Purge]]:
        """EVENTS of all copies, those of earlier looks included, without those that are known; and their purges.

        They are written aside, because several queries follow.
        """
        spark, aside = self._lake.spark, f"{self._folder}/{self._looks:06d}"
        if self._copies:
            lines, seen = read_segments(spark, self._copies)
            lines.transform(ingest.good_events).write.parquet(f"{aside}.parquet")
            self.damage += find_damage(self._lake, seen.get["bad_files"].splitlines())[0]
            self._kept.append(f"{aside}.parquet")
            self._copies = []
        if not self._kept:
            return frame(spark, [], EVENTS), ()
        kept, noted = spark.read.schema(EVENTS).parquet(*self._kept), Observation()
        late = kept.transform(ingest.once).transform(ingest.without_known, known)
        late.observe(noted, *ingest.noted()).write.parquet(f"{aside}-late.parquet")
        return spark.read.schema(EVENTS).parquet(f"{aside}-late.parquet"), noted_purges(noted)


LOOK_EVERY_S = 1.0
TELL_EVERY_S = 10.0
NAMED_NODES = 3
FINISH_BATCH = "; it is a batch that has not ended: if it broke off, run the same schedule again, or say --assume-lost"


class JournalIncomplete(DuetimeError):
    """The journal has a gap, or a node is silent: nothing may be concluded from it."""

    code = "journal_incomplete"
    status = 409


@dataclass(frozen=True)
class JournalProblem:
    """What is wrong with the journal itself: `kind` is gap, damage or silent."""

    kind: str
    node: str
    detail: str


@dataclass(frozen=True)
class JournalNow:
    """What is known of the journal at this moment.

    `manifest` is that of the table `events`; `late` has the EVENTS of open segments that are not in the table, and
    `purges` all purges of both. `lasts` has per node the last entry that a sealed segment's name speaks of.
    """

    manifest: Manifest
    late: DataFrame
    late_rows: int
    nodes: dict[str, NodeState]
    damage: list[DamagedLines]
    lasts: dict[str, int] = field(default_factory=dict[str, int])
    purges: Sequence[Purge] = ()
    registered: Mapping[str, RegisteredNode] = field(default_factory=dict[str, RegisteredNode])

    def node(self, name: str) -> NodeState:
        """What has been read of a node's entries."""
        return self.nodes.get(name, NodeState())

    def silent(self, pool: str, after: int) -> list[str]:
        """The nodes that may still send entries about what happened before `after`."""
        return sorted(name for name in {**self.nodes, **self.registered} if self._is_silent(name, pool, after))

    def _is_silent(self, name: str, pool: str, after: int) -> bool:
        node, record = self.node(name), self.registered.get(name)
        if record is None or record.at > after:
            return node.is_silent(pool, after)
        # A node that signed off is not silent: what it still owes is reported as a gap.
        is_over = record.last is not None or record.abandoned or node.closed
        return not is_over and not node.has_beat(pool, after)

    def awaited(self, pool: str, after: int) -> list[str]:
        """The silent nodes, and those whose last entries are still on their way."""
        behind = [name for name, record in self.registered.items() if (record.last or 0) > self.node(name).last]
        return sorted({*self.silent(pool, after), *behind})

    def problems(self, pool: str = DEFAULT_POOL, after: int | None = None) -> list[JournalProblem]:
        """Gaps and damage and, if `after` is given, the nodes that may still send entries from before it."""
        found = [
            JournalProblem("damage", one.node, f"{one.file}, line {one.line}: {one.problem}")
            for one in self.damage
            if not self.node(one.node).has(one.seq)  # another copy of the segment had it whole
        ]
        abandoned = {name for name, record in self.registered.items() if record.abandoned}
        for name in sorted({*self.nodes, *self.registered} - abandoned):
            explained = {one.seq for one in self.damage if one.node == name}
            known_last = max(self.lasts.get(name, 0), self._signed_off(name))
            for first, last in without(self.node(name).gaps(known_last), explained):
                found.append(JournalProblem("gap", name, f"entries {first} to {last} are missing ({last - first + 1})"))
        if after is not None:
            for name in self.silent(pool, after):
                found.append(JournalProblem("silent", name, self._silence(name)))
        return found

    def _silence(self, name: str) -> str:
        """Why a node counts as silent, and where its entries are or who can write them."""
        record = self.registered.get(name)
        if record and not record.journal:
            return (
                f"process {record.pid} on {record.host} has no journal, so what it does is missing here: stop it and "
                "start it again, which makes it journal"
            )
        place = self._place(name)
        is_batch = name.startswith(BATCH_NODE) and not place  # a server may be called batch, and registers its folder
        if name not in self.nodes:
            heard = f"registered, and nothing of it has arrived{place}"
        elif is_batch:
            heard = "only some of its entries have arrived"
        else:
            heard = "no heartbeat since the scan of the store, and not closed"
        return f"{heard}{FINISH_BATCH if is_batch else ''}"

    def _place(self, name: str) -> str:
        record = self.registered.get(name)
        return f"; it writes to {record.folder} on {record.host}" if record and record.folder else ""

    def _signed_off(self, name: str) -> int:
        """The number of the last entry, as the node itself said when it signed off; 0 if it has not."""
        record = self.registered.get(name)
        return record.last or 0 if record else 0


@dataclass(frozen=True)
class Wait:
    """How long to wait for missing entries; `on_step` is called with a text that names the nodes waited for."""

    seconds: float
    on_step: Callable[[str], None] = lambda step: None


def read_until(
    lake: Lake,
    journal: str,
    run: str,
    *,
    registered: Callable[[], Mapping[str, RegisteredNode]],
    awaited: Callable[[JournalNow], Sequence[str]],
    wait: Wait,
) -> JournalNow:
    """Read the journal again and again until no node is awaited or the time is up.

    What is still missing then is among the result's `problems`. `registered` is asked after each look: if the store was
    wiped before its scan, living nodes register all nodes again before their next heartbeat.
    """
    deadline = time.monotonic() + wait.seconds
    tell_at = wait.seconds
    opened = open_segments(lake, journal, run)
    while True:
        is_last = time.monotonic() >= deadline  # a look may take longer than the wait
        now = replace(read_now(lake, journal, opened), registered=registered())
        nodes, left_s = awaited(now), max(deadline - time.monotonic(), 0)
        if not nodes or is_last:
            return now
        if left_s <= tell_at:
            others = f" and {len(nodes) - NAMED_NODES} more" if len(nodes) > NAMED_NODES else ""
            wait.on_step(f"waiting up to {left_s:.0f} s for the heartbeat of {', '.join(nodes[:NAMED_NODES])}{others}")
            tell_at = left_s - TELL_EVERY_S
        time.sleep(LOOK_EVERY_S)


def open_segments(lake: Lake, journal: str, run: str) -> OpenSegments:
    files = files_for(lake.spark, journal)
    return OpenSegments(lake, files, files.home(journal), f"{lake.scratch(run)}/open-{time.monotonic_ns()}")


def read_now(lake: Lake, journal: str, opened: OpenSegments) -> JournalNow:
    # Sealed segments are listed before they are read, so that one which is sealed meanwhile is not taken for a gap.
    lasts = opened.copy(read_ended(lake, about_events(lake.events.manifest()).ended))
    run_ingest(lake, journal)
    manifest = lake.events.manifest()
    about = about_events(manifest)
    known = known_nodes(lake, about)
    late, purges = opened.late(known)
    late_nodes, rows, _ = extents(late) if opened.has_events else ({}, 0, False)
    # A damaged line of a copy may have been found in the sealed file, too.
    known_damage = {(one.node, one.seq) for one in about.damage}
    fresh = [one for one in opened.damage if (one.node, one.seq) not in known_damage]
    # Nodes are taken from the entries, not from folders: a folder may only hold copies of another node's segments.
    nodes = join_nodes(known, late_nodes)
    found = sorted({*about.purges, *purges})
    return JournalNow(manifest, late, rows, nodes, [*about.damage, *fresh], lasts, found)


def whole_nodes(lake: Lake, now: JournalNow) -> list[str]:
    """The registered nodes that have ended and whose entries are all in the lake."""
    known = known_nodes(lake, about_events(now.manifest))
    return [
        name
        for name, record in now.registered.items()
        if (node := known.get(name)) and node.closed and not node.gaps(record.last or 0)
    ]


def forget_whole_nodes(lake: Lake, now: JournalNow, view: StoreView) -> None:
    """Remove the registrations of `whole_nodes`. Each program with an engine makes one, so that they would only grow.

    A server has no call for it.
    """
    view.forget(whole_nodes(lake, now))


def check_complete(now: JournalNow, pool: str, after: int, assume_lost: Iterable[str]) -> list[JournalProblem]:
    """Return the problems of the nodes in `assume_lost`; raise JournalIncomplete if other nodes have any."""
    lost = set(assume_lost)
    if unknown := lost - set(now.nodes) - set(now.registered):
        raise InvalidRequest(f"--assume-lost: the journal knows no node {', '.join(sorted(unknown))}")
    problems = now.problems(pool, after)
    if left := [one for one in problems if one.node not in lost]:
        named = "; ".join(f"{one.node}: {one.detail}" for one in left[:5])
        raise JournalIncomplete(
            f"the journal is not complete, so nothing was done: {named}. Bring the segments back, or say "
            "--assume-lost NODE if they are gone for good",
            nodes=sorted({one.node for one in left}),
        )
    return problems
