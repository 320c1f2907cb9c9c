"""One task of `schedule`: push one accepted file, step by step, each with its mark. Runs on executors.

Where the file is cut depends on the file alone, so a task that runs again, anywhere, meets the marks of its
predecessor. What it answers comes from the store: a step whose mark is there answers what it answered then.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from duetime.client.event_loop import run
from duetime.spark.load.batch import ReconcileFirst, RowProgress
from duetime.spark.load.batch_journal import FileJournal, SegmentFile
from duetime.spark.load.chunks import Cutter, Portion
from duetime.spark.load.job_columns import SCHEMA, arrow, kernels
from duetime.spark.load.options import MARK_LIFE_MS, LoadOptions
from duetime.spark.load.task_push import PushCounts, ask_store, patiently, push_portions
from duetime.stores.base import Mark

COUNTS = ("rows", "accepted", "kept", "repeated", "replaced", "cancelled")
RESULTS = ", ".join(["file string", *(f"{name} long" for name in COUNTS)])


class FilePart(NamedTuple):
    """An accepted file's number in the batch and, if there is a journal, the node and the numbers of its entries."""

    number: int
    node: str = ""
    first: int = 0
    rows: int = 0


class FilePusher:
    """Pickled to executors. `files` says by name which file is which; `marks` is what the names of marks begin with.

    `progress` is the folder in which tasks write how far they are, empty for nowhere.
    """

    def __init__(
        self, options: LoadOptions, files: dict[str, FilePart], epoch: str, marks: str, *, progress: str = ""
    ) -> None:
        self._options = options
        self._progress = progress
        self._files = files
        self._epoch = epoch
        self._marks = marks

    def push(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Takes the rows of files, each file whole and in its order; yields one row of RESULTS per file."""
        for name, tables in _by_file(batches):
            tally = self._push_file(name, tables)
            counts = {one: getattr(tally, one) for one in COUNTS}
            yield arrow.RecordBatch.from_pylist([{"file": name, **counts}])

    def _push_file(self, name: str, tables: Iterator[Any]) -> PushCounts:
        options, part = self._options, self._files[name]
        if run(patiently(lambda: ask_store(options))).epoch != self._epoch:
            raise ReconcileFirst(f"the store was wiped while the batch {options.batch!r} was pushed: reconcile first")

        def make_mark(step: int, digest: bytes) -> Mark:
            return Mark(f"{self._marks}/{part.number}/{step}", digest, MARK_LIFE_MS, brief=True)

        portions = Cutter(options.namespace, make_mark).cut(tables)
        progress = RowProgress(self._progress, str(part.number))
        try:
            if options.journal:
                return run(push_journaled(portions, options, part, progress))
            return run(push_portions(portions, options, writers=options.writers, on_step=progress.count))
        finally:
            progress.write()


async def push_journaled(
    portions: Iterable[Portion], options: LoadOptions, part: FilePart, progress: RowProgress
) -> PushCounts:
    """Push a file's rows; their entries are on the disk when this returns."""
    assert options.journal is not None
    with SegmentFile(Path(options.journal) / part.node, part.first, part.first + part.rows - 1) as file:
        journal = FileJournal(options, part.node, part.first, file)
        try:
            return await push_portions(
                portions, options, writers=options.writers, on_loaded=journal.write, on_step=progress.count
            )
        finally:
            await journal.close()


def _by_file(batches: Iterator[Any]) -> Iterator[tuple[str, Iterator[Any]]]:
    """The rows of one file after the other: the rows of a file always come together."""
    pieces = _pieces(batches)
    piece = next(pieces, None)
    while piece is not None:
        name = piece[0]

        def of_this_file(first: tuple[str, Any], name: str = name) -> Iterator[Any]:
            nonlocal piece
            piece = first
            while piece is not None and piece[0] == name:
                yield piece[1]
                piece = next(pieces, None)

        tables = of_this_file(piece)
        yield name, tables
        for _ in tables:
            pass


def _pieces(batches: Iterator[Any]) -> Iterator[tuple[str, Any]]:
    """Tables of SCHEMA with the file that they are from."""
    for batch in batches:
        table = arrow.Table.from_batches([batch])
        names = table.column("file")
        changes = kernels.indices_nonzero(kernels.not_equal(names.slice(1), names.slice(0, max(len(names) - 1, 0))))
        for first, last in pairwise([0, *[one + 1 for one in changes.to_pylist()], table.num_rows]):
            if first < last:
                yield names[first].as_py(), table.slice(first, last - first).select(SCHEMA.names).cast(SCHEMA)
