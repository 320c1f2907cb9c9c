"""The nodes of the journal that have ended and are in the lake without a gap: nothing more can come of them.

They move from the manifest of `events`, which every run writes anew, to files beside it that are never changed; the
manifest names those files. So the manifest of a pool that has had ten thousand nodes holds only the living ones. Files
that were written anew as one are deleted a day later, like those of a table. Runs on the driver.
"""

from collections.abc import Mapping, Sequence

import msgspec

from duetime.model.ids import IdMaker
from duetime.spark.lake.lake import Lake
from duetime.spark.lake.nodes import NodeState

FOLDER = "_nodes"
MOST_FILES = 16
"""More files than this are written anew as one."""


def read_ended(lake: Lake, files: Sequence[str]) -> dict[str, NodeState]:
    """The ended nodes of these files, by name."""
    found: dict[str, NodeState] = {}
    for file in files:
        lasts = msgspec.json.decode(lake.files.read(_path(lake, file)), type=dict[str, int])
        found |= {name: NodeState(ranges=[(1, last)], closed=True) for name, last in lasts.items()}
    return found


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
    return [f"{FOLDER}/{file}" for file in before if file not in after]


def _path(lake: Lake, file: str) -> str:
    return f"{lake.events.folder}/{FOLDER}/{file}"
