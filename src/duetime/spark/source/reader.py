"""The reader of the data source: the jobs that are in a store, as they are while Spark reads.

A partition is one state of one queue, the delayed and the ready ones cut into ranges of due time where there are many.
A job that stays in one state throughout is seen exactly once, however live the queue is; one that moves meanwhile may
be seen in both places or in neither. Filters on namespace, queue, state and due_at are applied here: other queues and
states are not read, and a range begins and ends where the filter does. `read` runs on executors, the rest on the
driver.
"""

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import MapType, StringType, StructType, TimestampType

from duetime.client.event_loop import iterate, run
from duetime.model.clock import MAX_INSTANT, instant_ms
from duetime.model.errors import InvalidRequest, InvalidSettings
from duetime.model.job import Job, State
from duetime.model.names import Queue
from duetime.spark.load.job_columns import arrow
from duetime.spark.load.options import LoadOptions, read_options
from duetime.spark.schemas import BYTES, INT, TEXT, columns
from duetime.spark.session import SPARK
from duetime.spark.source.listing import Bounds, Listing, split_ranges

if TYPE_CHECKING or SPARK >= (4, 1):  # 4.0 pushes no filters down, and filters the rows itself
    from pyspark.sql.datasource import (
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        IsNotNull,
        LessThan,
        LessThanOrEqual,
    )

_TIME = TimestampType()
JOBS = columns(
    namespace=TEXT,
    queue=TEXT,
    id=TEXT,
    state=TEXT,
    due_at=_TIME,
    attempt=INT,
    priority=TEXT,
    created_at=_TIME,
    expires_at=_TIME,
    body=BYTES,
    attributes=MapType(TEXT, TEXT),
    last_error=TEXT,
)

_MOMENT = arrow.timestamp("us", "UTC")
_KINDS = {
    TEXT: arrow.string(),
    INT: arrow.int32(),
    BYTES: arrow.binary(),
    _TIME: _MOMENT,
    JOBS["attributes"].dataType: arrow.map_(arrow.string(), arrow.string()),
}
_ARROW = arrow.schema([(field.name, _KINDS[field.dataType]) for field in JOBS.fields])

PARTITIONS = 8
NAMES = {("namespace",), ("queue",), ("state",)}
WAITING = (State.DELAYED, State.READY)
"""Stores count and sort these jobs by due time. Leased and dead ones are read by one task per queue."""


class Share(InputPartition):
    """One state of one queue, within bounds."""

    def __init__(self, queue: Queue, state: State, bounds: Bounds) -> None:
        super().__init__(None)
        self.queue, self.state, self.bounds = queue, state, bounds


class Pushdown:
    """The object that Spark finds as the reader's `pushFilters`.

    A session without `spark.sql.python.filterPushdown.enabled`, which is off by default, refuses a reader that brings
    its own `pushFilters`, and recognises one by its function. This one looks like the base class's: where nothing is
    pushed down, Spark filters the rows itself.
    """

    __func__ = staticmethod(getattr(DataSourceReader, "pushFilters", len))

    def __init__(self, reader: "StoreReader") -> None:
        self._reader = reader

    def __call__(self, filters: "list[Filter]") -> "Iterable[Filter]":
        """Takes the filters that the store can apply exactly; returns the others."""
        return [one for one in filters if not self._reader.takes(one)]


class StoreReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], schema: StructType = JOBS) -> None:
        given = {name.lower(): value for name, value in options.items()}
        partitions = given.pop("partitions", str(PARTITIONS))
        if not partitions.isdecimal() or int(partitions) < 1:
            raise InvalidSettings(f"partitions must be a whole number from 1 on, got {partitions!r}")
        self._partitions = int(partitions)
        self._options: LoadOptions = read_options({name: one for name, one in given.items() if name != "path"})
        self._schema = _arrow_schema(schema)
        self._wanted: dict[str, set[str]] = {}
        if "namespace" in given:
            self._wanted["namespace"] = {self._options.namespace}
        if self._options.queue:
            self._wanted["queue"] = {self._options.queue}
        self._bounds = Bounds(0, MAX_INSTANT)

    @property
    def pushFilters(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return Pushdown(self)

    def takes(self, one: "Filter") -> bool:
        """Returns True if the store can apply this filter exactly, and narrows what is read."""
        match one:
            case EqualTo(attribute, value) if attribute in NAMES:
                self._narrow(attribute[0], {value})
            case In(attribute, values) if attribute in NAMES:
                self._narrow(attribute[0], set(values))
            case IsNotNull(attribute) if attribute in NAMES:
                pass
            case GreaterThanOrEqual(("due_at",), value):
                self._bounds = self._bounds.within(instant_ms(value), MAX_INSTANT)
            case GreaterThan(("due_at",), value):
                self._bounds = self._bounds.within(_floor_ms(value) + 1, MAX_INSTANT)
            case LessThan(("due_at",), value):
                self._bounds = self._bounds.within(0, instant_ms(value) - 1)
            case LessThanOrEqual(("due_at",), value):
                self._bounds = self._bounds.within(0, _floor_ms(value))
            case _:
                return False
        return True

    def _narrow(self, name: str, values: set[str]) -> None:
        self._wanted[name] = self._wanted[name] & values if name in self._wanted else values

    def partitions(self) -> Sequence[InputPartition]:
        return run(self._plan())

    async def _plan(self) -> Sequence[InputPartition]:
        states = [state for state in State if state in self._wanted.get("state", set(State))]
        shares: list[InputPartition] = []
        async with Listing.open(self._options) as listing:
            for queue in await self._queues(listing):
                ranges = [self._bounds]
                if any(state in WAITING for state in states):
                    ranges = await split_ranges(listing, queue, self._bounds, self._partitions)
                for state in states:
                    cut = ranges if state in WAITING else [self._bounds]
                    shares += [Share(queue, state, bounds) for bounds in cut]
        return shares or [Share(Queue("", ""), State.DEAD, self._bounds)]

    async def _queues(self, listing: Listing) -> list[Queue]:
        namespaces, names = self._wanted.get("namespace"), self._wanted.get("queue")
        return [
            queue
            for queue in await listing.queues()
            if (namespaces is None or queue.namespace in namespaces) and (names is None or queue.name in names)
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, Share) or not partition.queue.name:
            return
        with closing(iterate(self._pages(partition))) as pages:
            for jobs in pages:
                yield _as_batch(jobs, self._schema)

    async def _pages(self, share: Share) -> AsyncGenerator[list[Job]]:
        async with Listing.open(self._options) as listing:
            async for jobs in listing.jobs(share.queue, share.state, share.bounds):
                yield jobs


def _floor_ms(value: Any) -> int:
    """The last whole millisecond that is not after the instant; `instant_ms` rounds up."""
    at = instant_ms(value)
    return at - 1 if value.microsecond % 1000 else at


def _arrow_schema(schema: StructType) -> Any:
    """The Arrow schema of the columns that were asked for. Raises InvalidRequest for unknown ones and other types."""
    kinds = {field.name: field.dataType for field in JOBS.fields}
    chosen: list[Any] = []
    for field in schema.fields:
        if field.name not in kinds:
            raise InvalidRequest(f"unknown column of a job {field.name!r}; there are {', '.join(JOBS.names)}")
        if field.name == "body" and isinstance(field.dataType, StringType):
            chosen.append(arrow.field("body", arrow.string()))
        elif field.dataType == kinds[field.name]:
            chosen.append(_ARROW.field(field.name))
        else:
            kind = kinds[field.name].simpleString()
            raise InvalidRequest(f"the column {field.name} must be {kind}, got {field.dataType.simpleString()}")
    return arrow.schema(chosen)


def _as_batch(jobs: Sequence[Job], schema: Any) -> Any:
    def moments(values: Iterable[int]) -> Any:
        micros = arrow.array([value * 1000 if value else None for value in values], arrow.int64())
        return micros.cast(_MOMENT)

    columns = [
        arrow.array([job.queue.namespace for job in jobs]),
        arrow.array([job.queue.name for job in jobs]),
        arrow.array([job.id for job in jobs]),
        arrow.array([job.state.value for job in jobs]),
        moments(job.due_at for job in jobs),
        arrow.array([job.attempt for job in jobs], arrow.int32()),
        arrow.array([job.priority.name.lower() for job in jobs]),
        moments(job.born for job in jobs),
        moments(job.expires_at for job in jobs),
        arrow.array([job.body for job in jobs], arrow.binary()),
        arrow.array([list(job.attributes.items()) for job in jobs], _ARROW.field("attributes").type),
        arrow.array([job.error or None for job in jobs], arrow.string()),
    ]
    whole = arrow.RecordBatch.from_arrays(columns, schema=_ARROW)
    return whole if schema == _ARROW else whole.select(schema.names).cast(schema)
