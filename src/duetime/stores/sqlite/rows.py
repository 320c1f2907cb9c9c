"""Reading and writing rows within one step; the words that the verbs and the views of the SQLite store are made of."""

import logging
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import msgspec

from duetime.job import DAY_MS, Totals
from duetime.names import Queue
from duetime.stores.base import Wake
from duetime.stores.sql.queries import for_rows
from duetime.stores.sql.rows import DEAD, GONE, LEASED, JobRow, QueueRow, as_json
from duetime.stores.sqlite.connection import QUERIES
from duetime.stores.sqlite.threads import Step

log = logging.getLogger("duetime.stores")

_INSERTS = [(size, for_rows(QUERIES["insert_job"], size)) for size in (64, 16, 4, 1)]

TOTALS = Totals.__struct_fields__
"""The columns of `totals` behind the day."""


def fetch(step: Step, query: str, **parameters: object) -> list[tuple[Any, ...]]:
    return step.connection.execute(QUERIES[query], parameters).fetchall()


def fetch_one(step: Step, query: str, **parameters: object) -> Any:
    """The row of a query that has one or none."""
    return step.connection.execute(QUERIES[query], parameters).fetchone()


def execute(step: Step, query: str, **parameters: object) -> None:
    step.connection.execute(QUERIES[query], parameters)


def load_queue(step: Step, queue: Queue) -> QueueRow:
    row = fetch_one(step, "load_queue", namespace=queue.namespace, name=queue.name)
    return QueueRow(*row) if row else QueueRow()


@contextmanager
def changing(step: Step, queue: Queue, *, create: bool = False) -> Generator[QueueRow, None, None]:
    """A queue's row while a step changes it; written back if it did."""
    line = load_queue(step, queue)
    held = line.jobs
    before = line.columns() if line.id else None
    if create and not line.id:
        line.id, line.floor = fetch_one(step, "new_queue")
        execute(step, "insert_queue", id=line.id, namespace=queue.namespace, name=queue.name)
    yield line
    if held and not line.jobs:
        line.last_born = max(line.last_born, step.now)
    if not line.jobs and (idle_from := line.idle_from()):
        line.reap_by(idle_from)
    after = line.columns()
    if line.id and after != before:
        step.connection.execute(QUERIES["update_queue"], (*after, line.id))
    if line.happened:
        add_to_totals(step, queue, step.now // DAY_MS, line.happened)


def add_to_totals(step: Step, queue: Queue, day: int, happened: Mapping[str, int]) -> None:
    numbers = [happened.get(what, 0) for what in TOTALS]
    step.connection.execute(QUERIES["add_to_totals"], (*queue, day, *numbers))


def find_jobs(step: Step, line: QueueRow, ids: Iterable[str]) -> dict[str, JobRow]:
    return job_rows(fetch(step, "find_jobs", queue=line.id, ids=as_json(ids)) if line.jobs else [])


def job_rows(rows: Iterable[tuple[Any, ...]]) -> dict[str, JobRow]:
    """Rows of `find_jobs` and its like by id, in their order."""
    return {row[0]: JobRow(*row) for row in rows}


def insert_jobs(step: Step, rows: Sequence[tuple[object, ...]]) -> None:
    """In as few statements as fixed sizes allow, so that each of them stays prepared."""
    start = 0
    for size, insert in _INSERTS:
        while len(rows) - start >= size:
            step.connection.execute(insert, list(chain.from_iterable(rows[start : start + size])))
            start += size


def write_jobs(step: Step, line: QueueRow, jobs: Iterable[JobRow]) -> None:
    """Write back jobs that the rules have moved or ended."""
    moved, gone = list[dict[str, object]](), list[str]()
    for job in jobs:
        if job.place == GONE:
            gone.append(job.id)
        else:
            moved.append({"queue": line.id, **msgspec.structs.asdict(job)})
    if moved:
        step.connection.executemany(QUERIES["move_job"], moved)
    if gone:
        execute(step, "delete_jobs", queue=line.id, ids=as_json(gone))


def set_aside(step: Step, queue: Queue, line: QueueRow, ids: Sequence[Any]) -> None:
    """Put rows that cannot be read as jobs out of everybody's way; counts and `check` show them."""
    for (place,) in fetch(step, "set_aside_jobs", queue=line.id, ids=as_json(ids)):
        line.jobs -= 1
        line.leased -= place == LEASED
        line.dead -= place == DEAD
    for job_id in ids:
        log.error("damaged_job_set_aside", extra={"queue": str(queue), "job": str(job_id)})


def sound_rows(step: Step, queue: Queue, line: QueueRow, rows: list[tuple[Any, ...]]) -> dict[str, JobRow]:
    """As `job_rows`, without those whose numbers are none, which are set aside."""
    damaged = [row[0] for row in rows if any(type(value) is not int for value in row[1:])]
    if damaged:
        set_aside(step, queue, line, damaged)
    return job_rows(row for row in rows if row[0] not in damaged)


def earliest(step: Step, line: QueueRow) -> int | None:
    """The earliest due_at of what waits in a queue, expired or not."""
    if line.jobs == line.leased + line.dead:
        return None
    heads = fetch_one(step, "heads", queue=line.id)
    return min((head for head in heads if head is not None), default=None)


def announce(step: Step, queue: Queue, head: int | None, due_at: int | None) -> None:
    """Tell the world that a job waits from `due_at` on, if that is before everything that waited so far (`head`)."""
    if due_at is not None and (head is None or due_at < head):
        step.wakes.append(Wake(queue, due_at))
