"""The writer of the data source: the rows of a task become jobs.

Tasks may run more than once, and there is one job per id: ids come with the rows or are derived from them, and a push
keeps what exists. With a batch's name each step also carries a mark of its content, so that a task that runs again over
the same rows adds nothing even after they were delivered and acked. In a pool that journals, each task writes the
entries of its jobs as a node of its own. If a repetition cuts its rows differently, only the
ids protect them, which is why `duetime.spark.schedule` exists. `write` runs on executors, the rest on the driver.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from duetime.client.event_loop import run
from duetime.model.errors import InvalidRequest, InvalidSettings
from duetime.model.ids import IdMaker
from duetime.spark.load.batch_journal import StepEntries, with_journal
from duetime.spark.load.chunks import Cutter, Portion
from duetime.spark.load.job_columns import arrow, job_columns, kernels
from duetime.spark.load.job_rows import KNOWN, check_columns
from duetime.spark.load.options import MARK_LIFE_MS, Action, BadRecords, LoadOptions, read_options
from duetime.spark.load.task_entries import TaskEntries, close_left
from duetime.spark.load.task_push import PushCounts, ask_store, push_portions
from duetime.spark.session import SPARK
from duetime.spark.source.reader import JOBS
from duetime.spark.store_view import StoreView
from duetime.stores.base import Mark
from duetime.stores.bulk import Loaded

if TYPE_CHECKING or SPARK >= (4, 1):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:  # StreamLoadWriter refuses to be made
    DataSourceStreamArrowWriter = object

SPARKS_OWN = {"path", "checkpointlocation"}
STORES_OWN = tuple(name for name in JOBS.names if name not in KNOWN)
"""The columns that jobs in a store have and new jobs have not. INSERT INTO a view brings them, as null."""
_log = logging.getLogger(__name__)
SORTED_ROWS = 200_000
SORTED_BYTES = 64 * 1_048_576
"""How many rows and bytes are sorted by due time at once; unsorted rows cost Redis 1.6 times as much."""

SORT_KEYS = [
    (name, "ascending") for name in ("action", "queue", "priority", "ttl", "tries", "has_attributes", "due_at", "id")
]


@dataclass
class TaskDone(WriterCommitMessage):
    """What one task pushed."""

    rows: int
    accepted: int
    kept: int


class LoadWriter(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options: LoadOptions = run(with_journal(read_write_options(options, schema)))
        self._batch = self._options.batch or IdMaker().make()
        self._instance = _instance()
        self._now_ms: int = run(ask_store(self._options)).now  # the same for all tasks and their repetitions

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _push(iterator, self._options, self._batch, self._now_ms, self._instance)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _close_nodes(self._options, self._instance)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Pushed jobs cannot be taken back; say how many there are."""
        _log.error("load_aborted %s", _partly(messages))
        _close_nodes(self._options, self._instance)


class StreamLoadWriter(DataSourceStreamArrowWriter):
    """Spark repeats a micro-batch with the same number and rows after a crash, so ids made of those are the same."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        if SPARK < (4, 1):
            raise InvalidSettings(
                'writeStream.format("duetime") needs Spark 4.1; '
                "writeStream.foreachBatch with duetime.spark.schedule works in 4.0"
            )
        self._options: LoadOptions = run(with_journal(read_write_options(options, schema)))
        self._instance = _instance()
        if not self._options.batch and "id" not in schema.names:
            raise InvalidSettings("a stream without a column id needs the option batch: its ids are derived from it")
        changes = {"change", "if_exists"} & set(schema.names) or self._options.if_exists is not Action.KEEP
        if changes and not self._options.batch:
            raise InvalidSettings("a stream of changes needs the option batch: a repeated micro-batch is known by it")

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        now_ms: int = run(ask_store(self._options)).now
        return _push(iterator, self._options, f"{self._options.batch}/{_micro_batch()}", now_ms, self._instance)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _close_nodes(self._options, self._instance)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _close_nodes(self._options, self._instance)


def read_write_options(options: Mapping[str, str], schema: StructType) -> LoadOptions:
    """Raises InvalidRequest before anything is pushed if the columns cannot be jobs."""
    read = read_options({name: value for name, value in options.items() if name.lower() not in SPARKS_OWN})
    kinds = check_columns(StructType([field for field in schema.fields if field.name not in STORES_OWN]), read)
    if not read.queue and "queue" not in kinds:
        raise InvalidSettings("name a queue: by the option queue or in a column queue")
    if read.bad_records is not BadRecords.FAIL:
        raise InvalidSettings("only duetime.spark.schedule can skip bad rows; here they end the load")
    if read.max_jobs_per_second and not read.writers:
        raise InvalidSettings("maxJobsPerSecond needs the option writers: how many tasks push at a time and share it")
    if read.on_change or read.withdraw_missing:
        raise InvalidSettings(
            "only duetime.spark.schedule compares a table with its last load; here the options are ifExists and mode, "
            "and a column change (insert, update, delete)"
        )
    return read


def _instance() -> str:
    """What the names of the nodes of a query's tasks begin with."""
    return f"load-{IdMaker().make()}"


