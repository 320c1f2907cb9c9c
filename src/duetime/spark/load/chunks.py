"""Rows cut into the steps that they are pushed in.

A step is at most STEP_JOBS jobs or STEP_BYTES of bodies of one queue with the same options. Where a file is cut depends
on its rows alone, not on the batches in which Spark hands them over: the same file gives the same steps with the same
numbers each time, and the marks of `schedule` rely on that. Runs on executors.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from duetime.model.job import STEP_BYTES, STEP_JOBS, IfExists, Priority
from duetime.model.names import Queue
from duetime.spark.load.job_columns import arrow, kernels
from duetime.spark.load.options import Action
from duetime.stores.base import Mark
from duetime.stores.bulk import JobColumns, LoadStep

MarkMaker = Callable[[int, bytes], Mark | None]
"""Makes a step's mark from the step's number in its file and its digest."""


class Portion(NamedTuple):
    """Steps of one queue and action that share their columns."""

    queue: Queue
    columns: JobColumns
    steps: list[LoadStep]
    action: Action = Action.KEEP


class Cutter:
    """Cuts the rows of one file or partition, which come in their order."""

    def __init__(self, namespace: str, make_mark: MarkMaker) -> None:
        self._namespace = namespace
        self._make_mark = make_mark
        self._number = 0

    def cut(self, tables: Iterable[Any]) -> Iterator[Portion]:
        """The last step of a table waits for the next table, whose first rows may belong to it."""
        left: Any = None
        for table in tables:
            rows = table if left is None else arrow.concat_tables([left, table])
            ranges = list(_ranges(rows))
            if ranges:
                left = rows.slice(ranges[-1][0])
                yield from self._portions(rows, ranges[:-1])
        if left is not None:
            yield from self._portions(left, list(_ranges(left)))

    def _portions(self, rows: Any, ranges: list[tuple[int, int, int]]) -> Iterator[Portion]:
        start = 0
        while start < len(ranges):
            end = start
            while end < len(ranges) and ranges[end][2] == ranges[start][2]:
                end += 1
            yield self._portion(rows, [(first, last) for first, last, _ in ranges[start:end]])
            start = end

    def _portion(self, rows: Any, ranges: list[tuple[int, int]]) -> Portion:
        begin = ranges[0][0]
        some = rows.slice(begin, ranges[-1][1] - begin)
        columns, action = job_columns_of(some), Action(some.column("action")[0].as_py())
        if_exists = IfExists.KEEP if action is Action.KEEP else IfExists.REPLACE
        steps: list[LoadStep] = []
        for first, last in ranges:
            ids = columns.ids.slice(first - begin, last - first)
            mark = self._make_mark(self._number, _digest(columns, action, first - begin, last - begin))
            distinct = kernels.count_distinct(ids).as_py() == last - first
            steps.append(LoadStep(first - begin, last - begin, mark, distinct, if_exists))
            self._number += 1
        return Portion(Queue(self._namespace, some.column("queue")[0].as_py()), columns, steps, action)


def job_columns_of(rows: Any) -> JobColumns:
    """The rows of one group (see `_groups`) as columns."""
    attributes = rows.column("attributes")
    return JobColumns(
        _whole(rows.column("id")),
        _whole(rows.column("body")),
        _whole(rows.column("due_at")),
        rows.column("ttl")[0].as_py(),
        rows.column("tries")[0].as_py(),
        Priority(rows.column("priority")[0].as_py()),
        None if attributes.null_count == len(attributes) else _whole(attributes),
    )


def _whole(column: Any) -> Any:
    """The column as one array whose buffers begin with its first row."""
    combined = column.combine_chunks()
    chunk = combined.chunk(0) if hasattr(combined, "chunk") else combined
    return chunk if chunk.offset == 0 else arrow.concat_arrays([chunk])


def _ranges(rows: Any) -> Iterator[tuple[int, int, int]]:
    """For each step: its first row, the row after its last, and the number of its group."""
    if not rows.num_rows:
        return
    sizes = kernels.binary_length(rows.column("body")).to_numpy()
    ends = sizes.cumsum(dtype="int64")
    for group, (first, last) in enumerate(_groups(rows)):
        at = first
        while at < last:
            end = min(at + STEP_JOBS, last)
            before = int(ends[at - 1]) if at else 0
            if int(ends[end - 1]) - before > STEP_BYTES:
                end = max(at + 1, int(ends.searchsorted(before + STEP_BYTES, side="right")))
            yield at, end, group
            at = end


def _groups(rows: Any) -> Iterator[tuple[int, int]]:
    """Runs of rows that differ in id, body, due_at and attributes only."""
    differs = None
    for name in ("action", "queue", "ttl", "tries", "priority"):
        column = rows.column(name)
        changed = kernels.not_equal(column.slice(1), column.slice(0, len(column) - 1))
        differs = changed if differs is None else kernels.or_(differs, changed)
    without = kernels.is_null(rows.column("attributes"))
    differs = kernels.or_(differs, kernels.xor(without.slice(1), without.slice(0, len(without) - 1)))
    starts = [0, *[one + 1 for one in kernels.indices_nonzero(differs).to_pylist()], rows.num_rows]
    yield from pairwise(starts)


def _digest(columns: JobColumns, action: Action, first: int, last: int) -> bytes:
    """A digest of everything that the step pushes."""
    digest = hashlib.blake2b(digest_size=16)
    said = (columns.ttl_ms, columns.tries, int(columns.priority), last - first, action.value)
    digest.update(repr(said).encode())
    for values in (columns.ids, columns.bodies):
        _, offsets, data = values.buffers()
        bounds = memoryview(offsets).cast("i")
        begin, end = bounds[first], bounds[last]
        digest.update(kernels.binary_length(values.slice(first, last - first)).to_numpy().tobytes())
        if data is not None:
            digest.update(memoryview(data)[begin:end])
    digest.update(columns.due_at.slice(first, last - first).to_numpy().tobytes())
    if columns.attributes is not None:
        digest.update(repr(columns.attributes.slice(first, last - first).to_pylist()).encode())
    return digest.digest()
