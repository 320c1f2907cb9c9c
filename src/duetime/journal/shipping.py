"""Copies sealed segments to another place, any that fsspec knows (a path, s3://, gs://, sftp:// ...).

A segment counts as shipped when its copy was read back and is the same; its name is then added to the node's file
`.shipped`. The copies have the same layout as the journal, so that a reader can read either. The credentials are those
that the file system's own library finds in its environment.
"""

import importlib
import os
import time
from pathlib import Path
from typing import Any
from zlib import crc32

from duetime.journal.options import JournalOptions
from duetime.journal.retention import shipped
from duetime.journal.segments import SHIPPED, is_alive, own_nodes, sealed
from duetime.model.errors import InvalidSettings

CHUNK = 1_048_576


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
