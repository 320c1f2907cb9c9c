"""Room on the disk of a SQLite file: pushes are refused before it is full, so that deliveries and acks go on.

A step that removes jobs needs room too: it is written to SQLite's log first, and when the log is moved into the file,
the file may have to grow. On a disk that is full to the last byte neither is possible. So pushes are refused while
there is still some room. In case other programs take the rest, there is ballast: a file beside the jobs that is deleted
when SQLite finds no room. One of the next pushes writes it anew. Everything here is called in the writer's thread,
except at the opening and the closing of the store, and `has_room`.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

from duetime.errors import StoreFull

MOST_RESERVE = 64 * 1_048_576
LEAST_BALLAST = 128 * 1024
TURN = 1021
PAGE_BYTES = 4096
CHECKPOINT_PAGES = 4000
"""The log is moved into the file at about 16 MiB: large enough to gather many writes of the same pages."""
SYNCED_CHECKPOINT_PAGES = 1000
"""As above, for a lone caller each of whose commits is synced: to make the log longer takes a sync twice as long as to
write over it, so a short log that is soon written over is quicker."""
PUSH_BYTES = 64 * 1_048_576
"""More than one push can take of the disk, the log and the indexes included."""
UNSEEN_PUSHES = 100
UNSEEN_S = 0.05
"""Where the reserve is large and there is room for more pushes, so many go without a look at the disk, for so long."""


class DiskReserve:
    """Pushes leave `reserve` bytes of the disk free. None means 64 MiB, or an eighth of a small disk; 0 means nothing.

    The log is moved into the file when it reaches a quarter of the reserve at the latest. The ballast is about as large
    as the log has been, so that deleting it makes room for moving the log into the file.
    """

    def __init__(self, path: Path, reserve: int | None) -> None:
        # Strings are cheaper here than Path objects: every push uses all three.
        self._folder, self._log, self._ballast = str(path.parent), f"{path}-wal", f"{path}-ballast"
        if reserve is None:
            disk = os.statvfs(self._folder)
            reserve = min(MOST_RESERVE, disk.f_blocks * disk.f_frsize // 8)
        self._reserve, self._largest_log = reserve, 0
        self._unseen_pushes, self._look_at = 0, 0.0
        pages = reserve // 4 // PAGE_BYTES
        self.checkpoint_pages = min(CHECKPOINT_PAGES, max(pages, 16)) if reserve else CHECKPOINT_PAGES

    def refusal(self) -> StoreFull | None:
        """The error for a push if nothing may be added now. Takes microseconds, unless the ballast must be written."""
        if self.has_room():
            return None
        free, missing = self._free(), self._missing()
        if self._spares(free - missing) and (not missing or self._keep(missing)):
            return None
        self._unseen_pushes = 0
        return StoreFull(
            f"{free} bytes are free on the disk of the SQLite file; pushes end at {self._reserve}",
            free=free,
            reserve=self._reserve,
        )

    def has_room(self) -> bool:
        """Whether a push may be added. False also if the ballast must be written, which only `refusal` does. For any
        thread: if two of them come at once, a push too many goes without a look.
        """
        if self._unseen_pushes and time.monotonic() < self._look_at:
            self._unseen_pushes -= 1
            return True
        return not self._reserve or (not self._missing() and self._spares(self._free()))

    def _free(self) -> int:
        disk = os.statvfs(self._folder)
        return disk.f_bavail * disk.f_frsize

    def _spares(self, free: int) -> bool:
        """Whether so many free bytes are enough, and for how many pushes."""
        spare = free - self._reserve
        self._unseen_pushes = min(max(spare, 0) // PUSH_BYTES, UNSEEN_PUSHES) if self._reserve >= PUSH_BYTES else 0
        self._look_at = time.monotonic() + UNSEEN_S
        return spare >= 0

    def release(self) -> bool:
        """Delete the ballast to make room; False if there is none."""
        self._unseen_pushes = 0
        with suppress(FileNotFoundError):
            os.unlink(self._ballast)
            return True
        return False

    def see_log(self) -> None:
        """Remember how large the log is. Called at times and before the close, which deletes the log."""
        self._largest_log = max(self._largest_log, _size(self._log))

    def keep_what_is_left(self) -> None:
        """Called after the close: SQLite deletes the log with its last connection, and the next log needs room."""
        if self._reserve and (missing := self._missing()):
            self._keep(missing)

    def _missing(self) -> int:
        """Bytes by which the ballast is too small for the log."""
        self.see_log()
        wanted = min(max(LEAST_BALLAST, 1 << self._largest_log.bit_length()), self._reserve // 4)
        return max(wanted - _size(self._ballast), 0)

    def _keep(self, missing: int) -> bool:
        # Random bytes, because some file systems compress. Drawing takes longer than writing, so they are drawn
        # once, and turned a little for each block, because some file systems keep equal blocks once.
        noise = os.urandom(LEAST_BALLAST)
        try:
            with open(self._ballast, "ab", buffering=0) as file:
                while missing > 0:
                    missing -= file.write(noise[:missing])
                    noise = noise[TURN:] + noise[:TURN]
        except OSError:
            return False
        return True


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
