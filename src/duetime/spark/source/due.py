"""The jobs of a queue as they fall due, as a stream: reserved for a micro-batch, acked once Spark has committed it.

The driver holds the leases. A micro-batch is reserved when Spark asks for the newest offset, which counts the jobs so
far; `commit` acks them. The jobs of a micro-batch that failed, or of a query that was killed, come again when their
leases end (option `ttr`): at least once, as for any consumer. `ttr` must be longer than a micro-batch takes. A
micro-batch that Spark repeats after a restart is empty, because its jobs come again by themselves. All of this runs on
the driver; executors get the jobs with their tasks.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from duetime.client import calls, connect
from duetime.model.errors import InvalidSettings
from duetime.model.job import STEP_JOBS, Delivery, State, chunks
from duetime.model.names import DEFAULT_NAMESPACE, Queue
from duetime.spark.source.stream import (
    HAS_LIMITS,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    named_options,
)

OPTIONS = ("url", "token", "namespace", "queue", "ttr", "journal", "maxRowsPerTrigger")
ROWS_PER_TRIGGER = "5000"

Offset = dict[str, int]
"""`jobs`: how many the query has got."""


class DueJobs(InputPartition):
    """Rows of the reader's schema JOBS."""

    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        super().__init__(None)
        self.rows = rows


class DueReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str]) -> None:
        if not HAS_LIMITS:
            raise InvalidSettings("a stream of due jobs needs Spark 4.2")
        given = named_options(options, OPTIONS)
        most = given.pop("maxRowsPerTrigger", ROWS_PER_TRIGGER)
        if not most.isdecimal() or not int(most):
            raise InvalidSettings(f"maxRowsPerTrigger must be a whole number from 1 on, got {most!r}")
        if not given.get("queue"):
            raise InvalidSettings("the option queue is missing: name the queue whose jobs fall due")
        self._most, self._ttr = int(most), given.pop("ttr", "10m")
        self._queue = Queue(given.setdefault("namespace", DEFAULT_NAMESPACE), given.pop("queue"))
        self._client = connect(given.pop("url"), **given)  # pyright: ignore[reportArgumentType]
        self._held: dict[int, list[Delivery]] = {}
        """By the offset at which the micro-batch ends."""
        self._left: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Executors only need `read`."""
        return {}

    def initialOffset(self) -> Offset:
        return {"jobs": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._left = self._client.queue(self._queue.name).counts().ready

    def reportLatestOffset(self) -> Offset | None:
        return None

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Reserve the next micro-batch. Spark has committed those up to `start`, but it reports that only when another
        one follows, so the jobs of the last one are acked here.
        """
        self.commit(start)
        room = limit.max_rows if isinstance(limit, ReadMaxRows) else self._most
        if self._left is not None:
            room = min(room, self._left)
        found: list[Delivery] = []
        while room > len(found):
            count = min(STEP_JOBS, room - len(found))
            some = self._client.send(calls.reserve(self._queue.namespace, [self._queue], count, self._ttr, 0))
            if not some:
                break
            found += some
        if not found:
            return start
        if self._left is not None:
            self._left -= len(found)
        end = start["jobs"] + len(found)
        self._held[end] = found
        return {"jobs": end}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        held = self._held.get(end["jobs"], [])
        return [DueJobs([_row(one) for one in some]) for some in chunks(held, STEP_JOBS)] or [DueJobs([])]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, DueJobs)
        yield from partition.rows

    def commit(self, end: Offset) -> None:
        for at in [at for at in self._held if at <= end["jobs"]]:
            for some in chunks(self._held.pop(at), STEP_JOBS):
                self._client.send(calls.ack(self._queue, some))

    def stop(self) -> None:
        self._client.close()


def _row(delivery: Delivery) -> tuple[Any, ...]:
    lease = delivery.lease
    return (
        lease.queue.namespace,
        lease.queue.name,
        lease.id,
        State.LEASED.value,
        _moment(delivery.due_at),
        lease.attempt,
        delivery.priority.name.lower(),
        _moment(lease.born),
        _moment(delivery.expires_at),
        delivery.body,
        dict(delivery.attributes),
        delivery.error or None,
    )


def _moment(at_ms: int) -> datetime | None:
    return datetime.fromtimestamp(at_ms / 1000, UTC) if at_ms else None
