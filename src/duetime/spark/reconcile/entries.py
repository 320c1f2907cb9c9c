"""The journal entries that a reconcile writes: a node of its own, sealed and closed when the run ends.

Where the journal is not a local folder, the node is written beside and its sealed segments are copied there.
"""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from duetime.journal.lines import write_text
from duetime.journal.options import JournalOptions
from duetime.journal.segments import sealed
from duetime.journal.writer import Writer
from duetime.spark.audit.store import StoreView
from duetime.spark.lake.files import Files, LocalFiles

INSTANCE = "reconcile"


class RepairEntries:
    """The node begins with the first entry, so that a run without entries leaves no node behind."""

    def __init__(self, files: Files, journal: str, view: StoreView) -> None:
        self._files, self._journal, self._view = files, journal, view
        self._writer: Writer | None = None
        self._folder = Path()

    @property
    def node(self) -> str:
        return self._writer.node if self._writer else ""

    def write(self, drafts: Sequence[bytes]) -> None:
        """Write drafts that are JSON already; they are on disk when this returns. Raises OSError."""
        if self._writer is None:
            self._folder = self._files.path(self._journal) if isinstance(self._files, LocalFiles) else _beside()
            self._writer = Writer(JournalOptions(self._folder, instance=INSTANCE))
            self._writer.open()
            self._view.register(self._writer.node)

        def numbered(place: bytes, seq: int) -> list[bytes]:
            return [write_text(b"%b%d,%b" % (place, at, draft[1:])) for at, draft in enumerate(drafts, seq)]

        self._writer.append_lines(numbered)
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
        self._view.sign_off(self.node, self._writer.seq)


def _beside() -> Path:
    return Path(tempfile.mkdtemp(prefix="duetime-reconcile-"))
