"""How many rows of a batch are pushed while it is under way, for whoever looks at its folder (the console does).

    <lake>/batches/<batch>/_progress/before           rows that an earlier round had pushed
    <lake>/batches/<batch>/_progress/<file's number>  rows of that accepted file that its task has pushed

The sum over these files is what is pushed. A task that runs again counts its file from the beginning, and steps that
were pushed before count as well, so nothing is counted twice. Only lakes that are local folders have it, mounted ones
included. Nothing relies on these files: a task that cannot write them goes on.
"""

import time
from pathlib import Path

import msgspec
from msgspec import Struct

from duetime.spark.lake.files import LocalFiles
from duetime.stores.bulk import Loaded

FOLDER = "_progress"
BEFORE = "before"
WRITE_S = 0.5


class PushedRows(Struct, frozen=True):
    rows: int


class RowProgress:
    """Counts what one task pushed. `folder` is where it is written, empty where nobody looks."""

    def __init__(self, folder: str, name: str) -> None:
        self._path = LocalFiles().path(folder) / name if folder else None
        self._rows = 0
        self._written_at = 0.0

    def count(self, answer: Loaded) -> None:
        """Add a step; writes at most every half a second."""
        self._rows += answer.step.last - answer.step.first
        if self._path is not None and time.monotonic() - self._written_at >= WRITE_S:
            self.write()

    def write(self) -> None:
        if self._path is None:
            return
        self._written_at = time.monotonic()
        try:
            write_rows(self._path, self._rows)
        except OSError:
            self._path = None


def write_rows(path: Path, rows: int) -> None:
    """Whoever reads the file finds it whole: it is written aside first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}")
    aside.write_bytes(msgspec.json.encode(PushedRows(rows)))
    aside.replace(path)
