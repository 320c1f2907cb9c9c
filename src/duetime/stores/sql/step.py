"""A step: one transaction (or one part of it) as the verbs and the views see it.

A dialect derives its own `Step`, which defines how a named statement runs, how lists and rows are passed, and what is
locked. The functions below the class read and write rows the same way for every dialect.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import TracebackType
from typing import Any, NamedTuple

from duetime.model.job import DAY_MS, Lease, Moved, Priority, Totals
from duetime.model.names import Queue
from duetime.stores.base import Ask, Push, Pushed, Reserved, Wake
from duetime.stores.sql.rows import DEAD, GONE, LEASED, PRIORITIES, JobRow, Payload, QueueRow, ReadyRow, read_queue_row

log = logging.getLogger("duetime.stores")

TOTALS = Totals.__struct_fields__
"""The columns of the table `totals` that follow the day."""


Command = tuple[str, Mapping[str, object]]
"""The name of a query, and its parameters."""
StoredMark = tuple[bytes, bytes]
"""The digest of a mark's request, and its answer."""


class QueueNumbers(NamedTuple):
    """What a queue holds: its row, the jobs that are due, those of them that have expired, and damaged rows."""

    queue_row: QueueRow
    due: int
    expired: int
    damaged: int


class Step(ABC):
    """What an operation sees: named statements, the store's now, and the announcements for after the commit.

    Parameters that are lists (of ids, of leases) are converted to what the dialect needs.
    """

    max_body = 0
    """The largest body that the database takes, 0 for no limit."""
    wakes: list[Wake]
    registry_version = 0
    is_alone = False
    """Whether no other step shares the transaction, so that this one may commit it."""

    @property
    @abstractmethod
    def has_written(self) -> bool:
        """Returns whether the step may have changed something, so that it must be rolled back if it fails."""

    @property
    @abstractmethod
    def now(self) -> int:
        """The store's time. It is read again whenever a queue is locked, because waiting for the lock takes time."""

    @abstractmethod
    def fetch(self, query: str, **parameters: object) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def fetch_one(self, query: str, **parameters: object) -> Any:
        """The row of a query that finds one row at most. Returns None if it finds none."""

    @abstractmethod
    def execute(self, query: str, **parameters: object) -> None:
        """Run a statement without an answer. It may run later: before the next one with an answer, or the commit."""

    # --- fast paths of verbs; None where the dialect has none, or the case is unusual: then nothing was done

    def fast_push(self, queue: Queue, requests: Sequence[Push]) -> Sequence[Pushed] | None:
        return None

    def fast_reserve(self, queue: Queue, asks: Sequence[Ask]) -> Reserved | None:
        return None

    def fast_ack(self, queue: Queue, leases: Sequence[Lease]) -> Sequence[Moved] | None:
        return None

    # --- what a verb will read once its queue is locked; a dialect may send it with the lock, to save round trips

    def read_ahead(self, reads: Sequence[Command]) -> None:
        """The next `lock_queue` is followed by these queries, each with the parameter `queue`."""
        return

    def expect_push(self, queue: Queue, ids: Sequence[str], marks: Sequence[str]) -> None:
        """The next `lock_queue` is followed by `earliest`, `find_jobs` and, if there are `marks`, `find_marks`."""
        return

    def expect_reserve(self, limit: int) -> None:
        """The next `lock_queue` is followed by `ready_jobs` for at most `limit` jobs."""
        return

    def expect_ack(self, leases: Sequence[Lease]) -> None:
        """The next `lock_queue` is followed by `count_held`."""
        return

    # --- locks

    def load_queue(self, queue: Queue) -> QueueRow:
        row = self.fetch_one("load_queue", namespace=queue.namespace, name=queue.name)
        return read_queue_row(queue, row) if row else QueueRow()

    @abstractmethod
    def lock_queue(self, queue: Queue, *, create: bool) -> tuple[QueueRow, bool]:
        """A queue's row, which nobody else changes until the transaction ends, and True if the row is new."""

    @abstractmethod
    def new_queue_id(self) -> int:
        """A number under which there are no jobs."""

    @abstractmethod
    def lock_name(self, queue: Queue) -> None:
        """As `lock_queue`, for rows that are kept under a queue's name and may outlive the queue, such as totals."""

    @abstractmethod
    def lock_registry(self) -> None:
        """Keep others from writing records until the transaction ends."""

    @abstractmethod
    def lock_counter(self, name: str) -> None:
        """Keep others from changing this counter until the transaction ends."""

    # --- many rows

    def find_marks(self, queue: Queue, names: Sequence[str]) -> dict[str, StoredMark]:
        """The marks with these names that still live."""
        found: dict[str, StoredMark] = {}
        for name in names:
            row = self.fetch_one("get_mark", namespace=queue.namespace, queue=queue.name, name=name, now=self.now)
            if row is not None:
                found[name] = row
        return found

    @abstractmethod
    def ready_jobs(
        self, queue: Queue, queue_row: QueueRow, priority: Priority, after: tuple[int, str], limit: int
    ) -> Sequence[ReadyRow]:
        """The jobs of one priority that are due, after (due_at, id), in order, without payloads."""

    @abstractmethod
    def payloads(self, queue_row: QueueRow, ids: Sequence[str]) -> Mapping[str, Payload]: ...

    def payloads_and_head(self, queue_row: QueueRow, ids: Sequence[str]) -> tuple[Mapping[str, Payload], int | None]:
        """`payloads` and `earliest`."""
        return self.payloads(queue_row, ids), earliest(self, queue_row)

    @abstractmethod
    def count_held(self, queue_row: QueueRow, leases: Sequence[Lease]) -> int:
        """How many of these leases are held."""

    @abstractmethod
    def insert_jobs(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """`rows` come from `PushPlan.inserted`."""

    @abstractmethod
    def move_jobs(self, queue_row: QueueRow, jobs: Sequence[JobRow]) -> None:
        """Write back jobs that changed their place or other fields."""

    @abstractmethod
    def update_queue(self, queue_row: QueueRow) -> None: ...

    def write_queue(self, queue: Queue, queue_row: QueueRow, *, is_changed: bool) -> None:
        """Write back a queue's row if it changed, and what the step adds to the queue's totals."""
        if is_changed:
            self.update_queue(queue_row)
        if queue_row.happened:
            self.add_to_totals(queue, self.now // DAY_MS, queue_row.happened)

    def remove_queues(self, ids: Sequence[int]) -> None:
        """Remove rows of queues; their totals stay."""
        self.execute("remove_queues", ids=ids)

    def delete_totals(self, queue: Queue) -> None:
        self.execute("delete_totals", namespace=queue.namespace, queue=queue.name)

    def add_to_totals(self, queue: Queue, day: int, happened: Mapping[str, int]) -> None:
        numbers = {what: happened.get(what, 0) for what in TOTALS}
        self.execute("add_to_totals", namespace=queue.namespace, queue=queue.name, day=day, **numbers)

    @abstractmethod
    def heads(self, queues: Sequence[Queue]) -> list[int | None]:
        """The contract's `heads`."""

    @abstractmethod
    def queue_numbers(self, queues: Sequence[Queue]) -> list[QueueNumbers]: ...

    def count_between(self, queue_row: QueueRow, edges: Sequence[int]) -> list[int]:
        """How many jobs wait with first <= due_at < last, for each two neighbouring edges."""
        return [
            sum(
                self.fetch_one("count_waiting", queue=queue_row.id, priority=int(priority), first=first, last=last)[0]
                for priority in PRIORITIES
            )
            for first, last in pairwise(edges)
        ]

    def totals_by_day(self, queues: Sequence[Queue]) -> list[list[tuple[Any, ...]]]:
        """The day and its totals, for all days of each queue."""
        return [self.fetch("get_totals", namespace=queue.namespace, queue=queue.name) for queue in queues]


class changing:
    """A context manager that locks a queue's row for a step, and writes it back if the step changed it.

    With `forgets` the queue does not remember that it had jobs. It is a class, because every verb uses it, and a
    generator would cost twice as much.
    """

    __slots__ = ("_before", "_create", "_forgets", "_held", "_queue", "_queue_row", "_step")

    def __init__(self, step: Step, queue: Queue, *, create: bool = False, forgets: bool = False) -> None:
        self._step, self._queue, self._create, self._forgets = step, queue, create, forgets

    def __enter__(self) -> QueueRow:
        self._queue_row, is_new = self._step.lock_queue(self._queue, create=self._create)
        self._held = self._queue_row.jobs
        self._before = None if is_new else self._queue_row.columns()
        return self._queue_row

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            return
        step, queue_row = self._step, self._queue_row
        if self._held and not queue_row.jobs and not self._forgets:
            queue_row.last_born = max(queue_row.last_born, step.now)
        if not queue_row.jobs and (idle_from := queue_row.idle_from()):
            queue_row.reap_by(idle_from)
        if queue_row.id:
            step.write_queue(self._queue, queue_row, is_changed=queue_row.columns() != self._before)


def find_jobs(step: Step, queue: Queue, queue_row: QueueRow, ids: Iterable[str]) -> dict[str, JobRow]:
    """The stored jobs by id, in the order of the ids."""
    wanted = list(ids)
    rows = step.fetch("find_jobs", queue=queue_row.id, ids=wanted) if queue_row.jobs else []
    found = job_rows(step, queue, queue_row, rows)
    return {job_id: found[job_id] for job_id in wanted if job_id in found} if found else found


def job_rows(step: Step, queue: Queue, queue_row: QueueRow, rows: list[tuple[Any, ...]]) -> dict[str, JobRow]:
    """Rows of `find_jobs` and similar queries by id, in their order. Sets aside rows with anything but numbers after
    the id, which SQLite can hold.
    """
    damaged = [row[0] for row in rows if any(type(value) is not int for value in row[1:])]
    if damaged:
        set_aside(step, queue, queue_row, damaged)
    return {row[0]: JobRow(*row) for row in rows if row[0] not in damaged}


def write_jobs(step: Step, queue_row: QueueRow, jobs: Iterable[JobRow]) -> None:
    """Write back jobs that the rules have moved or ended."""
    moved, gone = list[JobRow](), list[str]()
    for job in jobs:
        if job.place == GONE:
            gone.append(job.id)
        else:
            moved.append(job)
    if moved:
        step.move_jobs(queue_row, moved)
    if gone:
        step.execute("delete_jobs", queue=queue_row.id, ids=gone)


def set_aside(step: Step, queue: Queue, queue_row: QueueRow, ids: Sequence[Any]) -> None:
    """Move rows that cannot be read as jobs out of the queue, where they would block others; counts show them."""
    for (place,) in step.fetch("set_aside_jobs", queue=queue_row.id, ids=list(ids)):
        queue_row.jobs -= 1
        queue_row.leased -= place == LEASED
        queue_row.dead -= place == DEAD
    for job_id in ids:
        log.error("damaged_job_set_aside", extra={"queue": str(queue), "job": str(job_id)})


def earliest(step: Step, queue_row: QueueRow) -> int | None:
    """The earliest due_at of the jobs that wait in a queue, expired or not."""
    if queue_row.jobs == queue_row.leased + queue_row.dead:
        return None
    heads = step.fetch_one("heads", queue=queue_row.id)
    return min((head for head in heads if head is not None), default=None)


def announce(step: Step, queue: Queue, head: int | None, due_at: int | None) -> None:
    """Announce that a job waits from `due_at` on, if that is before everything that waited so far (`head`)."""
    if due_at is not None and (head is None or due_at < head):
        step.wakes.append(Wake(queue, due_at))
