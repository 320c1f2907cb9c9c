"""A step: one transaction (or one part of it) as the verbs and the views see it.

A dialect derives its own `Step`, which says how a named statement runs, how lists and rows are passed, and what is
locked. The functions below the class read and write rows the same way for every dialect.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from duetime.job import DAY_MS, Lease, Priority, Totals
from duetime.names import Queue
from duetime.stores.base import Wake
from duetime.stores.sql.rows import DEAD, GONE, LEASED, JobRow, Payload, QueueRow, ReadyRow

log = logging.getLogger("duetime.stores")

TOTALS = Totals.__struct_fields__
"""The columns of the table `totals` that follow the day."""


class Step(ABC):
    """What an operation sees: named statements, the store's now, and the fields for what is to be announced.

    Parameters that are lists (of ids, of leases) are converted to what the dialect needs.
    """

    max_body = 0
    """The largest body that the database takes, 0 for no limit."""

    def __init__(self) -> None:
        self.wakes: list[Wake] = []
        self.registry_version = 0
        self.has_written = False

    @property
    @abstractmethod
    def now(self) -> int:
        """The store's time. It is read again whenever a queue is locked, because waiting for the lock takes time."""

    @abstractmethod
    def fetch(self, query: str, **parameters: object) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def fetch_one(self, query: str, **parameters: object) -> Any:
        """The row of a query that finds one row at most; None if it finds none."""

    @abstractmethod
    def execute(self, query: str, **parameters: object) -> None:
        """Run a statement without an answer. It may run later, but before the next statement with an answer."""

    def finish(self) -> None:
        """Called after the operation: run what was put off. A dialect that puts nothing off has nothing to do."""
        return

    # --- locks

    def load_queue(self, queue: Queue) -> QueueRow:
        row = self.fetch_one("load_queue", namespace=queue.namespace, name=queue.name)
        return QueueRow(*row) if row else QueueRow()

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

    # --- many rows at once

    @abstractmethod
    def ready_jobs(
        self, queue: Queue, line: QueueRow, priority: Priority, after: tuple[int, str], limit: int
    ) -> Sequence[ReadyRow]:
        """The jobs of one priority that are due, after (due_at, id), in order, without payloads."""

    @abstractmethod
    def payloads(self, line: QueueRow, ids: Sequence[str]) -> Mapping[str, Payload]: ...

    @abstractmethod
    def count_held(self, line: QueueRow, leases: Sequence[Lease]) -> int:
        """How many of these leases are held."""

    @abstractmethod
    def insert_jobs(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """`rows` come from `rows.insert_values`."""

    @abstractmethod
    def move_jobs(self, line: QueueRow, jobs: Sequence[JobRow]) -> None:
        """Write back jobs that changed their place or other fields."""

    @abstractmethod
    def update_queue(self, line: QueueRow) -> None: ...

    def add_to_totals(self, queue: Queue, day: int, happened: Mapping[str, int]) -> None:
        numbers = {what: happened.get(what, 0) for what in TOTALS}
        self.execute("add_to_totals", namespace=queue.namespace, queue=queue.name, day=day, **numbers)

    def heads(self, queues: Sequence[Queue]) -> list[int | None]:
        """The contract's `heads`."""
        lines = (self.load_queue(queue) for queue in queues)
        return [None if line.paused else earliest(self, line) for line in lines]


class changing:
    """A context manager that locks a queue's row for a step, and writes it back if the step changed it.

    It is a class, because every verb uses it, and a generator would cost twice as much.
    """

    __slots__ = ("_before", "_create", "_held", "_line", "_queue", "_step")

    def __init__(self, step: Step, queue: Queue, *, create: bool = False) -> None:
        self._step, self._queue, self._create = step, queue, create

    def __enter__(self) -> QueueRow:
        self._line, is_new = self._step.lock_queue(self._queue, create=self._create)
        self._held = self._line.jobs
        self._before = None if is_new else self._line.columns()
        return self._line

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            return
        step, line = self._step, self._line
        if self._held and not line.jobs:
            line.last_born = max(line.last_born, step.now)
        if not line.jobs and (idle_from := line.idle_from()):
            line.reap_by(idle_from)
        if line.id and line.columns() != self._before:
            step.update_queue(line)
        if line.happened:
            step.add_to_totals(self._queue, step.now // DAY_MS, line.happened)


def find_jobs(step: Step, line: QueueRow, ids: Iterable[str]) -> dict[str, JobRow]:
    """The stored jobs by id, in the order of the ids."""
    wanted = list(ids)
    found = job_rows(step.fetch("find_jobs", queue=line.id, ids=wanted) if line.jobs else [])
    return {job_id: found[job_id] for job_id in wanted if job_id in found} if found else found


def job_rows(rows: Iterable[tuple[Any, ...]]) -> dict[str, JobRow]:
    """Rows of `find_jobs` and similar queries by id, in their order."""
    return {row[0]: JobRow(*row) for row in rows}


def write_jobs(step: Step, line: QueueRow, jobs: Iterable[JobRow]) -> None:
    """Write back jobs that the rules have moved or ended."""
    moved, gone = list[JobRow](), list[str]()
    for job in jobs:
        if job.place == GONE:
            gone.append(job.id)
        else:
            moved.append(job)
    if moved:
        step.move_jobs(line, moved)
    if gone:
        step.execute("delete_jobs", queue=line.id, ids=gone)


def set_aside(step: Step, queue: Queue, line: QueueRow, ids: Sequence[Any]) -> None:
    """Move rows that cannot be read as jobs out of the queue, where they would block others; counts show them."""
    for (place,) in step.fetch("set_aside_jobs", queue=line.id, ids=list(ids)):
        line.jobs -= 1
        line.leased -= place == LEASED
        line.dead -= place == DEAD
    for job_id in ids:
        log.error("damaged_job_set_aside", extra={"queue": str(queue), "job": str(job_id)})


def sound_rows(step: Step, queue: Queue, line: QueueRow, rows: list[tuple[Any, ...]]) -> dict[str, JobRow]:
    """As `job_rows`; rows that hold something else than numbers after their id are set aside."""
    damaged = [row[0] for row in rows if any(type(value) is not int for value in row[1:])]
    if damaged:
        set_aside(step, queue, line, damaged)
    return job_rows(row for row in rows if row[0] not in damaged)


def earliest(step: Step, line: QueueRow) -> int | None:
    """The earliest due_at of the jobs that wait in a queue, expired or not."""
    if line.jobs == line.leased + line.dead:
        return None
    heads = step.fetch_one("heads", queue=line.id)
    return min((head for head in heads if head is not None), default=None)


def announce(step: Step, queue: Queue, head: int | None, due_at: int | None) -> None:
    """Announce that a job waits from `due_at` on, if that is before everything that waited so far (`head`)."""
    if due_at is not None and (head is None or due_at < head):
        step.wakes.append(Wake(queue, due_at))
