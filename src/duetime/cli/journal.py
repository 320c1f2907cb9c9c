"""`journal`: the nodes of a journal, and the end of a pool's."""

from pathlib import Path
from typing import Annotated, Any

import typer

from duetime.cli.config import ConfigOption
from duetime.cli.history import JournalOption, journal_folder
from duetime.cli.options import Target, takes_options
from duetime.cli.output import Answer, relative
from duetime.clock import SystemClock, rfc3339
from duetime.errors import NotFound
from duetime.journal import pool_journal
from duetime.journal.segments import is_alive, nodes, segments
from duetime.settings import mask
from duetime.stores.base import Store


@takes_options
def list_nodes(target: Target, journal: JournalOption = None, config: ConfigOption = None) -> None:
    """List the nodes of the journal: who wrote it, how much, and whether it still writes."""
    found = [_node(path) for path in nodes(journal_folder(target, journal, config))]
    now = SystemClock().now_ms()
    Answer(as_json=target.json).table(
        found,
        {
            "node": [node["node"] for node in found],
            "state": [node["state"] for node in found],
            "segments ": [f"{node['segments']:,}" for node in found],
            "bytes ": [f"{node['bytes']:,}" for node in found],
            "sealed up to ": [f"{node['last']:,}" for node in found],
            "written": [relative(node["written_at"], now) for node in found],
        },
    )


def _node(path: Path) -> dict[str, Any]:
    known = segments(path)
    stats = [segment.path.stat() for segment in known if segment.path.exists()]
    return {
        "node": path.name,
        "state": _state(path),
        "segments": len(known),
        "bytes": sum(stat.st_size for stat in stats),
        "last": max((segment.last for segment in known), default=0),
        "written_at": max((int(stat.st_mtime * 1000) for stat in stats), default=0),
    }


def _state(path: Path) -> str:
    if is_alive(path):
        return "writing"
    return "dead" if any(segment.is_open for segment in segments(path)) else "closed"


@takes_options
def end(
    target: Target,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """End the journal of a pool: servers and programs may use its store without one again.

    Stop them first: who journals goes on and takes the pool back when it starts again. Jobs that come in meanwhile are
    on no record, so audit and reconcile cannot cover them.
    """
    answer = Answer(as_json=target.json)
    answer.confirm(f"End the journal of {mask(target.address)}?", yes=yes)
    began = target.with_store(_end, "give the store's own URL with --url: sqlite:///..., redis://...")
    answer.tell({"since": began}, f"The journal that began {rfc3339(began)} has ended.")


async def _end(store: Store) -> int:
    found = await pool_journal.known(store)
    if found is None:
        raise NotFound("this store keeps no journal")
    await pool_journal.end(store)
    return found.since
