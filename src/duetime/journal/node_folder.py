"""A node's folder as its process writes it: one open segment, which is sealed by renaming it.

`write` and `detach` are for one thread at a time; `sync` and `seal`, which wait for the disk, may run beside them in
another thread. Every method may raise OSError. After a failed write the segment is cut back to the last whole group,
and the next write goes to a new segment, so that the caller can write the failed group again.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from duetime.journal.segments import LOCK, Lock, open_name, sealed_name, sync_folder


class Detached(NamedTuple):
    """A segment that gets no more entries and waits to be sealed. `first` and `last` are the seqs of its entries."""

    handle: int
    first: int
    last: int


class NodeFiles:
    """`last` is the seq of the last entry that was written, `size` the bytes in the open segment."""

    def __init__(self, node: Path, lock: Lock, *, durable: bool) -> None:
        self.node = node
        self.last = 0
        self.size = 0
        self.opened_at = 0.0
        self._lock = lock
        self._durable = durable
        self._handle = -1
        self._first = 0
        self._new_name = False
        self._detached: list[Detached] = []

    @classmethod
    def create(cls, journal: Path, name: str, *, durable: bool) -> "NodeFiles":
        """Make the folder under a hidden name, lock it, then rename it: no process can see the folder without a lock
        and take the node for dead.
        """
        journal.mkdir(0o700, parents=True, exist_ok=True)
        hidden = journal / f".{name}"
        hidden.mkdir(0o700)
        lock = Lock.take(hidden, create=True)
        if lock is None:
            raise OSError(f"{hidden} is held by somebody else")
        node = hidden.rename(journal / name)
        if durable:
            sync_folder(journal)
        lock.path = node / LOCK
        return cls(node, lock, durable=durable)

    @property
    def is_open(self) -> bool:
        return self._handle >= 0

    def write(self, data: bytes, last: int, *, sync: bool) -> None:
        """Write a group of whole lines, up to the entry `last`: all of it or none. `sync` waits for the disk."""
        try:
            if self._handle < 0:
                self._open()
            written = os.write(self._handle, data)
            while written < len(data):
                written += os.write(self._handle, data[written:])
            if sync:
                self.sync()
        except Exception:
            self._abandon()
            raise
        self.size += len(data)
        self.last = last

    def sync(self) -> None:
        """Wait until everything written so far is on the disk."""
        if self._handle >= 0:
            os.fdatasync(self._handle)
        if self._new_name:
            self._new_name = False
            sync_folder(self.node)

    def detach(self) -> None:
        """Set the open segment aside to be sealed; the next write opens a new one."""
        if self._handle >= 0:
            self._detached.append(Detached(self._handle, self._first, self.last))
            self._handle = -1

    def seal(self) -> None:
        """Seal the detached segments. If one fails, it and those behind it stay for the next call."""
        while self._detached:
            segment = self._detached[0]
            if self._durable:
                os.fsync(segment.handle)
            path = self.node / open_name(segment.first)
            path.rename(self.node / sealed_name(segment.first, segment.last))
            os.close(segment.handle)
            self._detached.pop(0)
            if self._durable:
                sync_folder(self.node)

    def close(self) -> None:
        """Seal all segments and delete the lock: nothing will be written here again."""
        self.detach()
        self.seal()
        self._lock.release(ended=True)

    def leave_to_successor(self) -> None:
        """Let go of a folder that cannot be closed, so that a successor can close it."""
        self.detach()
        for segment in self._detached:
            os.close(segment.handle)
        self._lock.release(ended=False)

    def _open(self) -> None:
        path = self.node / open_name(self.last + 1)
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._first, self.size, self.opened_at = self.last + 1, 0, time.monotonic()
        self._new_name = self._durable

    def _abandon(self) -> None:
        """Cut the open segment back and stop using it: after a failed write it may hold half a line, and after a
        failed sync nobody knows what it holds.
        """
        if self._handle < 0:
            return
        with suppress(OSError):
            os.ftruncate(self._handle, self.size)
        if self.size:
            self.detach()
            return
        with suppress(OSError):
            os.close(self._handle)
        self._handle = -1
        with suppress(OSError):
            (self.node / open_name(self._first)).unlink(missing_ok=True)
