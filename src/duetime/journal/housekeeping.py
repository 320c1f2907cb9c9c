"""Maintains journals that have ended and segments that are sealed: closes, ships and deletes them.

- **Close** the journal of a process that died. The open segment is sealed after its last valid line, with a `closed`
  entry appended. A line that was cut off when the process died is removed: no answer depended on it.
  Damage before the last valid line stays where it is, for readers to report.
- **Ship** sealed segments to any place that fsspec knows (a path, s3://, gs://, sftp:// ...). A segment counts as
  shipped when its copy was read back and is the same; its name is then added to the node's file `.shipped`. The copies
  have the same layout as the journal, so that a reader can read either. The credentials are those that the file
  system's own library finds in its environment.
- **Delete** sealed segments that are too old, or too large together, but with `ship_to` only after they were shipped.
  The folder of a node that ended is deleted some time after its last segment.

A process does this for its own node and for nodes of the same user that ended. Several processes may do it in one
folder at the same time.
"""

import importlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from duetime.journal.events import Draft, place_of, write_draft
from duetime.journal.options import JournalOptions
from duetime.journal.reader import Damage, read_segment
from duetime.journal.segments import (
    LOCK,
    SHIPPED,
    Lock,
    Segment,
    is_alive,
    open_name,
    own_nodes,
    sealed,
    sealed_name,
    segments,
    sync_folder,
)
from duetime.model.errors import InvalidSettings
from duetime.model.job import Event

SUCCESSOR = "successor"
QUIET_S = 3600.0
CHUNK = 1_048_576


# --- close


def close_dead_nodes(journal: Path) -> list[str]:
    """Close every node of this user whose process has ended; returns their names. Raises OSError.

    Several processes may do so concurrently.
    """
    return [node.name for node in own_nodes(journal) if close_if_dead(node)]


def close_if_dead(node: Path) -> bool:
    lock = Lock.acquire(node)
    if lock is None:
        return False
    ended = False
    try:
        _close(node)
        ended = True
    finally:
        lock.release(ended=ended)
    return True


def _close(node: Path) -> None:
    last, closed = 0, False
    tail: Segment | None = None
    for segment in segments(node):
        if tail:
            _seal(tail, last)
            tail = None
        if not segment.is_open:
            last, closed = segment.last, _end_of(segment).closed
        elif (end := _end_of(segment)).offset:
            os.truncate(segment.path, end.offset)
            last, closed, tail = end.seq, end.closed, segment
        else:
            segment.path.unlink()
    if not closed:
        last += 1
        tail = tail or Segment(node / open_name(last), last, 0)
        _append_closed(tail, node.name, last)
    if tail:
        _seal(tail, last)


class End(NamedTuple):
    """Where the last valid line ends, its seq, and whether it closes the node; End() if there is no valid line."""

    offset: int = 0
    seq: int = 0
    closed: bool = False


def _end_of(segment: Segment) -> End:
    end = End()
    for item, behind in read_segment(segment.path):
        if not isinstance(item, Damage):
            end = End(behind, item.seq, item.event is Event.CLOSED)
    return end


def _append_closed(segment: Segment, node: str, seq: int) -> None:
    now = time.time_ns() // 1_000_000
    draft = Draft(ts=now, event=Event.CLOSED, reason=SUCCESSOR)
    with segment.path.open("ab") as file:
        file.write(write_draft(draft, place_of(now, node, seq)))


def _seal(segment: Segment, last: int) -> None:
    with segment.path.open("ab") as file:
        os.fsync(file.fileno())
    segment.path.rename(segment.path.with_name(sealed_name(segment.first, last)))
    sync_folder(segment.path.parent)


# --- ship


class Shipper:
    """Ships the segments of this process's node and of this user's nodes that ended. It blocks, so call it in a thread.

    After the last round, `waiting` is how many sealed segments were not shipped, and `lag_s` the age of the oldest of
    them.
    """

    def __init__(self, options: JournalOptions, own: str) -> None:
        self.lag_s = 0.0
        self.waiting = 0
        self._options = options
        self._own = own
        self._system, self._root = _connect(options.ship_to)

    def run_once(self) -> int:
        """Ship all sealed segments, oldest first; answers how many. Raises OSError or an error of the file system's
        library.
        """
        open_ends = self._unshipped()
        count = 0
        try:
            while open_ends:
                self._ship(open_ends[0][1])
                open_ends.pop(0)
                count += 1
        finally:
            self.waiting = len(open_ends)
            self.lag_s = max(0.0, time.time() - open_ends[0][0]) if open_ends else 0.0
        return count

    def _unshipped(self) -> list[tuple[float, Path]]:
        found: list[tuple[float, Path]] = []
        for node in own_nodes(self._options.folder):
            if node.name != self._own and is_alive(node):
                continue
            done = shipped(node)
            for segment in sealed(node):
                if segment.path.name not in done and segment.path.exists():
                    found.append((segment.path.stat().st_mtime, segment.path))
        return sorted(found)

    def _ship(self, path: Path) -> None:
        node = path.parent
        target = f"{self._root}/{node.name}/{path.name}"
        size, check_sum = _measure_local(path)
        if not self._is_copy(target, size, check_sum):
            self._system.makedirs(f"{self._root}/{node.name}", exist_ok=True)
            # The copy gets its name when it is complete, so that a reader never sees half of it.
            part = f"{self._root}/{node.name}/.{path.name}.{os.getpid()}"
            self._system.put_file(str(path), part)
            self._system.mv(part, target)
            if not self._is_copy(target, size, check_sum):
                raise OSError(f"the copy {target} differs from {path}")
        with (node / SHIPPED).open("a") as file:
            file.write(f"{path.name}\n")

    def _is_copy(self, target: str, size: int, check_sum: int) -> bool:
        self._system.invalidate_cache()
        if not self._system.exists(target) or self._system.size(target) != size:
            return False
        found = 0
        with self._system.open(target, "rb") as file:
            while chunk := file.read(CHUNK):
                found = crc32(chunk, found)
        return found == check_sum


def _measure_local(path: Path) -> tuple[int, int]:
    size = check_sum = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            size += len(chunk)
            check_sum = crc32(chunk, check_sum)
    return size, check_sum


def _connect(url: str) -> tuple[Any, str]:
    try:
        core: Any = importlib.import_module("fsspec.core")
        system, root = core.url_to_fs(url)
    except ModuleNotFoundError as missing:
        raise InvalidSettings.lacks("journal_ship_to", "ship", missing) from None
    except (ImportError, ValueError) as error:
        raise InvalidSettings(f"journal_ship_to: {error}") from None
    return system, str(root).rstrip("/")


# --- delete


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
    """Delete old segments and folders; returns the segments. `own` is the node of this process. Raises OSError."""
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
    """Returns whether the folder has neither segments nor a lock, and has not changed for QUIET_S."""
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
