"""`journal`: the nodes of a journal, and the end of a pool's."""

import socket
from pathlib import Path
from typing import Annotated, Any

import typer

from duetime.cli.config import ConfigOption
from duetime.cli.history import JournalOption, journal_folder
from duetime.cli.options import Target, takes_options
from duetime.cli.output import Answer, relative, safe
from duetime.client.store_link import on_store
from duetime.journal import pool_journal
from duetime.journal.registered_nodes import RegisteredNode, registered
from duetime.journal.segments import is_alive, nodes, segments
from duetime.model.clock import SystemClock, rfc3339
from duetime.model.errors import InvalidSettings, NotFound
from duetime.model.masking import mask
from duetime.stores.base import Store


@takes_options
def list_nodes(target: Target, journal: JournalOption = None, config: ConfigOption = None) -> None:
    """List the nodes of the journal: who wrote it, how much, and whether it still writes.

    With a store's URL also the nodes that its pool knows, wherever they write.
    """
    known = on_store(target.store, registered) if target.store else {}
    try:
        here = nodes(journal_folder(target, journal, config))
    except InvalidSettings:
        if not known:
            raise
        here = []
    found = [_node(path) for path in here]
    names = {node["node"] for node in found}
    found += [_registered(name, node) for name, node in sorted(known.items()) if name not in names]
    now = SystemClock().now_ms()
    Answer(as_json=target.json).table(
        found,
        {
            "node": [node["node"] for node in found],
            "state": [node["state"] for node in found],
            "segments ": [f"{node['segments']:,}" for node in found],
            "bytes ": [f"{node['bytes']:,}" for node in found],
            "sealed up to ": [f"{node['last']:,}" for node in found],
            "written": [relative(node["written_at"], now) if node["written_at"] else "" for node in found],
            "folder": [safe(node["folder"]) for node in found],
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
        "folder": str(path.parent),
    }


def _registered(name: str, node: RegisteredNode) -> dict[str, Any]:
    """A node that the pool's store knows: its files if they are on this host, else what its record says."""
    path = Path(node.folder) / name
    if node.host == socket.gethostname() and Path(name).name == name and path.is_dir():
        return _node(path)
    is_over = node.last is not None or node.abandoned
    return {
        "node": name,
        "state": ("closed" if is_over else "elsewhere") if node.journal else "no journal",
        "segments": 0,
        "bytes": 0,
        "last": node.last or 0,
        "written_at": 0,
        "folder": f"{node.host}:{node.folder}" if node.host else "",
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
    began = on_store(target.address, _end)
    answer.tell({"since": began}, f"The journal that began {rfc3339(began)} has ended.")


async def _end(store: Store) -> int:
    found = await pool_journal.known(store)
    if found is None:
        raise NotFound("this store keeps no journal")
    await pool_journal.end(store)
    return found.since
