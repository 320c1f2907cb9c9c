"""The folders and files of a journal: one folder per node, which holds the node's segments and its lock.

    <journal>/<node>/000000000001-000000004711.journal    sealed: never changed again
    <journal>/<node>/000000004712.open                    being written
    <journal>/<node>/lock                                 held while the process lives, deleted at a clean end

A node is one life of one process; its name is the instance's name and a ULID. A segment's name says which entries it
holds (first and last seq), so that a reader knows what is missing without opening a file.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LOCK = "lock"
SHIPPED = ".shipped"
"""The names of the node's segments that were shipped, one per line."""

_SEALED = re.compile(r"(\d{12})-(\d{12})\.journal", re.ASCII)
_OPEN = re.compile(r"(\d{12})\.open", re.ASCII)


class Segment(NamedTuple):
    """`first` and `last` are the seqs of its entries; `last` is 0 while the segment is written."""

    path: Path
    first: int
    last: int

    @property
    def is_open(self) -> bool:
        return self.last == 0


def open_name(first: int) -> str:
    return f"{first:012}.open"


def sealed_name(first: int, last: int) -> str:
    return f"{first:012}-{last:012}.journal"


def parse(path: Path) -> Segment | None:
    """The segment that the file name describes, None if it is not a segment."""
    if match := _SEALED.fullmatch(path.name):
        return Segment(path, int(match[1]), int(match[2]))
    if match := _OPEN.fullmatch(path.name):
        return Segment(path, int(match[1]), 0)
    return None


def nodes(journal: Path) -> list[Path]:
    """The folders of all nodes, sorted by name; empty if there is no journal."""
    try:
        return sorted(path for path in journal.iterdir() if path.is_dir() and not path.name.startswith("."))
    except FileNotFoundError:
        return []


def own_nodes(journal: Path) -> list[Path]:
    """The nodes that this user may change. Other users that share the journal's folder maintain theirs."""
    return [node for node in nodes(journal) if os.access(node, os.R_OK | os.W_OK | os.X_OK)]


def segments(node: Path) -> list[Segment]:
    """All segments of a node in the order of their entries.

    A segment that is being sealed is listed under its old name, its new one, or both.
    """
    try:
        found = [segment for path in node.iterdir() if (segment := parse(path))]
    except FileNotFoundError:
        return []
    return sorted(found, key=lambda segment: (segment.first, segment.is_open))


def sealed(node: Path) -> Iterator[Segment]:
    return (segment for segment in segments(node) if not segment.is_open)


def find(node: Path, first: int) -> Segment | None:
    """The segment that begins with this entry, open or sealed; None if it was deleted."""
    return next((segment for segment in segments(node) if segment.first == first), None)


class Lock:
    """The right to write into a node's folder. It ends with the process, however that ends.

    A forked child closes its copy of the handle, or the lock would be held until the child ends, too.
    """

    def __init__(self, handle: int, path: Path) -> None:
        self.handle = handle
        self.path = path
        _held.add(self)

    @classmethod
    def acquire(cls, node: Path, *, create: bool = False) -> "Lock | None":
        """Returns None if another process holds the lock, or if the node ended cleanly and left no lock file."""
        path = node / LOCK
        try:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
        except FileNotFoundError:
            return None
        try:
            _lock(handle, shared=False)
        except OSError:
            os.close(handle)
            return None
        return cls(handle, path)

    def release(self, *, ended: bool) -> None:
        """With `ended`, nothing will be written into the folder any more, so the lock file is deleted."""
        if ended:
            self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Does nothing in a forked child, which has closed its copy already."""
        if self in _held:
            _held.discard(self)
            os.close(self.handle)


_held: set[Lock] = set()


def _close_inherited() -> None:
    for lock in [*_held]:
        lock.close()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_close_inherited)


def _lock(handle: int, *, shared: bool) -> None:
    """Raises OSError if another process holds the lock."""
    import fcntl  # noqa: PLC0415 - Windows has none, and imports this module

    fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def is_alive(node: Path) -> bool:
    """Returns whether a process holds the node's lock."""
    try:
        handle = os.open(node / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        _lock(handle, shared=True)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Make renames and new names in a folder survive a loss of power."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
