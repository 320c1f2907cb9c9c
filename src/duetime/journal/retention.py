"""Deletes sealed segments that are too old or too large together, but with `ship_to` only after they were shipped.

A process deletes its own segments and those of nodes of the same user that ended; two processes that do so at once do
no harm. The folder of a node that ended is deleted some time after its last segment.
"""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from duetime.journal.options import JournalOptions
from duetime.journal.segments import LOCK, SHIPPED, is_alive, own_nodes, sealed, segments

QUIET_S = 3600.0


class Retained(NamedTuple):
    path: Path
    size: int
    sealed_at: float


def shipped(node: Path) -> set[str]:
    """The names of the node's segments that have a verified copy elsewhere."""
    try:
        return set((node / SHIPPED).read_text().split())
    except FileNotFoundError:
        return set()


def delete_old(options: JournalOptions, own: str) -> list[Path]:
    """Delete what may go now; answers the deleted segments. `own` is the node of this process. Raises OSError."""
    ours = [node for node in own_nodes(options.folder) if node.name == own or not is_alive(node)]
    gone: list[Path] = []
    for kept in _too_many(options, ours):
        kept.path.unlink(missing_ok=True)
        gone.append(kept.path)
    for node in ours:
        if node.name != own and _is_left(node):
            shutil.rmtree(node, ignore_errors=True)
    return gone


def _is_left(node: Path) -> bool:
    """Whether the folder has neither segments nor a lock, and has not changed for QUIET_S."""
    try:
        quiet = time.time() - node.stat().st_mtime > QUIET_S
    except FileNotFoundError:
        return False
    return quiet and not (node / LOCK).exists() and not segments(node)


def _too_many(options: JournalOptions, ours: list[Path]) -> Iterator[Retained]:
    found = sorted((kept for node in ours for kept in _deletable(options, node)), key=lambda kept: kept.sealed_at)
    total = sum(_size(segment.path) for node in own_nodes(options.folder) for segment in sealed(node))
    oldest = time.time() - options.retention_s if options.retention_s else 0.0
    for kept in found:
        if kept.sealed_at >= oldest and (not options.max_size or total <= options.max_size):
            return
        total -= kept.size
        yield kept


def _deletable(options: JournalOptions, node: Path) -> Iterator[Retained]:
    copied = shipped(node) if options.ship_to else None
    for segment in sealed(node):
        if copied is None or segment.path.name in copied:
            try:
                stat = segment.path.stat()
            except FileNotFoundError:
                continue
            yield Retained(segment.path, stat.st_size, stat.st_mtime)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
