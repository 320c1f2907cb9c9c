"""The journal that a reconcile writes: a node of its own, sealed and closed when the run ends.

Where the journal is not a local folder, the node is written beside and its sealed segments are copied there.
"""

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from duetime.journal.events import Draft
from duetime.journal.options import JournalOptions
from duetime.journal.segments import sealed
from duetime.journal.writer import Writer
from duetime.spark.lake.files import Files, LocalFiles

INSTANCE = "reconcile"


class RepairEntries:
    """Begins with the first entry: a run that has nothing to say leaves no node behind."""

    def __init__(self, files: Files, journal: str) -> None:
        self._files, self._journal = files, journal
        self._writer: Writer | None = None
        self._folder = Path()

    @property
    def node(self) -> str:
        return self._writer.node if self._writer else ""

    def write(self, drafts: Iterable[Draft]) -> None:
        """On the disk when this returns. Raises OSError."""
        if self._writer is None:
            self._folder = self._files.path(self._journal) if isinstance(self._files, LocalFiles) else _beside()
            self._writer = Writer(JournalOptions(self._folder, instance=INSTANCE))
            self._writer.open()
        self._writer.append(drafts)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        if not isinstance(self._files, LocalFiles):
            for segment in sealed(self._folder / self.node):
                target = f"{self._journal}/{self.node}/{segment.path.name}"
                self._files.create(target, segment.path.read_bytes())
            shutil.rmtree(self._folder, ignore_errors=True)


def _beside() -> Path:
    return Path(tempfile.mkdtemp(prefix="duetime-reconcile-"))
