"""What the manifest of `events` says about the journal: its nodes, its damage, every purge, and the days with entries
of task groups.

A purge is one entry and ends many jobs, whatever day they are from, so a pipeline that follows jobs needs all purges
there ever were. They are few, and kept here, so that no pipeline reads the whole table for them. Runs on the driver.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct, field
from pyspark.sql import DataFrame, SparkSession

from duetime.model.ids import IdMaker
from duetime.model.job import Event
from duetime.spark.lake.lake import Lake, Manifest
from duetime.spark.lake.nodes import NodeState
from duetime.spark.schemas import LONG, TEXT, columns, frame

PURGES = columns(pool=TEXT, namespace=TEXT, queue=TEXT, ts=LONG, reason=TEXT, event=TEXT)
"""The columns of EVENTS that a purge uses; `reason` names the states that were purged."""


class DamagedLines(Struct, frozen=True):
    """`seq` is the number of the entry on that line, 0 if the file's name does not say."""

    file: str
    line: int
    problem: str
    node: str = ""
    seq: int = 0


class Purge(NamedTuple):
    pool: str
    namespace: str
    queue: str
    ts: int
    states: str


class EventsAbout(Struct, frozen=True):
    """`ended` are the files of nodes that have ended. `others` are segments that were read although `nodes` does not
    have all entries that their names speak of: damaged ones, and copies that were renamed. `damage` names the first
    damaged lines; `damaged_files` has the number of damaged lines of each file that has any.
    """

    nodes: dict[str, NodeState] = field(default_factory=dict[str, NodeState])
    ended: Sequence[str] = ()
    others: Sequence[str] = ()
    damage: Sequence[DamagedLines] = ()
    damaged_files: dict[str, int] = field(default_factory=dict[str, int])
    events: int = 0
    purges: Sequence[Purge] = ()
    group_days: Sequence[str] = ()

    @property
    def damaged(self) -> int:
        return sum(self.damaged_files.values())


def about_events(manifest: Manifest) -> EventsAbout:
    return msgspec.convert(manifest.about, EventsAbout)


def purge_frame(spark: SparkSession, purges: Iterable[Purge]) -> DataFrame:
    """PURGES"""
    return frame(spark, [(*purge, Event.PURGED.value) for purge in purges], PURGES)


# --- nodes that have ended
#
# The nodes of the journal that have ended and are in the lake without a gap: nothing more can come of them.
#
# They move from the manifest of `events`, which every run writes anew, to files next to it that are never changed; the
# manifest names those files. So the manifest of a pool that has had ten thousand nodes holds only the living ones.
# Files that were written anew as one are deleted a day later, like those of a table. Runs on the driver.


ENDED_FOLDER = "_nodes"
MOST_FILES = 16
"""More files than this are written anew as one."""


def read_ended(lake: Lake, files: Sequence[str]) -> dict[str, NodeState]:
    """The ended nodes of these files, by name."""
    found: dict[str, NodeState] = {}
    for file in files:
        lasts = msgspec.json.decode(lake.files.read(_path(lake, file)), type=dict[str, int])
        found |= {name: NodeState(ranges=[(1, last)], closed=True) for name, last in lasts.items()}
    return found


def known_nodes(lake: Lake, about: EventsAbout) -> dict[str, NodeState]:
    """All nodes of which something is in the lake."""
    return {**read_ended(lake, about.ended), **about.nodes}


def put_ended(
    lake: Lake, nodes: Mapping[str, NodeState], files: Sequence[str]
) -> tuple[dict[str, NodeState], list[str]]:
    """Write the nodes that have ended to a file; returns the others, and the files that a manifest is to name."""
    ended = {name: node for name, node in nodes.items() if node.closed and len(node.ranges) == 1 and not node.gaps()}
    if not ended:
        return dict(nodes), list(files)
    kept = list(files)
    everything = ended
    if len(kept) >= MOST_FILES:
        everything, kept = {**read_ended(lake, kept), **ended}, []
    name = f"{IdMaker().make()}.json"
    lake.files.create(_path(lake, name), msgspec.json.encode({one: node.last for one, node in everything.items()}))
    return {one: node for one, node in nodes.items() if one not in ended}, [*kept, name]


def replaced_files(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """The files that a manifest does not name any more, as paths below the folder of `events`."""
    return [f"{ENDED_FOLDER}/{file}" for file in before if file not in after]


def _path(lake: Lake, file: str) -> str:
    return f"{lake.events.folder}/{ENDED_FOLDER}/{file}"