def _close_nodes(options: LoadOptions, instance: str) -> None:
    """Close the nodes of tasks that were killed. Runs on the driver."""
    if options.journal:
        with closing(StoreView(options.store_url)) as view:
            close_left(Path(options.journal), instance, view)


def _micro_batch() -> str:
    return _local_property("streaming.sql.batchId") or "0"


def _local_property(name: str) -> str | None:
    """A property that the driver's session passes to its tasks; None if nobody set it, as is often so for the zone."""
    context = TaskContext.get()
    return context.getLocalProperty(name) if context else None


def _push(iterator: Iterator[Any], options: LoadOptions, batch: str, now_ms: int, instance: str) -> TaskDone:
    def make_mark(number: int, digest: bytes) -> Mark | None:
        return Mark(f"{batch}/{digest.hex()}", digest, MARK_LIFE_MS, brief=True) if options.batch else None

    cutter, zone = Cutter(options.namespace, make_mark), _local_property("spark.sql.session.timeZone")
    tables = _sorted(_checked(job_columns(_own(rows), options, now_ms, batch, zone) for rows in _latest(iterator)))
    portions = cutter.cut(tables)
    if options.journal:
        tally: PushCounts = run(_push_journaled(portions, options, instance))
    else:
        tally = run(push_portions(portions, options, writers=options.writers))
    return TaskDone(tally.rows, tally.accepted, tally.kept)


async def _push_journaled(portions: Iterator[Portion], options: LoadOptions, instance: str) -> PushCounts:
    """Push the portions; their entries are on the disk, in a node of this task, when this returns."""
    assert options.journal is not None
    steps = StepEntries(options, again=True)
    with (
        closing(StoreView(options.store_url)) as view,
        closing(TaskEntries(Path(options.journal), view, instance=instance)) as entries,
    ):

        async def journal(portion: Portion, answer: Loaded) -> None:
            entries.write(await steps.drafts(portion, answer))

        try:
            return await push_portions(portions, options, writers=options.writers, on_loaded=journal)
        finally:
            await steps.close()


def _latest(batches: Iterator[Any]) -> Iterator[Any]:
    """The last change of each job, by `version`; the rows of anything but a change feed as they are.

    All rows of the task are held for this: one job's changes may be far apart. Raises InvalidRequest if a job has
    several changes and there is no version.
    """
    first = next(batches, None)
    if first is None or "change" not in first.schema.names:
        yield from () if first is None else chain([first], batches)
        return
    table = arrow.Table.from_batches([first, *batches])
    names = [name for name in ("queue", "id") if name in table.schema.names]
    keys = table.select(names).group_by(names).aggregate([([], "count_all")])
    if keys.num_rows < table.num_rows:
        if "version" not in table.schema.names:
            twice = keys.filter(kernels.greater(keys.column("count_all"), 1)).column("id")[0].as_py()
            raise InvalidRequest(f"the job {twice!r} has several changes: a column version must say which is the last")
        by_version = table.take(kernels.sort_indices(table, sort_keys=[("version", "descending")]))
        numbered = by_version.append_column("_row", arrow.array(range(table.num_rows)))
        rows = numbered.group_by(names).aggregate([("_row", "min")]).column("_row_min")
        table = by_version.take(rows)
    yield from table.to_batches()


def _own(rows: Any) -> Any:
    """The rows without STORES_OWN. Raises InvalidRequest if one of those columns has a value."""
    for name in STORES_OWN:
        if name in rows.schema.names and rows.column(name).null_count < rows.num_rows:
            raise InvalidRequest(f"the column {name} is set by the store: leave it out, or null")
    return rows.select([name for name in rows.schema.names if name not in STORES_OWN])


def _checked(tables: Iterator[Any]) -> Iterator[Any]:
    for table in tables:
        bad = table.filter(kernels.is_valid(table.column("reason")))
        if bad.num_rows:
            first = bad.slice(0, 1).to_pylist()[0]
            raise InvalidRequest(f"a row cannot be a job: {first['reason']} (id {first['id']!r})", rows=bad.num_rows)
        yield table


def _sorted(tables: Iterator[Any]) -> Iterator[Any]:
    """Sorts as many rows by due time as may be held at once; rows with the same options stay together."""
    held: list[Any] = []
    rows = size = 0
    for table in tables:
        held.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        if rows >= SORTED_ROWS or size >= SORTED_BYTES:
            yield _sort(held)
            held, rows, size = [], 0, 0
    if held:
        yield _sort(held)


def _sort(tables: list[Any]) -> Any:
    table = arrow.concat_tables(tables)
    keyed = table.append_column("has_attributes", kernels.is_valid(table.column("attributes")))
    return table.take(kernels.sort_indices(keyed, sort_keys=SORT_KEYS))


def _partly(messages: list[WriterCommitMessage | None]) -> str:
    done = [one for one in messages if isinstance(one, TaskDone)]
    accepted, kept = sum(one.accepted for one in done), sum(one.kept for one in done)
    return (
        f"the load failed: {len(done)} of {len(messages)} tasks had pushed all of theirs, {accepted} jobs accepted and "
        f"{kept} kept; the others may have pushed some. Run it again: what is there is kept"
    )
