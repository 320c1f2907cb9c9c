"""The journal entries that a task writes itself: a node of its own, sealed, closed and signed off by that task.

Used by the tasks of `reconcile` and of `.save()`, where the journal is a folder that executors reach. A task that is
killed, such as the slower one of two speculative tasks, leaves its node open: the driver closes it (`close_left`).
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

from duetime.journal.events import write_text
from duetime.journal.housekeeping import close_if_dead
from duetime.journal.options import JournalOptions
from duetime.journal.segments import LOCK, segments
from duetime.journal.writer import Numbered, Writer
from duetime.spark.store_view import StoreView

KILLED_S = 10.0
"""How long the driver waits for the processes of killed tasks to end; Spark gives them two seconds."""
CHECK_EVERY_S = 0.1
FLUSH_S = 120.0
FLUSH_EVERY = 25_000
"""Entries that wait in memory, while as many are being written. A task that dies loses them, and the next run finds
their jobs in the store.
"""


class TaskEntries:
    """One node. It begins with the first entry, so that a task without entries leaves no node behind.

    The node's name begins with `instance`, the same for all tasks of a run. `deliver` is called with the node's folder
    when all of its segments are sealed.
    """

    def __init__(
        self, folder: Path, view: StoreView, *, instance: str, deliver: Callable[[Path], None] = lambda node: None
    ) -> None:
        self._folder, self._view, self._instance, self._deliver = folder, view, instance, deliver
        self._writer: Writer | None = None
        self._begun = 0
        self._written: Future[None] = Future()
        self._written.set_result(None)

    @property
    def node(self) -> str:
        return self._writer.node if self._writer else ""

    def write(self, drafts: Sequence[bytes]) -> None:
        """Write drafts that are JSON already. Otherwise as `append`."""
        self.append(lambda place, seq: number(drafts, place, seq))

    def append(self, numbered: Numbered) -> None:
        """Write lines that the caller makes; they are on disk when `close` returns. Raises what the write raised."""
        writer = self._writer or self._begin()
        writer.append_lines(numbered, write_soon=False)
        if writer.seq - self._begun >= FLUSH_EVERY:
            self._written.result(FLUSH_S)
            self._begun, self._written = writer.seq, Future()
            writer.flush_to(self._written)

    def _begin(self) -> Writer:
        writer = Writer(JournalOptions(self._folder, instance=self._instance))
        writer.open()
        self._writer = writer
        self._view.register(writer.node)
        return writer

    def close(self) -> None:
        """Raises OSError if not everything could be written; then the node does not sign off."""
        if self._writer is None:
            return
        try:
            self._writer.flush(FLUSH_S)
        finally:
            self._writer.close()
        self._deliver(self._folder / self.node)
        self._view.sign_off(self.node, self._writer.seq)


def number(drafts: Sequence[bytes], place: bytes, seq: int) -> list[bytes]:
    """The journal's lines for drafts (JSON objects), numbered from `seq` on; `place` is what each line begins with."""
    return [write_text(b"%b%d,%b" % (place, at, draft[1:])) for at, draft in enumerate(drafts, seq)]


def close_left(journal: Path, instance: str, view: StoreView) -> None:
    """Close the nodes of a run whose tasks were killed, and sign them off, so that no reader waits for their entries.

    What such a task did is in the journal all the same: the task that ran in its place met its marks. A task that is
    still running after KILLED_S keeps its node; a later run closes it.
    """
    deadline = time.monotonic() + KILLED_S
    for node in sorted(journal.glob(f"{instance}-*")):
        while (node / LOCK).exists() and not close_if_dead(node) and time.monotonic() < deadline:
            time.sleep(CHECK_EVERY_S)
        record = view.registered().get(node.name)
        if record and record.last is None and not (node / LOCK).exists():
            view.sign_off(node.name, segments(node)[-1].last)
