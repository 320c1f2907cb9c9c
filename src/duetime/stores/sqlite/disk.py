"""Room on the disk of a SQLite file: where pushes end, and what is kept back so that deliveries and acks go on.

Also a step that removes jobs needs room: it goes into SQLite's log first, and when the log goes into the file, that may
have to grow. On a disk that is full to the last byte neither is possible. So pushes are refused while there is still
some room, and for the case that other programs take the rest there is ballast: a file beside the jobs that is removed
when SQLite finds no room. It is written anew before the next push. Called in the writer's thread.
"""

import os
from contextlib import suppress
from pathlib import Path

from duetime.errors import StoreFull

MOST_RESERVE = 64 * 1_048_576
LEAST_BALLAST = 128 * 1024
PAGE_BYTES = 4096
CHECKPOINT_PAGES = 4000
"""About 16 MiB of log before it goes into the file: large enough to gather many writes of the same pages."""


class DiskReserve:
    """`reserve` bytes stay free for all but pushes; None takes 64 MiB, on a small disk an eighth; 0 keeps nothing.

    A quarter of it bounds the log, and the ballast, which is as large as the log: so the log always fits into the file.
    """

    def __init__(self, path: Path, reserve: int | None) -> None:
        # Plain text, because each push asks for all three.
        self._folder, self._log, self._ballast = str(path.parent), f"{path}-wal", f"{path}-ballast"
        if reserve is None:
            disk = os.statvfs(self._folder)
            reserve = min(MOST_RESERVE, disk.f_blocks * disk.f_frsize // 8)
        self._reserve, self._largest_log = reserve, 0
        pages = reserve // 4 // PAGE_BYTES
        self.checkpoint_pages = min(CHECKPOINT_PAGES, max(pages, 16)) if reserve else CHECKPOINT_PAGES

    def refusal(self) -> StoreFull | None:
        """Why nothing may be added now, if so. A few microseconds, unless the ballast has to be written."""
        if not self._reserve:
            return None
        disk = os.statvfs(self._folder)
        free, missing = disk.f_bavail * disk.f_frsize, self._missing()
        if free >= self._reserve + missing and (not missing or self._keep(missing)):
            return None
        return StoreFull(
            f"{free} bytes are free on the disk of the SQLite file; pushes end at {self._reserve}",
            free=free,
            reserve=self._reserve,
        )

    def release(self) -> bool:
        """Give the ballast's room to whoever needs it; False if there is none."""
        with suppress(FileNotFoundError):
            os.unlink(self._ballast)
            return True
        return False

    def keep_what_is_left(self) -> None:
        """The log is gone with its last connection, and there must be room for the next one."""
        if self._reserve and (missing := self._missing()):
            self._keep(missing)

    def _missing(self) -> int:
        """Bytes by which the ballast is too small for the log."""
        self._largest_log = max(self._largest_log, _size(self._log))
        wanted = min(max(LEAST_BALLAST, 1 << self._largest_log.bit_length()), self._reserve // 4)
        return max(wanted - _size(self._ballast), 0)

    def _keep(self, missing: int) -> bool:
        try:
            with open(self._ballast, "ab", buffering=0) as file:
                while missing > 0:
                    # Noise, because some file systems compress.
                    missing -= file.write(os.urandom(min(missing, LEAST_BALLAST)))
        except OSError:
            return False
        return True


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
