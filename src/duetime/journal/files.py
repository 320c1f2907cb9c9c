"""A node's folder as its process writes it: one open segment, sealed by rename.

Not for several threads at once. Every method may raise OSError; after one, what was written so far is cut back to the
last whole group and the next write goes to a new segment, so that whatever could not be written can be written again.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

from duetime.journal.segments import LOCK, Lock, open_name, sealed_name, sync_folder


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

    @classmethod
    def create(cls, journal: Path, name: str, *, durable: bool) -> "NodeFiles":
        """The folder appears with its lock held: nobody can take the node for dead."""
        journal.mkdir(parents=True, exist_ok=True)
        hidden = journal / f".{name}"
        hidden.mkdir()
        lock = Lock.take(hidden, create=True)
        if lock is None:
            raise OSError(f"{hidden} is held by somebody else")
        node = hidden.rename(journal / name)
        if durable:
            sync_folder(journal)
        return cls(node, Lock(lock.handle, node / LOCK), durable=durable)

    @property
    def is_open(self) -> bool:
        return self._handle >= 0

    def write(self, data: bytes, last: int, *, sync: bool) -> None:
        """A group of whole lines, up to the entry `last`: all of it or none."""
        try:
            if self._handle < 0:
                self._open()
            self._write_all(data)
            if sync:
                os.fdatasync(self._handle)
        except OSError:
            self._abandon()
            raise
        self.size += len(data)
        self.last = last

    def sync(self) -> None:
        if self._handle >= 0:
            os.fdatasync(self._handle)

    def seal(self) -> None:
        """Close the open segment for good, if there is one. Entries must have been written to it."""
        if self._handle < 0:
            return
        if self._durable:
            os.fsync(self._handle)
        self._rename()

    def close(self) -> None:
        """Seal and leave: nothing will be written here again."""
        self.seal()
        self._lock.release(ended=True)

    def desert(self) -> None:
        """Leave what cannot be closed to a successor."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        self._lock.release(ended=False)

    def _open(self) -> None:
        path = self.node / open_name(self.last + 1)
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._first, self.size, self.opened_at = self.last + 1, 0, time.monotonic()
        if self._durable:
            sync_folder(self.node)

    def _write_all(self, data: bytes) -> None:
        written = os.write(self._handle, data)
        while written < len(data):
            written += os.write(self._handle, data[written:])

    def _rename(self) -> None:
        os.close(self._handle)
        self._handle = -1
        path = self.node / open_name(self._first)
        path.rename(self.node / sealed_name(self._first, self.last))
        if self._durable:
            sync_folder(self.node)

    def _abandon(self) -> None:
        """After a failed write the file may hold half a line, after a failed sync nobody knows what it holds."""
        if self._handle < 0:
            return
        with suppress(OSError):
            os.ftruncate(self._handle, self.size)
        with suppress(OSError):
            if self.size:
                self._rename()
            else:
                os.close(self._handle)
                (self.node / open_name(self._first)).unlink(missing_ok=True)
        self._handle = -1
