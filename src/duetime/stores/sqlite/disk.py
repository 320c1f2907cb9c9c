"""Room on the disk of a SQLite file: pushes are refused before it is full, so that deliveries and acks go on.

A step that removes jobs needs room too: it is written to SQLite's log first, and when the log is moved into the file,
the file may have to grow. On a disk that is full to the last byte neither is possible. So pushes are refused while
there is still some room. In case other programs take the rest, there is a reserve file next to the jobs that is deleted
when SQLite finds no room. One of the next pushes writes it anew.

A SQLite file does not become smaller when jobs are deleted; the next jobs fill the pages that are free in it. So pushes
go on with half of the reserve if the file itself has room for as much as the reserve.

The reserve file grows with the log. The background thread makes it longer before the log has become that long, so that
no push waits for it. A push that still finds it too small goes on only when it is large enough.
"""

import functools
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from duetime.model.errors import StoreFull

log = logging.getLogger("duetime.sqlite")

Work = Callable[[], None]


class BackgroundThread:
    """Runs work that no caller has to wait for, such as writing the reserve file: one piece after the other, in order.

    The thread starts with the first piece of work and ends at `close`. `hand_over` takes no lock, so it may be called
    in a signal handler.
    """

    def __init__(self) -> None:
        self._inbox: SimpleQueue[Work | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def hand_over(self, work: Work) -> bool:
        """Returns False if it will not be done: the thread is closed, or the system starts no further threads."""
        if self._is_closed:
            return False
        if self._thread is None:
            self._thread = thread = threading.Thread(target=self._main, name="duetime-sqlite-background", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                self._thread = None
                return False
        self._inbox.put(work)
        return True

    def close(self) -> None:
        """Does what was handed over, and ends. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._inbox.put(None)
        if self._thread is not None:
            self._thread.join()

    def _main(self) -> None:
        while (work := self._inbox.get()) is not None:
            try:
                work()
            except Exception:
                # A caller that needs the result does the work itself, and gets the error.
                log.exception("sqlite_background_work_failed")


MOST_RESERVE = 64 * 1_048_576
LEAST_RESERVE_FILE = 128 * 1024
ROTATE_BYTES = 1021
LEAST_LOG_AHEAD = 256 * 1024
"""The reserve file is grown for a log of 1.5 times the present length, or of this many bytes more."""
PAGE_BYTES = 4096
CHECKPOINT_PAGES = 4000
"""The log is moved into the file at about 16 MiB: large enough to gather many writes of the same pages."""
SYNCED_CHECKPOINT_PAGES = 1000
"""As above, for a lone caller each of whose commits is synced: to make the log longer takes a sync twice as long as to
write over it, so a short log that is soon written over is quicker."""
PUSH_BYTES = 64 * 1_048_576
"""More than one push can take of the disk, the log and the indexes included."""
UNCHECKED_PUSHES = 100
UNCHECKED_S = 0.05
"""Where the reserve is large and the disk has room, at most this many pushes, for this long, skip the check."""
LOGGED_BYTES = 32 * 1024
"""Twice what a push of a small job adds to the log. While the log grows towards the length of the reserve file, only
as many pushes skip the check as cannot bring it there.
"""


class DiskReserve:
    """Pushes leave `reserve` bytes of the disk free. None means 64 MiB, or an eighth of a small disk; 0 means nothing.

    The log is moved into the file when it reaches a quarter of the reserve at the latest. The reserve file is about as
    large as the log has been, so that deleting it makes room for moving the log into the file.
    """

    def __init__(self, path: Path, reserve: int | None, background: BackgroundThread) -> None:
        # Strings are cheaper here than Path objects: every push uses all three.
        self._folder, self._log, self._reserve_file = str(path.parent), f"{path}-wal", f"{path}-reserve"
        if reserve is None:
            disk = os.statvfs(self._folder)
            reserve = min(MOST_RESERVE, disk.f_blocks * disk.f_frsize // 8)
        self._reserve, self._largest_log = reserve, 0
        self._unchecked_pushes, self._check_at = 0, 0.0
        self._background, self._is_growth_asked = background, False
        self._growing = threading.Lock()  # held while the reserve file is written or deleted
        self._is_released = False
        pages = reserve // 4 // PAGE_BYTES
        self.checkpoint_pages = min(CHECKPOINT_PAGES, max(pages, 16)) if reserve else CHECKPOINT_PAGES

    def refusal(self, free_in_file: int = 0) -> StoreFull | None:
        """Called for a push for which `has_room` found no room: the error for it, or None if there is room after all,
        because the file itself has `free_in_file` bytes of free pages, or because the reserve file was only too short.
        Then it writes the reserve file. Called in the writer's thread.
        """
        free, log = self._free(), self.note_log()
        wanted = self._wanted(log)
        missing = max(wanted - _size(self._reserve_file), 0)
        kept = self._reserve // 2 if free_in_file >= self._reserve else self._reserve
        self.check_next_push()
        if free - missing >= kept and (not missing or self._grow(wanted)):
            return None
        return StoreFull(
            f"disk of the SQLite file must have {self._reserve} bytes free for a push, got {free}",
            free=free,
            reserve=self._reserve,
        )

    def has_room(self) -> bool:
        """Returns whether a push may be added. False also if the reserve file must be written first, which only
        `refusal` does. For any thread: if two call it together, one push too many may skip the check.
        """
        if self._unchecked_pushes and time.monotonic() < self._check_at:
            self._unchecked_pushes -= 1
            return True
        if not self._reserve:
            return True
        log, reserve_file, spare = self.note_log(), _size(self._reserve_file), self._free() - self._reserve
        if reserve_file < self._wanted(log) or spare < 0:
            self._unchecked_pushes = 0
            return False
        unchecked = min(spare // PUSH_BYTES, UNCHECKED_PUSHES) if self._reserve >= PUSH_BYTES else 0
        if reserve_file < self._reserve // 4:
            unchecked = min(unchecked, max(reserve_file - log, 0) // LOGGED_BYTES)
            soon = self._wanted(log + max(log // 2, LEAST_LOG_AHEAD))
            if reserve_file < soon and log >= LEAST_RESERVE_FILE // 2:
                self._grow_soon(soon)
        self._unchecked_pushes, self._check_at = unchecked, time.monotonic() + UNCHECKED_S
        return True

    def check_next_push(self) -> None:
        """Let the next push check the disk."""
        self._unchecked_pushes = 0

    def _free(self) -> int:
        disk = os.statvfs(self._folder)
        return disk.f_bavail * disk.f_frsize

    def release(self) -> bool:
        """Delete the reserve file to make room. Returns False if there is none. Called in the writer's thread."""
        self.check_next_push()
        self._is_released = True  # a thread that writes it stops, because a file in use keeps its room when deleted
        try:
            with self._growing:
                os.unlink(self._reserve_file)
        except FileNotFoundError:
            return False
        finally:
            self._is_released = False
        return True

    def note_log(self) -> int:
        """The greatest length of the log so far. Called by checks, and before the close, which deletes the log."""
        self._largest_log = max(self._largest_log, _size(self._log))
        return self._largest_log

    def rebuild_reserve_file(self) -> None:
        """Called after the close: SQLite deletes the log with its last connection, and the next log needs room."""
        if self._reserve:
            self._grow(self._wanted(self.note_log()))

    def _wanted(self, log: int) -> int:
        """The length of the reserve file for a log of this length."""
        return min(max(LEAST_RESERVE_FILE, 1 << log.bit_length()), self._reserve // 4)

    def _grow_soon(self, wanted: int) -> None:
        """Let the background thread grow the reserve file, because the log may need that soon."""
        if not self._is_growth_asked:
            self._is_growth_asked = True
            if not self._background.hand_over(lambda: self._grow_ahead(wanted)):
                self._is_growth_asked = False

    def _grow_ahead(self, wanted: int) -> None:
        try:
            self._grow(wanted, spare=self._reserve)
        finally:
            self._is_growth_asked = False

    def _grow(self, wanted: int, *, spare: int = 0) -> bool:
        """Grow the reserve file to `wanted` bytes. Returns False if that would leave less than `spare` bytes free."""
        with self._growing:
            missing = wanted - _size(self._reserve_file)
            if missing > 0 and spare and self._free() - missing < spare:
                return False
            return missing <= 0 or self._append(missing)

    def _append(self, missing: int) -> bool:
        # Random bytes, because some file systems compress. Drawing takes longer than writing, so one block is drawn,
        # and rotated a little each time, because some file systems store equal blocks once.
        block = os.urandom(LEAST_RESERVE_FILE)
        try:
            private = functools.partial(os.open, mode=0o600)
            with open(self._reserve_file, "ab", buffering=0, opener=private) as file:
                while missing > 0 and not self._is_released:
                    missing -= file.write(block[:missing])
                    block = rotated(block)
        except OSError:
            return False
        return missing <= 0


def rotated(block: bytes) -> bytes:
    """The same bytes in other blocks."""
    return block[ROTATE_BYTES:] + block[:ROTATE_BYTES]


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
